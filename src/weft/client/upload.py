"""A job's code folder becomes a package: the server never sees a path of the submitting machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from weft.client.documents import Document
from weft.client.package import Package, pack
from weft.client.progress import Progress


@contextmanager
def packed_code(
    document: Document, progress: Progress | None = None
) -> Iterator[tuple[dict[str, Any], Package | None]]:
    """The document with `code.path` replaced by `code.package`, and the packed folder while it is open.

    A relative path is relative to the file that says it. Anything that is not a plain `code.path` goes
    to the server untouched, which knows best what is wrong with it.
    """
    spec = document.value.get("spec")
    code = spec.get("code") if isinstance(spec, dict) else None
    path = code.get("path") if isinstance(code, dict) else None
    if not isinstance(spec, dict) or not isinstance(code, dict) or not isinstance(path, str) or not path:
        yield document.value, None
        return
    if "package" in code or "git" in code:
        yield document.value, None
        return
    package = pack(document.folder / Path(path).expanduser(), progress=progress)
    try:
        kept = {name: value for name, value in code.items() if name != "path"}
        yield {**document.value, "spec": {**spec, "code": {"package": package.digest, **kept}}}, package
    finally:
        package.close()
