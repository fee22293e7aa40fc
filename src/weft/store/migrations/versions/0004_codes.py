"""What is wrong, as a word for programs, in the event log."""

import sqlalchemy as sa
from alembic import op

from weft.store.schema import word

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("events", sa.Column("code", word(32)))


def downgrade() -> None:
    op.drop_column("events", "code")
