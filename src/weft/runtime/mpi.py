"""MPI between the tasks of a job: mpirun in the launcher starts its daemons in the workers, with no ssh anywhere.

`serve` waits in every worker for a command to run; `launch` runs mpirun in the launcher and makes `rsh` of this
module its remote shell, which sends a daemon's command line to the worker that it is meant for. Each
worker's processes are then really in its place: its CPUs, its memory limit, its node.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from io import BufferedRWPair
from typing import IO

PATIENCE = 60.0
LONGEST = 1 << 20


def token() -> str:
    """Known to all tasks of the job: it keeps those of another from running things here by mistake."""
    return hashlib.sha256(f"mpi {os.environ['WEFT_JOB_UID']}".encode()).hexdigest()


# ── in the workers ──


def serve() -> int:
    """Run what the launcher's mpirun sends, until the job ends."""
    with socket.create_server(("", int(os.environ["WEFT_MPI_PORT"]))) as listener:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_attend, args=(connection,), daemon=True).start()


def _attend(connection: socket.socket) -> None:
    with connection, connection.makefile("rwb") as stream:
        asked = json.loads(stream.readline(LONGEST))
        if not hmac.compare_digest(str(asked.get("token")), token()):
            return
        command = ["/bin/sh", "-c", asked["command"]]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert process.stdout is not None
        try:
            _copy(process.stdout, stream)
            code = process.wait()
            stream.write(b"\n" + json.dumps({"code": code}).encode())
            stream.flush()
        except OSError:  # the launcher is gone
            process.send_signal(signal.SIGTERM)
            process.wait()


def _copy(source: IO[bytes], target: BufferedRWPair) -> None:
    while data := os.read(source.fileno(), 1 << 16):
        target.write(data)
        target.flush()


# ── in the launcher ──


def launch(command: list[str]) -> int:
    """mpirun around the job's own command, one process for each slot of each worker."""
    hosts = os.environ["WEFT_MPI_HOSTS"].split(",")
    slots = int(os.environ["WEFT_MPI_SLOTS"])
    names = ",".join(f"{_name(number)}:{slots}" for number in range(len(hosts)))
    agent = f"{sys.executable} -m weft.runtime.mpi rsh"
    settings = {
        "plm_rsh_agent": agent,
        "plm_rsh_no_tree_spawn": "1",
        "orte_leave_session_attached": "1",
        "hwloc_base_binding_policy": "none",
        "rmaps_base_oversubscribe": "1",
    }
    environ = {**os.environ, **{f"OMPI_MCA_{name}": value for name, value in settings.items()}}
    if os.geteuid() == 0:
        environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    argv = ["mpirun", "--host", names, "-np", str(len(hosts) * slots), *command]
    os.execvpe(argv[0], argv, environ)  # noqa: S606


def _name(number: int) -> str:
    """A name that cannot be taken for the launcher's own machine."""
    return f"weft-worker-{number}.invalid"


def rsh(host: str, command: list[str]) -> int:
    """As a remote shell: run a command line in a worker, and end as it ends."""
    number = int(host.removeprefix("weft-worker-").removesuffix(".invalid"))
    address, _, port = os.environ["WEFT_MPI_HOSTS"].split(",")[number].rpartition(":")
    with _connected(address, int(port)) as connection, connection.makefile("rwb") as stream:
        stream.write(json.dumps({"token": token(), "command": " ".join(command)}).encode() + b"\n")
        stream.flush()
        said = b""
        while data := connection.recv(1 << 16):
            said += data
            whole, _, said = said.rpartition(b"\n")
            if whole:
                os.write(1, whole + b"\n")
    try:
        return int(json.loads(said)["code"]) & 0xFF
    except (ValueError, KeyError, TypeError):
        print(f"{host}: the connection to the worker was lost", file=sys.stderr)
        return 255


def _connected(address: str, port: int) -> socket.socket:
    """The workers start with the launcher, so one may not listen yet."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return socket.create_connection((address, port), timeout=None)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def main() -> int:
    what, *rest = sys.argv[1:]
    match what:
        case "serve":
            return serve()
        case "launch":
            return launch(rest)
        case "rsh":
            return rsh(rest[0], rest[1:])
        case _:
            print(f"no such part: {what}", file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main())
