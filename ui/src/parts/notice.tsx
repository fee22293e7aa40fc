/** `tell`: a line at the foot of the page on what was done, with a way back where there is one. */

import { useSyncExternalStore } from "react";
import { Refusal } from "../api/client";
import { Shared } from "../api/shared";
import { Icon } from "./icon";
import { isCommand } from "./next";
import "./notice.css";

interface Notice {
  id: number;
  text: string;
  bad: boolean;
  next?: string | undefined;
  undo?: (() => void) | undefined;
}

const SHOWN = 8000;
const notices = new Shared<readonly Notice[]>([]);
let last = 0;

const close = (id: number) => notices.set(notices.now.filter((each) => each.id !== id));

function show(notice: Omit<Notice, "id">): void {
  const id = ++last;
  notices.set([...notices.now.slice(-2), { ...notice, id }]);
  setTimeout(() => close(id), notice.bad ? 2 * SHOWN : SHOWN);
}

export function tell(text: string, undo?: () => void): void {
  show({ text, bad: false, undo });
}

/** That something is wrong, with the next command to try. */
export function warn(text: string, next?: string): void {
  show({ text, bad: true, next });
}

/** What went wrong, with the next step that the server names. */
export function tellError(error: unknown): void {
  const text = error instanceof Error ? error.message : String(error);
  warn(text, error instanceof Refusal ? error.next : undefined);
}

/** Where notices appear; once, in the app. */
export function NoticeHost() {
  const shown = useSyncExternalStore(notices.listen, notices.read);
  return (
    <div className="notices" role="status" aria-live="polite">
      {shown.map(({ id, text, bad, next, undo }) => (
        <div key={id} className={`notice ${bad ? "tone-bad" : ""}`}>
          <Icon name={bad ? "warning" : "check"} />
          <span className="notice-text">
            {text}
            {next && isCommand(next) && <code> {next}</code>}
            {next && !isCommand(next) && <span className="quiet">{`. Next: ${next}`}</span>}
          </span>
          {undo && (
            <button
              className="tiny"
              onClick={() => {
                close(id);
                undo();
              }}
            >
              Undo
            </button>
          )}
          <button className="tiny plain" aria-label="Close" onClick={() => close(id)}>
            <Icon name="close" />
          </button>
        </div>
      ))}
    </div>
  );
}
