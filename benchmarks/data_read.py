"""Reading 100,000 files of 16 to 128 KB: packed by Weft against open/read of the files, a pread loop, and MosaicML.

Cold: an epoch in the order of the names and a shuffled one, against open, read and close of the same files in the same
order from the same disk, one thread each; caches are dropped the same way before each. Beside them is what the disk itself
can give: one pass over the parts from beginning to end past the kernel's memory, of which nothing is kept. Warm: an epoch of fewer
samples, which stay in memory, against `os.pread` of the same samples in the same order from one file, and against MosaicML
Streaming's own format of the same samples, in its own environment (made under ~/.cache/weft-bench), where both run.
"""

from __future__ import annotations

import json
import mmap
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness import BENCHMARKS, Claim, arguments, clean_memory, folder_on_disk, publish, spread, table
from samples import busy, cool, make, wait_for_quiet

from weft.data.ingest import ingest
from weft.data.sources.file import FileSource
from weft.data.store import Store
from weft.runtime.data import files as weft_files
from weft.runtime.data.parts import StoreParts
from weft.runtime.data.reader import Dataset

PEER = Path("~/.cache/weft-bench/streaming").expanduser()
PEER_NEEDS = ("mosaicml-streaming==0.13.0", "torch==2.13.0")
WITHOUT_VISION = """
import sys, types
sys.modules["streaming.vision"] = types.ModuleType("streaming.vision")  # wants a torchvision built for this torch
"""
PEER_WRITES = """
import sys
from streaming import MDSWriter
import weft
with MDSWriter(out=sys.argv[2], columns={"name": "str", "data": "bytes"}, size_limit=32 << 20) as out:
    for name, data in weft.data(sys.argv[1]):
        out.write({"name": name, "data": data})
"""
PEER_READS = """
import json, sys, time
version, folder, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
BATCH, AHEAD = 250, 100_000  # of those tried, the best for it: with less it waits for its own thread
import weft
from streaming import StreamingDataset
found = {}
for shuffle in (False, True):
    name = "shuffled" if shuffle else "sequential"
    ours = weft.data(version, shuffle=shuffle)
    theirs = StreamingDataset(local=folder, shuffle=shuffle, batch_size=BATCH, num_canonical_nodes=1, predownload=AHEAD)
    for round in range(rounds + 1):  # the first brings both into memory
        for what, data in (("weft", ours), ("mosaic", theirs)):
            begin, count = time.perf_counter(), 0
            for sample in data:
                count += 1
            assert count == len(ours), (what, count)
            if round:
                found.setdefault(what + " " + name, []).append(count / (time.perf_counter() - begin))
print(json.dumps(found))
"""
ORDERS = {"sequential": False, "shuffled": True}


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--no-peers", action="store_true", help="leave MosaicML Streaming out")
    parser.add_argument("--files", type=int, default=100_000, metavar="N", help="on a cold disk")
    options = parser.parse_args()
    count, few, rounds = (3_000, 2_000, 2) if options.quick else (options.files, 25_000, 5)
    with folder_on_disk() as folder:
        make(folder / "many", count)
        make(folder / "few", few, seed=1)
        many = Packed(folder, "many")
        warm = Packed(folder, "few")
        others: list[float] = []
        rates, how = from_a_cold_disk(many, 2 if options.quick else 3, others)
        from_memory(warm, rounds, rates, others)
        peer = "left out" if options.no_peers else beside_mosaic(warm, rounds, rates, others)
    middle = {what: statistics.median(samples) for what, samples in rates.items()}
    details = {
        "files": count,
        "warmFiles": few,
        "cooled": how,
        "peer": peer,
        "busyByOthers": spread(others, 2),
        "samplesPerSecond": {what: spread(samples, 1) for what, samples in rates.items()},
        "tables": [
            table(
                f"Samples of 16 to 128 KB a second ({count:,} cold, {few:,} warm):",
                ("what", "samples/s"),
                [(what, f"{rate:,.0f}") for what, rate in middle.items()],
            )
        ],
    }
    publish("data_read", claims(rates), details, options.quick)


def claims(rates: dict[str, list[float]]) -> list[Claim]:
    def ratio(mine: str, other: str) -> float:
        """The median of the rounds' own ratios: what disturbs one side disturbs the other, too."""
        return statistics.median(a / b for a, b in zip(rates[mine], rates[other], strict=True))

    found = [
        Claim(f"{order.capitalize()} packed reads against open/read of the files, cold",
              ratio(f"weft cold {order}", f"files cold {order}"), 5.0, "×", at_most=False)
        for order in ORDERS
    ]  # fmt: skip
    found += [
        Claim(f"{order.capitalize()} packed reads against a pread loop over one file, warm",
              ratio(f"weft warm {order}", f"pread warm {order}"), 0.9, "×", at_most=False)
        for order in ORDERS
    ]  # fmt: skip
    if "mosaic sequential" in rates:
        found += [
            Claim(f"{order.capitalize()} cached epoch against MosaicML Streaming",
                  ratio(f"weft {order}", f"mosaic {order}"), 0.9, "×", at_most=False)
            for order in ORDERS
        ]  # fmt: skip
    return found


