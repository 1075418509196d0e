"""`penstock type`: define event types, make new versions of them, look at them, verify them."""

import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click

from penstock.apps.cli.shared.attributes import parse_attribute, parse_spec, split_attribute, split_pair
from penstock.apps.cli.shared.commands import (
    CommandAnswer,
    argument,
    command,
    one_answer,
    option,
    option_class,
    output_option,
)
from penstock.apps.cli.shared.credentials import load_credentials, load_type, show_type
from penstock.apps.cli.shared.describe import Wording, name_data, spec_text, type_data, validity_data
from penstock.apps.cli.shared.groups import Verbs
from penstock.apps.cli.shared.names import NameBook
from penstock.apps.cli.shared.options import (
    SEXP,
    WHO,
    AtOption,
    KeyOptions,
    NamesOption,
    OutputFile,
    ShelfOptions,
)
from penstock.apps.cli.shared.session import CommandSession
from penstock.apps.cli.shared.terminal import fact_table, grid_table
from penstock.apps.cli.types.signatures import (
    TypeSigner,
    TypeSigningOptions,
    shown_facts,
    shown_problem,
    verified_facts,
)
from penstock.codec.sexp import advanced
from penstock.errors import MalformedError
from penstock.model.changes import AttributeChange, changes
from penstock.model.event_classes import EventClass, event_class_of
from penstock.model.names import TypeName
from penstock.model.principals import Principal
from penstock.model.types import Sealing, TypeDefinition
from penstock.trust.event_types import UnverifiedType, sign_type

# ----------------------------------------------------------------------------------------------------------------------
# The changes that `penstock type edit` makes, in their order, as one new version.


_AS_BEFORE: Final = "default: as the type that it extends, or its version before"


@option_class
class SealingOptions:
    """How events of a type are sealed; None leaves it as it is."""

    seal: str | None = option(
        "--seal",
        type=click.Choice([str(level) for level in Sealing]),
        help=f"Seal events between brokers, each as a whole or by attribute ({_AS_BEFORE}).",
    )
    blinded: bool | None = option(
        "--blinded/--not-blinded",
        default=None,
        help=f"Hide from brokers without the keys which type they carry ({_AS_BEFORE}).",
    )
    signed: bool | None = option(
        "--signed/--unsigned",
        default=None,
        help=f"Have brokers sign what they publish, so that readers cannot forge it ({_AS_BEFORE}).",
    )

    def apply(self, definition: TypeDefinition) -> TypeDefinition:
        """Return a type that is sealed so."""
        return replace(
            definition,
            sealing=definition.sealing if self.seal is None else Sealing(self.seal),
            blinded=definition.blinded if self.blinded is None else self.blinded,
            signed=definition.signed if self.signed is None else self.signed,
        )


@option_class
class EditOptions:
    """The changes, as given. Removed first, then renamed, then retyped, then added."""

    add: tuple[str, ...] = option("--add", multiple=True, metavar="NAME:KIND[:DOMAIN]", help="Add an attribute.")
    remove: tuple[str, ...] = option("--remove", multiple=True, metavar="NAME", help="Remove an attribute.")
    rename: tuple[str, ...] = option(
        "--rename", multiple=True, metavar="OLD=NEW", help="Rename an attribute and keep its id."
    )
    retype: tuple[str, ...] = option(
        "--retype", multiple=True, metavar="NAME:KIND[:DOMAIN]", help="Change an attribute's kind and give it a new id."
    )
    version: str | None = option("--version", metavar="VERSION", help="Name the new version (default: a random name).")
    sealing: SealingOptions

    def apply(self, before: TypeDefinition, session: CommandSession) -> TypeDefinition:
        """Return the next version. Raises `MalformedError` (`cli.no-change` and what the changes raise)."""
        sealing = self.sealing
        changed = self.add or self.remove or self.rename or self.retype
        if not changed and (sealing.seal, sealing.blinded, sealing.signed) == (None, None, None):
            raise MalformedError(
                "cli.no-change", "nothing is changed", hint="give --add, --remove, --rename, --retype or --seal"
            )
        version = self.version or session.random(16).hex()
        definition = before
        steps = iter(range(len(self.add) + len(self.remove) + len(self.rename) + len(self.retype)))
        # Each step gives a version of its own; only the last one is kept.
        for name in self.remove:
            definition = definition.remove(name, version=f"step-{next(steps)}")
        for written in self.rename:
            definition = definition.rename(*split_pair(written, "OLD=NEW"), version=f"step-{next(steps)}")
        for written in self.retype:
            name, uid, spec = split_attribute(written)
            definition = definition.retype(
                name, uid or new_uid(session), parse_spec(spec), version=f"step-{next(steps)}"
            )
        for written in self.add:
            made = parse_attribute(written, new_uid(session))
            definition = definition.add(made.name, made.uid, made.spec, version=f"step-{next(steps)}")
        next_name = replace(before.name, version=version)
        return sealing.apply(replace(definition, name=next_name, previous=before.name.version))


