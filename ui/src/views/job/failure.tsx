/** Why a job failed, and the last that the failing task said. */

import type { Job } from "../../api/types";
import { Link } from "../../parts/link";
import { Panel } from "../../parts/panel";
import { paths } from "../../routes";
import { LogText } from "./logtext";

export function FailurePanel({ job }: { job: Job }) {
  const { failure, logTail } = job.status;
  if (!failure) return null;
  return (
    <Panel
      title={failure.message}
      className="failure"
      aside={
        <>
          <code>{failure.code}</code>
          <Link to={paths.job(job.metadata.name, "log")}>Whole log</Link>
        </>
      }
    >
      {logTail.length > 0 && (
        <pre className="failure-tail">
          {logTail.map((line, n) => (
            <div key={n}>
              <LogText text={line} />
            </div>
          ))}
        </pre>
      )}
    </Panel>
  );
}
