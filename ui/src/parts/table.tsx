/** A table that draws only the rows in sight, so ten thousand scroll like ten. `j` and `k` move, Enter opens, `x` picks. */

import { useVirtualizer } from "@tanstack/react-virtual";
import { type ReactNode, useEffect, useMemo, useRef, useState } from "react";
import { useShortcut } from "../keyboard";
import { go } from "../location";
import "./table.css";
import { useWidth } from "./width";

export interface Column<Row> {
  id: string;
  title: string;
  /** As in grid-template-columns: `120px`, `minmax(160px, 2fr)`. */
  width: string;
  cell: (row: Row) => ReactNode;
  right?: boolean;
  /** The column is left out in a table narrower than this. */
  from?: number;
  /** The row's place by this column; makes the head a button. */
  sort?: (row: Row) => number | string;
}

export interface Sorting {
  by: string;
  down: boolean;
}

interface Props<Row> {
  label: string;
  rows: readonly Row[];
  columns: readonly Column<Row>[];
  rowKey: (row: Row) => string;
  /** Where Enter and a click on the row lead. */
  to?: (row: Row) => string;
  picked?: ReadonlySet<string>;
  onPick?: (picked: ReadonlySet<string>) => void;
  sorting?: Sorting | undefined;
  onSort?: (sorting: Sorting) => void;
  empty?: ReactNode;
  /** As high as its rows, up to this; otherwise it fills its parent. */
  most?: number;
  onHover?: (row: Row | undefined) => void;
  /** What the rows were chosen by: when it changes, the table begins at its top again. */
  chosenBy?: string;
}

const ROW = 36;

