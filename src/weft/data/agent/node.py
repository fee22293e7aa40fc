"""All that an agent has, put together, and the few things that readers, the engine and other nodes all ask of it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from blake3 import blake3

from weft.data.agent.catalog import Catalog
from weft.data.agent.counts import Counted, Counts
from weft.data.agent.filling import Filling
from weft.data.agent.origins import Origin, Sources, reader
from weft.data.agent.peers import Peers
from weft.data.cache.admission import UNLIMITED, Room
from weft.data.cache.books import PART, TREE, VERSION, Books, Claim
from weft.data.cache.collect import Collected, Collector
from weft.data.cache.fetch import Read, fetch, fetch_range
from weft.data.cache.files import Files
from weft.data.cache.leases import Leases, Terms
from weft.data.cache.trees import Trees
from weft.data.cache.versions import Part, Version
from weft.data.errors import Corrupt, DataError, Missing, NoRoom
from weft.data.patience import ONCE, PATIENT, Patience

T = TypeVar("T")
READS_AT_ONCE = 32
TTL = 14 * 86_400.0


@dataclass(frozen=True)
class Settings:
    folder: Path
    name: str = "node"
    quota: Room = UNLIMITED
    reserve: int = 0
    ttl: float = TTL
    """Seconds after which goes what nobody used and nobody has a lease on."""
    key: str = ""
    mounted: bool = False
    """Jobs see folders of files through read-only mounts alone."""
    patience: Patience = PATIENT
    now: Callable[[], float] = time.time


class Node:
    def __init__(self, settings: Settings, origin: Origin, sources: Sources | None = None):
        self.settings = settings
        self.now = settings.now
        self.origin = origin
        self._sources = sources
        settings.folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        self.files = Files(settings.folder)
        self.books = Books(settings.folder / "books.sqlite", settings.quota)
        self.leases = Leases(self.books)
        self.counts = Counts(self.books)
        self.trees = Trees(settings.folder, self.books, mounted=settings.mounted)
        self.catalog = Catalog(settings.folder, self.books, origin, settings.patience)
        self.peers = Peers(settings.name, settings.key, self.books)
        self.collector = Collector(
            self.books, self.files, self.trees, self.leases, self.catalog.known, self._again, self.catalog.leave,
            self.peers.owns,
        )  # fmt: skip
        self.filling = Filling(
            self.files, self.books, self.collector, settings.reserve, settings.patience, self.now
        )
        self._threads = ThreadPoolExecutor(READS_AT_ONCE, thread_name_prefix="read")
        self.held: dict[str, int] = {}
        """What `holds` said last: to count it takes a moment."""
        self._fresh: set[str] = set()
        """Parts that came because a reader wanted them, and that none has got yet."""
        self.swept = self.recover()
        with suppress(NoRoom):
            self.books.adopt(self.files.held(), self.now())

    def close(self) -> None:
        self.filling.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.origin.close()
        self.peers.close()
        with suppress(DataError):
            self.counts.flush()
            self.books.close()

    async def aside(self, function: Callable[..., T], *arguments: Any) -> T:
        """In a thread: everything that may wait for a disk or a network."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    def recover(self) -> int:
        """Put the books and the disk in agreement after a death; how many leftovers there were."""
        swept = self.files.sweep() + self.trees.sweep() + self.catalog.sweep()
        with suppress(NoRoom, OSError):  # on a full disk rows stay for now, and cost only room in the books
            for kind, key in self.books.unfinished():
                self._settle(kind, key)
        return swept

    def _settle(self, kind: str, key: str) -> None:
        """A row says that something is under way. Its growing file is asked for first: it may become whole meanwhile."""
        if kind == PART:
            if not self.files.growing(key).exists():
                with self.files.filling(key):
                    self._known(kind, key, self.files.has(key))
            return
        place: Trees | Catalog = self.trees if kind == TREE else self.catalog
        if not place.growing(key).exists():
            self._known(kind, key, place.path(key).exists())

    def _known(self, kind: str, key: str, whole: bool) -> None:
        if whole:
            self.books.arrived(kind, key)
        else:
            self.books.drop(kind, key)

    # ── versions and parts ──

    async def version(self, name: str, dataset: str) -> Version:
        known = self.catalog.get(name)
        if known is not None:
            return known
        return await self.aside(self.catalog.bring, name, dataset, self.filling.make_room)

    def open(self, part: Part) -> int | None:
        """The part's file, if it is on this machine."""
        fd = self.origin.open(part)
        if fd is None:
            fd = self.files.open(part.digest, part.size)
            if fd is not None:
                self.books.touch(PART, part.digest, self.now())
        return fd

    async def fill(
        self, version: str, part: Part, terms: Terms, job: str, *, evict: bool = True, peers: bool = True
    ) -> bool:
        """Whether the part is here, after fetching it if there is room and it is this node's to hold."""
        if not self.peers.owns(part.digest, terms.share):
            return False
        if (there := self.origin.open(part)) is not None:  # on this machine already: never copied
            os.close(there)
            return True
        stay = self._counted_on() if terms.policy == "lru" else ()
        read = self._nearest(version, terms, job, peers=peers)
        if job:
            read = self._noted(read)
        return await self.filling.fill(part, _claim(part, terms), read, evict=evict, stay=stay)

    def _noted(self, read: Read) -> Read:
        def noting(part: Part, offset: int, length: int) -> Iterator[bytes]:
            self._fresh.add(part.digest)
            return read(part, offset, length)

        return noting

    def take_fresh(self, part: Part) -> bool:
        """Whether it came for who gets it now; who gets it after that finds it here."""
        there = part.digest in self._fresh
        self._fresh.discard(part.digest)
        return there

    def _nearest(self, version: str, terms: Terms, job: str, *, peers: bool = True) -> Read:
        """For one fetch: from the node that brings the part to all that hold it, else from its origin. A node is asked once: what
        it gave may be wrong. Counted."""
        origin, asked = reader(self.origin, terms.dataset, self._sources), set[str]()

        def read(part: Part, offset: int, length: int) -> Iterator[bytes]:
            if peers and part.digest not in asked and not self.peers.owns(part.digest, terms.together):
                asked.add(part.digest)
                with suppress(DataError):
                    for chunk in self.peers.read(version, part, terms.together or (), offset, length):
                        offset, length = offset + len(chunk), length - len(chunk)
                        self.count(job, terms.dataset, Counted(peerBytes=len(chunk)))
                        yield chunk
            if length:
                for chunk in origin(part, offset, length):
                    self.count(job, terms.dataset, Counted(remoteBytes=len(chunk)))
                    yield chunk

        return read

    def _counted_on(self) -> set[str]:
        """Parts that a job without replacement reads: no other job's policy lets them go."""
        names = self.leases.versions("nr")
        return set().union(*(known.digests for known in self.catalog.known() if known.name in names))

    async def file_for_peer(self, name: str, digest: str) -> int:
        """A part for another node: only of what a job here reads, and fetched if it is this node's."""
        terms = self.leases.terms(name)
        if terms is None:
            raise Missing(f"no job on node {self.settings.name} reads version {name[:12]}")
        version = await self.version(name, terms.dataset)
        part = version.by_digest(digest)
        fd = self.open(part)
        among = terms.share or terms.together
        if fd is None and among and await self.fill(name, part, terms, "", peers=False):
            fd = self.open(part)
        if fd is None:
            raise Missing(f"part {digest[:12]} is not on node {self.settings.name}")
        return fd

    def read(
        self, version: Version, part: Part, terms: Terms, job: str, offset: int, length: int, mark: bytes
    ) -> bytes:
        """Bytes of a part from wherever they are nearest, proven where a mark or a digest can."""
        fd = self.open(part)
        if fd is not None:
            try:
                return os.pread(fd, length, offset)
            finally:
                os.close(fd)
        share = terms.share
        if share and not self.peers.owns(part.digest, share):
            with suppress(DataError):
                data = fetch_range(
                    part,
                    lambda _, o, n: self.peers.read(version.name, part, share, o, n),
                    offset,
                    length,
                    ONCE,
                )
                _prove(part, data, mark)
                self.count(job, terms.dataset, Counted(peerBytes=length))
                return data
        read = reader(self.origin, terms.dataset, self._sources)
        data = fetch_range(part, read, offset, length, self.settings.patience)
        self.count(job, terms.dataset, Counted(remoteBytes=length))
        _prove(part, data, mark)
        return data

    def tree(
        self, version: Version, terms: Terms, job: str, came: Callable[[int], None] = lambda size: None
    ) -> Path:
        """All files. `came` is told the size of each part that is here."""

        def count(part: Part, *, hit: bool) -> None:
            samples, size = version.content(part.digest)
            more = Counted(hits=samples, hitBytes=size, givenBytes=part.size, found=1)
            if not hit:
                more = Counted(misses=samples, missBytes=size, lacked=1)
            self.count(job, terms.dataset, more)

        def bring(part: Part) -> int:
            fd = here(part)
            came(part.size)
            return fd

        def here(part: Part) -> int:
            """Under the part's lock: who fills the cache with it just now fetches it for the tree, too."""
            if (fd := self.open(part)) is None:
                read = self._nearest(version.name, terms, job)
                if terms.together and self.peers.owns(part.digest, terms.together):
                    self.filling.fill_here(part, _claim(part, terms), read, evict=False)  # for the others
                    if (fd := self.open(part)) is not None:
                        count(part, hit=False)
                        return fd
                with self.files.filling(part.digest):
                    if (fd := self.open(part)) is None:
                        count(part, hit=False)
                        return self._pass(part, read)
            count(part, hit=True)
            return fd

        made = self.trees.make(version, terms.dataset, terms.quota, self.now(), bring, self.filling.make_room)
        self.books.touch(TREE, version.name, self.now())
        return made

    def _pass(self, part: Part, read: Read) -> int:
        """An open file with a part that is not kept."""
        passing = self.files.passing(part.size)
        try:
            fetch(part, read, passing, self.settings.patience)
        except BaseException:
            os.close(passing.fd)
            raise
        return passing.fd

    def count(self, job: str, dataset: str, more: Counted) -> None:
        self.counts.add(job, dataset, more, self.now())

    # ── keeping house ──

    async def expect(self, name: str, terms: Terms) -> None:
        """Make room for what a job will read, before it waits for it."""
        version = await self.version(name, terms.dataset)
        held = self.books.keys(PART)
        missing = sum(part.size for part in version.parts if part.digest not in held)
        most = missing if terms.quota is None else min(missing, terms.quota)
        need = Room(min(most, self.settings.quota.bytes), 1)
        await self.aside(self.filling.make_room, Claim(PART, name, terms.dataset, need, terms.quota))

    def holds(self) -> dict[str, int]:
        """Bytes of each version that are on this node."""
        held, trees = self.books.keys(PART), self.books.keys(TREE)
        found = {}
        for version in self.catalog.known():
            whole = version.name in trees or self.origin.folder(version.name) is not None
            if whole or version.digests <= held:
                found[version.name] = version.bytes
            elif parts := [part for part in version.parts if part.digest in held]:
                found[version.name] = min(sum(part.size for part in parts), version.bytes)
        return found

    def keep_house(self) -> Collected:
        """What may be done now and then: down to the quota, and what is too old."""
        self.recover()
        used, quota = self.books.total(), self.settings.quota
        over = Room(max(0, used.bytes - quota.bytes), max(0, used.inodes - quota.inodes))
        return self.collector.collect(over, self.now() - self.settings.ttl)

    def forget(self, version: Version) -> Room:
        """A version's files, folder and those of its parts that belong to no other; even the last copy. What is being fetched
        just now goes with the next collection, which must know what it was."""
        before = self.books.total()
        others = set[str]().union(*(v.digests for v in self.catalog.known() if v.name != version.name))
        self.collector.let_go(TREE, version.name)
        for digest in version.digests - others:
            self.collector.let_go(PART, digest)
        if version.digests.isdisjoint(key for _, key in self.books.unfinished()):
            self.collector.let_go(VERSION, version.name)
        return before - self.books.total()

    def _again(self, digest: str) -> bool:
        """Whether a part can be fetched again, or every version that has it was deleted; who cannot be asked has not said yes."""
        try:
            versions = []
            for version in self.catalog.known():
                if (part := version.find(digest)) is not None:
                    if part.stays:
                        return self._sources is not None
                    versions.append(version.name)
            return self.origin.has(digest) or (bool(versions) and all(map(self.origin.gone, versions)))
        except DataError:
            return False


def _claim(part: Part, terms: Terms) -> Claim:
    return Claim(PART, part.digest, terms.dataset, Room(part.size), terms.quota, terms.policy)


def _prove(part: Part, data: bytes, mark: bytes) -> None:
    if mark and not part.stays and blake3(data).digest() != mark:
        raise Corrupt(
            f"{len(data)} bytes of part {part.digest[:12]} are not the sample's; `weft data verify` says what is damaged"
        )
