"""Jobs belong to projects."""

import sqlalchemy as sa
from alembic import op

from weft.store.schema import word

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("resources", sa.Column("project", word(63)))


def downgrade() -> None:
    op.drop_column("resources", "project")
