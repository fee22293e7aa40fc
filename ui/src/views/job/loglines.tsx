/** The lines in sight. At the end it stays at the end; scrolled up it stays where it is, whatever comes. */

import { useVirtualizer } from "@tanstack/react-virtual";
import { type Ref, useEffect, useImperativeHandle, useLayoutEffect, useRef, useState } from "react";
import { moment, timeOfDay } from "../../format";
import { Icon } from "../../parts/icon";
import type { Held } from "./logfeed";
import { LogText } from "./logtext";

export interface LogLinesHandle {
  /** By the line's number. */
  show: (line: number) => void;
  toEnd: () => void;
}

interface Props {
  ref: Ref<LogLinesHandle>;
  held: Held;
  at: number | undefined;
  find: string;
  wrap: boolean;
  times: boolean;
  /** Whose lines are told apart; none or one: no need to. */
  tasks: readonly string[];
  older: () => void;
  newer: () => void;
  end: () => void;
}

const ROW = 20;
const NEAR = 40 * ROW;

export function LogLines({ ref, held, at, find, wrap, times, tasks, older, newer, end }: Props) {
  const scroller = useRef<HTMLDivElement>(null);
  const [stuck, setStuck] = useState(true);
  const aim = useRef<number | "end" | undefined>("end");
  const { lines, shift } = held;
  const virtual = useVirtualizer({
    count: lines.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW,
    overscan: 30,
    getItemKey: (index) => index - shift,
  });
  useImperativeHandle(ref, () => ({
    show: (line) => {
      aim.current = line;
      setStuck(false);
      settle();
    },
    toEnd: () => {
      aim.current = "end";
      setStuck(true);
      settle();
    },
  }));

  const settle = () => {
    if (aim.current === undefined || lines.length === 0) return;
    if (aim.current === "end") virtual.scrollToIndex(lines.length - 1, { align: "end" });
    else virtual.scrollToIndex(aim.current + shift, { align: "center" });
    aim.current = undefined;
  };
  const before = useRef(shift);
  useLayoutEffect(() => {
    const added = shift - before.current;
    before.current = shift;
    if (aim.current !== undefined) settle();
    else if (stuck && held.atEnd) virtual.scrollToIndex(lines.length - 1, { align: "end" });
    else if (added !== 0 && scroller.current) scroller.current.scrollTop += added * ROW;
  }, [held]);
  useEffect(() => virtual.measure(), [wrap]);

  const scrolled = () => {
    const element = scroller.current;
    if (!element) return;
    const left = element.scrollHeight - element.scrollTop - element.clientHeight;
    setStuck(held.atEnd && left < ROW);
    if (element.scrollTop < NEAR) older();
    if (left < NEAR) newer();
  };

  const width = Math.min(Math.max(0, ...tasks.map((task) => task.length)), 20);
  return (
    <div className="log-place">
      <div
        ref={scroller}
        className={`log-lines ${wrap ? "wraps" : ""}`}
        role="log"
        aria-label="Lines"
        aria-live="off"
        tabIndex={0}
        onScroll={scrolled}
      >
        <div className="log-all" style={{ height: virtual.getTotalSize() }}>
          {virtual.getVirtualItems().map((item) => {
            const line = lines[item.index];
            if (!line) return null;
            return (
              <div
                key={item.key}
                ref={wrap ? virtual.measureElement : undefined}
                data-index={item.index}
                className={`log-line ${item.index - shift === at ? "at" : ""}`}
                style={{ transform: `translateY(${item.start}px)` }}
              >
                {times && (
                  <time
                    className="log-time"
                    dateTime={new Date(line.time * 1000).toISOString()}
                    title={moment(line.time)}
                  >
                    {timeOfDay(line.time)}
                  </time>
                )}
                {tasks.length > 1 && (
                  <span
                    className={`log-task task-${tasks.indexOf(line.task) % 6}`}
                    style={{ width: `${width}ch` }}
                  >
                    {line.task}
                  </span>
                )}
                <span className="log-text">
                  <LogText text={line.text} find={find} />
                </span>
              </div>
            );
          })}
        </div>
      </div>
      {!stuck && (
        <button className="log-end" onClick={end}>
          <Icon name="down" />
          End
        </button>
      )}
    </div>
  );
}
