"""`penstock proof`: one signed event for somebody who holds no keys, with some of its attributes."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import click

from penstock.apps.cli.sealed.options import Types, load_ring, optional_types_options, ring_options, types_options
from penstock.apps.cli.shared import options
from penstock.apps.cli.shared import terminal as paint
from penstock.apps.cli.shared.events import plain
from penstock.apps.cli.shared.files import Destination, read_sexp, reading, within
from penstock.apps.cli.shared.groups import Verbs, example
from penstock.apps.cli.shared.names import load_names
from penstock.apps.cli.shared.options import JSON, moment
from penstock.apps.cli.shared.session import CommandSession, say, say_block, say_json
from penstock.codec.blocks import Block
from penstock.codec.sexp import advanced
from penstock.crypto.opener import Opener
from penstock.crypto.signed_blocks import EventProof, ProvenEvent, SignedBlock, verify_proof
from penstock.errors import MalformedError, RefusedError
from penstock.model.types import EventType
from penstock.store.files.sealed_files import read_sealed


@click.group(cls=Verbs)
def proof() -> None:
    """Proofs of single events, for those who hold no keys."""


@proof.command("make")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--event", "event_id", required=True, metavar="ID", help="The id of the event.")
@click.option("--show", "shown", multiple=True, metavar="NAME", help="An attribute that is shown; repeat it.")
@types_options
@ring_options
@options.write_options
@options.at_option
@options.output_option()
@options.names_option
@click.pass_obj
@example(
    """
penstock proof make sightings.sealed --event 71c9 --show plate --type numberplate.type \\
    --keys plates.ring --kek plates.kek --out seen.proof
"""
)
def make(  # noqa: PLR0913  # one argument an option
    session: CommandSession,
    /,
    *,
    files: tuple[str, ...],
    event_id: str,
    shown: tuple[str, ...],
    type_files: tuple[str, ...],
    parent: tuple[str, ...],
    previous: tuple[str, ...],
    out: str | None,
    overwrite: bool,
    dry_run: bool,
    at: str | None,
    output: str,
    names_file: str | None,
    **keys: Any,
) -> None:
    """Prove an event that lies sealed in a FILE, to be shown to anybody; - is standard input.

    The block must be signed (`penstock seal --key`, or by a broker where the type says so). The proof has the id and
    the time of the event, and the attributes that you show; of the others it says that there are such, and nothing of
    their values. It names the type, also where that is blinded. `penstock open
    -o json` shows the ids.
    """
    destination = Destination.free(out, overwrite=overwrite, dry_run=dry_run)
    types = Types.load(load_names(names_file), type_files, parent, previous, moment(at, session))
    ring = load_ring(**keys)
    opener = types.opener(ring)
    signed, place = _find(opener, files, event_id)
    names = signed.block.names
    event_type = types.of(names.type, names.ancestors)
    made = signed.prove(place, [_column(event_type, signed.block, name) for name in shown])
    destination.put(made.to_sexp())
    if output == JSON:
        say_json(_described(verify_proof(made), event_type) | destination.as_dict())
    elif out is None:
        say_block(advanced(made.to_sexp()))
    else:
        say(destination.line())


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


@proof.command("check")
@click.argument("file", metavar="FILE")
@optional_types_options
@options.at_option
@options.output_option()
@options.names_option
@click.pass_obj
@example("penstock proof check seen.proof --type numberplate.type")
def check(  # noqa: PLR0913  # one argument an option
    session: CommandSession,
    /,
    *,
    file: str,
    type_files: tuple[str, ...],
    parent: tuple[str, ...],
    previous: tuple[str, ...],
    at: str | None,
    output: str,
    names_file: str | None,
) -> None:
    """Check a proof in FILE, and show the event that it proves, and who has signed it. No key is needed.

    With --type attributes have the names that their owner gave them. A proof says who has signed an event. Whether he
    may publish such events is what `penstock explain` says.
    """
    names = load_names(names_file)
    try:
        value = read_sexp(file)
    except MalformedError as error:
        error.hint = "a proof is what `penstock proof make` wrote: is it the right file?"
        raise
    with within(file):
        proven = verify_proof(EventProof.from_sexp(value))
    event_type = None
    if type_files:
        types = Types.load(names, type_files, parent, previous, moment(at, session))
        event_type = types.of(proven.event.key, proven.event.ancestors)
    found = _described(proven, event_type)
    if output == JSON:
        say_json(found)
        return
    say(f"✓ signed by {names.show(proven.sender)}")
    say(f"sealed  {found['sealed']}")
    say(f"type    {names.show(proven.event.key.owner)}/{proven.event.key.name}")
    say(f"id      {proven.event.id}")
    say(f"time    {found['time'] or '-'}")
    hidden = dict.fromkeys(_hidden(proven, event_type), "(hidden)")
    rows = [(name, "-" if shown is None else str(shown)) for name, shown in _values(proven, event_type).items()]
    paint.grid(("attribute", "value"), [*rows, *hidden.items()])


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
