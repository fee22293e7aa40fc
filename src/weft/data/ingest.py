"""From a source to a new version in a store: list, read in parallel, pack, hash, sync, and only then the version.

An ingest that was killed goes on where it was: a journal says which parts were written of which objects, and a part
whose objects have the same marks is not read again. That also makes a refresh cheap where little has changed.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy

from weft.data import digest, packs, versions
from weft.data.errors import NoRoom, Refused
from weft.data.packs import Pack, Written
from weft.data.sources import Object, Source, check_name
from weft.data.store import Store
from weft.data.versions import Part, Samples

THREADS = 8
EVERY = 0.5
"""Seconds between two reports of progress."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an ingest is; the rate is bytes a second since it began to read."""

    files: int
    bytes: int
    all_files: int
    all_bytes: int
    rate: float


@dataclass(frozen=True, slots=True)
class Ingested:
    """What came of it."""

    version: str
    samples: int
    bytes: int
    parts: int
    read: int
    """Parts that had to be read from the source."""
    stored: int
    """Parts that the store did not have."""
    new: bool
    """Whether the version was not there before."""


def ingest(
    source: Source,
    store: Store,
    key: str,
    pack: Pack = "auto",
    progress: Callable[[Progress], None] | None = None,
    threads: int = THREADS,
    in_place: bool = False,
) -> Ingested:
    """A version of what the source has now. `key` says whose journal it is: the dataset's. With `in_place` nothing of it is
    copied, however small: only what there is is written down."""
    objects = listed(source)
    if in_place and not source.stays:
        raise Refused(
            "inPlace: not every object of the source can be read by ranges and known by a mark (an etag) later; "
            "leave inPlace out, and it is copied"
        )
    stored: set[str] = set()
    try:
        with store.filling() as folder, closing(Journal(store.root / "journals", key)) as journal:
            work = _Work(source, store, folder, objects, journal, pack, in_place, stored)
            work.run(progress, threads)
            return work.finish()
    except OSError as problem:
        if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
    free, inodes = shutil.disk_usage(store.root).free, os.statvfs(store.root).f_favail
    store.forget(stored)
    size = sum(item.size for item in objects)
    raise NoRoom(
        f"no room in {store.root} for {len(objects)} files of {size} bytes: {free} bytes and {inodes} inodes are free; "
        "make room there (weft data rm), or give the store another disk"
    )


def listed(source: Source) -> list[Object]:
    """What the source has, sorted by name; Refused if it cannot be a version."""
    objects = sorted(source.objects(), key=lambda item: item.name.encode(errors="surrogatepass"))
    folders: set[str] = set()
    previous = ""
    for item in objects:
        check_name(item.name)
        if item.name == previous:
            raise Refused(f"the source has {item.name!r} twice; a sample's name must be its own")
        previous = item.name
        above = item.name.rpartition("/")[0]
        while above and above not in folders:
            folders.add(above)
            above = above.rpartition("/")[0]
    for item in objects:
        if item.name in folders:
            raise Refused(f"the source has {item.name!r} as a file and as a folder; rename one of them")
    return objects


