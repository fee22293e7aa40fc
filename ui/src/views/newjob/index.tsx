/** New job: a form from the schema, the YAML that it makes beside it, and what the server says of both. */

import { useEffect, useMemo, useRef, useState } from "react";
import { useAsk } from "../../api/ask";
import { Refusal } from "../../api/client";
import { newKey, submit } from "../../api/submit";
import type { Job, Json, JsonObject } from "../../api/types";
import { plural } from "../../format";
import { go, useQuery } from "../../location";
import { Copy } from "../../parts/copy";
import { Icon } from "../../parts/icon";
import { tell } from "../../parts/notice";
import { Panel } from "../../parts/panel";
import { Problem } from "../../parts/problem";
import { paths } from "../../routes";
import { useTitle } from "../../title";
import { check, type Checked, useDryRun } from "./check";
import { changed, lineOf, place, read, renamed, steps, written } from "./document";
import { EditingContext, useKnown } from "./editing";
import { idOf } from "./field";
import { Form } from "./form";
import "./newjob.css";
import { beginning } from "./prefill";
import { named, type Path, Schema } from "./schema";

/** Milliseconds until a server that was away is asked again. */
const AGAIN = 1000;

export default function NewJob() {
  useTitle("New job");
  const [query] = useQuery();
  const from = query.get("from");
  const schema = useAsk("/v1/schemas/TrainingJob");
  const [first, setFirst] = useState<string | undefined>(undefined);
  const [refusal, setRefusal] = useState<Refusal | undefined>(undefined);
  const asked = query.toString();
  useEffect(() => {
    let gone = false;
    setFirst(undefined);
    setRefusal(undefined);
    let timer: ReturnType<typeof setTimeout> | undefined;
    const begin = async () => {
      try {
        const text = await beginning(new URLSearchParams(asked));
        if (gone) return;
        setFirst(text);
        setRefusal(undefined);
      } catch (error) {
        if (gone) return;
        setRefusal(error as Refusal);
        if ((error as Refusal).away) timer = setTimeout(begin, AGAIN);
      }
    };
    void begin();
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, [asked]);
  const wrong = refusal ?? schema.refusal;
  return (
    <div className="view newjob">
      <header className="view-head">
        <h1>New job</h1>
        {from && <span className="quiet">the same as {from}, with changes</span>}
      </header>
      {wrong && <Problem refusal={wrong} />}
      {!wrong && schema.data && first !== undefined && <Desk key={first} first={first} root={schema.data} />}
    </div>
  );
}

function Desk({ first, root }: { first: string; root: JsonObject }) {
  const [text, setText] = useState(first);
  const [sent, setSent] = useState<Checked | undefined>(undefined);
  const [sending, setSending] = useState(false);
  const area = useRef<HTMLTextAreaElement>(null);
  /** The same text submitted again is the same wish. */
  const wish = useRef({ text: "", key: "" });
  const schema = useMemo(() => new Schema(root), [root]);
  const now = useMemo(() => read(text), [text]);
  const last = useRef<JsonObject>({});
  if (now.job) last.current = now.job;
  const known = useKnown();
  const tried = useDryRun(text, now.job);
  const checked = sent?.text === text ? sent : tried;
  const fresh = checked?.text === text;
  const refusal = checked?.refusal;
  const problems = useMemo(() => {
    const byField = new Map<string, string[]>();
    for (const each of refusal?.problems ?? []) {
      const name = named(steps(last.current, each.field));
      byField.set(name, [...(byField.get(name) ?? []), each.message]);
    }
    return byField;
  }, [refusal]);

  const editing = useMemo(
    () => ({
      schema,
      job: last.current,
      problems,
      known,
      change: (path: Path, value: Json | undefined) => setText((before) => changed(before, path, value)),
      rename: (path: Path, to: string) => setText((before) => renamed(before, path, to)),
    }),
    [schema, now.job, problems, known],
  );

  const send = async () => {
    if (!now.job || sending) return;
    if (wish.current.text !== text) wish.current = { text, key: newKey() };
    setSending(true);
    try {
      const result = await check(text, now.job);
      if (result.refusal) return setSent(result);
      const made = await submit(now.job, wish.current.key);
      tell(`Job ${made.metadata.name} is submitted`);
      go(paths.job(made.metadata.name));
    } catch (error) {
      setSent({ text, refusal: error instanceof Refusal ? error : new Refusal(500, "Error", String(error)) });
    } finally {
      setSending(false);
    }
  };
  const show = (path: Path) => {
    const input = document.getElementById(idOf(path));
    if (input) {
      input.scrollIntoView({ block: "center" });
      input.focus();
    } else select(path);
  };
  const select = (path: Path) => {
    const found = place(text, path);
    if (!found || !area.current) return;
    area.current.focus();
    area.current.setSelectionRange(...found);
  };

  return (
    <EditingContext value={editing}>
      <form
        className="newjob-desk"
        onSubmit={(event) => event.preventDefault()}
        onKeyDown={(event) => {
          if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) void send();
        }}
      >
        <fieldset className="newjob-form" disabled={now.wrong !== undefined}>
          <legend className="unseen">The job</legend>
          <Form />
        </fieldset>
        <div className="newjob-side">
          <Panel title="YAML" flush className="newjob-yaml" aside={<Copy text={text} what="YAML" />}>
            <textarea
              ref={area}
              aria-label="The job as YAML"
              value={text}
              spellCheck={false}
              rows={Math.min(Math.max(text.split("\n").length + 1, 14), 34)}
              onChange={(event) => setText(event.target.value)}
            />
          </Panel>
          <Verdict
            now={now}
            checked={fresh ? checked : undefined}
            text={text}
            show={(field) => show(steps(last.current, field))}
          />
          <div className="newjob-act">
            <button type="button" className="primary" onClick={send} disabled={!now.job || sending}>
              <Icon name="play" />
              {sending ? "Submitting…" : "Submit"}
            </button>
            <span className="quiet small">
              <kbd>Ctrl</kbd> <kbd>Enter</kbd>
            </span>
          </div>
        </div>
      </form>
    </EditingContext>
  );
}

