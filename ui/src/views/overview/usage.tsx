/** How full the cluster was, and how long the line. */

import { useMemo, useSyncExternalStore } from "react";
import { useAsk } from "../../api/ask";
import { samples } from "../../api/live";
import type { Sample } from "../../api/types";
import { useQuery } from "../../location";
import { Curve, type Series } from "../../parts/curve";
import { Panel } from "../../parts/panel";

const SPANS = { "1h": 3600, "6h": 21_600, "24h": 86_400 } as const;
type SpanName = keyof typeof SPANS;
const percent = (value: number) => `${Math.round(value)} %`;

export function Usage() {
  const [query, change] = useQuery();
  const asked = query.get("span") as SpanName | null;
  const span: SpanName = asked !== null && asked in SPANS ? asked : "1h";
  const { data } = useAsk("/v1/utilization", {
    query: { since: SPANS[span], points: 400 },
    every: 60_000,
  });
  const newest = useSyncExternalStore(samples.listen, samples.read);
  const all = useMemo(() => {
    const items = data?.items ?? [];
    const last = items.at(-1)?.time ?? 0;
    return [...items, ...newest.filter((sample) => sample.time > last)];
  }, [data, newest]);
  const used = useMemo(() => {
    const kinds = [
      ["GPUs", "gpu"],
      ["CPUs", "cpu"],
      ["Memory", "memory"],
    ] as const;
    return kinds
      .filter(([, kind]) => all.some((sample) => sample[kind].total > 0))
      .map(([label, kind]): Series => {
        const part = ({ used: now, total }: Sample["cpu"]) => (total > 0 ? (100 * now) / total : 0);
        return { label, points: all.map((sample) => [sample.time, part(sample[kind])] as const) };
      });
  }, [all]);
  const line = useMemo(
    (): Series[] => [
      { label: "running", colour: 0, points: all.map((sample) => [sample.time, sample.running] as const) },
      {
        label: "waiting",
        colour: 1,
        filled: true,
        points: all.map((sample) => [sample.time, sample.waiting] as const),
      },
    ],
    [all],
  );
  const choice = (
    <span role="group" aria-label="How far back">
      {(Object.keys(SPANS) as SpanName[]).map((each) => (
        <button
          key={each}
          className="tiny"
          aria-pressed={each === span}
          onClick={() => change({ span: each === "1h" ? null : each })}
        >
          {each}
        </button>
      ))}
    </span>
  );
  return (
    <div className="columns">
      <Panel title="Utilization" aside={choice}>
        <Curve
          label="Share given to jobs"
          series={used}
          time
          range={[0, 100]}
          format={percent}
          height={160}
          together="usage"
        />
      </Panel>
      <Panel title="Jobs" aside="running and waiting">
        <Curve
          label="Jobs running and waiting"
          series={line}
          time
          range={[0, null]}
          height={160}
          together="usage"
        />
      </Panel>
    </div>
  );
}
