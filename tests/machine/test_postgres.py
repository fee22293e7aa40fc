"""A server whose database is a real PostgreSQL: the same promises as with SQLite, and those of a database that can go away."""

from __future__ import annotations

import asyncio
import itertools
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from harness import Server, sh, until
from hypothesis import HealthCheck, given, settings

from support.postgres import PASSWORD, NotInstalled, Postgres, postgres
from support.storemodel import STEPS, Pair
from weft.store.changes import Create, Happened, Measured, Point
from weft.store.database import StoreError, Superseded
from weft.store.postgres import PostgreSQL
from weft.store.schema import metadata
from weft.store.store import Store

pytestmark = pytest.mark.machine
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def running() -> Iterator[Postgres]:
    try:
        with postgres() as made:
            made.do(f"CREATE ROLE weft LOGIN PASSWORD '{PASSWORD}' CREATEDB")
            yield made
    except NotInstalled as problem:
        pytest.skip(str(problem))


@pytest.fixture
def url(running: Postgres, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty database of the test's own, and its password where libpq looks for it."""
    name = f"weft_{next(NUMBERS)}"
    running.do(f"CREATE DATABASE {name} OWNER weft")
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    return running.url.replace("///postgres", f"///{name}") + "&user=weft"


def row(uid: str) -> dict[str, Any]:
    values = dict.fromkeys(("owner", "metadata", "spec", "status"), "{}")
    numbers = {"priority": 0, "tasks": 1, "restarts": 0, "created": 1.0}
    fixed = {"kind": "TrainingJob", "state": "QUEUED", "type": "command", "queue": "default"}
    return {**values, **numbers, **fixed, "uid": uid, "name": uid}


def happened(uid: str, cause: str = "") -> Happened:
    return Happened(1.0, uid, uid, "state", cause, "weft", "QUEUED")


# ── the store ──


@settings(max_examples=15, suppress_health_check=list(HealthCheck), deadline=None)
@given(steps=STEPS)
def test_whatever_is_written_the_store_holds_what_was_not_refused(
    running: Postgres, url: str, steps: list[Any]
) -> None:
    database = PostgreSQL(url)
    with database.engine.begin() as connection:
        for table in metadata.sorted_tables:
            connection.execute(table.delete())
    database.close()

    async def story() -> None:
        await Pair(url).follow(steps)

    asyncio.run(story())


def test_a_migrated_database_is_what_the_code_believes(url: str) -> None:
    database = PostgreSQL(url)
    with database.engine.connect() as connection:
        found = compare_metadata(MigrationContext.configure(connection), metadata)
    database.close()
    assert found == []


def test_names_of_any_length_and_characters_are_kept(url: str) -> None:
    """SQLite takes them all; a job that printed a zero must not be forgotten because of it."""

    async def story() -> None:
        store = Store(url)
        long = "x" * 300
        await store.write(
            [
                Create({**row("a"), "owner": long}),
                happened("a", "it said \0 and 'quoted' %s ?"),
                Measured("a", "worker-0", 7, (Point("worker-0", long, None, 1.0, float("nan")),)),
            ]
        )
        (found,) = store.page("TrainingJob")
        assert (found.owner, found.queued) == (long, None)
        assert [event.cause for event in store.events(uid="a")] == [
            "it said \N{REPLACEMENT CHARACTER} and 'quoted' %s ?"
        ]
        assert [(point["name"], point["value"]) for point in store.metrics("a")] == [(long, "nan")]
        store.close()

    asyncio.run(story())


def test_one_server_writes_and_a_second_is_told_who_does(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.store.postgres.PATIENCE", 0.3)

    async def story() -> None:
        first = Store(url)
        with pytest.raises(Superseded, match=r"another server \(weft .*\) uses database postgresql://"):
            Store(url)
        await first.write([Create(row("a"))], refusable=True)
        first.close()
        Store(url).close()

    asyncio.run(story())


def test_who_was_replaced_by_a_new_leader_cannot_write_any_more(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.store.postgres.PATIENCE", 0.3)

    async def story() -> None:
        told = asyncio.Event()
        old = Store(url)
        old.superseded = lambda problem: told.set()
        await old.write([Create(row("a"))], refusable=True)
        new = Store(url, take_over=True)
        late = [old.write([Create(row("late"))], refusable=True), old.write([happened("a", "late")])]
        found = await asyncio.gather(*late, return_exceptions=True)
        assert isinstance(found[0], StoreError)
        assert isinstance(found[1], Superseded)
        await asyncio.wait_for(told.wait(), 10)
        with pytest.raises(Superseded):
            await old.write([happened("a", "later")])
        await new.write([Create(row("b"))], refusable=True)
        assert {found.uid for found in new.page("TrainingJob")} == {"a", "b"}
        assert new.events() == []
        old.close()
        new.close()

    asyncio.run(story())


class Cut:
    """A real connection that is cut while it commits: after the database has heard of it, or before."""

    def __init__(self, connection: Any, heard: bool):
        self._connection, self._heard, self.cut = connection, heard, False

    def execute(self, statement: str, *values: Any) -> Any:
        if statement == "COMMIT" and not self.cut:
            self.cut = True
            if self._heard:
                self._connection.execute(statement)
            self._connection.close()
        return self._connection.execute(statement, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@pytest.mark.parametrize("heard", [True, False])
def test_a_commit_that_nothing_was_heard_of_is_done_once(
    url: str, monkeypatch: pytest.MonkeyPatch, heard: bool
) -> None:
    monkeypatch.setattr("weft.store.writer.RETRY_SECONDS", 0.01)
    writing = PostgreSQL.writing
    cuts: list[Cut] = []

    def once(self: PostgreSQL) -> Any:
        connection = writing(self)
        if cuts:
            return connection
        cuts.append(Cut(connection, heard))
        return cuts[0]

    monkeypatch.setattr(PostgreSQL, "writing", once)

    async def story() -> None:
        store = Store(url)
        points = tuple(Point("worker-0", "loss", step, 1.0, 0.5) for step in range(3))
        both = [
            store.write([Create(row("a")), happened("a", "first")], refusable=True),
            store.write([Measured("a", "worker-0", 30, points), happened("a", "second")]),
        ]
        await asyncio.wait_for(asyncio.gather(*both), 20)
        assert cuts[0].cut
        assert [event.cause for event in store.events(uid="a")] == ["first", "second"]
        assert len(store.metrics("a")) == 3
        store.close()

    asyncio.run(story())


# ── a server ──


@pytest.fixture
def with_database(new_server: Callable[..., Server], url: str) -> Callable[..., Server]:
    def make(**more: Any) -> Server:
        return new_server("--cpu", "8", "--database", url, kind=Server, PGPASSWORD=PASSWORD, **more)

    return make


def test_a_server_keeps_everything_there_and_nothing_of_its_password(
    with_database: Callable[..., Server], url: str
) -> None:
    server = with_database()
    server.run(
        sh("echo loss=0.5 step=1; exit 3", name="broken", metrics=[{"source": "log", "names": ["loss"]}])
    )
    name = server.submit(sh("echo on; sleep 60", name="runs"))
    server.printed_line(name, "on")
    pid = server.pid_of(name)
    before = {job: server.history(job) for job in ("broken", "runs")}
    server.kill()
    server.arguments = ("--cpu", "8")  # its address was kept
    server.start()
    assert {job: server.history(job) for job in before} == before
    assert server.status("runs")["state"] == "PROCESSING"
    assert server.pid_of("runs") == pid
    assert server.status("broken")["failure"]["message"] == "worker-0 exited with code 3"
    assert server.facts()["database"] == url
    shown = server.weft("status").stdout
    assert url.partition("?")[0] in shown
    server.ask("runs", "cancel")
    server.wait_for("runs", "CANCELLED")
    assert not (server.home / "weft.db").exists()
    kept = [path for path in server.home.rglob("*") if path.is_file()]
    assert not [path for path in kept if PASSWORD.encode() in path.read_bytes()]
    assert PASSWORD not in server.printed()


def test_a_database_that_is_restarted_costs_nothing_that_was_promised(
    with_database: Callable[..., Server], running: Postgres
) -> None:
    server = with_database()
    ended = [server.submit(sh("true", name=f"before-{number}")) for number in range(5)]
    ended.append(server.submit(sh("sleep 1; echo done", name="during")))
    running.stop()
    away = server.post("/v1/jobs", sh("true", name="refused"))
    assert away.status == 507, away.body
    assert "database" in away.json["detail"]
    running.start()
    taken = lambda: server.post("/v1/jobs", sh("true", name="after")).status == 201  # noqa: E731
    until(taken, "a job to be taken again")
    for name in (*ended, "after"):
        assert server.wait_for(name)["status"]["state"] == "COMPLETED", (name, server.story(name))
    assert server.get("/v1/jobs/refused").status == 404
    assert "Traceback" not in server.printed()


def start_again(*arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "weft.server", *map(str, arguments)],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_home_and_its_database_belong_together(
    with_database: Callable[..., Server], new_server: Callable[..., Server], url: str, tmp_path: Path
) -> None:
    """The home has the files of the jobs that the database knows; with another, a server would take them for leftovers."""
    server = with_database()
    server.run(sh("true", name="one"))
    server.stop()
    other = start_again("--home", tmp_path / "other", "--database", url)
    assert other.returncode == 1
    assert "is that of another home" in other.stderr
    back = start_again("--home", server.home, "--database", "sqlite")
    assert back.returncode == 1
    assert f"the jobs of {server.home} are in {url}" in back.stderr
    with_jobs = new_server("--cpu", "2", home="sqlite")
    with_jobs.stop()
    moved = start_again("--home", with_jobs.home, "--database", url)
    assert moved.returncode == 1
    assert f"the jobs of {with_jobs.home} are in {with_jobs.home}/weft.db" in moved.stderr
    assert "weft restore FILE --database" in moved.stderr
    server.start()
    assert server.status("one")["state"] == "COMPLETED"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("postgresql://weft:s3cret@db/weft", "a password in an argument can be read by all on this machine"),
        ("postgresql://db/weft?password=s3cret", "a password in an argument"),
        ("mysql://db/weft", "--database mysql://db/weft: write postgresql://USER@HOST/DATABASE"),
        ("postgresql://weft@127.0.0.1:1/weft", "cannot reach database postgresql://weft@127.0.0.1:1/weft"),
    ],
)
def test_a_database_that_cannot_be_is_refused_in_plain_words(tmp_path: Path, given: str, words: str) -> None:
    refused = start_again("--home", tmp_path / "home", "--database", given)
    assert refused.returncode == 1
    assert words in refused.stderr
    assert "s3cret" not in refused.stderr
    assert "Traceback" not in refused.stderr


def test_the_whole_url_may_come_by_a_variable(running: Postgres, url: str, tmp_path: Path) -> None:
    wrong = start_again("--home", tmp_path / "home", WEFT_DATABASE=f"{url}&password=wr0ng", PGPASSWORD="")
    assert wrong.returncode == 1
    assert "password authentication failed" in wrong.stderr
    assert "wr0ng" not in wrong.stderr


def test_a_backup_goes_from_either_to_the_other(
    with_database: Callable[..., Server], new_server: Callable[..., Server], running: Postgres, tmp_path: Path
) -> None:
    server = with_database()
    script = 'for i in 1 2 3; do echo "loss=0.$i"; done; echo kept > $RESULT_DIR/out'
    server.run(sh(script, name="one", metrics=[{"source": "log", "names": ["loss"]}]), "COMPLETED")
    feeding = threading.Thread(target=lambda: [server.submit(sh("true")) for _ in range(20)])
    feeding.start()
    first = tmp_path / "first.tar"
    first.write_bytes(server.get("/v1/backup", files="true").body)
    feeding.join()
    assert start_again("--restore", first, "--home", tmp_path / "plain").returncode == 0
    plain = new_server("--cpu", "8", home="plain")
    assert plain.metrics("one") == server.metrics("one")
    assert plain.history("one") == server.history("one")
    second = tmp_path / "second.tar"
    second.write_bytes(plain.get("/v1/backup", files="true").body)
    running.do("CREATE DATABASE elsewhere OWNER weft")
    there = running.url.replace("///postgres", "///elsewhere") + "&user=weft"
    server.stop()
    with_data = start_again(
        "--restore", second, "--home", tmp_path / "moved", "--database", server.facts()["database"]
    )
    assert with_data.returncode == 1
    assert "already has data" in with_data.stderr
    done = start_again("--restore", second, "--home", tmp_path / "moved", "--database", there)
    assert done.returncode == 0, done.stderr
    moved = new_server("--cpu", "8", home="moved", kind=Server, PGPASSWORD=PASSWORD)
    assert moved.facts()["database"] == there
    assert moved.metrics("one") == plain.metrics("one")
    assert moved.get("/v1/jobs").json["total"] == plain.get("/v1/jobs").json["total"]
    moved.run(sh("echo loss=1", name="two", metrics=[{"source": "log", "names": ["loss"]}]), "COMPLETED")
    assert [point["value"] for point in moved.metrics("two")] == [1.0]
    assert [item["path"] for item in moved.get("/v1/jobs/one/results").json["items"]] == ["out"]


def test_a_copy_is_one_file(url: str, tmp_path: Path) -> None:
    async def story() -> None:
        store = Store(url)
        await store.write([Create(row("a")), happened("a")])
        store.copy(tmp_path / "copy.db")
        store.close()

    asyncio.run(story())
    assert [path.name for path in tmp_path.iterdir()] == ["copy.db"]
    with sqlite3.connect(tmp_path / "copy.db") as connection:
        assert connection.execute("select uid from resources").fetchall() == [("a",)]
    connection.close()
