"""The cluster as if nothing ran: what could ever fit is asked of it.

To make one costs as much as many questions, so each cluster has one, and one on which no node is closed.
"""

from __future__ import annotations

from dataclasses import replace
from weakref import WeakKeyDictionary

from weft.model.gang import Gang
from weft.scheduler.cluster import Cluster
from weft.scheduler.feasible import place

EVER_KEPT = 4096
_twins: WeakKeyDictionary[Cluster, Cluster] = WeakKeyDictionary()
_opened: WeakKeyDictionary[Cluster, Cluster] = WeakKeyDictionary()


def could_ever_fit(cluster: Cluster, gang: Gang) -> bool:
    """Whether the gang would fit, in its least form, if nothing else ran and no node were closed."""
    known = cluster.ever.get(gang.signature)
    if known is None:
        if len(cluster.ever) >= EVER_KEPT:
            cluster.ever.clear()
        known = cluster.ever[gang.signature] = _fits(_open(cluster), gang)
    return known


def shut_out(cluster: Cluster, gang: Gang) -> bool:
    """Whether it is only because nodes are closed to new tasks that the gang could never start."""
    return not cluster.open.all() and could_ever_fit(cluster, gang) and not _fits(emptied(cluster), gang)


def emptied(cluster: Cluster) -> Cluster:
    """The same nodes with nothing on them. Whoever reserves there takes it back."""
    twin = _twins.get(cluster)
    if twin is None or twin.nodes != cluster.nodes:
        twin = _twins[cluster] = Cluster(cluster.nodes)
    return twin


def _open(cluster: Cluster) -> Cluster:
    opened = _opened.get(cluster)
    if opened is None:  # nothing of a node changes but whether it is open
        opened = _opened[cluster] = Cluster(replace(node, schedulable=True) for node in cluster.nodes)
    return opened


def _fits(cluster: Cluster, gang: Gang) -> bool:
    mark = cluster.mark()
    fits = place(cluster, gang, gang.least) is not None
    cluster.revert(mark)
    return fits
