"""Free GPUs that no waiting job can use: what fragmentation costs."""

from __future__ import annotations

import numpy as np

from weft.scheduler.feasible import groups_of, place
from weft.scheduler.fit import fit_of
from weft.scheduler.state import State


def stranded(state: State) -> float:
    """A node's free GPUs are of use if a task of a waiting gang fits there, and the gang would fit as a whole."""
    cluster, mix = state.cluster, state.pending.mix
    free = cluster.free[:, cluster.gpu_columns].sum(axis=1)
    if not len(state.pending) or not free.any():
        return 0.0
    usable = np.zeros_like(free)
    asked: set[object] = set()
    for group in state.pending.groups.values():
        gang = group.first.gang
        if gang.gpus == 0 or gang.signature in asked:
            continue
        asked.add(gang.signature)
        mark = cluster.mark()
        fits = place(cluster, gang, gang.least, mix) is not None
        cluster.revert(mark)
        if not fits:
            continue
        for request, _ in groups_of(gang.least):
            count = fit_of(cluster, gang, request, mix).count
            here = count * request.gpu if request.gpu else np.where(count > 0, free, 0)
            usable = np.maximum(usable, np.minimum(here, free))
    return float((free - usable).sum())
