/** Curves on one pair of axes (uPlot). Zoom by dragging, a double click shows all again. */

import { useEffect, useMemo, useRef } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { timeOfDay } from "../format";
import { useDark } from "../theme";
import "./curve.css";
import { useWidth } from "./width";

export interface Series {
  label: string;
  /** By x. */
  points: readonly (readonly [x: number, y: number | null])[];
  /** Which of the colours; by place if left out. */
  colour?: number;
  dashed?: boolean;
  /** Drawn faintly, for example the raw values behind smoothed ones. */
  faint?: boolean;
  /** The area below it is filled. */
  filled?: boolean;
}

interface Props {
  label: string;
  series: readonly Series[];
  /** x is seconds since 1970. */
  time?: boolean;
  log?: boolean;
  height?: number;
  format?: (value: number) => string;
  xFormat?: ((value: number) => string) | undefined;
  /** Fixed ends of the y axis. */
  range?: [number | null, number | null];
  /** y is bytes: its marks are powers of two. */
  binary?: boolean;
  /** Curves with the same word move their cursor together. */
  together?: string;
  legend?: boolean;
}

const POWERS = Array.from({ length: 60 }, (_, n) => 2 ** n);

const COLOURS = {
  light: ["#2159c9", "#b4520b", "#17703f", "#8b3fb5", "#b42355", "#0a7280", "#7a5d00", "#586172"],
  dark: ["#85adff", "#f5a55c", "#5fd08f", "#d09af5", "#ff8fb0", "#5fd0dc", "#e0c14f", "#9aa4b5"],
};

/** The colour of the n-th curve, in the theme of the moment. */
export function curveColour(n: number, dark: boolean): string {
  const colours = dark ? COLOURS.dark : COLOURS.light;
  return colours[n % colours.length] as string;
}

