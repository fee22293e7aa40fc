"""The launcher: forks a supervisor whenever its server asks for one, and ends with that server.

A fork of this small process costs under a millisecond; a fresh interpreter would cost twenty. Run as a script
with the standard library alone: `python -I -S launcher.py FD`.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import sys

if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from weft.runtime.supervisor import Supervisor


def launcher(control: socket.socket) -> None:
    """Fork a supervisor for every socket that arrives; end with the server that asked."""
    gc.freeze()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # two for each task of a gang
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps supervisors that end
    while True:
        data, fds, _flags, _address = socket.recv_fds(control, 1, 1)
        if not data:
            return
        pid = os.fork()
        if pid == 0:
            control.close()
            os.set_inheritable(fds[0], False)  # a task that held it would hide its supervisor's death
            with socket.socket(fileno=fds[0]) as channel:
                try:
                    Supervisor(channel).run()
                finally:
                    os._exit(0)
        os.close(fds[0])


if __name__ == "__main__":
    launcher(socket.socket(fileno=int(sys.argv[1])))
