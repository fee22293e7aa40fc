"""Making room: what nobody has a lease on goes, the oldest first, if it can be fetched again.

By bytes and by inodes, of the node or of one dataset; and what nobody used for long, whether there is need or not.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from pathlib import Path

from weft.data.cache.admission import NOTHING, Room
from weft.data.cache.books import PART, TREE, VERSION, Books, Entry
from weft.data.cache.files import Files
from weft.data.cache.leases import Leases, Share
from weft.data.cache.trees import Trees, remove_tree
from weft.data.cache.versions import Version


@dataclass(frozen=True, slots=True)
class Collected:
    freed: Room = NOTHING
    kept: int = 0
    """Parts that would have gone, but cannot be fetched again."""


def free(
    entries: Iterable[Entry], stay: Container[tuple[str, str]], over: Room, before: float,
    remove: Callable[[Entry], bool | None],
) -> Collected:  # fmt: skip
    """Of entries, the oldest first: those unused since `before`, and as many more as it takes to free `over`.
    `remove` says whether it did; None: it was not to be removed any more."""
    freed, kept = NOTHING, 0
    for entry in entries:
        if (entry.kind, entry.key) in stay or (entry.used >= before and freed.holds(over)):
            continue
        went = remove(entry)
        if went:
            freed += entry.room
        elif went is False:
            kept += 1
    return Collected(freed, kept)


class Collector:
    def __init__(
        self, books: Books, files: Files, trees: Trees, leases: Leases, known: Callable[[], Iterable[Version]],
        again: Callable[[str], bool], leave_folder: Callable[[str], Path], own: Callable[[str, Share], bool],
    ):  # fmt: skip
        self._books = books
        self._files = files
        self._trees = trees
        self._leases = leases
        self._known = known
        self._again = again
        """Whether a part of this digest can be fetched again, or will never be wanted."""
        self._leave_folder = leave_folder
        self._own = own
        """Whether a part of this digest is this node's to hold, among those that share."""

    def collect(self, over: Room = NOTHING, before: float = 0.0, dataset: str | None = None) -> Collected:
        """Free at least `over`, if there is as much, of one dataset or of all."""
        self._books.flush()
        self._leases.refresh()
        return free(self._books.entries(dataset), self.staying(), over, before, self._remove)

    def _remove(self, entry: Entry) -> bool | None:
        if entry.kind == PART and self._files.has(entry.key) and not self._again(entry.key):
            return False
        return self.let_go(entry.kind, entry.key) or None

    def let_go(self, kind: str, key: str) -> bool:
        """Whether it went, with its row: not if by now somebody has a lease on it, or fills it. Leases are written alone, too, so
        none begins between the look and the end."""
        leaving: list[Path] = []

        def leave() -> bool:
            self._leases.refresh()
            if self._leased(kind, key):
                return False
            if kind == PART:
                self._files.remove(key)
            else:
                leaving.append(self._trees.leave(key) if kind == TREE else self._leave_folder(key))
            return True

        try:
            return self._books.let_go(kind, key, leave)
        finally:
            for folder in leaving:
                remove_tree(folder)

    def _leased(self, kind: str, key: str) -> bool:
        leased = self._leases.versions()
        if kind != PART:
            return key in leased
        return any(
            version.name in leased and key in version.digests and self._mine(version, key)
            for version in self._known()
        )

    def _mine(self, version: Version, digest: str) -> bool:
        return any(self._own(digest, share) for share in self._leases.shares(version.name))

    def staying(self) -> set[tuple[str, str]]:
        """What is leased, and this node's to hold (when a job has other nodes than before, some of its parts are another
        node's); parts that are also files of a tree, which only the tree's end frees; and the folders of
        versions of which anything is here, without which nobody could say where to fetch it again."""
        leased, trees, parts = self._leases.versions(), self._books.keys(TREE), self._books.keys(PART)
        stay = {(kind, version) for version in leased for kind in (TREE, VERSION)}
        for version in self._known():
            if version.name in trees:
                stay |= {(PART, digest) for digest in version.digests}
            else:
                stay |= {(PART, digest) for digest in version.digests if self._mine(version, digest)}
            if version.name in trees or not version.digests.isdisjoint(parts):
                stay.add((VERSION, version.name))
        return stay
