"""`penstock type`: define event types, make new versions of them, look at them, verify them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import click

from penstock.apps.cli.shared import options
from penstock.apps.cli.shared import terminal as paint
from penstock.apps.cli.shared.attributes import parse_attribute, parse_spec, split_attribute, split_pair
from penstock.apps.cli.shared.credentials import Shelf, load_credentials, load_type, show_type
from penstock.apps.cli.shared.describe import Wording, name_data, spec_text, type_data, validity_data
from penstock.apps.cli.shared.groups import Verbs, example
from penstock.apps.cli.shared.names import load_names
from penstock.apps.cli.shared.options import JSON, SEXP, moment
from penstock.apps.cli.shared.session import CommandSession, one_answer, say_block, say_json
from penstock.apps.cli.types.signatures import TypeSigner, shown_facts, shown_problem, signing_options, verified_facts
from penstock.codec.sexp import advanced
from penstock.errors import MalformedError
from penstock.model.changes import AttributeChange, changes
from penstock.model.names import TypeName
from penstock.model.types import Sealing, TypeDefinition
from penstock.trust.event_types import UnverifiedType, sign_type

# ----------------------------------------------------------------------------------------------------------------------
# The changes that `penstock type edit` makes, in their order, as one new version.


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """What is to be changed, as it was written. Removed first, then renamed, then retyped, then added."""

    add: tuple[str, ...]
    remove: tuple[str, ...]
    rename: tuple[str, ...]
    retype: tuple[str, ...]
    #: how it is sealed from now on; None for what stays as it is
    sealing: Sealing | None = None
    blinded: bool | None = None
    signed: bool | None = None

    def apply(self, before: TypeDefinition, version: str, new_uid: Callable[[], str]) -> TypeDefinition:
        """Return the next version. Raises `MalformedError` (`cli.no-change` and what the changes raise)."""
        changed = self.add or self.remove or self.rename or self.retype
        if not changed and (self.sealing, self.blinded, self.signed) == (None, None, None):
            raise MalformedError(
                "cli.no-change", "nothing is changed", hint="give --add, --remove, --rename, --retype or --seal"
            )
        definition = before
        steps = iter(range(len(self.add) + len(self.remove) + len(self.rename) + len(self.retype)))
        # Each step gives a version of its own; only the last one is kept.
        for name in self.remove:
            definition = definition.remove(name, version=f"step-{next(steps)}")
        for written in self.rename:
            definition = definition.rename(*split_pair(written, "OLD=NEW"), version=f"step-{next(steps)}")
        for written in self.retype:
            name, uid, spec = split_attribute(written)
            definition = definition.retype(name, uid or new_uid(), parse_spec(spec), version=f"step-{next(steps)}")
        for written in self.add:
            made = parse_attribute(written, new_uid())
            definition = definition.add(made.name, made.uid, made.spec, version=f"step-{next(steps)}")
        return replace(
            definition,
            name=replace(before.name, version=version),
            previous=before.name.version,
            sealing=before.sealing if self.sealing is None else self.sealing,
            blinded=before.blinded if self.blinded is None else self.blinded,
            signed=before.signed if self.signed is None else self.signed,
        )


# ----------------------------------------------------------------------------------------------------------------------
# `penstock type`: define event types, make new versions of them, look at them, verify them.


@click.group("type", cls=Verbs)
def type_() -> None:
    """Signed event types and their versions."""


def seal_option(default: str) -> Callable[[options.F], options.F]:
    """Add `--seal`, `--blinded` and `--signed`."""
    sealed = click.option(
        "--seal",
        type=click.Choice([str(level) for level in Sealing]),
        help=f"How events are sealed between brokers: each as a whole or by attribute (default: {default}).",
    )
    blinded = click.option(
        "--blinded/--not-blinded",
        default=None,
        help=f"Whether brokers without the keys are not told which type they carry (default: {default}).",
    )
    signed = click.option(
        "--signed/--unsigned",
        default=None,
        help=f"Whether brokers sign what they publish, so that who reads cannot forge it (default: {default}).",
    )
    return lambda command: sealed(blinded(signed(command)))


@type_.command()
@click.argument("type_name", metavar="NAME")
@options.key_options
@click.option("--attribute", "attributes", multiple=True, metavar="NAME:KIND[:DOMAIN]", help="An attribute; repeat it.")
@click.option("--version", default="0", show_default=True, metavar="VERSION", help="The first version.")
@click.option("--owner", **options.WHO, help="Whose type it is, where that is not the signing key.")
@click.option("--extends", metavar="FILE", help="The signed type that this one extends.")
@seal_option("as what it extends")
@signing_options
@options.shelf_options
@options.write_options
@options.output_option()
@options.names_option
@click.pass_obj
@example(
    """
