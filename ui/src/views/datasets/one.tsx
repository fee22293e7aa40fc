/** One dataset: its versions, where they are cached, who reads them, and what they were made from. */

import { useMemo, useState } from "react";
import { useAsk } from "../../api/ask";
import { post, remove } from "../../api/client";
import { useCached, useChanges } from "../../api/live";
import { useCalm } from "../../calm";
import { count, plural } from "../../format";
import { go, useQuery } from "../../location";
import { Bytes } from "../../parts/bytes";
import { Command } from "../../parts/command";
import { confirm } from "../../parts/confirm";
import { Empty } from "../../parts/empty";
import { Icon } from "../../parts/icon";
import { Link } from "../../parts/link";
import { tell, tellError, warn } from "../../parts/notice";
import { Facts, Panel } from "../../parts/panel";
import { Problem } from "../../parts/problem";
import { Table } from "../../parts/table";
import { Age, Time } from "../../parts/time";
import { paths } from "../../routes";
import { useTitle } from "../../title";
import { damage, type Dataset, hitRatio, percent, short, soundness, sourceOf, type Version } from "./answers";
import { Caches } from "./caches";
import { Made } from "./lineage";
import { DataState } from "./state";

const KEEPS = { nr: "what is there stays (nr)", lru: "what was not read for longest goes first (lru)" };
const OFTEN = 5_000;
const WHILE_READING = 500;
const CALM = 500;

export function One({ name }: { name: string }) {
  useTitle(name);
  const [reading, setReading] = useState(false);
  const changed = useCalm(useChanges(), CALM);
  const cached = useCached(name);
  const { data, refusal, again } = useAsk("/v1/datasets/{name}", {
    path: { name },
    every: reading ? WHILE_READING : OFTEN,
    when: useMemo(() => ({}), [changed, cached]),
  });
  const [query] = useQuery();
  if ((data?.status.state === "READING") !== reading) setReading(data?.status.state === "READING");
  if (!data) return <div className="view">{refusal && <Problem refusal={refusal} again={again} />}</div>;
  const asked = query.get("version");
  const chosen =
    data.status.versions.find((each) => asked !== null && each.version.startsWith(asked)) ??
    data.status.versions[0];
  return (
    <div className="view">
      <header className="view-head">
        <h1>{name}</h1>
        <DataState status={data.status} />
        {data.spec.description && <span className="quiet">{data.spec.description}</span>}
        <Actions name={name} dataset={data} chosen={chosen} again={again} />
      </header>
      {data.status.reason && (
        <p className={`dataset-reason tone-${data.status.state === "FAILED" ? "bad" : "busy"}`}>
          {data.status.reason}
        </p>
      )}
      <Panel title="About">
        <Facts
          items={[
            ["Source", sourceOf(data.spec)],
            [
              "Newest version",
              chosen ? <Size key="size" version={data.status.versions[0] as Version} /> : "none yet",
            ],
            ["Hits", ratio(data)],
            [
              "Cache",
              `${KEEPS[data.spec.cache?.policy ?? "nr"]}${data.spec.cache?.quota ? `, at most ${data.spec.cache.quota} a node` : ""}`,
            ],
            ["Kept", plural(data.spec.keep, "version")],
            ["Looked at again", data.spec.refresh ? `every ${data.spec.refresh}` : "when asked to"],
            (data.spec.shareWith ?? []).length > 0 && ["Shared with", data.spec.shareWith?.join(", ")],
            ["Declared", <Declared key="declared" dataset={data} />],
          ]}
        />
        <p className="dataset-use">
          <Command text={`weft run train.py --data ${name}`} />
        </p>
      </Panel>
      <Panel title="Versions" flush>
        <Versions dataset={data} chosen={chosen} />
      </Panel>
      {chosen && <Made name={name} version={chosen.version} />}
      <div className="columns">
        <Panel title="Where it is cached" flush>
          <Caches dataset={data} chosen={chosen} />
        </Panel>
        <Panel title="Who reads it" flush>
          <Readers dataset={data} />
        </Panel>
      </div>
    </div>
  );
}

interface ActionsProps {
  name: string;
  dataset: Dataset;
  chosen: Version | undefined;
  again: () => void;
}

