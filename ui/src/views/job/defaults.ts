/** A job as lines of YAML, each with a mark if it says only what is so without it: by default, by its type or by a size. */

import { stringify } from "yaml";
import type { Job, Json, JsonObject } from "../../api/types";

export interface SpecLine {
  text: string;
  mark: string | undefined;
}

/** What stands at a place of the spec that says nothing there, and why. */
type Usual = (path: readonly string[]) => { value: Json; mark: string } | undefined;

const DEFAULT = "default";
/** What a type says for jobs of it that do not. */
const OF_TYPE = new Set([
  "command",
  "success",
  "resize",
  "idleTimeout",
  "restart",
  "metrics",
  "template",
  "roles",
]);

const OF_SIZE = new Set(["cpu", "memory", "gpu", "gpuType"]);

export interface Known {
  /** The schema of a job. */
  schema: JsonObject;
  /** The spec of its type, if it is still there. */
  type: JsonObject | undefined;
  /** What says which job it is, and what the server makes of that alone. */
  bare: JsonObject;
  filled: JsonObject | undefined;
}

export function specLines(job: Job, known: Known): SpecLine[] {
  const { schema } = known;
  const { name, labels, annotations, project } = job.metadata;
  const given = { labels, annotations, project };
  const metadata = Object.fromEntries(
    Object.entries(given).filter(([, value]) => value && Object.keys(value).length > 0),
  );
  const head = { apiVersion: job.apiVersion, kind: job.kind, metadata: { name, ...metadata } } as JsonObject;
  const spec = resolve(schema, (schema["properties"] as JsonObject)["spec"]);
  return [
    ...stringify(head, { lineWidth: 0 })
      .trimEnd()
      .split("\n")
      .map((text) => ({ text, mark: undefined })),
    { text: "spec:", mark: undefined },
    ...fields(job.spec, spec, schema, [], usualOf(job.spec, known)),
  ];
}

/** The type's word, where it has one; roles restart as the job does; else what the server fills in. */
function usualOf(spec: JsonObject, { type, bare, filled }: Known): Usual {
  return (path) => {
    const [first, , third] = path;
    const said = OF_TYPE.has(first ?? "") ? valueAt(type, path) : undefined;
    if (said !== undefined && said !== null) return { value: said, mark: `type ${spec["type"]}` };
    if (valueAt(bare, path) !== undefined) return undefined;
    const role = first === "roles" ? third : undefined;
    const value = role === "restart" ? valueAt(spec, path.slice(2)) : valueAt(filled, path);
    if (value === undefined) return undefined;
    const size =
      role === "resources" && OF_SIZE.has(path[3] ?? "")
        ? valueAt(spec, [...path.slice(0, 3), "size"])
        : undefined;
    return { value, mark: size === undefined ? DEFAULT : `size ${size}` };
  };
}

function valueAt(value: Json | undefined, path: readonly string[]): Json | undefined {
  return path.reduce<Json | undefined>(
    (part, step) => (part !== undefined && isMapping(part) ? part[step] : undefined),
    value,
  );
}

function fields(
  value: JsonObject,
  schema: JsonObject | undefined,
  root: JsonObject,
  path: readonly string[],
  usual: Usual,
): SpecLine[] {
  const indent = "  ".repeat(path.length + 1);
  const properties = schema?.["properties"] as JsonObject | undefined;
  const further =
    schema?.["additionalProperties"] ?? Object.values((schema?.["patternProperties"] as JsonObject) ?? {})[0];
  const required = (schema?.["required"] as string[] | undefined) ?? [];
  return Object.entries(value).flatMap(([key, own]) => {
    const inner = (properties?.[key] ?? (typeof further === "object" ? further : undefined)) as
      JsonObject | undefined;
    const optional = properties?.[key] !== undefined && !required.includes(key);
    const said = usual([...path, key]);
    const byDefault = sameAsDefault(own, inner) || (optional && empty(own));
    const usually = said === undefined || same(own, said.value);
    const mark = !usually ? undefined : byDefault ? DEFAULT : said?.mark;
    const name = `${indent}${scalar(key)}:`;
    if (isMapping(own) && !empty(own) && (said || mark === undefined)) {
      const below = fields(own, resolve(root, inner), root, [...path, key], usual);
      const marks = new Set(below.map((line) => line.mark));
      const whole = optional && !marks.has(undefined);
      return [
        { text: name, mark: whole ? (marks.size === 1 ? [...marks][0] : DEFAULT) : undefined },
        ...below,
      ];
    }
    return plain(name, own, indent).map((text) => ({ text, mark }));
  });
}

/** A value on the line of its name where it fits there. */
function plain(name: string, value: Json, indent: string): string[] {
  if (value === null || typeof value !== "object") return [`${name} ${scalar(value)}`];
  if (empty(value)) return [`${name} ${Array.isArray(value) ? "[]" : "{}"}`];
  const below = stringify(value, { lineWidth: 0 }).trimEnd().split("\n");
  return [name, ...below.map((line) => `${indent}  ${line}`)];
}

const scalar = (value: Json) => stringify(value, { lineWidth: 0, defaultStringType: "PLAIN" }).trimEnd();

const isMapping = (value: Json): value is JsonObject =>
  value !== null && typeof value === "object" && !Array.isArray(value);

const empty = (value: Json) => value !== null && typeof value === "object" && Object.keys(value).length === 0;

function sameAsDefault(value: Json, schema: JsonObject | undefined): boolean {
  return schema !== undefined && "default" in schema && same(value, schema["default"] as Json);
}

/** The schema behind a reference or a choice with null. */
function resolve(root: JsonObject, schema: Json | undefined): JsonObject | undefined {
  if (schema === undefined || schema === null || typeof schema !== "object" || Array.isArray(schema))
    return undefined;
  const reference = schema["$ref"];
  if (typeof reference === "string") {
    return resolve(root, (root["$defs"] as JsonObject | undefined)?.[reference.split("/").at(-1) as string]);
  }
  const choices = (schema["anyOf"] ?? schema["allOf"]) as Json[] | undefined;
  const other = choices?.find((each) => (each as JsonObject)["type"] !== "null");
  return other === undefined ? schema : resolve(root, other);
}

function same(a: Json, b: Json): boolean {
  if (!isMapping(a) || !isMapping(b)) return JSON.stringify(a) === JSON.stringify(b);
  const keys = Object.keys(a);
  return (
    keys.length === Object.keys(b).length &&
    keys.every((key) => key in b && same(a[key] as Json, b[key] as Json))
  );
}
