"""(h) How long an epoch takes with a cache of 65 % of the dataset, from a source that gives so many bytes a second.

    .venv/bin/python benchmarks/experiments/epoch_times.py [--parts 100] [--epochs 5] [--rate 10]

Expected: an epoch cannot be shorter than the bytes that are still far away, divided by the rate of their source. Without
replacement (NR) 35 % of them are from the second epoch on, so an epoch takes 0.35 of the time without a cache. LRU in the
same order each epoch has every part to fetch again: as long as without a cache; in a fresh shuffle it answers
c + (1 - c) ln(1 - c) = 28 %, so an epoch takes 0.72.

A real agent and a real reader; only the source is held back.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lab

sys.path.insert(0, str(lab.HERE.parents[1] / "tests"))

from support.datasets import Here, Store, bytes_of
from weft.data.agent.origins import FarFolder
from weft.data.cache.versions import Part
from weft.runtime.data.parts import AgentParts
from weft.runtime.data.reader import Dataset
from weft.sim import draw

C = 0.65
SIZE, PACK = 1 << 20, 32
"""Bytes and samples of a part."""
HOW = {"NR 65 %": ("nr", C), "LRU 65 %": ("lru", C), "no cache": ("nr", 0.0)}
COLOURS = dict(zip(HOW, (draw.COLOURS[0], draw.COLOURS[4], draw.COLOURS[5]), strict=True))
ORDERS = {"the same order": False, "a fresh shuffle": True}


class HeldBack(FarFolder):
    """A store that gives so many bytes a second to all who read together."""

    def __init__(self, folder: Path, rate: float):
        super().__init__(folder)
        self._rate = rate
        self._lock = threading.Lock()
        self._free = 0.0

    def read(self, part: Part, offset: int, length: int) -> Iterator[bytes]:
        for chunk in super().read(part, offset, length):
            with self._lock:
                begin = max(time.monotonic(), self._free)
                self._free = begin + len(chunk) / self._rate
            time.sleep(max(0.0, self._free - time.monotonic()))
            yield chunk


def epochs(
    store: Store, version: str, how: str, shuffle: bool, chosen: argparse.Namespace
) -> list[dict[str, Any]]:
    policy, c = HOW[how]
    order = next(name for name, shuffled in ORDERS.items() if shuffled is shuffle)
    found = []
    with tempfile.TemporaryDirectory(prefix="weft-") as made:
        origin = HeldBack(store.folder, chosen.rate * 1e6)
        with Here(Path(made), origin) as node:
            link = node.grant(version, policy=policy, quota=round(c * chosen.parts) * SIZE)
            for epoch in range(chosen.epochs):
                before, begin = link.counts()["remoteBytes"], time.perf_counter()
                data = Dataset(AgentParts(link), version, shuffle=shuffle, seed=chosen.seed, epoch=epoch)
                assert sum(len(sample.data) for sample in data) == chosen.parts * SIZE
                took, far = time.perf_counter() - begin, link.counts()["remoteBytes"] - before
                found.append(
                    {"order": order, "how": how, "epoch": epoch + 1, "seconds": round(took, 3),
                     "far": round(far / (chosen.parts * SIZE), 4)}
                )  # fmt: skip
                print("  ".join(f"{name} {value}" for name, value in found[-1].items()), flush=True)
    return found


def settled(runs: Sequence[dict[str, Any]], order: str, how: str, what: str) -> float:
    """The mean of the last half of the epochs: LRU needs some."""
    values = [run[what] for run in runs if (run["order"], run["how"]) == (order, how)]
    late = values[len(values) // 2 :]
    return float(sum(late) / len(late))


def result(runs: list[dict[str, Any]]) -> lab.Result:
    rows = []
    ratio = {}
    for order in ORDERS:
        whole = settled(runs, order, "no cache", "seconds")
        for how in HOW:
            seconds = settled(runs, order, how, "seconds")
            ratio[order, how] = seconds / whole
            far = settled(runs, order, how, "far")
            rows.append((order, how, f"{seconds:.2f}", f"{far:.1%}", f"{seconds / whole:.2f}"))
    mixed = ratio["a fresh shuffle", "LRU 65 %"]
    came_out = (
        f"of the time without a cache, an epoch takes {ratio['the same order', 'NR 65 %']:.2f} in the same order and "
        f"{ratio['a fresh shuffle', 'NR 65 %']:.2f} in a fresh shuffle with NR, "
        f"{ratio['the same order', 'LRU 65 %']:.2f} and {mixed:.2f} with LRU."
    )
    titles = ("order", "cache", "seconds an epoch", "from far away", "of the time without a cache")
    series = (tuple(runs[0]), [tuple(run.values()) for run in runs])
    expected = lab.docstring_part(__doc__, "Expected")
    return lab.Result("epoch_times", "generated", expected, came_out, titles, rows, {"runs": runs}, series)


def picture(path: Path, runs: Sequence[dict[str, Any]]) -> None:
    with draw.picture(path, 2, height=3.4, width=8.4) as axes:
        for axis, order in zip(axes, ORDERS, strict=True):
            for how, colour in COLOURS.items():
                here = [run for run in runs if (run["order"], run["how"]) == (order, how)]
                axis.plot(
                    [run["epoch"] for run in here], [run["seconds"] for run in here],
                    "-o", color=colour, lw=2, label=how,
                )  # fmt: skip
            axis.set(xlabel="epoch", ylabel="seconds", title=f"{order} each epoch")
            axis.set_xticks(sorted({run["epoch"] for run in runs}))
            axis.set_ylim(bottom=0)
            axis.legend(fontsize=8)


def main() -> None:
    parser = lab.options(__doc__ or "")
    parser.add_argument("--parts", type=int, default=100, help=f"of {SIZE >> 10} KiB")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rate", type=float, default=10.0, help="MB a second that the source gives")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="weft-") as made:
        store = Store(Path(made))
        samples = {f"{number:05}": bytes_of(number, SIZE // PACK) for number in range(chosen.parts * PACK)}
        version = store.add(samples, PACK)
        runs = [
            run
            for shuffle in ORDERS.values()
            for how in HOW
            for run in epochs(store, version, how, shuffle, chosen)
        ]
    print()
    lab.publish(result(runs), lab.folder(chosen), lambda out: picture(out, runs))


if __name__ == "__main__":
    main()
