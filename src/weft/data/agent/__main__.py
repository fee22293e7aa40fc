"""The agent's process: its options, its doors, and what it does every second and every minute."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from weft.data.agent.ahead import Ahead
from weft.data.agent.brought import Brought
from weft.data.agent.control import Control
from weft.data.agent.desk import Desk
from weft.data.agent.engine import EngineDoor
from weft.data.agent.frames import Door
from weft.data.agent.node import TTL, Node, Settings
from weft.data.agent.origins import FarFolder, Origin, Server, StoreFolder
from weft.data.agent.peers import PeerDoor
from weft.data.agent.sources import KnownSources
from weft.data.cache.admission import UNLIMITED, Room
from weft.data.errors import DataError, NoRoom
from weft.model.quantities import parse_memory

HELLO_WITHIN = 10.0
NOTE, FLUSH, HOUSE = 0.2, 1.0, 60.0


def options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m weft.data.agent", description="The data agent of one node."
    )
    parser.add_argument("--folder", type=Path, required=True, help="of the cache")
    parser.add_argument(
        "--socket", type=Path, required=True, help="for readers; jobs must be able to reach it"
    )
    parser.add_argument(
        "--control", type=Path, required=True, help="for the engine; only this user can reach it"
    )
    origin = parser.add_mutually_exclusive_group(required=True)
    origin.add_argument("--origin-folder", type=Path, help="a store on this machine: nothing is copied")
    origin.add_argument("--origin-url", help="a Weft server")
    origin.add_argument(
        "--engine-listen", metavar="HOST:PORT", help="where a control plane asks, and brings what is wanted"
    )
    parser.add_argument("--engine-token-file", type=Path, help="what it shows; read at every request")
    parser.add_argument(
        "--far", action="store_true", help="copy from --origin-folder, as if it were on another machine"
    )
    parser.add_argument("--origin-token-file", type=Path, help="read at every request")
    parser.add_argument(
        "--node", default=socket.gethostname(), help="this node's name, as grants share among nodes"
    )
    parser.add_argument(
        "--quota", type=_bytes, default=UNLIMITED.bytes, help="bytes of the cache, for example 200Gi"
    )
    parser.add_argument("--inodes", type=int, default=UNLIMITED.inodes, help="files and folders of the cache")
    parser.add_argument(
        "--reserve",
        type=_reserve,
        default=lambda disk: 1 << 30,
        help="of the disk what stays free: 10Gi, or 20%%",
    )
    parser.add_argument("--ttl", type=float, default=TTL, help="seconds after which goes what nobody uses")
    parser.add_argument("--peer-listen", metavar="HOST:PORT", help="where other nodes read from this one")
    parser.add_argument("--peer-key-file", type=Path, help="the key that all nodes share")
    chosen = parser.parse_args(arguments)
    if chosen.peer_listen and not chosen.peer_key_file:
        parser.error("--peer-listen needs --peer-key-file: nodes know each other by it")
    if chosen.engine_listen and not chosen.engine_token_file:
        parser.error("--engine-listen needs --engine-token-file: the control plane is known by it")
    return chosen


def _bytes(text: str) -> int:
    try:
        return parse_memory(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(f"{text!r}: {problem}") from None


def _reserve(text: str) -> Callable[[int], int]:
    """Of a disk of so many bytes."""
    share = text.removesuffix("%")
    if share != text and share.isdigit() and int(share) < 100:
        return lambda disk: disk * int(share) // 100
    fixed = _bytes(text)
    return lambda disk: fixed


def origin_of(chosen: argparse.Namespace) -> Origin:
    if chosen.origin_folder is not None:
        return (FarFolder if chosen.far else StoreFolder)(chosen.origin_folder)
    if chosen.engine_listen is not None:
        return Brought()
    tokens: Path | None = chosen.origin_token_file
    return Server(chosen.origin_url, (lambda: tokens.read_text().strip()) if tokens else (lambda: ""))


async def serve(chosen: argparse.Namespace) -> None:
    key = chosen.peer_key_file.read_text().strip() if chosen.peer_key_file else ""
    chosen.folder.mkdir(mode=0o711, parents=True, exist_ok=True)
    reserve = chosen.reserve(shutil.disk_usage(chosen.folder).total)
    settings = Settings(
        chosen.folder, chosen.node, Room(chosen.quota, chosen.inodes), reserve, chosen.ttl, key,
        mounted=chosen.engine_listen is not None,  # in pods
    )  # fmt: skip
    sources = KnownSources()
    origin = origin_of(chosen)
    node = Node(settings, origin, sources)
    ahead = Ahead(node)
    peers = PeerDoor(key, node.file_for_peer)
    if chosen.peer_listen:
        await peers.listen(chosen.peer_listen)
    desk = Desk(node, ahead)
    control = Control(node, ahead, desk, peers.address, sources)
    readers = Door(chosen.socket, 0o666, desk.handle, HELLO_WITHIN)
    engine = Door(chosen.control, 0o600, control.handle)
    if isinstance(origin, Brought):
        EngineDoor(chosen.engine_listen, chosen.engine_token_file, control.answer, origin, control.report)
    house = [asyncio.create_task(keeps(node)) for keeps in (_note, _flush, _keep_house)]
    print(f"weft: data agent of node {chosen.node} at {chosen.socket}", flush=True)
    await _told_to_stop()
    for task in house:
        task.cancel()
    await asyncio.gather(*house, return_exceptions=True)
    await asyncio.gather(readers.close(), engine.close(), peers.close(), ahead.close(), control.close())
    Holds(node).note()
    node.close()
    os._exit(0)  # without waiting for fetches: what is not whole will be swept


async def _note(node: Node) -> None:
    holds = Holds(node)
    while True:
        await node.aside(holds.note_if_due)
        await asyncio.sleep(NOTE)


async def _flush(node: Node) -> None:
    while True:
        await asyncio.sleep(FLUSH)
        with suppress(NoRoom):  # a full disk: once more in a second
            await node.aside(node.counts.flush)
            await node.aside(node.books.flush)
            await node.aside(node.leases.refresh)


async def _keep_house(node: Node) -> None:
    while True:
        await asyncio.sleep(HOUSE)
        try:
            await node.aside(node.keep_house)
        except (DataError, OSError) as problem:
            print(f"weft: the cache could not be tidied: {problem}", file=sys.stderr, flush=True)


class Holds:
    """Notes what the node holds, for its reports and for whoever looks while there is no agent. A hundredth of a processor may
    go into that, so it is the processor's time that is counted: on a busy machine the news would else be late as well."""

    def __init__(self, node: Node):
        self._node = node
        self._path = node.settings.folder / "holds.json"
        self._next = 0.0

    def note_if_due(self) -> None:
        if time.monotonic() >= self._next:
            begin = time.thread_time()
            self.note()
            self._next = time.monotonic() + 100 * (time.thread_time() - begin)

    def note(self) -> None:
        with suppress(DataError, OSError):  # a full disk: once more later
            held = self._node.holds()
            if held != self._node.held:
                temporary = self._path.with_suffix(".new")
                temporary.write_text(json.dumps(held))
                temporary.replace(self._path)
                self._node.held = held


async def _told_to_stop() -> None:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    await told.wait()


def main() -> None:
    os.umask(0o022)
    try:
        asyncio.run(serve(options(sys.argv[1:])))
    except (DataError, OSError) as problem:
        raise SystemExit(f"weft: the data agent cannot start: {problem}") from None


if __name__ == "__main__":
    main()
