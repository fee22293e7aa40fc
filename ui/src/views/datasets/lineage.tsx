/** What a version was made from, and what was made from it. */

import { useMemo } from "react";
import { useAsk } from "../../api/ask";
import { Graph, type GraphNode } from "../../parts/graph";
import { Panel } from "../../parts/panel";
import { Problem } from "../../parts/problem";
import { paths } from "../../routes";
import { type Lineage, short } from "./answers";

export function Made({ name, version }: { name: string; version: string }) {
  const { data, refusal } = useAsk("/v1/datasets/{name}/lineage", {
    path: { name },
    query: { version: short(version) },
    when: version,
  });
  const nodes = useMemo(() => (data ? drawn(data) : []), [data]);
  return (
    <Panel
      title="Lineage"
      aside={data && data.edges.length === 0 ? "made from its source; nothing was made from it" : undefined}
    >
      {refusal && <Problem refusal={refusal} />}
      {data && <Graph label={`Lineage of ${data.of}`} nodes={nodes} edges={data.edges} />}
    </Panel>
  );
}

function drawn({ of, nodes }: Lineage): GraphNode[] {
  return Object.entries(nodes).map(([id, node]) =>
    node.kind === "job"
      ? { id, kind: "job", title: node.job, detail: "job", to: paths.job(node.job), says: code(node.code) }
      : {
          id,
          kind: "version",
          title: node.dataset,
          detail: `${short(node.version)}${node.there ? "" : ", gone"}`,
          here: id === of,
          gone: !node.there,
          ...(node.there ? { to: `${paths.dataset(node.dataset)}?version=${short(node.version)}` } : {}),
        },
  );
}

function code(found: object | null): string {
  return found === null
    ? "without code"
    : `code ${Object.entries(found)
        .map(([key, value]) => `${key} ${value}`)
        .join(", ")}`;
}
