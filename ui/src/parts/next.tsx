/** What to do next, as the server names it: a command to copy, or a sentence. */

import { Command } from "./command";

export const isCommand = (text: string) => /^(weft|kubectl) /.test(text);

export function Next({ text }: { text: string | undefined }) {
  if (!text) return null;
  return isCommand(text) ? <Command text={text} /> : <p className="quiet">{`Next: ${text}`}</p>;
}