export function Curve(props: Props) {
  const {
    label,
    series,
    time = false,
    log = false,
    height = 200,
    format,
    xFormat,
    range,
    binary,
    together,
    legend = true,
  } = props;
  const place = useRef<HTMLDivElement>(null);
  const words = useRef<HTMLElement>(null);
  const plot = useRef<uPlot | undefined>(undefined);
  const width = useWidth(place);
  const dark = useDark();
  const data = useMemo(() => align(series), [series]);
  const looks = series.map((s) => `${s.label}|${s.colour}|${s.dashed}|${s.faint}|${s.filled}`).join("\n");
  const latest = useRef({ data, format, xFormat });
  latest.current = { data, format, xFormat };

  /** The values under the cursor; without one, the last. Written past React: it happens at every move of the mouse. */
  const tellLegend = (u: uPlot, shownX: (x: number) => string, shown: (y: number) => string) => {
    const index = u.cursor.idx;
    const x = index == null ? undefined : u.data[0][index];
    for (const word of words.current?.querySelectorAll<HTMLElement>("[data-x], [data-y]") ?? []) {
      const column = u.data[Number(word.dataset["y"])];
      if (word.dataset["y"] === undefined || column === undefined) {
        word.textContent = x === undefined ? "" : time ? timeOfDay(x) : shownX(x);
      } else {
        const value = index == null ? Array.from(column).findLast((each) => each != null) : column[index];
        word.textContent = value == null ? "–" : shown(value);
      }
    }
  };

  useEffect(() => {
    const target = place.current;
    if (!target || width === 0) return;
    const css = getComputedStyle(document.documentElement);
    const quiet = css.getPropertyValue("--quiet");
    const line = css.getPropertyValue("--line");
    const shownX = (value: number) => latest.current.xFormat?.(value) ?? short(value);
    const shown = (value: number) => latest.current.format?.(value) ?? short(value);
    const axis = {
      stroke: quiet,
      font: "11px system-ui",
      grid: { stroke: line, width: 1 },
      ticks: { show: false },
    };
    const made = new uPlot(
      {
        width,
        height,
        padding: [8, time ? 24 : 8, 0, 0], // the last time of day is as wide as that beyond its mark
        ...(together ? { cursor: { sync: { key: together } } } : {}),
        legend: { show: false },
        hooks: { setCursor: [(u) => tellLegend(u, shownX, shown)] },
        scales: {
          x: { time },
          y: {
            distr: log ? 3 : 1,
            ...(range ? { range: (_plot, low, high) => pinned(range, low, high) } : {}),
          },
        },
        axes: [
          { ...axis, size: 28, values: (_, ticks) => (time ? clockTicks(ticks) : ticks.map(shownX)) },
          {
            ...axis,
            size: 56,
            values: (_, ticks) => ticks.map((v) => (v == null ? "" : shown(v))),
            ...(binary ? { incrs: POWERS } : {}),
          },
        ],
        series: [
          {},
          ...series.map((s, n) => {
            const colour = curveColour(s.colour ?? n, dark);
            return {
              label: s.label,
              stroke: s.faint ? `${colour}40` : colour,
              width: s.faint || series.length > 3 ? 1 : 1.5,
              spanGaps: true,
              points: { show: (u: uPlot, n: number) => u.data[0].length < 2 && n > 0, size: 5, fill: colour },
              ...(s.dashed ? { dash: [6, 4] } : {}),
              ...(s.filled ? { fill: `${colour}22` } : {}),
            };
          }),
        ],
      },
      latest.current.data,
      target,
    );
    plot.current = made;
    return () => {
      made.destroy();
      plot.current = undefined;
    };
    // the curves' points come through setData below
  }, [width, height, dark, time, log, together, looks, range?.[0], range?.[1]]);

  useEffect(() => {
    plot.current?.setData(data);
  }, [data]);

  const shown = (value: number) => format?.(value) ?? short(value);
  return (
    <figure className="curve">
      <div ref={place} role="img" aria-label={label} />
      {legend && (
        <figcaption ref={words} className="curve-legend">
          <span data-x />
          {series.map(
            (s, n) =>
              !s.faint && (
                <span key={n}>
                  <span className="curve-chip" style={{ background: curveColour(s.colour ?? n, dark) }} />
                  {s.label} <b data-y={n + 1}>{lastOf(s, shown)}</b>
                </span>
              ),
          )}
        </figcaption>
      )}
    </figure>
  );
}

function lastOf({ points }: Series, shown: (value: number) => string): string {
  const value = points.findLast(([, y]) => y !== null)?.[1];
  return value == null ? "–" : shown(value);
}

/** Times of day, with seconds only where they tell moments apart. */
function clockTicks(ticks: number[]): string[] {
  const close = ticks.length > 1 && (ticks[1] as number) - (ticks[0] as number) < 60;
  return ticks.map((tick) => (close ? timeOfDay(tick) : timeOfDay(tick).slice(0, 5)));
}

function pinned([low, high]: [number | null, number | null], min: number, max: number): [number, number] {
  return [low ?? min, Math.max(high ?? max * 1.05, (low ?? min) + 1e-9)];
}

function short(value: number): string {
  const size = Math.abs(value);
  if (size >= 1e9) return `${Number((value / 1e9).toPrecision(3))}G`;
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(3))}k`;
  if (size !== 0 && size < 1e-3) return value.toExponential(1);
  return String(Number(value.toPrecision(4)));
}

/** All curves on one row of x: uPlot's form. */
function align(series: readonly Series[]): uPlot.AlignedData {
  if (series.length === 1) {
    const only = series[0] as Series;
    return [only.points.map(([x]) => x), only.points.map(([, y]) => y)];
  }
  const xs = [...new Set(series.flatMap((s) => s.points.map(([x]) => x)))].sort((a, b) => a - b);
  const place = new Map(xs.map((x, n) => [x, n]));
  const columns = series.map((s) => {
    const column: (number | null | undefined)[] = new Array(xs.length).fill(undefined);
    for (const [x, y] of s.points) column[place.get(x) as number] = y;
    return column;
  });
  return [xs, ...columns];
}
