"""Where data comes from, one module a kind. A source lists its objects and reads them; it is called from threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from weft.data import digest
from weft.data.errors import Refused
from weft.data.patience import PATIENT, Patience

LONGEST = 1024


@dataclass(frozen=True, slots=True)
class Object:
    """One thing at a source, which becomes a sample."""

    name: str
    size: int
    mark: str
    """Changes when the content changes: an etag, a time of change and inode, a blob id."""
    proof: bytes = b""
    """The digest of its mark, for who does not know the mark itself any more."""

    def is_marked(self, mark: str) -> bool:
        """Whether it is still the one that was meant, by the mark that it has now."""
        return mark == self.mark if self.mark else digest.of_mark(mark) == self.proof


class Source(Protocol):
    @property
    def stays(self) -> bool:
        """Whether objects can be read later by range, and checked by their mark."""

    @property
    def proves(self) -> bool:
        """Whether the digest of a mark is enough to check them by."""

    def objects(self) -> Iterable[Object]:
        """In any order, each name once."""

    def read(self, item: Object, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        """Changed if the mark no longer holds; Unreachable, Denied, Missing."""


def check_name(name: str) -> None:
    """Refused unless it is a safe relative path: it becomes a file below a folder on nodes."""
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        raise Refused(f"sample {name!a}: the name is not UTF-8; rename it at the source") from None
    if not name or length > LONGEST:
        raise Refused(f"sample {name[:64]!r}: a name has 1 to {LONGEST} bytes, this one {length}; rename it")
    if not name.isprintable() and any(ord(c) < 32 or 127 <= ord(c) < 160 for c in name):
        raise Refused(
            f"sample {name!r}: control characters are not allowed in a name; rename it at the source"
        )
    if any(step in ("", ".", "..") for step in name.split("/")):
        raise Refused(
            f"sample {name!r}: a name is a relative path without empty steps, '.' and '..'; rename it at the source"
        )


def make(
    source: Mapping[str, Any],
    credentials: Mapping[str, str] | None = None,
    patience: Patience = PATIENT,
    scratch: Path | None = None,
) -> Source:
    """The source that a dataset's `spec.source` means. `credentials`: the keys and values of its secret; `scratch`: a
    folder for what cannot be read twice (a store's `tmp`)."""
    if source.get("sql") is not None:
        from weft.data.sources.sql import SqlSource

        sql = source["sql"]
        return SqlSource(sql["url"], sql["query"], sql.get("rows", 1), credentials, patience, scratch)
    url = str(source.get("url") or "")
    match url.partition("://")[0]:
        case "file":
            from weft.data.sources.file import FileSource

            return FileSource(Path(unquote(urlsplit(url).path)))
        case "s3":
            from weft.data.sources.s3 import S3Source

            return S3Source(url, source.get("endpoint"), credentials, patience)
        case "http" | "https":
            from weft.data.sources.http import HttpSource

            return HttpSource(url, credentials, patience)
        case "git+https" | "git+ssh" | "git+file":
            from weft.data.sources.git import GitSource

            return GitSource(url, credentials, patience, scratch)
    raise Refused(f"{url or 'the source'} is of no kind that can be read; give a url or sql")


@contextmanager
def needs(kind: str) -> Iterator[None]:
    """Around the import of a library that only this kind of source uses."""
    try:
        yield
    except ImportError as problem:
        raise Refused(
            f"{kind} sources need {problem.name}; on the server: pip install 'weft[data]'"
        ) from None


def without(credentials: Mapping[str, str], text: str) -> str:
    """What somebody else wrote, for an error that people read: no secret may be in it."""
    secrets = [value for key, value in credentials.items() if value and key not in ("user", "region")]
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
