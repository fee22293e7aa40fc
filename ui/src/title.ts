import { useEffect } from "react";

/** The name of the tab while the view is there. */
export function useTitle(title: string): void {
  useEffect(() => {
    document.title = `${title} · Weft`;
  }, [title]);
}
