"""`penstock seal`, `penstock open` and `penstock proof`: sealed events in files."""

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from io import BytesIO
from pathlib import Path
from shutil import copyfileobj
from tempfile import SpooledTemporaryFile
from typing import IO, Any, BinaryIO, Final

import click

from penstock.apps.cli.shared.commands import (
    CommandAnswer,
    argument,
    command,
    option,
    option_class,
    output_option,
    wants_data,
)
from penstock.apps.cli.shared.describe import counted
from penstock.apps.cli.shared.events import Rows, Unreadable, cloud_event, of_lines, plain, typed
from penstock.apps.cli.shared.files import SECRET, filling, read_sexp, reading, within
from penstock.apps.cli.shared.names import NameBook
from penstock.apps.cli.shared.options import (
    WHO,
    AtOption,
    NamesOption,
    OutputFile,
    ShelfOptions,
    open_key,
    passphrase,
    passphrase_option,
)
from penstock.apps.cli.shared.session import CommandSession, Verbs, aside, say
from penstock.apps.cli.shared.terminal import Shown, grid_table, showing
from penstock.codec.blocks import Block, Level, read_header
from penstock.codec.limits import BLOCK_ROWS, FRAME_BYTES
from penstock.crypto.blinding import Directory, blind_newest
from penstock.crypto.opener import Opener, at_levels
from penstock.crypto.seal_keys import KeyRing
from penstock.crypto.sealer import ALGORITHMS, PADDINGS, Sealer, SealerSettings
from penstock.crypto.signed_blocks import EventProof, ProvenEvent, SignedBlock, verify_proof
from penstock.crypto.wrapping import ProtectedKek, Secret
from penstock.errors import MalformedError, PenstockError, RefusedError, printable
from penstock.model.events import Event, TransitEvent
from penstock.model.names import TypeKey, TypeName
from penstock.model.principals import Principal
from penstock.model.types import EventType, Sealing
from penstock.store.files.key_files import read_key_ring, read_stored_kek
from penstock.store.files.sealed_files import read_sealed, write_sealed

# ----------------------------------------------------------------------------------------------------------------------
# Shared: types, key rings, ciphers, and the progress on a file.


@option_class
class CipherOptions:
    """Options for how blocks are sealed."""

    algorithm: str = option(
        "--algorithm",
        type=click.Choice([*ALGORITHMS]),
        default="aes-gcm",
        show_default=True,
        help="Seal with this cipher.",
    )
    pad: str = option(
        "--pad",
        type=click.Choice([*PADDINGS]),
        default="none",
        show_default=True,
        help="Hide the length of columns: pad to powers of two, or to a few sizes.",
    )

    def settings(self) -> SealerSettings:
        """Return the settings."""
        return SealerSettings(ALGORITHMS[self.algorithm], PADDINGS[self.pad])


def kek_passphrase_option() -> Any:
    """Declare `--kek-passphrase-file`."""
    return option(
        "--kek-passphrase-file",
        metavar="FILE",
        help="Read the key-encryption key's passphrase from the first line of this file (default: ask for it).",
    )


@option_class
class RingOptions:
    """Options for the key ring that blocks are sealed or opened with."""

    ring_file: str = option(
        "--ring",
        required=True,
        # The second is its old name, which goes with 0.3.0.
        envvar=["PENSTOCK_RING", "PENSTOCK_KEYS"],
        metavar="FILE",
        help="Use the keys in this key ring (default: $PENSTOCK_RING).",
    )
    kek_file: str = option(
        "--kek",
        required=True,
        envvar="PENSTOCK_KEK",
        metavar="FILE",
        help="Decrypt the key ring with this key-encryption key (default: $PENSTOCK_KEK).",
    )
    kek_passphrase_file: str | None = kek_passphrase_option()

    def load(self) -> KeyRing:
        """Read the key ring. Raises as `load_ring`."""
        return load_ring(self.ring_file, self.kek_file, self.kek_passphrase_file)


