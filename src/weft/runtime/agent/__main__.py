"""`python -m weft.runtime.agent`: the agent of one pod."""

from __future__ import annotations

import os
import signal

from weft.runtime.agent.gate import Gate
from weft.runtime.agent.settings import Settings


def main() -> None:
    """The gate first, then everything that may take its time: what is imported before it delays the task."""
    signal.signal(
        signal.SIGTERM, signal.SIG_IGN
    )  # the task has its grace; this ends when it is told that it is done
    os.umask(0o022)
    settings = Settings(os.environ)
    gate = Gate(settings)
    gate.prepare()

    import threading

    if not gate.open:
        threading.Thread(target=gate.wait, daemon=True).start()

    from weft.runtime.agent.echo import Echo
    from weft.runtime.agent.serve import Server
    from weft.runtime.agent.watch import Watch

    watch = Watch(settings, gate)
    server = Server(settings, gate, watch)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    echo = Echo(settings, watch)
    echo.start()
    watch.run()
    echo.join(timeout=1.0)
    os._exit(0)  # whoever still reads or writes has nothing to wait for


if __name__ == "__main__":
    main()
