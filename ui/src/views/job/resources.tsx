/** What the tasks used over time, against what they may use. */

import { useMemo } from "react";
import { useAsk } from "../../api/ask";
import { useMeasured } from "../../api/live";
import type { Job, JsonObject, UsedOverTime } from "../../api/types";
import { bytes, decimal, plural } from "../../format";
import { Curve, type Series } from "../../parts/curve";
import { Empty } from "../../parts/empty";
import { Panel } from "../../parts/panel";
import { Suggestion } from "./suggestion";

export function Resources({ job, live }: { job: Job; live: boolean }) {
  const measured = useMeasured();
  const { data } = useAsk("/v1/jobs/{name}/usage", {
    path: { name: job.metadata.name },
    when: `${job.status.state} ${live ? measured : ""}`,
  });
  const used = data?.items.filter((each) => each.points.length > 0) ?? [];
  return (
    <>
      {data && used.length === 0 && (
        <Empty
          title="Nothing measured yet"
          says="Use is measured every few seconds while tasks run."
          command="weft top"
        />
      )}
      {used.length > 0 && (
        <div className="columns">
          <Use
            title="CPUs"
            used={used}
            value={(point) => point[1]}
            limit={(each) => each.cpuLimit}
            format={decimal}
          />
          <Use
            title="Memory"
            used={used}
            value={(point) => point[2]}
            limit={(each) => each.memoryLimit}
            format={bytes}
            binary
          />
        </div>
      )}
      <UnmeasuredGpus job={job} />
      <Suggestion job={job} />
    </>
  );
}

/** Nobody should take a curve that is not there for GPUs that do nothing. */
function UnmeasuredGpus({ job }: { job: Job }) {
  const roles = Object.values((job.spec["roles"] as Record<string, JsonObject> | undefined) ?? {});
  const gpus = roles.reduce((n, role) => {
    const { gpu } = role["resources"] as { gpu?: number };
    return n + Number(role["replicas"]) * (gpu ?? 0);
  }, 0);
  if (gpus === 0) return null;
  return (
    <Panel title="GPUs">
      <p className="quiet">{`Not measured: it has ${plural(gpus, "GPU")}, and Weft does not look at what GPUs do. In a task: nvidia-smi.`}</p>
    </Panel>
  );
}

interface UseProps {
  title: string;
  used: readonly UsedOverTime[];
  value: (point: UsedOverTime["points"][number]) => number;
  limit: (each: UsedOverTime) => number | null;
  format: (value: number) => string;
  binary?: boolean;
}

/** A curve a task; limits that are the same are one dashed line. */
function Use({ title, used, value, limit, format, binary = false }: UseProps) {
  const series = useMemo(() => {
    const curves: Series[] = used.map((each, n) => ({
      label: each.task,
      colour: n,
      points: each.points.map((point) => [point[0], value(point)] as const),
    }));
    const times = used.flatMap((each) => each.points.map(([time]) => time));
    const [first, last] = [Math.min(...times), Math.max(...times)];
    const limits = new Set(used.map(limit).filter((each): each is number => each !== null && each > 0));
    for (const each of limits) {
      curves.push({
        label: "limit",
        colour: 7,
        dashed: true,
        points: [
          [first, each],
          [last, each],
        ],
      });
    }
    return curves;
  }, [used]);
  return (
    <Panel title={title}>
      <Curve
        label={`${title} over time`}
        series={series}
        time
        format={format}
        range={[0, null]}
        binary={binary}
        together="resources"
      />
    </Panel>
  );
}
