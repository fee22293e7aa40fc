/** What of a job nobody needs to say: found out by asking the server to complete one that says next to nothing. */

import { dryRun } from "../../api/submit";
import type { Json, JsonObject } from "../../api/types";

export const HEAD = { apiVersion: "weft.dev/v1", kind: "TrainingJob" } as const;

/** What says which job it is: a job that has only this gets everything else from the server. */
function bareOf(spec: JsonObject): JsonObject {
  const { type, command, roles, datasets, outputs } = spec as {
    type: string;
    command?: Json;
    roles?: Record<string, JsonObject>;
    datasets?: JsonObject[];
    outputs?: JsonObject[];
  };
  return {
    ...(type === "command" ? {} : { type }),
    ...(command ? { command } : {}),
    ...(roles ? { roles: map(roles, bareRole) } : {}),
    ...(datasets?.length ? { datasets: datasets.map((use) => ({ name: use["name"] as Json })) } : {}),
    ...(outputs?.length ? { outputs: outputs.map((made) => ({ dataset: made["dataset"] as Json })) } : {}),
  };
}

function bareRole({ replicas, resources }: JsonObject): JsonObject {
  const size = (resources as JsonObject | undefined)?.["size"];
  return {
    ...(replicas === 1 ? {} : { replicas: replicas as Json }),
    ...(size === undefined ? {} : { resources: { size } }),
  };
}

/** What the server makes of a job that says only that; undefined: it refuses. */
export async function filledIn(
  spec: JsonObject,
): Promise<{ bare: JsonObject; filled: JsonObject | undefined }> {
  const bare = bareOf(spec);
  return { bare, filled: await completed(bare) };
}

async function completed(bare: JsonObject): Promise<JsonObject | undefined> {
  try {
    return (await dryRun({ ...HEAD, spec: bare })).spec;
  } catch {
    return undefined; // the type asks for more, or something is gone: then all of it is shown
  }
}

function map(values: Record<string, JsonObject>, to: (each: JsonObject) => JsonObject): JsonObject {
  return Object.fromEntries(Object.entries(values).map(([key, each]) => [key, to(each)]));
}
