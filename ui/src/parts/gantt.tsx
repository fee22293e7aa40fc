/** Bars over time, one row each: what was, what is, and what is expected. */

import type { ReactNode } from "react";
import { timeOfDay } from "../format";
import "./gantt.css";
import type { Tone } from "./state";

export interface Bar {
  from: number;
  to: number;
  tone: Tone;
  /** Expected, not yet true: drawn lighter. */
  expected?: boolean;
  /** A thin line in place of a bar: the time within which something should begin. */
  range?: boolean;
  says: string;
}

export interface GanttRow {
  key: string;
  /** The cells before the bars, as many as `columns`. */
  cells: readonly ReactNode[];
  bars: readonly Bar[];
  /** In place of bars. */
  note?: ReactNode;
}

interface Props {
  label: string;
  /** The heads of the cells, and their widths as in grid-template-columns. */
  columns: readonly { title: string; width: string; narrow?: boolean }[];
  rows: readonly GanttRow[];
  from: number;
  to: number;
  now: number;
}

const STEPS = [10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800];
const TICKS = 6;

export function Gantt({ label, columns, rows, from, to, now }: Props) {
  const span = Math.max(to - from, 1);
  const at = (time: number) => (100 * (Math.min(Math.max(time, from), to) - from)) / span;
  const percent = (n: number) => `${n.toFixed(3)}%`;
  const ticks = ticksOf(from, to);
  const template = [...columns.map((column) => column.width), "minmax(240px, 1fr)"].join(" ");
  const wide = columns.filter((column) => !column.narrow).length;
  const style = { "--gantt": template } as React.CSSProperties;
  return (
    <div className="gantt" role="table" aria-label={label} style={style} data-wide={wide}>
      <div className="gantt-row gantt-head" role="row">
        {columns.map((column) => (
          <span key={column.title} role="columnheader" className={column.narrow ? "" : "gantt-wide"}>
            {column.title}
          </span>
        ))}
        <span role="columnheader" className="gantt-time">
          <span className="unseen">Time</span>
          {ticks.map((tick) => (
            <span key={tick} className="gantt-tick" style={{ left: percent(at(tick)) }} aria-hidden="true">
              {short(tick)}
            </span>
          ))}
        </span>
      </div>
      {rows.map((row) => (
        <div key={row.key} className="gantt-row" role="row" data-row={row.key}>
          {row.cells.map((cell, n) => (
            <span key={n} role="cell" className={columns[n]?.narrow ? "cut" : "cut gantt-wide"}>
              {cell}
            </span>
          ))}
          <span role="cell" className="gantt-time">
            {ticks.map((tick) => (
              <i key={tick} className="gantt-line" style={{ left: percent(at(tick)) }} />
            ))}
            {now >= from && now <= to && <i className="gantt-now" style={{ left: percent(at(now)) }} />}
            {row.note && <span className="gantt-note cut">{row.note}</span>}
            {row.bars.map((bar, n) => (
              <span
                key={n}
                className={`gantt-bar tone-${bar.tone} ${bar.expected ? "expected" : ""} ${bar.range ? "range" : ""}`}
                style={{ left: percent(at(bar.from)), width: percent(at(bar.to) - at(bar.from)) }}
                title={bar.says}
              >
                <span className="unseen">{bar.says}</span>
              </span>
            ))}
          </span>
        </div>
      ))}
    </div>
  );
}

/** Round moments of the reader's clock. */
function ticksOf(from: number, to: number): number[] {
  const step = STEPS.find((each) => (to - from) / each <= TICKS) ?? (STEPS.at(-1) as number);
  const zone = new Date(from * 1000).getTimezoneOffset() * 60;
  const first = Math.ceil((from - zone) / step) * step + zone;
  return Array.from({ length: TICKS + 1 }, (_, n) => first + n * step).filter((tick) => tick < to - step / 4);
}

function short(time: number): string {
  const text = timeOfDay(time);
  return text.endsWith(":00") ? text.slice(0, -3) : text;
}
