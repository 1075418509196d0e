"""`penstock sealing`: show, change and fetch the keys of sealed types at a running broker."""

import asyncio
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeAlias

import click

from penstock.apps.cli.keys.key_rings import new_kek_command, new_ring
from penstock.apps.cli.net.status import plain
from penstock.apps.cli.sealed import kek_passphrase_option, load_kek
from penstock.apps.cli.shared.broker_client import (
    BrokerTypeOptions,
    Call,
    ClientOptions,
    talk,
)
from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.describe import counted, listed, table, value_text
from penstock.apps.cli.shared.names import NameBook
from penstock.apps.cli.shared.options import WHO
from penstock.apps.cli.shared.session import CommandSession, Verbs, Warned, warn
from penstock.apps.cli.shared.terminal import Shown, grid_table
from penstock.broker.client.client import Client, TypeSource
from penstock.broker.wire.protocol import LABELS, KeyWord
from penstock.codec.wire import Wire
from penstock.crypto.seal_keys import KeyRing
from penstock.crypto.wrapping import Secret
from penstock.errors import MalformedError, RefusedError
from penstock.model.instants import parse_instant
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.types import EventType, Sealing
from penstock.store.files.key_files import read_key_ring, write_key_ring
from penstock.trust.key_statements import KeyGroup
from penstock.trust.limits import POLICY_NUMBER

# ----------------------------------------------------------------------------------------------------------------------
# What a change of keys affects: groups, epochs and holders, read from the broker's status.
#
# The broker is only asked for its status. As far as the status shows it, a rehearsal is refused for the same reasons as
# the change: keys that are not managed there, or not by this principal, and brokers that do not hold them.


Rehearsed: TypeAlias = Mapping[str, Mapping[str, Wire]]
"""The groups that a change would affect, by scope: its description, and the result of the change."""

_NOT_OPERATOR: Final = "broker.not-operator"


def rotated(status: Mapping[str, Wire], of_type: TypeKey, attribute: str) -> Rehearsed:
    """Return the groups that would begin an epoch, and its number. Raises `RefusedError` (`keys.not-manage…`)."""
    meant = _meant(status, of_type, attribute)
    # Labels are renewed automatically unless they are requested.
    return {
        scope: {**one, "then": _epoch(one) + 1}
        for scope, one in meant.items()
        if attribute == LABELS or one.get("attribute") != LABELS
    }


def evicted(status: Mapping[str, Wire], of_type: TypeKey, attribute: str, broker: Principal) -> Rehearsed:
    """Return the groups that would continue without a broker. Raises as `rotated`, and `keys.not-member`."""
    who = str(broker)
    held = {s: one for s, one in _meant(status, of_type, attribute).items() if who in listed(one.get("holders"))}
    if not held:
        raise RefusedError(
            "keys.not-member", "this broker holds none of these keys", hint="`penstock sealing show` shows who does"
        )
    return {
        scope: {
            **one,
            "then": _epoch(one) + 1,
            "holders": [other for other in listed(one.get("holders")) if other != who],
        }
        for scope, one in held.items()
    }


def forgotten(status: Mapping[str, Wire], before: datetime) -> Rehearsed:
    """Return all groups, and up to which epoch keys would be forgotten: `all` of them, or those that were over then.

    Raises as `rotated`.
    """
    return {scope: {**one, "forgotten": _forgotten(one, before)} for scope, one in _meant(status, None, "").items()}


def joined(status: Mapping[str, Wire]) -> Rehearsed:
    """Return the groups whose keys a broker would ask for. Raises `RefusedError` (`broker.not-operator`)."""
    if "held" not in status:
        raise RefusedError(_NOT_OPERATOR, "only operators of the broker may ask this")
    held = {scope: table(one) for scope, one in table(status["held"]).items()}
    return {scope: one for scope, one in held.items() if one.get("seals") is not True}


def of_manager(error: RefusedError) -> RefusedError:
    """Return the error for a principal that may neither make the change nor see the status."""
    return _not_manager() if error.code == _NOT_OPERATOR else error


