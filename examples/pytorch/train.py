"""A small classifier, trained by data-parallel PyTorch over gloo. torchrun starts it in every task.

weft run --type pytorch --replicas 2 --code examples/pytorch -- python train.py
"""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import weft

STEPS = int(os.environ.get("STEPS", "60"))
PAUSE = float(os.environ.get("PAUSE", "0"))  # for tests that must be quicker than the training
SAVE_EVERY = 10
CHECKPOINT = Path(os.environ["CHECKPOINT_DIR"]) / "model.pt"


def data(rank):
    """Points in 8 dimensions, and on which side of a plane each lies; every rank has its own."""
    random = torch.Generator().manual_seed(100 + rank)
    points = torch.randn(512, 8, generator=random)
    return points, (points.sum(dim=1) > 0).float()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    first = 0
    if CHECKPOINT.exists():
        kept = torch.load(CHECKPOINT, weights_only=True)
        model.module.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        first = kept["step"] + 1
    print(f"rank {rank} of {world}, from step {first}", flush=True)
    points, side = data(rank)
    for step in range(first, STEPS):
        if (
            step == int(os.environ.get("FAIL_AT", "-1"))
            and rank == world - 1
            and os.environ["WEFT_RESTARTS"] == "0"
        ):
            os._exit(3)  # for a test of restarts
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(points).squeeze(1), side)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(PAUSE)
        if rank == 0:
            weft.log(step=step, loss=loss.item())
            if step % SAVE_EVERY == 0 or step == STEPS - 1:
                save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step})
    right = ((model(points).squeeze(1) > 0) == (side > 0)).float().mean()
    dist.all_reduce(right)
    if rank == 0:
        weft.log(step=STEPS, accuracy=(right / world).item())
    dist.destroy_process_group()


def save(state):
    """Whole or not at all."""
    torch.save(state, CHECKPOINT.with_suffix(".new"))
    CHECKPOINT.with_suffix(".new").replace(CHECKPOINT)


main()
