/** The jobs that were last to do something. */

import { useMemo } from "react";
import type { JobSummary } from "../../api/types";
import { Link } from "../../parts/link";
import { Panel } from "../../parts/panel";
import { StateBadge } from "../../parts/state";
import { Age } from "../../parts/time";
import { paths } from "../../routes";

const MOST = 8;

interface Props {
  title: string;
  jobs: readonly JobSummary[];
  time: (job: JobSummary) => number | undefined;
}

export function Lately({ title, jobs, time }: Props) {
  const shown = useMemo(
    () =>
      jobs
        .filter((job) => time(job) !== undefined)
        .sort((a, b) => (time(b) ?? 0) - (time(a) ?? 0))
        .slice(0, MOST),
    [jobs],
  );
  return (
    <Panel title={title}>
      {shown.length === 0 && <p className="quiet">None yet.</p>}
      <ul className="lately">
        {shown.map((job) => (
          <li key={job.uid}>
            <Link className="cut" to={paths.job(job.name)}>
              {job.name}
            </Link>
            <StateBadge state={job.state} />
            <span className="quiet small">
              <Age since={time(job)} /> ago
            </span>
          </li>
        ))}
      </ul>
    </Panel>
  );
}
