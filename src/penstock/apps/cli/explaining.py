"""`penstock explain`: why a principal may, or may not, do something."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

import click

from penstock.apps.cli import options, paint
from penstock.apps.cli.describe import Wording, validity_data, validity_text, value_text
from penstock.apps.cli.groups import example
from penstock.apps.cli.names import Names, load_names
from penstock.apps.cli.options import JSON, moment
from penstock.apps.cli.session import Session, Warned, say_json, warn
from penstock.apps.cli.trusted import load_event_type, usable_credentials
from penstock.errors import MalformedError, RefusedError
from penstock.model.names import NetworkName, TypeName
from penstock.model.principals import Principal
from penstock.model.types import EventType
from penstock.trust.capabilities import Right, Terms, network_request, read_terms, type_request
from penstock.trust.credentials import Credentials
from penstock.trust.discovery import sift
from penstock.trust.explain import Explanation, Question, explain_grant
from penstock.trust.explain import explain as find_explanation
from penstock.trust.reduction import FiveTuple


@dataclass(frozen=True, slots=True)
class Asked:
    """One question, and what it is called in the answer."""

    what: str
    question: Question
    event_type: EventType | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one question: the explanation, and every grant that was found with what it says.

    The terms are None where the event type is not known.
    """

    asked: Asked
    explanation: Explanation
    grants: tuple[tuple[FiveTuple, Terms | None], ...] = ()
    warnings: tuple[Warned, ...] = ()

    @property
    def code(self) -> str:
        """The code of what is wrong, if anything."""
        if self.explanation.allowed:
            return ""
        return next((link.code for link in self.explanation.links if link.code), "chain.missing")

    def reason(self, wording: Wording) -> str:
        """What is wrong, in words."""
        for link in self.explanation.links:
            if link.code:
                statement = link.certificate.statement
                return f"{wording.who(statement.issuer)} → {wording.subject(statement.subject)} {link.problem}"
        return wording.names.speak(self.explanation.missing) or "no certificate leads there"


def ask(asked: Asked) -> Answer:
    """Answer a question."""
    question, known = asked.question, asked.event_type
    findings = question.findings()
    warnings: list[Warned] = []
    if findings.truncated:
        warnings.append(Warned("chain.truncated", "there are more grants than are followed; some are not shown"))
    grants: list[tuple[FiveTuple, Terms | None]] = []
    unread: Explanation | None = None
    for grant in findings.grants:
        try:
            grants.append((grant, None if known is None else read_terms(grant.tag, known)))
        except MalformedError as error:
            # A right that is not understood grants nothing; the last certificate is the one that words it.
            found = explain_grant(question, grant)
            *above, last = found.links
            link = replace(last, code=error.code, problem=f"is not understood: {error.message}")
            unread = replace(found, allowed=False, links=(*above, link))
            warnings.append(Warned(error.code, f"a right that is not understood grants nothing: {error.message}"))
    if grants:
        return Answer(asked, explain_grant(question, grants[0][0]), tuple(grants), tuple(warnings))
    return Answer(asked, unread or find_explanation(question), (), tuple(warnings))


