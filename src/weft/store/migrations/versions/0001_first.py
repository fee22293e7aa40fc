"""The first tables: resources, events, metrics."""

import sqlalchemy as sa
from alembic import op

from weft.store.schema import word

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

BIG_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "resources",
        sa.Column("uid", word(32), primary_key=True),
        sa.Column("kind", word(63), nullable=False),
        sa.Column("name", word(63), nullable=False),
        sa.Column("state", word(16), nullable=False),
        sa.Column("type", word(63), nullable=False),
        sa.Column("owner", word(253), nullable=False),
        sa.Column("queue", word(63), nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("queued", sa.Float),
        sa.Column("started", sa.Float),
        sa.Column("finished", sa.Float),
        sa.Column("expires", sa.Float),
        sa.Column("tasks", sa.Integer, nullable=False),
        sa.Column("restarts", sa.Integer, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("submit_key", word(255)),
        sa.Column("metadata", sa.Text, nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
    )
    op.create_index("resources_name", "resources", ["kind", "name"], unique=True)
    op.create_index("resources_submit_key", "resources", ["kind", "submit_key"], unique=True)
    op.create_index("resources_created", "resources", ["kind", "created", "uid"])
    op.create_index("resources_state", "resources", ["kind", "state", "created", "uid"])
    op.create_index("resources_expires", "resources", ["expires"])
    op.create_table(
        "events",
        sa.Column("seq", BIG_ID, primary_key=True, autoincrement=False),
        sa.Column("time", sa.Float, nullable=False),
        sa.Column("uid", word(32), nullable=False),
        sa.Column("job", word(63), nullable=False),
        sa.Column("type", word(32), nullable=False),
        sa.Column("state", word(16)),
        sa.Column("previous", word(16)),
        sa.Column("cause", sa.Text, nullable=False),
        sa.Column("actor", word(253), nullable=False),
    )
    op.create_index("events_uid", "events", ["uid", "seq"])
    op.create_table(
        "metrics",
        sa.Column("id", BIG_ID, primary_key=True, autoincrement=True),
        sa.Column("uid", word(32), nullable=False),
        sa.Column("task", word(80), nullable=False),
        sa.Column("name", word(253), nullable=False),
        sa.Column("step", sa.BigInteger),
        sa.Column("time", sa.Float, nullable=False),
        sa.Column("value", sa.Float),
        sa.Column("special", word(4)),
    )
    op.create_index("metrics_uid", "metrics", ["uid", "id"])
    op.create_table(
        "metric_offsets",
        sa.Column("uid", word(32), primary_key=True),
        sa.Column("task", word(80), primary_key=True),
        sa.Column("offset", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    for table in ("metric_offsets", "metrics", "events", "resources"):
        op.drop_table(table)
