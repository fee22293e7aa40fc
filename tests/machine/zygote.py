"""A process with the server's modules loaded that forks servers on request.

Starting an interpreter and importing costs a second; a test that kills a server hundreds of times would
spend its time there. What is forked runs the server's own `main` and shares nothing else with this process.

One line of JSON in, `{"argv": [...], "env": {...}, "output": path}`; the new process's id out.
"""

from __future__ import annotations

import json
import os
import signal
import sys

import uvicorn
import uvicorn.lifespan.off
import uvicorn.protocols.http.httptools_impl  # noqa: F401
import uvloop  # noqa: F401

from weft.backends.local import backend  # noqa: F401
from weft.control import control  # noqa: F401
from weft.server import __main__, app, cluster, jobs  # noqa: F401


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _become(request)
        print(pid, flush=True)


def _become(request: dict) -> None:
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for source, target in ((null, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        os.closerange(3, 64)
        os.environ.update(request["env"])
        sys.argv = ["weft.server", *request["argv"]]
        code = __main__.main()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
