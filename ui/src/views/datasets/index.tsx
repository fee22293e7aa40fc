/** Datasets: what there is, how large, where it is cached and who reads it. */

import { useMemo } from "react";
import { useAsk } from "../../api/ask";
import { useCached, useChanges } from "../../api/live";
import { count } from "../../format";
import { useCalm } from "../../calm";
import { Bytes } from "../../parts/bytes";
import { Command } from "../../parts/command";
import { Empty } from "../../parts/empty";
import { Link } from "../../parts/link";
import { Panel } from "../../parts/panel";
import { Problem } from "../../parts/problem";
import { type Column, Table } from "../../parts/table";
import { paths } from "../../routes";
import { useTitle } from "../../title";
import { type Dataset, hitRatio, percent, short, sourceOf } from "./answers";
import { One } from "./one";
import "./datasets.css";
import { DataState } from "./state";

const OFTEN = 5_000;
const CALM = 500;

export default function Datasets({ name }: { name: string | undefined }) {
  return name === undefined ? <All /> : <One key={name} name={name} />;
}

function All() {
  useTitle("Datasets");
  const changed = useCalm(useChanges(), CALM);
  const cached = useCalm(useCached(), CALM);
  const when = useMemo(() => ({}), [changed, cached]);
  const { data, refusal, again } = useAsk("/v1/datasets", { every: OFTEN, when });
  return (
    <div className="view">
      <header className="view-head">
        <h1>Datasets</h1>
        <span className="push">
          <Command text="weft data add NAME FOLDER" />
        </span>
      </header>
      {refusal && !data && <Problem refusal={refusal} again={again} />}
      {data && data.items.length === 0 && (
        <Panel title="No datasets yet">
          <Empty
            title="Say where your data is, once"
            says="It becomes a version that never changes, cached where it is used, with its lineage."
            command="weft data add faces ~/faces"
          />
        </Panel>
      )}
      {data && data.items.length > 0 && (
        <Panel title={`${count(data.items.length)} declared`} flush>
          <Table
            label="Datasets"
            rows={data.items}
            rowKey={(dataset) => dataset.metadata.name}
            to={(dataset) => paths.dataset(dataset.metadata.name)}
            columns={COLUMNS}
            most={2000}
          />
        </Panel>
      )}
    </div>
  );
}

const nothing = <span className="quiet">–</span>;
const newest = (dataset: Dataset) => dataset.status.versions[0];

const COLUMNS: readonly Column<Dataset>[] = [
  {
    id: "name",
    title: "Dataset",
    width: "minmax(110px, 1fr)",
    cell: ({ metadata }) => <Link to={paths.dataset(metadata.name)}>{metadata.name}</Link>,
  },
  { id: "state", title: "State", width: "104px", cell: ({ status }) => <DataState status={status} /> },
  {
    id: "version",
    title: "Newest",
    width: "128px",
    from: 900,
    cell: ({ status }) => (status.version ? <code>{short(status.version)}</code> : nothing),
  },
  {
    id: "versions",
    title: "Versions",
    width: "80px",
    right: true,
    from: 760,
    cell: ({ status }) => count(status.versions.length),
  },
  {
    id: "samples",
    title: "Samples",
    width: "96px",
    right: true,
    from: 620,
    cell: (dataset) => (newest(dataset) ? count(newest(dataset)?.samples ?? 0) : nothing),
  },
  {
    id: "size",
    title: "Size",
    width: "96px",
    right: true,
    cell: (dataset) => <Bytes n={newest(dataset)?.bytes} />,
  },
  {
    id: "cached",
    title: "Cached on",
    width: "minmax(100px, 160px)",
    from: 900,
    cell: ({ status }) => {
      const nodes = status.cached
        .filter((each) => Object.keys(each.versions).length > 0)
        .map((each) => each.node);
      return nodes.length === 0 ? (
        nothing
      ) : (
        <span title={nodes.join(", ")}>{nodes.length > 2 ? `${nodes.length} nodes` : nodes.join(", ")}</span>
      );
    },
  },
  {
    id: "hits",
    title: "Hits",
    width: "72px",
    right: true,
    from: 760,
    cell: ({ status }) => {
      const ratio = hitRatio(status.cached);
      return ratio === undefined ? nothing : percent(ratio);
    },
  },
  {
    id: "readers",
    title: "Readers",
    width: "80px",
    right: true,
    from: 520,
    cell: ({ status }) => count(status.readers.length),
  },
  {
    id: "source",
    title: "Source",
    width: "minmax(140px, 1.5fr)",
    from: 1000,
    cell: ({ spec }) => <span title={sourceOf(spec)}>{sourceOf(spec)}</span>,
  },
];
