"""The books of a cache: what it holds, of which dataset, how large, last used when. One SQLite file beside the parts.

A row is written before its file is begun (`filling`) and stays while the file does, so a sum over the rows is never
less than what is on the disk, whoever dies when. The other way round a row without a file costs only room, until the
next collection. Several processes may share the books. Totals are kept by triggers: a cache may hold a million files.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.data.cache.admission import NOTHING, UNLIMITED, Held, Room, admit
from weft.data.errors import NoRoom

PART, TREE, VERSION = "part", "tree", "version"
FORMAT = 1
SCHEMA = """
create table held (kind text, key text, dataset text not null, bytes integer not null, inodes integer not null,
                   entered real not null, used real not null, filling integer not null,
                   primary key (kind, key)) without rowid;
create index held_by_age on held (used);
create table totals (dataset text primary key, bytes integer not null, inodes integer not null) without rowid;
create trigger held_in after insert on held begin
  insert into totals values (new.dataset, new.bytes, new.inodes)
    on conflict (dataset) do update set bytes = bytes + new.bytes, inodes = inodes + new.inodes; end;
create trigger held_out after delete on held begin
  update totals set bytes = bytes - old.bytes, inodes = inodes - old.inodes where dataset = old.dataset; end;
create table grants (job text primary key, token text not null, versions text not null) without rowid;
create table counts (job text, dataset text, since real not null, counted text not null,
                     primary key (job, dataset)) without rowid;
