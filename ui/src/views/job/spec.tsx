/** The exact spec, as a file would have it; what nobody wrote is marked with where it comes from. */

import { useEffect, useMemo, useState } from "react";
import { useAsk } from "../../api/ask";
import type { Job, JsonObject } from "../../api/types";
import { Command } from "../../parts/command";
import { Link } from "../../parts/link";
import { Panel } from "../../parts/panel";
import { paths } from "../../routes";
import { filledIn } from "../newjob/bare";
import { specLines } from "./defaults";
import "./spec.css";

export function Spec({ job }: { job: Job }) {
  const { data: schema } = useAsk("/v1/schemas/TrainingJob");
  const type = useAsk("/v1/jobtypes/{name}", { path: { name: String(job.spec["type"]) } });
  const asked = type.data !== undefined || (type.refusal !== undefined && !type.refusal.away);
  const { uid } = job.metadata;
  const [completed, setCompleted] = useState<{ bare: JsonObject; filled: JsonObject | undefined }>();
  useEffect(() => {
    let gone = false;
    void filledIn(job.spec).then((found) => gone || setCompleted(found));
    return () => {
      gone = true;
    };
  }, [uid]);
  const lines = useMemo(
    () =>
      schema && asked && completed
        ? specLines(job, { schema, type: type.data?.spec as JsonObject | undefined, ...completed })
        : [],
    [job, schema, asked, type.data, completed],
  );
  return (
    <Panel
      title="Spec"
      aside={
        <>
          <Command text={`weft show ${job.metadata.name} -o yaml`} />
          <Link to={paths.newJob(job.metadata.name)}>Edit as a new job</Link>
        </>
      }
    >
      <pre className="spec" tabIndex={0} role="region" aria-label="Spec as YAML">
        {lines.map(({ text, mark }, n) => (
          <div key={n} className={mark === undefined ? undefined : "spec-default"}>
            {text}
            {mark !== undefined && <span className="spec-mark">{mark}</span>}
          </div>
        ))}
      </pre>
    </Panel>
  );
}
