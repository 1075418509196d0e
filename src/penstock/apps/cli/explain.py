"""`penstock explain`: why a principal may, or may not, do something."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from shlex import quote
from typing import TYPE_CHECKING, Final, TypeVar

import click

from penstock.apps.cli.shared.commands import CommandAnswer, command, one_answer, option, option_class, output_option
from penstock.apps.cli.shared.credentials import find_types, known_statements, usable_credentials
from penstock.apps.cli.shared.describe import (
    Wording,
    counted,
    date_problem,
    instant_text,
    validity_data,
    validity_text,
    value_text,
)
from penstock.apps.cli.shared.events import parse_schema
from penstock.apps.cli.shared.names import NameBook
from penstock.apps.cli.shared.options import (
    RIGHT,
    WHO,
    AtOption,
    NamesOption,
    TypeFileOptions,
    passphrase,
)
from penstock.apps.cli.shared.revocations import BrokerLookup, RenewalAdvice, RevocationCheck
from penstock.apps.cli.shared.session import CommandSession, Warned, speak, warn
from penstock.apps.cli.shared.terminal import Shown, fact_table
from penstock.errors import EvaluationError, MalformedError, PenstockError, RefusedError
from penstock.guard import (
    Authority,
    Branch,
    CapabilityAuthority,
    DecisionProblem,
    Effect,
    EventRequest,
    NetworkRequest,
    Request,
    decide,
    environment,
    environment_schema,
)
from penstock.guard.capabilities import Revoking
from penstock.guard.decision import super_topics
from penstock.model.names import NetworkName, TypeName
from penstock.model.principals import Principal
from penstock.model.topics import TopicName, is_topic
from penstock.model.types import EventType, TypeDefinition
from penstock.model.values import Schema
from penstock.selector import ALWAYS, Selector, conjunction, evaluate
from penstock.store.files.client_files import VARIABLES, OmittedArguments
from penstock.trust.capabilities import Right, read_terms, type_request
from penstock.trust.credentials import Credentials
from penstock.trust.discovery import Findings, sift
from penstock.trust.event_types import VerifiedType
from penstock.trust.explain import AuthorityQuestion, Explanation, explain_grant
from penstock.trust.explain import explain as find_explanation
from penstock.trust.refusals import TYPE_USES, RevokedCertificate, action_text, last_revoked
from penstock.trust.tags import Set, Tag
from penstock.trust.validity import Validity

if TYPE_CHECKING:
    from penstock.apps.cli.explain_roles import ExplainedRoles

# ----------------------------------------------------------------------------------------------------------------------
# What `penstock explain` answers: the verdict of `decide()`, and the chain behind it or the link that is missing.
#
# A right may hold at some times only. `decide()` leaves its condition to whoever enforces it, for each event; here it
# is asked once, for the moment of the question. What nobody knows in advance, such as how often a client publishes, is
# named as what the answer depends on.
#
# Where the event type itself is not at hand, nothing can be decided; the certificates are then read as `decide()` would
# read them, but for what only the type says.


#: facts that neither a certificate nor a clock gives
_RATE: Final = "rate"


class RightStatus(StrEnum):
    """Whether a right holds at the moment in question."""

    NOW = "now"
    DEPENDS = "depends"
    NOT_NOW = "not-now"


@dataclass(frozen=True, slots=True)
class QuestionTime:
    """The time of a question, and the other facts that brokers know there."""

    now: datetime
    facts: Schema = field(default_factory=dict)

    def holds(self, condition: Selector) -> tuple[RightStatus, tuple[str, ...]]:
        """Return whether a condition is true then, and the facts that this depends on."""
        try:
            truth = evaluate(condition, environment(self.now, facts=dict.fromkeys(self.facts)))
        except EvaluationError:
            return RightStatus.NOT_NOW, ()
        unknown = tuple(sorted(condition.attributes & {_RATE, *self.facts}))
        if truth is None and unknown:
            return RightStatus.DEPENDS, unknown
        return (RightStatus.NOW if truth else RightStatus.NOT_NOW), ()


@dataclass(frozen=True, slots=True)
class PermittedWay:
    """One way in which something is allowed. Where the event type is not known there is a tag in place of a branch."""

    because: tuple[str, ...]
    validity: Validity
    condition: Selector
    holds: RightStatus
    depends: tuple[str, ...] = ()
    branch: Branch | None = None
    tag: Tag | None = None


@dataclass(frozen=True, slots=True)
class ExplainQuestion:
    """One question, and what it is called in the answer.

    `request` is what `decide()` is asked; where the event type is not at hand there is none, and `name` is its name.
    """

    what: str
    question: AuthorityQuestion
    authority: CapabilityAuthority
    moment: QuestionTime
    right: Right
    request: Request | None = None
    name: TypeName | None = None
    event_type: EventType | None = None
    #: what is decided by, where that is not certificates alone
    source: Authority | None = None
    #: roles that count besides, if any were given
    roles: "ExplainedRoles | None" = None
    #: which certificates are revoked
    check: RevocationCheck = field(default_factory=RevocationCheck)

    @property
    def is_connecting(self) -> bool:
        """Whether the question is about connecting to the network."""
        return isinstance(self.request, NetworkRequest) and self.request.action is Right.CONNECT

    def without_revoked(self) -> AuthorityQuestion:
        """Return the question about the certificates that are not revoked."""
        revocations, question = self.check.known(), self.question
        left = revocations.strike(question.credentials, question.root)
        if left is question.credentials:
            return question
        evidence = sift(left, self.moment.now, self.authority.online)
        return replace(question, credentials=left, evidence=evidence)


@dataclass(frozen=True, slots=True)
class ExplainAnswer:
    """The answer to one question: the chain, every way in which it is allowed, and warnings."""

    asked: ExplainQuestion
    explanation: Explanation
    ways: tuple[PermittedWay, ...] = ()
    warnings: tuple[Warned, ...] = ()
    #: the broker that permits it, by certificates that are not here
    broker: str = ""

    @property
    def last(self) -> RevokedCertificate | None:
        """The last revocation that ended the right, if the broker alone knows its certificate."""
        last = last_revoked(self.asked.check.lost.get(self.asked.right, ())) if self.asked.name is not None else None
        here = {certificate.id for certificate in self.asked.question.credentials}
        return None if self.allowed or last is None or last.certificate in here else last

    @property
    def allowed(self) -> bool:
        """Whether some way holds at the time in question, as far as that can be known."""
        return bool(self.broker) or any(way.holds is not RightStatus.NOT_NOW for way in self.ways)

    def missing_roles(self) -> list[str]:
        """Return what is missing to activate a role that would give the right, if roles were given."""
        asked = self.asked
        if self.allowed or asked.roles is None or asked.request is None:
            return []
        return [*asked.roles.missing(asked.question.principal, asked.request)]

    @property
    def code(self) -> str:
        """The code of the problem, if there is one."""
        if self.allowed:
            return ""
        if self.ways:
            return "guard.not-now"
        if self.last is not None:
            return "cert.revoked"
        broken = (link.code for link in self.explanation.links if link.code)
        return next(broken, self.explanation.code or "chain.missing")

    def reason(self, wording: Wording) -> str:
        """Return the problem as a sentence."""
        if self.ways:
            conditions = " or ".join(dict.fromkeys(f"`{way.condition.text}`" for way in self.ways))
            return f"{conditions} is not true on {instant_text(self.asked.moment.now)}"
        if self.last is not None:
            return speak(str(self.last), wording.names.spoken())
        for link in self.explanation.links:
            if link.code:
                statement = link.certificate.statement
                was = "was " if link.code == "cert.revoked" else ""
                return f"{wording.who(statement.issuer)} → {wording.subject(statement.subject)} {was}{link.problem}"
        return speak(self.explanation.missing, wording.names.spoken()) or "no certificate leads there"


def ask(asked: ExplainQuestion) -> ExplainAnswer:
    """Answer a question."""
    findings = asked.without_revoked().findings()
    if asked.request is not None:
        ways, problems = _decided(asked, asked.request)
    else:
        ways, problems = _read(asked, findings)
    warnings: list[Warned] = []
    if findings.truncated or any(problem.code == "guard.truncated" for problem in problems):
        warnings.append(Warned("chain.truncated", "there are too many grants to follow; some are not shown"))
    problems = [problem for problem in problems if problem.code != "guard.truncated"]
    warnings += [Warned(problem.code, f"a right does not count: {problem.message}") for problem in problems]
    if ways:
        best = min(ways, key=lambda way: list(RightStatus).index(way.holds))
        explanation = _explain_way(asked, findings, best)
    else:
        explanation = _revoked(asked) or _refusal(asked, findings, problems)
    return ExplainAnswer(asked, _dated(explanation), tuple(ways), tuple(warnings))


def _decided(asked: ExplainQuestion, request: Request) -> tuple[list[PermittedWay], list[DecisionProblem]]:
    roles = () if asked.roles is None else asked.roles.authorities(asked.question.root)
    decision = decide(request, [asked.source or asked.authority, *roles])
    ways: list[PermittedWay] = []
    for branch in decision.restriction.branches if decision.effect is Effect.PERMIT else ():
        holds, depends = asked.moment.holds(branch.when.condition)
        ways.append(PermittedWay(branch.because, branch.when.validity, branch.when.condition, holds, depends, branch))
    # What roles lack is shown beside the chain of certificates.
    return ways, [one for one in decision.errors if one.code != "role.not-allowed"]


def _read(asked: ExplainQuestion, findings: Findings) -> tuple[list[PermittedWay], list[DecisionProblem]]:
    """Read the certificates without the event type: names of attributes and what fits them are not known."""
    ways: list[PermittedWay] = []
    problems: list[DecisionProblem] = []
    for grant in findings.grants:
        for tag in _alternatives(grant.tag, asked.question.request):
            try:
                condition = _condition(tag, asked)
            except PenstockError as error:
                problems.append(DecisionProblem(error.code, error.message, *grant.because[-1:]))
                continue
            holds, depends = asked.moment.holds(condition)
            ways.append(PermittedWay(grant.because, grant.validity, condition, holds, depends, tag=tag))
    return ways, problems


def _alternatives(tag: Tag, request: Tag) -> Iterator[Tag]:
    """Yield the rights of a grant that cover the whole request: `(manage add)` does not cover `(manage)`."""
    for one in sorted(tag.members(), key=repr) if isinstance(tag, Set) else [tag]:
        if isinstance(one, tuple) and isinstance(request, tuple) and one[: len(request)] == request:
            yield one


def _condition(tag: Tag, asked: ExplainQuestion) -> Selector:
    if asked.name is None:
        return ALWAYS
    bare = EventType.of(TypeDefinition(asked.name, ()))
    condition = conjunction(*read_terms(tag, bare).when)
    condition.check(asked.authority.environment)
    return condition


def _explain_way(asked: ExplainQuestion, findings: Findings, way: PermittedWay) -> Explanation:
    """Explain the chain of a way. Its reasons can include those of equal ways, and of the type."""
    for grant in findings.grants:
        if set(grant.because) <= set(way.because):
            return explain_grant(asked.question, grant)
    return Explanation(True, asked.question.root, asked.question.principal)


def _refusal(asked: ExplainQuestion, findings: Findings, problems: list[DecisionProblem]) -> Explanation:
    """Explain a refusal: a right that is not enforced, a right that is too narrow, or a missing chain."""
    question = asked.question
    for problem in problems:
        for grant in findings.grants:
            if problem.source in grant.because[-1:]:
                # The last certificate states the right.
                return _broken(explain_grant(question, grant), problem.code, f"does not count: {problem.message}")
        return Explanation(False, question.root, question.principal, (), problem.message, problem.code)
    explanation = find_explanation(question)
    if explanation.allowed:
        return _broken(explanation, "chain.no-authority", "gives only a part of what was asked")
    return explanation


def _revoked(asked: ExplainQuestion) -> Explanation | None:
    """Explain a refusal by the chain that was valid until the last revocation; None if that is not the reason."""
    explanation, revoked = find_explanation(asked.question), asked.check.revoked
    for time in sorted({one.at for one in revoked if one.at is not None}, reverse=True):
        before = tuple(one for one in revoked if one.at is None or one.at < time)
        found = find_explanation(replace(asked, check=replace(asked.check, revoked=before)).without_revoked())
        if found.allowed:
            explanation = found
            break
    links = tuple(
        link
        if link.code or (last := asked.check.of(link.certificate.id, link.certificate.statement)) is None
        else replace(link, code="cert.revoked", problem=last.words())
        for link in explanation.links
    )
    return None if links == explanation.links else replace(explanation, allowed=False, links=links)


def _broken(explanation: Explanation, code: str, problem: str) -> Explanation:
    *above, last = explanation.links
    return replace(explanation, allowed=False, links=(*above, replace(last, code=code, problem=problem)))


def _dated(explanation: Explanation) -> Explanation:
    """Write the dates of broken links in the same form as all others."""
    links = tuple(
        replace(link, problem=date_problem(link.code, link.certificate.statement.validity) or link.problem)
        for link in explanation.links
    )
    return replace(explanation, links=links)


# ----------------------------------------------------------------------------------------------------------------------
# The command.


T = TypeVar("T")

#: the values of `PolicyCombining`
RIGHTS: Final = ("both", "restrict", "alone", "either")
#: prefixes of the ids of policies and of agreed rules on which an answer rests
POLICY: Final = "policy:"
AGREED: Final = "rule:"
ROLES: Final = ("role:", "credential:")

_HINTS: Final = {
    "guard.not-now": "ask about another time with --at",
    "selector.unknown-attribute": "where brokers know more than the time and the rate, say so: --fact on_duty:boolean",
}


@option_class
class _Explain:
    principal: str | None = option(
        "--principal",
        **WHO,
        help="Ask about this principal (default: that of $PENSTOCK_KEY or of the context, with its certificates, "
        "network and type).",
    )
    context: str | None = option(
        "--context", metavar="NAME", help="Ask about the principal of this context (default: the context in use)."
    )
    right: str | None = option(
        "--right", type=RIGHT, help="Ask about this right (default: list what the principal may do)."
    )
    type_name: str | None = option("--type", metavar="OWNER/NAME[@VERSION]", help="Ask about events of this type.")
    of_type: TypeFileOptions
    network: str | None = option(
        "--network",
        metavar="OWNER/NAME",
        help="Ask about this network; for events, require the right to connect as well.",
    )
    url: str | None = option(
        "--broker",
        metavar="URL",
        help="Ask this broker which certificates are revoked (default: that of the environment or of the context, "
        "unless --principal is given without --context).",
    )
    key_file: str | None = option(
        "--key", metavar="FILE", help="Connect to the broker with this private key, and ask about its principal."
    )
    passphrase_file: str | None = option(
        "--passphrase-file", metavar="FILE", help="Read the key's passphrase from the first line of this file."
    )
    broker_principal: str | None = option("--broker-principal", **WHO, help="Require this broker identity.")
    credentials: tuple[str, ...] = option(
        "--credential",
        multiple=True,
        metavar="FILE",
        help="Use these certificates of the principal. Can be repeated.",
    )
    statements: tuple[str, ...] = option(
        "--statement", multiple=True, metavar="FILE", help="Use these validity statements. Can be repeated."
    )
    facts: tuple[str, ...] = option(
        "--fact", multiple=True, metavar="NAME:KIND", help="Declare a fact that brokers there know. Can be repeated."
    )
    agreements: tuple[str, ...] = option(
        "--agreement", multiple=True, metavar="FILE", help="Apply agreed rules that brokers there use. Can be repeated."
    )
    policies: tuple[str, ...] = option(
        "--policy", multiple=True, metavar="FILE", help="Apply policies that brokers there use. Can be repeated."
    )
    refer: tuple[str, ...] = option(
        "--refer", multiple=True, metavar="FILE", help="Read policies that these refer to. Can be repeated."
    )
    roles: tuple[str, ...] = option(
        "--roles",
        multiple=True,
        metavar="STORE[#LEDGER]",
        help="Count a domain's active roles in this store, such as sqlite:met.db (default ledger: roles). "
        "Can be repeated.",
    )
    rights: str = option(
        "--rights",
        type=click.Choice(RIGHTS),
        default=RIGHTS[0],
        show_default=True,
        help="Combine policies with certificates as brokers do by `policies.rights`.",
    )
    homes: tuple[str, ...] = option(
        "--home", multiple=True, metavar="WHO=DOMAIN", help="Say which domain a principal belongs to. Can be repeated."
    )
    at: AtOption
    output: str = output_option()
    names: NamesOption

    def completed(self) -> "_Explain":
        """Return the question about the context's principal if none was given. Raises as `OmittedArguments.find`."""
        principal = self.principal or self.key_file
        if principal is not None and self.context is None:
            return replace(self, principal=principal)
        omitted = OmittedArguments(self.context, {"key": "--principal", "network": "--network"})
        key = self.key_file or omitted.find("key")
        given = self.of_type.type_file or (omitted.context.type_file if self.type_name is None else None)
        return replace(
            self,
            principal=self.principal or key,
            credentials=self.credentials or omitted.credential_files(),
            network=self.network or omitted.context.network or self._network_of_environment(),
            of_type=replace(self.of_type, type_file=given or None),
            names=replace(self.names, names_file=self.names.names_file or omitted.names_file()),
        )

    def _network_of_environment(self) -> str | None:
        """Return the environment's network, for a list of rights."""
        return os.environ.get(VARIABLES["network"]) or None if self.right is None else None

    def load_roles(self, names: NameBook, now: datetime) -> "ExplainedRoles | None":
        """Read the roles, if there are any. Raises as `load_roles`."""
        if not self.roles:
            return None
        # It imports SQLAlchemy, which takes half a second.
        from penstock.apps.cli.explain_roles import load_roles  # noqa: PLC0415

        return load_roles(self.roles, names, now)

    def ask_broker(
        self, asked: "_Explain", names: NameBook, bag: Credentials, about: TypeName | None
    ) -> RevocationCheck:
        """Ask the broker which certificates are revoked, and what its client may do with a type.

        `asked` are the options as they were given.
        """
        if asked.principal is not None and asked.context is None and asked.url is None:
            return RevocationCheck(unchecked="give --broker or --context to ask a broker")
        given = {"url": asked.url, "network": asked.network, "key": asked.key_file}
        secret = None if asked.passphrase_file is None else passphrase(asked.passphrase_file, "")
        found = {name: value for name, value in given.items() if value}
        return BrokerLookup(names, asked.context, found, asked.broker_principal, secret).check(bag, about)