export function Table<Row>(props: Props<Row>) {
  const {
    label,
    rows,
    columns,
    rowKey,
    to,
    picked,
    onPick,
    sorting,
    onSort,
    empty,
    most,
    onHover,
    chosenBy,
  } = props;
  const scroller = useRef<HTMLDivElement>(null);
  const width = useWidth(scroller);
  const [at, setAt] = useState<string | undefined>(undefined);
  const shown = useMemo(
    () => columns.filter((column) => width === 0 || width >= (column.from ?? 0)),
    [columns, width],
  );
  const template = [...(onPick ? ["40px"] : []), ...shown.map((column) => column.width)].join(" ");
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW,
    overscan: 6,
  });

  const index = at === undefined ? -1 : rows.findIndex((row) => rowKey(row) === at);
  const move = (by: number) => {
    const next = Math.min(Math.max(index + by, 0), rows.length - 1);
    const row = rows[next];
    if (row === undefined) return;
    setAt(rowKey(row));
    virtual.scrollToIndex(next);
  };
  const pick = (key: string) => {
    const next = new Set(picked);
    if (!next.delete(key)) next.add(key);
    onPick?.(next);
  };
  const current = rows[index];
  useShortcut("j", "next row", () => move(1));
  useShortcut("k", "previous row", () => move(-1));
  useShortcut(
    "Enter",
    "open the row",
    () => current && to && go(to(current)),
    to !== undefined && current !== undefined,
  );
  useShortcut("x", "pick the row", () => current && pick(rowKey(current)), onPick !== undefined);

  const rangeFrom = useRef<number | undefined>(undefined);
  const clickPick = (position: number, range: boolean) => {
    const row = rows[position];
    if (row === undefined) return;
    if (range && rangeFrom.current !== undefined) {
      const [low, high] = [rangeFrom.current, position].sort((a, b) => a - b) as [number, number];
      onPick?.(new Set([...(picked ?? []), ...rows.slice(low, high + 1).map(rowKey)]));
    } else {
      pick(rowKey(row));
    }
    rangeFrom.current = position;
  };
  const all = rows.length > 0 && picked !== undefined && rows.every((row) => picked.has(rowKey(row)));

  useEffect(() => {
    if (at !== undefined && index < 0) setAt(undefined);
  }, [at, index]);
  useEffect(() => {
    if (scroller.current) scroller.current.scrollTop = 0;
  }, [chosenBy]);

  return (
    <div
      className={most === undefined ? "table" : "table bounded"}
      role="table"
      aria-label={label}
      aria-rowcount={rows.length + 1}
      ref={scroller}
      tabIndex={0}
      style={most === undefined ? undefined : { maxHeight: most }}
      onMouseLeave={() => onHover?.(undefined)}
    >
      <div className="table-head" role="rowgroup">
        <div role="row" aria-rowindex={1} className="table-row" style={{ gridTemplateColumns: template }}>
          {onPick && (
            <span role="columnheader">
              <input
                type="checkbox"
                aria-label="Pick all"
                checked={all}
                onChange={() => onPick(all ? new Set() : new Set(rows.map(rowKey)))}
              />
            </span>
          )}
          {shown.map((column) => (
            <Head key={column.id} column={column} sorting={sorting} onSort={onSort} />
          ))}
        </div>
      </div>
      {rows.length === 0 && empty && (
        <div role="rowgroup">
          <div role="row">
            <div role="cell">{empty}</div>
          </div>
        </div>
      )}
      <div
        role={rows.length > 0 ? "rowgroup" : undefined}
        className="table-body"
        style={{ height: virtual.getTotalSize() }}
      >
        {virtual.getVirtualItems().map((item) => {
          const row = rows[item.index] as Row;
          const key = rowKey(row);
          return (
            <div
              key={key}
              role="row"
              aria-rowindex={item.index + 2}
              aria-selected={picked?.has(key) ?? undefined}
              className={`table-row ${key === at ? "at" : ""} ${to ? "opens" : ""}`}
              style={{ gridTemplateColumns: template, transform: `translateY(${item.start}px)` }}
              onMouseEnter={() => onHover?.(row)}
              onClick={(event) => {
                if (!to || (event.target as Element).closest("a, button, input, label")) return;
                if (getSelection()?.toString()) return;
                go(to(row));
              }}
            >
              {onPick && (
                <span role="cell">
                  <input
                    type="checkbox"
                    aria-label={`Pick ${key}`}
                    checked={picked?.has(key) ?? false}
                    onClick={(event) => clickPick(item.index, event.shiftKey)}
                    onChange={() => undefined}
                  />
                </span>
              )}
              {shown.map((column) => (
                <span role="cell" key={column.id} className={column.right ? "cut right" : "cut"}>
                  {column.cell(row)}
                </span>
              ))}
            </div>
          );
        })}
      </div>
    </div>
  );
}

interface HeadProps<Row> {
  column: Column<Row>;
  sorting: Sorting | undefined;
  onSort: ((sorting: Sorting) => void) | undefined;
}

function Head<Row>({ column, sorting, onSort }: HeadProps<Row>) {
  const here = sorting?.by === column.id ? sorting : undefined;
  const order = here ? (here.down ? "descending" : "ascending") : undefined;
  return (
    <span role="columnheader" className={column.right ? "cut right" : "cut"} aria-sort={order}>
      {onSort && column.sort ? (
        <button
          className="table-sort"
          onClick={() => onSort({ by: column.id, down: here ? !here.down : false })}
        >
          {column.title}
          {here && <span aria-hidden="true">{here.down ? "↓" : "↑"}</span>}
        </button>
      ) : (
        column.title
      )}
    </span>
  );
}

/** The rows in the order that the head was asked for. */
export function sorted<Row>(
  rows: readonly Row[],
  columns: readonly Column<Row>[],
  sorting: Sorting | undefined,
): readonly Row[] {
  const place = columns.find((column) => column.id === sorting?.by)?.sort;
  if (!place || !sorting) return rows;
  const sign = sorting.down ? -1 : 1;
  const keyed = rows.map((row) => [place(row), row] as const);
  keyed.sort(([a], [b]) => (a < b ? -sign : a > b ? sign : 0));
  return keyed.map(([, row]) => row);
}
