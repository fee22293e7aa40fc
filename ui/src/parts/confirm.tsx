/** `confirm`: ask before what cannot be undone. One dialog at a time, by the browser's own <dialog>. */

import { type ReactNode, useEffect, useRef, useSyncExternalStore } from "react";
import { Shared } from "../api/shared";
import "./confirm.css";

export interface Question {
  title: string;
  says?: ReactNode;
  /** The word on the button: what will be done. */
  act: string;
  danger?: boolean;
}

const asked = new Shared<(Question & { answer: (yes: boolean) => void }) | undefined>(undefined);

export function confirm(question: Question): Promise<boolean> {
  asked.now?.answer(false);
  return new Promise((resolve) => {
    asked.set({
      ...question,
      answer: (yes) => {
        asked.set(undefined);
        resolve(yes);
      },
    });
  });
}

/** Where the dialog appears; once, in the app. */
export function ConfirmHost() {
  const question = useSyncExternalStore(asked.listen, asked.read);
  return question ? <Dialog key={question.title} question={question} /> : null;
}

function Dialog({ question }: { question: NonNullable<typeof asked.now> }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog
      ref={dialog}
      className="confirm"
      onCancel={() => question.answer(false)}
      aria-labelledby="confirm-title"
    >
      <h2 id="confirm-title">{question.title}</h2>
      {question.says && <div className="confirm-says">{question.says}</div>}
      <div className="confirm-buttons">
        <button onClick={() => question.answer(false)}>Keep as it is</button>
        <button
          className={question.danger ? "danger" : "primary"}
          autoFocus
          onClick={() => question.answer(true)}
        >
          {question.act}
        </button>
      </div>
    </dialog>
  );
}
