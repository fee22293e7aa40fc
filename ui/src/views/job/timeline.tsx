/** The job's states as bars on one axis of time. */

import { useMemo } from "react";
import { useAsk } from "../../api/ask";
import { FINISHED, type Happening, type Job, type State } from "../../api/types";
import { duration, when } from "../../format";
import { useNow } from "../../now";
import { Panel } from "../../parts/panel";
import { toneOf } from "../../parts/state";
import "./timeline.css";

export interface Stay {
  state: State;
  from: number;
  to: number | undefined;
  cause: string;
}

/** The stays in each state, from the job's history. The end of a job is a point, not a stay. */
export function staysOf(events: readonly Happening[]): Stay[] {
  const stays: Stay[] = [];
  for (const event of events) {
    if (event.type !== "state" || event.state === undefined) continue;
    const before = stays.at(-1);
    if (before?.state === event.state) continue;
    if (before) before.to = event.time;
    stays.push({ state: event.state, from: event.time, to: undefined, cause: event.cause });
  }
  return stays;
}

export function Timeline({ job }: { job: Job }) {
  const { data } = useAsk("/v1/jobs/{name}/events", { path: { name: job.metadata.name }, when: job.status });
  const stays = useMemo(() => staysOf(data?.items ?? []), [data]);
  const now = useNow();
  const first = stays[0];
  const last = stays.at(-1);
  if (!first || !last) return null;
  const over = FINISHED.has(last.state);
  const begin = first.from;
  const end = Math.max(over ? last.from : now, begin + 0.001);
  const shown = stays.filter((stay) => !FINISHED.has(stay.state) && (stay.to ?? end) - stay.from > 0);
  const states = [...new Set(shown.map((stay) => stay.state))];
  const share = (seconds: number) => `${(100 * seconds) / (end - begin)}%`;

  return (
    <Panel title="Timeline" aside={`${duration(end - begin)} in all`}>
      <div className="timeline" role="table" aria-label="Stays in each state">
        {states.map((state) => {
          const own = shown.filter((stay) => stay.state === state);
          const total = own.reduce((sum, stay) => sum + (stay.to ?? end) - stay.from, 0);
          return (
            <div key={state} role="row" className={`timeline-row tone-${toneOf(state)}`}>
              <span role="cell" className="timeline-state">
                {state.toLowerCase()}
              </span>
              <span role="cell" className="timeline-bars">
                {own.map((stay) => (
                  <span
                    key={stay.from}
                    className={stay.to === undefined && !over ? "goes-on" : ""}
                    style={{ left: share(stay.from - begin), width: share((stay.to ?? end) - stay.from) }}
                    title={`${state.toLowerCase()} from ${when(stay.from)} for ${duration((stay.to ?? end) - stay.from)}: ${stay.cause}`}
                  />
                ))}
              </span>
              <span role="cell" className="timeline-total">
                {duration(total)}
                {own.length > 1 && <span className="quiet"> · {own.length}×</span>}
              </span>
            </div>
          );
        })}
      </div>
      <div className="timeline-axis quiet small">
        <span>{when(begin)}</span>
        <span>{over ? when(end) : "now"}</span>
      </div>
    </Panel>
  );
}
