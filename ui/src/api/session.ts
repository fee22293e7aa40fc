/** Who looks: a cookie that scripts cannot read, got for a one-time code of `weft ui` or for the token. */

import { useSyncExternalStore } from "react";
import { get, onStranger, post, Refusal, remove } from "./client";
import { Shared } from "./shared";

export type Session = { kind: "asking" } | { kind: "stranger"; why?: string } | { kind: "known" };

const session = new Shared<Session>({ kind: "asking" });
onStranger(() => {
  if (session.now.kind === "known")
    session.set({ kind: "stranger", why: "The session has ended: sign in again." });
});

export function useSession(): Session {
  return useSyncExternalStore(session.listen, session.read);
}

/** Called once, before anything is asked of the server. The code is single-use and leaves the address bar at once. */
export async function begin(): Promise<void> {
  const code = /^#login=([\w-]+)$/.exec(location.hash)?.[1];
  if (code !== undefined) {
    history.replaceState(history.state, "", location.pathname + location.search);
    await signIn({ code });
    return;
  }
  for (;;) {
    try {
      await get("/v1/status");
      session.set({ kind: "known" });
      return;
    } catch (error) {
      if (!(error instanceof Refusal && error.away)) {
        session.set({ kind: "stranger" });
        return;
      }
      await new Promise((done) => setTimeout(done, 1000));
    }
  }
}

export async function signIn(by: { code: string } | { token: string }): Promise<void> {
  try {
    await post("/v1/session", { body: by });
    session.set({ kind: "known" });
  } catch (error) {
    session.set({ kind: "stranger", why: error instanceof Error ? error.message : String(error) });
  }
}

export async function signOut(): Promise<void> {
  await remove("/v1/session");
  session.set({ kind: "stranger" });
}
