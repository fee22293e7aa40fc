/** What changes while one looks: jobs, nodes and the server's status, held once for all views and kept current by one stream. */

import { useEffect, useMemo, useRef, useSyncExternalStore } from "react";
import { address, get, type Given } from "./client";
import { follow } from "./events";
import { Shared } from "./shared";
import type {
  ChangedCaches,
  ChangedJobs,
  Declared,
  JobPage,
  JobSummary,
  Node,
  Sample,
  Schemas,
  ServerStatus,
} from "./types";

export type Line = "connecting" | "live" | "away";

const UNFINISHED = "PENDING,QUEUED,DEPLOYING,DOWNLOADING,PROCESSING,STORING,HALTED,PREEMPTED,RESTARTING";
const NEWEST = 200;
const PAGE = 2500;
const AGAIN = 1000;
/** More than come between two askings for all that there were. */
const SAMPLES = 600;

export interface Jobs {
  /** Newest first. */
  list: readonly JobSummary[];
  byName: ReadonlyMap<string, JobSummary>;
  /** How many there are in all; `list` may still be filling. */
  total: number;
  /** The first answer has come. */
  known: boolean;
  complete: boolean;
}

export const line = new Shared<Line>("connecting");
export const nodes = new Shared<readonly Node[] | undefined>(undefined);
export const status = new Shared<ServerStatus | undefined>(undefined);
export const jobs = new Shared<Jobs>({
  list: [],
  byName: new Map(),
  total: 0,
  known: false,
  complete: false,
});

/** The newest measures of the whole cluster, oldest first. */
export const samples = new Shared<readonly Sample[]>([]);

/** When it was last looked what tasks use. */
const measured = new Shared<number | undefined>(undefined);

/** The newest word on what nodes hold of datasets. */
const caches = new Shared<ChangedCaches>({ datasets: [] });

/** The newest word on something else that was declared, changed or deleted. */
const declared = new Shared<Declared | undefined>(undefined);

export const useLine = () => useSyncExternalStore(line.listen, line.read);
export const useNodes = () => useSyncExternalStore(nodes.listen, nodes.read);
export const useStatus = () => useSyncExternalStore(status.listen, status.read);
/** All that have not finished, and the newest. */
export const useJobs = () => useSyncExternalStore(jobs.listen, jobs.read);

/** Another thing whenever something happened to a job or to what is declared: for what is asked again then. */
export function useChanges(): object {
  const { list } = useJobs();
  const told = useDeclared();
  return useMemo(() => ({}), [list, told]);
}

/** Every job, however old: they come page by page. */
export function useAllJobs(): Jobs {
  useEffect(() => {
    wanted = true;
    void readAll();
  }, []);
  return useJobs();
}

export const useMeasured = () => useSyncExternalStore(measured.listen, measured.read);

/** Another thing whenever nodes hold something else of a dataset, or of any, or were asked for it. */
export function useCached(name?: string): object {
  const told = useSyncExternalStore(caches.listen, caches.read);
  const last = useRef(told);
  if (name === undefined || told.datasets.includes(name)) last.current = told;
  return last.current;
}

export const useDeclared = () => useSyncExternalStore(declared.listen, declared.read);

const held = new Map<string, JobSummary>();
/** What the stream told while a list was being read: newer than the list. */
const told = new Set<string>();
let wanted = false;
let reading = false;
/** Which reading of the lists is the newest: what an earlier one answers late is of no use. */
let round = 0;

function publish(total = jobs.now.total, complete = jobs.now.complete): void {
  const before = jobs.now.list;
  const grown = before.length !== held.size || before.some((job) => !held.has(job.uid));
  const list = grown
    ? [...held.values()].sort((a, b) => b.created - a.created || (a.uid < b.uid ? 1 : -1))
    : before.map((job) => held.get(job.uid) as JobSummary);
  const byName = new Map(list.map((job) => [job.name, job]));
  jobs.set({ list, byName, total: Math.max(total, list.length), known: true, complete });
}

function hold(items: readonly JobSummary[]): void {
  for (const job of items) if (!told.has(job.uid)) held.set(job.uid, job);
}

async function summaries(query: NonNullable<Given<"/v1/jobs", "get">["query"]>): Promise<JobPage> {
  return (await get("/v1/jobs", { query: { ...query, view: "summary" } })) as JobPage; // as `view` says
}

async function readNewest(own: number): Promise<void> {
  const [unfinished, newest] = await Promise.all([
    summaries({ state: UNFINISHED, limit: 100_000 }),
    summaries({ limit: NEWEST }),
  ]);
  if (own !== round) return;
  const present = new Set([...unfinished.items, ...newest.items].map((job) => job.uid));
  const oldest = newest.next === null ? -Infinity : (newest.items.at(-1)?.created ?? -Infinity);
  drop((job) => (job.created > oldest || job.finished === undefined) && !present.has(job.uid));
  hold(unfinished.items);
  hold(newest.items);
  publish(newest.total, newest.next === null);
}

async function readAll(): Promise<void> {
  if (reading || jobs.now.complete || !jobs.now.known) return;
  reading = true;
  const own = round;
  try {
    const present = new Set<string>();
    let before: string | null = null;
    do {
      const page: JobPage = await summaries({ limit: PAGE, before });
      if (own !== round) break;
      for (const job of page.items) present.add(job.uid);
      hold(page.items);
      before = page.next;
      if (before === null) drop((job) => !present.has(job.uid));
      publish(page.total, before === null);
    } while (before !== null);
  } catch {
    setTimeout(() => void readAll(), AGAIN);
  } finally {
    reading = false;
  }
  if (own !== round) void readAll();
}

/** Forget those that a list should have had and had not; of what the stream told meanwhile the list knows nothing. */
function drop(lacking: (job: JobSummary) => boolean): void {
  for (const job of held.values()) if (lacking(job) && !told.has(job.uid)) held.delete(job.uid);
}

async function readLists(): Promise<void> {
  told.clear();
  const own = ++round;
  const [nodesBefore, statusBefore] = [nodes.now, status.now];
  const [, found, facts] = await Promise.all([readNewest(own), get("/v1/nodes"), get("/v1/status")]);
  if (own !== round) return;
  if (nodes.now === nodesBefore) nodes.set(found.items); // else the stream has told of newer ones
  if (status.now === statusBefore) status.set(facts);
  line.set("live");
  if (wanted) void readAll();
}

function changed({ items, gone }: ChangedJobs): void {
  const before = held.size;
  for (const job of items) {
    told.add(job.uid);
    held.set(job.uid, job);
  }
  for (const uid of gone) {
    told.add(uid);
    held.delete(uid);
  }
  if (jobs.now.known) publish(jobs.now.total + held.size - before);
}

/** Begin to follow; called once someone is known. Returns how to stop. */
export function start(): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const read = () => {
    clearTimeout(timer);
    readLists().catch(() => (timer = setTimeout(read, AGAIN)));
  };
  const stop = follow({
    address: () => address("/v1/watch"),
    on: {
      hello: read,
      reset: read,
      jobs: changed,
      nodes: ({ items }: Schemas["Nodes"]) => nodes.set(items),
      status: (facts: ServerStatus) => status.set(facts),
      declared: (told: Declared) => declared.set(told),
      sample: (sample: Sample) => samples.set([...samples.now.slice(1 - SAMPLES), sample]),
      measured: ({ time }: Schemas["MeasuredUse"]) => measured.set(time),
      cached: (told: ChangedCaches) => caches.set(told),
    },
    lost: () => line.set("away"),
  });
  return () => {
    clearTimeout(timer);
    stop();
  };
}
