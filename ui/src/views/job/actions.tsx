/** What can be done to the job. */

import { useState } from "react";
import { act, possible } from "../../actions";
import type { Job } from "../../api/types";
import { go } from "../../location";
import { Icon } from "../../parts/icon";
import { Link } from "../../parts/link";
import { paths } from "../../routes";
import { VERBS } from "../jobs/picked";
import { Rerun } from "../jobs/rerun";

export function Actions({ job }: { job: Job }) {
  const [again, setAgain] = useState(false);
  const { name } = job.metadata;
  const { state } = job.status;
  return (
    <div className="push job-actions" role="toolbar" aria-label="Actions">
      {VERBS.filter(({ verb }) => possible(verb, state)).map(({ verb, title, icon }) => (
        <button
          key={verb}
          className={verb === "delete" ? "danger" : ""}
          onClick={async () => {
            if ((await act(verb, [{ name, state }])) && verb === "delete") go(paths.jobs);
          }}
        >
          <Icon name={icon} />
          {title}
        </button>
      ))}
      <button onClick={() => setAgain(true)}>
        <Icon name="again" />
        Re-run
      </button>
      <Link className="button" to={paths.compare([name])}>
        <Icon name="compare" />
        Compare
      </Link>
      {again && <Rerun names={[name]} close={() => setAgain(false)} />}
    </div>
  );
}