@command(
    example="""
penstock explain --right subscribe --context demo-reader
penstock explain --type-file numberplate.type --principal billing --right subscribe \\
    --credential pito-ccs.cert --credential billing.cert
penstock explain --network "pito/UK Police Network" --principal broker1 --right connect --credential met.certs
"""
)
def explain(session: CommandSession, options: _Explain) -> CommandAnswer:
    """Explain why a principal may or may not do something: the chain of certificates, and the link that is missing.

    With --agreement, rules agreed through the moderator count too, with --policy attribute-based policies, and with
    --roles active roles: the answer names the role and what it relies on, or what is missing to activate one. The
    answer is what a broker with these certificates decides at that time. The exit status is 0 if the principal may do
    it, even if that depends on facts that only the broker knows, and 1 if not.

    A broker that can be asked as the principal also says what it permits by certificates that are not here. Without
    --right the command lists what the principal may do. `penstock policy explain` explains decisions of policies alone.
    """
    with one_answer({"allowed": False, "right": options.right, "answers": [], "warnings": []}):
        asked_for = options
        options = options.completed()
        names = options.names.load()
        when = QuestionTime(options.at.moment(session), parse_schema(options.facts))
        who = names.principal(options.principal or "")
        bag, warnings = usable_credentials(options.credentials)
        warn(*warnings)
        verified = None
        if options.of_type.type_file is not None:
            verified, quorums = options.of_type.shelf.verified(options.of_type.type_file, when.now)
            # The owner is part of the type: a quorum that owns it need not be given a second time.
            bag += Credentials.of(quorums=quorums)
        place = None if options.network is None else names.network(options.network)
        name = verified.event_type.name if verified is not None else _type_name(options.type_name, names)
        if options.type_name is not None and verified is not None and _type_name(options.type_name, names) != name:
            raise MalformedError(
                "cli.resource", "--type and --type-file are different types", hint="give one of the two"
            )
        online = known_statements(options.statements, who, when.now)
        authority = CapabilityAuthority(bag, online.check, environment_schema(when.facts))
        check = options.ask_broker(asked_for, names, bag, name)
        if options.at.at is not None:
            check = check.until(when.now)
        others = (*options.agreements, *options.policies, *options.roles)
        if check.admitted != who or options.at.at is not None or others:
            # What the broker permits its client now answers another question.
            check = replace(check, rights=None, lost={})
        # Brokers use the same order.
        certified = Revoking(authority, check.known())
        governed: Authority = certified
        if options.agreements:
            from penstock.apps.cli.explain_policies import load_agreements  # noqa: PLC0415  # see below

            governed = load_agreements(options.agreements).over(certified)
        if (options.agreements or options.policies) and verified is None:
            what = "agreements" if options.agreements else "policies"
            raise MalformedError("cli.resource", f"{what} are about an event type", hint="give --type-file")
        if options.policies and verified is not None:
            # Importing the policy engine takes long, and questions about certificates alone do not need it.
            from penstock.apps.cli.explain_policies import PolicyOptions  # noqa: PLC0415  # see above

            policies = PolicyOptions(options.policies, options.refer, options.rights, options.homes)
            loaded = policies.load(names, verified.event_type.name.owner)
            governed = loaded.over(governed, certified, environment=authority.environment)
        roles = options.load_roles(names, when.now)
        rights = _rights_on(name, place) if options.right is None else [Right(options.right)]
        answers: dict[Right, list[ExplainAnswer]] = {}
        for right in rights:
            questions = _Asking(authority, when, who, right).questions(verified or name, place)
            found = list(_answers(replace(asked, source=governed, check=check, roles=roles) for asked in questions))
            answers[right] = _as_the_broker_says(found, check, who)
    wording = Wording(names, *(() if verified is None else (verified.event_type,)), *find_types(session.now))
    output = _ExplainOutput(who, wording, check, options.credentials)
    if options.right is None:
        return output.every(answers)
    [explained] = answers.values()
    return output.one(explained, warnings)


