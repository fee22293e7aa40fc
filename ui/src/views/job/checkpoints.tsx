/** The steps that the job can go on from. */

import { useAsk } from "../../api/ask";
import { post } from "../../api/client";
import { type Checkpoint, type Job, RUNNING } from "../../api/types";
import { possible } from "../../actions";
import { count } from "../../format";
import { Bytes } from "../../parts/bytes";
import { confirm } from "../../parts/confirm";
import { tell, tellError } from "../../parts/notice";
import { Panel } from "../../parts/panel";
import { type Column, Table } from "../../parts/table";
import { Time } from "../../parts/time";

export function Checkpoints({ job }: { job: Job }) {
  const { name } = job.metadata;
  const { data } = useAsk("/v1/jobs/{name}/checkpoints", {
    path: { name },
    every: RUNNING.has(job.status.state) ? 1000 : undefined,
    when: job.status.state,
  });
  if (!data || data.items.length === 0) return null;
  const resumable = possible("resume", job.status.state);
  const resume = async (step: number) => {
    const sure = await confirm({ title: `Resume ${name} from step ${count(step)}?`, act: "Resume" });
    if (!sure) return;
    try {
      await post("/v1/jobs/{name}/resume", { path: { name }, query: { fromCheckpoint: step } });
      tell(`job ${name} resumed from step ${count(step)}`);
    } catch (error) {
      tellError(error);
    }
  };
  const columns: Column<Checkpoint>[] = [
    { id: "step", title: "Step", width: "1fr", cell: (each) => count(each.step) },
    { id: "size", title: "Size", width: "1fr", right: true, cell: (each) => <Bytes n={each.size} /> },
    { id: "time", title: "Saved", width: "1fr", right: true, cell: (each) => <Time at={each.saved} /> },
    {
      id: "resume",
      title: "",
      width: "120px",
      right: true,
      cell: (each) =>
        resumable && (
          <button className="tiny" onClick={() => resume(each.step)}>
            Resume here
          </button>
        ),
    },
  ];
  return (
    <Panel title="Checkpoints" flush>
      <Table
        label="Checkpoints"
        rows={[...data.items].reverse()}
        columns={columns}
        rowKey={(each) => String(each.step)}
        most={240}
      />
    </Panel>
  );
}
