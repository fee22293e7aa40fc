"""The data agent: how soon it is back, how many parts it hands out a second, and how fast it fills beside a plain copy.

    .venv/bin/python benchmarks/data_agent.py [--parts 24] [--folder DISK]

Printed, not published: ratios of one run on one disk. The copy writes the same files and syncs each, as a fill does.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.datasets import Agent, Store, agent, bytes_of
from weft.data.agent.node import Node, Settings
from weft.data.agent.origins import FarFolder
from weft.data.cache.books import PART, Claim, Room
from weft.data.cache.versions import Part
from weft.runtime.data.link import Link

PACK = 32 << 20


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def restart(node: Agent, version: str, rounds: int = 7) -> list[float]:
    """From kill -9 to the next part in a reader's hands."""
    link = Link(str(node.socket), "secret")
    os.close(link.part(version, 0) or 0)
    found = []
    for _ in range(rounds):
        node.kill()

        def back() -> None:
            node.start()
            os.close(link.part(version, 0) or 0)

        found.append(timed(back))
    link.close()
    return found


def requests(node: Agent, version: str, readers: int, seconds: float = 3.0) -> float:
    """Parts a second that are handed out, to readers in processes of their own."""
    code = (
        "import os,sys,time; from weft.runtime.data.link import Link; link = Link(sys.argv[1], 'secret'); n = 0\n"
        "os.close(link.part(sys.argv[2], 0)); print('ready', flush=True); sys.stdin.readline()\n"
        "end = time.perf_counter() + float(sys.argv[3])\n"
        "while time.perf_counter() < end:\n    os.close(link.part(sys.argv[2], n % 4)); n += 1\n"
        "print(n)"
    )
    command = [sys.executable, "-c", code, str(node.socket), version, str(seconds)]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
        for _ in range(readers)
    ]
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
    for process in started:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return sum(int(process.communicate()[0]) for process in started) / seconds


def copied(store: Store, parts: list[str], target: Path) -> None:
    target.mkdir()
    for part in parts:
        with store.path(part).open("rb") as source, (target / part).open("wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
            out.flush()
            os.fsync(out.fileno())


def filled(store: Store, parts: list[str], target: Path) -> None:
    node = Node(Settings(target), FarFolder(store.folder))
    origin = FarFolder(store.folder)
    for digest in parts:
        part = Part(digest, PACK)
        claim = Claim(PART, digest, "bench", Room(PACK))
        assert node.filling.fill_here(part, claim, origin.read)
    node.close()


def filled_by_several(store: Store, parts: list[str], target: Path) -> None:
    """As the agent does it: several parts at once."""

    async def fill() -> None:
        node = Node(Settings(target), FarFolder(store.folder))
        origin = FarFolder(store.folder)
        await asyncio.gather(
            *(
                node.filling.fill(Part(part, PACK), Claim(PART, part, "bench", Room(PACK)), origin.read)
                for part in parts
            )
        )
        node.close()

    asyncio.run(fill())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", type=int, default=24, help="of 32 MiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to measure"
    )
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="weft-", dir=chosen.folder) as made:
        folder = Path(made)
        store = Store(folder / "store")
        parts = [store.keep(bytes_of(number, PACK)) for number in range(chosen.parts)]
        small = store.add({str(number): bytes_of(number, 1000) for number in range(4)})
        os.sync()
        rates: dict[str, list[float]] = {}
        for attempt in range(chosen.rounds):
            for work in (copied, filled, filled_by_several):
                target = folder / f"{work.__name__}{attempt}"
                took = timed(lambda work=work, target=target: work(store, parts, target))
                rates.setdefault(work.__name__, []).append(chosen.parts * PACK / took / 1e6)
                shutil.rmtree(target)
        plain = statistics.median(rates["copied"])
        for name, found in rates.items():
            rate = statistics.median(found)
            print(
                f"{name:18} {rate:7.0f} MB/s  {rate / plain:.2f} of a plain copy  ({', '.join(f'{r:.0f}' for r in found)})"
            )
        with agent(folder / "n", "--origin-folder", str(store.folder)) as node:
            node.grant("job", "secret", small)
            for readers in (1, 2, 4):
                print(
                    f"part requests      {requests(node, small, readers):7.0f} a second with {readers} readers"
                )
            found = restart(node, small)
            print(
                f"kill -9 to a part  {1000 * statistics.median(found):7.0f} ms  (slowest {1000 * max(found):.0f})"
            )
    assert threading.active_count() == 1


if __name__ == "__main__":
    main()
