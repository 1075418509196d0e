"""What `penstock explain` answers: the verdict of `decide()`, and the chain behind it or the link that is missing.

A right may hold at some times only. `decide()` leaves its condition to whoever enforces it, for each event; here it is
asked once, for the moment of the question. What nobody knows in advance, such as how often a client publishes, is
named as what the answer depends on.

Where the event type itself is not at hand, nothing can be decided; the certificates are then read as `decide()` would
read them, but for what only the type says.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from penstock.apps.cli.describe import Wording, date_problem, instant_text
from penstock.apps.cli.session import Warned
from penstock.errors import EvaluationError, PenstockError
from penstock.guard import Authority, Branch, CapabilityAuthority, Effect, Problem, Request, decide, environment
from penstock.model.names import TypeName
from penstock.model.types import EventType, TypeDefinition
from penstock.model.values import Schema
from penstock.selector import ALWAYS, Selector, conjunction, evaluate
from penstock.trust.capabilities import read_terms
from penstock.trust.discovery import Findings
from penstock.trust.explain import Explanation, Question, explain_grant
from penstock.trust.explain import explain as find_explanation
from penstock.trust.tags import Set, Tag
from penstock.trust.validity import Validity

#: what no certificate and no clock says
_RATE: Final = "rate"


class Holds(StrEnum):
    """Whether a right holds at the moment in question."""

    NOW = "now"
    DEPENDS = "depends"
    NOT_NOW = "not-now"


@dataclass(frozen=True, slots=True)
class Moment:
    """The time that a question is about, and the facts besides time that brokers know there."""

    now: datetime
    facts: Schema = field(default_factory=dict)

    def holds(self, condition: Selector) -> tuple[Holds, tuple[str, ...]]:
        """Say whether a condition is true then, and on which facts that depends."""
        try:
            truth = evaluate(condition, environment(self.now, facts=dict.fromkeys(self.facts)))
        except EvaluationError:
            return Holds.NOT_NOW, ()
        unknown = tuple(sorted(condition.attributes & {_RATE, *self.facts}))
        if truth is None and unknown:
            return Holds.DEPENDS, unknown
        return (Holds.NOW if truth else Holds.NOT_NOW), ()


@dataclass(frozen=True, slots=True)
class Way:
    """One way in which something is allowed. Where the event type is not known there is a tag in place of a branch."""

    because: tuple[str, ...]
    validity: Validity
    condition: Selector
    holds: Holds
    depends: tuple[str, ...] = ()
    branch: Branch | None = None
    tag: Tag | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """One question, and what it is called in the answer.

    `request` is what `decide()` is asked; where the event type is not at hand there is none, and `name` is its name.
    """

    what: str
    question: Question
    authority: CapabilityAuthority
    moment: Moment
    request: Request | None = None
    name: TypeName | None = None
    event_type: EventType | None = None
    #: what is decided by, where that is not certificates alone
    source: Authority | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one question: the chain, every way in which it is allowed, and what should be known besides."""

    asked: Asked
    explanation: Explanation
    ways: tuple[Way, ...] = ()
    warnings: tuple[Warned, ...] = ()

    @property
    def allowed(self) -> bool:
        """True where some way holds at the moment in question, as far as that can be known."""
        return any(way.holds is not Holds.NOT_NOW for way in self.ways)

    @property
    def code(self) -> str:
        """The code of what is wrong, if anything."""
        if self.allowed:
            return ""
        if self.ways:
            return "guard.not-now"
        broken = (link.code for link in self.explanation.links if link.code)
        return next(broken, self.explanation.code or "chain.missing")

    def reason(self, wording: Wording) -> str:
        """What is wrong, in words."""
        if self.ways:
            conditions = " or ".join(dict.fromkeys(f"`{way.condition.text}`" for way in self.ways))
            return f"{conditions} is not true on {instant_text(self.asked.moment.now)}"
        for link in self.explanation.links:
            if link.code:
                statement = link.certificate.statement
                return f"{wording.who(statement.issuer)} → {wording.subject(statement.subject)} {link.problem}"
        return wording.names.speak(self.explanation.missing) or "no certificate leads there"


