"""A training of a fixed number of steps, timed from inside: the work that overhead.py runs in two ways.

    python fixed_work.py STEPS

One hidden layer on random numbers, one thread, a line of output now and then as every training prints.
The last line is what was measured: {"seconds": ..., "cpu": ...}.
"""

from __future__ import annotations

import json
import os
import sys
import time

BATCH, INPUTS, HIDDEN, CLASSES = 256, 256, 256, 10
WARM_UP = 20


def main() -> None:
    for library in ("OMP", "OPENBLAS", "MKL"):
        os.environ[f"{library}_NUM_THREADS"] = "1"
    import numpy as np  # after its thread count is settled

    steps = int(sys.argv[1])
    every = max(steps // 20, 1)
    random = np.random.default_rng(0)
    x = random.standard_normal((BATCH, INPUTS), dtype=np.float32)
    y = np.eye(CLASSES, dtype=np.float32)[random.integers(0, CLASSES, BATCH)]
    first = random.standard_normal((INPUTS, HIDDEN), dtype=np.float32) * 0.05
    second = random.standard_normal((HIDDEN, CLASSES), dtype=np.float32) * 0.05
    for step in range(-WARM_UP, steps):
        if step == 0:
            begin, cpu = time.perf_counter(), time.process_time()
        hidden = np.maximum(x @ first, 0)
        error = hidden @ second - y
        gradient = (error @ second.T) * (hidden > 0)
        second -= 1e-4 * (hidden.T @ error)
        first -= 1e-4 * (x.T @ gradient)
        if step >= 0 and step % every == 0:
            print(f"step={step} loss={float((error * error).mean()):.6f}", flush=True)
    print(json.dumps({"seconds": time.perf_counter() - begin, "cpu": time.process_time() - cpu}), flush=True)


if __name__ == "__main__":
    main()
