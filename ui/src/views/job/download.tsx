/** How far the data is that a job waits for. */

import type { Job } from "../../api/types";
import { bytes, duration } from "../../format";
import "./download.css";

export function Download({ job: { status } }: { job: Job }) {
  const { progress } = status;
  if (!progress) return null;
  const { what, bytes: here, allBytes: all, rate } = progress;
  const known = all > 0;
  const part = known ? `${bytes(here)} of ${bytes(all)} (${Math.floor((100 * here) / all)} %)` : bytes(here);
  const left = known && rate > 0 ? `, about ${duration((all - here) / rate)} left` : "";
  return (
    <div className="job-download">
      <span className="cut" title={what}>
        {what}
      </span>
      <progress aria-label={what} max={known ? all : undefined} value={known ? here : undefined} />
      <span className="quiet">{`${part}, ${bytes(rate)}/s${left}`}</span>
    </div>
  );
}
