/** What can be done to the jobs that are picked. */

import { useState } from "react";
import { act, possible, type Verb } from "../../actions";
import type { JobSummary } from "../../api/types";
import { plural } from "../../format";
import { useShortcut } from "../../keyboard";
import { go } from "../../location";
import { Icon, type IconName } from "../../parts/icon";
import { paths } from "../../routes";
import { Rerun } from "./rerun";

export const VERBS: readonly { verb: Verb; title: string; icon: IconName }[] = [
  { verb: "halt", title: "Halt", icon: "pause" },
  { verb: "resume", title: "Resume", icon: "play" },
  { verb: "cancel", title: "Cancel", icon: "no" },
  { verb: "delete", title: "Delete", icon: "trash" },
];

export function PickedBar({ jobs, clear }: { jobs: readonly JobSummary[]; clear: () => void }) {
  const [again, setAgain] = useState(false);
  useShortcut("Escape", "pick none", clear);
  return (
    <div className="picked" role="toolbar" aria-label="Picked jobs">
      <b>{plural(jobs.length, "job")}</b>
      {VERBS.map(({ verb, title, icon }) => {
        const able = jobs.filter((job) => possible(verb, job.state)).length;
        return (
          <button
            key={verb}
            className={verb === "delete" ? "danger" : ""}
            disabled={able === 0}
            onClick={async () => {
              if ((await act(verb, jobs)) && verb === "delete") clear();
            }}
          >
            <Icon name={icon} />
            {title}
            {able > 0 && able < jobs.length && ` ${able}`}
          </button>
        );
      })}
      <button onClick={() => setAgain(true)}>
        <Icon name="again" />
        Re-run
      </button>
      {jobs.length > 1 && (
        <button onClick={() => go(paths.compare(jobs.map((job) => job.name)))}>
          <Icon name="compare" />
          Compare
        </button>
      )}
      <button className="plain" onClick={clear}>
        Pick none
      </button>
      {again && <Rerun names={jobs.map((job) => job.name)} close={() => setAgain(false)} />}
    </div>
  );
}