def _type_option(*, required: bool) -> Any:
    return option(
        "--type-file",
        required=required,
        multiple=True,
        metavar="FILE",
        help="Read a signed event type. Can be repeated.",
    )


@option_class
class OptionalTypesOptions:
    """Options for signed event types, for commands that do not require them."""

    type_files: tuple[str, ...] = _type_option(required=False)
    shelf: ShelfOptions

    def load(self, names: NameBook, now: datetime) -> "Types":
        """Read and verify the types. Raises what reading and verifying them raise."""
        found = [self.shelf.verified(file, now)[0].event_type for file in self.type_files]
        return Types(names, {one.name: one for one in found}, {one.key: one for one in found})


@option_class
class TypesOptions(OptionalTypesOptions):
    """Options for signed event types, at least one."""

    type_files: tuple[str, ...] = _type_option(required=True)


def load_kek(file: str, passphrase_file: str | None) -> Secret:
    """Read a key-encryption key, and ask for its passphrase if it has one. Raises what `read_kek` raises."""
    stored = read_stored_kek(Path(file))
    if isinstance(stored, ProtectedKek):
        secret = passphrase(passphrase_file, f"Passphrase of {file}")
        with within(file):
            return stored.open(secret)
    return stored


def load_ring(ring_file: str, kek_file: str, kek_passphrase_file: str | None) -> KeyRing:
    """Read a key ring. Raises what `read_key_ring` and `load_kek` raise."""
    return read_key_ring(Path(ring_file), load_kek(kek_file, kek_passphrase_file))


@dataclass(frozen=True, slots=True)
class Types:
    """The verified types that were given; of several versions, events are shown in the last one."""

    names: NameBook
    by_name: dict[TypeName, EventType]
    by_key: dict[TypeKey, EventType]

    def opener(self, ring: KeyRing) -> Opener:
        """Return an opener for blocks of these types, with the keys of a ring."""
        levels = {key: one.sealing for key, one in self.by_key.items()}
        return Opener(ring, Directory.of(ring, self.by_name.values()), admits=at_levels(levels))

    def written(self, name: str) -> EventType:
        """Return the type that an event names, or the first one if it names none.

        Raises `RefusedError` (`seal.unknown-type`) and `MalformedError` (`name.malformed` and codes of principals).
        """
        if not name:
            return next(iter(self.by_name.values()))
        owner, rest = self.names.owned(name, "type")
        found = self.by_name.get(TypeName.parse(f"{owner}/{rest}"))
        if found is None:
            raise _unknown_type(name)
        return found

    def of(self, key: TypeKey, ancestors: tuple[TypeKey, ...]) -> EventType:
        """Return the type in which events are read, or the nearest ancestor. Raises `RefusedError`."""
        for known in (key, *ancestors):
            if known in self.by_key:
                return self.by_key[known]
        raise _unknown_type(key.name)


@dataclass(slots=True)
class FileProgress:
    """The progress of a command on a file."""

    word: str
    events: int = 0
    blocks: int = 0
    size: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def rate(self) -> int:
        """Events per second."""
        seconds = time.monotonic() - self.started
        return round(self.events / seconds) if seconds else 0

    def text(self) -> str:
        """Return the counts as a sentence."""
        return f"{self.word} {counted(self.events, 'event')}, {counted(self.blocks, 'block')}, {self.size:,} bytes"

    def live(self) -> str:
        """Return the counts and the rate as a sentence."""
        return f"{self.text()}, {self.rate:,} events/s"

    def as_dict(self) -> dict[str, object]:
        """Return the counts as plain data."""
        return {"events": self.events, "blocks": self.blocks, "octets": self.size}


def check_signed(types: Iterable[EventType], signer: str | None) -> None:
    """Raise `RefusedError` (`seal.unsigned`) for types whose readers require signatures."""
    unsigned = [one.name.name for one in types if one.signed]
    if unsigned and signer is None:
        raise RefusedError("seal.unsigned", f"events of `{unsigned[0]}` must be signed", hint="give --key")


