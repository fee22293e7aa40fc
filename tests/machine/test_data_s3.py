"""S3 for real: a server process, listed, read by ranges, broken off, denied."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.s3 import Bucket, Way, s3
from support.samples import opened
from weft.data import ranges
from weft.data.errors import Changed, DataError, Denied, Missing, Refused, Unreachable
from weft.data.ingest import ingest
from weft.data.patience import ONCE, Patience
from weft.data.sources import Object, make
from weft.data.sources.s3 import S3Source
from weft.data.store import Store

pytestmark = pytest.mark.machine


@pytest.fixture(scope="module")
def server() -> Iterator[Bucket]:
    with s3() as made:
        made.client().create_bucket(Bucket="bucket")
        yield made


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def patience(waits: list[float]) -> Patience:
    return Patience(tries=4, sleep=waits.append, chance=random.Random(0).random)


@pytest.fixture
def way(server: Bucket) -> Iterator[Way]:
    made = Way(server.url)
    yield made
    made.close()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def source(server: Bucket | Way, url: str, patience: Patience | None = None, **keys: str) -> S3Source:
    credentials = keys or {"accessKeyId": "AKIAEXAMPLE000000000", "secretAccessKey": "s"}
    made = make({"url": url, "endpoint": server.url}, credentials, patience or ONCE)
    assert isinstance(made, S3Source)
    return made


def got(source: S3Source, item: Object, offset: int = 0, length: int | None = None) -> bytes:
    return b"".join(source.read(item, offset, length))


@pytest.fixture(scope="module")
def pages(server: Bucket) -> list[str]:
    """More objects than a page of a listing holds."""
    names = [f"{i // 100:02d}/{i:04d}" for i in range(1010)]
    for name in names:
        server.put(f"pages/{name}", name.encode())
    return names


def test_more_objects_than_a_page_holds_are_all_listed(server: Bucket, pages: list[str]) -> None:
    server.put("pages2/not-this", b"x")
    many = source(server, "s3://bucket/pages/")
    objects = list(many.objects())
    assert [item.name for item in objects] == pages
    assert got(many, objects[-1]) == pages[-1].encode()


def test_names_may_be_strange_and_markers_of_folders_are_no_samples(server: Bucket, store: Store) -> None:
    content = {"a b+c%41é&?#.txt": b"1", "sub/x": b"2", "zero": b""}
    for name, data in {**content, "": b"", "sub/": b"", "empty/": b""}.items():
        server.put(f"strange/{name}", data)
    made = ingest(source(server, "s3://bucket/strange/"), store, "k")
    assert dict(opened(store, made.version)) == content


def test_a_key_that_can_be_no_path_is_refused(server: Bucket, store: Store) -> None:
    server.put("bad/../../etc/passwd", b"x")
    with pytest.raises(Refused, match="bad/"):
        ingest(source(server, "s3://bucket/bad/"), store, "k")
    assert store.versions() == []


def test_a_url_without_a_slash_is_one_object(server: Bucket) -> None:
    server.put("one/model.bin", b"hello")
    one = source(server, "s3://bucket/one/model.bin")
    (item,) = one.objects()
    assert (item.name, item.size) == ("model.bin", 5)
    assert item.mark.strip('"') == hashlib.md5(b"hello").hexdigest()
    assert got(one, item) == b"hello"
    with pytest.raises(Missing, match="end the url with / to mean all"):
        list(source(server, "s3://bucket/one").objects())


def test_large_objects_stay_and_come_in_parallel_ranges(
    server: Bucket, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "PIECE", 1 << 20)
    data = os.urandom((9 << 20) + 17)
    server.put("large/model", data)
    large = source(server, "s3://bucket/large/")
    made = ingest(large, store, "k")
    (part,) = store.index(made.version).parts
    assert part["place"]["kind"] == "source"
    item = Object(part["place"]["key"], part["size"], part["place"]["mark"])
    assert got(large, item) == data
    assert got(large, item, 3 << 20, (2 << 20) + 1) == data[3 << 20 : (5 << 20) + 1]
    assert got(large, item, len(data) - 5) == data[-5:]


def test_a_changed_object_is_noticed(server: Bucket) -> None:
    server.put("changing/a", b"one")
    changing = source(server, "s3://bucket/changing/")
    (before,) = changing.objects()
    server.put("changing/a", b"two")
    with pytest.raises(Changed, match="changed since it was listed"):
        got(changing, before)
    (after,) = changing.objects()
    assert after.mark != before.mark
    assert got(changing, after) == b"two"


def test_what_is_not_there_is_missing(server: Bucket) -> None:
    with pytest.raises(Missing, match="there is no bucket nowhere"):
        list(source(server, "s3://nowhere/a/").objects())
    with pytest.raises(Missing, match="nothing lies below s3://bucket/nothing/"):
        list(source(server, "s3://bucket/nothing/").objects())
    with pytest.raises(Missing, match=r"s3://bucket/gone/a .* is not there"):
        got(source(server, "s3://bucket/gone/"), Object("a", 3, '"x"'))


# ── breaking off ──


def test_a_body_that_breaks_off_is_gone_on_with(
    server: Bucket, way: Way, patience: Patience, waits: list[float]
) -> None:
    data = os.urandom(3 << 20)
    server.put("breaking/a", data)
    breaking = source(way, "s3://bucket/breaking/", patience)
    (item,) = breaking.objects()
    fresh = source(way, "s3://bucket/breaking/", patience)
    way.cuts = [2 << 20]
    assert got(fresh, item) == data
    assert len(waits) == 1


def test_a_truncated_body_never_becomes_a_file(
    server: Bucket, way: Way, patience: Patience, waits: list[float], store: Store
) -> None:
    server.put("cut/a", b"hello" * 1000)
    listed = list(source(server, "s3://bucket/cut/").objects())
    cut = source(way, "s3://bucket/cut/", patience)
    cut.objects = lambda: iter(listed)  # type: ignore[method-assign]
    way.cuts = [2000] * 50
    with pytest.raises(Unreachable, match="s3://bucket/cut/a"):
        ingest(cut, store, "k")
    assert len(way.cuts) == 50 - 4
    assert store.versions() == []
    assert list((store.root / "parts").glob("??/*")) == []
    way.cuts = []
    made = ingest(cut, store, "k")
    assert dict(opened(store, made.version)) == {"a": b"hello" * 1000}


def test_a_server_that_is_gone_is_unreachable_after_a_while_and_read_on_later(
    server: Bucket, way: Way, patience: Patience, waits: list[float], store: Store
) -> None:
    content = {f"{i:03d}": os.urandom(2 << 20) for i in range(40)}
    for name, data in content.items():
        server.put(f"gone/{name}", data)
    gone = source(way, "s3://bucket/gone/", patience)
    reading = gone.read

    def read(item: Object, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        if item.name == "030":
            way.stop()
        return reading(item, offset, length)

    gone.read = read  # type: ignore[method-assign]
    with pytest.raises(Unreachable, match=r"cannot be reached; try again later"):
        ingest(gone, store, "k", threads=1)
    assert 0.1 <= waits[0] < 0.2 <= waits[1] < 0.4 <= waits[2] < 0.8
    assert store.versions() == []
    way.start()
    gone.read = reading  # type: ignore[method-assign]
    made = ingest(gone, store, "k")
    assert 0 < made.read < made.parts
    assert dict(opened(store, made.version)) == content


def test_a_listing_that_breaks_off_goes_on_after_the_last_name(
    way: Way, patience: Patience, waits: list[float], pages: list[str]
) -> None:
    listing = source(way, "s3://bucket/pages/", patience)
    listed, asked = listing._listed, []

    def breaking(after: str | None) -> Iterator[Any]:
        asked.append(after)
        for number, about in enumerate(listed(after)):
            if number == 700 and len(asked) == 1:
                raise Unreachable("broken off")
            yield about

    listing._listed = breaking  # type: ignore[method-assign]
    assert [item.name for item in listing.objects()] == pages
    assert asked == [None, f"pages/{pages[699]}"]
    assert len(waits) == 1


# ── secrets ──


@pytest.fixture(scope="module")
def guarded() -> Iterator[Bucket]:
    """A server that checks signatures."""
    with s3(INITIAL_NO_AUTH_ACTION_COUNT="3") as made:
        iam = made.client("iam")
        iam.create_user(UserName="me")
        rule = {"Effect": "Allow", "Action": "*", "Resource": "*"}
        iam.put_user_policy(
            UserName="me",
            PolicyName="all",
            PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [rule]}),
        )
        key = iam.create_access_key(UserName="me")["AccessKey"]
        made.credentials = {"accessKeyId": key["AccessKeyId"], "secretAccessKey": key["SecretAccessKey"]}
        made.client().create_bucket(Bucket="bucket")
        made.put("a/b", b"hello")
        yield made


def test_the_right_key_opens_and_the_servers_own_environment_is_not_asked(
    guarded: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = dict(guarded.credentials)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-somebody-else")
    mine = source(guarded, "s3://bucket/a/", **right)
    (item,) = mine.objects()
    assert got(mine, item) == b"hello"
    monkeypatch.delenv("AWS_SESSION_TOKEN")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", right["accessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", right["secretAccessKey"])
    anonymous = make({"url": "s3://bucket/a/", "endpoint": guarded.url}, {}, ONCE)
    with pytest.raises(DataError):
        b"".join(anonymous.read(item))


def test_wrong_keys_are_denied_and_no_secret_is_said(guarded: Bucket) -> None:
    wrong = {"accessKeyId": guarded.credentials["accessKeyId"], "secretAccessKey": "t0ps3cret"}
    unknown = {"accessKeyId": "AKIAUNKNOWN000000000", "secretAccessKey": "t0ps3cret"}
    for keys, why in ((wrong, "SignatureDoesNotMatch"), (unknown, "InvalidAccessKeyId")):
        one = source(guarded, "s3://bucket/a/", **keys)
        for ask in (lambda one=one: list(one.objects()), lambda one=one: got(one, Object("b", 5, '"x"'))):
            with pytest.raises(Denied, match=why) as caught:
                ask()
            assert "t0ps3cret" not in str(caught.value)
            assert caught.value.__suppress_context__
            assert "secretRef" in str(caught.value)


def test_half_a_key_is_refused() -> None:
    with pytest.raises(Refused, match="no secretAccessKey"):
        make({"url": "s3://bucket/a/"}, {"accessKeyId": "x"})


def test_an_endpoint_that_only_machines_of_a_cloud_see_is_refused() -> None:
    with pytest.raises(Refused, match="an address for the machine alone"):
        make({"url": "s3://latest/meta-data/", "endpoint": "http://169.254.169.254"})
