"""`penstock type` and `penstock topic`: make, sign, show and verify event types and topics."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click

from penstock.apps.cli.certs.grants import Issuing, SubjectOptions
from penstock.apps.cli.shared.commands import (
    CommandAnswer,
    argument,
    command,
    one_answer,
    option,
    option_class,
    output_option,
)
from penstock.apps.cli.shared.credentials import Shelf, ShownType, load_credentials, load_type, show_type
from penstock.apps.cli.shared.describe import Wording, name_data, spec_text, type_data, validity_data, validity_text
from penstock.apps.cli.shared.events import parse_attribute, parse_spec, split_attribute, split_pair
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
from penstock.apps.cli.shared.session import CommandSession, Verbs, Warned
from penstock.apps.cli.shared.terminal import fact_table, grid_table
from penstock.codec.sexp import advanced, transport
from penstock.crypto import SigningKey
from penstock.errors import MalformedError, RefusedError
from penstock.model.event_classes import EventClass, event_class_of
from penstock.model.names import NetworkName, TypeName
from penstock.model.principals import THRESHOLD, Principal
from penstock.model.topics import TopicName
from penstock.model.types import AttributeChange, Sealing, TypeDefinition, changes
from penstock.trust.capabilities import Right, lacking_above, topic_tag
from penstock.trust.certificates import Authorisation, Statement, Subject
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import UnverifiedType, VerifiedType, sign_topic, sign_type, verify_topic


@option_class
class TypeSigningOptions:
    """Options for the credentials with which a type is signed."""

    credentials: tuple[str, ...] = option(
        "--credential",
        multiple=True,
        metavar="FILE",
        help="Add certificates that give you the right to do so; they become part of the type.",
    )
    unchecked: bool = option("--unchecked", is_flag=True, help="Sign it even if a verifier would refuse it.")


@dataclass(frozen=True, slots=True)
class TypeSigner:
    """A type or topic to sign: its owner, the credentials, and the output."""

    names: NameBook
    key: KeyOptions
    signing: TypeSigningOptions
    destination: OutputFile

    @classmethod
    def of(
        cls, key: KeyOptions, signing: TypeSigningOptions, destination: OutputFile, names: NamesOption
    ) -> "TypeSigner":
        """Read the files that the options name, except the key. Raises what reading raises."""
        book = names.load()
        destination.check()
        return cls(book, key, signing, destination)

    def owner(self, written: str | None, key: SigningKey) -> Principal:
        """Return the owner: the signing key's principal, unless another one was given."""
        return key.principal if written is None else self.names.principal(written)

    def credentials_for(self, owner: Principal, written: str | None) -> Credentials:
        """Read the credentials, and check early that those of a quorum are complete for a verifier.

        Raises `RefusedError` (`type.forged`), and what reading them raises.
        """
        bag = load_credentials(self.signing.credentials)
        if not self.signing.unchecked and owner.scheme == THRESHOLD and owner not in bag.thresholds():
            raise RefusedError(
                "type.forged",
                "a type that a quorum owns must carry the quorum among its credentials, and this one does not",
                hint=f"give the quorum's file, such as `--credential {written}`, and the certificates of its members",
            )
        return bag

    def finish(
        self, signed: UnverifiedType, what: str, data: Mapping[str, object], lines: Iterable[str]
    ) -> CommandAnswer:
        """Write what was signed, and return the answer: `data` and the signed `what` to programs, lines to people."""
        value = signed.to_sexp()
        return self.destination.answer(value, {**data, what: transport(value).decode()}, lines)


def shown_problem(shown: ShownType) -> dict[str, object]:
    """Return the first problem of a signature as plain data."""
    return {"code": shown.code, "problem": shown.problem} if shown.code else {}


def shown_facts(shown: ShownType, names: NameBook) -> list[tuple[str, str]]:
    """Return the facts about a file's signature, for people."""
    unverified = shown.unverified
    facts = [("signed by", f"{names.show(unverified.key.principal)} (not verified here)")]
    if unverified.credentials.certificates:
        facts.append(("credentials", str(len(unverified.credentials.certificates))))
    if shown.code:
        facts.append(("state", f"✗ not verified: {shown.problem} [{shown.code}]"))
    return facts


def verified_facts(
    verified: VerifiedType, unverified: UnverifiedType, wording: Wording, place: NetworkName | None
) -> list[tuple[str, str]]:
    """Return the signer of a type, the certificates behind it, where it counts, and until when, for people."""
    owns = ", the owner" if verified.signer == verified.event_type.name.owner else ""
    chain = [one for one in unverified.credentials.certificates if one.id in verified.because]
    facts = [("signed by", f"{wording.who(verified.signer)}{owns}")]
    facts += [("through" if not index else "", f"✓ {wording.line(one.statement)}") for index, one in enumerate(chain)]
    if place is not None:
        facts.append(("installable", f"on {wording.who(place.owner)}/{place.name}"))
    return [*facts, ("valid", validity_text(verified.validity))]


