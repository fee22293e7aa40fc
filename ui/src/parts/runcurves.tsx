/** The curves of one run or of several, a panel for each metric: smoothed, on a log scale, by step or by time. */

import { useMemo } from "react";
import type { Run } from "../api/curves";
import { duration, measure } from "../format";
import { useQuery } from "../location";
import { Curve, type Series } from "./curve";
import { Panel } from "./panel";
import "./runcurves.css";

export interface Look {
  axis: "step" | "time";
  log: boolean;
  /** 0: as measured; towards 1: ever smoother. */
  smooth: number;
}

/** How curves are looked at, kept in the address. */
export function useLook(): [Look, (change: Partial<Look>) => void] {
  const [query, change] = useQuery();
  const look: Look = {
    axis: query.get("axis") === "time" ? "time" : "step",
    log: query.get("log") === "1",
    smooth: Math.min(Math.max(Number(query.get("smooth") ?? 0) || 0, 0), 0.99),
  };
  const set = (to: Partial<Look>) =>
    change({
      ...(to.axis === undefined ? {} : { axis: to.axis === "time" ? "time" : null }),
      ...(to.log === undefined ? {} : { log: to.log ? "1" : null }),
      ...(to.smooth === undefined ? {} : { smooth: to.smooth > 0 ? String(to.smooth) : null }),
    });
  return [look, set];
}

export function LookControls({ look, change }: { look: Look; change: (to: Partial<Look>) => void }) {
  return (
    <div className="look" role="toolbar" aria-label="How curves are drawn">
      <span role="group" aria-label="Axis">
        <button className="tiny" aria-pressed={look.axis === "step"} onClick={() => change({ axis: "step" })}>
          Step
        </button>
        <button className="tiny" aria-pressed={look.axis === "time"} onClick={() => change({ axis: "time" })}>
          Time
        </button>
      </span>
      <button className="tiny" aria-pressed={look.log} onClick={() => change({ log: !look.log })}>
        Log scale
      </button>
      <label>
        Smooth
        <input
          type="range"
          min="0"
          max="0.98"
          step="0.02"
          value={look.smooth}
          onChange={(event) => change({ smooth: Number(event.target.value) })}
        />
        <output>{look.smooth.toFixed(2)}</output>
      </label>
    </div>
  );
}

interface Props {
  /** All that are looked at, in their order: each keeps its colour, whichever have come. */
  names: readonly string[];
  runs: readonly Run[];
  look: Look;
  /** At most so many metrics. */
  most?: number;
  height?: number;
  only?: (metric: string) => boolean;
}

export function RunCurves({ names, runs, look, most, height = 220, only }: Props) {
  const metrics = useMemo(() => {
    const found = new Set(runs.flatMap((run) => run.curves.map((curve) => curve.name)));
    return [...found].filter((metric) => !only || only(metric)).sort(byInterest);
  }, [runs, only]);
  return (
    <div className="runcurves">
      {metrics.slice(0, most).map((metric) => (
        <Metric key={metric} metric={metric} names={names} runs={runs} look={look} height={height} />
      ))}
    </div>
  );
}

/** Losses first: they are what one looks for. */
function byInterest(a: string, b: string): number {
  const rank = (name: string) =>
    /loss/i.test(name) ? 0 : /acc|score|f1|auc/i.test(name) ? 1 : /^progress$/.test(name) ? 3 : 2;
  return rank(a) - rank(b) || (a < b ? -1 : 1);
}

function Metric({ metric, names, runs, look, height }: Props & { metric: string; height: number }) {
  const series = useMemo(
    () => seriesOf(metric, names, runs, look),
    [metric, names, runs, look.axis, look.smooth],
  );
  const last = series.filter((each) => !each.faint).map((each) => each.points.at(-1)?.[1]);
  return (
    <Panel title={metric} aside={last.length === 1 && last[0] != null ? measure(last[0]) : undefined}>
      <Curve
        label={`${metric} by ${look.axis}`}
        series={series}
        log={look.log}
        height={height}
        format={measure}
        xFormat={look.axis === "time" ? duration : undefined}
        together={`${names.join(",")}/${look.axis}`}
      />
    </Panel>
  );
}

function seriesOf(metric: string, names: readonly string[], runs: readonly Run[], look: Look): Series[] {
  const found: Series[] = [];
  const alone = names.length === 1;
  for (const run of runs) {
    const curves = run.curves.filter((curve) => curve.name === metric);
    const start = Math.min(...curves.map((curve) => curve.points[0]?.[1] ?? Infinity));
    for (const [n, curve] of curves.entries()) {
      const own = { colour: alone ? n : names.indexOf(run.job), dashed: !alone && n > 0 };
      const label = alone ? curve.task : curves.length === 1 ? run.job : `${run.job} ${curve.task}`;
      const points = curve.points.map(
        ([step, time, value], n) =>
          [
            look.axis === "time" ? time - start : (step ?? n),
            typeof value === "number" ? value : null,
          ] as const,
      );
      points.sort((a, b) => a[0] - b[0]);
      if (look.smooth > 0) {
        found.push({ label: `${label} raw`, points, ...own, faint: true });
        found.push({ label, points: smoothed(points, look.smooth), ...own });
      } else {
        found.push({ label, points, ...own });
      }
    }
  }
  return found.sort((a, b) => Number(b.faint ?? false) - Number(a.faint ?? false)); // what is smoothed is on top
}

/** An exponential mean, without the pull of its first value. */
export function smoothed(
  points: readonly (readonly [number, number | null])[],
  weight: number,
): (readonly [number, number | null])[] {
  let mean = 0;
  let share = 0;
  return points.map(([x, y]) => {
    if (y === null) return [x, null] as const;
    mean = mean * weight + y * (1 - weight);
    share = share * weight + (1 - weight);
    return [x, mean / share] as const;
  });
}
