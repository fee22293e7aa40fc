/** A part of a view: a title, what belongs beside it, and the content. */

import type { ReactNode } from "react";
import "./panel.css";

interface Props {
  title: ReactNode;
  aside?: ReactNode;
  className?: string;
  /** The content goes to the edge: tables, logs. */
  flush?: boolean;
  children: ReactNode;
}

export function Panel({ title, aside, className, flush, children }: Props) {
  return (
    <section className={`panel ${className ?? ""}`}>
      <header className="panel-head">
        <h2>{title}</h2>
        {aside && <div className="panel-aside">{aside}</div>}
      </header>
      <div className={flush ? "panel-flush" : "panel-body"}>{children}</div>
    </section>
  );
}

/** Names and values, in a grid that folds when it is narrow. */
export function Facts({
  items,
}: {
  items: readonly (readonly [string, ReactNode] | null | false | undefined)[];
}) {
  return (
    <dl className="facts">
      {items.map(
        (item) =>
          item && (
            <div key={item[0]}>
              <dt>{item[0]}</dt>
              <dd>{item[1]}</dd>
            </div>
          ),
      )}
    </dl>
  );
}
