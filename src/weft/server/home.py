"""WEFT_HOME: one server's data, its lock and its token."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import struct
import time
from pathlib import Path
from typing import Any, TextIO

DEAD_OWNER_PATIENCE = 5.0

FS_IOC_GETFLAGS, FS_IOC_SETFLAGS = 0x80086601, 0x40086602
EXT4_TOPDIR = 0x20000


class HomeError(Exception):
    """The folder cannot be used; the message says why and what to do."""


class HomeBusy(HomeError):
    """Another server uses it."""


class Home:
    """Held by one server at a time. All of it is readable by its owner alone."""

    def __init__(self, path: Path):
        self.path = path.expanduser().absolute()
        self._lock: TextIO | None = None

    @property
    def database(self) -> Path:
        return self.path / "weft.db"

    def hold(self, patience: float = DEAD_OWNER_PATIENCE) -> None:
        """Make the folder and take its lock, or say who has it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            for name in ("jobs", "packages", "secrets"):
                (self.path / name).mkdir(exist_ok=True, mode=0o700)
            _spread(self.path / "jobs")
            lock = (self.path / "server.lock").open("a+")
        except OSError as problem:
            raise HomeError(
                f"cannot use {self.path}: {problem.strerror or problem}; check its owner and permissions, "
                "or set WEFT_HOME to another folder"
            ) from None
        self._take(lock, patience)
        try:
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
        except OSError as problem:
            raise HomeError(
                f"cannot write in {self.path}: {problem.strerror}; free some space and start again"
            ) from None
        self._lock = lock

    def release(self) -> None:
        """Let another server have it."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _take(self, lock: TextIO, patience: float) -> None:
        """A dead owner is waited for: a process it was just starting keeps its lock until it has begun."""
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                pid = lock.read().strip()
                if (pid and Path(f"/proc/{pid}").exists()) or time.monotonic() > deadline:
                    lock.close()
                    raise HomeBusy(
                        f"another server (pid {pid or 'unknown'}) uses {self.path}; stop it with `weft down`, "
                        "or set WEFT_HOME to another folder"
                    ) from None
                time.sleep(0.02)
            else:
                return

    def token(self) -> str:
        """The server's token, made once, readable by its owner alone."""
        path = self.path / "token"
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            path.chmod(0o600)
            text = path.read_text().strip()
            if not text:
                raise HomeError(f"{path} is empty; delete it and start again") from None
            return text
        token = secrets.token_urlsafe(32)
        with os.fdopen(fd, "w") as file:
            file.write(token + "\n")
        return token

    def identity(self) -> str:
        """Tells this home, and what belongs to it in a cluster or a database, from others; made once."""
        kept: str | None = self.last("instance").get("id")
        if kept is None:
            kept = secrets.token_hex(4)
            self.remember("instance", {"id": kept})
        return kept

    def announce(self, facts: dict[str, Any]) -> None:
        """Write server.json, in one rename."""
        temporary = self.path / "server.json.new"
        temporary.write_text(json.dumps(facts, indent=2) + "\n")
        temporary.replace(self.path / "server.json")

    def remember(self, what: str, declared: dict[str, Any]) -> None:
        """Keep what was declared at a start (the `shape` of the machine, the `policy`), for the next server
        that is told nothing."""
        temporary = self.path / f"{what}.json.new"
        temporary.write_text(json.dumps(declared) + "\n")
        temporary.replace(self.path / f"{what}.json")

    def last(self, what: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.path / f"{what}.json").read_text())
        except (OSError, ValueError):
            return {}
        return found

    def last_port(self) -> int:
        """The port of the server before, so that addresses stay; 0 if there was none."""
        try:
            address = json.loads((self.path / "server.json").read_text())["address"]
            return int(address.rpartition(":")[2])
        except (OSError, ValueError, KeyError, TypeError):
            return 0


def _spread(folder: Path) -> None:
    """Ask ext4 to begin each folder below this one in a part of the disk of its own (`chattr +T`).

    For minutes after many jobs were deleted, ext4 passes over every inode freed near by before it makes a
    new one, and jobs start at half the rate. Other file systems have no such flag and no such trouble.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        flags = struct.unpack("l", fcntl.ioctl(fd, FS_IOC_GETFLAGS, struct.pack("l", 0)))[0]
        if not flags & EXT4_TOPDIR:
            fcntl.ioctl(fd, FS_IOC_SETFLAGS, struct.pack("l", flags | EXT4_TOPDIR))
    except OSError:
        return
    finally:
        os.close(fd)