interface VerdictProps {
  now: ReturnType<typeof read>;
  checked: Checked | undefined;
  text: string;
  show: (field: string) => void;
}

/** What the server says of the job as it stands. */
function Verdict({ now, checked, text, show }: VerdictProps) {
  if (now.wrong) {
    return (
      <div className="verdict tone-bad" role="alert">
        <Icon name="warning" />
        <p>
          Line {now.wrong.line}: {now.wrong.message}
        </p>
      </div>
    );
  }
  if (!checked) {
    return (
      <div className="verdict tone-idle" role="status">
        <Icon name="half" />
        <p>Checking…</p>
      </div>
    );
  }
  const { refusal, job } = checked;
  if (refusal) {
    return (
      <div className="verdict tone-bad" role="status">
        <Icon name="warning" />
        <div>
          <p>
            {refusal.problems.length > 0
              ? `${plural(refusal.problems.length, "problem")} to mend`
              : `${refusal.title}: ${refusal.message}`}
          </p>
          <ul>
            {refusal.problems.map((each, n) => (
              <li key={n}>
                <button type="button" className="verdict-field" onClick={() => show(each.field)}>
                  {each.field || "the job"}
                </button>{" "}
                {each.message}
                <Line text={text} job={now.job} field={each.field} />
              </li>
            ))}
          </ul>
        </div>
      </div>
    );
  }
  return (
    <div className="verdict tone-good" role="status">
      <Icon name="check" />
      <div>
        <p>Checked by the server: {size(job as Job)}.</p>
        <details>
          <summary>As the server completes it</summary>
          <pre tabIndex={0}>
            {written({ metadata: { name: job?.metadata.name ?? "" }, spec: job?.spec ?? {} })}
          </pre>
        </details>
      </div>
    </div>
  );
}

function Line({ text, job, field }: { text: string; job: JsonObject | undefined; field: string }) {
  const found = job && field ? place(text, steps(job, field)) : undefined;
  return found ? <span className="quiet"> (line {lineOf(text, found[0])})</span> : null;
}

function size(job: Job): string {
  const roles = Object.entries((job.spec["roles"] ?? {}) as Record<string, JsonObject>);
  const tasks = roles.reduce((sum, [, role]) => sum + Number(role["replicas"] ?? 1), 0);
  const sum = (what: string) =>
    roles.reduce(
      (all, [, role]) =>
        all + Number(role["replicas"] ?? 1) * Number(((role["resources"] ?? {}) as JsonObject)[what] ?? 0),
      0,
    );
  const gpus = sum("gpu");
  const cpus = Number(sum("cpu").toFixed(3));
  return [plural(tasks, "task"), plural(cpus, "CPU"), ...(gpus ? [plural(gpus, "GPU")] : [])].join(", ");
}
