/** Everything that happened to the job, newest first. */

import { useAsk } from "../../api/ask";
import type { Happening, Job } from "../../api/types";
import { Panel } from "../../parts/panel";
import { StateBadge } from "../../parts/state";
import { type Column, Table } from "../../parts/table";
import { Time } from "../../parts/time";

const COLUMNS: readonly Column<Happening>[] = [
  { id: "time", title: "Time", width: "136px", cell: (event) => <Time at={event.time} /> },
  {
    id: "state",
    title: "State",
    width: "128px",
    from: 480,
    cell: (event) =>
      event.type === "state" && event.state ? <StateBadge state={event.state} /> : event.type,
  },
  {
    id: "cause",
    title: "What",
    width: "minmax(120px, 1fr)",
    cell: (event) => <span title={event.cause}>{event.cause}</span>,
  },
  { id: "actor", title: "By", width: "96px", from: 600, cell: (event) => event.actor },
];

export function Events({ job }: { job: Job }) {
  const { data } = useAsk("/v1/jobs/{name}/events", { path: { name: job.metadata.name }, when: job.status });
  const rows = [...(data?.items ?? [])].reverse();
  return (
    <Panel title="Events" flush>
      <Table label="Events" rows={rows} columns={COLUMNS} rowKey={(event) => String(event.seq)} most={640} />
    </Panel>
  );
}
