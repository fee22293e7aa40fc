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
import resource
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from weft.backends.api import EngineUnavailable
from weft.backends.local.machine import Shape
from weft.model.quantities import parse_cpu, parse_memory
from weft.model.resource import LABEL_KEY_PATTERN
from weft.scheduler.policy import NAMED
from weft.server import engines
from weft.server.health import Health, health_address
from weft.server.home import Home, HomeBusy, HomeError
from weft.store.database import StoreError

log = logging.getLogger("weft.server")
HOME_AGAIN = 0.05
T = TypeVar("T")


def main() -> int:
    arguments = _arguments()
    os.umask(0o077)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # one for each launch that runs
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    for chatty in ("alembic", "uvicorn", "httpx2", "httpcore2"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    home = Home(arguments.home)
    try:
        if arguments.restore is not None:
            from weft.server import databases
            from weft.server.backup import restore

            home.hold()
            print(restore(arguments.restore, home, databases.chosen(arguments.database, home)))
            return 0
        if arguments.leader:
            _run(_lead(arguments, home))
        else:
            home.hold()
            _run(_serve(arguments, home, engines.chosen(arguments, home)))
    except (HomeError, StoreError) as problem:
        print(f"weft: {problem}", file=sys.stderr)
        return 1
    return 0


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


async def _lead(arguments: argparse.Namespace, home: Home) -> None:
    """Wait for the lease, serve while it is ours, and begin again as a candidate if it is lost."""
    from weft.server.leader import Election

    cluster = engines.chosen(arguments, home, remember=False)
    if not isinstance(cluster, engines.Cluster):
        raise HomeError("--leader is for a control plane on Kubernetes; add --backend kubernetes")
    client = engines.client_of(cluster)
    # the same after execv, and after a container's restart
    identity = os.environ.get(engines.POD) or f"{socket.gethostname()}-{os.getpid()}"
    election = Election(client, cluster.namespace or client.namespace, "weft", identity)
    health = await _health(arguments, lambda: election.leads)
    _load()
    winning = asyncio.ensure_future(election.win())
    _on_signal(winning.cancel)
    await asyncio.wait({winning})
    if winning.cancelled():
        log.info("stopped; it did not lead")
        return
    winning.result()
    holding = asyncio.ensure_future(election.hold())
    serving = asyncio.ensure_future(_serve_as_leader(arguments, home, health))
    _on_signal(serving.cancel)  # until uvicorn has its own
    await asyncio.wait({serving, holding}, return_when=asyncio.FIRST_COMPLETED)
    if not serving.done():
        log.error("%s; waiting to lead again", holding.exception())
        command = [sys.executable, "-m", "weft.server", *sys.argv[1:]]
        os.execv(command[0], command)  # at once: what is not written yet is nobody's any more  # noqa: S606
    holding.cancel()
    home.release()
    await election.resign()
    await client.close()
    if not serving.cancelled():
        serving.result()


async def _serve_as_leader(arguments: argparse.Namespace, home: Home, health: Health | None) -> None:
    """The lease says whose turn it is; the home's lock, that whoever had it before has really let go."""
    told = False
    while True:
        try:
            home.hold(patience=0)
            break
        except HomeBusy as problem:
            if not told:
                log.warning("%s; waiting for it", problem)
                told = True
            await asyncio.sleep(HOME_AGAIN)
    await _serve(arguments, home, engines.chosen(arguments, home), health)


def _load() -> None:
    """While there is time: a new leader begins with everything in memory."""
    import uvicorn  # noqa: F401

    import weft.backends.kubernetes.backend
    import weft.control.control
    import weft.server.app
    import weft.server.cluster
    import weft.server.jobs
    import weft.server.protocol
    import weft.store.store  # noqa: F401


def _on_signal(stop: Callable[[], object]) -> None:
    """Also for a process 1, which the kernel does not end by a signal that it has no word about."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop))


async def _health(arguments: argparse.Namespace, leads: Callable[[], bool]) -> Health | None:
    if arguments.health is None:
        return None
    health = Health(leads)
    try:
        await health.serve(*arguments.health)
    except OSError as problem:
        host, port = arguments.health
        raise HomeError(f"--health {host}:{port}: {problem.strerror}; choose another") from None
    return health


async def _serve(
    arguments: argparse.Namespace,
    home: Home,
    shape: Shape | engines.Cluster,
    health: Health | None = None,
) -> None:
    policy = _policy(arguments.policy, home)
    results_store = _results_store(arguments.results_store, home)
    listener = _listen(arguments.host, arguments.port, home)
    health = health or await _health(arguments, lambda: True)
    import uvicorn

    from weft.control.control import Control
    from weft.control.usage import Usage
    from weft.control.utilization import Utilization
    from weft.server import app, databases, openapi
    from weft.server.cluster import ClusterOperations, server_facts
    from weft.server.clusters import AddedClusterOperations
    from weft.server.curves import CurveOperations
    from weft.server.datasets import DatasetOperations
    from weft.server.joblogs import LogOperations
    from weft.server.jobs import JobOperations
    from weft.server.jobtypes import JobTypeOperations
    from weft.server.nodes import NodeOperations
    from weft.server.packages import Packages
    from weft.server.page import Page
    from weft.server.protocol import Protocol
    from weft.server.queues import QueueOperations
    from weft.server.secrets import Secrets
    from weft.server.session import SessionOperations, Sessions
    from weft.server.sizes import SizeOperations
    from weft.server.utilization import UtilizationOperations
    from weft.server.watch import Watch
    from weft.store.curves import Curves
    from weft.store.store import Store

    secrets = Secrets(home.path / "secrets")
    place = databases.chosen(arguments.database, home)
    databases.check_there(place, home)
    store = await Store.opened(place, take_over=arguments.leader)
    if isinstance(place, str):
        await databases.belong_together(store, home, place)
    backend = engines.engine(await engines.as_installed(shape), home, secrets.value)
    control = Control(
        store,
        backend,
        policy=NAMED[policy],
        results_store=results_store,
        connect=engines.connect(home),
        data=home.path / "datasets",
        credentials=secrets.all,
    )
    try:
        await control.start()
    except EngineUnavailable as problem:
        raise HomeError(str(problem)) from None
    if health is not None:
        health.control = control
    host, port = listener.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    page = Page()
    facts = server_facts(
        address, home.path, store.place, backend.name, policy, results_store, time.time(), page.there
    )
    packages = Packages(home.path / "packages")
    owner = getpass.getuser()
    cluster, nodes = (
        ClusterOperations(control, packages, secrets, home.path, facts),
        NodeOperations(control, owner),
    )
    utilization, usage = Utilization(control, home.path / "utilization.bin"), Usage(control)
    curves = Curves(store, home.path / "curves")
    watch = Watch(control, utilization, nodes.document, cluster.state)
    usage.heard = watch.measured
    jobs, queues = JobOperations(control, packages, secrets, owner), QueueOperations(control, owner)
    types, sizes = JobTypeOperations(control, owner), SizeOperations(control, owner)
    clusters, datasets = AddedClusterOperations(control, owner), DatasetOperations(control, owner)
    sessions = Sessions(home.path / "sessions.json", home.token())
    operations = [
        operation
        for part in (
            jobs,
            LogOperations(control),
            queues,
            types,
            sizes,
            clusters,
            datasets,
            nodes,
            cluster,
            watch,
            CurveOperations(control, curves),
            UtilizationOperations(control, utilization, usage),
            SessionOperations(sessions, owner),
        )
        for operation in part.table()
    ]
    cluster.document = lambda: openapi.document(operations)
    config = uvicorn.Config(
        app.build(operations, sessions, page),
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
    lost: list[StoreError] = []

    def superseded(problem: StoreError) -> None:
        lost.append(problem)
        server.should_exit = True

    store.when_superseded(superseded)
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn raises the signal again when it has stopped; the default action would end us before we close
        signal.signal(number, server.handle_exit)
    gc.collect()
    gc.freeze()
    gc.set_threshold(
        20_000, 20, 50
    )  # little here is in cycles; at the default it was a twentieth of all work
    operator = engines.operator(shape, control, jobs.absent)
    if operator is not None:
        cluster.further_notes = operator.notes
        operator.start()
    observing = asyncio.gather(utilization.run(), usage.run(), curves.run())
    home.announce(facts)
    log.info("weft %s at %s, data in %s", facts["version"], address, home.path)
    try:
        await server.serve(sockets=[listener])
    finally:
        observing.cancel()
        await asyncio.gather(observing, return_exceptions=True)
        watch.close()
        if health is not None:
            await health.close()
        if operator is not None:
            await operator.close()
        await control.close()
        store.close()
        log.info("stopped; running tasks go on")
    if lost:
        raise lost[0]


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
        "--cache", type=_quantity(parse_memory), default=None, help="data that each node keeps for itself"
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
        "--database",
        default=None,
        metavar="URL",
        help="postgresql://USER@HOST/DATABASE in place of SQLite in the home; with its password: the variable WEFT_DATABASE",
    )
    parser.add_argument(
        "--policy",
        choices=list(NAMED),
        default=None,
        help="the order of waiting jobs (default: the last one)",
    )
    engines.add_arguments(parser)
    parser.add_argument(
        "--leader", action="store_true", help="wait until this one leads, by the Lease `weft` (kubernetes)"
    )
    parser.add_argument(
        "--health",
        type=_quantity(health_address),
        default=None,
        metavar="HOST:PORT",
        help="serve /healthz, /readyz and /metrics there, without a token",
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


def _quantity(parse: Callable[[str], T]) -> Callable[[str], T]:
    def convert(text: str) -> T:
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
