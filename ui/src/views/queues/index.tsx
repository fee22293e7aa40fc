/** Queues: who may have how much, who has how much, and in which order the rest will start. */

import { useAsk } from "../../api/ask";
import { useChanges } from "../../api/live";
import { useCalm } from "../../calm";
import { useQuery } from "../../location";
import { Command } from "../../parts/command";
import { Panel } from "../../parts/panel";
import { Problem } from "../../parts/problem";
import { useTitle } from "../../title";
import { NAMES, type Resource, RESOURCES } from "./answers";
import { InLine } from "./line";
import "./queues.css";
import { lends, Shares } from "./shares";
import { Users } from "./users";

const OFTEN = 10_000;
const CALM = 500;

export default function Queues() {
  useTitle("Queues");
  const changed = useCalm(useChanges(), CALM);
  const queues = useAsk("/v1/queues", { every: OFTEN, when: changed });
  const line = useAsk("/v1/queue", { every: OFTEN, when: changed });
  const [query, setQuery] = useQuery();
  const refusal = queues.refusal ?? line.refusal;
  const there = RESOURCES.filter((each) => (queues.data?.capacity[each] ?? 0) > 0);
  const by = there.find((each) => each === query.get("by")) ?? there[0] ?? "cpu";
  const notes = queues.data?.items.flatMap((queue) => queue.status.notes) ?? [];
  return (
    <div className="view">
      <header className="view-head">
        <h1>Queues</h1>
        <Choose by={by} there={there} choose={(each) => setQuery({ by: each })} />
      </header>
      {refusal && !queues.data && <Problem refusal={refusal} again={queues.again} />}
      {[...new Set(notes)].map((note) => (
        <p key={note} className="verdict-note">
          {note}
        </p>
      ))}
      {queues.data && (
        <Panel title="Shares" flush aside={<Legend lending={lends(queues.data, by)} />}>
          <Shares queues={queues.data} by={by} />
        </Panel>
      )}
      {line.data && <InLine line={line.data} />}
      {queues.data && <Users queues={queues.data} />}
      {queues.data && queues.data.items.length === 1 && (
        <Panel title="Declare a queue">
          <p className="quiet">
            There is only the queue of jobs that name none. A queue has a guarantee, a limit and a weight:
          </p>
          <pre className="queues-example">{EXAMPLE}</pre>
          <Command text="weft apply -f queue.yaml" />
        </Panel>
      )}
    </div>
  );
}

const EXAMPLE = `apiVersion: weft.dev/v1
kind: Queue
metadata: {name: vision}
spec:
  guarantee: {gpu: 4}    # its own whenever it wants it; others may borrow it meanwhile
  limit: {gpu: 8}        # never more
  weight: 2              # its share of what nobody is guaranteed`;

function Choose({
  by,
  there,
  choose,
}: {
  by: Resource;
  there: readonly Resource[];
  choose: (by: Resource) => void;
}) {
  return (
    <div className="queues-by push" role="group" aria-label="Shown by">
      {there.map((each) => (
        <button key={each} className="tiny" aria-pressed={each === by} onClick={() => choose(each)}>
          {NAMES[each]}
        </button>
      ))}
    </div>
  );
}

function Legend({ lending }: { lending: boolean }) {
  return (
    <>
      <span className="key own">{lending ? "within its guarantee" : "used"}</span>
      {lending && <span className="key lent">borrowed</span>}
      {lending && <span className="key owed">guaranteed, free</span>}
      <span className="key limit">limit</span>
    </>
  );
}