def _meant(status: Mapping[str, Wire], of_type: TypeKey | None, attribute: str) -> Rehearsed:
    managed = {scope: table(one) for scope, one in table(status.get("managed")).items()}
    whole = None if of_type is None else str(of_type)
    found = {
        scope: one
        for scope, one in managed.items()
        if whole in (None, one.get("type")) and attribute in ("", one.get("attribute"))
    }
    if not found:
        raise RefusedError(
            "keys.not-managed",
            "no such keys are managed here",
            hint="`penstock sealing show` shows which keys this broker manages: compare broker, type and attribute",
        )
    if not all("holders" in one for one in found.values()):
        raise _not_manager()
    return found


def _forgotten(one: Mapping[str, Wire], before: datetime) -> dict[str, Wire]:
    begun, epoch = one.get("begun"), _epoch(one)
    # An epoch ends when the next begins. The status does not say when earlier epochs ended.
    whole = isinstance(begun, datetime) and begun < before
    return {"last": max(0, epoch - (1 if whole else 2)), "all": whole}


def _epoch(one: Mapping[str, Wire]) -> int:
    found = one.get("epoch")
    return found if isinstance(found, int) else 0


def _not_manager() -> RefusedError:
    return RefusedError(
        "keys.not-manager",
        "these keys may be changed by the type's owner, and by principals with the right `keys`",
        hint="show the certificate with --credential",
    )


# ----------------------------------------------------------------------------------------------------------------------
# Answers as sentences and tables.


def show_keys(status: Mapping[str, Wire], names: NameBook) -> Iterator[Shown]:
    """Yield the keys that a broker holds and manages."""
    held, managed, waiting = (table(status.get(name)) for name in ("held", "managed", "waiting"))
    if held:
        rows = [_held(table(one), names) for one in held.values()]
        yield grid_table(("held: key of", "epoch", "begun", "seals"), rows)
    elif "held" in status:
        yield "this broker holds no keys: no sealed type is known here that it may read or publish"
    for name, number in waiting.items():
        if isinstance(number, int) and number:
            yield f"{name} that wait for keys: {number:,}"
    if held and managed:
        yield ""
    if managed:
        lines = [row for one in managed.values() for row in _managed(table(one), names)]
        yield grid_table(("managed: key of", "epoch", "begun", "members", "held by"), lines)


def show_rehearsed(found: Rehearsed, names: NameBook, words: str) -> Iterator[Shown]:
    """Yield the keys that a change would affect."""
    yield words if found else "nothing would change"
    rows = [row for one in found.values() for row in _rehearsed(one, names)]
    if rows:
        yield grid_table(("key of", "epoch", "then", "held by"), rows)
    yield "nothing was changed, this is a rehearsal"


def _rehearsed(one: Mapping[str, Wire], names: NameBook) -> Iterator[tuple[str, str, str, str]]:
    first, *others = [names.show_text(str(who)) for who in listed(one.get("holders"))] or [""]
    yield _key(one, names), _epoch_text(one), _then(one), first
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


def _held(one: Mapping[str, Wire], names: NameBook) -> tuple[str, str, str, str]:
    until = one.get("until")
    if one.get("seals") is True and isinstance(until, datetime):
        seals = f"✓ until {value_text(until)} at the latest"
    elif one.get("evicted") is True:
        seals = "✗ evicted, and no member: `penstock sealing join` asks again"
    else:
        seals = "✗ publications wait for a key" if one.get("epoch") == 0 else "✗ publications wait for a new epoch"
    return _key(one, names), _epoch_text(one), _when(one.get("begun")), seals


def _managed(one: Mapping[str, Wire], names: NameBook) -> Iterator[tuple[str, str, str, str, str]]:
    holders = one.get("holders")
    shown = [names.show_text(str(who)) for who in holders] if isinstance(holders, list) else ["(for its owner to see)"]
    first, *others = shown or [""]
    yield _key(one, names), str(one.get("epoch", 0)), _when(one.get("begun")), str(one.get("members", 0)), first
    for other in others:
        yield "", "", "", "", other


def _key(one: Mapping[str, Wire], names: NameBook) -> str:
    attribute = str(one.get("attribute", ""))
    of_type = _scope(str(one.get("type", "")), names)
    return f"{of_type} {attribute}" if attribute else of_type


