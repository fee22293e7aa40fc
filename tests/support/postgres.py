"""A real PostgreSQL server on a Unix socket, in a folder of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

PASSWORD = "t0ps3cret"
RULES = """
local all trusted trust
local all all scram-sha-256
host all all samenet scram-sha-256
"""
SETTINGS = "-c fsync=off -c full_page_writes=off -c shared_buffers=16MB -c lc_messages=C"


class NotInstalled(Exception):
    """There is no PostgreSQL on this machine."""


class Postgres:
    def __init__(self, folder: Path, programs: Path, address: str = ""):
        self.folder, self._programs, self._address = folder, programs, address

    @property
    def url(self) -> str:
        return f"postgresql:///postgres?host={quote(str(self.folder), safe='')}"

    def run(self, program: str, *arguments: str) -> None:
        """As an ordinary user: PostgreSQL refuses to be run by root."""
        other: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            other = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        command = [str(self._programs / program), "-D", str(self.folder / "data"), *arguments]
        done = subprocess.run(
            command,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=100,
            check=False,
            **other,
        )
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stderr}")

    def start(self) -> None:
        self.run(
            "pg_ctl",
            "-w",
            "-t",
            "90",
            "-l",
            str(self.folder / "log"),
            "-o",
            f"{SETTINGS} -c listen_addresses={self._address} -k {self.folder}",
            "start",
        )

    def stop(self) -> None:
        self.run("pg_ctl", "-m", "immediate", "-w", "stop")

    def connect(self, database: str = "postgres") -> Any:
        import psycopg

        return psycopg.connect(self.url, dbname=database, user="postgres", password=PASSWORD, autocommit=True)

    def do(self, *statements: str) -> None:
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement)


def programs() -> Path:
    found = shutil.which("pg_ctl")
    if found is not None:
        return Path(found).resolve().parent
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    if not places:
        raise NotInstalled("PostgreSQL is not installed here (Debian: apt-get install postgresql)")
    return places[-1].parent


@contextmanager
def postgres(address: str = "") -> Iterator[Postgres]:
    """On a Unix socket; with an address of this machine there, too."""
    where = programs()
    with tempfile.TemporaryDirectory(prefix="weft-pg-") as name:
        folder = Path(name)
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        made = Postgres(folder, where, address)
        password = folder / "password"
        password.write_text(PASSWORD + "\n")
        password.chmod(0o644)
        made.run(
            "initdb",
            "-N",
            "-U",
            "postgres",
            "-A",
            "scram-sha-256",
            f"--pwfile={password}",
            "-E",
            "UTF8",
            "--locale=C",
        )
        hba = folder / "data" / "pg_hba.conf"
        hba.write_text(RULES)
        made.start()
        try:
            yield made
        finally:
            made.stop()
