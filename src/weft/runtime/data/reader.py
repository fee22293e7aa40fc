"""`weft.data`: the samples of a dataset, in any order, shared over ranks, to be resumed exactly.

    for sample in weft.data("faces", shuffle=True, shard=True):
        train(sample.name, sample.data)

One after the other, or by number or name: `weft.data("faces")[7]`. The bytes come from the node's agent, which caches
them; outside of a job, from the store's folder that WEFT_DATA_STORE names.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.runtime.data.errors import Missing, Refused
from weft.runtime.data.files import PROBES, Files, Lookahead
from weft.runtime.data.index import Names, Row
from weft.runtime.data.order import Order, order, reached, share
from weft.runtime.data.parts import AgentParts, Parts, StoreParts, name_path, version_path
from weft.runtime.data.ranks import Ranks, ranks

if TYPE_CHECKING:
    from weft.runtime.data.far import Far
    from weft.runtime.data.straight import Straight
    from weft.runtime.data.torch import Items, Loader, Sampler, Stream

CHUNK = 64
"""So many samples are looked up, and brought from the disk, at a time."""
LONG = 1024
"""Fewer samples are not worth a queue of their own to the disk."""
SMALL = 16 << 10
"""Bytes of a sample, on average, of which a disk brings whole parts more quickly than single ones."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
SHOWN = 12
"""People see so much of a version, and may say no less."""

Decode = Callable[[str, bytes], Any]


class Sample(NamedTuple):
    """One file of the dataset."""

    name: str
    data: bytes


_sample = tuple.__new__
"""As `Sample(name, data)`, in half the time."""


def data(
    name: str,
    *,
    shuffle: bool = False,
    seed: int = 0,
    shard: bool | tuple[int, int] | None = None,
    epoch: int = 0,
    decode: Decode | None = None,
) -> Dataset:
    """The samples of a dataset; `decode(name, bytes)` makes of each what the loop gets.

    shard=True gives each rank its part, every sample to exactly one of them an epoch; it is the default in a job that
    asked for `mode: shard`. (rank, world) may be given instead.
    """
    parts, version, mode = _found(name)
    divided = ranks(mode == "shard" if shard is None else shard)
    return Dataset(parts, version, name, shuffle, seed, divided, epoch, decode)


