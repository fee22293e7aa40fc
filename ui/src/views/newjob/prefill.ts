/** What a new job begins with: another job, the example of a job type or of a size, or next to nothing. */

import { get } from "../../api/client";
import type { Job, Json, JsonObject } from "../../api/types";
import { filledIn, HEAD } from "./bare";
import { written } from "./document";
import { exampleOf } from "../types/examples";

export async function beginning(query: URLSearchParams): Promise<string> {
  const from = query.get("from");
  if (from) return written(await again(await get("/v1/jobs/{name}", { path: { name: from } })));
  const type = query.get("type");
  const size = query.get("size");
  const found = type ? await get("/v1/jobtypes/{name}", { path: { name: type } }) : undefined;
  return written(exampleOf(found, size ?? undefined));
}

/** The same job once more, under a new name, without what the server filled in. */
async function again({ metadata, spec }: Job): Promise<JsonObject> {
  const { bare, filled } = await filledIn(spec);
  const own = filled === undefined ? spec : beyond(spec, filled, bare);
  return {
    ...HEAD,
    metadata: {
      generateName: `${metadata.name.slice(0, 50)}-`,
      ...(metadata.labels && Object.keys(metadata.labels).length > 0 ? { labels: metadata.labels } : {}),
      ...(metadata.project ? { project: metadata.project } : {}),
    },
    spec: own as JsonObject,
  };
}

/** The value without what the server filled in by itself; what the bare one says stays. */
function beyond(value: Json, filled: Json | undefined, bare: Json | undefined): Json {
  if (Array.isArray(value)) {
    return value.map((each, n) =>
      beyond(each, Array.isArray(filled) ? filled[n] : undefined, Array.isArray(bare) ? bare[n] : undefined),
    );
  }
  if (!isMap(value)) return value;
  const left = Object.entries(value).flatMap(([key, each]) => {
    const beside = isMap(filled) ? filled[key] : undefined;
    const said = isMap(bare) ? bare[key] : undefined;
    const differs = JSON.stringify(each) !== JSON.stringify(beside);
    return differs || said !== undefined ? [[key, beyond(each, beside, said)] as const] : [];
  });
  return Object.fromEntries(left);
}

function isMap(value: Json | undefined): value is JsonObject {
  return value !== null && value !== undefined && typeof value === "object" && !Array.isArray(value);
}
