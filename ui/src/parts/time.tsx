/** Moments and spans: short to read, exact in the tooltip, ticking where they go on. */

import { age, duration, moment, when } from "../format";
import { useNow } from "../now";

/** A moment: `14:03:22`, with the day if it is not today. */
export function Time({ at }: { at: number | null | undefined }) {
  if (at == null) return <span className="quiet">–</span>;
  return (
    <time dateTime={new Date(at * 1000).toISOString()} title={moment(at)}>
      {when(at)}
    </time>
  );
}

/** How long ago: `4m`. */
export function Age({ since }: { since: number | null | undefined }) {
  const now = useNow();
  if (since == null) return <span className="quiet">–</span>;
  return (
    <time dateTime={new Date(since * 1000).toISOString()} title={moment(since)}>
      {age(now - since)}
    </time>
  );
}

/** From a moment to another, or until now. */
export function Span({ from, to }: { from: number | null | undefined; to?: number | null | undefined }) {
  const now = useNow();
  if (from == null) return <span className="quiet">–</span>;
  const seconds = (to ?? now) - from;
  return <span title={`since ${moment(from)}`}>{duration(to == null ? Math.floor(seconds) : seconds)}</span>;
}
