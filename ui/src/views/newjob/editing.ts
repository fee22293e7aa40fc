/** What the fields of the form share: the job as it stands, what is wrong with it, and how to change it. */

import { createContext, useContext, useMemo } from "react";
import { useAsk } from "../../api/ask";
import { useNodes } from "../../api/live";
import type { Json, JsonObject, Metadata } from "../../api/types";
import type { JobType } from "../types/examples";
import { named, type Path, type Schema } from "./schema";

export interface Editing {
  schema: Schema;
  job: JsonObject;
  /** By field, as the server names it. */
  problems: ReadonlyMap<string, readonly string[]>;
  change: (path: Path, value: Json | undefined) => void;
  rename: (path: Path, to: string) => void;
  known: Known;
}

export const EditingContext = createContext<Editing | undefined>(undefined);

export function useEditing(): Editing {
  const found = useContext(EditingContext);
  if (!found) throw new Error("a field is only shown inside the form");
  return found;
}

export function valueAt(job: JsonObject, path: Path): Json | undefined {
  return path.reduce<Json | undefined>((part, step) => {
    if (part === null || part === undefined || typeof part !== "object") return undefined;
    return (part as Record<string | number, Json>)[step];
  }, job);
}

/** Whether the server has something to say about a part, or about what is in it. */
export function troubled(problems: Editing["problems"], path: Path): boolean {
  const name = named(path);
  return [...problems.keys()].some(
    (field) => field === name || field.startsWith(`${name}.`) || field.startsWith(`${name}[`),
  );
}

/** What there is on the server that a job may name. */
export interface Known {
  types: readonly JobType[];
  queues: readonly string[];
  sizes: readonly string[];
  datasets: readonly string[];
  gpuTypes: readonly string[];
}

interface Listed {
  items: readonly { metadata: Metadata }[];
}
const names = (listed: Listed | undefined) => listed?.items.map((each) => each.metadata.name) ?? [];

export function useKnown(): Known {
  const types = useAsk("/v1/jobtypes").data;
  const queues = useAsk("/v1/queues").data;
  const sizes = useAsk("/v1/sizes").data;
  const datasets = useAsk("/v1/datasets").data;
  const nodes = useNodes();
  return useMemo(
    () => ({
      types: types?.items ?? [],
      queues: names(queues),
      sizes:
        sizes?.items.flatMap(({ metadata, spec }) =>
          spec.perGpu ? [1, 2, 4, 8].map((n) => `${metadata.name}-${n}`) : [metadata.name],
        ) ?? [],
      datasets: names(datasets),
      gpuTypes: [...new Set(nodes?.flatMap((node) => node.capacity.gpuType ?? []) ?? [])],
    }),
    [types, queues, sizes, datasets, nodes],
  );
}

/** What may stand at a place, where the schema alone does not know. `strict`: nothing else is right. */
export function suggestions(
  path: Path,
  known: Known,
): { of: readonly string[]; strict: boolean } | undefined {
  const shape = path.map((step) => (typeof step === "number" ? "*" : step)).join(".");
  if (shape === "spec.type") return { of: known.types.map((type) => type.metadata.name), strict: true };
  if (shape === "spec.queue") return { of: known.queues, strict: true };
  if (shape === "spec.datasets.*.name") return { of: known.datasets, strict: false };
  if (shape.endsWith("resources.size")) return { of: known.sizes, strict: false };
  if (shape.endsWith("resources.gpuType")) return { of: known.gpuTypes, strict: false };
  return undefined;
}
