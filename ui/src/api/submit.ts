/** Submitting: an answer that is lost on the way makes no second job, as the same key means the same job. */

import { post, Refusal } from "./client";
import type { Job, JsonObject } from "./types";

const TRIES = 5;
const PAUSE = 1000;

/** Of one wish to submit, however often it is tried. */
export const newKey = () => crypto.randomUUID();

export async function submit(job: JsonObject, key: string): Promise<Job> {
  for (let tries = 1; ; tries += 1) {
    try {
      return (await post("/v1/jobs", { body: job, headers: { "Idempotency-Key": key } })) as Job; // `items` is of a dry run
    } catch (error) {
      if (!(error instanceof Refusal && error.away) || tries === TRIES) throw error;
      await new Promise((done) => setTimeout(done, PAUSE));
    }
  }
}

/** The job as it would be kept, with every default filled in. */
export async function dryRun(job: JsonObject): Promise<Job> {
  return (await post("/v1/jobs", { body: job, query: { dryRun: true } })) as Job; // `items` is only for who asks for objects
}
