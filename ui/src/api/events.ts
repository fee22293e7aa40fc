/** Server-sent events that come back by themselves: after an error with growing patience, and when the page is looked at again.
 *
 * A browser gives one server six connections for all tabs together, so a tab that nobody sees holds none. */

export interface Following {
  /** Where to begin or go on; asked anew for each connection. */
  address: () => string;
  /** A handler for each kind of message. */
  on: Record<string, (data: never, id: string) => void>;
  opened?: () => void;
  /** The line is lost; another try follows. */
  lost?: () => void;
  /** The server said that nothing more will come (`event: end`). */
  ended?: () => void;
}

const UNSEEN = 1_000;
const SHORTEST = 300;
const LONGEST = 5_000;

/** Begins at once; call what it returns to stop. */
export function follow(following: Following): () => void {
  let source: EventSource | undefined;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let patience = SHORTEST;
  let over = false;

  const close = () => {
    clearTimeout(timer);
    source?.close();
    source = undefined;
  };
  const open = () => {
    close();
    source = new EventSource(following.address());
    source.onopen = () => {
      patience = SHORTEST;
      following.opened?.();
    };
    source.onerror = () => {
      close();
      following.lost?.();
      timer = setTimeout(open, patience);
      patience = Math.min(patience * 2, LONGEST);
    };
    for (const [name, handler] of Object.entries(following.on)) {
      source.addEventListener(name, (message: MessageEvent<string>) =>
        handler(JSON.parse(message.data) as never, message.lastEventId),
      );
    }
    source.addEventListener("end", () => {
      stop();
      following.ended?.();
    });
  };
  const seen = () => {
    if (document.visibilityState === "hidden") {
      clearTimeout(timer);
      timer = setTimeout(close, UNSEEN);
    } else if (source === undefined && !over) {
      patience = SHORTEST;
      open();
    } else if (source !== undefined) {
      clearTimeout(timer);
    }
  };
  const stop = () => {
    over = true;
    close();
    document.removeEventListener("visibilitychange", seen);
  };

  document.addEventListener("visibilitychange", seen);
  open();
  return stop;
}
