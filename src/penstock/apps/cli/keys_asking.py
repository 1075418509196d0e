"""`penstock keys`: the keys of sealed types, at a broker that runs."""

import asyncio
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import click

from penstock.apps.cli import options
from penstock.apps.cli.describe import counted
from penstock.apps.cli.groups import Verbs, example
from penstock.apps.cli.keys_answers import show_changed, show_keys, show_rehearsed
from penstock.apps.cli.keys_fetching import fetch
from penstock.apps.cli.keys_rehearsing import Rehearsed, evicted, forgotten, joined, of_manager, rotated
from penstock.apps.cli.net_answers import plain
from penstock.apps.cli.net_client import Call, client_options, talk
from penstock.apps.cli.options import JSON, WHO
from penstock.apps.cli.session import say, say_json
from penstock.broker.key_protocol import LABELS, KeyWord
from penstock.codec.wire import Wire
from penstock.errors import MalformedError, RefusedError
from penstock.model.instants import parse_instant
from penstock.model.names import TypeKey

_TYPE = click.option("--type", "type_name", required=True, metavar="OWNER/NAME", help="The event type.")
_ATTRIBUTE = click.option(
    "--attribute", default="", metavar="NAME", help="The key of one attribute alone, instead of all keys of the type."
)
_DRY_RUN = click.option(
    "--dry-run", is_flag=True, help="Show which keys, epochs and holders it would concern, and change nothing."
)


_IN_FILES = dict.fromkeys(("new", "show", "list", "quorum", "new-kek", "new-ring"), "penstock key")


@click.group(cls=Verbs, elsewhere=_IN_FILES)
def keys() -> None:
    """Keys of sealed types at a broker: who has them, new ones, old ones.

    Brokers that may read or publish a sealed type get its keys from a key manager, which is a broker with `[keys]` in
    its file; clients never have them. Keys to sign with are another thing: `penstock key`.
    """


@keys.command()
@client_options
@options.output_option()
@example("penstock keys status --broker penstock://127.0.0.1:7600 --network pito/London --key operator.key")
def status(*, output: str, **connection: Any) -> None:
    """Show which keys a broker holds, and for how long it may seal under them; and what waits for keys.

    For its operators. Where keys are managed there, their owners, and who has the right `keys`, see who holds them.
    """
    call = Call.of(**connection)
    found = _ask(call, KeyWord.STATUS)
    if output == JSON:
        say_json({key: plain(value) for key, value in found.items()})
    else:
        show_keys(found, call.names)


@keys.command()
@_DRY_RUN
@client_options
@options.output_option()
@example("penstock keys join --broker penstock://127.0.0.1:7600 --network pito/London --key operator.key")
def join(*, dry_run: bool, output: str, **connection: Any) -> None:
    """Have a broker ask at once for all keys that it may have and has not.

    It does so by itself, when policy changes and now and then; a broker that was evicted does not. The answers come a
    moment later: what is shown is what it holds until then. For its operators.
    """
    call = Call.of(**connection)
    if dry_run:
        _rehearse(joined(_ask(call, KeyWord.STATUS)), call, "the broker would ask for these keys", output)
        return
    found = _ask(call, KeyWord.JOIN)
    if output == JSON:
        say_json({key: plain(value) for key, value in found.items()})
    else:
        say("✓ the broker asks for keys; `penstock keys status` shows what has come")
        show_keys(found, call.names)


@keys.command()
@_TYPE
@_ATTRIBUTE
@click.option("--labels", is_flag=True, help="Of a blinded type: new labels, and no new keys.")
@_DRY_RUN
@client_options
@options.output_option()
@example(
    """
penstock keys rotate --type pito/Numberplate --broker penstock://127.0.0.1:7600 --network pito/London --key pito.key
"""
)
def rotate(*, type_name: str, attribute: str, labels: bool, dry_run: bool, output: str, **connection: Any) -> None:
    """Begin a new epoch of the keys of a type, at the broker that manages them.

    Members follow without losing an event. For the owner of the type, and for who has the right `keys` on it.
    """
    if labels and attribute:
        raise MalformedError("cli.usage", "labels are of the type, not of an attribute", hint="give one of the two")
    call = Call.of(**connection)
    which = LABELS if labels else attribute
    if dry_run:
        found = rotated(_status(call), _type(call, type_name), which)
        _rehearse(found, call, "these epochs would begin", output)
        return
    _show(_ask(call, KeyWord.ROTATE, type_name, which), call, "a new epoch has begun", output)