def _rights_on(name: TypeName | None, place: NetworkName | None) -> list[Right]:
    """Return the rights that can be asked about. Raises `MalformedError` (`cli.resource`) if nothing is given."""
    if name is None and place is None:
        raise MalformedError(
            "cli.resource",
            "neither an event type nor a network is given",
            hint="give --type-file, --type or --network, or a --context that has them",
        )
    return [right for right in Right if (place if right.on_network else name) is not None]


def _as_the_broker_says(answers: list[ExplainAnswer], check: RevocationCheck, who: Principal) -> list[ExplainAnswer]:
    """Return the answers with what the broker permits by certificates of its own."""
    if check.admitted == who:
        # It has let the principal in, whatever was given here.
        answers = [answer for answer in answers if answer.allowed or not answer.asked.is_connecting] or answers
    permitted = check.rights or frozenset()
    return [
        answer
        if answer.allowed or answer.asked.name is None or answer.asked.right not in permitted
        else replace(answer, broker=check.broker)
        for answer in answers
    ]


@dataclass(frozen=True, slots=True)
class _ExplainOutput:
    """Words for answers about a principal: what a broker has said, and the files that the certificates are in."""

    who: Principal
    wording: Wording
    check: RevocationCheck
    files: Sequence[str]

    def one(self, answers: list[ExplainAnswer], more: Iterable[Warned]) -> CommandAnswer:
        """Return the answer about one right, in full. `more` are warnings that were given before."""
        wording, check, who = self.wording, self.check, self.wording.who(self.who)
        found = [warning for answer in answers for warning in answer.warnings]
        allowed, right = all(answer.allowed for answer in answers), answers[-1].asked.right
        if allowed and check.rights is not None and right in TYPE_USES - check.rights:
            text = f"{check.broker} does not permit it: give the policies and agreements that it uses, to see why"
            found.append(Warned("broker.not-permitted", text))
        warn(*found)
        data = {
            "allowed": allowed,
            "principal": str(self.who),
            "right": str(right),
            "answers": [_data(answer, wording) for answer in answers],
            "warnings": [warning.as_dict() for warning in (*more, *found)],
            "revocations": check.as_dict(),
        }
        refusals = (
            RefusedError(
                answer.code,
                f"{who} {_may(answer)}: {answer.reason(wording)}",
                hint=_HINTS.get(answer.code, "") or self._give_back(answer) or self._grant(answer),
                principal=self.who,
            )
            for answer in answers
            if not answer.allowed
        )
        shown = [part for answer in answers for part in _show(answer, wording)]
        if allowed and check.unchecked:
            # A refusal stays a refusal, whatever was revoked.
            shown.append(f"revocations were not checked: {check.unchecked}")
        elif not allowed:
            shown.append(self._other_certificates(right))
        return CommandAnswer(data, shown, next(refusals, None))

    def _give_back(self, answer: ExplainAnswer) -> str:
        """Return how a revoked right is given back; nothing for other refusals."""
        revoked = next((link.certificate for link in answer.explanation.links if link.code == "cert.revoked"), None)
        if answer.last is not None:
            issuer, advice = answer.last.by, RenewalAdvice.of(answer.last.by, near=self.files)
        elif revoked is not None:
            issuer, advice = revoked.statement.issuer, RenewalAdvice.about(revoked, self.files)
        else:
            return ""
        return f"ask {self.wording.who(issuer)} to give the right back: {advice.give_back}"

    def _grant(self, answer: ExplainAnswer) -> str:
        """Return how a right that nobody has granted is granted; nothing for other refusals."""
        asked, wording = answer.asked, self.wording
        if answer.code not in ("chain.missing", "chain.no-authority"):
            return ""
        owner, advice = asked.question.root, RenewalAdvice.of(asked.question.root, near=self.files)
        about: TypeName | NetworkName | None = asked.name
        if isinstance(asked.request, NetworkRequest):
            about = asked.request.network
        if about is None:
            return ""
        place = "--network" if isinstance(about, NetworkName) else "--type"
        on = f"{place} {quote(f'{wording.names.write(owner)}/{about.name}')}"
        to = f"--to {quote(wording.names.write(self.who))} {on} --right {asked.right}"
        issue = f"penstock cert issue --key {advice.key_word} {to} --out FILE.cert"
        return f"ask {wording.who(owner)} to run `{issue}`, and then `{advice.publish}`"

    def _other_certificates(self, right: Right) -> str:
        """Return whether certificates that are not here could change a refusal."""
        check, who = self.check, self.wording.who(self.who)
        if check.rights is not None and right in TYPE_USES:
            return f"{check.broker} does not permit it either, with all certificates that it has"
        how = f"run this as {who}, with --context, to ask it; or " if right in TYPE_USES else ""
        return (
            f"not known here: a broker can have certificates that an owner published; {how}give them with --credential"
        )

    def every(self, answers: Mapping[Right, list[ExplainAnswer]]) -> CommandAnswer:
        """Return what the principal may do."""
        allowed = {right: all(answer.allowed for answer in found) for right, found in answers.items()}
        data = {
            "principal": str(self.who),
            "rights": {str(right): may for right, may in allowed.items()},
            "revocations": self.check.as_dict(),
        }
        shown: list[Shown] = []
        for right, found in answers.items():
            if allowed[right]:
                shown += _show_briefly(found[-1], self.wording)
        denied = ", ".join(right for right, may in allowed.items() if not may)
        if denied:
            shown.append(f"✗ {self.wording.who(self.who)} does not have these rights: {denied}; add --right to see why")
        if self.check.unchecked:
            shown.append(f"revocations were not checked: {self.check.unchecked}")
        return CommandAnswer(data, shown)


