"""From 100,000 files of 16 to 128 KB to a version, packed, hashed and synced, against `cp -r` and `sync` of the same.

Both read the same files from the same disk with cold caches and write to it, in turn; the ratio is of the rounds.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import time
from pathlib import Path

from harness import Claim, arguments, folder_on_disk, publish, spread, table
from samples import busy, cool, make, wait_for_quiet

from weft.data.ingest import ingest
from weft.data.sources.file import FileSource
from weft.data.store import Store


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    count, rounds = (3_000, 2) if options.quick else (100_000, 3)
    with folder_on_disk() as folder:
        make(folder / "files", count)
        paths = list((folder / "files").rglob("*.jpg"))
        size = sum(path.stat().st_size for path in paths)
        taken: dict[str, list[float]] = {"cp": [], "ingest": []}
        others, how = [], ""
        for _ in range(rounds):
            for what, work in (("cp", copy), ("ingest", bring)):
                wait_for_quiet()
                how = cool(paths)
                with busy(others):
                    taken[what].append(work(folder))
    ratios = [copied / brought for copied, brought in zip(taken["cp"], taken["ingest"], strict=True)]
    rates = {what: size / statistics.median(samples) / 1e6 for what, samples in taken.items()}
    text = f"Ingest of {count:,} files against cp -r and sync of the same files, cold"
    details = {
        "files": count,
        "bytes": size,
        "cooled": how,
        "busyByOthers": spread(others, 2),
        "seconds": {what: spread(samples, 3) for what, samples in taken.items()},
        "ratios": spread(ratios, 3),
        "tables": [
            table("Megabytes a second:", ("what", "MB/s"), [(k, f"{v:.0f}") for k, v in rates.items()]),
        ],
    }
    claims = [Claim(text, statistics.median(ratios), 0.7, "×", at_most=False)]
    publish("data_ingest", claims, details, options.quick)


def copy(folder: Path) -> float:
    begin = time.perf_counter()
    subprocess.run(["cp", "-r", folder / "files", folder / "copy"], check=True)
    subprocess.run(["sync", "-f", folder], check=True)
    took = time.perf_counter() - begin
    shutil.rmtree(folder / "copy")
    return took


def bring(folder: Path) -> float:
    store = Store(folder / "store")
    begin = time.perf_counter()
    ingest(FileSource(folder / "files"), store, "files")
    took = time.perf_counter() - begin
    shutil.rmtree(folder / "store")
    os.sync()
    return took


if __name__ == "__main__":
    main()
