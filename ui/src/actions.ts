/** What can be done to jobs, to one or to many: asked first where there is no way back, undone where there is one. */

import { get, post, remove } from "./api/client";
import { newKey, submit } from "./api/submit";
import { FINISHED, type Job, type JsonObject, type State } from "./api/types";
import { plural } from "./format";
import { confirm } from "./parts/confirm";
import { tell, tellError } from "./parts/notice";

export type Verb = "halt" | "resume" | "cancel" | "delete";

interface Target {
  name: string;
  state: State;
}

const POSSIBLE: Record<Verb, (state: State) => boolean> = {
  halt: (state) => !FINISHED.has(state) && state !== "HALTED",
  resume: (state) => state === "HALTED" || state === "FAILED",
  cancel: (state) => !FINISHED.has(state),
  delete: () => true,
};

export function possible(verb: Verb, state: State): boolean {
  return POSSIBLE[verb](state);
}

const DONE: Record<Verb, string> = {
  halt: "halted",
  resume: "resumed",
  cancel: "cancelled",
  delete: "deleted",
};

const BACK: Partial<Record<Verb, Verb>> = { halt: "resume", resume: "halt" };

/** Do it to those of the jobs that it can be done to. True if it was done to any. */
export async function act(verb: Verb, jobs: readonly Target[]): Promise<boolean> {
  const able = jobs.filter((job) => possible(verb, job.state));
  if (able.length === 0) return false;
  if (!BACK[verb] && !(await confirm(question(verb, able)))) return false;
  const names = await each(able, (job) => ask(verb, job.name));
  if (names.length === 0) return false;
  const back = BACK[verb];
  const undo = back && (() => void each(names, (name) => ask(back, name)));
  tell(`${whom(names)} ${DONE[verb]}`, undo);
  return true;
}

async function ask(verb: Verb, name: string): Promise<void> {
  const path = { name };
  if (verb === "delete") await remove("/v1/jobs/{name}", { path });
  else await post(`/v1/jobs/{name}/${verb}`, { path });
}

/** Each in its turn; those it worked for. What was refused is told. */
async function each<T extends Target | string>(
  all: readonly T[],
  one: (each: T) => Promise<void>,
): Promise<string[]> {
  const done: string[] = [];
  const refused: unknown[] = [];
  for (const job of all) {
    try {
      await one(job);
      done.push(typeof job === "string" ? job : job.name);
    } catch (error) {
      refused.push(error);
    }
  }
  if (refused.length > 0) tellError(refused[0]);
  return done;
}

function question(verb: Verb, jobs: readonly Target[]) {
  const running = jobs.filter((job) => !FINISHED.has(job.state)).length;
  const names = whom(jobs.map((job) => job.name));
  if (verb === "delete") {
    const stopped =
      running > 0
        ? `${plural(running, "of them still runs or waits", "of them still run or wait")} and will be stopped. `
        : "";
    return {
      title: `Delete ${names}?`,
      says: `${jobs.length === 1 && running ? "It will be stopped. " : jobs.length > 1 ? stopped : ""}Logs, curves, checkpoints and results go with it. There is no way back.`,
      act: "Delete",
      danger: true,
    };
  }
  return {
    title: `Cancel ${names}?`,
    says: "A cancelled job cannot be resumed. To stop it for now, halt it.",
    act: jobs.length === 1 ? "Cancel the job" : `Cancel ${jobs.length} jobs`,
    danger: true,
  };
}

function whom(names: readonly string[]): string {
  return names.length === 1 ? `job ${names[0]}` : plural(names.length, "job");
}

/** What a re-run changes. */
export interface Changes {
  env: Record<string, string>;
  args?: string[];
  priority?: number;
  queue?: string;
}

/** Submit the same again, under names of their own. */
export async function rerun(names: readonly string[], changes: Changes): Promise<string[]> {
  const made: string[] = [];
  await each(names, async (name) => {
    const job = await get("/v1/jobs/{name}", { path: { name } });
    const submitted = await submit(again(job, changes), newKey());
    made.push(submitted.metadata.name);
  });
  if (made.length > 0) {
    tell(`${whom(made)} submitted`, () => void each(made, (name) => ask("cancel", name)));
  }
  return made;
}

function again(job: Job, changes: Changes): JsonObject {
  const { labels, annotations, project, name } = job.metadata;
  const stem = name.replace(/-[a-z0-9]{5}$/, "").slice(0, 54);
  const spec: JsonObject = {
    ...job.spec,
    env: { ...(job.spec["env"] as JsonObject | undefined), ...changes.env },
  };
  if (changes.args) spec["args"] = changes.args;
  if (changes.priority !== undefined) spec["priority"] = changes.priority;
  if (changes.queue) spec["queue"] = changes.queue;
  return {
    apiVersion: job.apiVersion,
    kind: job.kind,
    metadata: {
      generateName: `${stem}-`.replace(/--$/, "-"),
      ...(labels ? { labels } : {}),
      ...(annotations ? { annotations } : {}),
      ...(project ? { project } : {}),
    },
    spec,
  };
}
