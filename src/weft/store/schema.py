"""The tables, as SQLAlchemy Core knows them. Changed only together with a migration."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, Index, Integer, MetaData, String, Table, Text

HEAD = "0004"
"""The newest migration: a database at this version opens without loading Alembic."""

metadata = MetaData()

BigId = BigInteger().with_variant(Integer, "sqlite")

resources = Table(
    "resources",
    metadata,
    Column("uid", String(32), primary_key=True),
    Column("kind", String(63), nullable=False),
    Column("name", String(63), nullable=False),
    Column("state", String(16), nullable=False),
    Column("type", String(63), nullable=False),
    Column("owner", String(253), nullable=False),
    Column("queue", String(63), nullable=False),
    Column("project", String(63)),
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
    Column("submit_key", String(255)),
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
    Column("uid", String(32), nullable=False),
    Column("job", String(63), nullable=False),
    Column("type", String(32), nullable=False),
    Column("state", String(16)),
    Column("previous", String(16)),
    Column("cause", Text, nullable=False),
    Column("actor", String(253), nullable=False),
    Column("code", String(32)),
    Index("events_uid", "uid", "seq"),
)

metrics = Table(
    "metrics",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("uid", String(32), nullable=False),
    Column("task", String(80), nullable=False),
    Column("name", String(253), nullable=False),
    Column("step", BigInteger),
    Column("time", Float, nullable=False),
    Column("value", Float),
    Column("special", String(4)),
    Index("metrics_uid", "uid", "id"),
)

metric_offsets = Table(
    "metric_offsets",
    metadata,
    Column("uid", String(32), primary_key=True),
    Column("task", String(80), primary_key=True),
    Column("offset", BigInteger, nullable=False),
)
