/** The time as components see it: one clock for all of them, so that ages tick together. */

import { useSyncExternalStore } from "react";
import { Shared } from "./api/shared";

const seconds = () => Math.floor(Date.now() / 1000);
const now = new Shared(seconds());
setInterval(() => now.set(seconds()), 1000);

/** Seconds since 1970, each second anew. */
export const useNow = () => useSyncExternalStore(now.listen, now.read);
