"""`penstock explain`: why a principal may, or may not, do something."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final, TypeVar

import click

from penstock.apps.cli import options, paint
from penstock.apps.cli.answers import Answer, Asked, Holds, Moment, Way, ask
from penstock.apps.cli.attributes import parse_schema
from penstock.apps.cli.describe import Wording, counted, instant_text, validity_data, validity_text, value_text
from penstock.apps.cli.explaining_agreements import load_agreements
from penstock.apps.cli.groups import example
from penstock.apps.cli.names import Names, load_names
from penstock.apps.cli.options import JSON, moment
from penstock.apps.cli.session import Session, one_answer, say_json, warn
from penstock.apps.cli.trusted import load_verified_type, usable_credentials
from penstock.errors import MalformedError, RefusedError
from penstock.guard import Authority, Branch, CapabilityAuthority, EventRequest, NetworkRequest, environment_schema
from penstock.guard.topics import super_topics
from penstock.model.names import NetworkName, TypeName
from penstock.model.principals import Principal
from penstock.model.topics import TopicName, is_topic
from penstock.model.types import EventType
from penstock.selector import ALWAYS
from penstock.trust.capabilities import Right, type_request
from penstock.trust.credentials import Credentials
from penstock.trust.discovery import sift
from penstock.trust.event_types import VerifiedType
from penstock.trust.explain import Question

T = TypeVar("T")

#: as `PolicyCombining` has them
RIGHTS: Final = ("both", "restrict", "alone", "either")
#: what the ids of policies, and of agreed rules, stand behind, where something rests on them
POLICY: Final = "policy:"
AGREED: Final = "rule:"

_HINTS: Final = {
    "guard.not-now": "ask about another time with --at",
    "selector.unknown-attribute": "where brokers know more than the time and the rate, say so: --fact on_duty:boolean",
}


@click.command()
@click.option("--principal", required=True, **options.WHO, help="Who would do it.")
@click.option("--right", required=True, type=options.RIGHT, help="What they would do.")
@click.option("--type", "type_name", metavar="OWNER/NAME[@VERSION]", help="With events of this type.")
@options.type_file_options
@click.option("--network", metavar="OWNER/NAME", help="On this network; for events, they must be let connect as well.")
@click.option("--credential", "credentials", multiple=True, metavar="FILE", help="Certificates they show; repeat it.")
@click.option("--fact", "facts", multiple=True, metavar="NAME:KIND", help="A fact that brokers there know; repeat it.")
@click.option(
    "--agreement", "agreements", multiple=True, metavar="FILE", help="Agreed rules that brokers there go by; repeat it."
)
@click.option(
    "--policy", "policies", multiple=True, metavar="FILE", help="Policies that brokers there go by; repeat it."
)
@click.option("--refer", multiple=True, metavar="FILE", help="Policies that these refer to; repeat it.")
@click.option(
    "--rights",
    type=click.Choice(RIGHTS),
    default=RIGHTS[0],
    show_default=True,
    help="What policies mean beside certificates, as brokers have it in `policies.rights`.",
)
@click.option("--home", "homes", multiple=True, metavar="WHO=DOMAIN", help="Where somebody is at home; repeat it.")
@options.at_option
@options.output_option()
@options.names_option
@click.pass_obj
@example(
    """
penstock explain --type-file numberplate.type --principal billing --right subscribe \\
    --credential pito-ccs.cert --credential billing.cert
