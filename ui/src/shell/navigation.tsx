/** The way to every view. Narrow, it folds away behind a button. */

import { useEffect, useState } from "react";
import { signOut } from "../api/session";
import { useStatus } from "../api/live";
import { RUNNING, type State, WAITING } from "../api/types";
import { count } from "../format";
import { useShortcut } from "../keyboard";
import { go, usePath } from "../location";
import { Icon, type IconName } from "../parts/icon";
import { Link } from "../parts/link";
import { tellError } from "../parts/notice";
import { parse, paths, type Route } from "../routes";
import { nextTheme, useTheme } from "../theme";
import "./navigation.css";

interface Entry {
  view: Route["view"];
  title: string;
  to: string;
  icon: IconName;
  key: string;
}

const ENTRIES: readonly Entry[] = [
  { view: "overview", title: "Overview", to: paths.overview, icon: "overview", key: "o" },
  { view: "jobs", title: "Jobs", to: paths.jobs, icon: "jobs", key: "j" },
  { view: "queues", title: "Queues", to: paths.queues, icon: "queues", key: "q" },
  { view: "datasets", title: "Datasets", to: paths.datasets, icon: "datasets", key: "d" },
  { view: "types", title: "Job types", to: paths.types, icon: "types", key: "t" },
  { view: "compare", title: "Compare", to: paths.compare(), icon: "compare", key: "c" },
];

const THEMES = { system: "screen", light: "sun", dark: "moon" } as const;

export function Navigation({ help }: { help: () => void }) {
  const path = usePath();
  const theme = useTheme();
  const [open, setOpen] = useState(false);
  useEffect(() => setOpen(false), [path]);
  const here = parse(path).view;
  const current = here === "job" ? "jobs" : here;
  return (
    <header className={`navigation ${open ? "open" : ""}`}>
      <Link to="/" className="brand">
        <img src="/icon.svg" alt="" width="24" height="24" />
        Weft
      </Link>
      <button
        className="plain menu"
        aria-expanded={open}
        aria-controls="views"
        onClick={() => setOpen(!open)}
      >
        <Icon name="menu" />
        <span className="unseen">Menu</span>
      </button>
      <nav id="views" aria-label="Views">
        <Link
          to={paths.newJob()}
          className="button primary"
          aria-current={here === "new" ? "page" : undefined}
        >
          <Icon name="new" />
          New job
        </Link>
        {ENTRIES.map((entry) => (
          <Place key={entry.view} entry={entry} current={entry.view === current} />
        ))}
      </nav>
      <div className="navigation-foot">
        <button className="plain" onClick={nextTheme} title={`Theme: ${theme}`}>
          <Icon name={THEMES[theme]} />
          <span className="unseen">Theme: {theme}</span>
        </button>
        <button className="plain" onClick={help} title="Keys (?)">
          <Icon name="help" />
          <span className="unseen">Keys</span>
        </button>
        <button className="plain" onClick={() => signOut().catch(tellError)} title="Sign out">
          <Icon name="out" />
          <span className="unseen">Sign out</span>
        </button>
      </div>
    </header>
  );
}

function Place({ entry, current }: { entry: Entry; current: boolean }) {
  useShortcut(`g ${entry.key}`, entry.title, () => go(entry.to));
  return (
    <Link to={entry.to} className="place" aria-current={current ? "page" : undefined}>
      <Icon name={entry.icon} />
      {entry.title}
      {entry.view === "jobs" && <Counts />}
    </Link>
  );
}

/** How many run and wait. */
function Counts() {
  const jobs = useStatus()?.jobs;
  if (!jobs) return null;
  const sum = (states: ReadonlySet<State>) => [...states].reduce((n, state) => n + (jobs[state] ?? 0), 0);
  const [running, waiting] = [sum(RUNNING), sum(WAITING)];
  return (
    <span className="counts">
      {running > 0 && (
        <span className="tone-busy" title="running">
          {count(running)}
        </span>
      )}
      {waiting > 0 && (
        <span className="tone-wait" title="waiting">
          {count(waiting)}
        </span>
      )}
    </span>
  );
}