def _type_name(written: str | None, names: NameBook) -> TypeName | None:
    if written is None:
        return None
    name, _, version = written.partition("@")
    owner, bare = names.owned(name, "type")
    if owner is None or bare is None:
        raise MalformedError(
            "name.malformed", f"`{written[:80]}` does not name one type", hint="write `owner/name@version`"
        )
    return TypeName(owner, bare, version or "0")


@dataclass(frozen=True, slots=True)
class _Asking:
    """A principal, the right in question, the time, and the certificates."""

    authority: CapabilityAuthority
    when: QuestionTime
    who: Principal
    right: Right

    def questions(self, about: VerifiedType | TypeName | None, place: NetworkName | None) -> Iterator[ExplainQuestion]:
        """Yield all questions that must be answered with yes. Raises `MalformedError` (`cli.resource`)."""
        authority, when, who, right = self.authority, self.when, self.who, self.right
        needed = "a network: give --network" if right.on_network else "an event type: give --type-file or --type"
        if (place if right.on_network else about) is None:
            raise MalformedError("cli.resource", f"`{right}` is a right on {needed.split(':', 1)[0]}", hint=needed)
        # Publishing and subscribing need the network too (paper 5, section 5.2.2); managing does not.
        if place is not None and (right.on_network or right in (Right.PUBLISH, Right.SUBSCRIBE)):
            first = right if right.on_network else Right.CONNECT
            asking = NetworkRequest(who, first, place, when.now)
            what = action_text(first, place.name)
            yield ExplainQuestion(what, authority.question(asking), authority, when, first, asking)
        if right.on_network or about is None:
            return
        if isinstance(about, VerifiedType):
            for verified in (*_above(right, super_topics(about)), about):
                name = verified.event_type.name
                request = EventRequest(who, right, verified, when.now)
                question = authority.question(request)
                what = _what(right, name)
                yield ExplainQuestion(what, question, authority, when, right, request, name, verified.event_type)
            return
        supers = (topic.type_name for topic in TopicName.of_type(about).super_topics) if is_topic(about) else ()
        for name in (*_above(right, supers), about):
            evidence = sift(authority.credentials, when.now, authority.online)
            question = AuthorityQuestion(authority.credentials, evidence, name.owner, who, type_request(name, right))
            yield ExplainQuestion(_what(right, name), question, authority, when, right, name=name)


