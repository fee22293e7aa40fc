"""Which database a home uses; and that no password of its address is ever shown, however it is written."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict

from weft.server import databases
from weft.server.backup import backup_stream
from weft.server.databases import OWN, VARIABLE, chosen
from weft.server.home import Home, HomeError
from weft.server.problems import ApiProblem
from weft.store import address
from weft.store.database import StoreError, StoreFull
from weft.store.store import Store

URL = "postgresql://weft@db.example.com/weft"
READABLE = [
    "postgresql://weft:SECRET@db/weft",
    "postgresql://weft:pa?SECRET@db/weft",
    "postgresql://weft:pa#SECRET@db/weft",
    "postgresql://weft:pa:SECRET@db/weft",
    "postgresql://weft:p[SECRET]x@db/weft",
    "postgresql://weft:%2FSECRET%40@db/weft",
    "postgresql://weft@db/weft?password=SECRET",
    "postgresql://weft@db/weft?pass%77ord=SECRET",
    "postgresql://weft@db/weft?sslpassword=SECRET",
    "postgres://weft:x@db/weft?sslmode=require&sslpassword=SECRET",
]
UNREADABLE = [
    "host=db password=SECRET dbname=weft",
    "weft:SECRET@db/weft",
    "mysql://weft:SECRET@db/weft",
    "postgresql://weft:pa/SECRET@db/weft",
    "postgresql://weft:12/SECRET@db/weft",
    "postgresql://weft:12/SECRET?sslmode=@db/weft",
    "postgresql://weft:pa@SECRET@db/weft",
    "postgresql://weft:@h/SECRET?application_name=@db/weft",
    "postgresql://weft:100%SECRET@db/weft",
    "postgresql://weft:SECRET%00@db/weft",
    "postgresql://weft:%FFSECRET@db/weft",
    "postgresql://weft:SECRET",
    "postgresql://db/weft?passwort=SECRET",
]


@pytest.fixture
def home(fast_folder: Path) -> Home:
    return Home(fast_folder)


@pytest.mark.parametrize("url", READABLE)
def test_an_address_is_shown_without_what_is_secret(url: str) -> None:
    assert address.shown(url) == "postgresql://weft@db/weft"
    assert "SECRET" not in address.without_secrets(url)
    assert any("SECRET" in secret for secret in address.secrets_of(url))


@pytest.mark.parametrize("url", [*READABLE, *UNREADABLE])
def test_a_password_in_an_argument_is_refused_and_not_repeated(url: str, home: Home) -> None:
    with pytest.raises(HomeError) as refused:
        chosen(url, home, {})
    assert "SECRET" not in str(refused.value)
    assert "password" in str(refused.value)


@pytest.mark.parametrize("url", UNREADABLE)
def test_what_cannot_be_read_is_not_repeated(url: str, home: Home) -> None:
    with pytest.raises(HomeError, match="WEFT_DATABASE: this is no postgresql:// URL") as refused:
        chosen(None, home, {VARIABLE: url})
    assert "SECRET" not in str(refused.value)
    assert "%XX" in str(refused.value)
    assert refused.value.__suppress_context__


@given(st.text(":/?#[]@!$&'()*+,;=% \\\"-_.~aE4", max_size=8), st.text(":/?#[]@&=%aE4", max_size=8))
@example("@h/", "?user=")
def test_whatever_stands_around_it_no_password_is_shown(before: str, after: str) -> None:
    url = f"postgresql://weft:{before}SECRET{after}@db/weft"
    with contextlib.suppress(address.Unreadable):  # which repeats nothing
        assert "SECRET" not in address.shown(url) + address.without_secrets(url)


NAMES = st.text(min_size=1, max_size=8).filter(lambda text: "\0" not in text and text.isprintable())
HOSTS = st.sampled_from(["db", "/run/postgresql", "::1", "fe80::1%eth0", "10.0.0.1"])
PLACES = st.lists(st.tuples(HOSTS, st.sampled_from(["", "5432", "6000"])), min_size=1, max_size=3)


@given(NAMES, NAMES, PLACES, st.dictionaries(st.sampled_from(["options", "sslmode", "passfile"]), NAMES))
def test_what_is_kept_of_an_address_means_the_same(
    user: str, name: str, places: list[tuple[str, str]], more: dict[str, str]
) -> None:
    hosts, ports = zip(*places, strict=True)
    parts = {"user": user, "dbname": name, "host": ",".join(hosts), **more}
    if any(ports) or len(ports) > 1:
        parts["port"] = ",".join(ports)
    url = address._written({**parts, "password": "SECRET"})
    assert address.read(url) == {**parts, "password": "SECRET"}
    assert conninfo_to_dict(address.without_secrets(url)) == parts


# ── which one ──


def test_an_argument_goes_before_the_variable(home: Home) -> None:
    assert chosen(URL, home, {VARIABLE: "postgresql://other@db/other"}) == URL
    assert chosen(OWN, home, {VARIABLE: URL}) == home.database
    assert chosen(None, home, {VARIABLE: URL}) == URL
    assert chosen(None, home, {VARIABLE: ""}) == home.database


def test_the_variable_may_say_the_same_with_a_password(home: Home) -> None:
    whole = "postgresql://weft:SECRET@db.example.com/weft"
    assert chosen(URL, home, {VARIABLE: whole}) == whole
    safer = f"{URL}?sslmode=verify-full"
    assert chosen(safer, home, {VARIABLE: whole}) == safer


def test_without_a_word_it_is_the_last_one(home: Home) -> None:
    home.remember("database", {"url": URL})
    assert chosen(None, home, {}) == URL
    with pytest.raises(HomeError, match=f"are in {URL}"):
        chosen(OWN, home, {})


# ── an empty database ──


class Empty:
    place = "postgresql://weft@db/typo"
    written = 0

    def resource(self, *_: str) -> None:
        return None

    def uids(self) -> set[str]:
        return set()

    async def write(self, *_: Any, **__: Any) -> None:
        self.written += 1


@pytest.mark.parametrize("trace", ["an address", "files"])
def test_an_empty_database_is_not_for_a_home_that_has_jobs(home: Home, trace: str) -> None:
    (home.path / "jobs").mkdir()
    if trace == "files":
        (home.path / "jobs" / "a-job").mkdir()
    else:
        home.remember("database", {"url": URL})
    store: Any = Empty()
    with pytest.raises(
        HomeError, match=r"typo is empty, but .*; or bring a backup .* weft restore"
    ) as refused:
        asyncio.run(databases.belong_together(store, home, store.place))
    assert (URL in str(refused.value)) == (trace == "an address")
    assert not store.written


def test_a_home_whose_own_database_is_gone_keeps_the_files_of_its_jobs(home: Home) -> None:
    (home.path / "jobs" / "lost+found").mkdir(parents=True)
    databases.check_there(home.database, home)
    (home.path / "jobs" / "a-job").mkdir()
    with pytest.raises(HomeError, match=r"weft.db is empty, but .* has files of jobs"):
        databases.check_there(home.database, home)
    home.database.touch()
    databases.check_there(home.database, home)


def test_an_empty_database_becomes_that_of_a_new_home(home: Home) -> None:
    (home.path / "jobs").mkdir()
    store: Any = Empty()
    asyncio.run(databases.belong_together(store, home, store.place))
    assert store.written == 1
    assert home.last("database") == {"url": store.place}


# ── a copy of it ──


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        (StoreFull("no room"), ApiProblem),
        (OSError(28, "No space left on device"), ApiProblem),
        (StoreError("the database went away"), StoreError),
        (RuntimeError("a mistake"), RuntimeError),
        (asyncio.CancelledError(), asyncio.CancelledError),
    ],
)
def test_a_copy_that_fails_leaves_nothing_behind(
    fast_folder: Path, problem: BaseException, told: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(self: Store, target: Path) -> None:
        target.write_bytes(b"half of it")
        raise problem

    monkeypatch.setattr(Store, "copy", half)

    async def story() -> None:
        store = Store(fast_folder / "weft.db")
        with pytest.raises(told):
            await backup_stream(fast_folder, store, with_files=False)
        store.close()

    asyncio.run(story())
    assert not list(fast_folder.glob("backup-*"))
