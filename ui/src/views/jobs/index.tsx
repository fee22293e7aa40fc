/** All jobs: found by words and states, and acted on one by one or many at once. */

import { useDeferredValue, useMemo, useRef, useState } from "react";
import { useAllJobs } from "../../api/live";
import type { JobSummary } from "../../api/types";
import { count } from "../../format";
import { useShortcut } from "../../keyboard";
import { useQuery } from "../../location";
import { Empty } from "../../parts/empty";
import { sorted, Table } from "../../parts/table";
import { paths } from "../../routes";
import { useTitle } from "../../title";
import { COLUMNS } from "./columns";
import { FIELDS, GROUPS, matches, read, readSorting, writeSorting } from "./filter";
import "./jobs.css";
import { PickedBar } from "./picked";

export function Jobs() {
  useTitle("Jobs");
  const jobs = useAllJobs();
  const [query, change] = useQuery();
  const [picked, setPicked] = useState<ReadonlySet<string>>(new Set());
  const search = useRef<HTMLInputElement>(null);
  useShortcut("/", "search", () => search.current?.focus());

  const asked = useDeferredValue(query);
  const sorting = readSorting(asked);
  const rows = useMemo(() => {
    const filter = read(asked);
    return sorted(
      jobs.list.filter((job) => matches(job, filter)),
      COLUMNS,
      readSorting(asked),
    );
  }, [jobs.list, asked]);
  const chosen = useMemo(() => {
    const names = [...picked].flatMap((name) => jobs.byName.get(name) ?? []);
    return names;
  }, [picked, jobs.byName]);
  const filtered = query.size > (query.has("sort") ? 1 : 0);

  return (
    <div className="view whole jobs">
      <header className="view-head">
        <h1>Jobs</h1>
        <span className="quiet" role="status">
          {filtered ? `${count(rows.length)} of ${count(jobs.total)}` : count(jobs.total)}
          {jobs.known && !jobs.complete && " · reading…"}
        </span>
        <input
          ref={search}
          type="search"
          className="push jobs-search"
          placeholder="Search name, owner, queue, reason…  /"
          aria-label="Search jobs"
          value={query.get("q") ?? ""}
          onChange={(event) => change({ q: event.target.value })}
        />
      </header>
      <Filters jobs={jobs.list} query={query} change={change} />
      <div className="panel jobs-table">
        <Table
          label="Jobs"
          rows={rows}
          columns={COLUMNS}
          rowKey={(job) => job.name}
          chosenBy={asked.toString()}
          to={(job) => paths.job(job.name)}
          picked={picked}
          onPick={setPicked}
          sorting={sorting}
          onSort={(to) => change({ sort: writeSorting(to) })}
          empty={jobs.known && <Nothing filtered={filtered} clear={() => change(NOTHING)} />}
        />
      </div>
      {chosen.length > 0 && <PickedBar jobs={chosen} clear={() => setPicked(new Set())} />}
    </div>
  );
}

const NOTHING = Object.fromEntries(["q", "state", ...FIELDS].map((name) => [name, null]));

function Nothing({ filtered, clear }: { filtered: boolean; clear: () => void }) {
  if (!filtered)
    return <Empty title="No jobs yet" says="Your first one, from a terminal:" command="weft run train.py" />;
  return (
    <div className="empty">
      <h2>No job matches</h2>
      <button onClick={clear}>Show all</button>
    </div>
  );
}

interface FiltersProps {
  jobs: readonly JobSummary[];
  query: URLSearchParams;
  change: (to: Record<string, string | null>) => void;
}

function Filters({ jobs, query, change }: FiltersProps) {
  const state = query.get("state") ?? "";
  const numbers = useMemo(
    () =>
      Object.fromEntries(
        Object.entries(GROUPS).map(([id, { states }]) => [
          id,
          jobs.reduce((n, job) => n + +states.has(job.state), 0),
        ]),
      ),
    [jobs],
  );
  return (
    <div className="filters">
      <div role="group" aria-label="State" className="filters-states">
        <button className="tiny" aria-pressed={state === ""} onClick={() => change({ state: null })}>
          All
        </button>
        {Object.entries(GROUPS).map(([id, { title }]) => (
          <button
            key={id}
            className="tiny"
            aria-pressed={state === id}
            onClick={() => change({ state: state === id ? null : id })}
          >
            {title} <span className="filters-number">{count(numbers[id] ?? 0)}</span>
          </button>
        ))}
      </div>
      {FIELDS.map((field) => (
        <Choice key={field} field={field} jobs={jobs} value={query.get(field) ?? ""} change={change} />
      ))}
    </div>
  );
}

interface ChoiceProps {
  field: (typeof FIELDS)[number];
  jobs: readonly JobSummary[];
  value: string;
  change: (to: Record<string, string | null>) => void;
}

/** A choice among the values that there are, if there is one to make. */
function Choice({ field, jobs, value, change }: ChoiceProps) {
  const values = useMemo(() => [...new Set(jobs.flatMap((job) => job[field] ?? []))].sort(), [jobs, field]);
  if (values.length < 2 && !value) return null;
  return (
    <select
      aria-label={`Only this ${field}`}
      value={value}
      onChange={(event) => change({ [field]: event.target.value })}
    >
      <option value="">any {field}</option>
      {[...new Set([...values, ...(value ? [value] : [])])].map((each) => (
        <option key={each}>{each}</option>
      ))}
    </select>
  );
}
