/** The JSON Schema of a job, as the form reads it: what kind of field a part is. */

import type { Json, JsonObject } from "../../api/types";

export type Path = readonly (string | number)[];

/** What one writes for a part of the schema. */
export type Kind =
  | { is: "text"; numbers: boolean; examples: string[] }
  | { is: "choice"; of: string[] }
  | { is: "flag" }
  | { is: "list"; each: JsonObject }
  | { is: "map"; each: JsonObject }
  | { is: "group"; called: string; fields: [name: string, schema: JsonObject][] }
  | { is: "any" };

/** As the server names a field in a problem: `spec.roles.worker.command[0]`. */
export function named(path: Path): string {
  return path.reduce<string>(
    (text, step) => (typeof step === "number" ? `${text}[${step}]` : text ? `${text}.${step}` : step),
    "",
  );
}

export class Schema {
  constructor(readonly root: JsonObject) {}

  /** What is behind references; a field's own words go before those of what it refers to. */
  resolved(schema: JsonObject): JsonObject {
    const reference = schema["$ref"];
    if (typeof reference !== "string") return schema;
    const { $ref: _, ...own } = schema;
    const found = (this.root["$defs"] as JsonObject)[reference.split("/").at(-1) as string];
    return this.resolved({ ...(found as JsonObject), ...own });
  }

  at(path: Path): JsonObject | undefined {
    let schema: JsonObject | undefined = this.root;
    for (const step of path) {
      if (schema === undefined) return undefined;
      const kind = this.kind(schema);
      if (kind.is === "list" || kind.is === "map") schema = kind.each;
      else if (kind.is === "group") schema = kind.fields.find(([name]) => name === step)?.[1];
      else return undefined;
    }
    return schema;
  }

  kind(given: JsonObject): Kind {
    const schema = this.resolved(given);
    const choices = this.#choices(schema);
    const types = new Set(choices.map((each) => each["type"]));
    const first = choices[0] ?? schema;
    if (choices.length === 1 && Array.isArray(first["enum"])) {
      return { is: "choice", of: (first["enum"] as Json[]).map(String) };
    }
    if (types.has("boolean")) return { is: "flag" };
    if (types.has("array")) return { is: "list", each: (first["items"] ?? {}) as JsonObject };
    if (first["properties"]) {
      return {
        is: "group",
        called: String(first["title"] ?? ""),
        fields: Object.entries(first["properties"] as Record<string, JsonObject>),
      };
    }
    if (first["patternProperties"]) {
      return {
        is: "map",
        each: Object.values(first["patternProperties"] as Record<string, JsonObject>)[0] ?? {},
      };
    }
    if (types.has("object") || choices.length === 0) return { is: "any" };
    return {
      is: "text",
      numbers: types.has("number") || types.has("integer"),
      examples: choices
        .flatMap((each) => [each["examples"], each["enum"]])
        .flatMap((each) => (Array.isArray(each) ? each.map(String) : [])),
    };
  }

  /** The ways to write it, without the way of leaving it out; examples of the whole belong to each. */
  #choices(schema: JsonObject): JsonObject[] {
    const ways = schema["anyOf"] as JsonObject[] | undefined;
    if (!ways) return "const" in schema ? [] : [schema];
    const examples = schema["examples"];
    return ways
      .flatMap((way) => this.#choices(this.resolved(way)))
      .filter((way) => way["type"] !== "null")
      .map((way) => (examples === undefined ? way : { examples, ...way }));
  }
}

/** What was typed into a field as the value that it means: `2` is a number where numbers are allowed. */
export function meant(text: string, numbers: boolean): Json {
  return numbers && /^-?\d+(\.\d+)?$/.test(text) && String(Number(text)) === text ? Number(text) : text;
}
