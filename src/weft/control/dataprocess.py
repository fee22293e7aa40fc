"""Work on the store's data in a process of its own: neither its time nor its memory is the server's."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic_core import to_json

CHUNK = 1 << 20


class DataFailed(Exception):
    """A source could not be read; says why and what to do."""


async def stream(asked: Mapping[str, Any]) -> AsyncIterator[bytes]:
    """The bytes that a process gives; DataFailed before the first of them, if it cannot."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "weft.data.ingesting",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=CHUNK,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(to_json(asked))
        process.stdin.close()
        said = json.loads(await process.stdout.readline() or b'{"problem": "reading ended at once"}')
        if "problem" in said:
            raise DataFailed(said["problem"])
        yield b""
        while chunk := await process.stdout.read(CHUNK):
            yield chunk
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def run(
    store: Path, asked: Mapping[str, Any], hear: Callable[[Mapping[str, Any]], None] = lambda _: None
) -> Mapping[str, Any]:
    """A process that does it; what it is told, secrets too, goes by a pipe."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "weft.data.ingesting",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, limit=1 << 20,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    errors = asyncio.ensure_future(process.stderr.read())
    try:
        process.stdin.write(to_json({**asked, "store": str(store)}))
        process.stdin.close()
        async for line in process.stdout:
            said = json.loads(line)
            if "problem" in said:
                raise DataFailed(said["problem"])
            if "done" in said:
                await process.wait()
                done: Mapping[str, Any] = said["done"]
                return done
            hear(said)
        await process.wait()
        raise DataFailed(
            f"reading ended with {process.returncode}: {(await errors).decode(errors='replace')[-500:]}"
        )
    finally:
        errors.cancel()
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
