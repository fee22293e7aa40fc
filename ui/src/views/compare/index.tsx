/** Compare: what runs were given, side by side, and what came of it. */

import { useEffect, useMemo, useState } from "react";
import { get, Refusal } from "../../api/client";
import { useRuns } from "../../api/curves";
import { useAllJobs } from "../../api/live";
import type { Job } from "../../api/types";
import { useQuery } from "../../location";
import { curveColour } from "../../parts/curve";
import { Empty } from "../../parts/empty";
import { Icon } from "../../parts/icon";
import { Link } from "../../parts/link";
import { Panel } from "../../parts/panel";
import { LookControls, RunCurves, useLook } from "../../parts/runcurves";
import { paths } from "../../routes";
import { useDark } from "../../theme";
import { useTitle } from "../../title";
import { Best, lowIsGood, metricsOf } from "./best";
import "./compare.css";
import { type Parameter, sideBySide } from "./parameters";
import { Picker } from "./picker";

/** Milliseconds until a server that was away is asked again. */
const AGAIN = 1000;

export default function Compare() {
  useTitle("Compare");
  const [query, change] = useQuery();
  const asked = query.get("jobs") ?? "";
  const names = useMemo(() => [...new Set(asked.split(",").filter(Boolean))], [asked]);
  const pick = (next: readonly string[]) => change({ jobs: next.join(",") });
  const dark = useDark();
  const colour = (job: string) => curveColour(names.indexOf(job), dark);
  return (
    <div className="view">
      <header className="view-head">
        <h1>Compare</h1>
        {names.length > 0 && <Chips names={names} colour={colour} pick={pick} />}
      </header>
      {names.length === 0 ? <Picker picked={names} pick={pick} /> : <Runs names={names} colour={colour} />}
    </div>
  );
}

interface ChipsProps {
  names: readonly string[];
  colour: (job: string) => string;
  pick: (names: readonly string[]) => void;
}

/** The runs that are compared, each with its colour, and how to add one. */
function Chips({ names, colour, pick }: ChipsProps) {
  const jobs = useAllJobs();
  const free = jobs.list.filter((job) => !names.includes(job.name)).slice(0, 500);
  return (
    <div className="compare-chips">
      {names.map((name) => (
        <button
          key={name}
          className="tiny"
          aria-label={`Leave out ${name}`}
          onClick={() => pick(names.filter((each) => each !== name))}
        >
          <i className="dot" style={{ background: colour(name) }} />
          {name}
          <Icon name="close" />
        </button>
      ))}
      <input
        type="text"
        list="compare-names"
        aria-label="Add a run"
        placeholder="Add a run…"
        onChange={(event) => {
          const { value } = event.target;
          if (!jobs.byName.has(value)) return;
          event.target.value = "";
          pick([...names, value]);
        }}
      />
      <datalist id="compare-names">
        {free.map((job) => (
          <option key={job.uid} value={job.name} />
        ))}
      </datalist>
    </div>
  );
}

function Runs({ names, colour }: { names: readonly string[]; colour: (job: string) => string }) {
  const [query, change] = useQuery();
  const [look, setLook] = useLook();
  const jobs = useAllJobs();
  const runs = useRuns(names);
  const { found, missing } = useDocuments(names);
  const metrics = useMemo(() => metricsOf(runs ?? []), [runs]);
  const metric = metrics.find((each) => each === query.get("metric")) ?? metrics[0];
  const best = query.get("best");
  const low = best ? best === "low" : lowIsGood(metric ?? "");
  return (
    <>
      {missing.map((name) => (
        <p key={name} className="compare-missing" role="alert">
          There is no job {name}.
        </p>
      ))}
      {runs && metric !== undefined && (
        <Best
          runs={runs}
          jobs={jobs.byName}
          metric={metric}
          metrics={metrics}
          low={low}
          colour={colour}
          choose={(to) =>
            change({
              ...(to.metric ? { metric: to.metric, best: null } : {}),
              ...(to.best ? { best: to.best } : {}),
            })
          }
        />
      )}
      {found.length > 0 && <Parameters jobs={found} colour={colour} />}
      {runs && metric !== undefined && (
        <>
          <LookControls look={look} change={setLook} />
          <RunCurves names={names} runs={runs} look={look} />
        </>
      )}
      {runs && runs.length === names.length && metric === undefined && (
        <Empty
          title="Nothing measured"
          says="None of these runs has logged a metric."
          command="weft.log(step=step, loss=loss)"
        />
      )}
    </>
  );
}

