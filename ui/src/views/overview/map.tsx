/** The nodes with their GPUs and CPUs, coloured by who has them. A gang lights up as one. */

import { type FocusEvent, type MouseEvent, memo, useEffect, useMemo, useRef } from "react";
import type { Node, NodeTask } from "../../api/types";
import { bytes, decimal, plural, when } from "../../format";
import { huesOf } from "../../hue";
import { go } from "../../location";
import { Icon } from "../../parts/icon";
import { Link } from "../../parts/link";
import { Panel } from "../../parts/panel";
import { paths } from "../../routes";

type Hues = ReadonlyMap<string, number>;
const LEGEND = 24;

export function ClusterMap({ nodes }: { nodes: readonly Node[] }) {
  const place = useRef<HTMLDivElement>(null);
  const lit = useRef<string | undefined>(undefined);
  const gangs = useMemo(() => gangsOf(nodes), [nodes]);
  const hues = useMemo(() => huesOf([...gangs.keys()]), [gangs]);
  const racks = useMemo(() => Map.groupBy(nodes, (node) => node.rack ?? ""), [nodes]);

  const light = (uid: string | undefined) => {
    const map = place.current;
    if (!map) return;
    lit.current = uid;
    for (const cell of map.querySelectorAll(".lit")) cell.classList.remove("lit");
    map.classList.toggle("dims", uid !== undefined);
    if (uid === undefined) return;
    for (const cell of map.querySelectorAll(`[data-gang="${CSS.escape(uid)}"]`)) cell.classList.add("lit");
  };
  useEffect(() => light(lit.current), [nodes]);
  const point = (event: MouseEvent | FocusEvent) => {
    const uid = (event.target as Element).closest<HTMLElement>("[data-gang]")?.dataset["gang"];
    if (uid !== lit.current) light(uid);
  };
  const open = (event: MouseEvent) => {
    const job = (event.target as Element).closest<HTMLElement>("[data-job]")?.dataset["job"];
    if (job) go(paths.job(job));
  };

  return (
    <Panel
      title="Cluster"
      aside={
        <>
          <Key sign="free" says="free" />
          <Key sign="promised" says="kept for a job that waits" />
          <Key sign="cordoned" says="cordoned" />
        </>
      }
    >
      <div
        ref={place}
        className="map"
        onMouseOver={point}
        onMouseLeave={() => light(undefined)}
        onFocus={point}
        onBlur={() => light(undefined)}
        onClick={open}
      >
        <div className="map-racks">
          {[...racks].map(([rack, within]) => (
            <div key={rack} className="map-rack">
              {racks.size > 1 && <h3>{rack || "no rack"}</h3>}
              <ul className="map-nodes">
                {within.map((node) => (
                  <NodeCard key={node.name} node={node} hues={hues} />
                ))}
              </ul>
            </div>
          ))}
        </div>
        {gangs.size > 0 && (
          <ul className="map-legend" aria-label="Jobs on the cluster">
            {[...gangs].slice(0, LEGEND).map(([uid, gang]) => (
              <li key={uid} data-gang={uid}>
                <span className="map-chip" style={hueOf(hues, uid)} />
                <Link to={paths.job(gang.job)}>{gang.job}</Link>{" "}
                <span className="quiet small">{gang.says}</span>
              </li>
            ))}
            {gangs.size > LEGEND && <li className="quiet">and {gangs.size - LEGEND} more</li>}
          </ul>
        )}
      </div>
    </Panel>
  );
}

function Key({ sign, says }: { sign: string; says: string }) {
  return (
    <span className="map-key">
      <span className={`map-gpu ${sign}`} /> {says}
    </span>
  );
}

const isClosed = (node: Node) => node.cordon !== null || !node.schedulable;

function keptFor({ job, start, cpu, memory, gpus }: Node["promised"][number]): string {
  const room = [gpus.length > 0 && `${gpus.length} gpu`, `${decimal(cpu)} cpu`, memory && bytes(memory)];
  return `${room.filter(Boolean).join(", ")} for ${job} from ${when(start)}`;
}

const hueOf = (hues: Hues, uid: string) => ({ "--hue": hues.get(uid) ?? 0 }) as React.CSSProperties;

/** A node's look changes only with what is on it. */
const NodeCard = memo(
  ({ node, hues }: { node: Node; hues: Hues }) => {
    const { capacity, free } = node;
    const closed = isClosed(node);
    const owners = ownersOf(node);
    const first = node.promised[0];
    return (
      <li className={closed ? "map-node closed" : "map-node"} aria-label={describe(node)}>
        <div className="map-name">
          <span className="cut">{node.name}</span>
          {capacity.gpuType && <span className="quiet small cut">{capacity.gpuType}</span>}
        </div>
        {capacity.gpu > 0 && (
          <div className="map-gpus">
            {node.gpus.map((gpu) => (
              <Gpu
                key={gpu.index}
                index={gpu.index}
                free={gpu.free}
                owners={owners.get(gpu.index)}
                node={node}
                hues={hues}
              />
            ))}
          </div>
        )}
        <Bar
          title="cpu"
          total={capacity.cpu}
          tasks={node.tasks}
          share={(task) => task.cpu}
          format={decimal}
          hues={hues}
        />
        <Bar
          title="mem"
          total={capacity.memory}
          tasks={node.tasks}
          share={(task) => task.memory ?? 0}
          format={bytes}
          hues={hues}
        />
        <div className="map-foot quiet small cut">
          {closed ? (
            <span className="map-closed" title={node.cordon?.reason ?? ""}>
              <Icon name="no" /> {node.cordon?.lost ? "lost" : "cordoned"}
              {node.cordon?.reason ? `: ${node.cordon.reason}` : ""}
            </span>
          ) : first ? (
            <span title={node.promised.map(keptFor).join("\n")}>
              <Icon name="clock" /> for {first.job}
            </span>
          ) : (
            `${decimal(capacity.cpu - free.cpu)} of ${decimal(capacity.cpu)} cpu`
          )}
        </div>
      </li>
    );
  },
  (before, after) => before.hues === after.hues && JSON.stringify(before.node) === JSON.stringify(after.node),
);

