/** How far a job is: what it says of itself (a metric `progress`, 0 to 1), otherwise the step it is at. */

import type { JobSummary } from "../../api/types";
import { count } from "../../format";
import "../../parts/progress.css";

/** From 0 to 1, for order. */
export function progressOf(job: JobSummary): number {
  return job.state === "COMPLETED" ? 1 : (job.progress ?? 0);
}

export function Progress({ job }: { job: JobSummary }) {
  if (job.progress !== undefined) {
    const part = Math.min(Math.max(job.progress, 0), 1);
    const text = `${Math.floor(part * 100)} %`;
    return (
      <span className="progress" title={job.step === undefined ? text : `${text}, step ${count(job.step)}`}>
        <span className="progress-bar">
          <span style={{ width: `${part * 100}%` }} />
        </span>
        {text}
      </span>
    );
  }
  if (job.step !== undefined)
    return <span title="the highest step that it measured">step {count(job.step)}</span>;
  return <span className="quiet">–</span>;
}
