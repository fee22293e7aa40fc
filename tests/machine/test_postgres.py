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
from weft.store import address, sqlite
from weft.store.changes import Create, Happened, Measured, Point
from weft.store.database import StoreError, StoreFull, Superseded
from weft.store.postgres import LOCK, PostgreSQL, own
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
        found = compare_metadata(MigrationContext.configure(connection), [metadata, own])
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
        old.when_superseded(lambda problem: told.set())
        await old.write([Create(row("a"))], refusable=True)
        new = await Store.opened(url, take_over=True)
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


def test_who_comes_back_after_another_wrote_does_not_go_on(url: str, running: Postgres) -> None:
    """What it has in memory is not what the database has."""

    async def story() -> None:
        first = Store(url)
        await first.write([Create(row("a"))], refusable=True)
        running.do(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'weft %'"
        )
        second = Store(url)
        await second.write([Create(row("b"))], refusable=True)
        second.close()
        with pytest.raises(Superseded, match="another server wrote to database"):
            await asyncio.wait_for(first.write([happened("a", "late")]), 20)
        first.close()
        third = Store(url)
        assert (third.uids(), third.events()) == ({"a", "b"}, [])
        third.close()

    asyncio.run(story())


def test_who_comes_back_alone_goes_on(url: str, running: Postgres) -> None:
    async def story() -> None:
        for number in range(2):
            store = Store(url)
            for moment in ("before any write of its own", "after one"):
                running.do(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'weft %'"
                )
                await asyncio.wait_for(store.write([happened("a", f"{number} {moment}")]), 20)
            store.close()
        store = Store(url)
        assert len(store.events()) == 4
        store.close()

    asyncio.run(story())


class Disturbed:
    """A real connection, and what happens to it before one of its statements, once."""

    def __init__(self, connection: Any, before: str, happens: Callable[[Any], None]):
        self._connection, self._before, self._happens = connection, before, happens
        self.happened = False

    def _come(self, statement: str) -> None:
        if statement == self._before and not self.happened:
            self.happened = True
            self._happens(self._connection)

    def execute(self, statement: str, *values: Any) -> Any:
        self._come(statement)
        return self._connection.execute(statement, *values)

    def rollback(self) -> None:
        self._come("ROLLBACK")
        self._connection.rollback()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@pytest.fixture
def disturb(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[Any], None]], list[Disturbed]]:
    """The first connection of the next writer."""
    monkeypatch.setattr("weft.store.writer.RETRY_SECONDS", 0.01)
    writing = PostgreSQL.writing
    made: list[Disturbed] = []

    def prepare(before: str, happens: Callable[[Any], None]) -> list[Disturbed]:
        def once(self: PostgreSQL) -> Any:
            connection = writing(self)
            if made:
                return connection
            made.append(Disturbed(connection, before, happens))
            return made[0]

        monkeypatch.setattr(PostgreSQL, "writing", once)
        return made

    return prepare


async def two_writes(url: str) -> None:
    """Both are kept, once."""
    store = Store(url)
    points = tuple(Point("worker-0", "loss", step, 1.0, 0.5) for step in range(3))
    both = [
        store.write([Create(row("a")), happened("a", "first")], refusable=True),
        store.write([Measured("a", "worker-0", 30, points), happened("a", "second")]),
    ]
    await asyncio.wait_for(asyncio.gather(*both), 20)
    assert [event.cause for event in store.events(uid="a")] == ["first", "second"]
    assert len(store.metrics("a")) == 3
    store.close()


@pytest.mark.parametrize("heard", [True, False])
def test_a_commit_that_nothing_was_heard_of_is_done_once(url: str, disturb: Any, heard: bool) -> None:
    def cut(connection: Any) -> None:
        if heard:
            connection.execute("COMMIT")
        connection.close()

    disturbed = disturb("COMMIT", cut)
    asyncio.run(two_writes(url))
    assert disturbed[0].happened


