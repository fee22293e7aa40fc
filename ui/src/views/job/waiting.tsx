/** Why a job waits, and when it should start: what the scheduler itself says. */

import { useAsk } from "../../api/ask";
import type { Estimate, Job } from "../../api/types";
import { duration } from "../../format";
import { useNow } from "../../now";
import { Facts, Panel } from "../../parts/panel";
import { Link } from "../../parts/link";
import { Next } from "../../parts/next";
import { Time } from "../../parts/time";
import { paths } from "../../routes";

export function Waiting({ job }: { job: Job }) {
  const { data } = useAsk("/v1/jobs/{name}/explain", {
    path: { name: job.metadata.name },
    every: 5000,
    when: job,
  });
  if (!data || data.state !== "QUEUED") return null;
  return (
    <Panel title="Why it waits" className={data.possible ? "waiting" : "waiting impossible"}>
      <p className="waiting-reason">{data.reason}</p>
      <Facts
        items={[
          ["Should start", data.possible ? <Start estimate={data.estimatedStart} /> : "never, as things are"],
          data.promisedStart != null && ["Promised by", <Time key="promised" at={data.promisedStart} />],
          data.position != null && ["Place in the line", `${data.position}, queue ${data.queue}`],
          data.waited !== undefined && ["Waits for", duration(data.waited)],
          data.ahead !== undefined &&
            data.ahead.length > 0 && ["Before it", <Ahead key="ahead" names={data.ahead} />],
        ]}
      />
      {data.advice && <p className="waiting-advice">{data.advice}</p>}
      <Next text={data.next} />
      {data.details && data.details.length > 0 && (
        <details>
          <summary>Node by node</summary>
          <ul className="waiting-details">
            {data.details.map((line) => (
              <li key={line}>{line}</li>
            ))}
          </ul>
        </details>
      )}
    </Panel>
  );
}

/** The likely moment, and between which it may be. */
export function Start({ estimate }: { estimate: Estimate | undefined }) {
  const now = useNow();
  if (!estimate || estimate.likely === null) return <span>later than can be foreseen</span>;
  const within = (time: number | null) => (time === null ? "later" : duration(Math.max(0, time - now)));
  return (
    <span>
      in about {within(estimate.likely)} (<Time at={estimate.likely} />)
      <span className="quiet small waiting-between">
        between {within(estimate.earliest)} and {within(estimate.latest)}
      </span>
    </span>
  );
}

function Ahead({ names }: { names: readonly string[] }) {
  return names.slice(0, 5).map((name, n) => (
    <span key={name}>
      {n > 0 && ", "}
      <Link to={paths.job(name)}>{name}</Link>
    </span>
  ));
}