penstock type define uk.gov.pito.Numberplate --key pito.key --attribute numberplate:string \\
    --attribute timestamp:timestamp --attribute speed:integer:0..200 \\
    --attribute 'zone:string:north|south' --out numberplate.type
"""
)
def define(  # noqa: PLR0913  # one argument an option
    session: CommandSession,
    /,
    *,
    type_name: str,
    attributes: tuple[str, ...],
    version: str,
    owner: str | None,
    extends: str | None,
    seal: str | None,
    blinded: bool | None,
    signed: bool | None,
    parent: tuple[str, ...],
    previous: tuple[str, ...],
    **signing: Any,
) -> None:
    """Define the event type NAME and sign it.

    Kinds are string, integer, float, boolean and timestamp. A domain is a range or a list of values. Each attribute
    gets an id that stays when it is renamed; write NAME#ID:KIND to choose it yourself.
    """
    making = TypeSigner.of(session, **signing)
    shelf = Shelf.of(*parent, *previous, *([] if extends is None else [extends]))
    above = None if extends is None else load_type(extends).definition
    key = making.key()
    principal = making.owner(owner, key)
    definition = TypeDefinition(
        TypeName(principal, type_name, version),
        # Paper 5, section 4.3.2: in the first version there is nobody to collide with, and short ids read well.
        tuple(parse_attribute(written, str(number)) for number, written in enumerate(attributes)),
        None if above is None else above.name,
        sealing=Sealing(seal) if seal else above.sealing if above else Sealing.NONE,
        blinded=above is not None and above.blinded if blinded is None else blinded,
        signed=above is not None and above.signed if signed is None else signed,
    )
    made = sign_type(definition, key, making.credentials_for(principal, owner))
    if not making.unchecked:
        shelf.verify(made, session.now)
    _finish(making, made)


@type_.command()
@click.argument("file")
@options.key_options
@click.option("--add", multiple=True, metavar="NAME:KIND[:DOMAIN]", help="Add an attribute.")
@click.option("--remove", multiple=True, metavar="NAME", help="Remove an attribute.")
@click.option("--rename", multiple=True, metavar="OLD=NEW", help="Rename an attribute; it keeps its id.")
@click.option("--retype", multiple=True, metavar="NAME:KIND[:DOMAIN]", help="Change an attribute's kind; a new id.")
@click.option("--version", metavar="VERSION", help="The new version (default: one that nobody else will choose).")
@seal_option("as before")
@signing_options
@options.shelf_options
@options.write_options
@options.output_option()
@options.names_option
@click.pass_obj
@example(
    """
penstock type edit numberplate.type --key pito.key --add colour:string --rename location=place \\
    --out numberplate-2.type
