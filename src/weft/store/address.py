"""A PostgreSQL's address: a URL as libpq reads it, and as much of it as may be shown or kept."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, urlencode

from weft.store.database import StoreError

SCHEMES = ("postgresql://", "postgres://")
PLACE = ("user", "host", "port", "dbname")
SECRET = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")


class Unreadable(StoreError):
    """No address. What it is is not repeated: some of it may be a password."""

    def __init__(self) -> None:
        super().__init__(
            "this is no postgresql:// URL that can be read; write postgresql://USER@HOST/DATABASE, and special characters of "
            "a name or a password as %XX (@ is %40, / is %2F, % is %25)"
        )


def read(url: str) -> dict[str, str]:
    """What libpq takes from it, by libpq's names. Unreadable also if a part of a password may have got among the other parts."""
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict
    except ImportError:
        raise StoreError(
            "a PostgreSQL database needs psycopg: pip install 'weft[postgres]', or leave --database out for SQLite"
        ) from None
    authority, _, rest = url.partition("://")[2].partition("/")
    if not url.startswith(SCHEMES) or authority.count("@") > 1 or "@" in rest:
        raise Unreadable
    try:
        found = {name: str(value) for name, value in conninfo_to_dict(url).items()}
    except (psycopg.Error, ValueError):
        raise Unreadable from None
    if not all(port.isdecimal() for port in found.get("port", "").split(",") if port):
        raise Unreadable
    return found


def shown(url: str) -> str:
    """For people: who, and where."""
    return _written({name: value for name, value in read(url).items() if name in PLACE})


def without_secrets(url: str) -> str:
    """To be used again, with the passwords from elsewhere."""
    return _written({name: value for name, value in read(url).items() if name not in SECRET})


def secrets_of(url: str) -> list[str]:
    return [value for name, value in read(url).items() if name in SECRET and value]


def _written(parts: Mapping[str, str]) -> str:
    user = f"{quote(parts['user'], safe='')}@" if "user" in parts else ""
    name = f"/{quote(parts['dbname'], safe='')}" if "dbname" in parts else ""
    query = urlencode({key: parts[key] for key in parts if key not in PLACE}, quote_via=quote, safe="")
    hosts, ports = parts.get("host", "").split(","), parts.get("port", "").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    places = (f"{_host(host)}{port and f':{port}'}" for host, port in zip(hosts, ports, strict=False))
    return f"postgresql://{user}{','.join(places)}{name}{query and f'?{query}'}"


def _host(host: str) -> str:
    return f"[{quote(host, safe=':')}]" if ":" in host else quote(host, safe="")