def _scope(text: str, names: NameBook) -> str:
    owner, slash, rest = text.partition("/")
    return f"{names.show_text(owner)}{slash}{rest}"


def _epoch_text(one: Mapping[str, Wire]) -> str:
    """Return the epoch of a key, counted from 1. A key that has not arrived has none."""
    return str(one.get("epoch") or "–")


def _when(value: Wire) -> str:
    return value_text(value) if isinstance(value, datetime) else "–"


# ----------------------------------------------------------------------------------------------------------------------
# The commands that show and change keys.


@option_class
class KeyScopeOptions:
    """Options for the keys that a change is about."""

    type_name: str = option("--type", required=True, metavar="OWNER/NAME", help="Use this event type.")
    attribute: str = option(
        "--attribute",
        default="",
        metavar="NAME",
        help="Change the key of this attribute only (default: all keys of the type).",
    )


@option_class
class KeyChangeOptions:
    """The options that all commands share which change keys at a broker."""

    dry_run: bool = option(
        "--dry-run", is_flag=True, help="Show the keys, epochs and holders that would be affected, and change nothing."
    )
    client: ClientOptions
    output: str = output_option()


_OF_KEY = dict.fromkeys(("new", "list", "new-quorum"), "penstock key")


@click.group(cls=Verbs, elsewhere=_OF_KEY)
def sealing() -> None:
    """Manage the keys of sealed types: key groups at a broker, and key rings in files.

    Brokers that may read or publish a sealed type get its keys from a key manager, which is a broker with `[keys]` in
    its file. Clients never have these keys. Key rings are for events that are sealed in files. To manage signing keys,
    use `penstock key`.
    """


for _command in (new_kek_command, new_ring):
    sealing.add_command(_command)


@option_class
class _Show:
    client: ClientOptions
    output: str = output_option()


@command(
    sealing,
    example="penstock sealing show --broker penstock://127.0.0.1:7600 --network pito/London --key operator.key",
)
def show(options: _Show) -> CommandAnswer:
    """Show which keys a broker holds, how long it may seal with them, and what waits for keys.

    For its operators. If the broker manages keys, their owners, and everybody with the right `keys`, see who holds
    them.
    """
    call = options.client.call()
    found = _ask(call, KeyWord.STATUS)
    return CommandAnswer(_plain(found), show_keys(found, call.names))


@command(
    sealing,
    example="penstock sealing join --broker penstock://127.0.0.1:7600 --network pito/London --key operator.key",
)
def join(options: KeyChangeOptions) -> CommandAnswer:
    """Make a broker request all keys that it may have and does not have yet.

    A broker does so by itself when policy changes, and from time to time, unless it was evicted. The keys arrive a
    moment later: the output shows what the broker holds until then. For its operators.
    """
    call = options.client.call()
    if options.dry_run:
        return _rehearsal(joined(_ask(call, KeyWord.STATUS)), call, "the broker would ask for these keys")
    found = _ask(call, KeyWord.JOIN)
    done = "✓ the broker asks for keys; `penstock sealing show` shows what has come"
    return CommandAnswer(_plain(found), chain([done], show_keys(found, call.names)))


@option_class
class _Rotate:
    scope: KeyScopeOptions
    labels: bool = option("--labels", is_flag=True, help="Renew the labels of a blinded type, not its keys.")
    change: KeyChangeOptions


@command(
    sealing,
    example="""
penstock sealing rotate --type pito/Numberplate --broker penstock://127.0.0.1:7600 --network pito/London --key pito.key
""",
)
def rotate(options: _Rotate) -> CommandAnswer:
    """Begin a new epoch of a type's keys, at the broker that manages them.

    Members follow without losing an event. For the type's owner, and for everybody with the right `keys` on it.
    """
    if options.labels and options.scope.attribute:
        raise MalformedError("cli.usage", "labels are of the type, not of an attribute", hint="give one of the two")
    call = options.change.client.call()
    which = LABELS if options.labels else options.scope.attribute
    if options.change.dry_run:
        found = rotated(_status(call), _type(call, options.scope.type_name), which)
        return _rehearsal(found, call, "these epochs would begin")
    done = _ask(call, KeyWord.ROTATE, options.scope.type_name, which)
    return _changed(done, call, "a new epoch has begun")


