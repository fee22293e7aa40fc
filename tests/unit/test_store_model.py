"""The store against a dictionary: whatever is written, refused, deleted and opened again, both hold the same."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given

from support.machine import new_database
from support.storemodel import STEPS, Pair


@given(STEPS)
def test_whatever_is_written_the_store_holds_what_was_not_refused(steps: list[Any]) -> None:
    async def story(folder: Path) -> None:
        path = folder / "weft.db"
        path.write_bytes(new_database())
        await Pair(path).follow(steps)

    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        asyncio.run(story(Path(folder)))