def _unknown_type(name: str) -> RefusedError:
    return RefusedError(
        "seal.unknown-type", f"the type `{name[:120]}` is not among those given", hint="give it with --type-file"
    )


# ----------------------------------------------------------------------------------------------------------------------
# `penstock seal`: seal the events of a file.


#: bytes of blocks for standard output that are buffered in memory; more of them go to a temporary file
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
penstock seal sightings.jsonl --type-file numberplate.type --ring plates.ring --kek plates.kek \\
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
            done.size += write_sealed(stream, data)
            done.events += len(events)
            done.blocks += 1
    if destination.out is None:
        # Standard output has the blocks, and must have nothing else.
        aside(done.text())
        return None
    return CommandAnswer(done.as_dict() | destination.as_dict(), [done.text(), destination.line()])


def _sealer(session: CommandSession, names: NameBook, options: _Seal) -> tuple[KeyRing, Sealer]:
    if (options.sender is None) == (options.key_file is None):
        raise MalformedError(
            "cli.usage", "the sender of the blocks is not given", hint="give --key to sign the blocks, or else --sender"
        )
    ring = options.ring.load()
    signing = None if options.key_file is None else open_key(options.key_file, options.passphrase_file)
    who = signing.principal if signing else names.principal(options.sender or "")
    return ring, Sealer(ring, who, session.random, settings=options.cipher.settings(), signing=signing)


def _level(event_type: EventType) -> Level:
    if event_type.sealing is Sealing.NONE:
        raise RefusedError(
            "seal.level",
            f"the owner of `{event_type.name.name}` does not want its events sealed",
            hint="`penstock type edit --seal attribute` makes a version whose events are sealed",
        )
    return _LEVELS[event_type.sealing]


def _events(session: CommandSession, source: BinaryIO, file: str, types: Types) -> Iterator[TransitEvent]:
    """Read events line by line. Raises `MalformedError` with the number of the line."""
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
    """Group events by type, as many as fit into a block."""
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
        # Standard output could not be taken back if a later line is not an event.
        with SpooledTemporaryFile(_IN_MEMORY) as waiting:
            yield waiting
            waiting.seek(0)
            copyfileobj(waiting, sys.stdout.buffer)
    else:
        with filling(destination.out, overwrite=destination.overwrite) as stream:
            yield stream


# ----------------------------------------------------------------------------------------------------------------------
# `penstock open`: open the sealed blocks of a file.


#: problems that are listed one by one
_SHOWN: Final = 10
_Print = Callable[[Event, Principal], None]


@option_class
class _Open:
    files: tuple[str, ...] = argument(nargs=-1, required=True, metavar="FILE...")
    types: TypesOptions
    ring: RingOptions
    verify: bool = option(
        "--verify", is_flag=True, help="Open only signed blocks, also of types that need no signature."
    )
    destination: OutputFile
    at: AtOption
    output: str = output_option()
    names: NamesOption


@command(
    name="open",
    example="""
penstock open sightings.sealed --type-file numberplate.type --ring statistics.ring --kek statistics.kek
penstock open sightings.sealed --type-file numberplate.type --ring plates.ring --kek plates.kek \\
    --verify --out sightings.jsonl
penstock open met.state/quarantine/*.sealed --type-file numberplate.type --ring plates.ring --kek plates.kek
""",
)
def open_(session: CommandSession, options: _Open) -> CommandAnswer | None:
    """Open the sealed blocks in each FILE, and show what can be read of them; - reads standard input.

    Blocks come from `penstock seal`, or from a broker that refused and kept them (`quarantine` in its state folder).
    Attributes for which the ring has no key are null, and are listed at the end. A block that does not open is listed
    with its code; the others are shown, and the exit status is 1. A block that occurs twice is shown once. With --out
    or -o json each event is a CloudEvent, which `penstock pub` and `penstock seal` accept; its source is the principal
    that sealed it.

    A signed block is opened if its signature is valid, and the output shows who signed it. If the type's owner requires
    signatures, only signed blocks are opened; with --verify this applies to all types. A signature shows who sealed a
    block. Run `penstock explain` to see whether that principal may publish such events.
    """
    destination = options.destination
    destination.check()
    names = options.names.load()
    types = options.types.load(names, options.at.moment(session))
    ring = options.ring.load()
    opening = _Opening(types.opener(ring), types, verify=options.verify)
    with _printing(destination, as_json=wants_data()) as show, showing(opening.done.live):
        for file in options.files:
            with reading(file) as source:
                for events, sender in opening.events(file, read_sealed(source)):
                    for event in events:
                        show(event, sender)
    lines = _summary(opening, names)
    if destination.out is None:
        # The events are on standard output.
        for line in lines:
            aside(printable(line))
        if (error := opening.error()) is not None:
            raise error
        return None
    return CommandAnswer(opening.as_dict() | destination.as_dict(), [*lines, destination.line()], opening.error())