function Actions({ name, dataset, chosen, again }: ActionsProps) {
  const path = { name };
  const [proving, setProving] = useState(false);
  const refresh = async () => {
    try {
      await post("/v1/datasets/{name}/refresh", { path });
      tell(`The source of ${name} is being read`);
      again();
    } catch (error) {
      tellError(error);
    }
  };
  const verify = async ({ version }: Version) => {
    setProving(true);
    try {
      const said = await post("/v1/datasets/{name}/verify", { path, query: { version: short(version) } });
      if (said.problems.length > 0) warn(damage(said), `weft data refresh ${name}`);
      else tell(soundness(said));
    } catch (error) {
      tellError(error);
    } finally {
      setProving(false);
    }
  };
  const drop = async () => {
    const sure = await confirm({
      title: `Delete dataset ${name}?`,
      says: `Its ${plural(dataset.status.versions.length, "version")} and their bytes here go too; the source stays as it is.`,
      act: "Delete",
      danger: true,
    });
    if (!sure) return;
    try {
      await remove("/v1/datasets/{name}", { path });
      tell(`Dataset ${name} is deleted`);
      go(paths.datasets);
    } catch (error) {
      tellError(error);
    }
  };
  return (
    <span className="push dataset-actions">
      <button onClick={refresh} disabled={dataset.status.state === "READING"}>
        <Icon name="again" />
        Refresh
      </button>
      <button onClick={() => chosen && verify(chosen)} disabled={proving || !chosen}>
        <Icon name="check" />
        {proving ? "Verifying…" : "Verify"}
      </button>
      <button className="danger" onClick={drop}>
        <Icon name="trash" />
        Delete
      </button>
    </span>
  );
}

function Size({ version }: { version: Version }) {
  return (
    <>
      <code>{short(version.version)}</code>, {plural(version.samples, "sample")}, <Bytes n={version.bytes} />
    </>
  );
}

function Declared({ dataset: { metadata } }: { dataset: Dataset }) {
  return (
    <>
      <Time at={metadata.created} /> by {metadata.owner ?? "–"}
    </>
  );
}

function ratio(dataset: Dataset): string {
  const found = hitRatio(dataset.status.cached);
  return found === undefined
    ? "nothing was asked of a cache yet"
    : `${percent(found)} of reads came from a cache`;
}

function Versions({ dataset, chosen }: { dataset: Dataset; chosen: Version | undefined }) {
  const name = dataset.metadata.name;
  const to = (version: Version) => `${paths.dataset(name)}?version=${short(version.version)}`;
  return (
    <Table
      label="Versions"
      rows={dataset.status.versions}
      rowKey={(version) => version.version}
      to={to}
      most={320}
      empty={<Empty title="No version yet" command={`weft data refresh ${name}`} />}
      columns={[
        {
          id: "version",
          title: "Version",
          width: "minmax(128px, 1fr)",
          cell: (version) => (
            <Link to={to(version)} aria-current={version === chosen ? "true" : undefined} className="version">
              <code>{short(version.version)}</code>
              {version === chosen && <Icon name="check" />}
            </Link>
          ),
        },
        {
          id: "age",
          title: "Age",
          width: "72px",
          right: true,
          cell: (version) => <Age since={version.created} />,
        },
        {
          id: "samples",
          title: "Samples",
          width: "96px",
          right: true,
          from: 480,
          cell: (version) => count(version.samples),
        },
        {
          id: "bytes",
          title: "Size",
          width: "96px",
          right: true,
          cell: (version) => <Bytes n={version.bytes} />,
        },
        {
          id: "parts",
          title: "Parts",
          width: "72px",
          right: true,
          from: 640,
          cell: (version) => count(version.parts),
        },
        {
          id: "made",
          title: "Made by",
          width: "minmax(120px, 1fr)",
          from: 560,
          cell: ({ lineage }) =>
            lineage.job ? (
              <Link to={paths.job(lineage.job)}>{lineage.job}</Link>
            ) : (
              <span className="quiet">the source</span>
            ),
        },
        {
          id: "readers",
          title: "Readers",
          width: "80px",
          right: true,
          from: 640,
          cell: (version) => count(version.readers.length),
        },
      ]}
    />
  );
}

function Readers({ dataset }: { dataset: Dataset }) {
  const rows = dataset.status.versions.flatMap(({ version, readers }) =>
    readers.map((job) => ({ job, version })),
  );
  const listed = new Set(rows.map((row) => row.job));
  const waiting = dataset.status.readers
    .filter((job) => !listed.has(job))
    .map((job) => ({ job, version: "" }));
  return (
    <Table
      label="Readers"
      rows={[...rows, ...waiting]}
      rowKey={(row) => `${row.job}@${row.version}`}
      to={(row) => paths.job(row.job)}
      most={320}
      empty={
        <Empty title="Nobody reads it now" command={`weft run train.py --data ${dataset.metadata.name}`} />
      }
      columns={[
        {
          id: "job",
          title: "Job",
          width: "minmax(120px, 1fr)",
          cell: (row) => <Link to={paths.job(row.job)}>{row.job}</Link>,
        },
        {
          id: "version",
          title: "Version",
          width: "140px",
          cell: (row) =>
            row.version ? <code>{short(row.version)}</code> : <span className="quiet">waits for one</span>,
        },
      ]}
    />
  );
}
