/** The server's dry run of what is being written: it knows all rules, so the page has none of its own. */

import { useEffect, useState } from "react";
import { Refusal } from "../../api/client";
import { dryRun } from "../../api/submit";
import type { Job, JsonObject } from "../../api/types";

export interface Checked {
  /** Of this text. */
  text: string;
  job?: Job;
  refusal?: Refusal;
}

const PAUSE = 300;

/** The answer to the newest text that was answered; compare its `text` to see whether it is of what stands there now. */
export function useDryRun(text: string, job: JsonObject | undefined): Checked | undefined {
  const [checked, setChecked] = useState<Checked | undefined>(undefined);
  useEffect(() => {
    if (job === undefined) return;
    let gone = false;
    const timer = setTimeout(async () => {
      const found = await check(text, job);
      if (!gone) setChecked(found);
    }, PAUSE);
    return () => {
      gone = true;
      clearTimeout(timer);
    };
    // `job` is what `text` says
  }, [text]);
  return checked;
}

export async function check(text: string, job: JsonObject): Promise<Checked> {
  try {
    return { text, job: await dryRun(job) };
  } catch (error) {
    return { text, refusal: error instanceof Refusal ? error : new Refusal(500, "Error", String(error)) };
  }
}
