"""Files of a web server: whole and right, or an error that says why; passwords go nowhere else."""

from __future__ import annotations

import os
import random
import ssl
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.samples import opened
from support.web import Web, web
from weft.data import connections, ranges
from weft.data.connections import refuse_nearby
from weft.data.errors import Changed, Corrupt, DataError, Denied, Missing, Refused, Unreachable
from weft.data.ingest import ingest
from weft.data.patience import Patience
from weft.data.sources import Object, make
from weft.data.sources.http import HttpSource
from weft.data.store import Store


@pytest.fixture
def server() -> Iterator[Web]:
    with web() as made:
        yield made


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def patience(waits: list[float]) -> Patience:
    return Patience(tries=4, sleep=waits.append, chance=random.Random(0).random)


def only(source: HttpSource) -> Object:
    (item,) = source.objects()
    return item


def got(source: HttpSource, item: Object, offset: int = 0, length: int | None = None) -> bytes:
    return b"".join(source.read(item, offset, length))


# ── what there is ──


def test_a_url_is_one_file(server: Web, patience: Patience) -> None:
    server.files["/data/a b.bin"] = b"hello"
    source = HttpSource(server.url + "/data/a%20b.bin?version=1", patience=patience)
    item = only(source)
    assert (item.name, item.size, source.stays) == ("a b.bin", 5, True)
    assert got(source, item) == b"hello"
    assert got(source, item, 1, 3) == b"ell"
    assert all(path == "/data/a%20b.bin?version=1" for path, _ in server.asked)


def test_a_url_may_be_written_as_people_do(server: Web, patience: Patience) -> None:
    server.files["/ü/é b.bin"] = b"hello"
    for written in ("/ü/é%20b.bin", "/%C3%BC/%c3%a9%20b.bin"):
        source = HttpSource(server.url + written, patience=patience)
        item = only(source)
        assert item.name == "é b.bin"
        assert got(source, item) == b"hello"


def test_a_url_that_ends_with_a_slash_is_what_its_list_names(server: Web, fast_folder: Path) -> None:
    server.files = {"/d/a": b"one", "/d/sub/é %.txt": b"two", "/d/empty": b""}
    sums = {n.removeprefix("/d"): d for n, d in server.files.items()}
    server.files = {"/d/SHA256SUMS": _sums(sums), **server.files, "/d/unlisted": b"x"}
    store = Store(fast_folder / "store")
    made = ingest(make({"url": server.url + "/d/"}), store, "k")
    assert dict(opened(store, made.version)) == {"a": b"one", "sub/é %.txt": b"two", "empty": b""}


def test_a_page_of_links_is_not_guessed_at(server: Web, patience: Patience) -> None:
    server.files["/d/"] = b'<a href="a">a</a>'
    with pytest.raises(Refused, match="has no SHA256SUMS"):
        list(HttpSource(server.url + "/d/", patience=patience).objects())


@pytest.mark.parametrize("name", ["../up", "/etc/passwd", "a/../../b", "a//b", "."])
def test_a_list_cannot_lead_out_of_its_folder(server: Web, patience: Patience, name: str) -> None:
    server.files["/d/SHA256SUMS"] = f"{'0' * 64}  {name}\n".encode()
    with pytest.raises(Refused, match="relative path"):
        list(HttpSource(server.url + "/d/", patience=patience).objects())
    assert len(server.asked) == 1


def test_a_list_that_is_none_is_refused_with_its_line(server: Web, patience: Patience) -> None:
    server.files["/d/SHA256SUMS"] = b"%b  a\nno sum\n" % (b"0" * 64)
    with pytest.raises(Refused, match="line 2"):
        list(HttpSource(server.url + "/d/", patience=patience).objects())


def test_content_with_another_checksum_than_listed_is_not_taken(server: Web, fast_folder: Path) -> None:
    server.files = {"/a": b"one", "/SHA256SUMS": _sums({"/a": b"two"})}
    store = Store(fast_folder / "store")
    with pytest.raises(Corrupt, match="another checksum than SHA256SUMS"):
        ingest(make({"url": server.url + "/"}), store, "k")
    assert store.versions() == []


def test_the_mark_changes_with_the_content_and_only_then(server: Web, patience: Patience) -> None:
    marks = []
    for data in (b"one", b"one", b"two"):
        server.files["/a"] = data
        marks.append(only(HttpSource(server.url + "/a", patience=patience)).mark)
    assert marks[0] == marks[1] != marks[2]