class _Work:
    """One ingest: the parts to be made, and how far it is."""

    def __init__(
        self,
        source: Source,
        store: Store,
        folder: Path,
        objects: list[Object],
        journal: Journal,
        pack: Pack,
        in_place: bool,
        stored: set[str],
    ):
        self.source, self.store, self.folder, self.journal = source, store, folder, journal
        self.objects = objects
        self.in_place = in_place
        together, most = (
            (pack if source.proves else "none", packs.MOST_IN_PLACE) if in_place else (pack, None)
        )
        self.plan = list(packs.plan(objects, together, most))
        self.parts: list[Part | None] = [None] * len(self.plan)
        self.samples = Samples.of([item.name.encode() for item in objects])
        self.stored = stored
        """Parts that are there because of this ingest."""
        self.read = 0
        self._files = self._bytes = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def run(self, progress: Callable[[Progress], None] | None, threads: int) -> None:
        begun = time.monotonic()
        size = sum(item.size for item in self.objects)

        def report() -> None:
            if progress is not None:
                took = max(time.monotonic() - begun, 1e-9)
                progress(Progress(self._files, self._bytes, len(self.objects), size, self._bytes / took))

        report()
        with ThreadPoolExecutor(threads) as pool:
            try:
                left: set[Future[None]] = {
                    pool.submit(self._part, number) for number in range(len(self.plan))
                }
                while left:
                    done, left = wait(left, EVERY, FIRST_EXCEPTION)
                    for future in done:
                        future.result()
                    report()
            except BaseException:
                self._stop.set()
                pool.shutdown(cancel_futures=True)
                raise

    def finish(self) -> Ingested:
        parts = [part for part in self.parts if part is not None]
        kept = {part.digest: part.size for part in parts if part.stored}
        lost = [name for name, size in kept.items() if not self.store.has(name, size)]
        if lost:
            raise Refused(f"{len(lost)} parts were removed from {self.store.root} meanwhile; try again")
        self.store.sync_parts(set(kept))
        folder = self.folder / "version"
        folder.mkdir()
        version = versions.write(folder, self.samples, parts)
        new = self.store.keep_version(folder, version)
        self.journal.only_last()
        size = int(self.samples.length.sum())
        return Ingested(version, len(self.objects), size, len(parts), self.read, len(self.stored), new)

    def _part(self, part: int) -> None:
        numbers = self.plan[part]
        items = [self.objects[number] for number in numbers]
        if self._stop.is_set():
            return
        alone = items[0] if len(items) == 1 else None
        if self.in_place or (self.source.stays and alone is not None and alone.size >= packs.SMALL):
            size = sum(item.size for item in items)
            if alone is not None:
                made = Part(digest.of_source(alone.name, alone.mark, size), size, alone.name, alone.mark)
            else:
                named = digest.of_sources((item.name, item.mark, item.size) for item in items)
                made = Part(named, size, objects=(numbers[0], len(numbers)))
            self._enter(part, made, b"".join(digest.of_mark(item.mark) for item in items))
            self._count(len(items), size)
            return
        known = self.journal.find(items)
        if known is not None and self.store.has(known.digest, known.size):
            self._count(len(items), sum(item.size for item in items))
        else:
            known = self._copy(part, items)
            self.journal.add(items, known)
        self._enter(part, Part(known.digest, known.size), known.marks)

    def _copy(self, part: int, items: list[Object]) -> Written:
        path = self.folder / f"part-{part}"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            written = packs.write(self.source, items, file, self._count)
            os.fsync(file)
        finally:
            os.close(file)
        new = self.store.keep_part(path, written.digest)
        with self._lock:
            self.read += 1
            if new:
                self.stored.add(written.digest)
        return written

    def _enter(self, part: int, made: Part, marks: bytes) -> None:
        numbers = self.plan[part]
        sizes = numpy.array([self.objects[number].size for number in numbers], "<u8")
        self.samples.length[numbers] = sizes
        self.samples.offset[numbers] = numpy.cumsum(sizes) - sizes
        self.samples.part[numbers] = part
        for at, number in zip(range(0, len(marks), digest.SIZE), numbers, strict=True):
            self.samples.marks[digest.SIZE * number : digest.SIZE * (number + 1)] = marks[
                at : at + digest.SIZE
            ]
        self.parts[part] = made

    def _count(self, files: int, size: int) -> None:
        with self._lock:
            self._files += files
            self._bytes += size
        if self._stop.is_set():
            raise _Stopped


class _Stopped(Exception):
    """Another part failed, and its error is the one to show."""


class Journal:
    """Which parts were made of which objects: a line each, with a checksum, so that a torn one counts for nothing."""

    def __init__(self, folder: Path, key: str):
        self._path = folder / digest.of(key.encode())
        self._lock = threading.Lock()
        self._known: dict[str, bytes] = {}
        self._used: dict[str, bytes] = {}
        try:
            lines = self._path.read_bytes().split(b"\n")
        except FileNotFoundError:
            lines = []
        for line in lines:
            checksum, _, text = line.partition(b" ")
            if text and checksum == _checksum(text):
                self._known[json.loads(text)["of"]] = line
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.write(self._file, b"\n")  # the end of a torn line

    def find(self, items: Sequence[Object]) -> Written | None:
        group = _group(items)
        line = self._known.get(group)
        if line is None:
            return None
        document = json.loads(line.partition(b" ")[2])
        with self._lock:
            self._used[group] = line
        return Written(document["digest"], document["size"], bytes.fromhex(document["marks"]))

    def add(self, items: Sequence[Object], written: Written) -> None:
        group = _group(items)
        document = {"of": group, "digest": written.digest, "size": written.size, "marks": written.marks.hex()}
        text = json.dumps(document, separators=(",", ":")).encode()
        line = _checksum(text) + b" " + text
        with self._lock:
            self._used[group] = line
            os.write(self._file, line + b"\n")

    def only_last(self) -> None:
        """Forget what this ingest did not need."""
        new = self._path.with_suffix(".new")
        new.write_bytes(b"".join(line + b"\n" for line in self._used.values()))
        new.replace(self._path)

    def close(self) -> None:
        os.close(self._file)


def _group(items: Sequence[Object]) -> str:
    return digest.of("".join(f"{item.name}\0{item.size}\0{item.mark}\n" for item in items).encode())


def _checksum(text: bytes) -> bytes:
    return digest.of(text)[:16].encode()