def _above(right: Right, supers: Iterable[T]) -> Iterator[T]:
    """Yield the topics above: to publish on a topic, a principal needs the right on all topics that contain it."""
    if right is Right.PUBLISH:
        yield from reversed(tuple(supers))


def _answers(questions: Iterable[ExplainQuestion]) -> Iterator[ExplainAnswer]:
    for asked in questions:
        answer = ask(asked)
        yield answer
        if asked.name is not None and is_topic(asked.name) and not answer.allowed:
            # A refusal above is also the reason for the refusal below.
            return


def _what(right: Right, name: TypeName) -> str:
    return action_text(right, f"{name.name}@{name.version}")


def _may(answer: ExplainAnswer) -> str:
    """Return the verdict as a verb."""
    if answer.allowed:
        return f"may {answer.asked.what}"
    if answer.ways:
        return f"may {answer.asked.what}, but not at this time"
    return f"may not {answer.asked.what}"


def _data(answer: ExplainAnswer, wording: Wording) -> dict[str, object]:
    data = answer.explanation.as_dict() | {"question": answer.asked.what, "allowed": answer.allowed}
    if answer.broker:
        data["broker"] = answer.broker
    if not answer.allowed:
        data |= {"code": answer.code, "reason": answer.reason(wording)}
    if answer.ways:
        data["grants"] = [_way_data(way, answer.asked) for way in answer.ways]
    if missing := answer.missing_roles():
        data["roles"] = missing
    return data


