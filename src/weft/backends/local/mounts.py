"""Versions that are mounted for jobs (`mode: mount`): a process each, for as long as its job lives.

A mount outlives the server, as tasks do. What is known of it is in a file beside its folder, so that the next server
finds it: it goes on with it, starts it again if its process was killed, or ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from weft.backends.folders import replace_file
from weft.data.errors import DataError
from weft.data.fuse import unmount
from weft.model.failures import Code, Permanent, Temporary
from weft.runtime.identity import start_time

PATIENCE = 20.0


class Mounts:
    """FOLDER/UID/NAME.json says which folder beside it is mounted, by whom, and which link leads there.

    A folder is mounted on once. Who starts a mount again takes another folder and then moves the link, so a program sees
    all files behind it, or an error, but never the empty folder below a mount."""

    def __init__(self, folder: Path):
        self._folder = folder

    async def make(self, uid: str, called: str, link: Path, about: Mapping[str, str]) -> None:
        """Mount it, or see that it is. `about`: the version, the agent's socket, and the file with the job's token."""
        record, wanted = self._folder / uid / f"{called}.json", {**about, "link": str(link)}
        known = _known(record)
        if not _lives(known) or not wanted.items() <= known.items():
            await asyncio.to_thread(_start, record, wanted)

    async def end(self, uid: str) -> None:
        """The job reads no more."""
        folder = self._folder / uid
        for record in folder.glob("*.json"):
            await asyncio.to_thread(_end, record)
        with contextlib.suppress(OSError):
            folder.rmdir()

    async def look(self, read: Container[str]) -> None:
        """Start again what was killed, of jobs that still read."""
        for uid in filter(read.__contains__, self.jobs()):
            for record in (self._folder / uid).glob("*.json"):
                if (known := _known(record)) and not _lives(known):
                    await asyncio.to_thread(_start, record, known)

    def jobs(self) -> list[str]:
        try:
            return [folder.name for folder in self._folder.iterdir()]
        except FileNotFoundError:
            return []


def _known(record: Path) -> dict[str, Any]:
    try:
        known: dict[str, Any] = json.loads(record.read_bytes())
    except (OSError, ValueError):
        return {}
    return known


def _lives(known: Mapping[str, Any]) -> bool:
    if not known:
        return False
    with contextlib.suppress(ChildProcessError):
        os.waitpid(known["pid"], os.WNOHANG)
    return bool(start_time(known["pid"]) == known["birth"])


def _start(record: Path, about: Mapping[str, Any]) -> None:
    folder = record.with_name(f"{record.stem}-{time.time_ns()}")
    folder.mkdir(parents=True)
    command = [
        sys.executable, "-m", "weft.data.fuse", "--socket", about["socket"], "--token-file", about["token"],
        about["version"], str(folder),
    ]  # fmt: skip
    said = record.with_suffix(".log")
    with said.open("wb") as printed:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed, start_new_session=True
        )
    born = {"pid": process.pid, "birth": start_time(process.pid)}
    replace_file(str(record), json.dumps({**about, **born}))
    until = time.monotonic() + PATIENCE
    while not any(line.startswith(b"mounted ") for line in said.read_bytes().splitlines()):
        if process.poll() is not None:
            problem = said.read_text(errors="replace").strip().rpartition("\n")[2]
            _end(record)
            raise Permanent(Code.DATA, f"mode: mount is not possible here: {problem}")
        if time.monotonic() > until:
            _end(record)
            raise Temporary(f"{folder} was not mounted within {PATIENCE:g} s")
        time.sleep(0.01)
    point(Path(about["link"]), str(folder))
    _clear(record, folder)


def _end(record: Path) -> None:
    """No process, no mount, no folder; whatever there was before."""
    known = _known(record)
    if _lives(known):
        os.kill(known["pid"], signal.SIGTERM)
        until = time.monotonic() + PATIENCE
        while _lives(known) and time.monotonic() < until:
            time.sleep(0.01)
        if _lives(known):
            os.kill(known["pid"], signal.SIGKILL)
    _clear(record)
    for left in (record.with_suffix(".log"), record):
        left.unlink(missing_ok=True)


def _clear(record: Path, but: Path | None = None) -> None:
    """What was mounted before is not any more. Their processes, if there are any, end with that."""
    for folder in record.parent.glob(f"{record.stem}-*"):
        if folder != but:
            while _mounted(folder):
                try:
                    unmount(folder)
                except DataError:
                    break
            with contextlib.suppress(OSError):
                folder.rmdir()


def _mounted(folder: Path) -> bool:
    """Also if its process died: then there are only errors."""
    try:
        return folder.is_mount()
    except OSError:
        return True


def point(link: Path, target: str) -> None:
    """Let a link lead there from now on."""
    if link.is_symlink() and str(link.readlink()) == target:
        return
    temporary = link.with_name(f".{link.name}.new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)