# ----------------------------------------------------------------------------------------------------------------------
# `penstock type`: define event types, make new versions of them, look at them, verify them.


@click.group("type", cls=Verbs)
def type_() -> None:
    """Manage signed event types and their versions."""


@option_class
class _Define:
    type_name: str | None = argument(metavar="[NAME]", required=False)
    key: KeyOptions
    event_class: str | None = option(
        "--from", metavar="MODULE:CLASS", help="Take the name and the attributes from an event class of your program."
    )
    attributes: tuple[str, ...] = option(
        "--attribute", multiple=True, metavar="NAME:KIND[:DOMAIN]", help="Declare an attribute. Can be repeated."
    )
    version: str = option(
        "--version", default="0", show_default=True, metavar="VERSION", help="Name the first version."
    )
    owner: str | None = option("--owner", **WHO, help="Set the type's owner (default: the signing key).")
    extends: str | None = option("--extends", metavar="FILE", help="Extend this signed type.")
    sealing: SealingOptions
    signing: TypeSigningOptions
    shelf: ShelfOptions
    destination: OutputFile
    output: str = output_option()
    names: NamesOption

    def definition(self, owner: Principal, extends: TypeName | None, names: NameBook) -> TypeDefinition:
        """Return the type that is meant. Raises `MalformedError` (`cli.usage`, `event.class`, and as the parts)."""
        if self.event_class is not None and (self.attributes or self.type_name is not None or self.version != "0"):
            raise MalformedError(
                "cli.usage",
                "an event class gives the name, the version and the attributes",
                hint="leave NAME, --version and --attribute out, or --from",
            )
        if self.event_class is not None:
            known = load_event_class(self.event_class)
            if known.owner and names.principal(known.owner) != owner:
                raise MalformedError(
                    "event.class",
                    f"`{self.event_class[:80]}` says that `{known.owner}` owns the type, and {names.show(owner)} would",
                    hint=f"sign with the key of `{known.owner}`, or change the class",
                )
            return known.definition(owner, extends)
        if self.type_name is None:
            raise MalformedError("cli.usage", "which event type?", hint="give NAME, or an event class with --from")
        # Paper 5, section 4.3.2: in the first version there is nobody to conflict with, and short ids read well.
        attributes = (parse_attribute(written, str(number)) for number, written in enumerate(self.attributes))
        return TypeDefinition(TypeName(owner, self.type_name, self.version), tuple(attributes), extends)


def load_event_class(written: str) -> EventClass[Any]:
    """Import `module:Class`, from the working folder too. Raises `MalformedError` (`cli.class`, `event.class`)."""
    module, _, name = written.partition(":")
    # As `python -m` does.
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        found = getattr(import_module(module), name)
    except Exception as error:  # a program may raise anything
        raise MalformedError(
            "cli.class",
            f"`{written[:80]}` cannot be imported: {type(error).__name__}: {str(error)[:200]}",
            hint="write MODULE:CLASS, as in `from MODULE import CLASS`, in the folder that it is imported from",
        ) from error
    finally:
        sys.path.remove(folder)
    if not isinstance(found, type):
        raise MalformedError("cli.class", f"`{written[:80]}` is not a class", hint="write MODULE:CLASS")
    return event_class_of(found)


@command(
    type_,
    example="""
penstock type define uk.gov.pito.Numberplate --key pito.key --attribute numberplate:string \\
    --attribute timestamp:timestamp --attribute speed:integer:0..200 \\
    --attribute 'zone:string:north|south' --out numberplate.type
penstock type define --from london.events:Numberplate --key pito.key --out numberplate.type
""",
)
def define(session: CommandSession, options: _Define) -> CommandAnswer:
    """Define the event type NAME and sign it.

    Kinds are string, integer, float, boolean and timestamp. A domain is a range or a list of values. Each attribute
    gets an id that stays when it is renamed; write NAME#ID:KIND to choose it yourself. With --from, an event class
    (`@penstock.event`) gives the name and the attributes; it is imported from the working folder.
    """
    making = TypeSigner.of(options.key, options.signing, options.destination, options.names)
    shelf = options.shelf.load(*([] if options.extends is None else [options.extends]))
    above = None if options.extends is None else load_type(options.extends).definition
    key = making.key.open()
    principal = making.owner(options.owner, key)
    definition = replace(
        options.definition(principal, None if above is None else above.name, making.names),
        sealing=above.sealing if above else Sealing.NONE,
        blinded=above is not None and above.blinded,
        signed=above is not None and above.signed,
    )
    definition = options.sealing.apply(definition)
    made = sign_type(definition, key, making.credentials_for(principal, options.owner))
    if not making.signing.unchecked:
        shelf.verify(made, session.now)
    return _finish(making, made)


