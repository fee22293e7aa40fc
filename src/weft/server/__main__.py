"""`python -m weft.server`: one server on one WEFT_HOME."""

from __future__ import annotations

import argparse
import asyncio
import gc
import getpass
import ipaddress
import logging
import os
import re
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from dataclasses import fields
from pathlib import Path
from typing import Any

from weft.backends.local.machine import Shape
from weft.model.quantities import parse_cpu, parse_memory
from weft.model.resource import LABEL_KEY_PATTERN
from weft.scheduler.policy import NAMED
from weft.server.home import Home, HomeError
from weft.store.database import StoreError

log = logging.getLogger("weft.server")


def main() -> int:
    arguments = _arguments()
    os.umask(0o077)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    for chatty in ("alembic", "uvicorn"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    home = Home(arguments.home)
    try:
        if arguments.restore is not None:
            from weft.server.backup import restore

            print(restore(arguments.restore, home))
            return 0
        home.hold()
        shape = _shape(arguments, home)
        policy = _policy(arguments.policy, home)
        results_store = _results_store(arguments.results_store, home)
        listener = _listen(arguments.host, arguments.port, home)
        _run(_serve(home, shape, policy, results_store, listener))
    except (HomeError, StoreError) as problem:
        print(f"weft: {problem}", file=sys.stderr)
        return 1
    return 0


def _shape(arguments: argparse.Namespace, home: Home) -> Shape:
    """What was declared now, or else what was declared last: a server that was killed comes back as it was."""
    given = {part.name: getattr(arguments, part.name) for part in fields(Shape)}
    declared = {name: value for name, value in given.items() if value is not None}
    if not declared:
        return Shape(**home.last("shape"))
    try:
        shape = Shape(**declared)
    except ValueError as problem:
        raise HomeError(str(problem)) from None
    home.remember("shape", declared)
    return shape


def _policy(given: str | None, home: Home) -> str:
    """As for the shape: the policy of the last server, where none is named."""
    if given is not None:
        home.remember("policy", {"name": given})
        return given
    last = home.last("policy").get("name", "default")
    return last if last in NAMED else "default"


def _results_store(given: str | None, home: Home) -> Path | None:
    """As for the policy; `none` ends it."""
    if given is not None:
        home.remember("results-store", {"folder": None if given == "none" else str(Path(given).absolute())})
    folder = home.last("results-store").get("folder")
    if folder is None:
        return None
    try:
        Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as problem:
        raise HomeError(
            f"results store {folder}: {problem.strerror}; mount it, name another with --results-store DIR, "
            "or go on without: --results-store none"
        ) from None
    return Path(folder)


def _run(serving: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(serving)
    else:
        uvloop.run(serving)


async def _serve(
    home: Home, shape: Shape, policy: str, results_store: Path | None, listener: socket.socket
) -> None:
    import uvicorn

    from weft.backends.local.backend import LocalBackend
    from weft.control.control import Control
    from weft.server import app, openapi
    from weft.server.cluster import ClusterOperations, server_facts
    from weft.server.jobs import JobOperations
    from weft.server.jobtypes import JobTypeOperations
    from weft.server.packages import Packages
    from weft.server.protocol import Protocol
    from weft.server.queues import QueueOperations
    from weft.server.secrets import Secrets
    from weft.server.sizes import SizeOperations
    from weft.store.store import Store

    secrets = Secrets(home.path / "secrets")
    store = Store(home.database)
    backend = LocalBackend(home.path, shape, secrets.value)
    control = Control(store, backend, policy=NAMED[policy], results_store=results_store)
    await control.start()
    host, port = listener.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    facts = server_facts(address, home.path, backend.name, policy, results_store, time.time())
    packages = Packages(home.path / "packages")
    owner = getpass.getuser()
    cluster = ClusterOperations(control, packages, secrets, home.path, facts, owner)
    jobs, queues = JobOperations(control, packages, secrets, owner), QueueOperations(control, owner)
    types, sizes = JobTypeOperations(control, owner), SizeOperations(control, owner)
    operations = [*jobs.table(), *queues.table(), *types.table(), *sizes.table(), *cluster.table()]
    cluster.document = lambda: openapi.document(operations)
    config = uvicorn.Config(
        app.build(operations, home.token()),
        http=Protocol,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        server_header=False,
        date_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn raises the signal again when it has stopped; the default action would end us before we close
        signal.signal(number, server.handle_exit)
    gc.collect()
    gc.freeze()
    gc.set_threshold(
        20_000, 20, 50
    )  # little here is in cycles; at the default it was a twentieth of all work
    home.announce(facts)
    log.info("weft %s at %s, data in %s", facts["version"], address, home.path)
    try:
        await server.serve(sockets=[listener])
    finally:
        await control.close()
        store.close()
        log.info("stopped; running tasks go on")


def _listen(host: str, port: int | None, home: Home) -> socket.socket:
    """A socket on loopback: the port asked for, else the last one, else any."""
    try:
        loopback = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise HomeError(f"--host {host} is no address; use 127.0.0.1 or ::1") from None
    if not loopback.is_loopback:
        raise HomeError(
            f"--host {host}: the server listens on loopback only (127.0.0.1 or ::1); reach it over ssh -L"
        )
    family = socket.AF_INET6 if loopback.version == 6 else socket.AF_INET
    wishes = [port] if port is not None else [home.last_port(), 0]
    for wish in wishes:
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((str(loopback), wish))
        except OSError as problem:
            listener.close()
            if wish == wishes[-1]:
                raise HomeError(
                    f"cannot listen on {loopback}:{wish}: {problem.strerror}; choose another --port"
                ) from None
            continue
        listener.listen(2048)
        return listener
    raise AssertionError("unreachable")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m weft.server", description="Run one Weft server.")
    default = Path(os.environ.get("WEFT_HOME") or "~/.weft")
    parser.add_argument(
        "--home", type=Path, default=default, help="where all its data is (WEFT_HOME, ~/.weft)"
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=_between(0, 65535), default=None)
    parser.add_argument(
        "--nodes", type=_between(1, 10_000), default=None, help="carve the machine into virtual nodes"
    )
    parser.add_argument(
        "--cpu", type=_quantity(parse_some_cpu), default=None, help="CPUs in all, in place of the real ones"
    )
    parser.add_argument("--memory", type=_quantity(parse_memory), default=None, help="memory in all")
    parser.add_argument(
        "--gpus", type=_between(0, 100_000), default=None, help="virtual GPUs in all, in place of real ones"
    )
    parser.add_argument("--gpu-type", default=None)
    parser.add_argument(
        "--gpu-memory", type=_quantity(parse_memory), default=None, help="memory of each virtual GPU"
    )
    parser.add_argument(
        "--gpu-generation", type=_between(1, 1000), default=None, help="generation of the GPUs"
    )
    parser.add_argument(
        "--racks", type=_between(1, 10_000), default=None, help="spread the virtual nodes over so many"
    )
    parser.add_argument(
        "--fabrics", type=_between(1, 10_000), default=None, help="the same for fast networks"
    )
    parser.add_argument(
        "--devices", type=_devices, default=None, help="what else each node has: fpga=2,rdma=1"
    )
    parser.add_argument(
        "--taint",
        dest="taints",
        action="append",
        default=None,
        metavar="[NODE:]KEY",
        help="keep jobs that do not tolerate KEY off all nodes, or off one; repeatable",
    )
    parser.add_argument(
        "--results-store",
        default=None,
        metavar="DIR",
        help="keep checkpoints and results a second time in this folder; none: no longer",
    )
    parser.add_argument(
        "--policy",
        choices=list(NAMED),
        default=None,
        help="the order of waiting jobs (default: the last one)",
    )
    parser.add_argument(
        "--restore", type=Path, default=None, help="fill an empty home from a backup, and end"
    )
    return parser.parse_args()


def parse_some_cpu(text: str) -> int:
    if not (cpu := parse_cpu(text)):
        raise ValueError("a machine without CPUs runs nothing; leave --cpu out for what it has")
    return cpu


def _between(least: int, most: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if not text.lstrip("-").isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number between {least} and {most}")
        return int(text)

    return convert


def _quantity(parse: Callable[[str], int]) -> Callable[[str], int]:
    def convert(text: str) -> int:
        try:
            return parse(text)
        except ValueError as problem:
            raise argparse.ArgumentTypeError(f"{text!r}: {problem}") from None

    return convert


def _devices(text: str) -> dict[str, int]:
    found = {}
    for part in text.split(","):
        name, _, count = part.partition("=")
        if not re.match(LABEL_KEY_PATTERN, name) or not count.isdigit() or not 0 < int(count) <= 1024:
            raise argparse.ArgumentTypeError(f"{part!r}: write NAME=COUNT, for example fpga=2,rdma=1")
        found[name] = int(count)
    return found


if __name__ == "__main__":
    sys.exit(main())
