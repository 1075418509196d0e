"""Check and migrate a database's schema. Steps cannot be undone: restore a backup instead."""

from functools import cache
from pathlib import Path
from typing import Any, Final

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import BigInteger, Column, Connection, Index, LargeBinary, MetaData, Table, Text, text

from penstock.errors import FailedError, RefusedError

# ----------------------------------------------------------------------------------------------------------------------
# The tables of record stores in SQL databases. How a database gets them, and from which form, is in `migrations`.


METADATA: Final = MetaData()
VERSION_TABLE: Final = "penstock_version"

LEDGERS: Final = Table(
    "penstock_ledgers",
    METADATA,
    Column("ledger", Text, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Column("at", BigInteger, nullable=False),
)
"""The head of each ledger: what writers compare and swap."""

CHANGES: Final = Table(
    "penstock_changes",
    METADATA,
    Column("ledger", Text, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("at", BigInteger, nullable=False),
    Column("who", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("before", LargeBinary),
    Column("after", LargeBinary),
    Column("hash", LargeBinary, nullable=False),
    Index("penstock_changes_at", "ledger", "at", "number"),
)
"""The changes, a row each; triggers refuse to alter one."""

SNAPSHOTS: Final = Table(
    "penstock_snapshots",
    METADATA,
    Column("ledger", Text, primary_key=True),
    Column("fold", Text, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("digest", LargeBinary, nullable=False),
)
"""States of folds, which are only a cache."""


# ----------------------------------------------------------------------------------------------------------------------
# Which form a database has, and how it gets the newest one. Steps are never undone: only a backup goes back.


_STEPS: Final = Path(__file__).parent / "migrations"
#: any number will do that nobody else locks
_LOCK: Final = 0x70656E73


def newest() -> str:
    """Return the form that this Penstock writes."""
    head = _script().get_current_head()
    return head or ""


def current(connection: Connection) -> str:
    """Return the form that a database has; empty where it has none of ours."""
    found = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_heads()
    return found[0] if found else ""


def verify_form(connection: Connection, url: str) -> None:
    """Check that a database has the form that this Penstock reads and writes.

    Raises `FailedError` (`store.missing`) and `RefusedError` (`store.old`, `store.newer`).
    """
    form = current(connection)
    if form == newest():
        return
    migrate_hint = f"`penstock store migrate {url}`"
    if not form:
        raise FailedError("store.missing", f"`{url}` holds no store", hint=f"{migrate_hint} makes one")
    verify_not_newer(form, url)
    raise RefusedError(
        "store.old",
        f"`{url}` has the form {form}, and this Penstock needs {newest()}",
        hint=f"back it up, then {migrate_hint}",
    )


def verify_not_newer(form: str, url: str) -> None:
    """Raise `RefusedError` (`store.newer`) for a form that this Penstock does not know."""
    if form and form not in {script.revision for script in _script().walk_revisions()}:
        raise RefusedError(
            "store.newer",
            f"`{url}` has the form {form[:40]}, and this Penstock knows {newest()} at most",
            hint="use the Penstock that wrote it, or a newer one",
        )


def migrate(connection: Connection, url: str, to: str = "head") -> tuple[str, str]:
    """Bring a database into a form, within the transaction of the caller; return the form before and after.

    Raises `RefusedError` (`store.newer`).
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    before = current(connection)
    verify_not_newer(before, url)

    def steps(revision: Any, _context: Any) -> Any:
        return _script()._upgrade_revs(to, revision)  # noqa: SLF001  # what Alembic's own command calls

    with EnvironmentContext(_config(), _script(), fn=steps, destination_rev=to) as environment:
        environment.configure(connection=connection, version_table=VERSION_TABLE)
        environment.run_migrations()
    return before, current(connection)


@cache
def _script() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_STEPS).replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    return config