@dataclass(slots=True)
class _Opening:
    """Open blocks, and count the results."""

    opener: Opener
    types: Types
    verify: bool
    done: FileProgress = field(default_factory=lambda: FileProgress("opened"))
    codes: Counter[str] = field(default_factory=Counter)
    problems: list[dict[str, object]] = field(default_factory=list)
    #: blocks by signer, blocks by sender if they are not signed, and blocks in which an attribute stays closed
    signers: Counter[Principal] = field(default_factory=Counter)
    senders: Counter[Principal] = field(default_factory=Counter)
    closed: Counter[str] = field(default_factory=Counter)
    seen: set[bytes] = field(default_factory=set, repr=False)
    repeated: int = 0

    def events(self, file: str, blocks: Iterator[bytes]) -> Iterator[tuple[Sequence[Event], Principal]]:
        """Yield the events of a file, block by block, with their sender."""
        number = 0
        try:
            for number, data in enumerate(blocks, 1):
                try:
                    found = self._open(data)
                except (MalformedError, RefusedError) as error:
                    self._refuse(file, number, error)
                    continue
                if found is not None:
                    yield found
        except MalformedError as error:
            # The rest of the file cannot be read.
            self._refuse(file, number + 1, error)

    def _open(self, data: bytes) -> tuple[Sequence[Event], Principal] | None:
        block, header = self.opener.open(data), read_header(data)
        event_type = self.types.of(block.names.type, block.names.ancestors)
        if signed := self.verify or event_type.signed or header.fixed.signed:
            self.opener.verify(data, block)
        # Only an opened block proves that the header is the sender's.
        if (known := header.fixed.sender + header.id) in self.seen:
            self.repeated += 1
            return None
        events = [event.to_event(event_type) for event in block.events()]
        self.seen.add(known)
        (self.signers if signed else self.senders)[header.sender] += 1
        pairs = zip(block.names.attributes, block.columns, strict=True)
        self.closed.update(_named(event_type, name) for name, column in pairs if column is None)
        self.done.blocks += 1
        self.done.events += len(events)
        self.done.size += len(data)
        return events, header.sender

    def _refuse(self, file: str, number: int, error: PenstockError) -> None:
        self.codes[error.code] += 1
        if len(self.problems) < _SHOWN:
            self.problems.append({"file": file, "block": number, "code": error.code, "message": error.message})

    def as_dict(self) -> dict[str, object]:
        """Return the results as plain data."""
        return {
            **self.done.as_dict(),
            "repeated": self.repeated,
            "closed": dict(sorted(self.closed.items())),
            "signed": {str(who): blocks for who, blocks in self.signers.items()},
            "senders": {str(who): blocks for who, blocks in self.senders.items()},
            "refused": self.codes.total(),
            "codes": dict(sorted(self.codes.items())),
            "problems": self.problems,
        }

    def error(self) -> RefusedError | None:
        """Return the error for blocks that cannot be opened, if there are any."""
        if not self.codes:
            return None
        code, total = self.codes.most_common(1)[0][0], self.codes.total()
        why = f"most of them by `{code}`" if total > 1 else f"by `{code}`"
        return RefusedError(
            "open.refused",
            f"{counted(total, 'block')} cannot be opened, {why}",
            hint="docs/how-to/seal-files.md says what to do about each code",
        )


