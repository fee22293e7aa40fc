"""Work on a server's data in a process of its own: told what to do on standard input, telling how far it is.

One JSON document comes in, with credentials if the source asks for some; lines of JSON go out: progress, and at the
end `done` or `problem`. It ends when nobody listens any more.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from weft.data import versions
from weft.data.agent.sources import KnownSources
from weft.data.cache.versions import Version
from weft.data.errors import DataError
from weft.data.ingest import Progress, ingest
from weft.data.patience import PATIENT
from weft.data.sources import make
from weft.data.store import Store

NICE = 5


def main() -> int:
    os.nice(NICE)
    asked = json.load(sys.stdin)
    if asked["do"] == "read":
        return _read(asked)
    try:
        done = _do(asked, Store(Path(asked["store"])))
    except DataError as problem:
        _say({"problem": str(problem)})
        return 1
    except BrokenPipeError:
        return 1
    _say({"done": done})
    return 0


def _do(asked: Mapping[str, Any], store: Store) -> Mapping[str, Any]:
    match asked["do"]:
        case "ingest":
            with store.filling() as scratch:
                source = make(asked["source"], asked["credentials"], scratch=scratch)
                made = ingest(
                    source, store, asked["key"], asked["pack"], _progress, in_place=asked["inPlace"]
                )
            store.name(asked["key"], made.version)
            return asdict(made)
        case "verify":
            elsewhere = make(asked["source"], asked["credentials"]) if asked["source"] else None
            report = versions.verify(store, asked["version"], elsewhere)
            return {
                "samples": report.samples,
                "bytes": report.bytes,
                "elsewhere": report.elsewhere,
                "problems": [str(problem) for problem in report.problems],
            }
        case "remove":
            store.remove(asked["version"])
            return {"freed": store.collect()}
    raise ValueError(asked["do"])


def _read(asked: Mapping[str, Any]) -> int:
    """A part that is at its source: a line that says whether it comes, then its bytes."""
    try:
        sources = KnownSources(PATIENT)
        sources.learn("", asked["source"], asked["credentials"])
        part = Version(Path(asked["folder"]), asked["version"]).by_digest(asked["digest"])
        chunks = sources("")(part, 0, part.size)
        first = next(chunks, b"")
    except DataError as problem:
        _say({"problem": str(problem)})
        return 1
    _say({"done": {}})
    try:
        for chunk in chain([first], chunks):
            sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
    except (DataError, BrokenPipeError):
        return 1  # whoever reads counts the bytes
    return 0


def _progress(far: Progress) -> None:
    _say(
        {
            "files": far.files,
            "bytes": far.bytes,
            "allFiles": far.all_files,
            "allBytes": far.all_bytes,
            "rate": far.rate,
        }
    )


def _say(what: Mapping[str, Any]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    sys.exit(main())
