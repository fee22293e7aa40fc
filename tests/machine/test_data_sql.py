"""The rows of a query, from a real PostgreSQL: exact, of one moment, and read-only."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.postgres import PASSWORD, NotInstalled, Postgres, postgres
from support.samples import opened
from weft.data.errors import DataError, Denied, Missing, NoRoom, Refused, Unreachable
from weft.data.ingest import ingest
from weft.data.patience import ONCE, Patience
from weft.data.sources import make
from weft.data.sources.sql import SqlSource
from weft.data.store import Store

pytestmark = pytest.mark.machine
RIGHT = {"user": "postgres", "password": PASSWORD}


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    try:
        with postgres() as made:
            yield made
    except NotInstalled as problem:
        pytest.skip(str(problem))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def source(
    database: Postgres,
    query: str,
    rows: int = 1,
    credentials: dict[str, str] = RIGHT,
    patience: Patience = ONCE,
) -> SqlSource:
    made = make({"sql": {"url": database.url, "query": query, "rows": rows}}, credentials, patience)
    assert isinstance(made, SqlSource)
    return made


def lines(source: SqlSource) -> dict[str, bytes]:
    return {item.name: b"".join(source.read(item)) for item in source.objects()}


def value(database: Postgres, expression: str) -> Any:
    (line,) = lines(source(database, f"select {expression} as v")).values()
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    return json.loads(line)["v"]


def test_rows_become_lines_and_so_many_of_them_a_sample(database: Postgres, store: Store) -> None:
    query = "select i as id, 'row ' || i as name from generate_series(1, 7) i order by i"
    made = ingest(source(database, query, rows=3), store, "k")
    content = dict(opened(store, made.version))
    assert list(content) == ["00000000.jsonl", "00000001.jsonl", "00000002.jsonl"]
    assert content["00000002.jsonl"] == b'{"id":7,"name":"row 7"}\n'
    assert [json.loads(line)["id"] for data in content.values() for line in data.splitlines()] == [
        *range(1, 8)
    ]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("42", 42),
        ("9223372036854775807::int8", 2**63 - 1),
        ("0.1::float8", 0.1),
        ("1e300::float8", 1e300),
        ("'NaN'::float8", "NaN"),
        ("'-Infinity'::numeric", "-Infinity"),
        ("true", True),
        ("false", False),
        ("null::text", None),
        ("'quote\" \\ ü 😀' || chr(10) || chr(9)", 'quote" \\ ü 😀\n\t'),
        ("'\\x00ff'::bytea", "AP8="),
        ("timestamp '2024-05-01 12:30:00.25'", "2024-05-01T12:30:00.25"),
        ("timestamptz '2024-05-01 12:30:00+02'", "2024-05-01T10:30:00+00:00"),
        ("timestamptz 'infinity'", "infinity"),
        ("date '2024-05-01'", "2024-05-01"),
        ("interval '1 day 2 hours'", "P1DT2H"),
        ('\'{"a": [1, null],\n "b": 1.50}\'::json', {"a": [1, None], "b": 1.5}),
        ("'[1e2]'::jsonb", [100]),
        ("array[1, null, 3]", [1, None, 3]),
        ("array[array['a'], array['b\"']]", [["a"], ['b"']]),
        ("array['\\xff'::bytea]", ["/w=="]),
        ("'6b1f8a1e-0000-4000-8000-000000000001'::uuid", "6b1f8a1e-0000-4000-8000-000000000001"),
        ("int4range(1, 5)", "[1,5)"),
        ("point(1, 2)", "(1,2)"),
        ("row(1, 'a')", "(1,a)"),
        ("'127.0.0.1'::inet", "127.0.0.1"),
    ],
)
def test_values_are_what_they_were(database: Postgres, expression: str, expected: object) -> None:
    assert value(database, expression) == expected


def test_no_number_is_rounded(database: Postgres) -> None:
    (line,) = lines(
        source(database, "select 12345678901234567890.123456789012345678901::numeric as v")
    ).values()
    assert line == b'{"v":12345678901234567890.123456789012345678901}\n'


def test_the_same_rows_are_the_same_version_whatever_the_session_is_set_to(
    database: Postgres, store: Store
) -> None:
    query = "select date '2024-05-01' as d, timestamptz '2024-05-01 12:00:00+00' as t, 1::float8 / 3 as f, '\\x61ff'::bytea as b"
    first = ingest(source(database, query), store, "k")
    database.do(
        "alter role postgres set timezone = 'Asia/Tokyo'",
        "alter role postgres set datestyle = 'German'",
        "alter role postgres set extra_float_digits = 0",
        "alter role postgres set bytea_output = 'escape'",
    )
    try:
        second = ingest(source(database, query), store, "other")
    finally:
        database.do("alter role postgres reset all")
    assert (second.version, second.new) == (first.version, False)
    assert ingest(source(database, query.replace("/ 3", "/ 7")), store, "k").version != first.version


def test_text_of_any_encoding_is_utf8(database: Postgres) -> None:
    database.do("drop database if exists latin", "create database latin encoding LATIN1 template template0")
    url = database.url.replace("/postgres?", "/latin?")
    latin = make({"sql": {"url": url, "query": "select chr(252) as ü"}}, RIGHT, ONCE)
    assert isinstance(latin, SqlSource)
    assert lines(latin) == {"00000000.jsonl": '{"ü":"ü"}\n'.encode()}


def test_what_is_read_is_of_one_moment(database: Postgres) -> None:
    database.do("drop table if exists t", "create table t as select i from generate_series(1, 5) i")
    reading = source(database, "select i from t order by i")
    before = list(reading.objects())
    database.do("update t set i = i + 100")
    assert b"".join(b"".join(reading.read(item)) for item in before).count(b"10") == 0
    after = source(database, "select i from t order by i")
    assert {item.mark for item in after.objects()}.isdisjoint(item.mark for item in before)
    with pytest.raises(Missing, match="list the source again"):
        list(after.read(before[0]))


def test_a_query_only_reads_and_is_one(database: Postgres) -> None:
    database.do(
        "drop table if exists kept",
        "create table kept as select 1 as i",
        "create or replace function emptied() returns int language sql as 'delete from kept; select 1'",
    )
    for query in (
        "delete from kept returning i",
        "with gone as (delete from kept returning i) select * from gone",
        "select 1; commit; drop table kept",
        "select emptied() as i",
        "select 1 /",
    ):
        with pytest.raises(DataError):
            lines(source(database, query))
    assert lines(source(database, "select i from kept")) == {"00000000.jsonl": b'{"i":1}\n'}


def test_columns_of_one_name_are_refused(database: Postgres) -> None:
    with pytest.raises(Refused, match=r"column 'a' twice; name them apart"):
        lines(source(database, "select 1 as a, 2 as a"))


def test_percent_signs_mean_themselves(database: Postgres) -> None:
    assert value(database, "'100%s' like '100\\%%'") is True


def test_no_rows_are_no_samples(database: Postgres) -> None:
    assert lines(source(database, "select 1 as a where false")) == {}


# ── who may ──


def test_errors_say_what_is_wrong_and_no_password(database: Postgres) -> None:
    wrong = {"user": "postgres", "password": "wr0ngs3cret"}
    for query, credentials, error, why in (
        ("select 1", wrong, Denied, "password authentication failed"),
        ("select * from nowhere", RIGHT, Missing, 'relation "nowhere" does not exist'),
        ("select 1/0 as a", RIGHT, Refused, "division by zero"),
        ("selec 1", RIGHT, Refused, "syntax error"),
    ):
        with pytest.raises(error, match=why) as caught:
            lines(source(database, query, credentials=credentials))
        assert "s3cret" not in str(caught.value)
    url = database.url.replace("/postgres?", "/nowhere?")
    with pytest.raises(Missing, match='database "nowhere" does not exist'):
        list(make({"sql": {"url": url, "query": "select 1"}}, RIGHT, ONCE).objects())


def test_a_socket_opens_by_password_and_not_because_of_who_the_server_is(
    database: Postgres, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    database.do("drop role if exists trusted", "create role trusted login password 'x'")
    with pytest.raises(Denied, match="authentication"):
        lines(source(database, "select 1", credentials={"user": "trusted", "password": "x"}))
    with pytest.raises(Refused, match="needs a password"):
        source(database, "select 1", credentials={"user": "postgres"})
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    monkeypatch.setenv("PGUSER", "postgres")
    with pytest.raises(Refused, match="no user is given"):
        source(database, "select 1", credentials={})


@pytest.mark.parametrize(
    "url",
    [
        "postgresql:///x",
        "mysql://h/x",
        "postgresql://h/x?passfile=/root/.pgpass",
        "postgresql://h/x?sslkey=/etc/key",
        "postgresql://h/x?options=-c%20role=x",
    ],
)
def test_a_url_cannot_name_files_or_nobody(url: str) -> None:
    with pytest.raises(Refused):
        make({"sql": {"url": url, "query": "select 1"}}, RIGHT)


# ── the server goes ──


def test_a_server_that_is_gone_is_unreachable_and_read_when_it_is_back(
    database: Postgres, store: Store
) -> None:
    waits: list[float] = []
    database.stop()
    try:
        with pytest.raises(Unreachable, match="try again later"):
            lines(source(database, "select 1", patience=Patience(tries=3, sleep=waits.append)))
        assert len(waits) == 2
    finally:
        database.start()

    def kill(_: float) -> None:
        database.start()

    reading = source(
        database,
        "select i, repeat('x', 1000) as pad from generate_series(1, 20000) i order by i",
        rows=1000,
        patience=Patience(tries=2, sleep=kill),
    )
    spool = reading._spool

    def dying(connection: Any, file: Any) -> Any:
        reading._spool = spool  # type: ignore[method-assign]
        database.stop()
        return spool(connection, file)

    reading._spool = dying  # type: ignore[method-assign]
    made = ingest(reading, store, "k")
    assert made.samples == 20


def test_a_full_disk_is_said(database: Postgres, tmp_path: Path) -> None:
    if (
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", tmp_path], check=False).returncode
        != 0
    ):
        pytest.skip("a small disk cannot be mounted here")
    try:
        query = {"url": database.url, "query": "select repeat('x', 1000) as a from generate_series(1, 5000)"}
        with pytest.raises(NoRoom, match=f"no room in {tmp_path} for the rows"):
            list(make({"sql": query}, RIGHT, ONCE, scratch=tmp_path).objects())
        assert os.listdir(tmp_path) == []
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_results_are_held_on_disk_and_not_in_memory(database: Postgres, tmp_path: Path) -> None:
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    query = "select i, repeat(md5(i::text), 30000) as pad from generate_series(1, 200) i"
    reading = source(database, query)
    assert sum(item.size for item in reading.objects()) > 180_000_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10
    assert os.listdir(tmp_path) == []
