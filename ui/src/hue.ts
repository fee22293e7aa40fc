/** A colour for each job that runs, the same wherever it is drawn; no two alike while there are enough. */

const SLOTS = 24;

function hash(text: string): number {
  let found = 2166136261;
  for (let n = 0; n < text.length; n += 1) found = Math.imul(found ^ text.charCodeAt(n), 16777619);
  return found >>> 0;
}

/** By uid, as hues of 0 to 359. Older jobs choose first, so that a new one changes no other. */
export function huesOf(uids: readonly string[]): ReadonlyMap<string, number> {
  const taken = new Set<number>();
  const found = new Map<string, number>();
  for (const uid of [...new Set(uids)].sort()) {
    const slot = freeSlot(taken, hash(uid) % SLOTS);
    taken.add(slot);
    found.set(uid, slot * (360 / SLOTS));
  }
  return found;
}

/** The first from here on that is far from those taken; nearer if there is none. */
function freeSlot(taken: ReadonlySet<number>, from: number): number {
  for (const apart of [2, 1, 0]) {
    for (let n = 0; n < SLOTS; n += 1) {
      const slot = (from + 7 * n) % SLOTS;
      const clear = [...taken].every(
        (other) => Math.min((slot - other + SLOTS) % SLOTS, (other - slot + SLOTS) % SLOTS) > apart,
      );
      if (clear) return slot;
    }
  }
  return from;
}
