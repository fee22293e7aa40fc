/** What would have been enough for a job that has ended. */

import { useAsk } from "../../api/ask";
import { FINISHED, type Job, type Schemas } from "../../api/types";
import { bytes, decimal } from "../../format";
import { Panel } from "../../parts/panel";
import { type Column, Table } from "../../parts/table";

type Suggested = Schemas["SuggestedRole"];

const COLUMNS: readonly Column<Suggested>[] = [
  { id: "role", title: "Role", width: "minmax(80px, 1fr)", cell: (each) => each.role },
  {
    id: "asked",
    title: "Asked for",
    width: "minmax(96px, 1fr)",
    cell: (each) => `${each.asked.cpu ?? 1} cpu, ${each.asked.memory ?? "no limit"}`,
  },
  {
    id: "used",
    title: "Used at most",
    width: "minmax(96px, 1fr)",
    cell: (each) => (each.used ? `${decimal(each.used.cpu)} cpu, ${bytes(each.used.memory)}` : "–"),
  },
  {
    id: "suggested",
    title: "Would do",
    width: "minmax(96px, 1fr)",
    cell: (each) => (each.suggested ? `${each.suggested.cpu} cpu, ${each.suggested.memory}` : "–"),
  },
  {
    id: "notes",
    title: "",
    width: "2fr",
    from: 720,
    cell: (each) => <span className="quiet">{each.notes.join("; ")}</span>,
  },
];

export function Suggestion({ job }: { job: Job }) {
  const over = FINISHED.has(job.status.state);
  const { data } = useAsk(over ? "/v1/jobs/{name}/suggestion" : null, {
    path: { name: job.metadata.name },
  });
  if (!data) return null;
  return (
    <Panel title="What would have been enough" flush>
      <Table label="Suggestion" rows={data.items} columns={COLUMNS} rowKey={(each) => each.role} most={240} />
    </Panel>
  );
}