def _way_data(way: PermittedWay, asked: ExplainQuestion) -> dict[str, object]:
    event_type = asked.event_type
    as_data: dict[str, object] = {"because": list(way.because), **validity_data(way.validity), "holds": str(way.holds)}
    if asked.roles is not None:
        as_data["roles"] = asked.roles.data(way.because)
    if way.depends:
        as_data["depends_on"] = list(way.depends)
    if way.branch is not None and event_type is not None:
        as_data |= _branch_data(way.branch, event_type)
    return as_data


def _branch_data(branch: Branch, event_type: EventType) -> dict[str, object]:
    name_of: dict[str, str] = {a.id: a.name for a in event_type.attributes}
    return {
        "attributes": [a.name for a in event_type.attributes if branch.shows(a.id)],
        "forced": {name_of.get(id_, str(id_)): value_text(value) for id_, value in branch.forced},
        "where": [] if branch.where == ALWAYS else [branch.where.rename(name_of).text],
        "when": [] if branch.when.condition == ALWAYS else [branch.when.condition.text],
        "asked": [*map(_asked_about, sorted(branch.guards))],
    }


def _asked_about(guard: str) -> str:
    if guard.startswith(POLICY):
        return "policies, by the broker, about each event"
    return f"{guard.partition('#')[0]}, by the broker, about each event"


