/** What a run was given, as names and values that can be put side by side. */

import type { Job, Json } from "../../api/types";

export interface Parameter {
  name: string;
  /** One for each run; undefined: this run has none. */
  values: (string | undefined)[];
  differs: boolean;
}

/** Not what one compares runs by: the server's own, and what follows from the type. */
const LEFT_OUT = new Set(["template", "args", "env", "datasets", "command"]);

export function sideBySide(jobs: readonly Job[]): Parameter[] {
  const each = jobs.map(parametersOf);
  const all = [...new Set(each.flatMap((found) => [...found.keys()]))];
  const names = [...all.filter(isArgument), ...all.filter((name) => !isArgument(name))];
  return names.map((name) => {
    const values = each.map((found) => found.get(name));
    return { name, values, differs: new Set(values).size > 1 };
  });
}

const isArgument = (name: string) => name.startsWith("-") || name.startsWith("argument ");

/** Arguments first, then the environment, data and code, then the rest of the spec as it is nested. */
export function parametersOf(job: Job): Map<string, string> {
  const { spec, status } = job;
  const found = new Map<string, string>();
  for (const [name, value] of flags((spec["args"] ?? []) as string[])) found.set(name, value);
  for (const [name, value] of Object.entries((spec["env"] ?? {}) as Record<string, Json>)) {
    found.set(name, String(value));
  }
  const pinned = new Map(status.datasets ?? []);
  for (const use of (spec["datasets"] ?? []) as { name: string; version?: string }[]) {
    const version = pinned.get(use.name) ?? use.version;
    found.set(`data ${use.name}`, version === undefined ? "newest" : version.slice(0, 12));
  }
  if (spec["command"]) found.set("command", (spec["command"] as string[]).join(" "));
  for (const [key, value] of Object.entries(spec)) {
    if (!LEFT_OUT.has(key)) flatten(key, value, found);
  }
  return found;
}

/** `--lr 0.1 --fast x` as lr, fast and what is left. */
export function flags(args: readonly string[]): [name: string, value: string][] {
  const found: [string, string][] = [];
  let plain = 0;
  for (let n = 0; n < args.length; n += 1) {
    const word = args[n] as string;
    const next = args[n + 1];
    const [name, given] = /^(--?[A-Za-z][^=]*)(?:=([\s\S]*))?$/.exec(word)?.slice(1) ?? [];
    if (name === undefined) found.push([`argument ${(plain += 1)}`, word]);
    else if (given !== undefined) found.push([name, given]);
    else if (next !== undefined && !/^--?[A-Za-z]/.test(next)) {
      found.push([name, next]);
      n += 1;
    } else found.push([name, "yes"]);
  }
  return found;
}

function flatten(name: string, value: Json, found: Map<string, string>): void {
  if (value === null) return;
  if (typeof value !== "object") found.set(name, String(value));
  else if (Array.isArray(value)) {
    if (value.length > 0)
      found.set(
        name,
        value.map((each) => (typeof each === "object" ? JSON.stringify(each) : String(each))).join(", "),
      );
  } else for (const [key, each] of Object.entries(value)) flatten(`${name}.${key}`, each, found);
}
