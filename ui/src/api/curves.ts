/** What runs measured, as curves: thinned out by the server, then followed point by point while they run. */

import { useEffect, useMemo, useState } from "react";
import { address, get, Refusal } from "./client";
import { follow } from "./events";
import { jobs } from "./live";
import { type MeasuredCurve, type MetricPoint, RUNNING, type Schemas, WAITING } from "./types";

/** The curves of one run. */
export interface Run {
  job: string;
  curves: MeasuredCurve[];
}

export const POINTS = 1000;
const CALM = 100;
const AGAIN = 1000;
/** At most so many runs are followed each by a stream of its own; more are asked this often. */
const STREAMS = 2;
const EVERY = 500;

type MetricPoints = Schemas["MetricPoints"];

/** Kept current: a run that goes on grows; thinned out anew when it has grown much. */
export function useRuns(names: readonly string[]): Run[] | undefined {
  const key = names.join(",");
  const [runs, setRuns] = useState<ReadonlyMap<string, Run>>(new Map());
  useEffect(() => {
    const wanted = key.split(",").filter(Boolean);
    const source = wanted.length > STREAMS ? asked : streamed;
    const stops = wanted.map((name) =>
      watch(name, source, (run) => setRuns((before) => new Map(before).set(name, run))),
    );
    return () => stops.forEach((stop) => stop());
  }, [key]);
  return useMemo(() => {
    const wanted = key.split(",").filter(Boolean);
    const found = wanted.flatMap((name) => runs.get(name) ?? []);
    return found.length === wanted.length ? found : found.length > 0 ? found : undefined;
  }, [runs, key]);
}

function watch(job: string, source: Source, changed: (run: Run) => void): () => void {
  let stop: (() => void) | undefined;
  let over = false;
  let held: MeasuredCurve[] = [];
  let fresh = 0;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let retry: ReturnType<typeof setTimeout> | undefined;
  /** Nothing more comes; but a job that runs again measures again. */
  let ended = false;
  const publish = () => {
    timer = undefined;
    changed({ job, curves: held.map((each) => ({ ...each })) });
  };
  const more = (points: readonly MetricPoint[]) => {
    add(held, points);
    fresh += points.length;
    if (fresh > 2 * POINTS * Math.max(held.length, 1)) void read();
    else timer ??= setTimeout(publish, CALM);
  };
  const read = async () => {
    try {
      const { items, next } = await get("/v1/jobs/{name}/curves", {
        path: { name: job },
        query: { points: POINTS },
      });
      if (over) return;
      held = items;
      fresh = 0;
      publish();
      stop?.();
      stop = source(job, next, more, () => (ended = true));
    } catch (error) {
      if (over) return;
      changed({ job, curves: held });
      if (error instanceof Refusal && error.away) retry = setTimeout(read, AGAIN);
    }
  };
  const unlisten = jobs.listen(() => {
    const state = jobs.now.byName.get(job)?.state;
    if (!ended || state === undefined || !RUNNING.has(state)) return;
    ended = false;
    void read();
  });
  void read();
  return () => {
    over = true;
    unlisten();
    clearTimeout(timer);
    clearTimeout(retry);
    stop?.();
  };
}

/** What a run measures after a point, until it ends; returns how to stop. */
type Source = (
  job: string,
  after: number,
  more: (points: readonly MetricPoint[]) => void,
  ended: () => void,
) => () => void;

const METRICS = "/v1/jobs/{name}/metrics";

const streamed: Source = (job, begin, more, ended) => {
  let after = begin;
  return follow({
    address: () => address(METRICS, { path: { name: job }, query: { follow: true, after } }),
    on: {
      points: ({ items, next }: MetricPoints) => {
        after = next;
        more(items);
      },
    },
    ended,
  });
};

/** Of many runs: a browser gives one server six connections, so not each can have a stream. */
const asked: Source = (job, begin, more, ended) => {
  let after = begin;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let over = false;
  const ask = async () => {
    const state = jobs.now.byName.get(job)?.state;
    const last = state !== undefined && !RUNNING.has(state) && !WAITING.has(state);
    try {
      const { items, next } = await get(METRICS, { path: { name: job }, query: { after } });
      if (over) return;
      after = next;
      if (items.length > 0) more(items);
      if (items.length === 0 && last) return ended();
    } catch {
      // asked again when the server is back
    }
    if (!over) timer = setTimeout(ask, EVERY);
  };
  void ask();
  return () => {
    over = true;
    clearTimeout(timer);
  };
};

function add(held: MeasuredCurve[], points: readonly MetricPoint[]): void {
  for (const { task, name, step, time, value } of points) {
    let curve = held.find((each) => each.task === task && each.name === name);
    if (!curve) {
      curve = { task, name, count: 0, points: [] };
      held.push(curve);
    }
    curve.count += 1;
    curve.points.push([step, time, value]);
  }
}
