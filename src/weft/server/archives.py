"""Files as a tar archive, streamed without ever holding more than a block of it."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator, Sequence

from starlette.responses import StreamingResponse

BLOCK = 1 << 18


def tar_stream(files: Sequence[tuple[str, str]], filename: str) -> StreamingResponse:
    """`files` are (path on disk, name in the archive)."""
    headers = {"Content-Disposition": f'attachment; filename="{filename}"'}
    return StreamingResponse(tar_blocks(files), media_type="application/x-tar", headers=headers)


def tar_blocks(files: Sequence[tuple[str, str]]) -> Iterator[bytes]:
    for path, name in files:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            continue  # removed meanwhile
        with os.fdopen(fd, "rb") as file:
            found = os.fstat(fd)
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.mode = found.st_size, int(found.st_mtime), found.st_mode & 0o777
            yield info.tobuf(tarfile.PAX_FORMAT)
            left = info.size
            while left:
                block = file.read(min(BLOCK, left))
                if not block:
                    yield b"\0" * left  # cut short meanwhile: the archive stays well formed
                    break
                left -= len(block)
                yield block
            yield b"\0" * (-info.size % 512)
    yield b"\0" * 1024
