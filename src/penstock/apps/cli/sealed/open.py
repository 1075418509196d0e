"""`penstock open`: open the sealed blocks of a file."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import click

from penstock.apps.cli.sealed.options import FileProgress, RingOptions, Types, TypesOptions
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
from penstock.apps.cli.shared.events import Rows, cloud_event
from penstock.apps.cli.shared.files import SECRET, filling, reading
from penstock.apps.cli.shared.names import NameBook
from penstock.apps.cli.shared.options import AtOption, NamesOption, OutputFile
from penstock.apps.cli.shared.session import CommandSession, say
from penstock.apps.cli.shared.terminal import showing
from penstock.codec.blocks import read_header
from penstock.crypto.opener import Opener
from penstock.errors import MalformedError, PenstockError, RefusedError, printable
from penstock.model.events import Event
from penstock.model.principals import Principal
from penstock.model.types import EventType
from penstock.store.files.sealed_files import read_sealed

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
penstock open sightings.sealed --type numberplate.type --keys statistics.ring --kek statistics.kek
penstock open sightings.sealed --type numberplate.type --keys plates.ring --kek plates.kek \\
    --verify --out sightings.jsonl
penstock open met.state/quarantine/*.sealed --type numberplate.type --keys plates.ring --kek plates.kek
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
    lines = _lines(opening, names)
    if destination.out is None:
        # Beside the events, which go to standard output.
        for line in lines:
            click.echo(printable(line), err=True)
        if (error := opening.error()) is not None:
            raise error
        return None
    return CommandAnswer(opening.as_dict() | destination.as_dict(), [*lines, destination.line()], opening.error())


@dataclass(slots=True)
class _Opening:
    """Opens blocks and counts what became of them."""

    opener: Opener
    types: Types
    verify: bool
    done: FileProgress = field(default_factory=lambda: FileProgress("opened"))
    codes: Counter[str] = field(default_factory=Counter)
    problems: list[dict[str, object]] = field(default_factory=list)
    #: blocks by who has signed them, or else in whose name they are, and blocks in which an attribute is closed
    signers: Counter[Principal] = field(default_factory=Counter)
    senders: Counter[Principal] = field(default_factory=Counter)
    closed: Counter[str] = field(default_factory=Counter)
    seen: set[bytes] = field(default_factory=set, repr=False)
    repeated: int = 0

    def events(self, file: str, blocks: Iterator[bytes]) -> Iterator[tuple[Sequence[Event], Principal]]:
        """Yield the events of one block of a file after another, and who has sealed them."""
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
            # The file itself ends here.
            self._refuse(file, number + 1, error)

    def _open(self, data: bytes) -> tuple[Sequence[Event], Principal] | None:
        block, header = self.opener.open(data), read_header(data)
        event_type = self.types.of(block.names.type, block.names.ancestors)
        if signed := self.verify or event_type.signed or header.fixed.signed:
            self.opener.verify(data, block)
        # Only now is it known that the header is its sender's.
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
        self.done.octets += len(data)
        return events, header.sender

    def _refuse(self, file: str, number: int, error: PenstockError) -> None:
        self.codes[error.code] += 1
        if len(self.problems) < _SHOWN:
            self.problems.append({"file": file, "block": number, "code": error.code, "message": error.message})

    def as_dict(self) -> dict[str, object]:
        """Return what became of the blocks as plain data."""
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
        # For who opened it alone: that is what it was sealed for.
        with filling(destination.out, mode=SECRET, overwrite=destination.overwrite) as stream:
            yield lambda event, sender: _ignore(stream.write(f"{cloud_event(event, str(sender))}\n".encode()))


def _ignore(_written: int) -> None:
    """Take no notice of how much was written: it was all."""


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


def _lines(opening: _Opening, names: NameBook) -> Iterator[str]:
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
