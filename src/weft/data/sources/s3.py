"""Objects of an S3 bucket: all below a prefix that ends with `/`, or one by its key."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from weft.data import ranges
from weft.data.connections import origin, refuse_nearby
from weft.data.errors import Changed, DataError, Denied, Missing, Refused, Unreachable
from weft.data.patience import PATIENT, Patience
from weft.data.sources import Object, needs, without

PAGE = 1000
CHUNK = 1 << 20
STATUS = re.compile(r"status code: (\d{3})")
CODE = re.compile(r"<Code>(\w+)</Code>")


class S3Source:
    """Read by range, and only while the etag is the one that was listed.

    Signed with what the secret says and with nothing else: neither the server's environment nor its machine's role
    must open a bucket to whoever writes its name. Without a secret the requests are anonymous.
    """

    stays = proves = True

    def __init__(
        self,
        url: str,
        endpoint: str | None = None,
        credentials: Mapping[str, str] | None = None,
        patience: Patience = PATIENT,
    ):
        with needs("s3"):
            from obstore.store import S3Store

        self._bucket, _, self._prefix = url.removeprefix("s3://").partition("/")
        self._where = endpoint or "AWS"
        self._credentials = dict(credentials or {})
        self._patience = patience
        signed = "accessKeyId" in self._credentials
        if signed and not self._credentials.get("secretAccessKey"):
            raise Refused(f"{url}: the secret has accessKeyId and no secretAccessKey; add it to the secret")
        config: dict[str, Any] = {
            "region": self._credentials.get("region", "us-east-1"),
            "skip_signature": not signed,
            "client_options": {
                "allow_http": (endpoint or "").startswith("http://"),
                "connect_timeout": timedelta(seconds=10),
                "read_timeout": timedelta(seconds=30),
                "timeout": timedelta(seconds=600),
            },
            "retry_config": {"max_retries": 0},  # ours goes on where a body broke off
        }
        if endpoint is not None:
            host, port = origin(urlsplit(endpoint))[1:]
            with suppress(OSError):
                for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                    refuse_nearby(str(found[4][0]), endpoint)
            config["endpoint"] = endpoint
        if signed:
            config["credential_provider"] = self._signer
        try:
            self._store = S3Store(self._bucket, **config)
        except Exception as problem:
            raise Refused(f"{url}: {self._plain(problem)}; correct the url or the endpoint") from None

    def _signer(self) -> Any:
        return {
            "access_key_id": self._credentials["accessKeyId"],
            "secret_access_key": self._credentials["secretAccessKey"],
            "token": self._credentials.get("sessionToken") or None,
            "expires_at": None,
        }

    def objects(self) -> Iterator[Object]:
        if self._prefix and not self._prefix.endswith("/"):
            yield self._patience.ask(self._only)
            return
        last, failures, found = None, 0, False
        while True:
            try:
                for about in self._listed(last):
                    last, failures = about["path"], 0
                    if not self._marker(about):
                        found = True
                        yield self._object(about["path"].removeprefix(self._prefix), about)
                break
            except Unreachable:
                failures += 1
                if failures >= self._patience.tries:
                    raise
                self._patience.wait(failures - 1)
        if not found:
            raise Missing(f"nothing lies below {self._shown(self._prefix)}; see that the prefix is right")

    def read(self, item: Object, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        key = self._key(item)
        left = item.size - offset if length is None else min(length, item.size - offset)

        def begin(offset: int, length: int) -> Iterator[bytes]:
            import obstore

            with self._told(key):
                options: Any = {"range": (offset, offset + length)}
                if item.mark:
                    options["if_match"] = item.mark
                got = obstore.get(self._store, key, options=options)
                if not item.is_marked(got.meta["e_tag"] or "") or got.meta["size"] != item.size:
                    raise self._changed(key)
                for chunk in got.stream(min_chunk_size=CHUNK):
                    yield bytes(chunk)

        return ranges.read(self._shown(key), begin, offset, left, self._patience)

    def _listed(self, after: str | None) -> Iterator[Any]:
        import obstore

        with self._told(self._prefix):
            for page in obstore.list(self._store, self._prefix or None, offset=after, chunk_size=PAGE):
                yield from page

    def _marker(self, about: Any) -> bool:
        """Whether it is an empty object called `folder/`, by which some programs show folders."""
        if about["size"]:
            return False
        try:
            self._patience.ask(lambda: self._head(about["path"]))
        except Missing:
            return True
        return False

    def _only(self) -> Object:
        try:
            return self._object(self._prefix.rpartition("/")[2], self._head(self._prefix))
        except Missing as problem:
            raise Missing(f"{problem}; end the url with / to mean all that is below it") from None

    def _head(self, key: str) -> Any:
        import obstore

        with self._told(key):
            return obstore.head(self._store, key)

    def _object(self, name: str, about: Any) -> Object:
        if not about["e_tag"]:
            raise Refused(
                f"{self._shown(about['path'])} has no etag, so a change would go unseen; copy it elsewhere"
            )
        return Object(name, about["size"], about["e_tag"])

    def _key(self, item: Object) -> str:
        folder = self._prefix.endswith("/") or not self._prefix
        return self._prefix + item.name if folder else self._prefix

    def _shown(self, key: str) -> str:
        return f"s3://{self._bucket}/{key} ({self._where})"

    def _changed(self, key: str) -> Changed:
        return Changed(
            f"{self._shown(key)} changed since it was listed; make a new version (weft data refresh)"
        )

    def _plain(self, problem: Exception) -> str:
        return without(self._credentials, str(problem).partition("\n")[0][:300])

    @contextmanager
    def _told(self, key: str) -> Iterator[None]:
        """The library's errors as ours; what it says of a request may hold signatures, and is not repeated."""
        from obstore import exceptions

        try:
            yield
        except DataError:
            raise
        except (exceptions.BaseError, OSError, ValueError) as problem:
            raise self._meant(key, problem, str(problem)) from None

    def _meant(self, key: str, problem: Exception, text: str) -> DataError:
        from obstore import exceptions

        shown, found = self._shown(key), STATUS.search(text)
        status = int(found[1]) if found else 0
        code = (CODE.search(text) or ("", ""))[1]
        if isinstance(problem, exceptions.PreconditionError) or status in (304, 412, 416):
            return self._changed(key)
        if isinstance(
            problem, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError
        ) or status in (
            401,
            403,
        ):
            return Denied(f"{shown}: {code or 'access denied'}; see the secret that secretRef names")
        if code == "NoSuchBucket":
            return Missing(f"{shown}: there is no bucket {self._bucket}; see the url and the endpoint")
        if isinstance(problem, FileNotFoundError) or status == 404:
            return Missing(f"{shown} is not there")
        if isinstance(problem, exceptions.InvalidPathError) or "path segment" in text:
            return Refused(f"{shown}: {self._plain(problem)}; rename it at the source")
        if 400 <= status < 500 and status not in (408, 425, 429):
            return Refused(f"{shown}: the server answers {status} {code}; see the url and the secret")
        why = f"the server answers {status} {code}".strip() if status else "the server cannot be reached"
        return Unreachable(f"{shown}: {why}; try again later")