def _named(event_type: EventType, attribute: str) -> str:
    found = next((known for known in event_type.attributes if known.id == attribute), None)
    return attribute if found is None else found.name


@contextmanager
def _printing(destination: OutputFile, *, as_json: bool) -> Iterator[_Print]:
    if destination.out is None:
        yield _to_screen(as_json=as_json)
    elif destination.dry_run:
        yield lambda _event, _sender: None
    else:
        # Only for the principal that opened it: the events were sealed to be kept from others.
        with filling(destination.out, mode=SECRET, overwrite=destination.overwrite) as stream:
            yield lambda event, sender: _ignore(stream.write(f"{cloud_event(event, str(sender))}\n".encode()))


def _ignore(_written: int) -> None:
    """Ignore the number of characters that were written: all of them were."""


def _to_screen(*, as_json: bool) -> _Print:
    shown: dict[str, Rows] = {}

    def show(event: Event, sender: Principal) -> None:
        if as_json:
            click.echo(cloud_event(event, str(sender)))
            return
        name = str(event.type.name)
        if name not in shown:
            shown.clear()
            shown[name] = Rows(event.type)
            say(shown[name].heading())
        say(shown[name].row(event))

    return show


def _summary(opening: _Opening, names: NameBook) -> Iterator[str]:
    yield opening.done.text()
    for words, found in (("signed by", opening.signers), ("sealed in the name of", opening.senders)):
        for who, blocks in found.most_common():
            yield f"{words} {names.show(who)}: {counted(blocks, 'block')}"
    for name, blocks in sorted(opening.closed.items()):
        yield f"no key for {name}: {counted(blocks, 'block')}"
    if opening.repeated:
        yield f"left out, because they came before: {counted(opening.repeated, 'block')}"
    for problem in opening.problems:
        yield f"{problem['file']}, block {problem['block']}: {problem['message']} [{problem['code']}]"


# ----------------------------------------------------------------------------------------------------------------------
# `penstock proof`: prove one signed event, with some of its attributes, to somebody without keys.


@click.group(cls=Verbs)
def proof() -> None:
    """Make and verify proofs of single events, for those who have no keys."""


@option_class
class _NewProof:
    files: tuple[str, ...] = argument(nargs=-1, required=True, metavar="FILE...")
    event_id: str = option("--event", required=True, metavar="ID", help="Prove the event with this id.")
    shown: tuple[str, ...] = option(
        "--show", multiple=True, metavar="NAME", help="Show this attribute. Can be repeated."
    )
    types: TypesOptions
    ring: RingOptions
    destination: OutputFile
    at: AtOption
    output: str = output_option()
    names: NamesOption


@command(
    proof,
    "new",
    example="""
penstock proof new sightings.sealed --event 71c9 --show plate --type-file numberplate.type \\
    --ring plates.ring --kek plates.kek --out seen.proof
""",
)
def new(session: CommandSession, options: _NewProof) -> CommandAnswer:
    """Prove an event that is sealed in a FILE, to show it to anybody; - reads standard input.

    The block must be signed (`penstock seal --key`, or by a broker if the type requires it). The proof has the event's
    id and time, and the attributes that you show. It lists the other attributes without their values. It names the
    type, even if the type is blinded. `penstock open -o json` shows the ids.
    """
    destination = options.destination
    destination.check()
    types = options.types.load(options.names.load(), options.at.moment(session))
    signed, place = _find(types.opener(options.ring.load()), options.files, options.event_id)
    names = signed.block.names
    event_type = types.of(names.type, names.ancestors)
    made = signed.prove(place, [_column(event_type, signed.block, name) for name in options.shown])
    return destination.answer(made.to_sexp(), _described(verify_proof(made), event_type))


