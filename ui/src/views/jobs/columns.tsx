/** The columns of the table of jobs, the most needed first; narrow tables leave out the later ones. */

import type { JobSummary } from "../../api/types";
import { STATES } from "../../api/types";
import { decimal } from "../../format";
import { Link } from "../../parts/link";
import { StateBadge } from "../../parts/state";
import type { Column } from "../../parts/table";
import { Age, Span } from "../../parts/time";
import { paths } from "../../routes";
import { Progress, progressOf } from "./progress";

export const COLUMNS: readonly Column<JobSummary>[] = [
  {
    id: "name",
    title: "Name",
    width: "minmax(120px, 1.4fr)",
    cell: (job) => (
      <Link to={paths.job(job.name)} title={job.name}>
        {job.name}
      </Link>
    ),
    sort: (job) => job.name,
  },
  {
    id: "state",
    title: "State",
    width: "128px",
    cell: (job) => <StateBadge state={job.state} />,
    sort: (job) => STATES.indexOf(job.state),
  },
  {
    id: "progress",
    title: "Progress",
    width: "112px",
    from: 640,
    cell: (job) => <Progress job={job} />,
    sort: progressOf,
  },
  {
    id: "reason",
    title: "Reason",
    width: "minmax(120px, 2fr)",
    from: 820,
    cell: (job) => (
      <span className="quiet" title={job.reason}>
        {job.reason}
      </span>
    ),
  },
  {
    id: "gpus",
    title: "GPUs",
    width: "64px",
    from: 520,
    right: true,
    cell: (job) => (job.gpus ? decimal(job.gpus) : <span className="quiet">–</span>),
    sort: (job) => job.gpus ?? 0,
  },
  {
    id: "tasks",
    title: "Tasks",
    width: "80px",
    from: 720,
    right: true,
    cell: (job) => (job.size ? `${job.size.now} of ${job.size.least}–${job.size.most}` : job.tasks),
    sort: (job) => job.size?.now ?? job.tasks,
  },
  {
    id: "owner",
    title: "Owner",
    width: "96px",
    from: 960,
    cell: (job) => job.owner,
    sort: (job) => job.owner,
  },
  {
    id: "queue",
    title: "Queue",
    width: "96px",
    from: 1080,
    cell: (job) => job.queue,
    sort: (job) => job.queue,
  },
  { id: "type", title: "Type", width: "112px", from: 1200, cell: (job) => job.type, sort: (job) => job.type },
  {
    id: "age",
    title: "Age",
    width: "56px",
    right: true,
    cell: (job) => <Age since={job.created} />,
    sort: (job) => -job.created,
  },
  {
    id: "ran",
    title: "Ran",
    width: "80px",
    from: 560,
    right: true,
    cell: (job) => <Span from={job.started} to={job.finished} />,
    sort: (job) => (job.started === undefined ? -1 : (job.finished ?? Date.now() / 1000) - job.started),
  },
];