@option_class
class _Evict:
    broker: str = argument(**WHO)
    scope: KeyScopeOptions
    change: KeyChangeOptions


@command(
    sealing,
    example="""
penstock sealing evict met-broker --type pito/Numberplate --broker penstock://127.0.0.1:7600 --network pito/London \\
  --key pito.key
""",
)
def evict(options: _Evict) -> CommandAnswer:
    """Take a type's keys from the broker WHO: a new epoch begins immediately, without it.

    This takes keys, not rights. The broker can join again if its operator asks for it, and neighbours with equal rights
    still send it plaintext beside sealed events. To lock a broker out, for example after a theft, revoke the
    certificate that gives the right (`penstock net revoke`): this ends both. For the same people as `rotate`.
    """
    call = options.change.client.call()
    who = call.names.principal(options.broker)
    if options.change.dry_run:
        found = evicted(_status(call), _type(call, options.scope.type_name), options.scope.attribute, who)
        return _rehearsal(found, call, f"{options.broker} would be out; these epochs would begin")
    done = _ask(call, KeyWord.EVICT, options.scope.type_name, options.scope.attribute, evicted=who)
    return _changed(done, call, f"{options.broker} is out; a new epoch has begun")


@option_class
class _Forget:
    before: str = option(
        "--before", required=True, metavar="TIME", help="Forget epochs that ended before this time: 2026-05-01T12:00Z."
    )
    yes: bool = option("--yes", is_flag=True, help="Do not ask for confirmation. Without a terminal nothing is asked.")
    change: KeyChangeOptions


@command(
    sealing,
    example="""
penstock sealing forget --before 2026-01-01T00:00Z --broker penstock://127.0.0.1:7600 --network pito/London \\
  --key pito.key
""",
)
def forget(options: _Forget) -> CommandAnswer:
    """Make a key manager forget the keys of old epochs, and restart its log. This cannot be undone.

    Afterwards only those who have fetched the keys can open what was sealed with them. For those who may manage all
    types that the broker manages. Copies of the log, and deleted files that a disk still holds, are not affected.
    """
    call, instant = options.change.client.call(), parse_instant(options.before)
    if options.change.dry_run:
        return _rehearsal(forgotten(_status(call), instant), call, "these keys would be forgotten")
    if not options.yes and on_terminal():
        _confirm_forgetting(call, instant)
    found = _ask(call, KeyWord.FORGET, before=instant)
    done = f"✓ epochs that were over before {options.before} are forgotten, and the log begins again"
    return CommandAnswer(_plain(found), [done])


def _ask(call: Call, word: KeyWord, type_name: str = "", attribute: str = "", **more: Any) -> Mapping[str, Wire]:
    of_type = _type(call, type_name) if type_name else None

    async def ask(_stop: asyncio.Event) -> Mapping[str, Wire]:
        async with call.client() as client:
            return await client.keys(word, of_type, attribute, **more)

    return talk(ask)


def _status(call: Call) -> Mapping[str, Wire]:
    """Return the status for principals that may change keys. Raises `RefusedError` (`keys.not-manager`)."""
    try:
        return _ask(call, KeyWord.STATUS)
    except RefusedError as error:
        raise of_manager(error) from None


def _rehearsal(found: Rehearsed, call: Call, words: str) -> CommandAnswer:
    """Return the keys that a change would affect, and change nothing."""
    data = {"dry_run": True, "keys": {scope: plain(dict(one)) for scope, one in found.items()}}
    return CommandAnswer(data, show_rehearsed(found, call.names, words))


def on_terminal() -> bool:
    """Return whether standard input is a terminal, so that somebody can be asked."""
    return sys.stdin is not None and sys.stdin.isatty()


def _confirm_forgetting(call: Call, before: datetime) -> None:
    """Ask for confirmation to forget keys. Raises `click.Abort` if it is denied."""
    groups = counted(len(forgotten(_status(call), before)), "key")
    click.confirm(f"Forget old epochs of {groups}? There is no way back", abort=True, err=True)


