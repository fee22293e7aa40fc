/** Across the page when the server does not answer: what is shown is what was last known. */

import { useEffect, useState } from "react";
import { useLine } from "../api/live";
import { Icon } from "../parts/icon";
import "./banner.css";

const PATIENCE = 700;

export function Banner() {
  const line = useLine();
  const [late, setLate] = useState(false);
  useEffect(() => {
    setLate(false);
    if (line !== "away") return;
    const timer = setTimeout(() => setLate(true), PATIENCE);
    return () => clearTimeout(timer);
  }, [line]);
  return (
    <div role="status" className="banner-place">
      {line === "away" && late && (
        <div className="banner tone-wait">
          <Icon name="again" className="spins" />
          <span>
            <b>The server does not answer.</b> This is what was last known; jobs run on. Trying again… Is it
            up? <code>weft status</code>, <code>weft up</code>
          </span>
        </div>
      )}
    </div>
  );
}
