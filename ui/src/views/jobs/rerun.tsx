/** The same again, with changes that make sense for one job or for many. */

import { type FormEvent, useEffect, useRef, useState } from "react";
import { rerun } from "../../actions";
import { plural } from "../../format";
import { go } from "../../location";
import { Link } from "../../parts/link";
import { paths } from "../../routes";

interface Props {
  names: readonly string[];
  close: () => void;
}

export function Rerun({ names, close }: Props) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [env, setEnv] = useState("");
  const [priority, setPriority] = useState("");
  const [queue, setQueue] = useState("");
  const [wrong, setWrong] = useState("");
  useEffect(() => dialog.current?.showModal(), []);
  const only = names.length === 1 ? names[0] : undefined;

  const submit = async (event: FormEvent) => {
    event.preventDefault();
    const lines = env.split("\n").filter((line) => line.trim() !== "");
    const bad = lines.find((line) => !/^\s*[A-Za-z_]\w*=/.test(line));
    if (bad !== undefined) {
      setWrong(`“${bad}” is not NAME=VALUE`);
      return;
    }
    const pairs = lines.map((line) => {
      const [name = "", ...value] = line.split("=");
      return [name.trim(), value.join("=")] as const;
    });
    dialog.current?.close();
    const made = await rerun(names, {
      env: Object.fromEntries(pairs),
      ...(priority === "" ? {} : { priority: Number(priority) }),
      ...(queue === "" ? {} : { queue }),
    });
    if (only !== undefined && made[0] !== undefined) go(paths.job(made[0]));
  };

  return (
    <dialog ref={dialog} className="rerun" onClose={close} aria-labelledby="rerun-title">
      <h2 id="rerun-title">Re-run {only ?? plural(names.length, "job")}</h2>
      <form onSubmit={submit}>
        <label>
          Environment variables to set or change, NAME=VALUE on each line
          <textarea
            rows={4}
            value={env}
            aria-invalid={wrong !== ""}
            onChange={(event) => {
              setEnv(event.target.value);
              setWrong("");
            }}
          />
        </label>
        {wrong && (
          <p role="alert" className="small tone-bad">
            {wrong}
          </p>
        )}
        <div className="rerun-pair">
          <label>
            Priority
            <input
              type="number"
              value={priority}
              placeholder="as it was"
              onChange={(event) => setPriority(event.target.value)}
            />
          </label>
          <label>
            Queue
            <input value={queue} placeholder="as it was" onChange={(event) => setQueue(event.target.value)} />
          </label>
        </div>
        {only !== undefined && (
          <p className="small quiet">
            To change anything else: <Link to={paths.newJob(only)}>edit it as a new job</Link>.
          </p>
        )}
        <div className="confirm-buttons">
          <button type="button" onClick={() => dialog.current?.close()}>
            Not now
          </button>
          <button className="primary">Submit {only === undefined ? plural(names.length, "job") : ""}</button>
        </div>
      </form>
    </dialog>
  );
}
