"""Which database a home's server uses, and that the two belong together: a home has the files of the jobs that a database knows."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import delete, insert

from weft.control.declared import creation_row
from weft.server.home import Home, HomeError
from weft.store import address
from weft.store.changes import Create
from weft.store.postgres import PostgreSQL
from weft.store.schema import resources
from weft.store.sqlite import SQLite
from weft.store.store import Store

VARIABLE = "WEFT_DATABASE"
OWN = "sqlite"
"""What says that the database is in the home again."""
KIND, NAME = "Home", "home"


def chosen(given: str | None, home: Home, environ: Mapping[str, str] = os.environ) -> Path | str:
    """SQLite in the home, or a PostgreSQL by its URL: as given, else as the last time. Its password is kept nowhere."""
    url = _named(given, environ.get(VARIABLE)) or home.last("database").get("url") or OWN
    if url == OWN:
        if home.last("database").get("url") is not None:
            raise HomeError(_elsewhere(home, "the home's own SQLite"))
        return home.database
    name = address.shown(url)
    if home.database.exists():
        raise HomeError(_elsewhere(home, name))
    return url


def _named(given: str | None, variable: str | None) -> str | None:
    """The argument goes first; the variable may say the same with a password."""
    plain, other = _readable(given, "--database"), _readable(variable or None, VARIABLE)
    if given is not None and given != OWN and address.secrets_of(given):
        raise HomeError(
            f"--database: a password in an argument can be read by all on this machine; set PGPASSWORD, or {VARIABLE} to the whole URL"
        )
    return variable if other is not None and plain in (None, other) else given


def _readable(url: str | None, where: str) -> str | None:
    """Without what is secret; HomeError if it is no URL."""
    if url is None or url == OWN:
        return url
    try:
        return address.without_secrets(url)
    except address.Unreadable as problem:
        raise HomeError(f"{where}: {problem}; or leave it out for SQLite") from None


def _elsewhere(home: Home, new: str) -> str:
    old = _before(home) or str(home.database)
    return (
        f"the jobs of {home.path} are in {old}; to have them in {new}: weft backup --files FILE, then with another WEFT_HOME "
        "weft restore FILE --database …"
    )


def _before(home: Home) -> str | None:
    last = home.last("database").get("url")
    return None if last is None else address.shown(last)


def check_there(place: Path | str, home: Home) -> None:
    """Raise HomeError if the home's own database is gone, and files of its jobs are not."""
    if isinstance(place, Path) and not place.exists():
        _check_unused(home, str(place))


async def belong_together(store: Store, home: Home, url: str) -> None:
    """Raise HomeError if the database is another home's; an empty one becomes this home's."""
    row = store.resource(KIND, NAME)
    if row is None and store.uids():
        raise HomeError(f"database {store.place} has jobs, and does not say of which home; name another")
    if row is None:
        _check_unused(home, store.place)
        await store.write([Create(_row(home))], refusable=True)
    elif row.uid != home.identity():
        raise HomeError(
            f"database {store.place} is that of another home ({row.uid}, this is {home.identity()}); name another database. If that "
            f"home is lost for ever and this one is to take its place: weft restore, or write its id into {home.path}/instance.json"
        )
    home.remember("database", {"url": address.without_secrets(url)})


def _check_unused(home: Home, empty: str) -> None:
    """An empty database knows none of the jobs, whose files would be taken for leftovers and removed."""
    jobs = [path for path in (home.path / "jobs").iterdir() if path.is_dir() and path.name != "lost+found"]
    before = _before(home)
    if before is None and not jobs:
        return
    has = f"has its jobs in {before}" if before is not None else "has files of jobs"
    raise HomeError(
        f"database {empty} is empty, but {home.path} {has}; nothing was changed. Name the database that knows them, with "
        f"--database or {VARIABLE}; or bring a backup back, with another WEFT_HOME: weft restore FILE --database …; or begin anew "
        "with another WEFT_HOME"
    )


def restore(copy: Path, home: Home, url: str) -> None:
    """Fill an empty database with a backup's, as this home's."""
    kept = SQLite(copy)
    with kept.engine.begin() as connection:
        connection.execute(delete(resources).where(resources.c.kind == KIND))
        connection.execute(insert(resources), [_row(home)])
    kept.close()
    database = PostgreSQL(url)
    try:
        home.remember("database", {"url": address.without_secrets(url)})
        database.fill(copy)
    except BaseException:
        (home.path / "database.json").unlink(missing_ok=True)
        raise
    finally:
        database.close()


def _row(home: Home) -> dict[str, Any]:
    about = {"metadata": "{}", "spec": "{}", "owner": ""}
    return creation_row(KIND, home.identity(), NAME, time.time(), about)