@click.command()
@click.option("--principal", required=True, metavar="WHO", help="Who would do it.")
@click.option("--right", required=True, type=options.RIGHT, help="What they would do.")
@click.option("--type", "type_name", metavar="OWNER/NAME[@VERSION]", help="With events of this type.")
@options.type_file_options
@click.option("--network", metavar="OWNER/NAME", help="On this network; for events, they must be let connect as well.")
@click.option("--credential", "credentials", multiple=True, metavar="FILE", help="Certificates they show; repeat it.")
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
    at: str | None,
    output: str,
    names_file: str | None,
) -> None:
    """Say why a principal may, or may not, do something: the chain of certificates, and the link that is missing.

    The exit status is 0 if they may and 1 if not.
    """
    names = load_names(names_file)
    now = moment(at, session)
    who = names.principal(principal)
    event_type = load_event_type(type_file, parent, previous, now)
    bag, warnings = usable_credentials(credentials)
    warn(*warnings)
    place = None if network is None else names.network(network)
    name = event_type.name if event_type is not None else _type_name(type_name, names)
    if type_name is not None and event_type is not None and _type_name(type_name, names) != event_type.name:
        raise MalformedError("cli.resource", "--type and --type-file are different types", hint="give one of the two")
    asked = list(_questions(who, Right(right), name, event_type, place, bag, now))
    answers = [ask(one) for one in asked]
    found = [warning for answer in answers for warning in answer.warnings]
    warn(*found)
    wording = Wording(names, event_type)
    if output == JSON:
        say_json(
            {
                "allowed": all(answer.explanation.allowed for answer in answers),
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
        if not answer.explanation.allowed:
            raise RefusedError(
                answer.code, f"{wording.who(who)} may not {answer.asked.what}: {answer.reason(wording)}", principal=who
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
    who: Principal,
    right: Right,
    name: TypeName | None,
    event_type: EventType | None,
    place: NetworkName | None,
    bag: Credentials,
    now: datetime,
) -> Iterator[Asked]:
    evidence = sift(bag, now)
    needed = "a network: give --network" if right.on_network else "an event type: give --type-file or --type"
    if (place if right.on_network else name) is None:
        raise MalformedError("cli.resource", f"`{right}` is a right on {needed.split(':', 1)[0]}", hint=needed)
    if place is not None:
        # Publishing and subscribing need the network too (paper 5, section 5.2.2); managing does not.
        first = right if right.on_network else Right.CONNECT
        if right.on_network or right in (Right.PUBLISH, Right.SUBSCRIBE):
            question = Question(bag, evidence, place.owner, who, network_request(place, first))
            yield Asked(
                f"{first} to {place.name}" if first is Right.CONNECT else f"install types on {place.name}", question
            )
    if name is not None and not right.on_network:
        question = Question(bag, evidence, name.owner, who, type_request(name, right))
        yield Asked(f"{_verb(right)} {name.name}@{name.version}", question, event_type)


def _verb(right: Right) -> str:
    match right:
        case Right.SUBSCRIBE:
            return "subscribe to"
        case Right.PUBLISH | Right.MANAGE:
            return str(right)
        case _:
            return f"{right.removeprefix('manage-')} attributes of"


def _data(answer: Answer, wording: Wording) -> dict[str, object]:
    data = answer.explanation.as_dict() | {"question": answer.asked.what}
    if not answer.explanation.allowed:
        return data | {"code": answer.code, "reason": answer.reason(wording)}
    grants: list[dict[str, object]] = []
    for grant, terms in answer.grants:
        told: dict[str, object] = {"because": list(grant.because), **validity_data(grant.validity)}
        if terms is not None and answer.asked.event_type is not None:
            told |= _terms_data(terms, answer.asked.event_type)
        grants.append(told)
    return data | {"grants": grants}


def _terms_data(terms: Terms, event_type: EventType) -> dict[str, object]:
    name_of: dict[str, str] = {a.id: a.name for a in event_type.attributes}
    return {
        "attributes": [a.name for a in event_type.attributes if terms.attributes is None or a.id in terms.attributes],
        "forced": {name_of.get(id_, str(id_)): value_text(value) for id_, value in terms.forced.items()},
        "where": [selector.rename(name_of).text for selector in terms.where],
        "when": [selector.text for selector in terms.when],
    }


def _show(answer: Answer, wording: Wording) -> None:
    explanation = answer.explanation
    who = wording.who(explanation.principal)
    paint.line(
        f"{'✓' if explanation.allowed else '✗'} {who} may{'' if explanation.allowed else ' not'} {answer.asked.what}"
    )
    if explanation.allowed and not explanation.links:
        paint.line(f"    ✓ {who} is the owner")
    for link in explanation.links:
        mark = f"✗ {link.problem}:" if link.code else "✓"
        until = f"  ({validity_text(link.certificate.statement.validity)})"
        paint.line(f"    {mark} {wording.line(link.certificate.statement)}{until}")
    if explanation.missing:
        paint.line(f"    ✗ {wording.names.speak(explanation.missing)}")
    for grant, terms in answer.grants:
        facts = [("valid", validity_text(grant.validity))]
        if terms is not None and answer.asked.event_type is not None:
            facts = _term_facts(terms, answer.asked.event_type) + facts
        elif answer.asked.question.request != grant.tag:
            facts = wording.tag(grant.tag) + facts
        if len(answer.grants) > 1:
            paint.line(f"  granted through {len(grant.because)} certificate{'s' * (len(grant.because) != 1)}")
        paint.facts(facts, indent=4)


def _term_facts(terms: Terms, event_type: EventType) -> list[tuple[str, str]]:
    told = _terms_data(terms, event_type)
    attributes, forced = told["attributes"], told["forced"]
    shown = ", ".join(attributes) if isinstance(attributes, list) else ""
    facts = [("attributes", "all" if terms.attributes is None else shown or "none")]
    if isinstance(forced, dict) and forced:
        facts.append(("forced", ", ".join(f"{name} = {value}" for name, value in forced.items())))
    facts += [
        (place, "; ".join(map(str, texts)))
        for place in ("where", "when")
        if isinstance(texts := told[place], list) and texts
    ]
    return facts