def test_without_etag_the_time_of_change_is_the_mark_if_it_is_old_enough(
    server: Web, patience: Patience
) -> None:
    import time

    server.files["/a"] = b"one"
    server.tags = False
    source = HttpSource(server.url + "/a", patience=patience)
    assert "2023" in only(source).mark
    assert source.stays
    server.changed = int(time.time())
    first, second = only(source), only(source)
    assert first.mark != second.mark
    assert not source.stays
    assert got(source, second) == b"one"


# ── what goes wrong on the way ──


def test_a_changed_file_is_noticed(server: Web, patience: Patience) -> None:
    for tags in (True, False):
        server.tags, server.files["/a"] = tags, b"one"
        source = HttpSource(server.url + "/a", patience=patience)
        item = only(source)
        server.files["/a"] = b"two" if tags else b"other"
        with pytest.raises(Changed, match="changed since it was listed"):
            got(source, item)
    server.files["/a"] = b"abc"
    item = only(source)
    server.changed += 3600
    with pytest.raises(Changed):
        got(source, item)


def test_a_server_without_ranges_still_works(server: Web, patience: Patience) -> None:
    server.ranges = False
    server.files["/a"] = data = os.urandom(3 << 20)
    source = HttpSource(server.url + "/a", patience=patience)
    item = only(source)
    assert not source.stays
    assert got(source, item) == data
    assert got(source, item, 1 << 20, 10) == data[1 << 20 : (1 << 20) + 10]


def test_a_large_file_without_ranges_is_read_once(
    server: Web, patience: Patience, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "PIECE", 1000)
    server.ranges = False
    server.files["/a"] = data = os.urandom(10_000)
    source = HttpSource(server.url + "/a", patience=patience)
    assert got(source, only(source)) == data
    assert len(server.asked) == 2


def test_a_large_file_comes_in_ranges(
    server: Web, patience: Patience, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "PIECE", 1000)
    server.files["/a"] = data = os.urandom(10_500)
    source = HttpSource(server.url + "/a", patience=patience)
    assert got(source, only(source)) == data
    assert len(server.asked) == 1 + 11


@pytest.mark.parametrize("by_range", [True, False])
def test_what_breaks_off_is_gone_on_with(
    server: Web, patience: Patience, waits: list[float], by_range: bool
) -> None:
    server.ranges = by_range
    server.files["/a"] = data = os.urandom(3_000_000)
    source = HttpSource(server.url + "/a", patience=patience)
    item = only(source)
    cuts = iter([500_000, 2_000_000])
    server.cut = lambda path: next(cuts, None)
    assert got(source, item) == data
    assert len(waits) == 2
    if by_range:
        assert server.asked[-1][1]["range"] == "bytes=2500000-2999999"


def test_a_connection_that_is_reset_is_tried_again(server: Web, patience: Patience) -> None:
    server.files["/a"] = data = os.urandom(3_000_000)
    source = HttpSource(server.url + "/a", patience=patience)
    item = only(source)
    server.resets = True
    cuts = iter([0, 1_500_000, 0])
    server.cut = lambda path: next(cuts, None)
    assert got(source, item) == data


def test_a_server_that_always_breaks_off_at_once_is_given_up(
    server: Web, patience: Patience, waits: list[float], fast_folder: Path
) -> None:
    server.files["/a"] = os.urandom(1000)
    server.cut = lambda path: 0
    store = Store(fast_folder / "store")
    source = HttpSource(server.url + "/a", patience=patience)
    with pytest.raises(Unreachable, match=r"of 1000 bytes came; try again later|connection failed"):
        ingest(source, store, "k")
    assert store.versions() == []
    assert waits[0] < 0.2 < waits[-1] <= 0.8
    server.cut = lambda path: None
    assert ingest(source, store, "k").bytes == 1000


def test_a_length_that_is_a_lie_never_makes_a_file(server: Web, patience: Patience) -> None:
    server.ranges = False
    server.files["/a"] = b"hello"
    source = HttpSource(server.url + "/a", patience=patience)
    server.promised = lambda size: size + 7
    item = only(source)
    assert item.size == 12
    with pytest.raises(Unreachable, match="5 of 12 bytes"):
        got(source, item)
    server.promised = lambda size: size
    with pytest.raises(Changed):
        got(source, item)
    server.promised = lambda size: None
    with pytest.raises(Refused, match="does not say how long"):
        only(source)


def test_what_is_temporary_is_asked_again_and_what_is_not_is_not(
    server: Web, patience: Patience, waits: list[float]
) -> None:
    server.files["/a"] = b"hello"
    source = HttpSource(server.url + "/a", patience=patience)
    answers = iter([503, 429, 200])
    server.status = lambda path: next(answers)
    assert only(source).size == 5
    assert len(waits) == 2
    for status, error in ((403, Denied), (401, Denied), (404, Missing), (410, Missing), (400, Refused)):
        server.status = lambda path, status=status: status
        with pytest.raises(error, match=str(status)):
            only(source)
    assert len(waits) == 2


