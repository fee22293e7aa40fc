/** Which of the runs is the best by a metric. */

import type { Run } from "../../api/curves";
import type { JobSummary } from "../../api/types";
import { measure } from "../../format";
import { Icon } from "../../parts/icon";
import { Link } from "../../parts/link";
import { Panel } from "../../parts/panel";
import { StateBadge } from "../../parts/state";
import { Span } from "../../parts/time";
import { paths } from "../../routes";

export interface Standing {
  job: string;
  best: number | undefined;
  step: number | null;
  last: number | undefined;
}

/** Low is good of what is lost, wrong or waited for. */
export const lowIsGood = (metric: string) =>
  /loss|err|perplexity|ppl|rmse|mae|mse|time|latency/i.test(metric);

export function metricsOf(runs: readonly Run[]): string[] {
  const names = new Set(runs.flatMap((run) => run.curves.map((curve) => curve.name)));
  const rank = (name: string) =>
    /^(val|eval|test)/i.test(name) ? 0 : /loss/i.test(name) ? 1 : /acc/i.test(name) ? 2 : 3;
  return [...names].sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1));
}

/** The best first; runs that did not measure it last. */
export function standings(runs: readonly Run[], metric: string, low: boolean): Standing[] {
  const sign = low ? 1 : -1;
  const found = runs.map(({ job, curves }): Standing => {
    const points = curves
      .filter((curve) => curve.name === metric)
      .flatMap((curve) => curve.points)
      .filter(
        (point): point is [number | null, number, number] =>
          typeof point[2] === "number" && Number.isFinite(point[2]),
      );
    const best = points.reduce<(typeof points)[number] | undefined>(
      (a, b) => (a === undefined || sign * b[2] < sign * a[2] ? b : a),
      undefined,
    );
    const last = points.reduce<(typeof points)[number] | undefined>(
      (a, b) => (a === undefined || b[1] >= a[1] ? b : a),
      undefined,
    );
    return { job, best: best?.[2], step: best?.[0] ?? null, last: last?.[2] };
  });
  return found.sort((a, b) =>
    a.best === undefined ? 1 : b.best === undefined ? -1 : sign * (a.best - b.best),
  );
}

interface Props {
  runs: readonly Run[];
  jobs: ReadonlyMap<string, JobSummary>;
  metric: string;
  metrics: readonly string[];
  low: boolean;
  colour: (job: string) => string;
  choose: (change: { metric?: string; best?: "low" | "high" }) => void;
}

export function Best({ runs, jobs, metric, metrics, low, colour, choose }: Props) {
  const rows = standings(runs, metric, low);
  return (
    <Panel
      title="Best"
      flush
      aside={
        <>
          <label className="compare-by">
            by
            <select
              aria-label="Metric"
              value={metric}
              onChange={(event) => choose({ metric: event.target.value })}
            >
              {metrics.map((each) => (
                <option key={each}>{each}</option>
              ))}
            </select>
          </label>
          <span role="group" aria-label="What is better">
            <button className="tiny" aria-pressed={low} onClick={() => choose({ best: "low" })}>
              Lowest
            </button>{" "}
            <button className="tiny" aria-pressed={!low} onClick={() => choose({ best: "high" })}>
              Highest
            </button>
          </span>
        </>
      }
    >
      <div className="compare-scroll">
        <table className="compare-table">
          <thead>
            <tr>
              <th scope="col">Run</th>
              <th scope="col" className="right">
                {low ? "Lowest" : "Highest"} {metric}
              </th>
              <th scope="col" className="right">
                At step
              </th>
              <th scope="col" className="right">
                Last
              </th>
              <th scope="col" className="right">
                Ran
              </th>
              <th scope="col">State</th>
            </tr>
          </thead>
          <tbody>
            {rows.map((row, n) => {
              const summary = jobs.get(row.job);
              const first = n === 0 && row.best !== undefined;
              return (
                <tr key={row.job} className={first ? "best" : ""}>
                  <th scope="row">
                    <i className="dot" style={{ background: colour(row.job) }} />
                    <Link to={paths.job(row.job)}>{row.job}</Link>
                    {first && (
                      <span className="tag best">
                        <Icon name="check" />
                        best
                      </span>
                    )}
                  </th>
                  <td className="right">{row.best === undefined ? "–" : measure(row.best)}</td>
                  <td className="right">{row.step ?? "–"}</td>
                  <td className="right">{row.last === undefined ? "–" : measure(row.last)}</td>
                  <td className="right">
                    <Span from={summary?.started} to={summary?.finished} />
                  </td>
                  <td>{summary && <StateBadge state={summary.state} />}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </Panel>
  );
}
