/** What the tasks print, merged and live: searched in the server, so that a million lines are no different from ten. */

import { useEffect, useMemo, useRef, useState, useSyncExternalStore } from "react";
import { address } from "../../api/client";
import type { Job, LogLine } from "../../api/types";
import { plural } from "../../format";
import { useShortcut } from "../../keyboard";
import { useQuery } from "../../location";
import { Empty } from "../../parts/empty";
import { Icon } from "../../parts/icon";
import { tell, tellError } from "../../parts/notice";
import { Problem } from "../../parts/problem";
import "./log.css";
import { LogFeed, type Wanted } from "./logfeed";
import { LogLines, type LogLinesHandle } from "./loglines";
import { levelOf } from "./logtext";

export function Log({ job }: { job: Job }) {
  const [query, change] = useQuery();
  const tasks = job.status.tasks.map((task) => task.name);
  const task = query.get("task") ?? undefined;
  const { name, uid } = job.metadata;
  const { launch } = job.status;
  const feed = useMemo(() => new LogFeed(name, task), [name, uid, task]);
  useEffect(() => {
    void feed.toEnd();
    return () => feed.close();
  }, [feed, launch]);
  const held = useSyncExternalStore(feed.held.listen, feed.held.read);

  const lines = useRef<LogLinesHandle>(null);
  const field = useRef<HTMLInputElement>(null);
  const [at, setAt] = useState<number | undefined>(undefined);
  const [wrap, setWrap] = useState(false);
  const [times, setTimes] = useState(true);
  const [busy, setBusy] = useState(false);
  const words = query.get("find") ?? "";

  const look = async (wanted: Wanted, backward: boolean, here: (line: LogLine) => boolean) => {
    const from = at ?? (backward ? held.lines.length - held.shift : -1 - held.shift);
    setBusy(true);
    try {
      const found = await feed.find(wanted, from, backward, here);
      if (found === undefined) {
        tell(`Nothing ${at === undefined ? "found" : backward ? "further up" : "further down"}`);
        return;
      }
      setAt(found);
      lines.current?.show(found);
    } catch (error) {
      tellError(error);
    } finally {
      setBusy(false);
    }
  };
  const low = words.toLowerCase();
  const search = (backward: boolean) => {
    if (low) void look({ find: words }, backward, (line) => line.text.toLowerCase().includes(low));
  };
  const error = (backward: boolean) =>
    void look({ level: "error" }, backward, (line) => levelOf(line.text) === "error");
  const end = () => {
    setAt(undefined);
    if (held.atEnd) lines.current?.toEnd();
    else void feed.toEnd().then(() => lines.current?.toEnd());
  };
  useShortcut("/", "search the log", () => field.current?.focus());
  useShortcut("n", "next match, up", () => search(true));
  useShortcut("N", "next match, down", () => search(false));
  useShortcut("e", "error further up", () => error(true));
  useShortcut("E", "error further down", () => error(false));
  useShortcut("G", "end of the log", end);

  const file = address("/v1/jobs/{name}/logs.txt", { path: { name }, query: { task } });
  return (
    <section className="panel log" aria-label="Log" aria-busy={busy}>
      <div className="log-head" role="toolbar" aria-label="Log">
        {tasks.length > 1 && (
          <select
            aria-label="Task"
            value={task ?? ""}
            onChange={(event) => change({ task: event.target.value })}
          >
            <option value="">all {plural(tasks.length, "task")}</option>
            {tasks.map((each) => (
              <option key={each}>{each}</option>
            ))}
          </select>
        )}
        <form
          className="log-search"
          onSubmit={(event) => {
            event.preventDefault();
            search(true);
          }}
        >
          <input
            ref={field}
            type="search"
            placeholder="Search…  /"
            aria-label="Search the log"
            value={words}
            onChange={(event) => {
              setAt(undefined);
              change({ find: event.target.value });
            }}
          />
          <button title="Up (n)" aria-label="Match further up" disabled={!words}>
            <Icon name="up" />
          </button>
          <button
            type="button"
            title="Down (N)"
            aria-label="Match further down"
            disabled={!words}
            onClick={() => search(false)}
          >
            <Icon name="up" className="upside-down" />
          </button>
        </form>
        <button onClick={() => error(true)} title="Error further up (e)">
          <Icon name="warning" />
          Jump to error
        </button>
        <span className="push" />
        <button aria-pressed={times} onClick={() => setTimes(!times)}>
          Times
        </button>
        <button aria-pressed={wrap} onClick={() => setWrap(!wrap)}>
          Wrap
        </button>
        <a className="button" href={file} download title="Download the whole log">
          <Icon name="down" />
          <span className="log-word">Download</span>
        </a>
      </div>
      {held.refusal ? (
        <Problem refusal={held.refusal} again={() => void feed.toEnd()} />
      ) : held.known && held.lines.length === 0 ? (
        <Empty
          title="Nothing printed yet"
          says="Lines appear here as tasks print them."
          command={`weft logs -f ${name}`}
        />
      ) : (
        <LogLines
          ref={lines}
          held={held}
          at={at}
          find={low}
          wrap={wrap}
          times={times}
          tasks={task === undefined ? tasks : []}
          older={() => void feed.older()}
          newer={() => void feed.newer()}
          end={end}
        />
      )}
    </section>
  );
}
