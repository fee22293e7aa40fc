/** Who uses what: each user in each queue that they have something in. */

import { Bytes } from "../../parts/bytes";
import { Empty } from "../../parts/empty";
import { Link } from "../../parts/link";
import { Panel } from "../../parts/panel";
import { Table } from "../../parts/table";
import { count, decimal } from "../../format";
import { paths } from "../../routes";
import type { Queues } from "./answers";

export function Users({ queues }: { queues: Queues }) {
  const parents = new Set(queues.items.map((queue) => queue.spec.parent));
  const rows = queues.items
    .filter((queue) => !parents.has(queue.metadata.name) || own(queues, queue.metadata.name))
    .flatMap((queue) =>
      queue.status.users.map((user) => ({
        ...user,
        queue: queue.metadata.name,
        limit: queue.spec.userLimit,
      })),
    )
    .sort((a, b) => (b.used.gpu ?? 0) - (a.used.gpu ?? 0) || (b.used.cpu ?? 0) - (a.used.cpu ?? 0));
  return (
    <Panel title="Who uses what" flush>
      <Table
        label="Users"
        rows={rows}
        rowKey={(row) => `${row.queue}/${row.owner}`}
        most={400}
        empty={<Empty title="Nobody uses anything" />}
        columns={[
          { id: "owner", title: "User", width: "minmax(100px, 1fr)", cell: (row) => row.owner || "–" },
          {
            id: "queue",
            title: "Queue",
            width: "minmax(100px, 1fr)",
            cell: (row) => (
              <Link to={`${paths.jobs}?queue=${encodeURIComponent(row.queue)}`}>{row.queue}</Link>
            ),
          },
          { id: "gpu", title: "GPU", width: "72px", right: true, cell: (row) => decimal(row.used.gpu ?? 0) },
          { id: "cpu", title: "CPU", width: "72px", right: true, cell: (row) => decimal(row.used.cpu ?? 0) },
          {
            id: "memory",
            title: "Memory",
            width: "96px",
            right: true,
            from: 640,
            cell: (row) => <Bytes n={row.used.memory} />,
          },
          {
            id: "running",
            title: "Running",
            width: "80px",
            right: true,
            from: 560,
            cell: (row) => count(row.running),
          },
          {
            id: "waiting",
            title: "Waiting",
            width: "80px",
            right: true,
            from: 560,
            cell: (row) => count(row.waiting),
          },
          {
            id: "limit",
            title: "Limit of a user",
            width: "minmax(100px, 1fr)",
            from: 760,
            cell: (row) =>
              Object.entries(row.limit ?? {})
                .map(([what, value]) => `${value} ${what}`)
                .join(", ") || <span className="quiet">–</span>,
          },
        ]}
      />
    </Panel>
  );
}

/** Whether a queue has jobs of its own, besides those of the queues in it. */
function own(queues: Queues, name: string): boolean {
  const sum = (what: "running" | "waiting") =>
    queues.items
      .filter((each) => each.spec.parent === name)
      .reduce((all, each) => all + each.status[what], 0);
  const queue = queues.items.find((each) => each.metadata.name === name);
  return queue !== undefined && queue.status.running + queue.status.waiting > sum("running") + sum("waiting");
}
