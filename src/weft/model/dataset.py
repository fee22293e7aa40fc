"""`Dataset`: data that jobs read, by where it comes from; and how a job wants it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, StringConstraints

from weft.model.job import Code, JobMetadata, SafePath
from weft.model.quantities import Duration, Memory
from weft.model.resource import Image, Name, Ruled, Strict, Text

SCHEMES = ("file", "s3", "http", "https", "git+https", "git+ssh", "git+file")
VERSION_PATTERN = r"^[0-9a-f]{12,32}$"
Url = Annotated[str, StringConstraints(pattern=r"^[a-z0-9+]+://[^\s\x00-\x1f]+$", max_length=2048)]


def _words(value: Any) -> Any:
    """A command as a person types it, or as a list of arguments; no shell is involved."""
    return shlex.split(value) if isinstance(value, str) else value


Words = Annotated[list[Text], BeforeValidator(_words), Field(min_length=1)]


class SqlSource(Ruled):
    """The rows of a query, as files of JSON lines."""

    url: Url
    """postgresql://host:port/database; user and password come from `secretRef`."""
    query: Annotated[str, StringConstraints(min_length=1, max_length=100_000)]
    rows: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """How many rows make a sample."""

    @classmethod
    def rules(cls, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        url = given.get("url")
        if isinstance(url, str):
            if not url.startswith("postgresql://"):
                yield "url", "only postgresql:// is known"
            if urlsplit_password(url):
                yield (
                    "",
                    "url: keep passwords out of the URL, which everyone can read; name a secret: secretRef",
                )


class CodeSource(Strict):
    """What a command leaves in RESULT_DIR; it is run as a job."""

    command: Words
    code: Code | None = None
    """The files that it runs in."""
    image: Image | None = None


class OutputSource(Strict):
    """What a job left among its results."""

    job: Name
    path: SafePath | None = None
    """A folder of RESULT_DIR. Left out: all of it."""


class DatasetSource(Ruled):
    """Where the data is: exactly one of these."""

    url: Url | None = None
    """file:///folder, s3://bucket/prefix/, https://…, git+https://…@commit."""
    endpoint: Url | None = None
    """s3: the server, where it is not AWS's own."""
    sql: SqlSource | None = None
    code: CodeSource | None = None
    output: OutputSource | None = None

    @classmethod
    def rules(cls, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        found = [name for name in ("url", "sql", "code", "output") if given.get(name) is not None]
        if len(found) != 1:
            yield "", f"give exactly one of url, sql, code or output (found {', '.join(found) or 'none'})"
        url = given.get("url")
        if isinstance(url, str):
            scheme = url.partition("://")[0]
            if scheme not in SCHEMES:
                yield "url", f"{scheme}:// is not known; write one of {', '.join(f'{s}://' for s in SCHEMES)}"
            if scheme.startswith("git+") and not re.search(r"@[0-9a-f]{7,40}$", url):
                yield "url", "a git URL ends with @COMMIT, so that it means the same every day"
            if urlsplit_password(url):
                yield (
                    "",
                    "url: keep passwords out of the URL, which everyone can read; name a secret: secretRef",
                )
        if given.get("endpoint") is not None and not str(url).startswith("s3://"):
            yield "endpoint", "belongs to an s3:// url"


def urlsplit_password(url: str) -> bool:
    try:
        return urlsplit(url).password is not None
    except ValueError:
        return False


class Cache(Strict):
    policy: Literal["nr", "lru"] = "nr"
    """nr: what is cached stays, which no order of reading can defeat; lru: for what is read again soon or never."""
    quota: Memory | None = None
    """How much of each node's cache it may have. Left out: what there is."""


class DatasetSpec(Ruled):
    description: Text = ""
    source: DatasetSource
    secret_ref: Name | None = None
    """The secret with what the source asks for: its keys are accessKeyId and secretAccessKey (s3), user and password, or
    token (http, git, sql)."""
    pack: Literal["auto", "none"] = "auto"
    """auto: many small files are packed into large ones; none: every file is kept as it is."""
    in_place: bool = False
    """Nothing is copied into the server's store, however small, so that it may be larger than its disk: nodes read and cache what
    they need. s3, and web servers that give ranges and etags. Else only objects of 4 MiB and more stay there."""
    cache: Cache = Field(default_factory=Cache)
    share_with: list[Name] = Field(default_factory=list)
    """Other projects whose jobs may read it."""
    keep: Annotated[int, Field(ge=1, le=1000)] = 10
    """So many versions are kept, besides those that jobs use."""
    refresh: Duration | None = None
    """The source is looked at this often. Left out: when asked to (`weft data refresh`)."""

    @classmethod
    def rules(cls, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        source = given.get("source")
        url = str(source.get("url")) if isinstance(source, Mapping) else "s3://"
        if given.get("inPlace") and not url.startswith(("s3://", "http://", "https://")):
            yield "inPlace", "is for s3:// and https:// sources; what others have is copied"


class Dataset(Strict):
    api_version: Literal["weft.dev/v1"] = "weft.dev/v1"
    kind: Literal["Dataset"] = "Dataset"
    metadata: JobMetadata = Field(default_factory=JobMetadata)
    spec: DatasetSpec
    status: dict[str, Any] | None = None
    """Written by the server; ignored in what is sent."""
