"""`penstock keys fetch`: keys of old epochs, for logs, into a key ring."""

import asyncio
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import click

from penstock.apps.cli.sealed.options import kek_passphrase_option, load_kek
from penstock.apps.cli.shared.broker_client import (
    BrokerTypeOptions,
    ClientOptions,
    talk,
)
from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.session import CommandSession, Warned, warn
from penstock.apps.cli.shared.terminal import Shown, grid_table
from penstock.broker.client.client import Client, TypeSource
from penstock.broker.wire.protocol import LABELS
from penstock.crypto.seal_keys import KeyRing
from penstock.crypto.wrapping import Secret
from penstock.errors import MalformedError, RefusedError
from penstock.model.types import EventType, Sealing
from penstock.store.files.key_rings import read_key_ring, write_key_ring
from penstock.trust.key_statements import KeyGroup
from penstock.trust.limits import POLICY_NUMBER

_NOT_ENTITLED: Final = "keys.not-entitled"
_NO_HISTORY: Final = "keys.no-history"
#: why nothing has come, and what to do
_NOTHING: Final = {
    _NOT_ENTITLED: (
        "you show no right to these keys",
        "the owner grants `history` on the type or on attributes: show the certificate with --credential",
    ),
    _NO_HISTORY: (
        "none of these epochs is over and kept",
        "an epoch is over when the next one begins: by itself, or with `penstock keys rotate`",
    ),
}


@dataclass(slots=True)
class _Fetched:
    """What has come for each key, by what people call it; and which there is no right to, or nothing of."""

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
    example="""
penstock keys fetch plates.ring --kek logs.kek --type pito/Numberplate --credential history.cert \\
  --broker penstock://127.0.0.1:7600 --network pito/London --key engineer.key
"""
)
def fetch(session: CommandSession, options: _Fetch) -> CommandAnswer:
    """Fetch the keys of past epochs into RING, a key ring, to open logs of sealed events.

    You need the right `history` on the type or on some of its attributes: show the certificate with --credential. The
    broker forwards the request to a key manager, which decides, and seals the keys to a key that only this command has.
    A ring that exists is extended. The broker's operators also get the keys of the current epoch, if the broker itself
    has the right. The keys of a blinded type come with those of its labels, including the current one. `penstock key
    new-kek` makes a key-encryption key for the ring. `penstock open` and jobs on Spark read the ring.
    """
    if options.last is not None and options.last < options.first:
        raise MalformedError(
            "cli.usage", f"no epoch is from {options.first} to {options.last}", hint="--last is not before --first"
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
    # The key of the type comes with those of attributes, and is not what was asked for.
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
        """Yield the groups that are meant, by what people call them. Raises `MalformedError`."""
        if event_type.sealing is Sealing.NONE:
            raise MalformedError("keys.not-sealed", f"`{event_type.name.name}` is not sealed: it has no keys")
        yield event_type.name.name, KeyGroup(event_type.key)
        names = self.attributes or tuple(one.name for one in event_type.attributes)
        for name in names if event_type.sealing is Sealing.ATTRIBUTE else ():
            yield name, KeyGroup(event_type.key, event_type.attribute(name).id)


@dataclass(slots=True)
class _Fetching:
    """Asks for keys, and puts into a ring what comes."""

    client: Client
    ring: KeyRing
    fetched: _Fetched = field(default_factory=_Fetched)

    async def fetch(self, wanted: _Wanted) -> _Fetched:
        """Ask for all that is wanted."""
        event_type = await self.client.type(wanted.type)
        for name, group in wanted.groups(event_type):
            await self._group(name, group, wanted)
        if event_type.blinded and self.fetched.epochs:
            # All of them: their epochs are others. By themselves they open nothing.
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
        """Ask until there are no more: a manager gives the first so many of those that it has kept."""
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
    """Return the first epoch that is missing behind the lowest: the broker's own keys may lie further on."""
    epoch = min(epochs)
    while epoch in epochs:
        epoch += 1
    return epoch