def _type(call: Call, name: str) -> TypeKey:
    owner, rest = call.names.owned(name, "type")
    if owner is None or rest is None:
        raise MalformedError("name.malformed", f"`{name[:80]}` does not name one type", hint="write `owner/name`")
    return TypeKey(owner, rest.partition("@")[0])


def _changed(found: Mapping[str, Wire], call: Call, words: str) -> CommandAnswer:
    rows = [(_key(table(one), call.names), str(table(one).get("epoch", ""))) for one in found.values()]
    return CommandAnswer({"keys": _plain(found)}, [f"✓ {words}", grid_table(("key of", "epoch"), rows)])


def _plain(found: Mapping[str, Wire]) -> dict[str, object]:
    return {key: plain(value) for key, value in found.items()}


# ----------------------------------------------------------------------------------------------------------------------
# `penstock sealing fetch`: fetch keys of past epochs into a key ring.


_NOT_ENTITLED: Final = "keys.not-entitled"
_NO_HISTORY: Final = "keys.no-history"
#: by code: why no key has arrived, and what to do
_NOTHING: Final = {
    _NOT_ENTITLED: (
        "you have shown no right to these keys",
        "the owner grants `history` on the type or on attributes: show the certificate with --credential",
    ),
    _NO_HISTORY: (
        "the key manager has none of these epochs, or they have not ended",
        "an epoch ends when the next one begins: automatically, or with `penstock sealing rotate`",
    ),
}


