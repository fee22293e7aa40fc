"""Many small files for the benchmarks of datasets, and how a cold disk is had."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

SMALLEST, LARGEST = 16 << 10, 128 << 10
QUIET = os.environ.get("WEFT_BENCH_QUIET_FILE")
"""While this file is there, somebody else measures."""


def make(folder: Path, count: int, seed: int = 0) -> list[str]:
    """So many files of random bytes, 16 to 128 KB, a thousand a folder; their names."""
    chance = random.Random(seed)
    noise = chance.randbytes(16 << 20)
    names = []
    for number in range(count):
        name = f"{number // 1000:03d}/{number:06d}.jpg"
        path = folder / name
        if number % 1000 == 0:
            path.parent.mkdir(parents=True)
        size, begin = chance.randint(SMALLEST, LARGEST), chance.randrange((16 << 20) - LARGEST)
        path.write_bytes(number.to_bytes(8, "little") + noise[begin : begin + size - 8])
        names.append(name)
    os.sync()
    return names


def cool(paths: Iterable[Path]) -> str:
    """Nothing of these in memory, and where it is allowed nothing of any file's whereabouts; how it was done."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        for path in paths:
            file = os.open(path, os.O_RDONLY)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)
        return "posix_fadvise(DONTNEED) of every file; inodes and folders stay in memory"
    return "drop_caches: data, inodes and folders"


def wait_for_quiet() -> None:
    while QUIET and Path(QUIET).exists():
        time.sleep(1)


@contextlib.contextmanager
def busy(found: list[float]) -> Iterator[None]:
    """Adds how many cores others were using meanwhile: the machine's work without this process and its children."""
    before, own = _machine_seconds(), _own_seconds()
    begin = time.perf_counter()
    yield
    took = time.perf_counter() - begin
    found.append(max(0.0, (_machine_seconds() - before - (_own_seconds() - own)) / took))


def _machine_seconds() -> float:
    user, nice, system, _idle, _wait, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    return sum(os.times()[:4])
