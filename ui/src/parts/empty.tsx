/** Nothing here yet: what would be here, and the first command to type. */

import type { ReactNode } from "react";
import { Command } from "./command";
import "./empty.css";

interface Props {
  title: string;
  says?: ReactNode;
  command?: string;
}

export function Empty({ title, says, command }: Props) {
  return (
    <div className="empty">
      <h2>{title}</h2>
      {says && <p>{says}</p>}
      {command && <Command text={command} />}
    </div>
  );
}
