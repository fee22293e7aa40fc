/** One job: what it is, was, measures, prints and waits for. */

import { act, possible } from "../../actions";
import { useAsk } from "../../api/ask";
import { useJobs } from "../../api/live";
import { FINISHED, type Job as JobDocument } from "../../api/types";
import { useShortcut } from "../../keyboard";
import { go } from "../../location";
import { Problem } from "../../parts/problem";
import { StateBadge } from "../../parts/state";
import { Tabs } from "../../parts/tabs";
import { paths } from "../../routes";
import { useTitle } from "../../title";
import { Actions } from "./actions";
import { Curves } from "./curves";
import { Download } from "./download";
import { Events } from "./events";
import "./job.css";
import { Log } from "./log";
import { Resources } from "./resources";
import { Spec } from "./spec";
import { Summary } from "./summary";

const TABS = [
  { id: "", title: "Summary", key: "1" },
  { id: "log", title: "Log", key: "2" },
  { id: "curves", title: "Curves", key: "3" },
  { id: "resources", title: "Resources", key: "4" },
  { id: "spec", title: "Spec", key: "5" },
  { id: "events", title: "Events", key: "6" },
] as const;

export function Job({ name, tab }: { name: string; tab: string }) {
  useTitle(name);
  const now = useJobs().byName.get(name);
  const { data: job, refusal, again } = useAsk("/v1/jobs/{name}", { path: { name }, when: now });
  const state = job?.status.state;
  useShortcut("h", "halt or resume", () => {
    if (state) void act(possible("halt", state) ? "halt" : "resume", [{ name, state }]);
  });

  if (!job)
    return refusal ? <Problem refusal={refusal} again={again} /> : <div className="view" aria-busy="true" />;
  const whole = tab === "log";
  return (
    <div className={whole ? "view whole" : "view"}>
      <header className="view-head">
        <h1 className="job-name">{job.metadata.name}</h1>
        <StateBadge state={job.status.state} />
        <Actions job={job} />
      </header>
      {job.status.reason && !job.status.progress && !(tab === "" && job.status.failure) && (
        <p className="job-reason">{job.status.reason}</p>
      )}
      <Download job={job} />
      {refusal?.status === 404 && (
        <p className="job-reason tone-bad">This job was deleted; this is what was last known of it.</p>
      )}
      <Tabs
        label="Parts of the job"
        current={tab}
        tabs={TABS.map((each) => ({ ...each, to: paths.job(name, each.id) }))}
      />
      {TABS.map((each) => (
        <Key key={each.id} keys={each.key} says={each.title} to={paths.job(name, each.id)} />
      ))}
      <Part job={job} tab={tab} />
    </div>
  );
}

function Key({ keys, says, to }: { keys: string; says: string; to: string }) {
  useShortcut(keys, says, () => go(to));
  return null;
}

function Part({ job, tab }: { job: JobDocument; tab: string }) {
  const live = !FINISHED.has(job.status.state) && job.status.state !== "HALTED";
  switch (tab) {
    case "log":
      return <Log job={job} />;
    case "curves":
      return <Curves job={job} />;
    case "resources":
      return <Resources job={job} live={live} />;
    case "spec":
      return <Spec job={job} />;
    case "events":
      return <Events job={job} />;
    default:
      return <Summary job={job} />;
  }
}
