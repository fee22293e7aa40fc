"""`weft.checkpoint`: versions of a training state in CHECKPOINT_DIR, each of them whole or not there at all.

    step-000000000100/whole.weft                  one state for the whole job
    step-000000000200/rank-00003-of-00008.1.weft  the part of one rank
    .weft/tmp/…                                   being written, or being removed

A file is written under `.weft/tmp`, synced, and moved to its place; format and checksums are those of `statefile`.
A step with parts counts once all of them are there. Parts that were there before this process was born are of an
earlier run of the job, which may have been in another state at the same step: they never complete a newer set, whose
number (the `.1` above) is one higher. The newest checkpoint is the one that was saved last, not the one with the
highest step: a job may have been sent back.
"""

from __future__ import annotations

import fcntl
import operator
import os
import re
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from weft.runtime import statefile
from weft.runtime.hidden import hidden, locked, sync_folder
from weft.runtime.identity import TICKS, start_time

STEP = re.compile(r"step-(\d{12,})")
PART = re.compile(r"rank-(\d{5,})-of-(\d{5,})\.(\d+)\.weft")
WHOLE = "whole.weft"


class CheckpointError(Exception):
    """A checkpoint that cannot be kept, or one that was asked for and is not there. What is kept is intact."""


def save(state: Any, *, step: int, keep: int = 3, rank: int | None = None, world: int | None = None) -> None:
    """Keep `state` as the checkpoint of `step`, and of older ones the newest `keep - 1`.

    A state is made of dict, list, tuple, numbers, strings, bytes, bool, None, numpy arrays and torch tensors (a
    state_dict); anything else is a TypeError that names its place. With `rank`, it is the part of one of `world`
    (WORLD_SIZE) tasks that all save the same step. CheckpointError if the disk does not take it: the checkpoints
    before stay as they are. Outside of a job nothing is kept, and said so.
    """
    step, keep = _whole("step", step, 0), _whole("keep", keep, 1)
    own = _own_part(rank, world)
    tree, arrays = statefile.flatten(state)
    folder = _folder()
    if folder is None:
        _warn_once("CHECKPOINT_DIR is not set, as in a job it would be: no checkpoints are kept")
        return
    try:
        _save(folder, step, keep, own, tree, arrays)
    except OSError as problem:
        raise CheckpointError(_not_kept(folder, step, sum(a.size for a in arrays), problem)) from problem


def load(
    default: Any = None, *, step: int | None = None, rank: int | None = None, world: int | None = None
) -> Any:
    """The state that was saved last, or `default` if there is none; with `step`, that one or CheckpointError.

    What is damaged or incomplete is passed over, with a line on stderr. Arrays come back as they were saved, tensors
    on the CPU. `rank` gives the part of one rank, the same step to all: every part of it is checked. A step may also
    be asked for by WEFT_CHECKPOINT_STEP: `100` at every start, `100@ID` until something was saved under the same ID.
    """
    folder = _folder()
    versions = [] if folder is None else list(_versions(folder))
    asked_by = ""
    if step is not None:
        step = _whole("step", step, 0)
    elif request := _request():
        text, at, _ = request.partition("@")
        if not at or all(v.request != request for v in versions if v.complete):
            step, asked_by = _whole("WEFT_CHECKPOINT_STEP", text, 0), " (WEFT_CHECKPOINT_STEP)"
    if step is not None:
        versions = [v for v in versions if v.step == step]
    for version in sorted(versions, key=lambda v: v.order, reverse=True):
        try:
            return _read(version, rank, world)
        except statefile.Damaged as problem:
            _warn(f"checkpoint of step {version.step} passed over: {problem}")
    if step is None:
        return default
    others = ", ".join(map(str, steps())) or "none"
    raise CheckpointError(f"no good checkpoint of step {step}{asked_by} in {folder}; there are: {others}")


def steps() -> list[int]:
    """The steps of all complete checkpoints, in order."""
    folder = _folder()
    return [] if folder is None else sorted({v.step for v in _versions(folder) if v.complete})


# ── what is there ──


class Version(NamedTuple):
    """One file, or the parts of one set, of one step."""

    step: int
    world: int
    """0: one state for all."""
    paths: list[str]
    order: int
    """Later saves have higher ones."""
    request: str
    lacks: str
    """What makes it incomplete, if anything."""

    @property
    def complete(self) -> bool:
        return not self.lacks


