/** Which jobs are shown, as the address says it: ?q=words&state=FAILED,QUEUED&owner=…&queue=…&type=…&sort=-age */

import type { JobSummary, State } from "../../api/types";
import { FINISHED, RUNNING, STATES, WAITING } from "../../api/types";
import type { Sorting } from "../../parts/table";

export interface Filter {
  words: string[];
  states: ReadonlySet<State> | undefined;
  exact: readonly (readonly [Field, string])[];
}

export const FIELDS = ["owner", "queue", "type", "project"] as const;
export type Field = (typeof FIELDS)[number];

/** Names for several states at once. */
export const GROUPS: Record<string, { title: string; states: ReadonlySet<State> }> = {
  running: { title: "Running", states: RUNNING },
  waiting: { title: "Waiting", states: WAITING },
  halted: { title: "Halted", states: new Set(["HALTED"]) },
  failed: { title: "Failed", states: new Set(["FAILED"]) },
  done: { title: "Ended", states: FINISHED },
};

export function read(query: URLSearchParams): Filter {
  const words = (query.get("q") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const state = query.get("state");
  const exact = FIELDS.flatMap((field) => {
    const value = query.get(field);
    return value ? [[field, value] as const] : [];
  });
  return { words, states: state ? statesOf(state) : undefined, exact };
}

function statesOf(text: string): ReadonlySet<State> {
  const names = text
    .split(",")
    .flatMap((word) => [...(GROUPS[word]?.states ?? [word.toUpperCase() as State])]);
  return new Set(names.filter((name) => STATES.includes(name)));
}

export function matches(job: JobSummary, { words, states, exact }: Filter): boolean {
  if (states && !states.has(job.state)) return false;
  if (!exact.every(([field, value]) => job[field] === value)) return false;
  if (words.length === 0) return true;
  const text =
    `${job.name} ${job.owner} ${job.queue} ${job.type} ${job.state} ${job.reason ?? ""}`.toLowerCase();
  return words.every((word) => text.includes(word));
}

export function readSorting(query: URLSearchParams): Sorting | undefined {
  const text = query.get("sort");
  return text ? { by: text.replace(/^-/, ""), down: text.startsWith("-") } : undefined;
}

export const writeSorting = ({ by, down }: Sorting) => (down ? `-${by}` : by);