"""
)
def edit(  # noqa: PLR0913  # one argument an option
    session: CommandSession,
    /,
    *,
    file: str,
    add: tuple[str, ...],
    remove: tuple[str, ...],
    rename: tuple[str, ...],
    retype: tuple[str, ...],
    version: str | None,
    seal: str | None,
    blinded: bool | None,
    signed: bool | None,
    parent: tuple[str, ...],
    previous: tuple[str, ...],
    **signing: Any,
) -> None:
    """Make a new version of the signed type in FILE.

    Attributes are removed first, then renamed, then retyped, then added. Without --credential, those in FILE are
    used again.
    """
    making = TypeSigner.of(session, **signing)
    shelf = Shelf.of(*parent, *previous, file)
    before = load_type(file)
    if not making.unchecked:
        # A version that is built on a forged one would make the forgery look real.
        shelf.verify(before, session.now)
    sealing = None if seal is None else Sealing(seal)
    wanted = Edits(
        add=add, remove=remove, rename=rename, retype=retype, sealing=sealing, blinded=blinded, signed=signed
    )
    definition = wanted.apply(before.definition, version or session.random(16).hex(), lambda: new_uid(session))
    key = making.key()
    bag = load_credentials(making.credentials) if making.credentials else before.credentials.verify()
    made = sign_type(definition, key, bag)
    if not making.unchecked:
        shelf.verify(made, session.now)
    _finish(making, made, changes(before.definition, definition))


def _finish(making: TypeSigner, signed: UnverifiedType, made: tuple[AttributeChange, ...] = ()) -> None:
    name = signed.definition.name
    told = [
        {"operation": str(change.operation), "name": change.name, "uid": change.uid, "new_name": change.new_name}
        for change in made
    ]
    lines = (f"  {one.operation} {one.name}{f' to {one.new_name}' if one.new_name else ''}" for one in made)
    shown = f"{making.names.show(name.owner)}/{name.name}@{name.version}"
    making.finish(signed, "type", type_data(signed) | {"changes": told}, [shown, *lines])


def new_uid(session: CommandSession) -> str:
    """Return an id for an attribute: several managers may add some at once, and none may ever come back."""
    return session.random(6).hex()


@type_.command()
@click.argument("file")
@options.output_option(SEXP)
@options.names_option
@example("penstock type show numberplate.type")
def show(*, file: str, output: str, names_file: str | None) -> None:
    """Show the event type in FILE, as it says; `penstock type verify` says whether to believe it."""
    names = load_names(names_file)
    shown = show_type(file)
    unverified = shown.unverified
    if output == SEXP:
        say_block(advanced(shown.value))
    elif output == JSON:
        say_json(type_data(unverified) | shown_problem(shown))
    else:
        definition = unverified.definition
        facts = [("type", definition.name.name), ("version", definition.name.version)]
        facts.append(("owner", names.show(definition.name.owner)))
        if definition.previous is not None:
            facts.append(("made from", definition.previous))
        if definition.sealing is not Sealing.NONE:
            flags = f"{', blinded' if definition.blinded else ''}{', signed' if definition.signed else ''}"
            facts.append(("sealed", f"by {definition.sealing}{flags}"))
        if definition.extends is not None:
            parent = definition.extends
            facts.append(("extends", f"{names.show(parent.owner)}/{parent.name}@{parent.version}"))
        paint.facts([*facts, *shown_facts(shown, names)])
        paint.line()
        paint.grid(("attribute", "id", "kind"), [(a.name, a.uid, spec_text(a.spec)) for a in definition.attributes])


@type_.command()
@click.argument("file")
@click.option("--network", metavar="OWNER/NAME", help="Check as well that it may be installed on this network.")
@options.shelf_options
@options.at_option
@options.output_option()
@options.names_option
@click.pass_obj
@example("penstock type verify numberplate-2.type --previous numberplate.type")
def verify(  # noqa: PLR0913  # one argument an option
    session: CommandSession,
    *,
    file: str,
    network: str | None,
    parent: tuple[str, ...],
    previous: tuple[str, ...],
    at: str | None,
    output: str,
    names_file: str | None,
) -> None:
    """Check that the event type in FILE is what its owner, or whom the owner let manage it, has signed.

    Shows who signed it, through which certificates they may, and until when that holds.
    """
    with one_answer({"ok": False}, as_json=output == JSON):
        names = load_names(names_file)
        unverified = load_type(file)
        place = None if network is None else names.network(network)
        verified = Shelf.of(*parent, *previous).verify(unverified, moment(at, session), place)
    if output == JSON:
        say_json(
            {
                "ok": True,
                "id": verified.id,
                **name_data(verified.event_type.name),
                "signer": str(verified.signer),
                **validity_data(verified.validity),
                "because": list(verified.because),
                "attributes": [{"name": a.name, "id": str(a.id)} for a in verified.event_type.attributes],
            }
        )
        return
    wording = Wording(names, verified.event_type)
    name = verified.event_type.name
    paint.line(f"✓ {wording.who(name.owner)}/{name.name}@{name.version}")
    facts = verified_facts(verified, unverified, wording, place)
    paint.facts([*facts, ("attributes", ", ".join(verified.event_type.by_name))], indent=2)
