/** What the job runs: as many lines as one reads at a glance, all of them when asked. */

import { useLayoutEffect, useRef, useState } from "react";

export function CommandLine({ words }: { words: readonly string[] }) {
  const place = useRef<HTMLElement>(null);
  const [all, setAll] = useState(false);
  const [long, setLong] = useState(false);
  const text = words.map(quoted).join(" ");
  useLayoutEffect(() => {
    const element = place.current;
    if (element) setLong(element.scrollHeight > element.clientHeight + 1);
  }, [text]);
  return (
    <div className="commandline">
      <code ref={place} className={all ? "" : "few"}>
        {text}
      </code>
      {(long || all) && (
        <button className="tiny" onClick={() => setAll(!all)}>
          {all ? "Show less" : "Show all"}
        </button>
      )}
    </div>
  );
}

/** As one would type it. */
const quoted = (word: string) =>
  /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
