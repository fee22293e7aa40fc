/** For whoever the server does not know: the command that opens the page, or the token. */

import { type FormEvent, useState } from "react";
import { signIn } from "../api/session";
import { Command } from "../parts/command";
import "./signin.css";

export function SignIn({ why }: { why?: string | undefined }) {
  const [token, setToken] = useState("");
  const [busy, setBusy] = useState(false);
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    await signIn({ token: token.trim() });
    setBusy(false);
  };
  return (
    <main className="signin">
      <img src="/icon.svg" alt="" width="40" height="40" />
      <h1>Weft</h1>
      {why && (
        <p role="alert" className="signin-why">
          {why}
        </p>
      )}
      <p>
        In a terminal on the server's machine, <Command text="weft ui" /> opens this page signed in.
      </p>
      <form onSubmit={submit}>
        <label htmlFor="token">Or paste the server's token</label>
        <div className="signin-row">
          <input
            id="token"
            type="password"
            autoComplete="current-password"
            required
            value={token}
            onChange={(event) => setToken(event.target.value)}
          />
          <button className="primary" disabled={busy}>
            Sign in
          </button>
        </div>
        <p className="quiet small">
          It is in the file <code>token</code> of WEFT_HOME. It is sent once, for a cookie that scripts cannot
          read, and is kept nowhere else.
        </p>
      </form>
    </main>
  );
}
