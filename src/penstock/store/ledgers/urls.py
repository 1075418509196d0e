"""Open stores by URL: `sqlite:PATH`, `postgresql://user@host/database`, and `memory:`."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from penstock.errors import FailedError, MalformedError
from penstock.store.ledgers.ledgers import Store
from penstock.store.ledgers.memory import MemoryRecords
from penstock.store.ledgers.sql import SqliteRecords
from penstock.store.limits import STORE_LIMITS, StoreLimits

if TYPE_CHECKING:
    from penstock.store.ledgers.sql import SqlRecords

_SQLITE: Final = "sqlite:"
_POSTGRESQL: Final = ("postgresql://", "postgres://")
_MEMORY: Final = "memory:"


def open_store(url: str, *, create: bool = False, limits: StoreLimits = STORE_LIMITS) -> Store:
    """Open a store; with `create`, create it if it does not exist. An older form is not migrated.

    Raises `MalformedError` (`store.url`), `FailedError` (`store.missing`, `store.extra`, `store.failed`) and
    `RefusedError` (`store.old`, `store.newer`).
    """
    if url == _MEMORY:
        return Store(MemoryRecords(), limits=limits)
    records = open_database(url, create=create, limits=limits)
    try:
        if create and not records.version:
            records.migrate()
        records.verify_form()
    except BaseException:
        records.close()
        raise
    return Store(records, limits=limits)


def shown_url(url: str) -> str:
    """Return the URL of a store without the password. Raises `MalformedError` (`store.url`)."""
    if not url.startswith(_POSTGRESQL):
        return url
    return _parsed(url).set(password=None, query={}).render_as_string()


def open_database(url: str, *, create: bool = False, limits: StoreLimits = STORE_LIMITS) -> "SqlRecords":
    """Connect to a database of any form, for `migrate`. Raises as `open_store`, except about the form."""
    if url.startswith(_SQLITE):
        path = url.removeprefix(_SQLITE)
        if not path or path.startswith("//") or "\0" in path:
            raise _no_url()
        return SqliteRecords(Path(path), create=create, limits=limits)
    if not url.startswith(_POSTGRESQL):
        raise _no_url()
    parsed = _parsed(url)
    try:
        adapter = import_module("penstock.store.ledgers.postgres")
    except ModuleNotFoundError as error:
        raise FailedError(
            "store.extra",
            f"this store needs `{error.name}`, which is not installed",
            hint="pip install 'penstock[postgres]'",
        ) from error
    records: SqlRecords = adapter.PostgresRecords(parsed, shown_url(url), limits=limits)
    return records


def _parsed(url: str) -> URL:
    try:
        return make_url(url.replace("postgres://", "postgresql://", 1))
    except (ArgumentError, ValueError):
        # `from None`: the cause may contain the password.
        raise _no_url() from None


def _no_url() -> MalformedError:
    # Not quoted, because it may contain a password.
    return MalformedError(
        "store.url",
        "this URL does not name a store",
        hint="write `sqlite:PATH`, `memory:` or `postgresql://user@host/database` (with the password in ~/.pgpass)",
    )