# ----------------------------------------------------------------------------------------------------------------------
# The changes that `penstock type edit` makes, in their order, as one new version.


_AS_BEFORE: Final = "default: as the type that it extends, or its version before"


@option_class
class SealingOptions:
    """Options for how events of a type are sealed; None leaves it as it is."""

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
        """Return a type with this sealing."""
        return replace(
            definition,
            sealing=definition.sealing if self.seal is None else Sealing(self.seal),
            blinded=definition.blinded if self.blinded is None else self.blinded,
            signed=definition.signed if self.signed is None else self.signed,
        )


@option_class
class EditOptions:
    """Options for the changes: removed first, then renamed, then retyped, then added."""

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
# `penstock type`: make, edit, show and verify event types.


@click.group("type", cls=Verbs)
def type_() -> None:
    """Manage signed event types and their versions."""


@option_class
class _NewType:
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
        """Return the type that the options define. Raises `MalformedError` (`cli.usage`, `event.class`, and others)."""
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
                    f"`{self.event_class[:80]}` says that `{known.owner}` owns the type, not {names.show(owner)}",
                    hint=f"sign with the key of `{known.owner}`, or change the class",
                )
            return known.definition(owner, extends)
        if self.type_name is None:
            raise MalformedError("cli.usage", "no event type is given", hint="give NAME, or an event class with --from")
        # Paper 5, section 4.3.2: the first version cannot conflict with others, so short ids are enough.
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
    except Exception as error:  # importing a module can raise anything
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
    "new",
    example="""
penstock type new uk.gov.pito.Numberplate --key pito.key --attribute numberplate:string \\
    --attribute timestamp:timestamp --attribute speed:integer:0..200 \\
    --attribute 'zone:string:north|south' --out numberplate.type
penstock type new --from london.events:Numberplate --key pito.key --out numberplate.type
""",
)
def new_type(session: CommandSession, options: _NewType) -> CommandAnswer:
    """Make the event type NAME and sign it.

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
        # A version based on a forged one would make the forgery look real.
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
    listed = [
        {"operation": str(change.operation), "name": change.name, "uid": change.uid, "new_name": change.new_name}
        for change in made
    ]
    lines = (f"  {one.operation} {one.name}{f' to {one.new_name}' if one.new_name else ''}" for one in made)
    shown = f"{making.names.show(name.owner)}/{name.name}@{name.version}"
    return making.finish(signed, "type", type_data(signed) | {"changes": listed}, [shown, *lines])


def new_uid(session: CommandSession) -> str:
    """Return a random id for an attribute: several managers can add some at the same time, and ids are never reused."""
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


# ----------------------------------------------------------------------------------------------------------------------
# `penstock topic`: create, show and verify topics, and grant rights on them.


_RIGHTS = click.Choice([right.value for right in Right if not right.on_network])


@click.group(cls=Verbs)
def topic() -> None:
    """Manage topics: plain messages under names that form a tree."""


def super_topic_option() -> Any:
    """Declare `--super-topic`."""
    return option(
        "--super-topic", multiple=True, metavar="FILE", help="Read a signed topic that it is part of. Can be repeated."
    )


@option_class
class _New:
    path: str = argument(metavar="PATH")
    key: KeyOptions
    owner: str | None = option("--owner", **WHO, help="Set the topic's owner (default: the signing key).")
    above: tuple[str, ...] = super_topic_option()
    signing: TypeSigningOptions
    destination: OutputFile
    output: str = output_option()
    names: NamesOption


@command(
    topic,
    example="""
