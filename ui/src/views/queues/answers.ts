/** What the server says of queues and of the line, and how the view reads it. */

import type { Schemas, Told } from "../../api/types";
import { bytes, decimal } from "../../format";

export const RESOURCES = ["gpu", "cpu", "memory"] as const;
export type Resource = (typeof RESOURCES)[number];
export type Queue = Told<Schemas["ToldQueue"]>;
export type Queues = Told<Schemas["Queues"]>;
export type Waiting = Schemas["WaitingJob"];
export type Running = Schemas["RunningJob"];
export type Line = Schemas["Line"];

export function amount(resource: Resource, value: number): string {
  return resource === "memory" ? bytes(value) : decimal(value);
}

export const NAMES: Record<Resource, string> = { gpu: "GPUs", cpu: "CPUs", memory: "Memory" };

/** How deep each queue is below the top. */
export function depths(queues: readonly Queue[]): Map<string, number> {
  const found = new Map<string, number>();
  for (const { metadata, spec } of queues) {
    found.set(metadata.name, spec.parent == null ? 0 : (found.get(spec.parent) ?? 0) + 1);
  }
  return found;
}
