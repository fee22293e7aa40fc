/** The server's answers by the names that the page has for them; their form is in `schema.ts`, made from the OpenAPI document. */

import type { components } from "./schema";

export type Schemas = components["schemas"];

export type State = Schemas["State"];
export const STATES = [
  "PENDING",
  "QUEUED",
  "DEPLOYING",
  "DOWNLOADING",
  "PROCESSING",
  "STORING",
  "COMPLETED",
  "FAILED",
  "HALTED",
  "CANCELLED",
  "PREEMPTED",
  "RESTARTING",
] as const satisfies readonly State[];
export const FINISHED: ReadonlySet<State> = new Set(["COMPLETED", "FAILED", "CANCELLED"]);
export const RUNNING: ReadonlySet<State> = new Set([
  "DEPLOYING",
  "DOWNLOADING",
  "PROCESSING",
  "STORING",
  "RESTARTING",
]);
export const WAITING: ReadonlySet<State> = new Set(["PENDING", "QUEUED", "PREEMPTED"]);

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type JsonObject = { [key: string]: Json };

export type JobSummary = Schemas["JobSummary"];
export interface JobPage {
  items: JobSummary[];
  total: number;
  next: string | null;
}

export type Failure = Schemas["Failure"];
export type Task = Schemas["TaskStatus"];
export type JobStatus = Schemas["JobStatus"];

/** As it is told of: what the server sets is there, and the spec is read by name. */
export interface Job {
  apiVersion: string;
  kind: string;
  metadata: Metadata;
  spec: JsonObject;
  status: JobStatus;
}
export type Metadata = Omit<Schemas["JobMetadata"], "name" | "uid" | "created" | "owner" | "project"> & {
  name: string;
  uid: string;
  created: number;
  owner?: string;
  project?: string;
};

export type ChangedJobs = Schemas["ChangedJobs"];
export type ChangedCaches = Schemas["ChangedCaches"];
export type Declared = Schemas["Declared"];

export type Node = Schemas["Node"];
export type NodeTask = Schemas["Occupant"];
export type Sample = Schemas["Sample"];
export type Happening = Schemas["Event"];
export type ServerStatus = Schemas["Status"];
export type Explanation = Schemas["Explanation"];
export type Estimate = Schemas["Estimate"];
export type Checkpoint = Schemas["Checkpoint"];
export type UsedOverTime = Schemas["UsedOverTime"];
export type MetricPoint = Schemas["MetricPoint"];
export type MeasuredCurve = Schemas["Curve"];
export type LogLine = Schemas["LogLine"];

/** As it is told of: what the server sets is there, and what has no form of its own is read by name. */
export type Told<T> = T extends { spec: unknown; status: JobStatus }
  ? Job
  : T extends { metadata: unknown; spec: unknown; status: unknown }
    ? Omit<T, "metadata"> & { metadata: Metadata }
    : T extends { items: (infer Item)[] }
      ? Omit<T, "items"> & { items: Told<Item>[] }
      : string extends keyof T
        ? JsonObject
        : T;
