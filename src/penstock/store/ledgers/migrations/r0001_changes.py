"""Create the tables of ledgers and changes. Triggers refuse to alter a change."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_SQLITE = """
CREATE TRIGGER penstock_changes_keep_{what} BEFORE {what} ON penstock_changes
BEGIN SELECT RAISE(ABORT, 'changes are kept as they are'); END
"""
_POSTGRESQL = (
    """
CREATE FUNCTION penstock_keep() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'changes are kept as they are'; END $$
""",
    """
CREATE TRIGGER penstock_changes_keep BEFORE UPDATE OR DELETE OR TRUNCATE ON penstock_changes
FOR EACH STATEMENT EXECUTE FUNCTION penstock_keep()
""",
)


def upgrade() -> None:
    """Create the tables, and the triggers that refuse to alter changes."""
    op.create_table(
        "penstock_ledgers",
        sa.Column("ledger", sa.Text, primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "penstock_changes",
        sa.Column("ledger", sa.Text, primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("who", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("before", sa.LargeBinary),
        sa.Column("after", sa.LargeBinary),
        sa.Column("hash", sa.LargeBinary, nullable=False),
    )
    op.create_index("penstock_changes_at", "penstock_changes", ["ledger", "at", "number"])
    if op.get_bind().dialect.name == "sqlite":
        steps: tuple[str, ...] = tuple(_SQLITE.format(what=what) for what in ("update", "delete"))
    else:
        steps = _POSTGRESQL
    for step in steps:
        op.execute(step)