def _versions(folder: str) -> Iterator[Version]:
    for name in _names(folder):
        if found := STEP.fullmatch(name):
            place = os.path.join(folder, name)
            yield from _versions_of(place, int(found[1]))


def _versions_of(place: str, step: int) -> Iterator[Version]:
    sets: dict[tuple[int, int], dict[int, str]] = {}
    for name in _names(place):
        if name == WHOLE:
            sets[0, 0] = {0: os.path.join(place, name)}
        elif found := PART.fullmatch(name):
            rank, world, number = map(int, found.groups())
            sets.setdefault((world, number), {})[rank] = os.path.join(place, name)
    for (world, _), parts in sets.items():
        yield _version(step, world, parts)


def _version(step: int, world: int, parts: dict[int, str]) -> Version:
    order, request, lacks = 0, "", ""
    missing = sorted(set(range(world or 1)) - set(parts))
    if missing:
        lacks = f"{len(parts)} of {world} parts, rank {missing[0]} is missing"
    for rank, path in parts.items():
        try:
            with open(path, "rb") as file:
                manifest = statefile.read_manifest(file)
            if (manifest["step"], manifest["rank"], manifest["world"]) != (step, rank, world):
                raise statefile.Damaged(f"it is of step {manifest['step']}, rank {manifest['rank']}")
            order, request = max(order, manifest["order"]), manifest["request"]
        except (OSError, KeyError, TypeError, statefile.Damaged) as problem:
            lacks = lacks or f"{os.path.basename(path)}: {problem}"
    return Version(step, world, list(parts.values()), order, request, lacks)


def _read(version: Version, rank: int | None, world: int | None) -> Any:
    """The state, or one part of it. All parts are checked: every rank must come to the same answer."""
    if version.lacks:
        raise statefile.Damaged(version.lacks)
    wanted = 0
    if version.world:
        saved = f"step {version.step} was saved by {version.world} ranks"
        if rank is None:
            raise CheckpointError(f"{saved}, each with its part: load(rank=…)")
        wanted, now = _own_part(rank, world)
        if now != version.world:
            hint = f"load(rank=0, world={version.world}) and so on gives the parts, to be put together"
            raise CheckpointError(f"{saved}, and now there are {now}; {hint}")
    state = None
    for path in version.paths:
        try:
            with open(path, "rb") as file:
                manifest = statefile.read_manifest(file)
                if manifest["rank"] == wanted:
                    state = statefile.read_state(file, manifest)
                else:
                    statefile.verify(file, manifest)
        except OSError as problem:
            raise statefile.Damaged(f"{os.path.basename(path)}: {problem.strerror}") from None
        except statefile.Damaged as problem:
            raise statefile.Damaged(f"{os.path.basename(path)}: {problem}") from None
    return state


# ── saving ──


def _save(
    folder: str, step: int, keep: int, own: tuple[int, int], tree: Any, arrays: list[statefile.Array]
) -> None:
    work = hidden(folder, "tmp")
    lock = os.path.join(hidden(folder, "locks"), "checkpoint")
    order = max([time.time_ns(), *(v.order + 1 for v in _versions(folder))])
    about = {
        "format": 1,
        "step": step,
        "rank": own[0],
        "world": own[1],
        "order": order,
        "saved": time.time(),
        "request": _request(),
    }
    writing = os.path.join(work, f"{own[0]}-{os.getpid()}-{order}")
    with locked(lock):
        _clean(work)
        file = open(writing, "xb")  # noqa: SIM115
        fcntl.flock(file, fcntl.LOCK_EX)  # held while it is being written, as long as the writer lives
    try:
        with file:
            statefile.write(file, tree, arrays, about)
            file.flush()
            os.fsync(file.fileno())
            place = os.path.join(folder, f"step-{step:012d}")
            with locked(lock):
                os.makedirs(place, exist_ok=True)
                os.replace(writing, os.path.join(place, _file_name(place, own)))
                sync_folder(place)
                sync_folder(folder)
    except BaseException:
        try:
            os.unlink(writing)
        except OSError:
            pass
        raise
    with locked(lock):
        _prune(folder, work, keep, own)


def _file_name(place: str, own: tuple[int, int]) -> str:
    rank, world = own
    if not world:
        return WHOLE
    born = _born()
    last, others = 0, []  # the last set that is not to be written into; sets that others have begun
    for name in _names(place):
        found = PART.fullmatch(name)
        if found and int(found[2]) == world:
            number = int(found[3])
            if int(found[1]) == rank or os.stat(os.path.join(place, name)).st_mtime < born:
                last = max(last, number)
            else:
                others.append(number)
    number = min((each for each in others if each > last), default=last + 1)
    return f"rank-{rank:05d}-of-{world:05d}.{number}.weft"


