/** A command for the terminal, and a button that copies it. */

import { useState } from "react";
import "./empty.css";

export function Command({ text }: { text: string }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return (
    <span className="command">
      <code>{text}</code>
      <button className="tiny plain" onClick={copy} aria-label={`Copy: ${text}`}>
        {copied ? "copied" : "copy"}
      </button>
    </span>
  );
}