_ELSEWHERE: Final = "certificates that it has, and that neither the context nor --credential names"


def _show(answer: ExplainAnswer, wording: Wording) -> Iterator[Shown]:
    explanation = answer.explanation
    who = wording.who(explanation.principal)
    yield f"{'✓' if answer.allowed else '✗'} {who} {_may(answer)}"
    if explanation.allowed and not explanation.links and explanation.principal == explanation.root:
        yield f"    ✓ {who} is the owner"
    if answer.broker:
        yield f"    ✓ {answer.broker} permits it by {_ELSEWHERE}"
    if answer.last is not None:
        yield f"    ✗ {speak(str(answer.last), wording.names.spoken())}; only the broker has it"
    for link in explanation.links:
        mark = f"✗ {speak(link.problem, wording.names.spoken())}:" if link.code else "✓"
        until = f"  ({validity_text(link.certificate.statement.validity)})"
        yield f"    {mark} {wording.line(link.certificate.statement)}{until}"
    if explanation.missing:
        yield f"    ✗ {speak(explanation.missing, wording.names.spoken())}"
    if not answer.allowed:
        yield from (f"    {speak(line, wording.names.spoken())}" for line in answer.missing_roles())
    for way in answer.ways:
        if len(answer.ways) > 1:
            certificates = [one for one in way.because if not one.startswith((POLICY, AGREED, *ROLES))]
            yield f"  granted through {counted(len(certificates), 'certificate')}"
        yield fact_table(_way_facts(way, answer.asked, wording), indent=4)