/** The jobs by name; asked once, as what a run was given does not change. */
function useDocuments(names: readonly string[]): { found: Job[]; missing: string[] } {
  const [known, setKnown] = useState<ReadonlyMap<string, Job | null>>(new Map());
  useEffect(() => {
    const gone = new AbortController();
    const ask = async (name: string) => {
      const keep = (job: Job | null) => setKnown((before) => new Map(before).set(name, job));
      try {
        keep(await get("/v1/jobs/{name}", { path: { name }, signal: gone.signal }));
      } catch (error) {
        if (gone.signal.aborted) return;
        if (error instanceof Refusal && !error.away) keep(null);
        else setTimeout(() => gone.signal.aborted || void ask(name), AGAIN);
      }
    };
    for (const name of names) void ask(name);
    return () => gone.abort();
  }, [names]);
  return {
    found: names.flatMap((name) => known.get(name) ?? []),
    missing: names.filter((name) => known.get(name) === null),
  };
}

function Parameters({ jobs, colour }: { jobs: readonly Job[]; colour: (job: string) => string }) {
  const [query, change] = useQuery();
  const all = query.get("all") === "1";
  const rows = useMemo(() => sideBySide(jobs), [jobs]);
  const shown = all || jobs.length === 1 ? rows : rows.filter((row) => row.differs);
  return (
    <Panel
      title="Parameters"
      flush
      aside={
        <label className="compare-all">
          <input
            type="checkbox"
            checked={all}
            onChange={(event) => change({ all: event.target.checked ? "1" : null })}
          />
          also what is the same ({rows.filter((row) => !row.differs).length})
        </label>
      }
    >
      {shown.length === 0 ? (
        <Empty title="No difference" says="These runs were given the same." />
      ) : (
        <div className="compare-scroll" tabIndex={0} role="group" aria-label="Parameters side by side">
          <table className="compare-table parameters">
            <thead>
              <tr>
                <th scope="col">Parameter</th>
                {jobs.map(({ metadata }) => (
                  <th key={metadata.uid} scope="col">
                    <i className="dot" style={{ background: colour(metadata.name) }} />
                    <Link to={paths.job(metadata.name)}>{metadata.name}</Link>
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {shown.map((row) => (
                <Row key={row.name} row={row} />
              ))}
            </tbody>
          </table>
        </div>
      )}
    </Panel>
  );
}

function Row({ row }: { row: Parameter }) {
  const most = commonest(row.values);
  return (
    <tr className={row.differs ? "differs" : ""}>
      <th scope="row">
        {row.name}
        {row.differs && <span className="unseen"> (differs)</span>}
      </th>
      {row.values.map((value, n) => (
        <td key={n} className={most !== undefined && value !== most ? "other" : ""}>
          {value === undefined ? <span className="quiet">–</span> : <code title={value}>{value}</code>}
        </td>
      ))}
    </tr>
  );
}

/** What most runs have; undefined if no value is had twice. */
function commonest(values: readonly (string | undefined)[]): string | undefined {
  const counts = new Map<string | undefined, number>();
  for (const value of values) if (value !== undefined) counts.set(value, (counts.get(value) ?? 0) + 1);
  const [value, times] = [...counts].sort((a, b) => b[1] - a[1])[0] ?? [undefined, 0];
  return times > 1 ? value : undefined;
}
