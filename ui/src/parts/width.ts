/** How wide an element is, as it changes. 0 before the first look. */

import { type RefObject, useLayoutEffect, useState } from "react";

export function useWidth(element: RefObject<HTMLElement | null>): number {
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const found = element.current;
    if (!found) return;
    setWidth(found.clientWidth);
    const observer = new ResizeObserver(() => setWidth(found.clientWidth));
    observer.observe(found);
    return () => observer.disconnect();
  }, [element]);
  return width;
}
