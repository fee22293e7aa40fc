"""Names that nothing has."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import ClassVar


class NoSuch(Exception):
    """There is nothing of this kind by that name; `near` are names that were perhaps meant."""

    kind: ClassVar[str]
    look: ClassVar[str]
    """The command that shows what there is."""

    def __init__(self, name: str, known: Iterable[str]):
        super().__init__(f"there is no {self.kind} {name}")
        self.near = get_close_matches(name, known, n=3)


class NoJob(NoSuch):
    kind, look = "job", "weft ls"


class NoQueue(NoSuch):
    kind, look = "queue", "weft queues"


class NoNode(NoSuch):
    kind, look = "node", "weft nodes"


class NoJobType(NoSuch):
    kind, look = "job type", "weft jobtypes"


class NoSize(NoSuch):
    kind, look = "size", "weft sizes"


class NoCluster(NoSuch):
    kind, look = "cluster", "weft clusters"


class NoDataset(NoSuch):
    kind, look = "dataset", "weft data ls"
