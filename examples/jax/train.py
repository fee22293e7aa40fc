"""Linear regression by several JAX processes, each with its own part of the data.

weft run --type jax --replicas 2 --code examples/jax -- python train.py
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

import weft

jax.distributed.initialize(
    os.environ["JAX_COORDINATOR_ADDRESS"],
    int(os.environ["JAX_NUM_PROCESSES"]),
    int(os.environ["JAX_PROCESS_ID"]),
)
rank, world = jax.process_index(), jax.process_count()
print(f"rank {rank} of {world}, {jax.device_count()} devices", flush=True)

random = np.random.default_rng(rank)
points = random.normal(size=(256, 4)).astype(np.float32)
values = points @ np.array([1.0, -2.0, 3.0, 0.5], np.float32)
weights = jnp.zeros(4)
loss_of = jax.jit(jax.value_and_grad(lambda w: jnp.mean((points @ w - values) ** 2)))

for step in range(60):
    loss, gradient = loss_of(weights)
    everybody = multihost_utils.process_allgather((loss, gradient))
    weights = weights - 0.1 * everybody[1].mean(axis=0)
    if rank == 0:
        weft.log(step=step, loss=float(everybody[0].mean()))
print("weights", np.round(np.asarray(weights), 2).tolist(), flush=True)
jax.distributed.shutdown()
