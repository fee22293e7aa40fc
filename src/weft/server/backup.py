"""Backup and restore: the database as of one moment, code packages, secrets, and on request all files."""

from __future__ import annotations

import asyncio
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from starlette.background import BackgroundTask
from starlette.responses import StreamingResponse

from weft.server import databases
from weft.server.archives import tar_blocks
from weft.server.home import Home, HomeError
from weft.server.problems import ApiProblem
from weft.store.database import StoreError, StoreFull
from weft.store.sqlite import check_integrity
from weft.store.store import Store

PARTS = ("packages", "secrets")


async def backup_stream(home: Path, store: Store, with_files: bool) -> StreamingResponse:
    folder = Path(tempfile.mkdtemp(prefix="backup-", dir=home))
    copy = folder / "weft.db"
    try:
        await asyncio.to_thread(store.copy, copy)
    except BaseException as problem:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(problem, OSError | StoreFull):
            raise ApiProblem(507, "Disk full", f"cannot make a copy: {problem}") from None
        raise
    files = [(str(copy), "weft.db"), *_files(home, (*PARTS, "jobs") if with_files else PARTS)]
    return StreamingResponse(
        tar_blocks(files),
        media_type="application/x-tar",
        headers={"Content-Disposition": 'attachment; filename="weft-backup.tar"'},
        background=BackgroundTask(shutil.rmtree, folder, ignore_errors=True),
    )


def _files(home: Path, parts: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for part in parts:
        for base, folders, names in os.walk(home / part):
            if part == "secrets":
                folders.clear()  # those are kept elsewhere
            for name in sorted(names):
                path = Path(base) / name
                if path.is_file() and not path.is_symlink():
                    yield str(path), str(path.relative_to(home))


def restore(archive: Path, home: Home, place: Path | str) -> str:
    """Put a backup into a home that has no data yet, its database where the home's is to be. Whole or not at all; returns what was done."""
    if home.database.exists() or home.last("database").get("url"):
        raise HomeError(
            f"{home.path} already has data; move it away first, or restore into another folder with WEFT_HOME=DIR"
        )
    fresh = home.path / "restore.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(fresh, filter="data")
        if not (fresh / "weft.db").is_file():
            raise HomeError(f"{archive} is no backup of Weft: it has no weft.db")
        check_integrity(fresh / "weft.db")
        with _moved(fresh, home.path):
            if isinstance(place, str):
                databases.restore(fresh / "weft.db", home, place)
            else:
                (fresh / "weft.db").replace(place)
    except (tarfile.TarError, OSError, StoreError, EOFError) as problem:
        raise HomeError(f"cannot restore {archive}: {problem}") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    for secret in (home.path / "secrets").glob("*.json"):
        secret.chmod(0o600)
    return f"restored {archive} into {home.path}; start it with: weft up"


@contextmanager
def _moved(fresh: Path, home: Path) -> Iterator[None]:
    """Everything but the database, which comes last; all of it goes back if that fails."""
    targets = {home / entry.name: entry for entry in fresh.iterdir() if entry.name != "weft.db"}
    for target in targets:
        if target.exists() and not (target.is_dir() and not any(target.iterdir())):
            raise HomeError(f"{target} is there already; restore into another folder with WEFT_HOME=DIR")
    folders = [target for target in targets if target.is_dir()]
    try:
        for target, entry in targets.items():
            entry.replace(target)  # also onto a folder that is empty
        yield
    except BaseException:
        for target, entry in targets.items():
            if not entry.exists():
                target.replace(entry)
        for folder in folders:
            folder.mkdir(mode=0o700, exist_ok=True)
        raise
