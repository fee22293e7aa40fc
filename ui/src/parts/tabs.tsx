/** The parts of a view as links: each has its address. */

import { Link } from "./link";
import "./tabs.css";

export interface Tab {
  id: string;
  title: string;
  to: string;
}

export function Tabs({ tabs, current, label }: { tabs: readonly Tab[]; current: string; label: string }) {
  return (
    <nav className="tabs" aria-label={label}>
      {tabs.map((tab) => (
        <Link key={tab.id} to={tab.to} aria-current={tab.id === current ? "page" : undefined}>
          {tab.title}
        </Link>
      ))}
    </nav>
  );
}