def test_nobody_there_is_unreachable(patience: Patience, waits: list[float]) -> None:
    with web() as gone:
        url = gone.url
    with pytest.raises(Unreachable, match=r"Connection refused\); try again later"):
        only(HttpSource(url + "/a", patience=patience))
    assert len(waits) == 3


def test_a_certificate_that_nobody_vouches_for_is_refused(
    server: Web, patience: Patience, waits: list[float], tmp_path: Path
) -> None:
    subject = (
        "-subj",
        "/CN=localhost",
        "-days",
        "2",
        "-keyout",
        tmp_path / "key",
        "-out",
        tmp_path / "certificate",
    )
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject]
    subprocess.run(made, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.files["/a"] = b"hello"
    with pytest.raises(Refused, match="its certificate is not trusted"):
        only(HttpSource(server.url.replace("http:", "https:") + "/a", patience=patience))
    assert waits == []


@pytest.mark.parametrize("address", ["169.254.169.254", "fe80::1%eth0", "fe80::1"])
def test_what_a_cloud_tells_only_its_machines_is_not_fetched(address: str) -> None:
    with pytest.raises(Refused, match="an address for the machine alone"):
        refuse_nearby(address, "http://metadata/")
    refuse_nearby("127.0.0.1", "http://metadata/")
    refuse_nearby("93.184.216.34", "http://metadata/")


def test_whoever_answers_is_looked_at_and_not_what_the_url_says(
    server: Web, patience: Patience, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(connections, "refuse_nearby", lambda address, what: seen.append(address))
    server.files["/a"] = b"hello"
    only(HttpSource(server.url.replace("127.0.0.1", "localhost") + "/a", patience=patience))
    assert seen == ["127.0.0.1"]


# ── secrets ──


@pytest.mark.parametrize(
    ("credentials", "header"),
    [
        ({"token": "t0ps3cret"}, "Bearer t0ps3cret"),
        ({"user": "me", "password": "t0ps3cret"}, "Basic " + b64encode(b"me:t0ps3cret").decode()),
    ],
)
def test_credentials_go_to_their_server_and_to_no_other(
    server: Web, patience: Patience, credentials: dict[str, str], header: str
) -> None:
    with web() as other:
        other.files["/b"] = b"hello"
        server.moved = {"/a": "/here", "/here": other.url + "/b"}
        source = HttpSource(server.url + "/a", credentials, patience)
        assert got(source, only(source)) == b"hello"
        assert {asked[1].get("authorization") for asked in server.asked} == {header}
        assert {asked[1].get("authorization") for asked in other.asked} == {None}


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/a", "gopher://127.0.0.1/"])
def test_redirects_lead_to_http_only(server: Web, patience: Patience, target: str) -> None:
    server.moved = {"/a": target}
    with pytest.raises(Refused, match="redirects to a"):
        only(HttpSource(server.url + "/a", patience=patience))


def test_redirects_end(server: Web, patience: Patience) -> None:
    server.moved = {"/a": "/b", "/b": "/a"}
    with pytest.raises(Refused, match="more than 5 redirects"):
        only(HttpSource(server.url + "/a", patience=patience))


def test_no_secret_is_in_an_error(server: Web, patience: Patience) -> None:
    url = server.url.replace("//", "//t0ps3cret@") + "/a?signature=t0ps3cret"
    source = HttpSource(url, {"user": "me", "password": "t0ps3cret"}, patience)
    for status in (400, 401, 404, 500):
        server.status = lambda path, status=status: status
        with pytest.raises(DataError) as caught:
            only(source)
        assert "t0ps3cret" not in str(caught.value)
        assert "127.0.0.1" in str(caught.value)


def test_no_secret_is_stored(server: Web, fast_folder: Path) -> None:
    server.files["/a"] = b"hello"
    store = Store(fast_folder / "store")
    source = make({"url": server.url + "/a?key=t0ps3cret"}, {"token": "t0ps3cret"})
    assert ingest(source, store, "k").bytes == 5
    kept = [path for path in store.root.rglob("*") if path.is_file()]
    assert len(kept) >= 6
    assert not [path for path in kept if b"t0ps3cret" in path.read_bytes() + str(path).encode()]


def test_a_token_cannot_add_headers(server: Web) -> None:
    with pytest.raises(Refused, match="no header may have") as caught:
        HttpSource(server.url + "/a", {"token": "x\r\nHost: elsewhere"})
    assert "elsewhere" not in str(caught.value)


def _sums(files: dict[str, bytes]) -> bytes:
    server = Web.__new__(Web)
    server.files = files
    return Web.sums(server)
