"""Among whom an epoch is divided: which rank this process is, of how many.

A gang that is resized while it runs has other ranks than those in its tasks' environment, which are of each task's own
start. Its hosts file is written anew, so whoever begins an epoch looks there: all who look between two changes agree.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from weft.runtime.hosts import hosts

LAUNCHERS = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("RANK", "WORLD_SIZE"))
"""Where MPI, torchrun and their like say who is who; Weft says the second too, and has its own beside it."""
OWN = ("WEFT_RANK", "WEFT_WORLD_SIZE")
TORCHRUN = "TORCHELASTIC_RUN_ID"
"""Starts its processes anew when tasks come or go, so the ranks that it gave are true."""

Ranks = tuple[int, int]
NOBODY: Ranks = (0, 0)
"""Of a task that was told to leave: what it begins now is all the others'."""


class InGang:
    """A task of a job that may be resized while it runs."""

    def __init__(self, address: str, services: frozenset[str]):
        self._address = address
        self._services = services

    def __call__(self) -> Ranks:
        readers = [
            address
            for role, addresses in hosts().items()
            if role not in self._services
            for address in addresses
        ]
        return (readers.index(self._address), len(readers)) if self._address in readers else NOBODY


def ranks(shard: bool | Ranks) -> Ranks | Callable[[], Ranks]:
    """Which part of an epoch is this process's; something to be asked at the beginning of each where it may change."""
    if shard is False:
        return 0, 1
    if shard is not True:
        return checked(*shard)
    own = _told(*OWN)
    given = next(filter(None, (_told(*names) for names in LAUNCHERS)), None)
    if given is not None and (given != own or TORCHRUN in os.environ):
        return checked(*given)
    services = frozenset(filter(None, os.environ.get("WEFT_SERVICES", "").split(",")))
    if (address := os.environ.get("WEFT_ADDRESS")) and os.environ.get("WEFT_ROLE") not in services:
        return InGang(address, services)
    return checked(*(own or (0, 1)))


def checked(rank: int, world: int) -> Ranks:
    if not 0 <= rank < world:
        raise ValueError(f"shard: rank {rank} of {world} ranks; ranks are counted from 0")
    return rank, world


def _told(rank: str, world: str) -> Ranks | None:
    told = os.environ.get(rank, ""), os.environ.get(world, "")
    return (int(told[0]), int(told[1])) if told[0].isdecimal() and told[1].isdecimal() else None