@pytest.mark.parametrize("others", [0, 20])
def test_a_commit_that_a_crash_of_the_database_took_is_done_again(
    url: str, running: Postgres, disturb: Any, others: int
) -> None:
    """PostgreSQL gives the ids of transactions that a crash took out again: to nobody yet, or to others, who commit."""

    def crash(connection: Any) -> None:
        running.stop()
        running.start()
        running.do(*["CREATE TABLE of_another_app ()", "DROP TABLE of_another_app"] * (others // 2))

    disturbed = disturb("COMMIT", crash)
    asyncio.run(two_writes(url))
    assert disturbed[0].happened


def test_a_session_that_ends_while_a_fault_is_sought_costs_nothing(url: str, disturb: Any) -> None:
    """The thread that writes ended with it once, and nobody was ever answered again."""
    disturbed = disturb("ROLLBACK", lambda connection: connection.close())

    async def story() -> None:
        store = Store(url)
        await store.write([Create(row("a"))], refusable=True)
        clash = store.write([Create({**row("b"), "name": "a"})], refusable=True)
        must = store.write([happened("a", "kept")])
        with pytest.raises(StoreError):
            await asyncio.wait_for(clash, 20)
        await asyncio.wait_for(must, 20)
        assert [event.cause for event in store.events()] == ["kept"]
        store.close()

    asyncio.run(story())
    assert disturbed[0].happened


def test_who_reads_need_not_wait_for_a_database_that_is_known_to_be_away(
    url: str, running: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.store.writer.RETRY_SECONDS", 0.01)
    monkeypatch.setattr("weft.store.store.MOMENT", 30.0)
    tried: list[int] = []
    connect = PostgreSQL._connect

    def counted(self: PostgreSQL, timeout: int, **more: Any) -> Any:
        tried.append(timeout)
        return connect(self, timeout, **more)

    async def story() -> None:
        monkeypatch.setattr(PostgreSQL, "_connect", counted)
        store = Store(url)
        tried.clear()
        running.stop()
        try:
            with pytest.raises(StoreError):
                await store.write([Create(row("a"))], refusable=True)
            for _ in range(3):
                with pytest.raises(StoreError, match="cannot be read"):
                    store.counts("TrainingJob")
            assert 2 not in tried
        finally:
            running.start()
        async with asyncio.timeout(5):
            while store._database.away():  # though nobody writes
                await asyncio.sleep(0.01)
        assert store.counts("TrainingJob") == {}
        running.stop()
        try:
            for _ in range(3):
                with pytest.raises(StoreError, match="cannot be read"):
                    store.counts("TrainingJob")
        finally:
            running.start()
        assert tried.count(2) == 2, "one each time that it was reached, or not"
        store.close()

    asyncio.run(story())


def test_a_session_is_as_the_url_and_weft_want_it(url: str, running: Postgres) -> None:
    name = url.partition("?")[0].rpartition("/")[2]
    with running.connect(name) as connection:
        connection.execute("CREATE SCHEMA mine AUTHORIZATION weft")
    database = PostgreSQL(f"{url}&options=-csearch_path%3Dmine")
    with database.engine.connect() as connection:
        shown = {
            what: connection.exec_driver_sql(f"SHOW {what}").scalar()
            for what in ("search_path", "statement_timeout")
        }
        tables = connection.exec_driver_sql("SELECT schemaname FROM pg_tables WHERE tableowner = 'weft'")
        assert set(tables.scalars()) == {"mine"}
        driver: Any = connection.connection.driver_connection
        given = driver.info.get_parameters()
    database.close()
    assert shown == {"search_path": "mine", "statement_timeout": "30s"}
    assert "tcp_user_timeout=10000" in given["options"]
    assert given["target_session_attrs"] == "read-write"
    assert int(given["connect_timeout"]) == 2


def test_a_database_that_only_reads_is_refused_at_once(url: str, running: Postgres) -> None:
    """As a standby does: of several hosts the one that writes is taken."""
    name = url.partition("?")[0].rpartition("/")[2]
    running.do(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with pytest.raises(StoreError, match=r"cannot reach database .*read-only"):
        PostgreSQL(url)


def test_a_lock_that_cannot_be_had_is_said_in_plain_words(url: str, running: Postgres) -> None:
    name = url.partition("?")[0].rpartition("/")[2]
    with running.connect(name) as other:
        other.execute("SELECT pg_advisory_lock(%s)", (LOCK,))
        with pytest.raises(StoreError, match=r"cannot get the writer's lock of database .*superuser"):
            PostgreSQL(url, take_over=True)


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
    assert server.facts()["database"] == address.shown(url)
    assert address.shown(url) in server.weft("status").stdout
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
    assert f"the jobs of {server.home} are in {address.shown(url)}" in back.stderr
    with_jobs = new_server("--cpu", "2", home="sqlite")
    with_jobs.stop()
    moved = start_again("--home", with_jobs.home, "--database", url)
    assert moved.returncode == 1
    assert f"the jobs of {with_jobs.home} are in {with_jobs.home}/weft.db" in moved.stderr
    assert "weft restore FILE --database" in moved.stderr
    server.start()
    assert server.status("one")["state"] == "COMPLETED"


def test_a_home_with_jobs_is_not_served_from_an_empty_database(
    with_database: Callable[..., Server], running: Postgres, url: str
) -> None:
    """All files of its jobs were taken for leftovers, and removed."""
    server = with_database()
    server.run(sh("echo kept > $RESULT_DIR/out", name="one"), "COMPLETED")
    server.stop()
    files = sorted((server.home / "jobs").rglob("*"))
    running.do("CREATE DATABASE typo OWNER weft")
    typo = running.url.replace("///postgres", "///typo") + "&user=weft"
    for named in (("--database", typo), ()):
        if not named:  # the same address, of a database that was made anew
            (server.home / "database.json").write_text(f'{{"url": "{address.shown(typo)}"}}')
        refused = start_again("--home", server.home, *named)
        assert refused.returncode == 1
        assert f"database {address.shown(typo)} is empty, but {server.home} has its jobs in" in refused.stderr
        assert "Traceback" not in refused.stderr
    assert sorted((server.home / "jobs").rglob("*")) == files
    server.start()
    assert [item["path"] for item in server.get("/v1/jobs/one/results").json["items"]] == ["out"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("postgresql://weft:s3cret@db/weft", "a password in an argument can be read by all on this machine"),
        ("postgresql://db/weft?password=s3cret", "a password in an argument"),
        ("mysql://weft:s3cret@db/weft", "--database: this is no postgresql:// URL that can be read"),
        ("postgresql://weft:100%s3cret@db/weft", "special characters of a name or a password as %XX"),
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
    assert not list((tmp_path / "moved" / "jobs").iterdir())
    assert not (tmp_path / "moved" / "database.json").exists()
    in_the_way = tmp_path / "moved" / "jobs" / "mine"
    in_the_way.write_text("")
    refused = start_again("--restore", second, "--home", tmp_path / "moved", "--database", there)
    assert refused.returncode == 1
    assert "jobs is there already" in refused.stderr
    in_the_way.unlink()  # and the database is as empty as before
    done = start_again("--restore", second, "--home", tmp_path / "moved", "--database", there)
    assert done.returncode == 0, done.stderr
    moved = new_server("--cpu", "8", home="moved", kind=Server, PGPASSWORD=PASSWORD)
    assert moved.facts()["database"] == address.shown(there)
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


def test_a_copy_for_which_there_is_no_room_says_so(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite._connect

    def small(path: Path) -> sqlite3.Connection:
        connection = connect(path)
        connection.execute("PRAGMA max_page_count=100")
        return connection

    async def story() -> None:
        store = Store(url)
        await store.write([Create({**row("a"), "spec": "x" * 1_000_000})])
        monkeypatch.setattr(sqlite, "_connect", small)
        with pytest.raises(StoreFull, match="no room for a copy of postgresql://"):
            store.copy(tmp_path / "copy.db")
        store.close()

    asyncio.run(story())
