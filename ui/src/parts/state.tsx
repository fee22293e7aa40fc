/** A state: a word, a sign and a colour, so that none of them is needed alone. */

import type { State } from "../api/types";
import { Icon, type IconName } from "./icon";
import "./state.css";

export type Tone = "good" | "bad" | "wait" | "busy" | "idle" | "held";

const LOOKS: Record<State, [IconName, Tone]> = {
  PENDING: ["circle", "wait"],
  QUEUED: ["clock", "wait"],
  DEPLOYING: ["half", "busy"],
  DOWNLOADING: ["down", "busy"],
  PROCESSING: ["play", "busy"],
  STORING: ["up", "busy"],
  COMPLETED: ["check", "good"],
  FAILED: ["cross", "bad"],
  HALTED: ["pause", "held"],
  CANCELLED: ["no", "idle"],
  PREEMPTED: ["back", "wait"],
  RESTARTING: ["again", "wait"],
};

const TASKS: Record<string, [IconName, Tone]> = {
  WAITING: ["clock", "wait"],
  STARTING: ["half", "busy"],
  RUNNING: ["play", "busy"],
  BACKOFF: ["again", "wait"],
  SUCCEEDED: ["check", "good"],
  FAILED: ["cross", "bad"],
  STOPPED: ["stop", "idle"],
  LOST: ["warning", "bad"],
};

export function toneOf(state: string): Tone {
  return (LOOKS[state as State] ?? TASKS[state] ?? ["circle", "idle"])[1];
}

/** The state of a job or of a task. */
export function StateBadge({ state }: { state: string }) {
  const [icon, tone] = LOOKS[state as State] ?? TASKS[state] ?? ["circle", "idle"];
  return (
    <span className={`state tone-${tone}`} data-state={state}>
      <Icon name={icon} />
      {state.toLowerCase()}
    </span>
  );
}
