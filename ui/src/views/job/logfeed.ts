/** The part of a merged log that is held: a window that grows where one reads, and follows the end while the job runs. */

import { address, get, type Given, Refusal } from "../../api/client";
import { follow } from "../../api/events";
import { Shared } from "../../api/shared";
import type { LogLine } from "../../api/types";

/** An offset for each task. */
export type Place = Record<string, number>;

interface Page {
  items: LogLine[];
  previous: Place | null;
  next: Place;
}

export interface Held {
  lines: readonly LogLine[];
  /** How many lines were put before the first that was held: a line's number minus this is its place in `lines`. */
  shift: number;
  /** Before the first line; null: it is the log's first. */
  previous: Place | null;
  next: Place;
  /** The last line is the log's last for now. */
  atEnd: boolean;
  known: boolean;
  refusal?: Refusal;
}

export type Wanted = { find: string } | { level: "error" };

type Query = NonNullable<Given<typeof LOGS, "get">["query"]>;

const LOGS = "/v1/jobs/{name}/logs";
const PAGE = 1000;
const MOST = 20_000;
const CALM = 50;
const AGAIN = 1000;
const NOTHING: Held = { lines: [], shift: 0, previous: null, next: {}, atEnd: true, known: false };

export class LogFeed {
  readonly held = new Shared<Held>(NOTHING);
  #job: string;
  #task: string | undefined;
  #stop: (() => void) | undefined;
  #busy = false;
  #over = false;

  constructor(job: string, task: string | undefined) {
    this.#job = job;
    this.#task = task;
  }

  #ask(query: Query) {
    return get(LOGS, { path: { name: this.#job }, query: { task: this.#task, ...query } });
  }

  async #page(query: Query): Promise<Page> {
    const { items, previous = null, next = {} } = await this.#ask(query);
    return { items, previous, next };
  }

  /** Show the end, and what comes. */
  async toEnd(): Promise<void> {
    this.#halt();
    try {
      const page = await this.#page({ tail: PAGE });
      if (this.#over) return;
      this.held.set({ ...NOTHING, lines: page.items, previous: page.previous, next: page.next, known: true });
      this.#follow();
    } catch (error) {
      if (!(error instanceof Refusal) || this.#over) return;
      if (!error.away) this.held.set({ ...NOTHING, known: true, refusal: error });
      else this.#later(() => void this.toEnd());
    }
  }

  async toStart(): Promise<void> {
    this.#halt();
    const first = Object.fromEntries(Object.keys(this.held.now.next).map((task) => [task, 0]));
    await this.#show(first);
  }

  close(): void {
    this.#over = true;
    this.#halt();
  }

  /** Take in what is before the first line. */
  async older(): Promise<void> {
    const { previous } = this.held.now;
    if (this.#busy || previous === null) return;
    await this.#alone(async () => {
      const page = await this.#page({ before: text(previous), lines: PAGE });
      const now = this.held.now;
      const all = [...page.items, ...now.lines];
      const kept = all.slice(0, MOST);
      const cut = all.length > MOST;
      if (cut) this.#halt();
      this.held.set({
        ...now,
        lines: kept,
        shift: now.shift + page.items.length,
        previous: page.previous,
        next: cut ? starts(all.slice(MOST), now.next) : now.next,
        atEnd: cut ? false : now.atEnd,
      });
    });
  }

  /** Take in what is after the last line, when that is not the end. */
  async newer(): Promise<void> {
    if (this.#busy || this.held.now.atEnd) return;
    await this.#alone(async () => {
      const { next } = this.held.now;
      const page = await this.#page({ after: text(next), lines: PAGE });
      this.#append(page.items, page.next, page.items.length < PAGE);
      if (this.held.now.atEnd) this.#follow();
    });
  }

  /** The number of the nearest line that matches, seen from a line's number; undefined: there is none. */
  async find(
    wanted: Wanted,
    from: number,
    backward: boolean,
    here: (line: LogLine) => boolean,
  ): Promise<number | undefined> {
    const { lines, shift, previous, next, atEnd } = this.held.now;
    const step = backward ? -1 : 1;
    for (let at = from + shift + step; at >= 0 && at < lines.length; at += step) {
      if (here(lines[at] as LogLine)) return at - shift;
    }
    let place = backward ? previous : atEnd ? null : next;
    while (place !== null && !this.#over) {
      const query: Query = { ...wanted, lines: 1, [backward ? "before" : "after"]: text(place) };
      const found = await this.#ask(query);
      const first = found.items[0];
      if (first?.place) return this.#show(first.place);
      if (!found.more || !found.searched) return undefined;
      place = found.searched;
    }
    return undefined;
  }

  /** Show what is around a place; the number of its line. */
  async #show(place: Place): Promise<number> {
    this.#halt();
    const [before, after] = await Promise.all([
      this.#page({ before: text(place), lines: PAGE / 4 }),
      this.#page({ after: text(place), lines: PAGE }),
    ]);
    const lines = [...before.items, ...after.items];
    const atEnd = after.items.length < PAGE;
    const now: Held = {
      lines,
      shift: before.items.length,
      previous: before.previous,
      next: after.next,
      atEnd,
      known: true,
    };
    this.held.set(now);
    if (atEnd) this.#follow();
    return 0;
  }

  async #alone(act: () => Promise<void>): Promise<void> {
    this.#busy = true;
    try {
      await act();
    } catch {
      // the line is lost; it is tried again when one scrolls on
    } finally {
      this.#busy = false;
    }
  }

  #append(items: readonly LogLine[], next: Place, atEnd: boolean): void {
    const now = this.held.now;
    const all = [...now.lines, ...items];
    const cut = Math.max(0, all.length - MOST);
    const lines = cut ? all.slice(cut) : all;
    this.held.set({
      ...now,
      lines,
      shift: now.shift - cut,
      previous: cut ? starts(lines, next) : now.previous,
      next,
      atEnd,
    });
  }

  /** The server ends the stream when the job is idle and all is sent. */
  #follow(): void {
    this.#halt();
    let waiting: LogLine[] = [];
    let next = this.held.now.next;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const flush = () => {
      timer = undefined;
      const items = waiting;
      waiting = [];
      this.#append(items, next, true);
    };
    const stop = follow({
      address: () =>
        address(LOGS, {
          path: { name: this.#job },
          query: { follow: true, task: this.#task, after: text(next) },
        }),
      on: {
        lines: (page: Page) => {
          waiting.push(...page.items);
          next = page.next;
          timer ??= setTimeout(flush, CALM);
        },
      },
    });
    this.#stop = () => {
      clearTimeout(timer);
      if (waiting.length > 0) flush();
      stop();
    };
  }

  #later(act: () => void): void {
    const timer = setTimeout(act, AGAIN);
    this.#stop = () => clearTimeout(timer);
  }

  #halt(): void {
    this.#stop?.();
    this.#stop = undefined;
  }
}

function text(place: Place): string {
  return Object.entries(place)
    .map(([task, offset]) => `${task}:${offset}`)
    .join(",");
}

/** Where each task's part of these lines begins. */
function starts(lines: readonly LogLine[], others: Place): Place {
  const found: Place = {};
  for (const line of lines) found[line.task] ??= line.offset;
  return { ...others, ...found };
}