def _show_briefly(answer: ExplainAnswer, wording: Wording) -> Iterator[Shown]:
    """Yield what somebody may do and how that is restricted, without the certificates."""
    explanation = answer.explanation
    owner = ", as its owner" if not explanation.links and explanation.principal == explanation.root else ""
    yield f"✓ {wording.who(explanation.principal)} {_may(answer)}{owner}"
    if answer.broker:
        yield f"    {answer.broker} permits it by {_ELSEWHERE}"
    for way in answer.ways:
        facts = [fact for fact in _way_facts(way, answer.asked, wording) if fact not in _UNRESTRICTED]
        if facts:
            yield fact_table(facts, indent=4)


_UNRESTRICTED: Final = (("attributes", "all"), ("valid", validity_text(Validity())))


def _way_facts(way: PermittedWay, asked: ExplainQuestion, wording: Wording) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    if way.branch is not None and asked.event_type is not None:
        facts = _branch_facts(way.branch, asked.event_type)
    elif way.tag is not None and way.tag != asked.question.request:
        facts = wording.tag(way.tag)
    for what, sign in (("agreed rules", AGREED), ("policies", POLICY)):
        named = ", ".join(one.removeprefix(sign) for one in way.because if one.startswith(sign))
        if named:
            facts.append((what, named))
    if asked.roles is not None:
        facts += [
            (what, speak(text, wording.names.spoken()))
            for what, text in asked.roles.facts(way.because, asked.question.root)
        ]
    facts.append(("valid", validity_text(way.validity)))
    match way.holds:
        case RightStatus.NOT_NOW:
            facts.append(("now", f"✗ not at this time ({instant_text(asked.moment.now)})"))
        case RightStatus.DEPENDS:
            facts.append(("now", f"depends on {', '.join(way.depends)}"))
    return facts


def _branch_facts(branch: Branch, event_type: EventType) -> list[tuple[str, str]]:
    as_data = _branch_data(branch, event_type)
    attributes, forced = as_data["attributes"], as_data["forced"]
    shown = ", ".join(attributes) if isinstance(attributes, list) else ""
    facts = [("attributes", "all" if branch.attributes is None else shown or "none")]
    if isinstance(forced, dict) and forced:
        facts.append(("forced", ", ".join(f"{name} = {value}" for name, value in forced.items())))
    facts += [
        (place, "; ".join(map(str, texts)))
        for place in ("where", "when", "asked")
        if isinstance(texts := as_data[place], list) and texts
    ]
    return facts
