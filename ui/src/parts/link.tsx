/** A link inside the page: an ordinary one to the browser (new tab, copy), no reload when just clicked. */

import type { AnchorHTMLAttributes, MouseEvent } from "react";
import { go } from "../location";

interface Props extends AnchorHTMLAttributes<HTMLAnchorElement> {
  to: string;
}

export function Link({ to, onClick, ...rest }: Props) {
  const clicked = (event: MouseEvent<HTMLAnchorElement>) => {
    onClick?.(event);
    const plain = event.button === 0 && !(event.metaKey || event.ctrlKey || event.shiftKey || event.altKey);
    if (!plain || event.defaultPrevented) return;
    event.preventDefault();
    go(to);
  };
  return <a {...rest} href={to} onClick={clicked} />;
}