def _prune(folder: str, work: str, keep: int, own: tuple[int, int]) -> None:
    """Remove what is older than the newest `keep` complete steps; a failure leaves it for the next time.

    Who sees its own parts alone cannot tell whether a step is complete: of those it keeps one more, since the other ranks
    may be a step behind.
    """
    rank, world = own
    part = f"rank-{rank:05d}-of-{world:05d}." if world and _apart() else None
    keep += part is not None
    best: dict[int, Version] = {}
    newest: dict[int, int] = {}
    for version in _versions(folder):
        newest[version.step] = max(version.order, newest.get(version.step, 0))
        known = best.get(version.step)
        saved = version.complete or (
            part and any(os.path.basename(p).startswith(part) for p in version.paths)
        )
        if saved and (known is None or version.order > known.order):
            best[version.step] = version
    kept = sorted(best.values(), key=lambda v: v.order)[-keep:]
    try:
        if len(kept) == keep:
            for step, order in newest.items():
                if order < kept[0].order and step not in {v.step for v in kept}:
                    _remove(os.path.join(folder, f"step-{step:012d}"), work)
        for version in _versions(folder):
            chosen = best.get(version.step)
            if chosen is not None and version.order < chosen.order:
                for path in version.paths:
                    os.unlink(path)
    except OSError as problem:
        _warn(f"an old checkpoint stays: {problem}")


def _remove(path: str, work: str) -> None:
    """Gone for readers at once, from the disk a little later."""
    away = os.path.join(work, f"old-{os.path.basename(path)}-{time.time_ns()}")
    os.rename(path, away)
    _clean_folder(away)


def _clean(work: str) -> None:
    """Remove what others have begun and cannot finish: nobody holds it."""
    for name in _names(work):
        path = os.path.join(work, name)
        if os.path.isdir(path):
            _clean_folder(path)
            continue
        try:
            with open(path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
        except OSError:
            continue  # being written


def _clean_folder(path: str) -> None:
    from shutil import rmtree

    rmtree(path, ignore_errors=True)


def _not_kept(folder: str, step: int, size: int, problem: OSError) -> str:
    try:
        disk = os.statvfs(folder)
        room = f"; it needs {size / 1e6:.1f} MB, {disk.f_bavail * disk.f_frsize / 1e6:.1f} MB are free"
    except OSError:
        room = ""
    intact = steps()
    before = f"step {intact[-1]} is intact" if intact else "there is none before it"
    return f"checkpoint of step {step} not kept in {folder}: {problem.strerror or problem}{room}; {before}"


# ── the job around us ──


def _folder() -> str | None:
    return os.environ.get("CHECKPOINT_DIR") or None


def _apart() -> bool:
    """Whether each task of the job has a CHECKPOINT_DIR of its own: there an agent hands out shards."""
    return "WEFT_SHARDS_FILE" in os.environ


def _request() -> str:
    return os.environ.get("WEFT_CHECKPOINT_STEP", "")


def _own_part(rank: int | None, world: int | None) -> tuple[int, int]:
    """Rank and world; (0, 0) for all of the state."""
    if rank is None:
        if world is not None:
            raise ValueError("world= says how many parts there are: rank= must say which one this is")
        return 0, 0
    if world is None:
        told = os.environ.get("WORLD_SIZE")
        if told is None:
            raise ValueError("rank= needs world=, for WORLD_SIZE is not set")
        world = _whole("WORLD_SIZE", told, 1)
    rank, world = _whole("rank", rank, 0), _whole("world", world, 1)
    if rank >= world:
        raise ValueError(f"rank {rank} of {world}: ranks are 0 to {world - 1}")
    return rank, world


def _whole(name: str, value: Any, least: int) -> int:
    try:
        number = int(value) if isinstance(value, str) else operator.index(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a whole number, not {value!r}") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}, not {number}")
    return number


def _born() -> float:
    """When this process was started; 0 where that cannot be known."""
    ticks = start_time(os.getpid())
    return ticks and time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / TICKS


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


_said: set[str] = set()


def _warn_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        _warn(text)


def _warn(text: str) -> None:
    print(f"weft: {text}", file=sys.stderr, flush=True)