@keys.command()
@click.argument("broker", **WHO)
@_TYPE
@_ATTRIBUTE
@_DRY_RUN
@client_options
@options.output_option()
@example(
    """
penstock keys evict met-broker --type pito/Numberplate --broker penstock://127.0.0.1:7600 --network pito/London \\
  --key pito.key
"""
)
def evict(*, broker: str, type_name: str, attribute: str, dry_run: bool, output: str, **connection: Any) -> None:
    """Take the keys of a type from the broker WHO: a new epoch begins at once, without it.

    That takes keys, and no rights: the broker may join again when it is told to, and neighbours of equal rights go on
    to send it plaintext beside what is sealed. It is no way to lock somebody out, such as who has stolen a machine:
    revoke the certificate that gives the right (`penstock net revoke`), which ends both. For the same as `rotate`.
    """
    call = Call.of(**connection)
    who = call.names.principal(broker)
    if dry_run:
        found = evicted(_status(call), _type(call, type_name), attribute, who)
        _rehearse(found, call, f"{broker} would be out; these epochs would begin", output)
        return
    done = _ask(call, KeyWord.EVICT, type_name, attribute, evicted=who)
    _show(done, call, f"{broker} is out; a new epoch has begun", output)


@keys.command()
@click.option("--before", required=True, metavar="TIME", help="Forget epochs that were over then: 2026-05-01T12:00Z.")
@click.option("--yes", is_flag=True, help="Do not ask. Without a terminal nothing is asked either.")
@_DRY_RUN
@client_options
@options.output_option()
@example(
    """
penstock keys forget --before 2026-01-01T00:00Z --broker penstock://127.0.0.1:7600 --network pito/London --key pito.key
"""
)
def forget(*, before: str, yes: bool, dry_run: bool, output: str, **connection: Any) -> None:
    """Have a key manager forget the keys of old epochs, and begin its log anew. There is no way back.

    What was sealed in them can then be opened by nobody who has not fetched the keys. For who may manage all types that
    are managed there. Copies of the log, and what a disk keeps of deleted files, are not reached.
    """
    call, instant = Call.of(**connection), parse_instant(before)
    if dry_run:
        _rehearse(forgotten(_status(call), instant), call, "these keys would be forgotten", output)
        return
    if not yes and on_terminal():
        _confirm_forgetting(call, instant)
    found = _ask(call, KeyWord.FORGET, before=instant)
    if output == JSON:
        say_json({key: plain(value) for key, value in found.items()})
    else:
        say(f"✓ epochs that were over before {before} are forgotten, and the log begins anew")


keys.add_command(fetch)


def _ask(call: Call, word: KeyWord, type_name: str = "", attribute: str = "", **more: Any) -> Mapping[str, Wire]:
    of_type = _type(call, type_name) if type_name else None

    async def ask(_stop: asyncio.Event) -> Mapping[str, Wire]:
        async with call.client() as client:
            return await client.keys(word, of_type, attribute, **more)

    return talk(ask)


def _status(call: Call) -> Mapping[str, Wire]:
    """Return what those are told who may change keys. Raises `RefusedError` (`keys.not-manager`)."""
    try:
        return _ask(call, KeyWord.STATUS)
    except RefusedError as error:
        raise of_manager(error) from None


def _rehearse(found: Rehearsed, call: Call, words: str, output: str) -> None:
    """Show what a change would concern, and change nothing."""
    if output == JSON:
        say_json({"dry_run": True, "keys": {scope: plain(dict(one)) for scope, one in found.items()}})
    else:
        show_rehearsed(found, call.names, words)


def on_terminal() -> bool:
    """Say whether there is somebody who can be asked."""
    return sys.stdin is not None and sys.stdin.isatty()


def _confirm_forgetting(call: Call, before: datetime) -> None:
    """Ask whether keys are to be forgotten. Raises `click.Abort` if not."""
    groups = counted(len(forgotten(_status(call), before)), "key")
    click.confirm(f"Forget old epochs of {groups}? There is no way back", abort=True, err=True)


def _type(call: Call, name: str) -> TypeKey:
    owner, rest = call.names.owned(name, "type")
    if owner is None or rest is None:
        raise MalformedError("name.malformed", f"`{name[:80]}` is no one type", hint="write `owner/name`")
    return TypeKey(owner, rest.partition("@")[0])


def _show(found: Mapping[str, Wire], call: Call, words: str, output: str) -> None:
    if output == JSON:
        say_json({"keys": {key: plain(value) for key, value in found.items()}})
    else:
        show_changed(found, call.names, words)
