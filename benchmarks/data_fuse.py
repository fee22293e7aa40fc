"""A mounted version against a minimal passthrough file system in the same binding: whole reads of small files.

The passthrough hands every request to the same files in a folder: what a file system in Python costs at least, if it does
nothing of its own. Both are mounted anew for each measurement, so that the kernel remembers nothing of them; the bytes
below them are in memory. In turn, in the order of the names and shuffled, answered by one thread and by several; one
process reads. Mounting needs root and /dev/fuse.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness import Claim, arguments, clean_memory, folder_on_disk, publish, spread, table
from samples import busy, make, wait_for_quiet

from weft.data.fuse import unmount
from weft.data.ingest import ingest
from weft.data.sources.file import FileSource
from weft.data.store import Store

OURS = """
import sys
from pathlib import Path
from weft.data.fuse import serve
from weft.runtime.data.parts import StoreParts
store, version, folder, threads = sys.argv[1:]
serve(StoreParts(store), version, Path(folder), threads == "several", lambda: print("mounted", flush=True))
"""
PASSTHROUGH = """
import os, sys
import mfusepy
root, _, folder, threads = sys.argv[1:]

class Passthrough(mfusepy.Operations):
    use_ns = True

    def init(self, path):
        print("mounted", flush=True)

    def getattr(self, path, fh=None):
        about = os.lstat(root + path)
        return {key: getattr(about, key) for key in ("st_mode", "st_nlink", "st_size")}

    def readdir(self, path, fh):
        return [".", "..", *os.listdir(root + path)]

    def open(self, path, flags):
        return os.open(root + path, flags)

    def read(self, path, size, offset, fh):
        return os.pread(fh, size, offset)

    def release(self, path, fh):
        os.close(fh)
        return 0

mfusepy.FUSE(Passthrough(), folder, foreground=True, nothreads=threads == "one", ro=True)
"""
ORDERS = ("sequential", "shuffled")
LOOPS = ("one", "several")


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise SystemExit("mounting needs root and /dev/fuse")
    count, rounds = (1_500, 2) if options.quick else (10_000, 7)
    rates: dict[str, list[float]] = {}
    others: list[float] = []
    with folder_on_disk() as folder:
        names = sorted(make(folder / "files", count))
        store = Store(folder / "store")
        version = ingest(FileSource(folder / "files"), store, "k").version
        (folder / "mount").mkdir()
        sides = {"weft": (OURS, store.root), "passthrough": (PASSTHROUGH, folder / "files")}
        for round in range(rounds):
            for loop in LOOPS:
                for order in ORDERS:
                    wanted = names if order == "sequential" else random.Random(round).sample(names, count)
                    with busy(others):
                        for what, (code, root) in sides.items():
                            wait_for_quiet()
                            with mounted(code, root, version, folder / "mount", loop):
                                rate = read(folder / "mount", wanted)
                            rates.setdefault(f"{what}, {loop}, {order}", []).append(rate)
                        rates.setdefault(f"files, {order}", []).append(read(folder / "files", wanted))
    details = {
        "files": count,
        "busyByOthers": spread(others, 2),
        "filesPerSecond": {what: spread(samples, 1) for what, samples in rates.items()},
        "tables": [
            table(
                f"Files of 16 to 128 KB read whole through a mount, a second ({count:,} files, one reader):",
                ("what, threads that answer, order", "files/s"),
                [(what, f"{statistics.median(samples):,.0f}") for what, samples in rates.items()],
            )
        ],
    }
    publish("data_fuse", claims(rates), details, options.quick)


def claims(rates: dict[str, list[float]]) -> list[Claim]:
    """The median of the rounds' own ratios: what disturbs one side disturbs the other, too."""

    def ratio(case: str) -> float:
        pairs = zip(rates[f"weft, {case}"], rates[f"passthrough, {case}"], strict=True)
        return statistics.median(mine / other for mine, other in pairs)

    return [
        Claim(
            f"{order.capitalize()} reads through a mount against a minimal passthrough, answered by {loop} "
            f"thread{'s' * (loop != 'one')}",
            ratio(f"{loop}, {order}"),
            1.0,
            "×",
            at_most=False,
        )
        for loop in LOOPS
        for order in ORDERS
    ]


@contextmanager
def mounted(code: str, root: Path, version: str, folder: Path, loop: str) -> Iterator[None]:
    command = [sys.executable, "-c", code, str(root), version, str(folder), loop]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            if process.stdout.readline() != "mounted\n":
                raise SystemExit(f"cannot mount: {process.communicate()[1]}")
            yield
        finally:
            if process.poll() is None:
                unmount(folder)
            process.communicate()


def read(folder: Path, names: list[str]) -> float:
    """Files a second: open, read to the end, close."""
    clean_memory()
    begin = time.perf_counter()
    for name in names:
        file = os.open(f"{folder}/{name}", os.O_RDONLY)
        while os.read(file, 1 << 20):
            pass
        os.close(file)
    return len(names) / (time.perf_counter() - begin)


if __name__ == "__main__":
    main()
