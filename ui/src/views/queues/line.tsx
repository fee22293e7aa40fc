/** The line: what runs and until when, then what waits, in the order in which it should start. */

import { decimal, duration, plural, timeOfDay, when } from "../../format";
import { useNow } from "../../now";
import { Empty } from "../../parts/empty";
import { type Bar, Gantt, type GanttRow } from "../../parts/gantt";
import { Link } from "../../parts/link";
import { Panel } from "../../parts/panel";
import { paths } from "../../routes";
import type { Line, Running, Waiting } from "./answers";

const SHOWN = 100;
/** The past that is shown, as a part of the future. */
const PAST = 0.2;
const LEAST = 300;

const COLUMNS = [
  { title: "#", width: "40px", narrow: true },
  { title: "Job", width: "minmax(120px, 220px)", narrow: true },
  { title: "Queue", width: "112px" },
  { title: "Needs", width: "120px" },
  { title: "Start", width: "112px", narrow: true },
] as const;

export function InLine({ line }: { line: Line }) {
  const now = useNow();
  const running = line.running.slice(0, SHOWN);
  const waiting = line.items.slice(0, SHOWN);
  const left = line.running.length + line.items.length - running.length - waiting.length;
  const ends = [
    ...running.map((job) => job.likelyEnd),
    ...waiting.map(
      (job) =>
        (job.estimatedStart.latest ?? job.estimatedStart.likely ?? now) +
        (job.estimatedStart.likely === null ? 0 : job.likelyDuration),
    ),
  ];
  const to = Math.max(now + LEAST, ...ends) + 0.02 * (Math.max(now + LEAST, ...ends) - now);
  const from = now - PAST * (to - now);
  return (
    <Panel
      title="The line"
      flush
      aside={`${plural(line.running.length, "job runs", "jobs run")}, ${plural(line.items.length, "waits", "wait")}`}
    >
      {running.length + waiting.length === 0 ? (
        <Empty title="Nothing runs and nothing waits" command="weft run train.py" />
      ) : (
        <Gantt
          label="What runs, and what waits in the order in which it should start"
          columns={COLUMNS}
          rows={[...running.map((job) => runs(job, now)), ...waiting.map((job) => waits(job, now))]}
          from={from}
          to={to}
          now={now}
        />
      )}
      {left > 0 && (
        <p className="line-more quiet">
          and {plural(left, "more job", "more jobs")}:{" "}
          <Link to={`${paths.jobs}?state=QUEUED`}>all that wait</Link>
        </p>
      )}
    </Panel>
  );
}

const job = (name: string) => <Link to={paths.job(name)}>{name}</Link>;
const size = (gpu: number, cpu: number) =>
  [gpu > 0 && `${decimal(gpu)} GPU`, `${decimal(cpu)} CPU`].filter(Boolean).join(", ");

function runs({ name, uid, queue, gpu, cpu, started, likelyEnd }: Running, now: number): GanttRow {
  const says = `${name} runs since ${when(started)}, should end ${about(likelyEnd, now)}`;
  const bars: Bar[] = [
    { from: started, to: now, tone: "busy", says },
    { from: now, to: Math.max(likelyEnd, now), tone: "busy", expected: true, says },
  ];
  return {
    key: uid,
    cells: ["", job(name), queue, size(gpu, cpu), <span className="quiet">runs</span>],
    bars,
  };
}

function waits(entry: Waiting, now: number): GanttRow {
  const {
    name,
    uid,
    queue,
    gpu,
    cpu,
    position,
    reason,
    estimatedStart,
    likelyDuration,
    promisedStart,
    possible,
  } = entry;
  const { earliest, likely, latest } = estimatedStart;
  const cells = [
    position === null ? "–" : position,
    job(name),
    queue,
    <span title={entry.needs}>{size(gpu, cpu)}</span>,
  ];
  if (likely === null) {
    const start = possible ? "later" : "never";
    return {
      key: uid,
      cells: [...cells, <span className={possible ? "quiet" : "never"}>{start}</span>],
      bars: [],
      note: <span title={reason}>{reason}</span>,
    };
  }
  const says = `${name} should start ${about(likely, now)}${promisedStart ? `, at ${timeOfDay(promisedStart)} at the latest` : ""}; ${reason}`;
  return {
    key: uid,
    cells: [...cells, <span title={reason}>{about(likely, now)}</span>],
    bars: [
      { from: likely, to: likely + likelyDuration, tone: "wait", expected: true, says },
      ...(earliest !== null && latest !== null && latest > earliest
        ? [
            {
              from: earliest,
              to: latest,
              tone: "wait" as const,
              range: true,
              says: `between ${timeOfDay(earliest)} and ${timeOfDay(latest)}`,
            },
          ]
        : []),
    ],
  };
}

function about(time: number, now: number): string {
  const seconds = time - now;
  return seconds <= 1 ? "now" : `in ${duration(seconds < 60 ? seconds : Math.round(seconds / 60) * 60)}`;
}
