/** Where a dataset's bytes are, and how often they were found there. */

import { count } from "../../format";
import { Bytes } from "../../parts/bytes";
import { Empty } from "../../parts/empty";
import { Table } from "../../parts/table";
import { type Dataset, percent, type Version } from "./answers";

export function Caches({ dataset, chosen }: { dataset: Dataset; chosen: Version | undefined }) {
  return (
    <Table
      label="Caches"
      rows={dataset.status.cached}
      rowKey={(cache) => cache.node}
      most={320}
      empty={<Empty title="On no node yet" says="It is cached where the first job reads it." />}
      columns={[
        { id: "node", title: "Node", width: "minmax(100px, 1fr)", cell: (cache) => cache.node },
        {
          id: "part",
          title: "Of this version",
          width: "minmax(100px, 1fr)",
          cell: (cache) => {
            const here = chosen ? (cache.versions[chosen.version] ?? 0) : 0;
            const part = chosen && chosen.bytes > 0 ? here / chosen.bytes : 0;
            return (
              <span className="cache-part">
                <meter
                  min={0}
                  max={1}
                  value={part}
                  aria-label={`${percent(Math.min(part, 1))} of the version on ${cache.node}`}
                />
                <Bytes n={here} />
                {chosen && chosen.version in cache.warming && <span className="quiet">warming</span>}
              </span>
            );
          },
        },
        {
          id: "hits",
          title: "Hits",
          width: "72px",
          right: true,
          cell: ({ hitRatio, hits, misses }) => (
            <span title={`${count(hits)} found, ${count(misses)} not`}>
              {hitRatio === null ? "–" : percent(hitRatio)}
            </span>
          ),
        },
        {
          id: "remote",
          title: "Fetched",
          width: "88px",
          right: true,
          from: 420,
          cell: (cache) => <Bytes n={cache.remoteBytes} />,
        },
      ]}
    />
  );
}
