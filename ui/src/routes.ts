/** The addresses of the page, typed: what a path shows, and the path of what is to be shown. */

export type Route =
  | { view: "overview" }
  | { view: "jobs" }
  | { view: "job"; name: string; tab: string }
  | { view: "queues" }
  | { view: "datasets"; name?: string }
  | { view: "types"; name?: string }
  | { view: "compare" }
  | { view: "new" }
  | { view: "nowhere"; path: string };

export function parse(path: string): Route {
  const [first = "", name, tab, ...more] = path
    .replace(/^\/|\/$/g, "")
    .split("/")
    .map(decode);
  if (more.length > 0) return { view: "nowhere", path };
  switch (first) {
    case "":
      return { view: "overview" };
    case "jobs":
      return name === undefined ? { view: "jobs" } : { view: "job", name, tab: tab ?? "" };
    case "datasets":
    case "types":
      return name === undefined ? { view: first } : { view: first, name };
    case "queues":
    case "compare":
    case "new":
      if (name === undefined) return { view: first };
  }
  return { view: "nowhere", path };
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export const paths = {
  overview: "/",
  jobs: "/jobs",
  job: (name: string, tab = "") => `/jobs/${encodeURIComponent(name)}${tab ? `/${tab}` : ""}`,
  queues: "/queues",
  datasets: "/datasets",
  dataset: (name: string) => `/datasets/${encodeURIComponent(name)}`,
  types: "/types",
  type: (name: string) => `/types/${encodeURIComponent(name)}`,
  compare: (names: readonly string[] = []) =>
    names.length ? `/compare?jobs=${names.map(encodeURIComponent).join(",")}` : "/compare",
  newJob: (from?: string) => (from === undefined ? "/new" : `/new?from=${encodeURIComponent(from)}`),
  newJobOf: (what: { type: string } | { size: string }) => `/new?${new URLSearchParams(what)}`,
} as const;
