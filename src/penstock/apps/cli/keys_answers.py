"""What `penstock keys` answers, in words and tables."""

from collections.abc import Iterator, Mapping
from datetime import datetime

from penstock.apps.cli import paint
from penstock.apps.cli.describe import value_text
from penstock.apps.cli.keys_rehearsing import Rehearsed
from penstock.apps.cli.names import Names
from penstock.apps.cli.session import say
from penstock.apps.cli.told import listed, table
from penstock.codec.wire import Wire


def show_keys(status: Mapping[str, Wire], names: Names) -> None:
    """Show which keys a broker holds and manages."""
    held, managed, waiting = (table(status.get(name)) for name in ("held", "managed", "waiting"))
    if held:
        paint.grid(("held: key of", "epoch", "begun", "seals"), [_held(table(one), names) for one in held.values()])
    elif "held" in status:
        say("this broker holds no keys: no sealed type is known here that it may read or publish")
    for name, number in waiting.items():
        if isinstance(number, int) and number:
            paint.line(f"{name} that wait for keys: {number:,}")
    if held and managed:
        paint.line()
    if managed:
        rows = [row for one in managed.values() for row in _managed(table(one), names)]
        paint.grid(("managed: key of", "epoch", "begun", "members", "held by"), rows)


def show_changed(epochs: Mapping[str, Wire], names: Names, words: str) -> None:
    """Show what came of a change."""
    say(f"✓ {words}")
    rows = [(_key(table(one), names), str(table(one).get("epoch", ""))) for one in epochs.values()]
    paint.grid(("key of", "epoch"), rows)


def show_rehearsed(found: Rehearsed, names: Names, words: str) -> None:
    """Show what a change would concern."""
    say(words if found else "nothing would change")
    rows = [row for one in found.values() for row in _rehearsed(one, names)]
    if rows:
        paint.grid(("key of", "epoch", "then", "held by"), rows)
    say("nothing was changed, this is a rehearsal")


def _rehearsed(one: Mapping[str, Wire], names: Names) -> Iterator[tuple[str, str, str, str]]:
    first, *others = [names.show_text(str(who)) for who in listed(one.get("holders"))] or [""]
    yield _key(one, names), _epoch(one), _then(one), first
    for other in others:
        yield "", "", "", other


def _then(one: Mapping[str, Wire]) -> str:
    gone = table(one.get("forgotten"))
    if not gone:
        return str(one.get("then", ""))
    last = str(gone.get("last", 0))
    if last == "0":
        return "nothing is forgotten"
    return f"up to {last} forgotten" if gone.get("all") else f"up to {last} forgotten, if over then"


def _held(one: Mapping[str, Wire], names: Names) -> tuple[str, str, str, str]:
    until = one.get("until")
    if one.get("seals") is True and isinstance(until, datetime):
        seals = f"✓ until {value_text(until)} at the latest"
    elif one.get("evicted") is True:
        seals = "✗ evicted, and no member: `penstock keys join` asks again"
    else:
        seals = "✗ publications wait for a key" if one.get("epoch") == 0 else "✗ publications wait for a new epoch"
    return _key(one, names), _epoch(one), _when(one.get("begun")), seals


def _managed(one: Mapping[str, Wire], names: Names) -> Iterator[tuple[str, str, str, str, str]]:
    holders = one.get("holders")
    shown = [names.show_text(str(who)) for who in holders] if isinstance(holders, list) else ["(for its owner to see)"]
    first, *others = shown or [""]
    yield _key(one, names), str(one.get("epoch", 0)), _when(one.get("begun")), str(one.get("members", 0)), first
    for other in others:
        yield "", "", "", "", other


def _key(one: Mapping[str, Wire], names: Names) -> str:
    attribute = str(one.get("attribute", ""))
    of_type = _scope(str(one.get("type", "")), names)
    return f"{of_type} {attribute}" if attribute else of_type


def _scope(text: str, names: Names) -> str:
    owner, slash, rest = text.partition("/")
    return f"{names.show_text(owner)}{slash}{rest}"


def _epoch(one: Mapping[str, Wire]) -> str:
    """Return the epoch of a key. They are counted from 1: of a key that has not come there is none."""
    return str(one.get("epoch") or "–")


def _when(value: Wire) -> str:
    return value_text(value) if isinstance(value, datetime) else "–"
