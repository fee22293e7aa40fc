"""Fetching the files of a dataset's version from a server."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from weft.client.errors import WeftError
from weft.client.transport import segment

if TYPE_CHECKING:
    from weft.client.api import Client
    from weft.client.progress import Progress
    from weft.client.transport import Answer

CHUNK = 1 << 20


def pull(client: Client, name: str, version: str, folder: Path, progress: Progress | None = None) -> int:
    """Lay the samples of a version out as files below a folder; how many there are. What is there already stays.

    Parts are fetched one after the other, each whole, and samples are written under a name of their own first.
    """
    from weft.runtime.data.index import FILES, Index

    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".weft-pull-") as temporary:
        here = Path(temporary)
        for file in FILES:
            _save(client, f"/v1/data/versions/{version}/{file}", here / file)
        index = Index.open(temporary)
        of_part: dict[int, list[int]] = {}
        for number in range(len(index)):
            of_part.setdefault(index.part[number], []).append(number)
        passed = 0
        for part, numbers in of_part.items():
            about = index.parts[part]
            whole = here / "part"
            if about["place"]["kind"] == "store":
                _save(client, f"/v1/data/parts/{about['digest']}", whole)
            else:
                path = f"/v1/datasets/{segment(name)}/objects/{about['digest']}"
                _save(client, path, whole, {"version": version})
            with whole.open("rb") as reader:
                for number in numbers:
                    _lay_out(reader.fileno(), index, number, folder, here / "sample")
            passed += about["size"]
            if progress is not None:
                progress("pulling", passed, index.bytes)
        return len(index)


def _save(client: Client, path: str, place: Path, query: Mapping[str, str] | None = None) -> None:
    def save(answer: Answer) -> None:
        with place.open("wb") as writer:
            while data := answer.read(CHUNK):
                writer.write(data)

    client.download(path, save, query)


def _lay_out(file: int, index: object, number: int, folder: Path, temporary: Path) -> None:
    from weft.runtime.data.index import Index

    assert isinstance(index, Index)
    steps = index.name(number).split("/")
    if any(step in ("", ".", "..") or "\0" in step for step in steps):
        raise WeftError(f"sample {index.name(number)!r}", "is no path below a folder", "weft data verify")
    place = folder.joinpath(*steps)
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.parent.resolve().is_relative_to(folder.resolve()):
        raise WeftError(
            f"{place.parent}", "is a link that leads out of the folder", "pull into another folder"
        )
    left, at = index.length[number], index.offset[number]
    with temporary.open("wb") as writer:
        while left:
            data = os.pread(file, min(left, CHUNK), at)
            if not data:
                raise WeftError(f"sample {index.name(number)}", "its part is too short", "weft data verify")
            writer.write(data)
            left, at = left - len(data), at + len(data)
    temporary.replace(place)