create table peers (node text primary key, address text not null) without rowid;
"""


@dataclass(frozen=True, slots=True)
class Claim:
    """Something that wants to come in."""

    kind: str
    key: str
    dataset: str
    need: Room
    quota: int | None = None
    """Bytes of its dataset on this node."""
    policy: str = "nr"


@dataclass(frozen=True, slots=True)
class Entry:
    kind: str
    key: str
    dataset: str
    room: Room
    used: float


class Books:
    def __init__(self, path: Path, limit: Room = UNLIMITED):
        self.limit = limit
        """Of the node."""
        self.lock = threading.RLock()
        """Of this process."""
        self._used: dict[tuple[str, str], float] = {}
        self._arrived: set[tuple[str, str]] = set()
        try:
            self._db = _opened(path)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:  # a disk that lost some: begin anew with what is there (`adopt`)
            path.rename(path.with_suffix(".damaged"))
            self._db = _opened(path)

    def close(self) -> None:
        self.flush()
        self._db.close()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, alone among all processes."""
        with self.lock:
            try:
                self._db.execute("begin immediate")
                try:
                    yield self._db
                    self._db.execute("commit")
                except BaseException:
                    if self._db.in_transaction:
                        self._db.execute("rollback")
                    raise
            except sqlite3.OperationalError as problem:
                raise NoRoom(
                    f"the books of the cache cannot be written ({problem}); see to the disk they are on"
                ) from problem

    def ask(self, query: str, *values: Any) -> list[Any]:
        with self.lock:
            return self._db.execute(query, values).fetchall()

    # ── coming in ──

    def free(self, claim: Claim) -> Room:
        """What its dataset and the node have left for it."""
        rows = self.ask("select dataset, bytes, inodes from totals")
        node = sum((Room(held, inodes) for _, held, inodes in rows), start=NOTHING)
        own = sum((held for dataset, held, _ in rows if dataset == claim.dataset), start=0)
        left = self.limit - node
        return left if claim.quota is None else left.least(Room(claim.quota - own, left.inodes))

    def reserve(
        self, claim: Claim, now: float, leave: Callable[[str], None] | None = None, stay: Container[str] = ()
    ) -> bool:
        """Room for a claim, whose lock the caller holds, or False. With `leave`, which removes the file of a part, the
        policy of the dataset may let some of its own parts go, but none of those that `stay`."""
        with self.writing() as db:
            self._flush(db)
            db.execute("delete from held where kind = ? and key = ?", (claim.kind, claim.key))
            going = self._oldest(claim, stay) if leave and claim.policy == "lru" else ()
            gone = admit(claim.need, self.free(claim), going)
            if gone is None:
                return False
            for held in gone:
                assert leave is not None
                leave(held.key)
                db.execute("delete from held where kind = ? and key = ?", (PART, held.key))
            db.execute(
                "insert into held values (?, ?, ?, ?, ?, ?, ?, 1)",
                (claim.kind, claim.key, claim.dataset, claim.need.bytes, claim.need.inodes, now, now),
            )
            return True

    def _oldest(self, claim: Claim, stay: Container[str]) -> Iterator[Held]:
        rows = self.ask(
            "select key, bytes, inodes from held where kind = ? and dataset = ? and not filling order by used, key",
            PART, claim.dataset,
        )  # fmt: skip
        return (Held(key, Room(held, inodes)) for key, held, inodes in rows if key not in stay)

    def arrived(self, kind: str, key: str) -> None:
        """Written with the next flush: until then the file itself says so, to whoever comes after a death."""
        self._arrived.add((kind, key))

    def drop(self, kind: str, key: str) -> None:
        with self.writing() as db:
            self._drop(db, kind, key)

    def _drop(self, db: sqlite3.Connection, kind: str, key: str) -> bool:
        self._used.pop((kind, key), None)
        self._arrived.discard((kind, key))
        return db.execute("delete from held where kind = ? and key = ?", (kind, key)).rowcount > 0

    def let_go(self, kind: str, key: str, leave: Callable[[], bool]) -> bool:
        """Whether a row went. `leave` takes its files out of sight at the same time, or says that they stay; it is not asked
        about what is being filled, whose row must stay."""
        with self.writing() as db:
            self._flush(db)
            row = db.execute("select filling from held where kind = ? and key = ?", (kind, key)).fetchone()
            if (row is not None and row[0]) or not leave():
                return False
            return self._drop(db, kind, key)

    def adopt(self, found: Iterable[tuple[str, int]], now: float) -> None:
        """Parts that are there without a row, as when the books were lost: nobody's, and so the first to go."""
        known = {key for (key,) in self.ask("select key from held where kind = ?", PART)}
        rows = [(PART, digest, "", size, 1, now, now, 0) for digest, size in found if digest not in known]
        if rows:
            with self.writing() as db:
                db.executemany("insert or ignore into held values (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    # ── being used ──

    def touch(self, kind: str, key: str, now: float) -> None:
        """Written with the next flush: a read must not wait for a disk."""
        self._used[kind, key] = now

    def flush(self) -> None:
        if self._used or self._arrived:
            with self.writing() as db:
                self._flush(db)

    def _flush(self, db: sqlite3.Connection) -> None:
        used, self._used = self._used, {}
        arrived, self._arrived = self._arrived, set()
        db.executemany("update held set filling = 0 where kind = ? and key = ?", list(arrived))
        db.executemany(
            "update held set used = max(used, ?) where kind = ? and key = ?",
            [(when, kind, key) for (kind, key), when in list(used.items())],
        )

    # ── being looked at ──

    def _settle(self) -> None:
        with suppress(NoRoom):  # a full disk: what has arrived is found by `recover`
            self.flush()

    def entries(self, dataset: str | None = None) -> list[Entry]:
        """All that has arrived, the oldest first."""
        self._settle()
        rows = self.ask(
            "select kind, key, dataset, bytes, inodes, used from held where not filling"
            " and (?1 is null or dataset = ?1) order by used, kind, key",
            dataset,
        )
        return [Entry(kind, key, of, Room(held, inodes), used) for kind, key, of, held, inodes, used in rows]

    def unfinished(self) -> list[tuple[str, str]]:
        self._settle()
        return [(kind, key) for kind, key in self.ask("select kind, key from held where filling")]

    def keys(self, kind: str) -> set[str]:
        self._settle()
        return {key for (key,) in self.ask("select key from held where kind = ? and not filling", kind)}

    def totals(self) -> dict[str, Room]:
        rows = self.ask("select dataset, bytes, inodes from totals where bytes or inodes order by dataset")
        return {dataset: Room(held, inodes) for dataset, held, inodes in rows}

    def total(self) -> Room:
        return sum(self.totals().values(), start=NOTHING)


def _opened(path: Path) -> sqlite3.Connection:
    """The database, made whole or not at all."""
    db = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
    try:
        db.execute("pragma journal_mode = persist")  # a write-ahead log cannot be opened on a full disk
        db.execute("pragma synchronous = normal")
        db.execute("begin immediate")
        if db.execute("pragma user_version").fetchone()[0] == 0:
            for statement in _statements(SCHEMA):
                db.execute(statement)
            db.execute(f"pragma user_version = {FORMAT}")
        db.execute("commit")
        for table in ("totals", "grants"):
            db.execute(f"select * from {table}").fetchall()  # noqa: S608 — damage is noticed now rather than later
    except BaseException:
        db.close()
        raise
    return db


def _statements(schema: str) -> Iterator[str]:
    """One by one, since executescript commits."""
    pending = ""
    for line in schema.splitlines():
        pending += line + "\n"
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