def ask(asked: Asked) -> Answer:
    """Answer a question."""
    findings = asked.question.findings()
    if asked.request is not None:
        ways, problems = _decided(asked, asked.request)
    else:
        ways, problems = _read(asked, findings)
    warnings: list[Warned] = []
    if findings.truncated or any(problem.code == "guard.truncated" for problem in problems):
        warnings.append(Warned("chain.truncated", "there are more grants than are followed; some are not shown"))
    problems = [problem for problem in problems if problem.code != "guard.truncated"]
    warnings += [Warned(problem.code, f"a right does not count: {problem.message}") for problem in problems]
    if ways:
        best = min(ways, key=lambda way: list(Holds).index(way.holds))
        explanation = _explain_way(asked, findings, best)
    else:
        explanation = _refusal(asked, findings, problems)
    return Answer(asked, _dated(explanation), tuple(ways), tuple(warnings))


def _decided(asked: Asked, request: Request) -> tuple[list[Way], list[Problem]]:
    decision = decide(request, [asked.source or asked.authority])
    ways: list[Way] = []
    for branch in decision.restriction.branches if decision.effect is Effect.PERMIT else ():
        holds, depends = asked.moment.holds(branch.when.condition)
        ways.append(Way(branch.because, branch.when.validity, branch.when.condition, holds, depends, branch))
    return ways, list(decision.errors)


def _read(asked: Asked, findings: Findings) -> tuple[list[Way], list[Problem]]:
    """Read the certificates without the event type: names of attributes and what fits them are not known."""
    ways: list[Way] = []
    problems: list[Problem] = []
    for grant in findings.grants:
        for tag in _alternatives(grant.tag, asked.question.request):
            try:
                condition = _condition(tag, asked)
            except PenstockError as error:
                problems.append(Problem(error.code, error.message, *grant.because[-1:]))
                continue
            holds, depends = asked.moment.holds(condition)
            ways.append(Way(grant.because, grant.validity, condition, holds, depends, tag=tag))
    return ways, problems


def _alternatives(tag: Tag, request: Tag) -> Iterator[Tag]:
    """Yield the rights of a grant that answer the whole request: `(manage add)` does not answer `(manage)`."""
    for one in sorted(tag.members(), key=repr) if isinstance(tag, Set) else [tag]:
        if isinstance(one, tuple) and isinstance(request, tuple) and one[: len(request)] == request:
            yield one


def _condition(tag: Tag, asked: Asked) -> Selector:
    if asked.name is None:
        return ALWAYS
    bare = EventType.of(TypeDefinition(asked.name, ()))
    condition = conjunction(*read_terms(tag, bare).when)
    condition.check(asked.authority.environment)
    return condition


def _explain_way(asked: Asked, findings: Findings, way: Way) -> Explanation:
    """Explain the chain of a way; its reasons may hold those of equal ones, and of the type, as well."""
    for grant in findings.grants:
        if set(grant.because) <= set(way.because):
            return explain_grant(asked.question, grant)
    return Explanation(True, asked.question.root, asked.question.principal)


def _refusal(asked: Asked, findings: Findings, problems: list[Problem]) -> Explanation:
    """Explain why nothing counts: a right that is not enforced, one that is too narrow, or no chain at all."""
    question = asked.question
    for problem in problems:
        for grant in findings.grants:
            if problem.source in grant.because[-1:]:
                # The last certificate is the one that words the right.
                return _broken(explain_grant(question, grant), problem.code, f"does not count: {problem.message}")
        return Explanation(False, question.root, question.principal, (), problem.message, problem.code)
    explanation = find_explanation(question)
    if explanation.allowed:
        return _broken(explanation, "chain.no-authority", "gives only a part of what was asked")
    return explanation


def _broken(explanation: Explanation, code: str, problem: str) -> Explanation:
    *above, last = explanation.links
    return replace(explanation, allowed=False, links=(*above, replace(last, code=code, problem=problem)))


def _dated(explanation: Explanation) -> Explanation:
    """Put the dates of broken links into the form in which all others are shown."""
    links = tuple(
        replace(link, problem=date_problem(link.code, link.certificate.statement.validity) or link.problem)
        for link in explanation.links
    )
    return replace(explanation, links=links)