def _find(opener: Opener, files: tuple[str, ...], event_id: str) -> tuple[SignedBlock, int]:
    """Return the block of an event, and its row. Raises `RefusedError` (`proof.unknown-event`, `seal.*`)."""
    closed = Counter[str]()
    for data in _blocks(files):
        try:
            block = opener.open(data)
        except (MalformedError, RefusedError) as error:
            closed[error.code] += 1
            continue
        if event_id in block.ids:
            return opener.verify(data, block), list(block.ids).index(event_id)
    raise RefusedError(
        "proof.unknown-event",
        f"no block that can be opened has an event `{event_id[:80]}`",
        hint=f"{closed.total()} do not open: {', '.join(closed)}" if closed else "`penstock open -o json` shows ids",
    )


def _blocks(files: tuple[str, ...]) -> Iterator[bytes]:
    for file in files:
        with reading(file) as source, within(file):
            yield from read_sealed(source)


def _column(event_type: EventType, block: Block, name: str) -> str:
    """Return the id of an attribute that can be shown. Raises `MalformedError` and `RefusedError`."""
    found = str(event_type.attribute(name).id)
    if dict(zip(block.names.attributes, block.columns, strict=True)).get(found) is None:
        raise RefusedError(
            "seal.unknown-key", f"`{name}` cannot be read, so it cannot be shown", hint="its key is not in the ring"
        )
    return found


@option_class
class _VerifyProof:
    file: str = argument(metavar="FILE")
    types: OptionalTypesOptions
    at: AtOption
    output: str = output_option()
    names: NamesOption


@command(proof, "verify", example="penstock proof verify seen.proof --type-file numberplate.type")
def verify(session: CommandSession, options: _VerifyProof) -> CommandAnswer:
    """Verify a proof in FILE, and show the event that it proves and who signed it. You need no key.

    With --type-file, attributes have the names that their owner gave them. A proof shows who signed an event. Run
    `penstock explain` to see whether that principal may publish such events.
    """
    names = options.names.load()
    try:
        value = read_sexp(options.file)
    except MalformedError as error:
        error.hint = "a proof is what `penstock proof new` wrote: is it the right file?"
        raise
    with within(options.file):
        proven = verify_proof(EventProof.from_sexp(value))
    event_type = None
    if options.types.type_files:
        types = options.types.load(names, options.at.moment(session))
        event_type = types.of(proven.event.key, proven.event.ancestors)
    found = _described(proven, event_type)
    hidden = dict.fromkeys(_hidden(proven, event_type), "(hidden)")
    rows = [(name, "-" if value is None else str(value)) for name, value in _values(proven, event_type).items()]
    shown: list[Shown] = [
        f"✓ signed by {names.show(proven.sender)}",
        f"sealed  {found['sealed']}",
        f"type    {names.show(proven.event.key.owner)}/{proven.event.key.name}",
        f"id      {proven.event.id}",
        f"time    {found['time'] or '-'}",
        grid_table(("attribute", "value"), [*rows, *hidden.items()]),
    ]
    return CommandAnswer(found, shown)


def _described(proven: ProvenEvent, event_type: EventType | None) -> dict[str, object]:
    event = proven.event
    return {
        "sender": str(proven.sender),
        "sealed": plain(proven.sealed),
        "type": str(event.key),
        "id": event.id,
        "time": plain(event.time),
        "attributes": _values(proven, event_type),
        "hidden": _hidden(proven, event_type),
    }


def _values(proven: ProvenEvent, event_type: EventType | None) -> dict[str, object]:
    values = proven.event.values
    return {_name(event_type, one): plain(values.get(one)) for one in proven.attributes}


def _hidden(proven: ProvenEvent, event_type: EventType | None) -> list[str]:
    return [_name(event_type, one) for one in proven.hidden]


def _name(event_type: EventType | None, attribute: str) -> str:
    known = () if event_type is None else event_type.attributes
    return next((one.name for one in known if one.id == attribute), attribute)
