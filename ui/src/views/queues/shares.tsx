/** The queues as a tree, each with a bar: what it uses of what it is guaranteed and limited to. */

import { Link } from "../../parts/link";
import { paths } from "../../routes";
import { amount, depths, type Queue, type Queues, type Resource } from "./answers";

/** Whether any queue is guaranteed some of it: only then can it be borrowed. */
export function lends(queues: Queues, by: Resource): boolean {
  return queues.items.some((queue) => queue.status.guaranteed[by] !== undefined);
}

export function Shares({ queues, by }: { queues: Queues; by: Resource }) {
  const depth = depths(queues.items);
  const lending = lends(queues, by);
  return (
    <ul className="shares">
      {queues.items.map((queue) => (
        <li key={queue.metadata.name} className="share" data-queue={queue.metadata.name}>
          <Share
            queue={queue}
            by={by}
            capacity={queues.capacity[by]}
            depth={depth.get(queue.metadata.name) ?? 0}
            lending={lending}
          />
        </li>
      ))}
    </ul>
  );
}

interface Props {
  queue: Queue;
  by: Resource;
  capacity: number;
  depth: number;
  lending: boolean;
}

function Share({ queue: { metadata, spec, status }, by, capacity, depth, lending }: Props) {
  const used = status.used[by] ?? 0;
  const owed = status.guaranteed[by];
  const limit = status.limit[by];
  const own = lending ? Math.min(used, owed ?? 0) : used;
  const lent = used - own;
  const part = (value: number) => `${(100 * Math.min(value, capacity)) / Math.max(capacity, 1e-9)}%`;
  const show = (value: number) => amount(by, value);
  const says = [
    `${show(used)} of ${show(capacity)} used`,
    owed !== undefined && `${show(owed)} guaranteed`,
    owed !== undefined && lent > 0 && `${show(lent)} borrowed`,
    limit !== undefined && `limited to ${show(limit)}`,
  ].filter((each) => each !== false);
  return (
    <>
      <span className="share-name cut" style={{ paddingLeft: depth * 20 }}>
        {depth > 0 && <span className="share-branch" aria-hidden="true" />}
        <Link to={`${paths.jobs}?queue=${encodeURIComponent(metadata.name)}`}>{metadata.name}</Link>
        {spec.closed && <span className="tag closed">closed</span>}
      </span>
      <span className="share-bar" role="img" aria-label={says.join(", ")} title={says.join("\n")}>
        {owed !== undefined && <i className="owed" style={{ width: part(owed) }} />}
        <i className="own" style={{ width: part(own) }} />
        <i className="lent" style={{ left: part(own), width: part(lent) }} />
        {limit !== undefined && limit < capacity && <i className="limit" style={{ left: part(limit) }} />}
      </span>
      <span className="share-says">
        <strong>{show(used)}</strong>
        <span className="quiet">
          {owed === undefined
            ? ` of ${show(limit ?? capacity)}${limit === undefined ? "" : " at most"}`
            : `, ${says.slice(1).join(", ")}`}
        </span>
      </span>
      <span
        className="share-facts quiet small"
        title="Weight beside its sisters; its share of the cluster over the last hours"
      >
        weight {spec.weight}, lately {(100 * status.share).toFixed(status.share < 0.1 ? 1 : 0)} %
      </span>
      <span className="share-jobs">
        {status.running > 0 && <span className="tone-busy">{status.running} running</span>}
        {status.waiting > 0 && <span className="tone-wait">{status.waiting} waiting</span>}
      </span>
    </>
  );
}
