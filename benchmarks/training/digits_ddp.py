"""The demo's model and data (examples/digits) by synchronous PyTorch DDP over gloo, with checkpoints.

As digits_ps.py: batches, waits and tests are the same. DDP averages the gradients of its workers where a parameter
server adds them up, so its rate is that of the demo times the number of workers. The images come from
SHARED/digits.npz, since the environment of torch has no scikit-learn.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import weft

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "digits"))
import train as digits

SHARED = Path(os.environ["SHARED"])
STOP = SHARED / "stop"
STEPS = int(os.environ.get("STEPS", str(10**9)))
WAIT = float(os.environ["WAIT"])
TEST_EVERY = int(os.environ["TEST_EVERY"])  # gradients, of which a step has one a worker
SAVE_EVERY = int(os.environ["SAVE_EVERY"])  # steps


def new_model():
    model = torch.nn.Sequential(
        torch.nn.Linear(64, digits.HIDDEN), torch.nn.ReLU(), torch.nn.Linear(digits.HIDDEN, 10)
    )
    values = {name: torch.tensor(value, dtype=torch.float32) for name, value in digits.initial().items()}
    model.load_state_dict(
        {
            "0.weight": values["w1"].T,
            "0.bias": values["b1"],
            "2.weight": values["w2"].T,
            "2.bias": values["b2"],
        }
    )
    return model


def accuracy(model, images, labels):
    with torch.no_grad():
        return float((model(images).argmax(dim=1) == labels).float().mean())


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    data = np.load(SHARED / "digits.npz")
    images, labels = torch.tensor(data["images"][rank::world]), torch.tensor(data["labels"][rank::world])
    held_out = torch.tensor(data["test_images"]), torch.tensor(data["test_labels"])
    model = DistributedDataParallel(new_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=digits.RATE * world)
    step = 0
    if kept := weft.checkpoint.load():
        model.module.load_state_dict(kept["model"])
        step = kept["step"]
    if rank == 0:
        done = os.open(SHARED / "done", os.O_RDWR | os.O_CREAT)  # the last step that was done, kept or not
        weft.log(step=step, lost=int(os.pread(done, 20, 0) or b"0") - step)
        os.pwrite(done, f"{step:020}".encode(), 0)  # or a launch that makes no step would lose them again
    random = np.random.default_rng([rank, int(os.environ["WEFT_LAUNCH"])])
    tests = max(1, TEST_EVERY // world)
    over = torch.zeros(1)
    while step < STEPS and not over:
        batch = random.integers(len(labels), size=digits.BATCH)
        loss = torch.nn.functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        time.sleep(WAIT)
        loss.backward()
        optimizer.step()
        step += 1
        if rank == 0:
            os.pwrite(done, f"{step:020}".encode(), 0)
            if step % SAVE_EVERY == 0:
                weft.checkpoint.save({"model": model.module.state_dict(), "step": step}, step=step)
        if step % tests == 0:
            if rank == 0:
                weft.log(step=step, accuracy=accuracy(model.module, *held_out))
                over[0] = STOP.exists()
            dist.broadcast(over, 0)
    if rank == 0:
        weft.log(step=step, final=accuracy(model.module, *held_out))
    dist.destroy_process_group()


main()
