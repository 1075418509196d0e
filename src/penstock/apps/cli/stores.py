"""`penstock store` and `penstock log`: back up, restore and migrate stores, and show and verify their changes."""

from collections.abc import Mapping
from pathlib import Path

import click

from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.describe import instant_text, value_text
from penstock.apps.cli.shared.files import check_target
from penstock.apps.cli.shared.options import NamesOption
from penstock.apps.cli.shared.session import Verbs
from penstock.apps.cli.shared.stores import (
    STORE,
    check_lasting,
    counting,
    dry_run_option,
    head_data,
    head_text,
    heads_table,
    parse_heads,
)
from penstock.apps.cli.shared.terminal import fact_table, grid_table
from penstock.errors import FailedError, RefusedError
from penstock.store.ledgers.backups import put_back, read_backup, verify_room, write_backup
from penstock.store.ledgers.ledgers import EMPTY, Change, LedgerHead, Progress, Store, quiet
from penstock.store.ledgers.sql import newest
from penstock.store.ledgers.urls import open_database, open_store, shown_url

# ----------------------------------------------------------------------------------------------------------------------
# `penstock store`: back up, restore and migrate stores.


@click.group(cls=Verbs)
def store() -> None:
    """Back up, restore and migrate stores of changes.

    A store is a file (sqlite:PATH), or a database for several machines (postgresql://USER@HOST/DATABASE). Put passwords
    into ~/.pgpass or PGPASSWORD; they are never shown.
    """


@option_class
class _Show:
    store_url: str = argument(**STORE)
    output: str = output_option()


@command(store, example="penstock store show sqlite:rules.db")
def show(options: _Show) -> CommandAnswer:
    """Show the ledgers of STORE: the number of changes, when the last was made, and its hash."""
    with open_store(options.store_url) as opened:
        heads, form = opened.heads(), opened.records.version
    shown = [fact_table([("store", opened.url), ("form", form or "none")]), heads_table(heads)]
    return CommandAnswer({"store": opened.url, "form": form, "ledgers": _ledgers(heads)}, shown)


def _ledgers(heads: Mapping[str, LedgerHead]) -> list[dict[str, object]]:
    return [head_data(name, head) for name, head in heads.items()]


@option_class
class _Migrate:
    store_url: str = argument(**STORE)
    dry_run: bool = dry_run_option()
    output: str = output_option()


@command(store, example="penstock store migrate sqlite:rules.db --dry-run")
def migrate(options: _Migrate) -> CommandAnswer:
    """Migrate STORE to the schema that this Penstock needs, completely or not at all. Create it if it does not exist.

    Changes are not altered. The only way back is a backup, and an older Penstock refuses the migrated store: back it up
    first.
    """
    check_lasting(options.store_url)
    before, after = _migrated(options.store_url, dry_run=options.dry_run)
    url = shown_url(options.store_url)
    done = "would be" if options.dry_run else "is"
    if before == after:
        line = f"{url} has the form {after} already"
    else:
        line = f"{url} {done} of the form {after} now" if before else f"{url} {done} a new store of the form {after}"
    data = {"store": url, "before": before, "after": after, "written": not options.dry_run and before != after}
    return CommandAnswer(data, [line])


def _migrated(store_url: str, *, dry_run: bool) -> tuple[str, str]:
    try:
        database = open_database(store_url, create=not dry_run)
    except FailedError as error:
        if error.code != "store.missing":
            raise
        return "", newest()
    try:
        return database.migrate(dry_run=dry_run)
    finally:
        database.close()


@option_class
class _Backup:
    store_url: str = argument(**STORE)
    file: str = argument()
    overwrite: bool = option("--overwrite", is_flag=True, help="Replace a file that exists.")
    dry_run: bool = dry_run_option()
    output: str = output_option()


@command(store, example="penstock store backup sqlite:rules.db rules.backup")
def backup(options: _Backup) -> CommandAnswer:
    """Write all changes of STORE to FILE, which only you can read. Others can write to the store meanwhile.

    Everything is verified during the backup: a damaged store is not backed up. The file does not depend on the
    database, so it also moves a store from SQLite to PostgreSQL and back.
    """
    check_lasting(options.store_url)
    check_target(options.file, overwrite=options.overwrite)
    with open_store(options.store_url) as opened, counting("verified" if options.dry_run else "written") as progress:
        if options.dry_run:
            heads = opened.heads()
            for name, head in heads.items():
                opened.ledger(name).verify(head, progress)
        else:
            heads = write_backup(opened, Path(options.file), progress)
    line = f"{'would write' if options.dry_run else 'wrote'} {options.file}"
    data = {"store": opened.url, "file": options.file, "written": not options.dry_run, "ledgers": _ledgers(heads)}
    return CommandAnswer(data, [line, heads_table(heads)])


@option_class
class _Restore:
    file: str = argument()
    store_url: str = argument(**STORE)
    dry_run: bool = dry_run_option()
    output: str = output_option()


