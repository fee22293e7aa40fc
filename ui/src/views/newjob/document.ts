/** The job file that is being written: YAML text is the truth, the form reads and changes parts of it.
 *
 * Changing a part keeps everything else as it was typed, comments too. */

import { Document, isCollection, isNode, isScalar, LineCounter, parseDocument, visit, type Node } from "yaml";
import type { Json, JsonObject } from "../../api/types";
import type { Path } from "./schema";

const LAYOUT = { lineWidth: 0, flowCollectionPadding: false } as const;

export interface Read {
  /** undefined: the text cannot be read. */
  job: JsonObject | undefined;
  wrong: { message: string; line: number } | undefined;
}

export function written(job: Json): string {
  const document = new Document(job);
  short(document.contents);
  return document.toString(LAYOUT);
}

/** Short lists of words on one line: `command: [python, train.py]`. */
function short(node: Node | null): void {
  visit(node, {
    Seq: (_, list) => {
      const words = list.items.map((item) => (isScalar(item) ? String(item.value) : "\n"));
      if (words.join(", ").length < 80 && !words.some((word) => word.includes("\n"))) list.flow = true;
    },
  });
}

export function read(text: string): Read {
  const lines = new LineCounter();
  const document = parseDocument(text, { lineCounter: lines });
  const error = document.errors[0];
  if (error) {
    const message = error.message.split("\n")[0]?.replace(/ at line \d+, column \d+:?$/, "") ?? "";
    return { job: undefined, wrong: { message, line: lines.linePos(error.pos[0]).line } };
  }
  const job: unknown = document.toJS();
  if (job === null || typeof job !== "object" || Array.isArray(job)) {
    return {
      job: undefined,
      wrong: { message: "a job file is a mapping: apiVersion, kind, metadata, spec", line: 1 },
    };
  }
  return { job: job as JsonObject, wrong: undefined };
}

/** The text with this part changed; undefined takes the part out, and what is empty without it. */
export function changed(text: string, path: Path, value: Json | undefined): string {
  const document = parseDocument(text);
  if (value === undefined) prune(document, path);
  else {
    const made = document.createNode(value);
    short(made);
    for (let length = 1; length < path.length; length += 1) {
      const outer = path.slice(0, length);
      const held = document.getIn(outer, true);
      if (held !== undefined && !isCollection(held)) document.setIn(outer, document.createNode({}));
    }
    document.setIn(path, made);
  }
  return document.toString(LAYOUT);
}

function prune(document: Document, path: Path): void {
  const outer = path.slice(0, -1);
  if (!isCollection(document.getIn(outer, true))) return;
  document.deleteIn(path);
  const left = outer.length > 1 ? document.getIn(outer, true) : undefined;
  if (isCollection(left) && left.items.length === 0) prune(document, outer);
}

/** Another name for a key, in its place. */
export function renamed(text: string, path: Path, to: string): string {
  const document = parseDocument(text);
  const outer = path.slice(0, -1);
  const map = document.toJS() as Json;
  const held = outer.reduce<Json>(
    (part, step) => (part as JsonObject)[step as string] as Json,
    map,
  ) as JsonObject;
  const entries = Object.entries(held).map(([key, each]) => [key === path.at(-1) ? to : key, each]);
  document.setIn(outer, document.createNode(Object.fromEntries(entries)));
  return document.toString(LAYOUT);
}

/** Where in the text a part is, or the nearest part around it: for selecting it. */
export function place(text: string, path: Path): [from: number, to: number] | undefined {
  const document = parseDocument(text);
  for (let length = path.length; length > 0; length -= 1) {
    const node = document.getIn(path.slice(0, length), true);
    if (isNode(node) && node.range) return [node.range[0], node.range[1]];
  }
  return undefined;
}

export function lineOf(text: string, offset: number): number {
  return text.slice(0, offset).split("\n").length;
}

/** `spec.datasets[0].name` as steps, as far as such a field is there to find: keys may have dots in them. */
export function steps(job: JsonObject, field: string): Path {
  const found: (string | number)[] = [];
  let rest = field;
  let part: Json | undefined = job;
  while (rest) {
    const index = /^\[(\d+)\]\.?/.exec(rest);
    if (index) {
      found.push(Number(index[1]));
      rest = rest.slice(index[0].length);
      part = Array.isArray(part) ? part[Number(index[1])] : undefined;
      continue;
    }
    const keys = part !== null && typeof part === "object" && !Array.isArray(part) ? Object.keys(part) : [];
    const held = rest;
    const key =
      keys
        .filter((each) => held === each || held.startsWith(`${each}.`) || held.startsWith(`${each}[`))
        .sort((a, b) => b.length - a.length)[0] ?? (/^[^.[]+/.exec(rest)?.[0] as string);
    found.push(key);
    rest = rest.slice(key.length).replace(/^\./, "");
    part = part !== null && typeof part === "object" && !Array.isArray(part) ? part[key] : undefined;
  }
  return found;
}
