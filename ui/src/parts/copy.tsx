/** A button that copies a text. */

import { useState } from "react";

export function Copy({ text, what }: { text: string; what: string }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return (
    <button type="button" className="tiny" onClick={copy}>
      {copied ? "copied" : `Copy ${what}`}
    </button>
  );
}