class Packed:
    """Files, and the version made of them."""

    def __init__(self, folder: Path, name: str):
        self.files = folder / name
        self.store = Store(folder / f"{name}-store")
        self.one = folder / f"{name}-one"
        self.mosaic = folder / f"{name}-mosaic"
        self.version = ingest(FileSource(self.files), self.store, name).version

    def data(self, shuffle: bool) -> Dataset:
        data = Dataset(StoreParts(str(self.store.root)), self.version, shuffle=shuffle)
        data.order()
        return data

    def paths(self) -> list[Path]:
        return [*self.files.rglob("*.jpg"), *self.parts()]

    def parts(self) -> list[Path]:
        return list(self.store.root.glob("parts/*/*"))


def rate(count: int, work: Callable[[], None], others: list[float]) -> float:
    wait_for_quiet()
    clean_memory()
    with busy(others):
        begin = time.perf_counter()
        work()
        return count / (time.perf_counter() - begin)


def epoch(data: Dataset) -> Callable[[], None]:
    def work() -> None:
        for _ in data:
            pass

    return work


# ── cold ──


def from_a_cold_disk(packed: Packed, rounds: int, others: list[float]) -> tuple[dict[str, list[float]], str]:
    rates: dict[str, list[float]] = {}
    paths, how = packed.paths(), ""
    for _ in range(rounds):
        for name, shuffle in ORDERS.items():
            data = packed.data(shuffle)
            names = [str(packed.files / data.names[n]) for n in data.order().take(range(len(data)))]
            for what, work in (("weft", epoch(data)), ("files", one_by_one(names))):
                how = cool(paths)
                rates.setdefault(f"{what} cold {name}", []).append(rate(len(names), work, others))
        how = cool(paths)
        rates.setdefault("the disk itself, O_DIRECT in order", []).append(
            rate(len(names), past_memory(packed.parts()), others)
        )
        memory, weft_files.memory = weft_files.memory, lambda: 0
        how = cool(paths)
        work = epoch(packed.data(True))
        rates.setdefault("weft cold shuffled, as if larger than memory", []).append(
            rate(len(names), work, others)
        )
        weft_files.memory = memory
    return rates, how


def one_by_one(names: list[str]) -> Callable[[], None]:
    def work() -> None:
        for name in names:
            file = os.open(name, os.O_RDONLY)
            data = os.read(file, 1 << 20)
            os.close(file)
        assert data

    return work


def past_memory(paths: list[Path]) -> Callable[[], None]:
    """Four reads at once, 1 MB each, into huge pages: no other number of either gave more, and small pages less."""

    def read(left: Iterator[Path]) -> None:
        memory = mmap.mmap(-1, 4 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
        room = memoryview(memory)[: 1 << 20]
        for path in left:
            file, at = os.open(path, os.O_RDONLY | os.O_DIRECT), 0
            while os.preadv(file, [room], at) == len(room):
                at += len(room)
            os.close(file)

    def work() -> None:
        left = iter(paths)
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(read, [left] * 4))

    return work


# ── warm ──


def from_memory(packed: Packed, rounds: int, rates: dict[str, list[float]], others: list[float]) -> None:
    data = packed.data(False)
    with packed.one.open("wb") as out:
        for sample in data:
            out.write(sample.data)
    begins, at = [], 0
    for number in range(len(data)):
        begins.append((len(data[number].data), at))
        at += begins[-1][0]
    file = os.open(packed.one, os.O_RDONLY)
    for number in range(rounds + 1):  # the first brings both into memory
        for name, shuffle in ORDERS.items():
            ours = packed.data(shuffle)
            places = [begins[n] for n in ours.order().take(range(len(ours)))]
            for what, work in (("weft", epoch(ours)), ("pread", loop(file, places))):
                found = rate(len(places), work, others)
                if number:
                    rates.setdefault(f"{what} warm {name}", []).append(found)
    os.close(file)


def loop(file: int, places: list[tuple[int, int]]) -> Callable[[], None]:
    def work() -> None:
        pread = os.pread
        for length, offset in places:
            data = pread(file, length, offset)
        assert data

    return work


# ── MosaicML Streaming ──


def beside_mosaic(packed: Packed, rounds: int, rates: dict[str, list[float]], others: list[float]) -> str:
    """Adds the rates of both; what was compared with."""
    try:
        if not (PEER / ".whole").exists():
            subprocess.run([sys.executable, "-m", "venv", PEER], check=True)
            subprocess.run([PEER / "bin" / "pip", "install", "--quiet", *PEER_NEEDS], check=True)
            (PEER / ".whole").touch()
        env = {
            **os.environ,
            "PYTHONPATH": str(BENCHMARKS.parent / "src"),
            "WEFT_DATA_STORE": str(packed.store.root),
        }
        python, given = str(PEER / "bin" / "python"), [packed.version, str(packed.mosaic)]
        subprocess.run(
            [python, "-W", "ignore", "-c", WITHOUT_VISION + PEER_WRITES, *given], env=env, check=True
        )
        wait_for_quiet()
        with busy(others):
            done = subprocess.run(
                [python, "-W", "ignore", "-c", WITHOUT_VISION + PEER_READS, *given, str(rounds)],
                env=env,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
    except (OSError, subprocess.SubprocessError) as problem:
        return f"did not work: {str(problem)[:200]}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    rates.update(found)
    return " and ".join(PEER_NEEDS)


if __name__ == "__main__":
    main()
