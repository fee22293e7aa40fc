/** `useAsk`: what a path answers, asked again when told to or every so often, and kept while the next answer comes. */

import { useCallback, useEffect, useRef, useState } from "react";
import { address, type Answer, get, type Given, type Path, Refusal } from "./client";

export interface Asked<T> {
  data: T | undefined;
  refusal: Refusal | undefined;
  again: () => void;
}

interface Often {
  /** Milliseconds between answers; without it, only once. */
  every?: number | undefined;
  /** Ask again whenever this changes, for example the job's state. */
  when?: unknown;
}

type Options<P extends Path<"get">> =
  Record<never, never> extends Given<P, "get"> ? [(Given<P, "get"> & Often)?] : [Given<P, "get"> & Often];

interface Found<T> {
  path: string | null;
  data?: T | undefined;
  refusal?: Refusal | undefined;
}

/** Milliseconds until a server that was away is asked again. */
const AGAIN = 1000;

/** A `null` path asks nothing. What is being answered is waited for before it is asked again: however often `when` changes,
 * answers come. A server that is away is asked until it is back. */
export function useAsk<P extends Path<"get">>(
  path: P | null,
  ...[options]: Options<P>
): Asked<Answer<P, "get">> {
  type T = Answer<P, "get">;
  const { every, when, ...given } = (options ?? {}) as Given<P, "get"> & Often;
  const whole = path === null ? null : address(path, ...([given] as never));
  const [found, setFound] = useState<Found<T>>({ path: null });
  const ask = useRef<(() => void) | undefined>(undefined);
  const pause = useRef(every);
  pause.current = every;

  // Before the effect that begins to ask: by what is new to both, it is asked once.
  useEffect(() => ask.current?.(), [every, when]);

  useEffect(() => {
    if (path === null || whole === null) return;
    const gone = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let busy = false;
    let stale = false;
    let away = false;
    const once = async () => {
      try {
        const data = await get(path, ...([{ ...given, signal: gone.signal }] as never));
        away = false;
        setFound({ path: whole, data });
      } catch (error) {
        if (gone.signal.aborted) return;
        const refusal = error instanceof Refusal ? error : new Refusal(500, "Error", String(error));
        away = refusal.away;
        setFound((before) => ({
          path: whole,
          data: before.path === whole ? before.data : undefined,
          refusal,
        }));
      }
    };
    const begin = async () => {
      clearTimeout(timer);
      stale = true;
      if (busy) return;
      busy = true;
      while (stale && !gone.signal.aborted) {
        stale = false;
        await once();
      }
      busy = false;
      const next = away ? AGAIN : pause.current;
      if (next !== undefined && !gone.signal.aborted) timer = setTimeout(begin, next);
    };
    ask.current = () => void begin();
    void begin();
    return () => {
      ask.current = undefined;
      gone.abort();
      clearTimeout(timer);
    };
  }, [whole]);

  const again = useCallback(() => ask.current?.(), []);
  const current = found.path === whole ? found : undefined;
  return { data: current?.data, refusal: current?.refusal, again };
}
