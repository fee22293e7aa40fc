"""The tables, as SQLAlchemy Core knows them. Changed only together with a migration."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, Index, Integer, MetaData, String, Table, Text

HEAD = "0004"
"""The newest migration: a database at this version opens without loading Alembic."""

metadata = MetaData()

BigId = BigInteger().with_variant(Integer, "sqlite")


def word(length: int) -> String:
    """About so long. SQLite does not enforce it, so PostgreSQL is not told of it."""
    return String(length).with_variant(Text(), "postgresql")


resources = Table(
    "resources",
    metadata,
    Column("uid", word(32), primary_key=True),
    Column("kind", word(63), nullable=False),
    Column("name", word(63), nullable=False),
    Column("state", word(16), nullable=False),
    Column("type", word(63), nullable=False),
    Column("owner", word(253), nullable=False),
    Column("queue", word(63), nullable=False),
    Column("project", word(63)),
    Column("priority", Integer, nullable=False),
    Column("created", Float, nullable=False),
    Column("queued", Float),
    Column("started", Float),
    Column("finished", Float),
    Column("expires", Float),
    Column("tasks", Integer, nullable=False),
    Column("cpus", Float),
    Column("gpus", Float),
    Column("restarts", Integer, nullable=False),
    Column("reason", Text),
    Column("submit_key", word(255)),
    Column("metadata", Text, nullable=False),
    Column("spec", Text, nullable=False),
    Column("status", Text, nullable=False),
    Index("resources_name", "kind", "name", unique=True),
    Index("resources_submit_key", "kind", "submit_key", unique=True),
    Index("resources_created", "kind", "created", "uid"),
    Index("resources_state", "kind", "state", "created", "uid"),
    Index("resources_expires", "expires"),
)

events = Table(
    "events",
    metadata,
    Column("seq", BigId, primary_key=True, autoincrement=False),
    Column("time", Float, nullable=False),
    Column("uid", word(32), nullable=False),
    Column("job", word(63), nullable=False),
    Column("type", word(32), nullable=False),
    Column("state", word(16)),
    Column("previous", word(16)),
    Column("cause", Text, nullable=False),
    Column("actor", word(253), nullable=False),
    Column("code", word(32)),
    Index("events_uid", "uid", "seq"),
)

metrics = Table(
    "metrics",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("uid", word(32), nullable=False),
    Column("task", word(80), nullable=False),
    Column("name", word(253), nullable=False),
    Column("step", BigInteger),
    Column("time", Float, nullable=False),
    Column("value", Float),
    Column("special", word(4)),
    Index("metrics_uid", "uid", "id"),
)

metric_offsets = Table(
    "metric_offsets",
    metadata,
    Column("uid", word(32), primary_key=True),
    Column("task", word(80), primary_key=True),
    Column("offset", BigInteger, nullable=False),
)