penstock explain --network "pito/UK Police Network" --principal broker1 --right connect --credential met.certs
"""
)
def explain(  # noqa: PLR0913  # one argument an option
    session: Session,
    *,
    principal: str,
    right: str,
    type_name: str | None,
    type_file: str | None,
    parent: tuple[str, ...],
    previous: tuple[str, ...],
    network: str | None,
    credentials: tuple[str, ...],
    facts: tuple[str, ...],
    agreements: tuple[str, ...],
    policies: tuple[str, ...],
    refer: tuple[str, ...],
    rights: str,
    homes: tuple[str, ...],
    at: str | None,
    output: str,
    names_file: str | None,
) -> None:
    """Say why a principal may, or may not, do something: the chain of certificates, and the link that is missing.

    With --agreement, what was agreed on through the moderator counts as well, and with --policy what policies say. The
    answer is what a broker decides at that time. The exit status is 0 if they may, also where that depends on facts
    that only the broker knows, and 1 if not.
    """
    with one_answer({"allowed": False, "right": right, "answers": [], "warnings": []}, as_json=output == JSON):
        names = load_names(names_file)
        when = Moment(moment(at, session), parse_schema(facts))
        who = names.principal(principal)
        bag, warnings = usable_credentials(credentials)
        warn(*warnings)
        verified = None
        if type_file is not None:
            verified, quorums = load_verified_type(type_file, parent, previous, when.now)
            # Whose type it is, is part of the type: a quorum that owns it need not be shown a second time.
            bag += Credentials.of(quorums=quorums)
        place = None if network is None else names.network(network)
        name = verified.event_type.name if verified is not None else _type_name(type_name, names)
        if type_name is not None and verified is not None and _type_name(type_name, names) != name:
            raise MalformedError(
                "cli.resource", "--type and --type-file are different types", hint="give one of the two"
            )
        authority = CapabilityAuthority(bag, environment=environment_schema(when.facts))
        # The order is that of brokers.
        governed: Authority = load_agreements(agreements).over(authority) if agreements else authority
        if (agreements or policies) and verified is None:
            what = "agreements" if agreements else "policies"
            raise MalformedError("cli.resource", f"{what} are about an event type", hint="give --type-file")
        if policies and verified is not None:
            # Who asks about certificates alone need not wait until the engine of policies is there.
            from penstock.apps.cli.explaining_policies import PolicyOptions  # noqa: PLC0415  # see above

            loaded = PolicyOptions(policies, refer, rights, homes).load(names, verified.event_type.name.owner)
            governed = loaded.over(governed, authority, environment=authority.environment)
        questions = _questions(authority, when, who, Right(right), verified or name, place)
        answers = list(_answers(replace(asked, source=governed) for asked in questions))
    found = [warning for answer in answers for warning in answer.warnings]
    warn(*found)
    wording = Wording(names, None if verified is None else verified.event_type)
    if output == JSON:
        say_json(
            {
                "allowed": all(answer.allowed for answer in answers),
                "principal": str(who),
                "right": right,
                "answers": [_data(answer, wording) for answer in answers],
                "warnings": [warning.as_dict() for warning in (*warnings, *found)],
            }
        )
    else:
        for answer in answers:
            _show(answer, wording)
    for answer in answers:
        if not answer.allowed:
            raise RefusedError(
                answer.code,
                f"{wording.who(who)} {_may(answer)}: {answer.reason(wording)}",
                hint=_HINTS.get(answer.code, ""),
                principal=who,
            )


def _type_name(written: str | None, names: Names) -> TypeName | None:
    if written is None:
        return None
    name, _, version = written.partition("@")
    owner, bare = names.owned(name, "type")
    if owner is None or bare is None:
        raise MalformedError("name.malformed", f"`{written[:80]}` is no one type", hint="write `owner/name@version`")
    return TypeName(owner, bare, version or "0")


def _questions(  # noqa: PLR0913, PLR0917  # the facts that an answer rests on
    authority: CapabilityAuthority,
    when: Moment,
    who: Principal,
    right: Right,
    about: VerifiedType | TypeName | None,
    place: NetworkName | None,
) -> Iterator[Asked]:
    needed = "a network: give --network" if right.on_network else "an event type: give --type-file or --type"
    if (place if right.on_network else about) is None:
        raise MalformedError("cli.resource", f"`{right}` is a right on {needed.split(':', 1)[0]}", hint=needed)
    # Publishing and subscribing need the network too (paper 5, section 5.2.2); managing does not.
    if place is not None and (right.on_network or right in (Right.PUBLISH, Right.SUBSCRIBE)):
        first = right if right.on_network else Right.CONNECT
        asking = NetworkRequest(who, first, place, when.now)
        what = f"{_ON_NETWORK[first]} {place.name}"
        yield Asked(what, authority.question(asking), authority, when, asking)
    if right.on_network or about is None:
        return
    if isinstance(about, VerifiedType):
        for verified in (*_above(right, super_topics(about)), about):
            name = verified.event_type.name
            request = EventRequest(who, right, verified, when.now)
            question = authority.question(request)
            yield Asked(_what(right, name), question, authority, when, request, name, verified.event_type)
        return
    supers = (topic.type_name for topic in TopicName.of_type(about).super_topics) if is_topic(about) else ()
    for name in (*_above(right, supers), about):
        evidence = sift(authority.credentials, when.now)
        question = Question(authority.credentials, evidence, name.owner, who, type_request(name, right))
        yield Asked(_what(right, name), question, authority, when, name=name)


_ON_NETWORK: Final = {
    Right.CONNECT: "connect to",
    Right.BROKER: "be a broker of",
    Right.INSTALL: "install types on",
}


def _above(right: Right, supers: Iterable[T]) -> Iterator[T]:
    """Yield what is asked about first: whoever publishes on a topic needs the right on all those that it is part of."""
    if right is Right.PUBLISH:
        yield from reversed(tuple(supers))


def _answers(questions: Iterable[Asked]) -> Iterator[Answer]:
    for asked in questions:
        answer = ask(asked)
        yield answer
        if asked.name is not None and is_topic(asked.name) and not answer.allowed:
            # What is refused above is refused below, and for that reason.
            return


def _what(right: Right, name: TypeName) -> str:
    return f"{_verb(right)} {name.name}@{name.version}"


def _verb(right: Right) -> str:
    match right:
        case Right.SUBSCRIBE:
            return "subscribe to"
        case Right.PUBLISH | Right.ROUTE | Right.MANAGE:
            return str(right)
        case Right.RESTRICTIONS:
            return "ask about restrictions on"
        case _:
            return f"{right.removeprefix('manage-')} attributes of"


def _may(answer: Answer) -> str:
    """Return the verdict in words."""
    if answer.allowed:
        return f"may {answer.asked.what}"
    if answer.ways:
        return f"may {answer.asked.what}, but not at this time"
    return f"may not {answer.asked.what}"


def _data(answer: Answer, wording: Wording) -> dict[str, object]:
    data = answer.explanation.as_dict() | {"question": answer.asked.what, "allowed": answer.allowed}
    if not answer.allowed:
        data |= {"code": answer.code, "reason": answer.reason(wording)}
    if answer.ways:
        data["grants"] = [_way_data(way, answer.asked.event_type) for way in answer.ways]
    return data


def _way_data(way: Way, event_type: EventType | None) -> dict[str, object]:
    told: dict[str, object] = {"because": list(way.because), **validity_data(way.validity), "holds": str(way.holds)}
    if way.depends:
        told["depends_on"] = list(way.depends)
    if way.branch is not None and event_type is not None:
        told |= _branch_data(way.branch, event_type)
    return told


def _branch_data(branch: Branch, event_type: EventType) -> dict[str, object]:
    name_of: dict[str, str] = {a.id: a.name for a in event_type.attributes}
    return {
        "attributes": [a.name for a in event_type.attributes if branch.shows(a.id)],
        "forced": {name_of.get(id_, str(id_)): value_text(value) for id_, value in branch.forced},
        "where": [] if branch.where == ALWAYS else [branch.where.rename(name_of).text],
        "when": [] if branch.when.condition == ALWAYS else [branch.when.condition.text],
        "asked": ["policies, by the broker, about each event"] if branch.guards else [],
    }


def _show(answer: Answer, wording: Wording) -> None:
    explanation = answer.explanation
    who = wording.who(explanation.principal)
    paint.line(f"{'✓' if answer.allowed else '✗'} {who} {_may(answer)}")
    if explanation.allowed and not explanation.links and explanation.principal == explanation.root:
        paint.line(f"    ✓ {who} is the owner")
    for link in explanation.links:
        mark = f"✗ {link.problem}:" if link.code else "✓"
        until = f"  ({validity_text(link.certificate.statement.validity)})"
        paint.line(f"    {mark} {wording.line(link.certificate.statement)}{until}")
    if explanation.missing:
        paint.line(f"    ✗ {wording.names.speak(explanation.missing)}")
    for way in answer.ways:
        if len(answer.ways) > 1:
            certificates = [one for one in way.because if not one.startswith((POLICY, AGREED))]
            paint.line(f"  granted through {counted(len(certificates), 'certificate')}")
        paint.facts(_way_facts(way, answer.asked, wording), indent=4)


def _way_facts(way: Way, asked: Asked, wording: Wording) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    if way.branch is not None and asked.event_type is not None:
        facts = _branch_facts(way.branch, asked.event_type)
    elif way.tag is not None and way.tag != asked.question.request:
        facts = wording.tag(way.tag)
    for what, sign in (("agreed rules", AGREED), ("policies", POLICY)):
        named = ", ".join(one.removeprefix(sign) for one in way.because if one.startswith(sign))
        if named:
            facts.append((what, named))
    facts.append(("valid", validity_text(way.validity)))
    match way.holds:
        case Holds.NOT_NOW:
            facts.append(("now", f"✗ not at this time ({instant_text(asked.moment.now)})"))
        case Holds.DEPENDS:
            facts.append(("now", f"depends on {', '.join(way.depends)}"))
    return facts


def _branch_facts(branch: Branch, event_type: EventType) -> list[tuple[str, str]]:
    told = _branch_data(branch, event_type)
    attributes, forced = told["attributes"], told["forced"]
    shown = ", ".join(attributes) if isinstance(attributes, list) else ""
    facts = [("attributes", "all" if branch.attributes is None else shown or "none")]
    if isinstance(forced, dict) and forced:
        facts.append(("forced", ", ".join(f"{name} = {value}" for name, value in forced.items())))
    facts += [
        (place, "; ".join(map(str, texts)))
        for place in ("where", "when", "asked")
        if isinstance(texts := told[place], list) and texts
    ]
    return facts
