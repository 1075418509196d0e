"""Create the table of requests' outcomes."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "penstock_requests",
        sa.Column("ledger", sa.Text, primary_key=True),
        sa.Column("request", sa.LargeBinary, primary_key=True),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
    )
    op.create_index("penstock_requests_at", "penstock_requests", ["ledger", "at"])
