/** A graph from left to right, drawn as SVG: boxes with two lines of text, each a link where it leads somewhere. */

import { type ReactNode, useEffect, useMemo, useRef } from "react";
import "./graph.css";
import { type Edge, layered, type Spot } from "./layers";
import { Link } from "./link";

export interface GraphNode {
  id: string;
  title: string;
  detail?: ReactNode;
  to?: string;
  kind: string;
  /** The one that the graph is about. */
  here?: boolean;
  /** It is no longer there. */
  gone?: boolean;
  says?: string;
}

const WIDTH = 176;
const HEIGHT = 44;
const ACROSS = 56;
const DOWN = 16;
const EDGE = 2;

export function Graph({
  label,
  nodes,
  edges,
}: {
  label: string;
  nodes: readonly GraphNode[];
  edges: readonly Edge[];
}) {
  const laid = useMemo(
    () =>
      layered(
        nodes.map((node) => node.id),
        edges,
      ),
    [nodes, edges],
  );
  const width = laid.layers * (WIDTH + ACROSS) - ACROSS + 2 * EDGE;
  const height = laid.rows * (HEIGHT + DOWN) - DOWN + 2 * EDGE;
  const left = (spot: Spot) => EDGE + spot.layer * (WIDTH + ACROSS);
  const middle = (spot: Spot) => EDGE + spot.row * (HEIGHT + DOWN) + HEIGHT / 2;
  const scroller = useRef<HTMLDivElement>(null);
  const here = nodes.find((node) => node.here)?.id;
  useEffect(() => {
    const spot = here === undefined ? undefined : laid.spots.get(here);
    const box = scroller.current;
    if (spot && box) box.scrollLeft = left(spot) + WIDTH / 2 - box.clientWidth / 2;
  }, [laid, here]);
  return (
    <div className="graph" ref={scroller} tabIndex={0} role="group" aria-label={label}>
      <div className="graph-sheet" style={{ width, height }}>
        <svg width={width} height={height} aria-hidden="true">
          {laid.edges.map(({ edge, through }) => {
            const from = laid.spots.get(edge.from) as Spot;
            const to = laid.spots.get(edge.to) as Spot;
            return <path key={`${edge.from}→${edge.to}`} d={curve([from, ...through, to], left, middle)} />;
          })}
        </svg>
        <ul>
          {nodes.map((node) => {
            const spot = laid.spots.get(node.id) as Spot;
            const style = { left: left(spot), top: middle(spot) - HEIGHT / 2, width: WIDTH, height: HEIGHT };
            const classes = `graph-node ${node.kind} ${node.here ? "here" : ""} ${node.gone ? "gone" : ""}`;
            const text = (
              <>
                <span className="graph-title cut">{node.title}</span>
                <span className="graph-detail cut">{node.detail}</span>
              </>
            );
            return (
              <li key={node.id} className={classes} style={style} title={node.says} data-node={node.id}>
                {node.to ? (
                  <Link to={node.to} aria-current={node.here ? "true" : undefined}>
                    {text}
                  </Link>
                ) : (
                  <span className="graph-text">{text}</span>
                )}
              </li>
            );
          })}
        </ul>
      </div>
    </div>
  );
}

/** From the right side of the first spot to the left side of the last, level with those in between. */
function curve(spots: readonly Spot[], left: (spot: Spot) => number, middle: (spot: Spot) => number): string {
  const first = spots[0] as Spot;
  let [x, y] = [left(first) + WIDTH, middle(first)];
  let path = `M${x} ${y}`;
  spots.slice(1).forEach((spot, n) => {
    const [nextX, nextY] = [left(spot), middle(spot)];
    const half = (nextX - x) / 2;
    path += `C${x + half} ${y} ${nextX - half} ${nextY} ${nextX} ${nextY}`;
    [x, y] = [nextX, nextY];
    if (n < spots.length - 2) {
      x += WIDTH;
      path += `H${x}`;
    }
  });
  return path;
}