class Dataset:
    """One version of a dataset, and how far it has been read. `len` and `[…]` are over all of its samples."""

    def __init__(
        self,
        parts: Parts,
        version: str,
        name: str = "",
        shuffle: bool = False,
        seed: int = 0,
        ranks: Ranks | Callable[[], Ranks] = (0, 1),
        epoch: int = 0,
        decode: Decode | None = None,
    ):
        if epoch < 0:
            raise ValueError(f"epoch={epoch}: epochs are counted from 0")
        self.name = name or version[:SHOWN]
        self._ranks = ranks
        self._begun = False
        """From then on to the epoch's end its division stays as it is."""
        self.rank, self.world = ranks() if callable(ranks) else ranks
        self._shuffle, self._seed = shuffle, seed
        self._decode = decode
        self._epoch, self._position, self._taken = epoch, 0, 0
        self._files = Files(parts, parts.open(version))
        self._order: tuple[int, Order] | None = None

    # ── by number or name ──

    def __len__(self) -> int:
        return len(self._files.index)

    def __getitem__(self, which: int | str) -> Any:
        """The sample of a number, as in `names`, or of a name."""
        index = self._files.index
        if isinstance(which, str):
            try:
                which = index.number(which)
            except KeyError:
                raise KeyError(f"dataset {self.name} has no sample {which!r}; see .names") from None
        number = which + len(self) if which < 0 else which
        if not 0 <= number < len(self):
            raise IndexError(f"sample {which} of dataset {self.name}, which has {len(self)}")
        name, content = index.name(number), self._files.one(number)
        return Sample(name, content) if self._decode is None else self._decode(name, content)

    @property
    def names(self) -> Names:
        return self._files.index.names

    @property
    def version(self) -> str:
        return self._files.index.version

    @property
    def bytes(self) -> int:
        """Of all samples together."""
        return self._files.index.bytes

    # ── one after the other ──

    def __iter__(self) -> Iterator[Any]:
        """From where it is to the end of the epoch; then it stands at the beginning of the next."""
        self.begin()
        self._files.counting.begin(self._epoch)
        return self._run(self.places(), self)

    def begin(self, taken: int = 0) -> None:
        """Or go on, when so many more were taken. What is left is divided among those who are there at the beginning of
        an epoch, or when a state was restored; whoever goes on in between keeps to that."""
        self._divide()
        self._stand(self._epoch, self._reached(taken), begun=True)

    def at(self, places: range) -> Iterator[Any]:
        """The samples at places of the epoch's order; the position stays as it is."""
        return self._run(places, Dataset.__new__(Dataset))

    def _run(self, places: range, counting: Dataset) -> Iterator[Any]:
        """The samples at places, counted as taken by a dataset, which then stands at the next epoch. The loop is written out for speed: a sample in memory
        takes some ten microseconds, a function call a tenth of one."""
        files, ordered, decode, epoch = self._files, self.order(), self._decode, self._epoch
        got = files.counting
        ready, pread, parts = files.ready.get, os.pread, len(files.index.parts)
        before = 0
        if (straight := self._straight(places)) is not None:
            with straight:
                for name, content in straight.read(self._chunks(ordered, places)):
                    before += 1
                    counting._taken = before
                    yield _sample(Sample, (name, content)) if decode is None else decode(name, content)
            places = places[before:]
        bring = 2 * len(places) >= len(self) and files.fit_in_memory()
        look = Lookahead(files, ordered, places, bring)
        numbers, far, at, counted = ordered.take(places[:CHUNK]), None, before, before
        try:
            for first in range(0, len(places), CHUNK):
                if len(files.ready) < parts:
                    look.move(first)
                coming = ordered.take(places[first + CHUNK : first + 2 * CHUNK])
                if not bring and coming and coming[-1] - coming[0] >= len(coming):
                    files.advise(coming)  # what lies side by side the kernel brings by itself
                if files.far:
                    far = far or _far(files)
                    far.want([*numbers, *coming])
                at = before + first
                for number, part, offset, length, name in files.index.rows(numbers):
                    file = ready(part)
                    if file is None:
                        came = None if far is None else far.take(number)
                        content = files.read(number) if came is None else came
                        if came is not None or files.is_far(part):
                            got.far(length)
                        look.move(at + 1 - before)
                        if came is None and files.far:  # its part may be known only now
                            far = far or _far(files)
                            far.want([*numbers[at + 1 - before - first :], *coming])
                    else:
                        content = pread(file.file, length, offset)
                        if len(content) != length:
                            content = files.read_from(file, number)
                    at += 1
                    counting._taken = at
                    yield _sample(Sample, (name, content)) if decode is None else decode(name, content)
                got.took(numbers)
                numbers, counted = coming, at
        finally:
            got.took(ordered.take(places[counted - before : at - before]))
            if far is not None:
                far.close()
            if counting is self:
                got.tell()
        counting._stand(epoch + 1, 0)

    def _chunks(self, ordered: Order, places: range) -> Iterator[Iterable[Row]]:
        """The rows of the samples at places, whose parts are asked for in time."""
        files = self._files
        look = Lookahead(files, ordered, places, bring=False)
        for first in range(0, len(places), CHUNK):
            if len(files.held) < len(files.index.parts):
                look.move(first)
            yield files.index.rows(ordered.take(places[first : first + CHUNK]))

    def _straight(self, places: range) -> Straight | None:
        """For samples that are best read past the kernel's memory: they are on a cold disk, and are read for the first
        time or would not stay there. Not for few of them, nor for small ones far from each other."""
        files, index, lock = self._files, self._files.index, None
        if len(places) < LONG or (self._scattered and index.bytes < SMALL * len(self)):
            return None
        stay = files.fit_in_memory()
        if stay and files.passed >= len(self) // self.world:
            return None
        some = self.order().take(places[:: len(places) // PROBES])
        held = next(filter(None, (files.straight(index.part[number]) for number in some)), None)
        if held is None:
            return None
        if not stay or self.world > 1 or (lock := files.alone()) is not None:
            with suppress(OSError, ImportError):
                straight = import_module("weft.runtime.data.straight")
                made: Straight = straight.Straight(files, held, lock, hasty=stay and self._scattered)
                return made
        files.forget()
        return None

    @property
    def _scattered(self) -> bool:
        """Whether a rank's samples lie far from each other."""
        return self._shuffle or self.world > 1

    def take(self, numbers: Sequence[int]) -> list[Any]:
        """The samples of these numbers, brought from the disk together."""
        self._files.advise(numbers)
        return [self[number] for number in numbers]

    def order(self) -> Order:
        """Of the present epoch, over all ranks."""
        if self._order is None or self._order[0] != self._epoch:
            self._order = None  # not two of them in memory
            self._order = self._epoch, order(len(self), self._seed, self._epoch, self._shuffle)
        return self._order[1]

    def places(self) -> range:
        """What is left of the epoch for this rank, as places in its order."""
        self._divide()
        return share(self._reached(), len(self), self.rank, self.world)

    def _divide(self) -> None:
        if not self._begun and callable(self._ranks):
            self.rank, self.world = self._ranks()

    def _reached(self, more: int = 0) -> int:
        return reached(self._position, self._taken + more, len(self), self.world)

    def coming(self, places: range) -> Lookahead:
        """For whoever lets other processes read the samples at these places: told how far they are, it asks for what they
        need next."""
        return Lookahead(self._files, self.order(), places, bring=False, elsewhere=True)

    @property
    def left(self) -> int:
        """So many samples are left of the epoch for this rank."""
        return len(self.places())

    @property
    def current_epoch(self) -> int:
        return self._epoch

    def epoch(self, number: int) -> Dataset:
        """The same data at the beginning of an epoch, with a position of its own."""
        if number < 0:
            raise ValueError(f"epoch {number}: epochs are counted from 0")
        other = Dataset.__new__(Dataset)
        other.__dict__.update(self.__dict__)  # the open parts are shared
        return other._stand(number, 0)

    # ── to go on later ──

    def state(self, taken: int = 0) -> dict[str, Any]:
        """How far all ranks together are, when each has taken as many samples as this one (and `taken` more).

        It is the same on all ranks at the same step, and any number of ranks can go on from it.
        """
        return {
            "version": self.version,
            "shuffle": self._shuffle,
            "seed": self._seed,
            "epoch": self._epoch,
            "position": self._reached(taken),
        }

    def restore(self, state: dict[str, Any] | None) -> Dataset:
        """Go on from a state; None is the beginning."""
        if state is None:
            return self._stand(0, 0)
        mine = self.state()
        if set(state) != set(mine):
            raise ValueError(f"dataset {self.name}: not a state of a dataset: {state!r:.200}")
        for what in ("version", "shuffle", "seed"):
            if state[what] != mine[what]:
                raise Refused(
                    f"dataset {self.name} cannot go on from a state with {what} {state[what]}, for it has {what} "
                    f"{mine[what]}; give it the same, or begin anew with restore(None)"
                )
        epoch, position = state["epoch"], state["position"]
        if not (isinstance(epoch, int) and isinstance(position, int)):
            raise ValueError(
                f"dataset {self.name}: epoch {epoch!r} and position {position!r} must be numbers"
            )
        if epoch < 0 or not 0 <= position <= len(self):
            raise ValueError(
                f"dataset {self.name}: no position {position} in epoch {epoch} of {len(self)} samples"
            )
        return self._stand(epoch, position)

    def _stand(self, epoch: int, position: int, begun: bool = False) -> Dataset:
        self._epoch, self._position, self._taken, self._begun = epoch, position, 0, begun
        return self

    def __repr__(self) -> str:
        return (
            f"<dataset {self.name}, version {self.version[:SHOWN]}: {len(self)} samples, {self.bytes} bytes>"
        )

    def __getstate__(self) -> dict[str, Any]:
        """For a process of its own, which opens the parts itself."""
        return {**self.__dict__, "_order": None, "_files": (self._files.parts, self.version)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        parts, version = state["_files"]
        self.__dict__.update(state | {"_files": Files(parts, parts.open(version))})

    # ── for frameworks ──

    def torch_dataset(self) -> Items:
        """A map-style torch Dataset of all samples."""
        from weft.runtime.data.torch import Items

        return Items(self)

    def torch_sampler(self) -> Sampler:
        """This rank's numbers for a DataLoader over `torch_dataset()`."""
        from weft.runtime.data.torch import Sampler

        return Sampler(self)

    def torch_iterable(self, batch_size: int = 1) -> Stream:
        """An IterableDataset whose samples are divided over the DataLoader's workers, batch by batch."""
        from weft.runtime.data.torch import Stream

        return Stream(self, batch_size)

    def torch_loader(self, batch_size: int = 1, **options: Any) -> Loader:
        """A torch DataLoader of this rank's samples that can be resumed exactly."""
        from weft.runtime.data.torch import Loader

        return Loader(self, batch_size, **options)

    def tf_dataset(self, signature: Any = None) -> Any:
        """A tf.data.Dataset of this rank's epoch; `signature` says what `decode` gives."""
        from weft.runtime.data.tf import dataset

        return dataset(self, signature)


def _far(files: Files) -> Far:
    """Loaded by who has something far away: every millisecond of import counts."""
    made: Far = import_module("weft.runtime.data.far").Far(files)
    return made


# ── where it is ──


def _found(name: str) -> tuple[Parts, str, str]:
    """Who gives the parts, the version, and the mode that the job asked for."""
    declared: dict[str, dict[str, str]] = json.loads(os.environ.get("WEFT_DATASETS") or "{}")
    entry = declared.get(name) or next((e for e in declared.values() if e.get("as") == name), {})
    store = os.environ.get("WEFT_DATA_STORE")
    if os.environ.get("WEFT_DATA_SOCKET"):
        if not entry:
            there = ", ".join(sorted(declared)) or "none"
            raise Missing(f"this job has no dataset {name}, only: {there}; add it to the job's datasets:")
        return AgentParts.of_this_job(), entry["version"], entry.get("mode", "")
    if not store:
        raise Missing(
            f"dataset {name}: this process is in no job that was given data. Declare it in the job, "
            f"datasets: [{{name: {name}}}], or set WEFT_DATA_STORE to the folder of a store"
        )
    return StoreParts(store), entry.get("version") or _kept(store, name), entry.get("mode", "")


def _kept(store: str, name: str) -> str:
    """The version that a store has under a name, or whose beginning was given."""
    if NAME.fullmatch(name):
        try:
            with open(name_path(store, name)) as file:
                return file.read().strip()
        except FileNotFoundError:
            pass
    try:
        versions = os.listdir(version_path(store, ""))
    except FileNotFoundError:
        raise Missing(f"WEFT_DATA_STORE={store} is not a store: it has no folder versions") from None
    found = [version for version in versions if len(name) >= SHOWN and version.startswith(name)]
    if len(found) != 1:
        raise Missing(
            f"the store {store} has no dataset and no version {name}; it has {len(versions)} versions"
        )
    return found[0]
