"""Unpacking a .tar.gz into one of the pod's folders, whole or not at all."""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO


class BadArchive(Exception):
    """What is wrong with it."""


def unpack(archive: IO[bytes], target: str, beside: str) -> None:
    """Replace what is in `target`, by way of the folder `beside`, which is gone afterwards.

    The folder itself stays: it may be where something is mounted, or where somebody stands. Nobody looks into it while
    its entries are replaced, because the gate is closed.
    """
    shutil.rmtree(beside, ignore_errors=True)
    os.makedirs(beside)
    try:
        _extract(archive, beside)
        for name in os.listdir(target):
            _remove(os.path.join(target, name))
        for name in os.listdir(beside):
            shutil.move(os.path.join(beside, name), os.path.join(target, name))
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError) as problem:
        raise BadArchive(str(problem) or type(problem).__name__) from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _extract(archive: IO[bytes], target: str) -> None:
    """With tarfile's `data` filter: no path, link or device can reach outside the folder.

    By way of `gzip`, and to its end: tarfile's own streams take half an archive for a whole one.
    """
    with gzip.GzipFile(fileobj=archive, mode="rb") as plain:
        with tarfile.open(fileobj=plain, mode="r|") as tar:
            tar.extractall(target, filter="data")
        while plain.read(1 << 16):
            pass


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)
