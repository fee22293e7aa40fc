/** Which runs to compare, picked from all there are. */

import { useMemo, useRef, useState } from "react";
import { useAllJobs } from "../../api/live";
import { plural } from "../../format";
import { useShortcut } from "../../keyboard";
import { Empty } from "../../parts/empty";
import { Panel } from "../../parts/panel";
import { StateBadge } from "../../parts/state";
import { Table } from "../../parts/table";
import { Age, Span } from "../../parts/time";

export function Picker({
  picked,
  pick,
}: {
  picked: readonly string[];
  pick: (names: readonly string[]) => void;
}) {
  const jobs = useAllJobs();
  const [words, setWords] = useState("");
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set(picked));
  const search = useRef<HTMLInputElement>(null);
  useShortcut("/", "search", () => search.current?.focus());
  const rows = useMemo(() => {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    return jobs.list.filter((job) =>
      wanted.every((word) => `${job.name} ${job.owner} ${job.type}`.toLowerCase().includes(word)),
    );
  }, [jobs.list, words]);
  if (jobs.known && jobs.list.length === 0) {
    return <Empty title="No runs to compare yet" command="weft run train.py -- --lr 0.1" />;
  }
  return (
    <Panel
      title="Pick runs"
      flush
      aside={
        <>
          <input
            ref={search}
            type="search"
            aria-label="Search runs"
            placeholder="Search…  /"
            value={words}
            onChange={(event) => setWords(event.target.value)}
          />
          <button className="primary" disabled={chosen.size === 0} onClick={() => pick([...chosen])}>
            Compare {chosen.size > 0 ? plural(chosen.size, "run") : ""}
          </button>
        </>
      }
    >
      <Table
        label="Runs"
        rows={rows}
        rowKey={(job) => job.name}
        picked={chosen}
        onPick={setChosen}
        most={640}
        empty={<Empty title="No run like this" />}
        columns={[
          { id: "name", title: "Run", width: "minmax(140px, 2fr)", cell: (job) => job.name },
          { id: "state", title: "State", width: "128px", cell: (job) => <StateBadge state={job.state} /> },
          { id: "type", title: "Type", width: "minmax(80px, 1fr)", from: 620, cell: (job) => job.type },
          { id: "owner", title: "Owner", width: "minmax(80px, 1fr)", from: 760, cell: (job) => job.owner },
          {
            id: "ran",
            title: "Ran",
            width: "88px",
            right: true,
            from: 520,
            cell: (job) => <Span from={job.started} to={job.finished} />,
          },
          { id: "age", title: "Age", width: "64px", right: true, cell: (job) => <Age since={job.created} /> },
        ]}
      />
    </Panel>
  );
}
