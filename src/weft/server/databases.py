"""Which database a home's server uses, and that the two belong together: a home has the files of the jobs that a database knows."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sqlalchemy import delete, insert

from weft.control.declared import creation_row
from weft.server.home import Home, HomeError
from weft.store.changes import Create
from weft.store.postgres import PostgreSQL, without_password
from weft.store.schema import resources
from weft.store.sqlite import SQLite
from weft.store.store import Store

VARIABLE = "WEFT_DATABASE"
OWN = "sqlite"
"""What says that the database is in the home again."""
KIND, NAME = "Home", "home"


def chosen(given: str | None, home: Home, environ: Mapping[str, str] = os.environ) -> Path | str:
    """SQLite in the home, or a PostgreSQL by its URL: as given, else as the last time. Its password is kept nowhere."""
    if given is not None and _has_password(given):
        raise HomeError(
            f"--database: a password in an argument can be read by all on this machine; set PGPASSWORD, or {VARIABLE} to the whole URL"
        )
    named = environ.get(VARIABLE) or given
    url = named or home.last("database").get("url") or OWN
    if url == OWN:
        if home.last("database").get("url") is not None:
            raise HomeError(_elsewhere(home, "the home's own SQLite"))
        return home.database
    if not url.startswith(("postgresql://", "postgres://")):
        raise HomeError(
            f"--database {without_password(url)}: write postgresql://USER@HOST/DATABASE, or leave it out for SQLite"
        )
    if home.database.exists():
        raise HomeError(_elsewhere(home, without_password(url)))
    return url


def _elsewhere(home: Home, new: str) -> str:
    old = home.last("database").get("url") or str(home.database)
    return (
        f"the jobs of {home.path} are in {old}; to have them in {new}: weft backup --files FILE, then with another WEFT_HOME "
        "weft restore FILE --database …"
    )


async def belong_together(store: Store, home: Home, url: str) -> None:
    """Raise HomeError if the database is another home's; an empty one becomes this home's."""
    row = store.resource(KIND, NAME)
    if row is None and store.uids():
        raise HomeError(f"database {store.place} has jobs, and does not say of which home; name another")
    if row is None:
        await store.write([Create(_row(home))], refusable=True)
    elif row.uid != home.identity():
        raise HomeError(
            f"database {store.place} is that of another home ({row.uid}, this is {home.identity()}); name another database. If that "
            f"home is lost for ever and this one is to take its place: weft restore, or write its id into {home.path}/instance.json"
        )
    home.remember("database", {"url": without_password(url)})


def restore(copy: Path, home: Home, url: str) -> None:
    """Fill an empty database with a backup's, as this home's."""
    kept = SQLite(copy)
    with kept.engine.begin() as connection:
        connection.execute(delete(resources).where(resources.c.kind == KIND))
        connection.execute(insert(resources), [_row(home)])
    kept.close()
    database = PostgreSQL(url)
    try:
        database.fill(copy)
    finally:
        database.close()
    home.remember("database", {"url": without_password(url)})


def _row(home: Home) -> dict[str, Any]:
    about = {"metadata": "{}", "spec": "{}", "owner": ""}
    return creation_row(KIND, home.identity(), NAME, time.time(), about)


def _has_password(url: str) -> bool:
    parts = urlsplit(url)
    return parts.password is not None or "password" in parse_qs(parts.query)
