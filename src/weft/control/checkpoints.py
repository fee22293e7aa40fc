"""What a job can go on from: the steps that `weft.checkpoint` saved, in its own folder and in the results store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from weft.control.live import LiveJob
from weft.runtime.checkpoint import STEP

if TYPE_CHECKING:
    from weft.control.control import Control


@dataclass(frozen=True, slots=True)
class Checkpoint:
    step: int
    size: int
    saved: float
    here: bool
    """In the job's own folder."""
    copied: bool
    """In the results store."""


def step_of(path: str) -> int | None:
    """The step that a path within CHECKPOINT_DIR belongs to."""
    found = STEP.fullmatch(path.split("/", 1)[0])
    return int(found[1]) if found is not None else None


def steps(folder: Path) -> dict[int, Path]:
    try:
        found = {step_of(path.name): path for path in folder.iterdir()}
    except OSError:
        return {}
    return {step: found[step] for step in sorted(step for step in found if step is not None)}


def checkpoints(control: Control, job: LiveJob) -> list[Checkpoint]:
    """By step. Reads folders: for a thread."""
    here = steps(Path(control.backend.checkpoint_folder(job.uid)))
    there = steps(control.copies.checkpoints(job)) if control.copies is not None else {}
    found = []
    for step in sorted({*here, *there}):
        files = _files(here.get(step) or there[step])
        size, saved = sum(size for size, _ in files), max((saved for _, saved in files), default=0.0)
        found.append(Checkpoint(step, size, saved, step in here, step in there))
    return found


def _files(folder: Path) -> list[tuple[int, float]]:
    found = []
    for path in folder.rglob("*"):
        try:
            entry = path.lstat()
        except OSError:
            continue  # removed this moment
        if not path.is_dir():
            found.append((entry.st_size, entry.st_mtime))
    return found