@option_class
class _Edit:
    file: str = argument()
    key: KeyOptions
    edits: EditOptions
    signing: TypeSigningOptions
    shelf: ShelfOptions
    destination: OutputFile
    output: str = output_option()
    names: NamesOption


@command(
    type_,
    example="""
penstock type edit numberplate.type --key pito.key --add colour:string --rename location=place \\
    --out numberplate-2.type
""",
)
def edit(session: CommandSession, options: _Edit) -> CommandAnswer:
    """Make a new version of the signed type in FILE.

    Attributes are removed first, then renamed, then retyped, then added. Without --credential, the credentials in FILE
    are used again.
    """
    making = TypeSigner.of(options.key, options.signing, options.destination, options.names)
    shelf = options.shelf.load(options.file)
    before = load_type(options.file)
    if not making.signing.unchecked:
        # A version that is built on a forged one would make the forgery look real.
        shelf.verify(before, session.now)
    definition = options.edits.apply(before.definition, session)
    key = making.key.open()
    bag = load_credentials(options.signing.credentials) if options.signing.credentials else before.credentials.verify()
    made = sign_type(definition, key, bag)
    if not making.signing.unchecked:
        shelf.verify(made, session.now)
    return _finish(making, made, changes(before.definition, definition))


def _finish(making: TypeSigner, signed: UnverifiedType, made: tuple[AttributeChange, ...] = ()) -> CommandAnswer:
    name = signed.definition.name
    told = [
        {"operation": str(change.operation), "name": change.name, "uid": change.uid, "new_name": change.new_name}
        for change in made
    ]
    lines = (f"  {one.operation} {one.name}{f' to {one.new_name}' if one.new_name else ''}" for one in made)
    shown = f"{making.names.show(name.owner)}/{name.name}@{name.version}"
    return making.finish(signed, "type", type_data(signed) | {"changes": told}, [shown, *lines])


def new_uid(session: CommandSession) -> str:
    """Return an id for an attribute: several managers may add some at the same time, and none may ever come back."""
    return session.random(6).hex()


@option_class
class _Show:
    file: str = argument()
    output: str = output_option(SEXP)
    names: NamesOption


@command(type_, example="penstock type show numberplate.type")
def show(options: _Show) -> CommandAnswer:
    """Show the event type in FILE without verifying it. Use `penstock type verify` to verify it."""
    names = options.names.load()
    shown = show_type(options.file)
    if options.output == SEXP:
        return CommandAnswer({}, advanced(shown.value).split("\n"))
    definition = shown.unverified.definition
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
    facts += shown_facts(shown, names)
    rows = [(a.name, a.uid, spec_text(a.spec)) for a in definition.attributes]
    data = type_data(shown.unverified) | shown_problem(shown)
    return CommandAnswer(data, [fact_table(facts), "", grid_table(("attribute", "id", "kind"), rows)])


@option_class
class _Verify:
    file: str = argument()
    network: str | None = option(
        "--network", metavar="OWNER/NAME", help="Check also that it may be installed on this network."
    )
    shelf: ShelfOptions
    at: AtOption
    output: str = output_option()
    names: NamesOption


@command(type_, example="penstock type verify numberplate-2.type --previous numberplate.type")
def verify(session: CommandSession, options: _Verify) -> CommandAnswer:
    """Check that the event type in FILE is signed by its owner, or by a manager that the owner appointed.

    The output shows who signed it, by which certificates, and until when that is valid.
    """
    with one_answer({"ok": False}):
        names = options.names.load()
        unverified = load_type(options.file)
        place = None if options.network is None else names.network(options.network)
        verified = options.shelf.load().verify(unverified, options.at.moment(session), place)
    name = verified.event_type.name
    data = {
        "ok": True,
        "id": verified.id,
        **name_data(name),
        "signer": str(verified.signer),
        **validity_data(verified.validity),
        "because": list(verified.because),
        "attributes": [{"name": a.name, "id": str(a.id)} for a in verified.event_type.attributes],
    }
    wording = Wording(names, verified.event_type)
    facts = verified_facts(verified, unverified, wording, place)
    facts.append(("attributes", ", ".join(verified.event_type.by_name)))
    return CommandAnswer(data, [f"✓ {wording.who(name.owner)}/{name.name}@{name.version}", fact_table(facts, indent=2)])
