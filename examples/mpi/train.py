"""Linear regression by MPI processes that average their gradients, as Horovod does.

weft run --type mpi --code examples/mpi -- python train.py        # roles: launcher, worker
"""

import os

import numpy as np
from mpi4py import MPI

import weft

world = MPI.COMM_WORLD
print(f"rank {world.rank} of {world.size} in {os.environ['WEFT_TASK']}", flush=True)
random = np.random.default_rng(world.rank)
points = random.normal(size=(256, 4))
values = points @ np.array([1.0, -2.0, 3.0, 0.5])
weights = np.zeros(4)
for step in range(60):
    wrong = points @ weights - values
    gradient = world.allreduce(2 * points.T @ wrong / len(points)) / world.size
    loss = world.allreduce((wrong**2).mean()) / world.size
    weights -= 0.1 * gradient
    if world.rank == 0:
        weft.log(step=step, loss=loss)
