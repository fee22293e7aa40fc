"""The store after a kill, a damage, an upgrade; and the sentences it has for what it cannot do."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from weft.store import database
from weft.store.database import StoreError, StoreFull, open_database
from weft.store.schema import HEAD, metadata
from weft.store.sqlite import SQLite, check_integrity
from weft.store.store import Store

WRITES_FOR_EVER = """
import asyncio, sys
from pathlib import Path
from weft.store.changes import Create, Happened
from weft.store.store import Store

def row(uid):
    text = dict.fromkeys(("owner", "metadata", "spec", "status"), "x" * 500)
    return {**text, "uid": uid, "kind": "TrainingJob", "name": uid, "state": "QUEUED", "type": "command",
            "queue": "q", "priority": 0, "tasks": 1, "restarts": 0, "created": 1.0}

async def main():
    store = Store(Path(sys.argv[1]))
    start = store.last_seq
    async def client(number):
        for i in range(10_000):
            uid = f"{start}-{number}-{i}"
            await store.write([Create(row(uid)), Happened(1.0, uid, uid, "state"), Happened(2.0, uid, uid, "state")], refusable=True)
            print(uid, flush=True)  # only now is it promised
    await asyncio.gather(*(client(n) for n in range(4)))

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_killed_writer_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "weft.db"
    open_database(path).close()
    chance = random.Random(7)
    promised: set[str] = set()
    for _ in range(8):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITES_FOR_EVER, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        lines = []
        for _ in range(chance.randint(1, 120)):
            lines.append(child.stdout.readline())
        os.kill(child.pid, signal.SIGKILL)
        rest, _ = child.communicate()
        whole = ("".join(lines) + rest).split("\n")[:-1]
        promised |= set(whole)
        check_integrity(path)
        with sqlite3.connect(path) as reader:
            kept = {uid for (uid,) in reader.execute("select uid from resources")}
            events = list(reader.execute("select seq, uid, time from events order by seq"))
        reader.close()
        assert promised <= kept
        assert [uid for _, uid, _ in events[::2]] == [uid for _, uid, _ in events[1::2]], "a torn transaction"
        assert {uid for _, uid, _ in events} == kept
        assert [seq for seq, _, _ in events] == sorted({seq for seq, _, _ in events})
    assert promised


class TestMigrations:
    def test_a_migrated_database_is_what_the_code_believes(self, fast_folder: Path) -> None:
        engine = open_database(fast_folder / "weft.db").engine
        with engine.connect() as connection:
            found = compare_metadata(MigrationContext.configure(connection), metadata)
        engine.dispose()
        assert found == []

    def test_the_head_that_opens_quickly_is_the_newest_migration(self) -> None:
        config = Config()
        config.set_main_option("script_location", str(Path(database.__file__).parent / "migrations"))
        assert ScriptDirectory.from_config(config).get_heads() == [HEAD]

    def test_a_database_of_an_older_weft_is_copied_and_migrated(self, fast_folder: Path) -> None:
        path = fast_folder / "weft.db"
        open_database(path).close()
        with sqlite3.connect(path) as connection:
            for column in ("project", "cpus", "gpus"):
                connection.execute(f"alter table resources drop column {column}")
            connection.execute("alter table events drop column code")
            connection.execute("update alembic_version set version_num = '0001'")
        connection.close()
        engine = open_database(path).engine
        with engine.connect() as connection:
            found = compare_metadata(MigrationContext.configure(connection), metadata)
        engine.dispose()
        assert found == []
        assert [p.name for p in fast_folder.glob("*.before-*")] == [f"weft.before-{HEAD}.db"]

    def test_opening_again_changes_nothing(self, fast_folder: Path) -> None:
        path = fast_folder / "weft.db"
        open_database(path).close()
        before = path.read_bytes()
        open_database(path).close()
        assert path.read_bytes() == before
        assert [p.name for p in fast_folder.glob("*.before-*")] == []

    def test_a_newer_schema_is_refused_with_what_to_do(self, fast_folder: Path) -> None:
        path = fast_folder / "weft.db"
        open_database(path).close()
        with sqlite3.connect(path) as connection:
            connection.execute("update alembic_version set version_num = '9999'")
        connection.close()
        with pytest.raises(StoreError) as refusal:
            open_database(path)
        assert str(refusal.value) == (
            f"{path} was written by a newer Weft (schema 9999, this one knows up to {HEAD}); "
            "upgrade Weft, or restore a backup made with this version"
        )

    def test_a_migration_that_breaks_leaves_the_database_as_it_was(
        self, fast_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from alembic import op

        def broken(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(op, "create_index", broken)
        path = fast_folder / "weft.db"
        with pytest.raises(StoreError):
            open_database(path)
        monkeypatch.undo()
        with sqlite3.connect(path) as connection:
            tables = list(connection.execute("select name from sqlite_master"))
        connection.close()
        assert tables == []
        open_database(path).close()


class TestWhatCannotBeOpened:
    def test_a_file_that_is_no_database(self, fast_folder: Path) -> None:
        path = fast_folder / "weft.db"
        path.write_bytes(b"this was a database once" * 100)
        with pytest.raises(
            StoreError, match=r"weft.db is damaged .*; restore the last backup: weft restore FILE"
        ):
            open_database(path)

    def test_a_database_with_damaged_pages(self, fast_folder: Path) -> None:
        path = fast_folder / "weft.db"
        open_database(path).close()
        data = bytearray(path.read_bytes())
        data[100:] = bytes(random.Random(1).randbytes(len(data) - 100))
        path.write_bytes(data)
        with pytest.raises(StoreError, match="damaged"):
            open_database(path)
        with pytest.raises(StoreError, match="damaged"):
            check_integrity(path)

    def test_a_folder_that_is_a_file(self, fast_folder: Path) -> None:
        (fast_folder / "home").write_text("")
        with pytest.raises(
            StoreError, match=r"cannot write .*check the folder's owner and permissions, or set WEFT_HOME"
        ):
            open_database(fast_folder / "home" / "weft.db")

    def test_a_file_that_may_not_be_written(self, fast_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As on a read-only file system: SQLite opens it read-only and refuses to write."""
        path = fast_folder / "weft.db"
        sqlite3.connect(path).close()
        real = sqlite3.connect

        def read_only(_: str, **options: object) -> sqlite3.Connection:
            return real(f"file:{path}?immutable=1", uri=True, check_same_thread=False)

        monkeypatch.setattr(sqlite3, "connect", read_only)
        monkeypatch.setattr("sqlite3.dbapi2.connect", read_only)
        with pytest.raises(StoreError, match=r"cannot write .*readonly database.*WEFT_HOME"):
            open_database(path)


class TestCopies:
    def test_a_copy_is_whole_while_others_write(self, fast_folder: Path) -> None:
        async def story() -> None:
            store = Store(fast_folder / "weft.db")
            store.copy(fast_folder / "copy.db")
            store.close()

        asyncio.run(story())
        check_integrity(fast_folder / "copy.db")
        engine = open_database(fast_folder / "copy.db").engine
        with engine.connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        engine.dispose()

    def test_no_room_for_a_copy_is_said_before_it_is_begun(
        self, fast_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = fast_folder / "weft.db"
        open_database(path).close()
        full = type("Usage", (), {"free": 10})()
        monkeypatch.setattr("shutil.disk_usage", lambda _: full)
        with pytest.raises(StoreFull, match="no room for a copy"):
            SQLite(path).copy(fast_folder / "copy.db")
        assert not (fast_folder / "copy.db").exists()
