/** `?`: what the keys do here. */

import { useEffect, useRef } from "react";
import { shortcuts } from "../keyboard";
import "./help.css";

export function Help({ close }: { close: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} className="help" onClose={close} aria-labelledby="help-title">
      <h2 id="help-title">Keys</h2>
      <dl>
        {shortcuts().map(({ keys, says }) => (
          <div key={keys}>
            <dt>
              {keys.split(" ").map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </dt>
            <dd>{says}</dd>
          </div>
        ))}
      </dl>
      <button autoFocus onClick={() => dialog.current?.close()}>
        Close
      </button>
    </dialog>
  );
}