penstock topic new news --key agency.key --out news.topic
penstock topic new news/sport --key agency.key --super-topic news.topic --out sport.topic
""",
)
def new(session: CommandSession, options: _New) -> CommandAnswer:
    """Make the topic PATH and sign it.

    A path is words separated by /: a/b is part of a, and subscribers of a receive it too.
    """
    making = TypeSigner.of(options.key, options.signing, options.destination, options.names)
    shelf = Shelf.of(*options.above)
    key = making.key.open()
    made = TopicName(making.owner(options.owner, key), options.path)
    signed = sign_topic(made, key, making.credentials_for(made.owner, options.owner))
    if not making.signing.unchecked:
        verify_topic(signed, session.now, topics=shelf)
    return making.finish(signed, "topic", _topic_data(made), [f"{making.names.show(made.owner)}/{made.path}"])


def _topic_data(name: TopicName) -> dict[str, object]:
    return {
        "owner": str(name.owner),
        "path": name.path,
        "super_topics": [above.path for above in name.super_topics],
        "type": name_data(name.type_name),
    }


@option_class
class _ShowTopic:
    file: str = argument()
    output: str = output_option(SEXP)
    names: NamesOption


@command(topic, "show", example="penstock topic show sport.topic")
def show_topic(options: _ShowTopic) -> CommandAnswer:
    """Show the topic in FILE without verifying it. Use `penstock topic verify` to verify it."""
    names = options.names.load()
    shown = show_type(options.file)
    if options.output == SEXP:
        return CommandAnswer({}, advanced(shown.value).split("\n"))
    name = TopicName.of_type(shown.unverified.definition.name)
    facts = [("topic", name.path), ("owner", names.show(name.owner))]
    facts += [("part of" if not index else "", above.path) for index, above in enumerate(name.super_topics)]
    facts += [("event type", name.type_name.name), *shown_facts(shown, names)]
    data = type_data(shown.unverified) | _topic_data(name) | shown_problem(shown)
    return CommandAnswer(data, [fact_table(facts)])


@option_class
class _VerifyTopic:
    file: str = argument()
    network: str | None = option(
        "--network", metavar="OWNER/NAME", help="Check also that it may be installed on this network."
    )
    above: tuple[str, ...] = super_topic_option()
    at: AtOption
    output: str = output_option()
    names: NamesOption


@command(topic, "verify", example="penstock topic verify sport.topic --super-topic news.topic")
def verify_topic_file(session: CommandSession, options: _VerifyTopic) -> CommandAnswer:
    """Check that the topic in FILE is signed by its owner, or by a manager that the owner appointed."""
    with one_answer({"ok": False}):
        names = options.names.load()
        unverified = load_type(options.file)
        place = None if options.network is None else names.network(options.network)
        verified = verify_topic(unverified, options.at.moment(session), topics=Shelf.of(*options.above), network=place)
        name = TopicName.of_type(verified.event_type.name)
    wording = Wording(names, verified.event_type)
    signed_by = {"signer": str(verified.signer), "because": list(verified.because)}
    data = {"ok": True, "id": verified.id} | _topic_data(name) | validity_data(verified.validity) | signed_by
    facts = fact_table(verified_facts(verified, unverified, wording, place), indent=2)
    return CommandAnswer(data, [f"✓ {wording.who(name.owner)}/{name.path}", facts])


@option_class
class _Grant:
    patterns: tuple[str, ...] = argument(nargs=-1, required=True, metavar="PATTERN...")
    key: KeyOptions
    subject: SubjectOptions
    owner: str | None = option("--owner", **WHO, help="Set the topics' owner (default: the signing key).")
    rights: tuple[str, ...] = option(
        "--right", multiple=True, required=True, type=_RIGHTS, help="Grant this right. Can be repeated."
    )
    with_super_topics: bool = option(
        "--with-super-topics", is_flag=True, help="Include all topics that these are part of."
    )
    propagate: bool = option("--propagate", is_flag=True, help="Let the subject pass the right on.")
    destination: OutputFile
    output: str = output_option()
    names: NamesOption


@command(
    topic,
    example="""
penstock topic grant news/sport --key agency.key --to reader --right subscribe --days 30 --out reader.cert
penstock topic grant 'news/sport/**' --key agency.key --to reporter --right publish --with-super-topics
""",
)
def grant(session: CommandSession, options: _Grant) -> CommandAnswer:
    """Grant rights on the topics that match a PATTERN.

    In a pattern, ** stands for one or more levels. Publishing on a topic also needs the right on all topics that it is
    part of; subscribing needs it on that topic only.
    """
    made = Issuing.of(session, options.key, options.subject, options.destination, options.names)
    chosen = [Right(right) for right in options.rights]

    def state(issuer: Principal, subject: Subject) -> Statement:
        whose = issuer if options.owner is None else made.names.principal(options.owner)
        tag = topic_tag(whose, options.patterns, chosen, super_topics=options.with_super_topics)
        return Authorisation(issuer, subject, tag, options.propagate, made.validity, made.comment)

    complete = options.with_super_topics or Right.PUBLISH not in chosen
    return made.issue(state, more=() if complete else tuple(_doubts(options.patterns)))


def _doubts(patterns: Iterable[str]) -> Iterator[Warned]:
    """Yield warnings for rights that are not enough to publish."""
    lacking = lacking_above(patterns)
    if lacking:
        yield Warned(
            "topic.publish-alone",
            f"publishing there also needs the right on `{'`, `'.join(lacking)}`; --with-super-topics grants it too",
        )
