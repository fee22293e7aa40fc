/** The first curves of a job, for its summary. */

import { useMemo } from "react";
import { useRuns } from "../../api/curves";
import type { Job } from "../../api/types";
import { RunCurves } from "../../parts/runcurves";

const LOOK = { axis: "step", log: false, smooth: 0 } as const;
const MOST = 2;

export function FewCurves({ job }: { job: Job }) {
  const names = useMemo(() => [job.metadata.name], [job.metadata.name]);
  const runs = useRuns(names);
  if (!runs || !runs.some((run) => run.curves.length > 0)) return null;
  return <RunCurves names={names} runs={runs} look={LOOK} most={MOST} height={160} />;
}
