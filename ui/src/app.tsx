/** The frame of every view: who looks, where they are, and what is true everywhere. */

import { useEffect, useState } from "react";
import { start } from "./api/live";
import { begin, useSession } from "./api/session";
import "./app.css";
import { useShortcut } from "./keyboard";
import { usePath } from "./location";
import { ConfirmHost } from "./parts/confirm";
import { Fallback } from "./parts/fallback";
import { NoticeHost } from "./parts/notice";
import { parse } from "./routes";
import { Banner } from "./shell/banner";
import { Help } from "./shell/help";
import { Navigation } from "./shell/navigation";
import { SignIn } from "./shell/signin";
import { View } from "./views";

export function App() {
  const session = useSession();
  useEffect(() => void begin(), []);
  if (session.kind === "asking") return <p className="unseen">Signing in…</p>;
  return session.kind === "stranger" ? <SignIn why={session.why} /> : <Page />;
}

function Page() {
  const route = parse(usePath());
  const [help, setHelp] = useState(false);
  useEffect(() => start(), []);
  useShortcut("?", "these keys", () => setHelp(true));
  return (
    <div className="app">
      <a className="skip" href="#main">
        Skip to the view
      </a>
      <Navigation help={() => setHelp(true)} />
      <div className="app-side">
        <Banner />
        <main id="main" tabIndex={-1}>
          <Fallback key={route.view}>
            <View route={route} />
          </Fallback>
        </main>
      </div>
      {help && <Help close={() => setHelp(false)} />}
      <ConfirmHost />
      <NoticeHost />
    </div>
  );
}
