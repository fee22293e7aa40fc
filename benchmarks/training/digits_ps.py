"""The demo's training (examples/digits) by parameter server, with what the benchmarks need besides.

Every step takes at least WAIT seconds, as if an accelerator did it; every gradient that is begun leaves a byte in
SHARED/begun, so that those that never arrived can be counted; every worker keeps the newest version that a server
told it in SHARED/seen-N, so that a server that comes back can say how much it lost. The end is UPDATES, or the file
SHARED/stop.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np

import weft
from weft import ps
from weft.runtime.ps import snapshot

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "digits"))
import train as digits

SHARED = Path(os.environ["SHARED"])
STOP = SHARED / "stop"
UPDATES = int(os.environ.get("UPDATES", str(10**9)))
WAIT = float(os.environ["WAIT"])
TEST_EVERY = int(os.environ["TEST_EVERY"])
SNAPSHOT_EVERY = int(os.environ.get("SNAPSHOT_EVERY", "500"))


def work():
    index, workers = int(os.environ["WEFT_INDEX"]), len(ps.hosts()["worker"])
    (images, labels), held_out = digits.load()
    images, labels = images[index::workers], labels[index::workers]
    # A worker that was killed goes on with other batches, not with the same ones again.
    random = np.random.default_rng([index, int(os.environ["WEFT_RESTARTS"])])
    seen = os.open(SHARED / f"seen-{index}", os.O_WRONLY | os.O_CREAT)
    begun = os.open(SHARED / "begun", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with ps.Client() as server:
        p, version = server.pull()
        weft.log(step=version, joined=1)
        tested = version // TEST_EVERY
        while version < UPDATES and not STOP.exists():
            os.write(begun, b".")
            batch = random.integers(len(labels), size=digits.BATCH)
            _, gradients = digits.learn(p, images[batch], labels[batch])
            time.sleep(WAIT)
            server.push(gradients)
            p, version = server.pull()
            if not server.waiting:  # else it is ahead of the server
                os.pwrite(seen, f"{version:020}".encode(), 0)
            if version // TEST_EVERY != tested:
                tested = version // TEST_EVERY
                if tested % workers == index:  # in turns: the held-out images are tested as often as by DDP
                    weft.log(step=version, accuracy=digits.accuracy(p, *held_out))
        weft.log(step=version, final=digits.accuracy(p, *held_out))


def report_loss():
    """How far the snapshot, which the server goes on from, is behind what a worker saw last of the server before."""
    seen = max(SHARED.glob("seen-*"), key=lambda path: path.stat().st_mtime_ns, default=None)
    last = int(seen.read_text() or "0") if seen else 0
    path, version = Path(os.environ["CHECKPOINT_DIR"]) / "ps-0.snapshot", 0
    if path.exists():
        with path.open("rb", buffering=0) as file:
            version = snapshot._meta(file)["version"]
    weft.log(step=version, lost=max(0, last - version))


if os.environ["WEFT_ROLE"] == "ps":
    if os.environ["WEFT_RESTARTS"] != "0":
        report_loss()
    ps.serve(digits.initial(), optimizer=ps.SGD(lr=digits.RATE), every=SNAPSHOT_EVERY)
else:
    work()
