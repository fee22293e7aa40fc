"""What a job asks for, in its row: lists show it without reading every spec."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("resources", sa.Column("cpus", sa.Float()))
    op.add_column("resources", sa.Column("gpus", sa.Float()))


def downgrade() -> None:
    op.drop_column("resources", "gpus")
    op.drop_column("resources", "cpus")
