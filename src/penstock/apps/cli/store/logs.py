"""`penstock log`: the changes that a store keeps, shown and verified."""

import click

from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.describe import instant_text, value_text
from penstock.apps.cli.shared.groups import Verbs
from penstock.apps.cli.shared.options import NamesOption
from penstock.apps.cli.shared.terminal import grid_table
from penstock.apps.cli.store.options import STORE, counting, head_data, head_text, parse_heads
from penstock.errors import RefusedError
from penstock.store.ledgers.ledgers import Store, Told
from penstock.store.ledgers.records import EMPTY, Change, LedgerHead
from penstock.store.ledgers.urls import open_store

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
    with open_store(options.store_url) as store, counting("verified") as told:
        there = store.heads()
        found = {name: _verified(store, name, known.get(name, EMPTY), told) for name in sorted({*there, *known})}
    problems = [one for one in found.values() if isinstance(one, RefusedError)]
    lines = [
        f"✓ {one.number} changes  {head_text(name, one)}" if isinstance(one, LedgerHead) else f"✗ {one.message}"
        for name, one in found.items()
    ]
    ledgers = [_verdict(name, one) for name, one in found.items()]
    data = {"ok": not problems, "store": store.url, "ledgers": ledgers}
    return CommandAnswer(data, lines or ["no ledgers yet"], next(iter(problems), None))


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


@option_class
class _Show:
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


@command(log, example="penstock log show sqlite:rules.db moderator --from 10 --to 20")
def show(options: _Show) -> CommandAnswer:
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
