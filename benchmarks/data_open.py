"""Opening a dataset of 10 million samples in a fresh process: time and memory, and what the first samples cost.

The table is written directly: 10 million names, offsets and lengths in 34,000 parts, which are all one sparse file.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from pathlib import Path
from typing import Any

import numpy
from harness import BENCHMARKS, MEGABYTE, PYTHON, Claim, arguments, folder_on_disk, publish, spread, table
from samples import wait_for_quiet

from weft.data.store import Store

PART = 32 << 20
READER = """
import json, sys, time
def grown():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))
begin = time.perf_counter()
import weft
data = weft.data(sys.argv[1], shuffle=sys.argv[2] == "shuffled")
count = len(data)
opened, memory = time.perf_counter() - begin, grown()
if sys.argv[2] == "numbered":
    data[count // 2], data[data.names[count - 1]]
else:
    next(iter(data))
print(json.dumps({"open": opened, "memory": memory, "first": time.perf_counter() - begin, "after": grown()}))
"""


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    count, rounds = (100_000, 2) if options.quick else (10_000_000, 5)
    with folder_on_disk() as folder:
        store = Store(folder)
        version = write(store, count)
        wait_for_quiet()
        found: dict[str, list[dict[str, float]]] = {}
        for _ in range(rounds):
            for how in ("numbered", "sequential", "shuffled"):
                found.setdefault(how, []).append(measure(folder, version, how))
    every = [one for samples in found.values() for one in samples]
    middle = statistics.median(one["open"] for one in every)
    claims = [
        Claim(f"Opening a dataset of {count:,} samples, import included", middle, 1.0, " s"),
        Claim(f"Memory of a process with a dataset of {count:,} samples open",
              max(one["memory"] for one in every) / MEGABYTE, 400, " MB", digits=0),
    ]  # fmt: skip
    rows = [
        (
            how,
            f"{statistics.median(one['first'] for one in samples):.2f} s",
            f"{statistics.median(one['after'] for one in samples) / MEGABYTE:.0f} MB",
        )
        for how, samples in found.items()
    ]
    details: dict[str, Any] = {
        "samples": count,
        "seconds": {
            how: {key: spread([one[key] for one in samples]) for key in ("open", "first")}
            for how, samples in found.items()
        },
        "tables": [
            table("From nothing to the first sample, and memory then:", ("order", "time", "memory"), rows)
        ],
    }
    publish("data_open", claims, details, options.quick)


def measure(store: Path, version: str, how: str) -> dict[str, float]:
    env = {
        **os.environ,
        "WEFT_DATA_STORE": str(store),
        "PYTHONPATH": str(BENCHMARKS.parent / "src"),
    }
    done = subprocess.run(
        [PYTHON, "-c", READER, version, how], env=env, capture_output=True, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def write(store: Store, count: int) -> str:
    """A version as an ingest would leave it, but for the content."""
    version = f"{count:032x}"
    folder = store.version(version)
    folder.mkdir()
    lengths = numpy.random.default_rng(0).integers(16 << 10, 128 << 10, count).astype("<u8")
    ends = numpy.cumsum(lengths)
    part = (ends // numpy.uint64(PART - (128 << 10))).astype("<u4")
    first = numpy.searchsorted(part, numpy.arange(int(part[-1]) + 1))
    begins = ends - lengths
    with (folder / "samples.idx").open("wb") as file:
        (begins - begins[first][part]).tofile(file)
        lengths.tofile(file)
        part.tofile(file)
    width = len("0000/00000000.jpg")
    (numpy.arange(count + 1, dtype="<u8") * numpy.uint64(width)).tofile(folder / "names.idx")
    with (folder / "names.txt").open("w") as file:
        for begin in range(0, count, 100_000):
            end = min(count, begin + 100_000)
            file.write("".join(f"{number // 10_000:04d}/{number:08d}.jpg" for number in range(begin, end)))
    digest = "ab" * 32
    store.part(digest).parent.mkdir()
    with store.part(digest).open("wb") as file:
        file.truncate(2 * PART)
    document = {
        "format": 1,
        "version": version,
        "samples": count,
        "bytes": int(lengths.sum()),
        "largest": int(lengths.max()),
        "parts": [{"digest": digest, "size": 2 * PART, "place": {"kind": "store"}}] * (int(part[-1]) + 1),
    }
    (folder / "version.json").write_text(json.dumps(document, separators=(",", ":")))
    return version


if __name__ == "__main__":
    main()
