"""Streams that become files: results unpacked safely, backups written whole or not at all."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import IO, Any, cast

from weft.client.errors import WeftError
from weft.client.progress import Counted, Progress
from weft.client.transport import Answer


def unpack(answer: Answer, folder: Path, progress: Progress | None = None, total: int | None = None) -> int:
    """Extract a tar stream into a folder, refusing everything that would leave it; the number of files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = 0
    with _opened(Counted(answer, "fetching", total, progress)) as tar:
        try:
            for member in tar:
                tar.extract(member, folder, filter="data")
                files += member.isfile()
        except tarfile.FilterError as problem:
            raise WeftError("will not unpack the results", str(problem)) from None
        except tarfile.ReadError as problem:
            raise WeftError("the results broke off", str(problem), "try again") from None
    return files


def read_member(answer: Answer, path: str) -> bytes | None:
    """One file of a tar stream; the rest is left unread."""
    with _opened(answer) as tar:
        for member in tar:
            if member.name.removeprefix("./") == path and (content := tar.extractfile(member)) is not None:
                return content.read()
    return None


def save_private(answer: Answer, target: Path, progress: Progress | None = None) -> int:
    """Write a stream to a file that only its owner can read, complete or not at all."""
    partial = target.with_name(target.name + ".part")
    source = Counted(answer, "writing", None, progress)
    size = 0
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            while data := source.read(1 << 20):
                size += file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return size


def _opened(source: Any) -> tarfile.TarFile:
    return tarfile.open(fileobj=cast(IO[bytes], source), mode="r|*")
