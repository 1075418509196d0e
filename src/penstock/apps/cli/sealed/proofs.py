"""`penstock proof`: one signed event for somebody who holds no keys, with some of its attributes."""

from collections import Counter
from collections.abc import Iterator

import click

from penstock.apps.cli.sealed.options import OptionalTypesOptions, RingOptions, TypesOptions
from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.events import plain
from penstock.apps.cli.shared.files import read_sexp, reading, within
from penstock.apps.cli.shared.groups import Verbs
from penstock.apps.cli.shared.options import AtOption, NamesOption, OutputFile
from penstock.apps.cli.shared.session import CommandSession
from penstock.apps.cli.shared.terminal import Shown, grid_table
from penstock.codec.blocks import Block
from penstock.crypto.opener import Opener
from penstock.crypto.signed_blocks import EventProof, ProvenEvent, SignedBlock, verify_proof
from penstock.errors import MalformedError, RefusedError
from penstock.model.types import EventType
from penstock.store.files.sealed_files import read_sealed


@click.group(cls=Verbs)
def proof() -> None:
    """Make and check proofs of single events, for those who have no keys."""


@option_class
class _Make:
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
    "make",
    example="""
penstock proof make sightings.sealed --event 71c9 --show plate --type numberplate.type \\
    --keys plates.ring --kek plates.kek --out seen.proof
""",
)
def make(session: CommandSession, options: _Make) -> CommandAnswer:
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
    """Return the block that has an event, and where. Raises `RefusedError` (`proof.unknown-event`, `seal.*`)."""
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
        f"no block that opens has an event `{event_id[:80]}`",
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
            "seal.unknown-key", f"`{name}` cannot be read, and so not be shown", hint="its key is not in the ring"
        )
    return found


@option_class
class _Check:
    file: str = argument(metavar="FILE")
    types: OptionalTypesOptions
    at: AtOption
    output: str = output_option()
    names: NamesOption


@command(proof, "check", example="penstock proof check seen.proof --type numberplate.type")
def check(session: CommandSession, options: _Check) -> CommandAnswer:
    """Check a proof in FILE, and show the event that it proves and who signed it. You need no key.

    With --type attributes have the names that their owner gave them. A proof shows who signed an event. Run `penstock
    explain` to see whether that principal may publish such events.
    """
    names = options.names.load()
    try:
        value = read_sexp(options.file)
    except MalformedError as error:
        error.hint = "a proof is what `penstock proof make` wrote: is it the right file?"
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
