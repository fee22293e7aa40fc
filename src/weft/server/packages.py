"""Code packages, stored once by the digest of their bytes."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterable
from hashlib import sha256
from pathlib import Path

from weft.server.problems import ApiProblem

LIMIT = 512 << 20


class Packages:
    def __init__(self, folder: Path):
        self._folder = folder
        for stray in folder.glob("*.new"):
            stray.unlink(missing_ok=True)

    def path(self, digest: str) -> Path:
        return self._folder / f"{digest.removeprefix('sha256:')}.tar.gz"

    def has(self, digest: str) -> bool:
        return self.path(digest).exists()

    async def put(self, digest: str, chunks: AsyncIterable[bytes]) -> bool:
        """Keep the bytes if they are what their digest says. True if they are new."""
        temporary = self._folder / f"{secrets.token_hex(8)}.new"
        found, size = sha256(), 0
        try:
            with temporary.open("wb") as file:
                async for chunk in chunks:
                    size += len(chunk)
                    if size > LIMIT:
                        raise ApiProblem(
                            413,
                            "Package too large",
                            f"code packages hold at most {LIMIT >> 20} MiB; keep data out of them",
                            next_step="list large files in .weftignore",
                        )
                    found.update(chunk)
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            if f"sha256:{found.hexdigest()}" != digest:
                raise ApiProblem(
                    422,
                    "Wrong digest",
                    f"the bytes received have the digest sha256:{found.hexdigest()}, not {digest}",
                )
            new = not self.has(digest)
            temporary.replace(self.path(digest))
        except OSError as problem:
            raise ApiProblem(
                507,
                "Disk full",
                f"cannot keep the package: {problem.strerror}",
                next_step="free some space and try again",
            ) from None
        finally:
            temporary.unlink(missing_ok=True)
        return new