interface GpuProps {
  index: number;
  free: number;
  owners: NodeTask[] | undefined;
  node: Node;
  hues: Hues;
}

/** A square; of a GPU that is shared, as much of it as is taken. */
function Gpu({ index, free, owners, node, hues }: GpuProps) {
  const owner = owners?.[0];
  const next = node.promised.find((each) => each.gpus.includes(index));
  const kept = next ? `, kept for ${next.job} from ${when(next.start)}` : "";
  if (!owner) {
    const sign = isClosed(node) ? "cordoned" : next ? "promised" : "free";
    return <span className={`map-gpu ${sign}`} title={`GPU ${index}: ${kept ? `free${kept}` : sign}`} />;
  }
  const names = owners.map((each) => `${each.job} ${each.task}`).join(", ");
  return (
    <span
      className="map-gpu taken"
      data-gang={owner.uid}
      data-job={owner.job}
      style={{
        ...hueOf(hues, owner.uid),
        ...(free > 0 ? ({ "--part": `${100 * (1 - free)}%` } as React.CSSProperties) : {}),
      }}
      title={`GPU ${index}: ${names}${free > 0 ? `, ${decimal(free)} free` : ""}${kept}`}
    />
  );
}

interface BarProps {
  title: string;
  total: number;
  tasks: readonly NodeTask[];
  share: (task: NodeTask) => number;
  format: (value: number) => string;
  hues: Hues;
}

function Bar({ title, total, tasks, share, format, hues }: BarProps) {
  if (total === 0) return null;
  return (
    <div className="map-use">
      <span className="map-what">{title}</span>
      <div className="map-bar">
        {tasks.map((task) => {
          const part = share(task);
          return (
            part > 0 && (
              <span
                key={`${task.uid} ${task.task}`}
                data-gang={task.uid}
                data-job={task.job}
                style={{ ...hueOf(hues, task.uid), width: `${(100 * part) / total}%` }}
                title={`${title} ${format(part)}: ${task.job} ${task.task}`}
              />
            )
          );
        })}
      </div>
    </div>
  );
}

function ownersOf(node: Node): Map<number, NodeTask[]> {
  const found = new Map<number, NodeTask[]>();
  for (const task of node.tasks)
    for (const gpu of task.gpus) found.set(gpu, [...(found.get(gpu) ?? []), task]);
  return found;
}

/** The jobs on these nodes, and what each has. */
function gangsOf(nodes: readonly Node[]): Map<string, { job: string; says: string }> {
  const counted = new Map<string, { job: string; tasks: number; gpus: number; nodes: Set<string> }>();
  for (const node of nodes) {
    for (const task of node.tasks) {
      const gang = counted.get(task.uid) ?? { job: task.job, tasks: 0, gpus: 0, nodes: new Set<string>() };
      gang.tasks += 1;
      gang.gpus += task.gpuShare ?? task.gpus.length;
      gang.nodes.add(node.name);
      counted.set(task.uid, gang);
    }
  }
  const order = [...counted].sort(([, a], [, b]) => b.gpus - a.gpus || b.tasks - a.tasks);
  return new Map(
    order.map(([uid, { job, tasks, gpus, nodes: on }]) => {
      const parts = [
        plural(tasks, "task"),
        gpus > 0 && `${decimal(gpus)} gpu`,
        on.size > 1 && plural(on.size, "node"),
      ];
      return [uid, { job, says: parts.filter(Boolean).join(", ") }];
    }),
  );
}

function describe(node: Node): string {
  const { capacity, free } = node;
  const parts = [`${decimal(free.cpu)} of ${decimal(capacity.cpu)} CPUs free`];
  if (capacity.gpu > 0) parts.push(`${decimal(free.gpu)} of ${capacity.gpu} GPUs free`);
  if (node.cordon) parts.push("cordoned");
  const kept = node.promised.reduce((n, each) => n + each.gpus.length, 0);
  if (kept > 0) parts.push(`${plural(kept, "GPU")} kept for ${node.promised[0]?.job}`);
  const jobs = [...new Set(node.tasks.map((task) => task.job))];
  if (jobs.length > 0) parts.push(`runs ${jobs.slice(0, 5).join(", ")}`);
  return `Node ${node.name}: ${parts.join(", ")}`;
}
