"""`penstock seal`: seal the events of a file."""

import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from shutil import copyfileobj
from tempfile import SpooledTemporaryFile
from typing import IO, BinaryIO, Final

import click

from penstock.apps.cli.sealed.options import CipherOptions, FileProgress, RingOptions, Types, TypesOptions, check_signed
from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.events import Unreadable, of_lines, typed
from penstock.apps.cli.shared.files import filling, reading, within
from penstock.apps.cli.shared.names import NameBook
from penstock.apps.cli.shared.options import WHO, NamesOption, OutputFile, open_key, passphrase_option
from penstock.apps.cli.shared.session import CommandSession
from penstock.apps.cli.shared.terminal import showing
from penstock.codec.blocks import Block, Level
from penstock.codec.limits import BLOCK_ROWS, FRAME_BYTES
from penstock.crypto.blinding import blind_newest
from penstock.crypto.seal_keys import KeyRing
from penstock.crypto.sealer import Sealer
from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.model.events import Event, TransitEvent
from penstock.model.names import TypeKey
from penstock.model.types import EventType, Sealing
from penstock.store.files.sealed_files import write_sealed

#: bytes of blocks for standard output that are kept in memory until all are there; more of them go to a file
_IN_MEMORY: Final = 8 << 20
_LEVELS: Final = {Sealing.EVENT: Level.EVENT, Sealing.ATTRIBUTE: Level.ATTRIBUTE}


@option_class
class _Seal:
    file: str = argument()
    types: TypesOptions
    ring: RingOptions
    sender: str | None = option("--sender", **WHO, help="Seal unsigned blocks in this principal's name.")
    key_file: str | None = option(
        "--key", metavar="FILE", help="Sign the blocks with this private key, in its principal's name."
    )
    passphrase_file: str | None = passphrase_option()
    rows: int = option(
        "--rows",
        type=click.IntRange(1, BLOCK_ROWS),
        default=1_024,
        show_default=True,
        metavar="NUMBER",
        help="Put at most this many events into a block: 65536 reads fastest, 1 hides how many came together.",
    )
    cipher: CipherOptions
    destination: OutputFile
    output: str = output_option()
    names: NamesOption


@command(
    example="""
penstock seal sightings.jsonl --type numberplate.type --keys plates.ring --kek plates.kek \\
    --key camera-broker.key --out sightings.sealed
"""
)
def seal(session: CommandSession, options: _Seal) -> CommandAnswer | None:
    """Seal the events in FILE: lines of JSON, CloudEvents or objects of attributes; - reads standard input.

    Events are sealed as a broker seals them, with the newest keys of the ring, each attribute separately or the event
    as a whole, as the type's owner has chosen. Blocks of a blinded type have labels instead of names. If the type
    requires signatures, --key signs them. The output is the blocks that brokers send, one after the other; such files
    can be joined with `cat`. A CloudEvent names its type, which must be one of those given; events without a type are
    of the first one. Nothing is written, not even to standard output, if a line is not an event.
    """
    destination = options.destination
    destination.check()
    names = options.names.load()
    types = options.types.load(names, session.now)
    levels = {one.key: _level(one) for one in types.by_name.values()}
    blinded = {one.key for one in types.by_name.values() if one.blinded}
    check_signed(types.by_name.values(), options.key_file)
    ring, sealer = _sealer(session, names, options)
    done = FileProgress("sealed")
    with _target(destination) as stream, showing(done.live), reading(options.file) as source:
        for events in _gather(_events(session, source, options.file, types), options.rows):
            block, key = Block.of(events), events[0].key
            route = blind_newest(ring, block.names) if key in blinded else None
            data = sealer.seal(block, session.now, levels[key], route)
            done.octets += write_sealed(stream, data)
            done.events += len(events)
            done.blocks += 1
    if destination.out is None:
        # The blocks go to standard output, and nothing else may.
        click.echo(done.text(), err=True)
        return None
    return CommandAnswer(done.as_dict() | destination.as_dict(), [done.text(), destination.line()])


def _sealer(session: CommandSession, names: NameBook, options: _Seal) -> tuple[KeyRing, Sealer]:
    if (options.sender is None) == (options.key_file is None):
        raise MalformedError("cli.usage", "in whose name?", hint="give --key to sign the blocks, or else --sender")
    ring = options.ring.load()
    signing = None if options.key_file is None else open_key(options.key_file, options.passphrase_file)
    who = signing.principal if signing else names.principal(options.sender or "")
    return ring, Sealer(ring, who, session.random, settings=options.cipher.settings(), signing=signing)


def _level(event_type: EventType) -> Level:
    if event_type.sealing is Sealing.NONE:
        raise RefusedError(
            "seal.level",
            f"the owner of `{event_type.name.name}` does not have its events sealed",
            hint="`penstock type edit --seal attribute` makes a version that has",
        )
    return _LEVELS[event_type.sealing]


def _events(session: CommandSession, source: BinaryIO, file: str, types: Types) -> Iterator[TransitEvent]:
    """Read events line by line. Raises `MalformedError` that says which line it is about."""
    for number, draft in of_lines(_lines(source), 1):
        try:
            if isinstance(draft, Unreadable):
                raise draft.error
            event_type = types.written(draft.type)
            event = Event.of(
                event_type,
                typed(event_type, draft.values),
                id=draft.id or session.random(16).hex(),
                time=draft.time or session.now,
            )
        except PenstockError as error:
            error.message = f"line {number}: {error.message}"
            with within(file):
                raise
        yield event.to_transit()


def _lines(source: BinaryIO) -> Iterator[bytes]:
    longest = FRAME_BYTES
    while line := source.readline(longest + 1):
        if len(line) > longest:
            raise MalformedError("pub.line", f"a line has more than {longest} bytes")
        yield line


def _gather(events: Iterator[TransitEvent], rows: int) -> Iterator[list[TransitEvent]]:
    """Gather events of one type, as many as a block holds."""
    waiting = defaultdict[TypeKey, list[TransitEvent]](list)
    for event in events:
        held = waiting[event.key]
        held.append(event)
        if len(held) == rows:
            yield waiting.pop(event.key)
    yield from waiting.values()


@contextmanager
def _target(destination: OutputFile) -> Iterator[IO[bytes]]:
    if destination.dry_run:
        with BytesIO() as nowhere:
            yield nowhere
    elif destination.out is None:
        # What was written there could not be taken back when a later line is not an event.
        with SpooledTemporaryFile(_IN_MEMORY) as waiting:
            yield waiting
            waiting.seek(0)
            copyfileobj(waiting, sys.stdout.buffer)
    else:
        with filling(destination.out, overwrite=destination.overwrite) as stream:
            yield stream
