import { Icon, type IconName } from "../../parts/icon";
import type { Tone } from "../../parts/state";
import "../../parts/state.css";
import type { Dataset } from "./answers";

const LOOKS: Record<Dataset["status"]["state"], [IconName, Tone]> = {
  READY: ["check", "good"],
  READING: ["down", "busy"],
  FAILED: ["cross", "bad"],
  EMPTY: ["circle", "idle"],
};

/** The state of a dataset: a word, a sign and a colour. */
export function DataState({ status }: { status: Dataset["status"] }) {
  const [icon, tone] = LOOKS[status.state] ?? ["circle", "idle"];
  return (
    <span className={`state tone-${tone}`} title={status.reason ?? undefined} data-state={status.state}>
      <Icon name={icon} />
      {status.state.toLowerCase()}
    </span>
  );
}
