"""`penstock store`: where changes are kept; backed up, restored, and brought into the newest form."""

from collections.abc import Mapping
from pathlib import Path

import click

from penstock.apps.cli.shared import terminal as paint
from penstock.apps.cli.shared.files import check_target
from penstock.apps.cli.shared.groups import Verbs, example
from penstock.apps.cli.shared.options import JSON, output_option
from penstock.apps.cli.shared.session import say, say_json
from penstock.apps.cli.store.options import STORE, check_lasting, counting, dry_run_option, head_data, show_heads
from penstock.errors import FailedError
from penstock.store.ledgers import schema
from penstock.store.ledgers.backups import put_back, read_backup, verify_room, write_backup
from penstock.store.ledgers.ledgers import quiet
from penstock.store.ledgers.records import LedgerHead
from penstock.store.ledgers.urls import open_database, open_store, shown_url


@click.group(cls=Verbs)
def store() -> None:
    """Where changes are kept: back it up, restore it, renew its form.

    A store is a file (sqlite:PATH), or a database for several machines (postgresql://USER@HOST/DATABASE). Passwords
    belong into ~/.pgpass or PGPASSWORD, and are never shown.
    """


@store.command()
@click.argument("store_url", **STORE)
@output_option()
@example("penstock store show sqlite:rules.db")
def show(*, store_url: str, output: str) -> None:
    """Show the ledgers of STORE: how many changes each has, when the last was made, and its hash."""
    with open_store(store_url) as opened:
        heads, form = opened.heads(), opened.records.version
    if output == JSON:
        ledgers = [head_data(name, head) for name, head in heads.items()]
        say_json({"store": opened.url, "form": form, "ledgers": ledgers})
        return
    paint.facts([("store", opened.url), ("form", form or "none")])
    show_heads(heads)


@store.command()
@click.argument("store_url", **STORE)
@dry_run_option
@output_option()
@example("penstock store migrate sqlite:rules.db --dry-run")
def migrate(*, store_url: str, dry_run: bool, output: str) -> None:
    """Bring STORE into the form that this Penstock needs, as a whole or not at all; make it where there is none.

    Changes stay as they are. There is no way back but a backup, and an older Penstock will refuse the store: take one
    first.
    """
    check_lasting(store_url)
    before, after = _migrated(store_url, dry_run=dry_run)
    url = shown_url(store_url)
    if output == JSON:
        say_json({"store": url, "before": before, "after": after, "written": not dry_run and before != after})
    elif before == after:
        say(f"{url} has the form {after} already")
    else:
        done = "would be" if dry_run else "is"
        say(f"{url} {done} a new store of the form {after}" if not before else f"{url} {done} of the form {after} now")


def _migrated(store_url: str, *, dry_run: bool) -> tuple[str, str]:
    try:
        database = open_database(store_url, create=not dry_run)
    except FailedError as error:
        if error.code != "store.missing":
            raise
        return "", schema.newest()
    try:
        return database.migrate(dry_run=dry_run)
    finally:
        database.close()


@store.command()
@click.argument("store_url", **STORE)
@click.argument("file")
@click.option("--overwrite", is_flag=True, help="Replace a file that exists.")
@dry_run_option
@output_option()
@example("penstock store backup sqlite:rules.db rules.backup")
def backup(*, store_url: str, file: str, overwrite: bool, dry_run: bool, output: str) -> None:
    """Write all changes of STORE to FILE, which only you can read. Others may go on writing to the store.

    Everything is verified on the way: of what is broken there is no backup. The file is the same whichever database it
    comes from, so it also moves a store from SQLite to PostgreSQL, and back.
    """
    check_lasting(store_url)
    check_target(file, overwrite=overwrite)
    with open_store(store_url) as opened, counting("verified" if dry_run else "written") as told:
        if dry_run:
            heads = opened.heads()
            for name, head in heads.items():
                opened.ledger(name).verify(head, told)
        else:
            heads = write_backup(opened, Path(file), told)
    if output == JSON:
        ledgers = [head_data(name, head) for name, head in heads.items()]
        say_json({"store": opened.url, "file": file, "written": not dry_run, "ledgers": ledgers})
        return
    say(f"{'would write' if dry_run else 'wrote'} {file}")
    show_heads(heads)


@store.command()
@click.argument("file")
@click.argument("store_url", **STORE)
@dry_run_option
@output_option()
@example("penstock store restore rules.backup postgresql://ops@db.example/penstock --dry-run")
def restore(*, file: str, store_url: str, dry_run: bool, output: str) -> None:
    """Put all changes of the backup FILE into STORE, which is made where there is none.

    All of the file is verified before anything is written. Ledgers that STORE has already, change for change, are left
    as they are, so a restore that was cut off is completed by doing it again; one with other changes is refused.
    """
    check_lasting(store_url)
    with counting("read" if dry_run else "restored") as told:
        # All of it is read before a store is made for it.
        heads = read_backup(Path(file), told if dry_run else quiet)
        if dry_run:
            _check_room(store_url, heads)
        else:
            with open_store(store_url, create=True) as opened:
                put_back(Path(file), heads, opened, told)
    url = shown_url(store_url)
    if output == JSON:
        ledgers = [head_data(name, head) for name, head in heads.items()]
        say_json({"store": url, "file": file, "written": not dry_run, "ledgers": ledgers})
        return
    say(f"{'would restore' if dry_run else 'restored'} {file} to {url}")
    show_heads(heads)


def _check_room(store_url: str, heads: Mapping[str, LedgerHead]) -> None:
    """Check that a restore would find room, and make nothing."""
    try:
        with open_store(store_url) as opened:
            verify_room(heads, opened)
    except FailedError as error:
        if error.code != "store.missing":
            raise
