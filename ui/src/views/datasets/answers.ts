/** What the server says of datasets, and how the views read it. */

import type { Schemas, Told } from "../../api/types";
import { bytes, count, plural } from "../../format";

export type Version = Schemas["DatasetVersion"];
export type Cached = Schemas["DatasetCache"];
export type Dataset = Told<Schemas["ToldDataset"]>;
export type Lineage = Schemas["Lineage"];
export type Proof = Schemas["Proof"];

const SHOWN = 3;

export const short = (version: string) => version.slice(0, 12);

export function sourceOf({ source }: Dataset["spec"]): string {
  if (source.url) return source.url;
  if (source.sql) return `${source.sql.url}: ${source.sql.query}`;
  if (source.code) return `the command ${source.code.command.join(" ")}`;
  if (source.output)
    return `the results of job ${source.output.job}${source.output.path ? `/${source.output.path}` : ""}`;
  return "–";
}

/** Of all that was asked of the caches together; undefined: nothing was. */
export function hitRatio(cached: readonly Cached[]): number | undefined {
  const hits = cached.reduce((sum, each) => sum + each.hits, 0);
  const asked = cached.reduce((sum, each) => sum + each.hits + each.misses, 0);
  return asked > 0 ? hits / asked : undefined;
}

export const percent = (part: number) => `${(100 * part).toFixed(part > 0 && part < 0.1 ? 1 : 0)} %`;

/** What is wrong with a version, as far as one reads it in a line. */
export function damage({ dataset, version, problems }: Proof): string {
  const told = problems.slice(0, SHOWN).join("; ");
  const more = problems.length > SHOWN ? ` and ${count(problems.length - SHOWN)} more` : "";
  return `${dataset}@${short(version)} is damaged, ${plural(problems.length, "problem")}: ${told}${more}`;
}

export function soundness({ dataset, version, samples, bytes: size, elsewhere }: Proof): string {
  const there = elsewhere > 0 ? `; ${count(elsewhere)} objects of it at its source, by size and mark` : "";
  return `Every byte of ${dataset}@${short(version)} is as it should be: ${plural(samples, "sample")}, ${bytes(size)}${there}`;
}
