/** A graph laid out in layers from left to right: everything is to the right of what it was made from. */

export interface Edge {
  from: string;
  to: string;
}

export interface Spot {
  layer: number;
  /** The place in its layer, from the top; layers are centred beside each other, so this may be a half. */
  row: number;
}

export interface Laid {
  spots: Map<string, Spot>;
  /** Each edge with the spots that it passes through on its way past other layers. */
  edges: { edge: Edge; through: Spot[] }[];
  layers: number;
  rows: number;
}

const SWEEPS = 8;

export function layered(nodes: readonly string[], given: readonly Edge[]): Laid {
  const known = new Set(nodes);
  const edges = forward(
    nodes,
    given.filter(({ from, to }) => known.has(from) && known.has(to) && from !== to),
  );
  const layer = layersOf(nodes, edges);

  // An edge past a layer has a place in it, so that it is drawn around what is there.
  const chains = edges.map((edge, n) => {
    const [first, last] = [layer.get(edge.from) as number, layer.get(edge.to) as number];
    const between = Array.from({ length: last - first - 1 }, (_, k) => `\0${n}/${k}`);
    between.forEach((name, k) => layer.set(name, first + 1 + k));
    return [edge.from, ...between, edge.to];
  });
  const links = chains.flatMap((chain) => chain.slice(1).map((to, n) => ({ from: chain[n] as string, to })));

  const count = Math.max(-1, ...layer.values()) + 1;
  const columns: string[][] = Array.from({ length: count }, () => []);
  for (const [name, at] of layer) columns[at]?.push(name);
  untangle(columns, links);

  const rows = Math.max(0, ...columns.map((column) => column.length));
  const spots = new Map<string, Spot>();
  columns.forEach((column, at) =>
    column.forEach((name, n) => spots.set(name, { layer: at, row: n + (rows - column.length) / 2 })),
  );
  return {
    spots: new Map(nodes.map((name) => [name, spots.get(name) as Spot])),
    edges: chains.map((chain, n) => ({
      edge: edges[n] as Edge,
      through: chain.slice(1, -1).map((name) => spots.get(name) as Spot),
    })),
    layers: count,
    rows,
  };
}

/** Without the edges that would lead back. */
function forward(nodes: readonly string[], edges: readonly Edge[]): Edge[] {
  const out = new Map<string, Edge[]>(nodes.map((name) => [name, []]));
  for (const edge of edges) out.get(edge.from)?.push(edge);
  const state = new Map<string, "open" | "done">();
  const kept: Edge[] = [];
  const visit = (name: string) => {
    state.set(name, "open");
    for (const edge of out.get(name) ?? []) {
      if (state.get(edge.to) === "open") continue;
      kept.push(edge);
      if (!state.has(edge.to)) visit(edge.to);
    }
    state.set(name, "done");
  };
  for (const name of nodes) if (!state.has(name)) visit(name);
  return kept;
}

/** As far right as the longest way to it. What nothing was made into sources for stands next to what it goes into. */
function layersOf(nodes: readonly string[], edges: readonly Edge[]): Map<string, number> {
  const into = new Map<string, string[]>(nodes.map((name) => [name, []]));
  const out = new Map<string, string[]>(nodes.map((name) => [name, []]));
  for (const { from, to } of edges) {
    into.get(to)?.push(from);
    out.get(from)?.push(to);
  }
  const found = new Map<string, number>();
  const depth = (name: string): number => {
    const known = found.get(name);
    if (known !== undefined) return known;
    const at = Math.max(-1, ...(into.get(name) ?? []).map(depth)) + 1;
    found.set(name, at);
    return at;
  };
  nodes.forEach(depth);
  for (const name of nodes) {
    const next = (out.get(name) ?? []).map((to) => found.get(to) as number);
    if (into.get(name)?.length === 0 && next.length > 0) found.set(name, Math.min(...next) - 1);
  }
  return found;
}

/** Order each layer by where its neighbours are, forth and back, so that few edges cross. */
function untangle(columns: string[][], links: readonly Edge[]): void {
  const left = new Map<string, string[]>();
  const right = new Map<string, string[]>();
  for (const { from, to } of links) {
    left.set(to, [...(left.get(to) ?? []), from]);
    right.set(from, [...(right.get(from) ?? []), to]);
  }
  const place = new Map<string, number>();
  const number = (column: readonly string[]) =>
    column.forEach((name, n) => place.set(name, n - (column.length - 1) / 2));
  columns.forEach(number);
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const [order, beside] = sweep % 2 === 0 ? [columns, left] : [columns.toReversed(), right];
    for (const column of order) {
      const middle = new Map(
        column.map((name) => {
          const near = (beside.get(name) ?? []).map((each) => place.get(each) as number);
          const own = place.get(name) as number;
          return [name, near.length ? near.reduce((a, b) => a + b, 0) / near.length : own];
        }),
      );
      column.sort((a, b) => (middle.get(a) as number) - (middle.get(b) as number));
      number(column);
    }
  }
}
