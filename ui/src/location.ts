/** Where the reader is: the browser's own history, watched. */

import { useCallback, useMemo, useSyncExternalStore } from "react";

const watchers = new Set<() => void>();
const told = () => {
  for (const watcher of [...watchers]) watcher();
};
addEventListener("popstate", told);

function listen(watcher: () => void): () => void {
  watchers.add(watcher);
  return () => watchers.delete(watcher);
}

export function go(path: string, { replace = false } = {}): void {
  if (path === location.pathname + location.search) return;
  history[replace ? "replaceState" : "pushState"](null, "", path);
  told();
}

export function usePath(): string {
  return useSyncExternalStore(listen, () => location.pathname);
}

type Change = Record<string, string | null>;

/** The part of the address behind `?`, and how to change it: an empty value leaves the address. */
export function useQuery(): [URLSearchParams, (change: Change) => void] {
  const search = useSyncExternalStore(listen, () => location.search);
  const query = useMemo(() => new URLSearchParams(search), [search]);
  const change = useCallback((to: Change) => {
    const next = new URLSearchParams(location.search);
    for (const [name, value] of Object.entries(to)) {
      if (value) next.set(name, value);
      else next.delete(name);
    }
    const text = next.toString();
    go(location.pathname + (text ? `?${text}` : ""), { replace: true });
  }, []);
  return [query, change];
}
