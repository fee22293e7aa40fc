/** The tasks and where they are. */

import type { Job, Task } from "../../api/types";
import { bytes, duration, plural } from "../../format";
import { Link } from "../../parts/link";
import { Panel } from "../../parts/panel";
import { StateBadge } from "../../parts/state";
import { type Column, Table } from "../../parts/table";
import { Span } from "../../parts/time";
import { paths } from "../../routes";

const indices = (list: readonly number[] | undefined) => (list?.length ? list.join(", ") : "–");

function ending({ exit }: Task): string {
  if (!exit) return "";
  const how = exit.signal ? `signal ${exit.signal}` : exit.code !== undefined ? `code ${exit.code}` : "";
  return [how, exit.failure?.message, ...(exit.notes ?? [])].filter(Boolean).join("; ");
}

const columnsOf = (job: string): Column<Task>[] => [
  {
    id: "task",
    title: "Task",
    width: "minmax(96px, 1fr)",
    cell: (task) => (
      <Link to={`${paths.job(job, "log")}?task=${encodeURIComponent(task.name)}`}>{task.name}</Link>
    ),
  },
  { id: "state", title: "State", width: "120px", cell: (task) => <StateBadge state={task.state} /> },
  { id: "node", title: "Node", width: "minmax(96px, 1fr)", cell: (task) => task.binding?.node ?? "–" },
  { id: "gpus", title: "GPUs", width: "88px", from: 560, cell: (task) => indices(task.binding?.gpus) },
  { id: "cpus", title: "CPUs", width: "88px", from: 840, cell: (task) => indices(task.binding?.cpus) },
  { id: "restarts", title: "Restarts", width: "80px", from: 640, right: true, cell: (task) => task.restarts },
  {
    id: "ran",
    title: "Ran",
    width: "80px",
    from: 440,
    right: true,
    cell: (task) => <Span from={task.started} to={task.finished} />,
  },
  {
    id: "memory",
    title: "Peak memory",
    width: "104px",
    from: 760,
    right: true,
    cell: (task) => (task.exit?.peakMemory ? bytes(task.exit.peakMemory) : "–"),
  },
  {
    id: "cpu",
    title: "CPU time",
    width: "88px",
    from: 920,
    right: true,
    cell: (task) => (task.exit?.cpuSeconds !== undefined ? duration(task.exit.cpuSeconds) : "–"),
  },
  {
    id: "exit",
    title: "Exit",
    width: "minmax(88px, 1.5fr)",
    from: 700,
    cell: (task) => <span title={ending(task)}>{ending(task)}</span>,
  },
];

export function Tasks({ job }: { job: Job }) {
  const { tasks } = job.status;
  const nodes = new Set(tasks.flatMap((task) => task.binding?.node ?? []));
  const where = nodes.size > 0 ? ` on ${plural(nodes.size, "node")}` : "";
  return (
    <Panel title="Tasks" aside={plural(tasks.length, "task") + where} flush>
      <Table
        label="Tasks"
        rows={tasks}
        columns={columnsOf(job.metadata.name)}
        rowKey={(task) => task.name}
        to={(task) => `${paths.job(job.metadata.name, "log")}?task=${encodeURIComponent(task.name)}`}
        most={360}
      />
    </Panel>
  );
}
