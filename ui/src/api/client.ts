/** Requests to the server, typed by its OpenAPI document: a path that it has not, or a field that an answer has not, is an error
 * of `npm run check`. What it refuses becomes a `Refusal`, which says what, why and what to do next. */

import type { paths } from "./schema";
import type { Told } from "./types";

export interface Problem {
  field: string;
  message: string;
  value?: string;
}

export class Refusal extends Error {
  constructor(
    readonly status: number,
    readonly title: string,
    detail: string,
    readonly next?: string,
    readonly problems: readonly Problem[] = [],
  ) {
    super(detail);
  }

  /** Nobody answered: the server is away, and the same request may do later. */
  get away(): boolean {
    return this.status === 0 || this.status === 502 || this.status === 503 || this.status === 504;
  }
}

/** The paths of the OpenAPI document that can be asked with a method. */
export type Path<M extends Method> = {
  [P in keyof paths]: [Operation<P, M>] extends [never] ? never : P;
}[keyof paths];

/** What comes with a request: the names in its path, its query, a body. */
export type Given<P extends keyof paths, M extends Method> = {
  query?: Query<Operation<P, M>>;
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
} & Named<Operation<P, M>>;

/** What the OpenAPI document says that a path answers. */
export type Answer<P extends keyof paths, M extends Method> = Told<Json200<Operation<P, M>>>;

type Method = "get" | "post" | "delete";
type Operation<P extends keyof paths, M extends Method> = Exclude<paths[P][M], undefined>;
type Query<O> = O extends { parameters: { query?: infer Q } }
  ? { [Name in keyof Q]?: Q[Name] | null | undefined }
  : never;
type Named<O> = O extends { parameters: { path: infer Names } } ? { path: Names } : { path?: undefined };
type Json200<O> = O extends { responses: infer R }
  ? {
      [Status in keyof R]: Status extends 200 | 201 | 202
        ? R[Status] extends { content: { "application/json": infer Answer } }
          ? Answer
          : undefined
        : Status extends 204
          ? undefined
          : never;
    }[keyof R]
  : never;
/** Nothing need be given where nothing is asked for. */
type Last<T> = Record<never, never> extends T ? [given?: T] : [given: T];

interface AnyGiven {
  path?: Record<string, string> | undefined;
  query?: Record<string, unknown> | undefined;
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

/** Where a path is, with the names in it and the query; what is null, undefined or empty is left out. */
export function address<P extends Path<"get">>(path: P, ...[given]: Last<Given<P, "get">>): string {
  return whole(path, given as AnyGiven);
}

function whole(path: string, { path: names = {}, query = {} }: AnyGiven = {}): string {
  const place = path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(names[name] ?? ""));
  const said = Object.entries(query).filter(
    ([, value]) => value !== undefined && value !== null && value !== "",
  );
  const text = new URLSearchParams(said.map(([name, value]) => [name, String(value)])).toString();
  return text ? `${place}?${text}` : place;
}

export async function get<P extends Path<"get">>(
  path: P,
  ...[given]: Last<Given<P, "get">>
): Promise<Answer<P, "get">> {
  return (await send("GET", path, given)) as Answer<P, "get">;
}

export async function post<P extends Path<"post">>(
  path: P,
  ...[given]: Last<Given<P, "post">>
): Promise<Answer<P, "post">> {
  return (await send("POST", path, given)) as Answer<P, "post">;
}

export async function remove<P extends Path<"delete">>(
  path: P,
  ...[given]: Last<Given<P, "delete">>
): Promise<void> {
  await send("DELETE", path, given);
}

async function send(method: string, path: string, given: AnyGiven = {}): Promise<unknown> {
  const { body, headers, signal } = given;
  let answer: Response;
  try {
    answer = await fetch(whole(path, given), {
      method,
      headers: {
        ...(method === "GET" ? {} : { "X-Weft": "page" }),
        ...(body === undefined ? {} : { "Content-Type": "application/json" }),
        ...headers,
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      ...(signal ? { signal } : {}),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refusal(0, "Server away", "the server does not answer", "weft status");
  }
  if (!answer.ok) {
    const refusal = await asRefusal(answer);
    if (refusal.status === 401) for (const told of strangers) told();
    throw refusal;
  }
  return answer.status === 204 ? undefined : await answer.json();
}

async function asRefusal(answer: Response): Promise<Refusal> {
  try {
    const { title, detail, next, problems } = await answer.json();
    return new Refusal(answer.status, title ?? answer.statusText, detail ?? "", next, problems);
  } catch {
    return new Refusal(answer.status, answer.statusText || "Error", `the server answered ${answer.status}`);
  }
}

const strangers = new Set<() => void>();

/** Be told when the server no longer knows who this is. */
export function onStranger(told: () => void): () => void {
  strangers.add(told);
  return () => strangers.delete(told);
}
