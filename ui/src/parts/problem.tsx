/** A refusal in place of what was asked for: what, why, and the command to try. */

import type { Refusal } from "../api/client";
import "./empty.css";
import { Next } from "./next";

export function Problem({ refusal, again }: { refusal: Refusal; again?: () => void }) {
  return (
    <div className="empty tone-bad" role="alert">
      <h2>{refusal.title}</h2>
      <p>{refusal.message}</p>
      <Next text={refusal.next} />
      {again && <button onClick={again}>Try again</button>}
    </div>
  );
}
