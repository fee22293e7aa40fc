/** Keys that do things: one key (`/`, `j`) or two in a row (`g j`). Typing into a field is never a command. */

import { useEffect, useRef } from "react";

export interface Shortcut {
  keys: string;
  says: string;
}

interface Registered extends Shortcut {
  act: () => void;
}

const registered: Registered[] = [];
const PAUSE = 1000;
let first: { key: string; time: number } | undefined;

/** While the component is there, these keys do this. The latest to ask for a key has it. */
export function useShortcut(keys: string, says: string, act: () => void, enabled = true): void {
  const latest = useRef(act);
  latest.current = act;
  useEffect(() => {
    if (!enabled) return;
    const mine: Registered = { keys, says, act: () => latest.current() };
    registered.push(mine);
    return () => {
      registered.splice(registered.indexOf(mine), 1);
    };
  }, [keys, says, enabled]);
}

/** What the keys do here, for the help. */
export function shortcuts(): Shortcut[] {
  const byKeys = new Map(registered.map((each) => [each.keys, each]));
  return [...byKeys.values()];
}

function typing(target: EventTarget | null): boolean {
  return (
    target instanceof HTMLElement &&
    (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName))
  );
}

function find(keys: string): Registered | undefined {
  return registered.findLast((each) => each.keys === keys);
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (typing(event.target)) {
    if (event.key === "Escape") (event.target as HTMLElement).blur();
    return;
  }
  if (document.querySelector("dialog[open]")) return;
  const pressable = event.target instanceof Element && event.target.closest("button, a[href], summary");
  if (event.key === "Enter" && pressable) return;
  const started = first && event.timeStamp - first.time < PAUSE ? `${first.key} ${event.key}` : undefined;
  const found = (started && find(started)) || find(event.key);
  first = { key: event.key, time: event.timeStamp };
  if (found) {
    event.preventDefault();
    first = undefined;
    found.act();
  }
});
