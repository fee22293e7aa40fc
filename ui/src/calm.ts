/** `useCalm`: follows a value that changes often, but not more often than this many milliseconds. */

import { useEffect, useRef, useState } from "react";

export function useCalm<T>(value: T, pause: number): T {
  const [calm, setCalm] = useState(value);
  const last = useRef(0);
  useEffect(() => {
    const wait = Math.max(0, last.current + pause - performance.now());
    const timer = setTimeout(() => {
      last.current = performance.now();
      setCalm(value);
    }, wait);
    return () => clearTimeout(timer);
  }, [value, pause]);
  return calm;
}
