"""The jobs that the page is looked at with: real ones, one of each kind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import Server, job, package, sh

CURVE = """
import math, weft
for step in range(400):
    weft.log(step=step, loss=math.exp(-step / 120) + 0.02 * math.sin(step), accuracy=1 - math.exp(-step / 90))
print("done")
"""
TRAINS = """
import math, os, time, weft
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
step = 0
while True:
    step += 1
    weft.log(step=step, loss=math.exp(-step / 300), progress=min(1.0, step / 3600))
    print(f"step {step}: loss {math.exp(-step / 300):.4f}", flush=True)
    time.sleep(0.5)
"""
FAILS = """
import sys
print("INFO reading data", flush=True)
print("WARNING 3 samples are empty", flush=True)
raise ValueError("shape (3, 4) does not fit (4, 4)")
"""


@dataclass(frozen=True)
class Jobs:
    done: str = "digits"
    gang: str = "llama-finetune"
    failed: str = "resnet-sweep-7"
    waits: str = "wants-much"
    never: str = "wants-too-much"
    halted: str = "paused-run"


def fill(server: Server) -> Jobs:
    """Submit them and wait until each is where it should be."""
    jobs = Jobs()
    code = {
        "package": server.put_package(package({"curve.py": CURVE, "train.py": TRAINS, "eval.py": FAILS})[1])
    }
    _dataset(server)

    def submit(name: str, script: str, *args: str, **options: Any) -> None:
        labels = options.pop("labels", None)
        server.submit(job("python", script, name=name, args=list(args), code=code, labels=labels, **options))

    two = {"worker": {"replicas": 2, "resources": {"cpu": 2, "gpu": 2, "memory": "256Mi"}}}
    four = {"worker": {"replicas": 4, "resources": {"cpu": 1, "gpu": 2}}}
    submit(jobs.done, "curve.py", "--lr", "0.1", labels={"team": "vision"}, datasets=[{"name": "faces"}])
    submit(jobs.gang, "train.py", "--layers", "32", roles=two, deadline="2h", labels={"team": "language"})
    submit(jobs.failed, "eval.py")
    submit(jobs.halted, "train.py")
    server.wait_for(jobs.gang, "PROCESSING")
    submit(jobs.waits, "train.py", roles=four, deadline="1h")
    server.submit(sh("true", name=jobs.never, roles={"worker": {"resources": {"gpu": 64}}}))
    server.wait_for(jobs.halted, "PROCESSING")
    server.ask(jobs.halted, "halt")
    server.wait_for(jobs.halted, "HALTED")
    server.wait_for(jobs.done, "COMPLETED")
    server.wait_for(jobs.failed, "FAILED")
    return jobs


def _dataset(server: Server) -> None:
    folder = Path(server.home).parent / "faces"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number}.txt").write_text(f"face {number}")
    server.weft("data", "add", "faces", str(folder))