@command(store, example="penstock store restore rules.backup postgresql://ops@db.example/penstock --dry-run")
def restore(options: _Restore) -> CommandAnswer:
    """Restore all changes of the backup FILE into STORE, which is created if it does not exist.

    The whole file is verified before anything is written. Ledgers that STORE already has, change for change, are left
    as they are, so an interrupted restore is completed by running it again. A ledger with other changes is refused.
    """
    check_lasting(options.store_url)
    with counting("read" if options.dry_run else "restored") as progress:
        # The whole backup is read before a store is created for it.
        heads = read_backup(Path(options.file), progress if options.dry_run else quiet)
        if options.dry_run:
            _check_room(options.store_url, heads)
        else:
            with open_store(options.store_url, create=True) as opened:
                put_back(Path(options.file), heads, opened, progress)
    url = shown_url(options.store_url)
    line = f"{'would restore' if options.dry_run else 'restored'} {options.file} to {url}"
    data = {"store": url, "file": options.file, "written": not options.dry_run, "ledgers": _ledgers(heads)}
    return CommandAnswer(data, [line, heads_table(heads)])


def _check_room(store_url: str, heads: Mapping[str, LedgerHead]) -> None:
    """Check that a restore would be possible, and write nothing."""
    try:
        with open_store(store_url) as opened:
            verify_room(heads, opened)
    except FailedError as error:
        if error.code != "store.missing":
            raise


# ----------------------------------------------------------------------------------------------------------------------
# `penstock log`: show and verify the changes in a store.


_MANY = 50


@click.group(cls=Verbs)
def log() -> None:
    """Show and verify changes: what, who, when and why."""


@option_class
class _Verify:
    store_url: str = argument(**STORE)
    heads: tuple[str, ...] = option(
        "--head",
        multiple=True,
        metavar="HEAD",
        help="Compare with a head that you noted, as LEDGER:NUMBER:HASH. Can be repeated.",
    )
    output: str = output_option()


@command(
    log,
    example="""
penstock log verify sqlite:rules.db
penstock log verify postgresql://ops@db.example/penstock -o json
""",
)
def verify(options: _Verify) -> CommandAnswer:
    """Check that no change in STORE was altered. The exit status is 1 if one was, and the output names it.

    Each change contains the hash of the one before, so changes cannot be altered, removed or inserted unnoticed.
    Somebody with write access to the database can still replace a whole ledger: note its head elsewhere from time to
    time, and compare it with --head.

    STORE is sqlite:PATH or postgresql://USER@HOST/DATABASE. Put passwords into ~/.pgpass or PGPASSWORD.
    """
    known = parse_heads(options.heads)
    with open_store(options.store_url) as store, counting("verified") as progress:
        there = store.heads()
        found = {name: _verified(store, name, known.get(name, EMPTY), progress) for name in sorted({*there, *known})}
    problems = [one for one in found.values() if isinstance(one, RefusedError)]
    lines = [
        f"✓ {one.number} changes  {head_text(name, one)}" if isinstance(one, LedgerHead) else f"✗ {one.message}"
        for name, one in found.items()
    ]
    ledgers = [_verdict(name, one) for name, one in found.items()]
    data = {"ok": not problems, "store": store.url, "ledgers": ledgers}
    return CommandAnswer(data, lines or ["no ledgers yet"], next(iter(problems), None))


def _verified(store: Store, name: str, known: LedgerHead, progress: Progress) -> LedgerHead | RefusedError:
    try:
        return store.ledger(name).verify(known, progress)
    except RefusedError as error:
        return error


def _verdict(name: str, one: LedgerHead | RefusedError) -> dict[str, object]:
    if isinstance(one, LedgerHead):
        return {"ok": True, **head_data(name, one)}
    return {
        "ok": False,
        "ledger": name,
        "code": one.code,
        "reason": one.message,
        "number": one.fields.get("number"),
    }


@option_class
class _ShowLog:
    store_url: str = argument(**STORE)
    ledger: str = argument()
    first: int | None = option(
        "--from", type=click.IntRange(min=1), metavar="N", help="Show changes from this one on (default: the last 50)."
    )
    last: int | None = option(
        "--to", type=click.IntRange(min=1), metavar="N", help="Show changes up to this one (default: the newest)."
    )
    output: str = output_option()
    names: NamesOption


@command(log, "show", example="penstock log show sqlite:rules.db moderator --from 10 --to 20")
def show_log(options: _ShowLog) -> CommandAnswer:
    """Show changes of LEDGER: who, when, what kind and why. Without --from, show the last 50.

    -o json includes the states before and after, in hexadecimal.
    """
    names = options.names.load()
    with open_store(options.store_url) as store:
        found = store.ledger(options.ledger)
        end = min(options.last or found.head().number, found.head().number)
        changes = list(found.read(options.first or max(1, end - _MANY + 1), end))
    rows = [(str(one.number), instant_text(one.when), names.show(one.who), one.kind, one.why) for one in changes]
    data = {"store": store.url, "ledger": options.ledger, "changes": [change_data(change) for change in changes]}
    return CommandAnswer(data, [grid_table(("change", "when", "who", "kind", "why"), rows)])


def change_data(change: Change) -> dict[str, object]:
    """Return a change as plain data."""
    return {
        "number": change.number,
        "when": value_text(change.when),
        "who": str(change.who),
        "kind": change.kind,
        "why": change.why,
        "before": None if change.before is None else change.before.hex(),
        "after": None if change.after is None else change.after.hex(),
        "previous": change.previous.hex(),
        "hash": change.hash.hex(),
    }
