/** What the job measured, alone or over other runs. */

import { useEffect, useMemo, useState } from "react";
import { useRuns } from "../../api/curves";
import { useAllJobs } from "../../api/live";
import type { Job } from "../../api/types";
import { useQuery } from "../../location";
import { Empty } from "../../parts/empty";
import { Icon } from "../../parts/icon";
import { LookControls, RunCurves, useLook } from "../../parts/runcurves";

export function Curves({ job }: { job: Job }) {
  const [query, change] = useQuery();
  const [look, setLook] = useLook();
  const own = job.metadata.name;
  const overlaid = query.get("with") ?? "";
  const names = useMemo(() => [...new Set([own, ...overlaid.split(",").filter(Boolean)])], [own, overlaid]);
  const runs = useRuns(names);
  const overlay = (names: readonly string[]) => change({ with: names.join(",") });
  const measured = runs?.some((run) => run.curves.length > 0);
  return (
    <>
      <div className="job-curves-head">
        <LookControls look={look} change={setLook} />
        <Overlay own={own} others={names.slice(1)} change={overlay} />
      </div>
      {runs && !measured && (
        <Empty
          title="Nothing measured"
          says="A job measures with weft.log in Python, or by what the metrics of its spec find: in its log, in a file of JSON lines, in TensorBoard's files."
          command="weft.log(step=step, loss=loss)"
        />
      )}
      {runs && measured && <RunCurves names={names} runs={runs} look={look} />}
    </>
  );
}

interface OverlayProps {
  own: string;
  others: readonly string[];
  change: (names: readonly string[]) => void;
}

/** Other runs to draw over this one. Their names are asked for when somebody means to choose one: there may be very many. */
function Overlay({ own, others, change }: OverlayProps) {
  const [asked, setAsked] = useState(false);
  const [typed, setTyped] = useState("");
  const choose = (name: string) => {
    setTyped("");
    change([...new Set([...others, name])]);
  };
  return (
    <div className="job-overlay">
      {others.map((name) => (
        <button
          key={name}
          className="tiny"
          aria-label={`Leave ${name} out`}
          onClick={() => change(others.filter((each) => each !== name))}
        >
          {name}
          <Icon name="close" />
        </button>
      ))}
      <input
        list="job-overlay-names"
        aria-label="Overlay another run"
        placeholder="Overlay another run…"
        value={typed}
        onFocus={() => setAsked(true)}
        onChange={(event) => setTyped(event.target.value)}
      />
      {asked ? (
        <Choice left={[own, ...others]} typed={typed} choose={choose} />
      ) : (
        <datalist id="job-overlay-names" />
      )}
    </div>
  );
}

interface ChoiceProps {
  /** Who is there already. */
  left: readonly string[];
  typed: string;
  choose: (name: string) => void;
}

/** The names that there are; one that is typed in full is chosen. */
function Choice({ left, typed, choose }: ChoiceProps) {
  const jobs = useAllJobs();
  const found = jobs.byName.has(typed) && !left.includes(typed);
  useEffect(() => {
    if (found) choose(typed);
  }, [found, typed]);
  const free = jobs.list.filter((each) => !left.includes(each.name)).slice(0, 500);
  return (
    <datalist id="job-overlay-names">
      {free.map((each) => (
        <option key={each.uid} value={each.name} />
      ))}
    </datalist>
  );
}