@dataclass(slots=True)
class _Fetched:
    """The epochs that have arrived for each key, by its name; and the code of each key that was refused."""

    epochs: dict[str, list[int]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


@option_class
class _Fetch:
    ring: str = argument(metavar="RING")
    of_type: BrokerTypeOptions
    attributes: tuple[str, ...] = option(
        "--attribute",
        multiple=True,
        metavar="NAME",
        help="Fetch keys of this attribute only (default: all). Can be repeated.",
    )
    first: int = option(
        "--first", type=click.IntRange(1), default=1, show_default=True, help="Fetch epochs from this one on."
    )
    last: int | None = option(
        "--last", type=click.IntRange(1), help="Fetch epochs up to this one (default: all that are over)."
    )
    kek_file: str = option(
        "--kek",
        required=True,
        envvar="PENSTOCK_KEK",
        metavar="FILE",
        help="Encrypt the ring with this key-encryption key.",
    )
    kek_passphrase_file: str | None = kek_passphrase_option()
    dry_run: bool = option("--dry-run", is_flag=True, help="Ask for the keys and show which arrive, but write no file.")
    client: ClientOptions
    output: str = output_option()


@command(
    sealing,
    example="""
penstock sealing fetch plates.ring --kek logs.kek --type pito/Numberplate --credential history.cert \\
  --broker penstock://127.0.0.1:7600 --network pito/London --key engineer.key
""",
)
def fetch(session: CommandSession, options: _Fetch) -> CommandAnswer:
    """Fetch the keys of past epochs into RING, a key ring, to open logs of sealed events.

    You need the right `history` on the type or on some of its attributes: show the certificate with --credential. The
    broker forwards the request to a key manager, which decides, and seals the keys to a key that only this command has.
    A ring that exists is extended. The broker's operators also get the keys of the current epoch, if the broker itself
    has the right. The keys of a blinded type come with those of its labels, including the current one. `penstock
    sealing new-kek` makes a key-encryption key for the ring. `penstock open` and jobs on Spark read the ring.
    """
    if options.last is not None and options.last < options.first:
        raise MalformedError(
            "cli.usage",
            f"there is no epoch from {options.first} to {options.last}",
            hint="--last must not be before --first",
        )
    call = options.client.call(options.of_type.type_files)
    kek = load_kek(options.kek_file, options.kek_passphrase_file)
    path = Path(options.ring)
    kept = read_key_ring(path, kek) if path.exists() else KeyRing()
    wanted = _Wanted(call.type(options.of_type.type_name), options.attributes, options.first, options.last)

    async def ask(_stop: asyncio.Event) -> _Fetched:
        async with call.client() as client:
            return await _Fetching(client, kept).fetch(wanted)

    fetched = talk(ask)
    # The key of the type comes with those of attributes, but was not requested.
    if not fetched.epochs or (options.attributes and fetched.refused.keys() >= {*options.attributes}):
        named = (fetched.refused[name] for name in options.attributes if name in fetched.refused)
        code = next(named, None) or next(iter(fetched.refused.values()))
        words, hint = _NOTHING[code]
        raise RefusedError(code, words, hint=hint)
    if not options.dry_run:
        write_key_ring(path, kept, kek, session.random)
    keys = {name: {"first": some[0], "last": some[-1], "epochs": len(some)} for name, some in fetched.epochs.items()}
    data = {"file": options.ring, "written": not options.dry_run, "keys": keys, "refused": fetched.refused}
    return CommandAnswer(data, _shown(options, fetched))


def _shown(options: _Fetch, fetched: _Fetched) -> Iterator[Shown]:
    for name, code in fetched.refused.items():
        warn(Warned(code, f"no keys of `{name}`"))
    yield f"{'would write' if options.dry_run else 'wrote'} {options.ring}"
    rows = [(name, f"{some[0]}–{some[-1]}" if len(some) > 1 else str(some[0])) for name, some in fetched.epochs.items()]
    yield grid_table(("key of", "epochs"), rows)


@dataclass(frozen=True, slots=True)
class _Wanted:
    type: TypeSource
    attributes: tuple[str, ...]
    first: int
    last: int | None

    def groups(self, event_type: EventType) -> Iterator[tuple[str, KeyGroup]]:
        """Yield the groups to fetch, with their names. Raises `MalformedError`."""
        if event_type.sealing is Sealing.NONE:
            raise MalformedError("keys.not-sealed", f"`{event_type.name.name}` is not sealed: it has no keys")
        yield event_type.name.name, KeyGroup(event_type.key)
        names = self.attributes or tuple(one.name for one in event_type.attributes)
        for name in names if event_type.sealing is Sealing.ATTRIBUTE else ():
            yield name, KeyGroup(event_type.key, event_type.attribute(name).id)


@dataclass(slots=True)
class _Fetching:
    """Fetch keys, and put them into a ring."""

    client: Client
    ring: KeyRing
    fetched: _Fetched = field(default_factory=_Fetched)

    async def fetch(self, wanted: _Wanted) -> _Fetched:
        """Fetch all keys that are wanted."""
        event_type = await self.client.type(wanted.type)
        for name, group in wanted.groups(event_type):
            await self._group(name, group, wanted)
        if event_type.blinded and self.fetched.epochs:
            # All of them, because labels have epochs of their own. By themselves they open nothing.
            await self._group(LABELS, KeyGroup(event_type.key, labels=True), replace(wanted, first=1, last=None))
        return self.fetched

    async def _group(self, name: str, group: KeyGroup, wanted: _Wanted) -> None:
        try:
            found = await self._epochs(group, wanted)
        except RefusedError as error:
            if error.code not in (_NOT_ENTITLED, _NO_HISTORY):
                raise
            self.fetched.refused[name] = error.code
            return
        for epoch, key in found.items():
            self.ring.put(group.scope, epoch, key)
        self.fetched.epochs[name] = sorted(found)

    async def _epochs(self, group: KeyGroup, wanted: _Wanted) -> dict[int, Secret]:
        """Ask until there are no more: a key manager returns a limited number of its epochs at a time."""
        found: dict[int, Secret] = {}
        first, last = wanted.first, wanted.last or POLICY_NUMBER
        while first <= last:
            try:
                some = await self.client.fetch_keys(group, first, last)
            except RefusedError as error:
                if found and error.code == _NO_HISTORY:
                    break
                raise
            new = {epoch: key for epoch, key in some.items() if first <= epoch <= last}
            if not new:
                break
            found |= new
            first = _behind(new)
        return found


def _behind(epochs: Collection[int]) -> int:
    """Return the first missing epoch after the lowest: the broker's own keys can be later ones."""
    epoch = min(epochs)
    while epoch in epochs:
        epoch += 1
    return epoch
