/** A line of a log as text: escape sequences become classes or vanish, never markup; its level colours it. */

import type { ReactNode } from "react";
import "./logtext.css";

// CSI … m is kept (colours), every other escape sequence and control character goes.
const SEQUENCE =
  /\x1b\[([0-9;]*)m|\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[PX^_][^\x1b]*(?:\x1b\\)?|\x1b[ -/]*[0-~]?|[\x00-\x08\x0b-\x1f\x7f-\x9f]/g;

const COLOURS = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];

interface Piece {
  text: string;
  classes: string;
}

export function pieces(text: string): Piece[] {
  const found: Piece[] = [];
  let colour = "";
  let bold = false;
  let from = 0;
  const push = (part: string) => {
    if (part)
      found.push({
        text: part,
        classes: [colour && `ansi-${colour}`, bold && "ansi-bold"].filter(Boolean).join(" "),
      });
  };
  for (const match of text.matchAll(SEQUENCE)) {
    push(text.slice(from, match.index));
    from = match.index + match[0].length;
    if (match[1] === undefined) continue;
    for (const code of match[1].split(";").map(Number)) {
      if (code === 0) [colour, bold] = ["", false];
      else if (code === 1) bold = true;
      else if (code === 22) bold = false;
      else if (code === 39) colour = "";
      else if (code >= 30 && code <= 37) colour = COLOURS[code - 30] ?? "";
      else if (code >= 90 && code <= 97) colour = COLOURS[code - 90] ?? "";
    }
  }
  push(text.slice(from));
  return found;
}

export type Level = "error" | "warning" | "debug" | undefined;

/** As the server finds errors (`level=error`), from the words that loggers write. */
export function levelOf(text: string): Level {
  const head = text.slice(0, 400);
  if (
    /\b(ERROR|CRITICAL|FATAL|PANIC)\b|\b[Pp]anic:|^Traceback \(most|\b\w*(Error|Exception)\b:|\berror:/.test(
      head,
    )
  )
    return "error";
  if (/\bWARN(ING)?\b|\bwarning:|\w*Warning:/.test(head)) return "warning";
  if (/\b(DEBUG|TRACE)\b/.test(head)) return "debug";
  return undefined;
}

const LONGEST = 4000;

/** `find`: what is marked in it, in lower case. */
export function LogText({ text, find = "" }: { text: string; find?: string }) {
  const cut = text.length > LONGEST;
  const level = levelOf(text);
  return (
    <span className={level && `level-${level}`}>
      {pieces(cut ? text.slice(0, LONGEST) : text).map((piece, n) => (
        <span key={n} className={piece.classes || undefined}>
          {find ? marked(piece.text, find) : piece.text}
        </span>
      ))}
      {cut && (
        <span className="quiet">
          {" "}
          … {text.length - LONGEST} more characters (download the log to see them)
        </span>
      )}
    </span>
  );
}

function marked(text: string, find: string): ReactNode[] {
  const low = text.toLowerCase();
  const found: ReactNode[] = [];
  let from = 0;
  for (let at = low.indexOf(find); at >= 0; at = low.indexOf(find, from)) {
    found.push(text.slice(from, at), <mark key={at}>{text.slice(at, at + find.length)}</mark>);
    from = at + find.length;
  }
  found.push(text.slice(from));
  return found;
}
