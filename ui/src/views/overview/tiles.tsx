/** The few numbers that say how full it is. */

import { useStatus } from "../../api/live";
import { type Node, RUNNING, type State, WAITING } from "../../api/types";
import { bytes, count, decimal, plural } from "../../format";
import { Link } from "../../parts/link";
import { paths } from "../../routes";

export function Tiles({ nodes }: { nodes: readonly Node[] }) {
  const jobs = useStatus()?.jobs ?? {};
  const jobsIn = (states: ReadonlySet<State>) => [...states].reduce((n, state) => n + (jobs[state] ?? 0), 0);
  const sum = (of: (node: Node) => number) => nodes.reduce((n, node) => n + of(node), 0);
  const kinds = [
    {
      title: "GPUs",
      total: sum((node) => node.capacity.gpu),
      free: sum((node) => node.free.gpu),
      format: decimal,
    },
    {
      title: "CPUs",
      total: sum((node) => node.capacity.cpu),
      free: sum((node) => node.free.cpu),
      format: decimal,
    },
    {
      title: "Memory",
      total: sum((node) => node.capacity.memory),
      free: sum((node) => node.free.memory),
      format: bytes,
    },
  ];
  return (
    <div className="tiles">
      {kinds
        .filter(({ total }) => total > 0)
        .map(({ title, total, free, format }) => (
          <Tile key={title} title={title} used={total - free} total={total} format={format} />
        ))}
      <Link className="tile" to={`${paths.jobs}?state=running`}>
        <span className="tile-title">Running</span>
        <b>{count(jobsIn(RUNNING))}</b>
        <span className="quiet small">{plural(nodes.length, "node")}</span>
      </Link>
      <Link className="tile" to={paths.queues}>
        <span className="tile-title">Waiting</span>
        <b>{count(jobsIn(WAITING))}</b>
        <span className="quiet small">in the line</span>
      </Link>
    </div>
  );
}

interface TileProps {
  title: string;
  used: number;
  total: number;
  format: (value: number) => string;
}

function Tile({ title, used, total, format }: TileProps) {
  const part = total > 0 ? used / total : 0;
  return (
    <div className="tile">
      <span className="tile-title">{title}</span>
      <span>
        <b>{format(used)}</b> <span className="quiet">of {format(total)}</span>
      </span>
      <span className="progress-bar" role="img" aria-label={`${Math.round(part * 100)} % in use`}>
        <span style={{ width: `${Math.min(part, 1) * 100}%` }} />
      </span>
    </div>
  );
}
