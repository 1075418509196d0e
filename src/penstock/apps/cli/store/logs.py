"""`penstock log`: the changes that a store keeps, shown and verified."""

import click

from penstock.apps.cli.shared import terminal as paint
from penstock.apps.cli.shared.describe import instant_text, value_text
from penstock.apps.cli.shared.groups import Verbs, example
from penstock.apps.cli.shared.names import load_names
from penstock.apps.cli.shared.options import JSON, names_option, output_option
from penstock.apps.cli.shared.session import say_json
from penstock.apps.cli.store.options import STORE, counting, head_data, head_text, parse_heads
from penstock.errors import RefusedError
from penstock.store.ledgers.ledgers import Store, Told
from penstock.store.ledgers.records import EMPTY, Change, LedgerHead
from penstock.store.ledgers.urls import open_store

_MANY = 50


@click.group(cls=Verbs)
def log() -> None:
    """What was changed, by whom and why; tampering shows."""


@log.command()
@click.argument("store_url", **STORE)
@click.option("--head", "heads", multiple=True, metavar="HEAD", help="A head that you noted, as LEDGER:NUMBER:HASH.")
@output_option()
@example(
    """
penstock log verify sqlite:rules.db
penstock log verify postgresql://ops@db.example/penstock -o json
"""
)
def verify(*, store_url: str, heads: tuple[str, ...], output: str) -> None:
    """Check that every change in STORE is as it was written; the status is 1 where one is not, and it is named.

    Each change holds the hash of the one before, so nothing can be altered, dropped or put in between. Who may write to
    the database could still replace all of a ledger: note its head elsewhere, now and then, and give it with --head.

    STORE is sqlite:PATH or postgresql://USER@HOST/DATABASE; passwords belong into ~/.pgpass or PGPASSWORD.
    """
    known = parse_heads(heads)
    with open_store(store_url) as store, counting("verified") as told:
        there = store.heads()
        found = {name: _verified(store, name, known.get(name, EMPTY), told) for name in sorted({*there, *known})}
    problems = [one for one in found.values() if isinstance(one, RefusedError)]
    if output == JSON:
        ledgers = [_verdict(name, one) for name, one in found.items()]
        say_json({"ok": not problems, "store": store.url, "ledgers": ledgers})
    else:
        for name, one in found.items():
            good = (
                f"✓ {one.number} changes  {head_text(name, one)}" if isinstance(one, LedgerHead) else f"✗ {one.message}"
            )
            paint.line(good)
        if not found:
            paint.line("no ledgers yet")
    if problems:
        raise problems[0]


def _verified(store: Store, name: str, known: LedgerHead, told: Told) -> LedgerHead | RefusedError:
    try:
        return store.ledger(name).verify(known, told)
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


@log.command()
@click.argument("store_url", **STORE)
@click.argument("ledger")
@click.option("--from", "first", type=click.IntRange(min=1), metavar="N", help="The first change to show.")
@click.option("--to", "last", type=click.IntRange(min=1), metavar="N", help="The last one (default: the newest).")
@output_option()
@names_option
@example("penstock log show sqlite:rules.db moderator --from 10 --to 20")
def show(  # noqa: PLR0913  # one argument an option
    *, store_url: str, ledger: str, first: int | None, last: int | None, output: str, names_file: str | None
) -> None:
    """Show changes of LEDGER: who, when, what kind and why. Without --from the last 50 of them.

    What was before and after is in `-o json`, as base 16.
    """
    names = load_names(names_file)
    with open_store(store_url) as store:
        found = store.ledger(ledger)
        end = min(last or found.head().number, found.head().number)
        changes = list(found.read(first or max(1, end - _MANY + 1), end))
    if output == JSON:
        say_json({"store": store.url, "ledger": ledger, "changes": [change_data(change) for change in changes]})
        return
    rows = [(str(one.number), instant_text(one.when), names.show(one.who), one.kind, one.why) for one in changes]
    paint.grid(("change", "when", "who", "kind", "why"), rows)


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
