"""Signed requests for decisions, and signed answers.

    (access-request (question <JSON>) (sender <principal>) (number <n>) (time <date>) (lifespan <milliseconds>)
                    [(reply-to <host:port>)])
    (access-answer (question <digest>) (effect Permit|Deny|NotApplicable|Indeterminate) [(status <code>)]
                   [(obligations <duty> …)] [(advice <duty> …)] (rests-on <policy> …) (point <principal>)
                   (issued <date>) (until <date>) [(recycling <class>)] [(holds-for <selector>)])
    <duty>    (duty (id <text>) (assigned (<attribute> <data type> <value>) …))
    <policy>  (policy (id <text>) (revision <text>) (changed <date>))
    <class>   (roles (attribute <name>)) | (labels (read <action> …) (append <action> …) (write <action> …)
                                                   [(mandatory Permit|Deny)])

A request contains the question, an answer its digest: anyone who asks the same question can use the answer until it
ends. `number` differs in all requests of a sender, so that a point drops copies. An answer names the policies that
it rests on. The newest `changed` of the same `id` wins where several points answer.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from penstock.authority.decisions.questions import AccessQuestion
from penstock.authority.limits import (
    ANSWER_ACTIONS,
    ANSWER_BYTES,
    ANSWER_DUTIES,
    ANSWER_PERIOD,
    ANSWER_POLICIES,
    ANSWER_TEXT,
    REQUEST_LIFESPAN,
)
from penstock.codec.sexp import OMITTED, Form, ListForm, SExp, text
from penstock.errors import LimitError
from penstock.model.principals import Principal
from penstock.policy.language.results import PolicyOutcome, XacmlDecision
from penstock.trust.signed import (
    DIGEST,
    Claim,
    StatementRecord,
    UnverifiedValue,
    bytes_form,
    count_form,
    malformed,
    parse_signed,
)

# ----------------------------------------------------------------------------------------------------------------------
# How values are written.


def _short(value: SExp) -> str:
    found = text(value)
    if not 0 < len(found) <= ANSWER_TEXT:
        raise malformed(f"not a text of 1 to {ANSWER_TEXT} characters")
    return found


TEXT: Final[Form[str]] = Form(str.encode, _short)
#: written forms of questions are compared by `AccessQuestion.from_bytes`
_QUESTION: Final[Form[AccessQuestion]] = Form(
    lambda question: question.written, lambda value: AccessQuestion.from_bytes(bytes_form().read(value))
)


def _actions(elements: tuple[SExp, ...]) -> frozenset[str]:
    found = frozenset(map(_short, elements))
    if not 0 < len(elements) <= ANSWER_ACTIONS:
        raise malformed(f"not 1 to {ANSWER_ACTIONS} actions")
    return found


_ACTIONS: Final[ListForm[frozenset[str]]] = ListForm(
    lambda names: tuple(name.encode() for name in sorted(names)), _actions
)


#: for how long an answer holds, at least and at most
_NO_TIME, _LONGEST = timedelta(), timedelta(milliseconds=ANSWER_PERIOD)


# ----------------------------------------------------------------------------------------------------------------------
# Requests.


@dataclass(frozen=True, slots=True)
class AccessRequest(Claim):
    """An enforcement point's request for a decision."""

    HEAD: ClassVar = b"access-request"
    SIGNER: ClassVar = "sender"
    question: Annotated[AccessQuestion, _QUESTION]
    sender: Principal
    #: another one in each request of the sender
    number: int
    time: datetime
    #: milliseconds after which nobody waits for the answer
    lifespan: Annotated[int, count_form(REQUEST_LIFESPAN, least=1)]
    #: the address to which the answer is sent directly; without one it is published
    reply_to: Annotated[str, TEXT] | None = None

    @property
    def until(self) -> datetime:
        """When the request ends."""
        return self.time + timedelta(milliseconds=self.lifespan)


# ----------------------------------------------------------------------------------------------------------------------
# Answers.


class AnswerEffect(StrEnum):
    """The decision in an answer."""

    PERMIT = "Permit"
    DENY = "Deny"
    NOT_APPLICABLE = "NotApplicable"
    INDETERMINATE = "Indeterminate"

    @classmethod
    def of(cls, decision: XacmlDecision) -> "AnswerEffect":
        """Return the effect of a decision: all kinds of Indeterminate are one."""
        return cls(decision.plain)


@dataclass(frozen=True, slots=True)
class AnswerDuty(StatementRecord):
    """An obligation or an advice: its id, and the id, data type and written value of each attribute."""

    HEAD: ClassVar = b"duty"
    id: Annotated[str, TEXT]
    assigned: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class PolicyRevision(StatementRecord):
    """A policy that an answer rests on: its identity, its revision, and when it was last changed."""

    HEAD: ClassVar = b"policy"
    id: Annotated[str, TEXT]
    revision: Annotated[str, TEXT]
    changed: datetime


@dataclass(frozen=True, slots=True)
class RoleRecycling(StatementRecord):
    """The policy is a union over exactly the roles in this attribute of the subject."""

    HEAD: ClassVar = b"roles"
    attribute: Annotated[str, TEXT]


@dataclass(frozen=True, slots=True)
class LabelRecycling(StatementRecord):
    """The policy is Bell–LaPadula over fixed labels: which actions read, append and write.

    `mandatory` is the decision of the labels alone, where a discretionary part took part in the answer.
    """

    HEAD: ClassVar = b"labels"
    read: Annotated[frozenset[str], _ACTIONS]
    append: Annotated[frozenset[str], _ACTIONS]
    write: Annotated[frozenset[str], _ACTIONS]
    mandatory: AnswerEffect | None = None

    def verify_fields(self) -> None:
        """Raise `MalformedError` (`evolution.malformed`) for an action of two kinds, or an unclear mandatory part."""
        if len(self.read | self.append | self.write) != len(self.read) + len(self.append) + len(self.write):
            raise malformed("an action reads, appends or writes")
        if self.mandatory in (AnswerEffect.NOT_APPLICABLE, AnswerEffect.INDETERMINATE):
            raise malformed("the mandatory part is Permit or Deny")


RecyclingClass = RoleRecycling | LabelRecycling
"""How answers of a point can be recycled beyond the same question."""


@dataclass(frozen=True, slots=True)
class AccessAnswer(Claim):
    """A decision point's answer to a question."""

    HEAD: ClassVar = b"access-answer"
    ORDER: ClassVar = (
        "question", "effect", "status", "obligations", "advice", "rests_on", "point", "issued", "until", "recycling",
        "holds_for",
    )  # fmt: skip
    SIGNER: ClassVar = "point"
    #: the digest of the question
    question: Annotated[bytes, DIGEST]
    effect: AnswerEffect
    rests_on: tuple[PolicyRevision, ...]
    point: Principal
    issued: datetime
    until: datetime
    #: why the effect is Indeterminate
    status: Annotated[str, TEXT] | None = None
    obligations: Annotated[tuple[AnswerDuty, ...], OMITTED] = ()
    advice: Annotated[tuple[AnswerDuty, ...], OMITTED] = ()
    recycling: RecyclingClass | None = None
    #: a selector over request attributes: the same answer holds for each question that it matches
    holds_for: str | None = None

    def verify_fields(self) -> None:
        """Raise `MalformedError` (`evolution.malformed`) for fields that do not fit each other."""
        if not _NO_TIME <= self.until - self.issued <= _LONGEST:
            raise malformed(f"an answer holds for 0 to {ANSWER_PERIOD} milliseconds")
        if (self.status is None) is (self.effect is AnswerEffect.INDETERMINATE):
            raise malformed("exactly the answers that are Indeterminate have a status")
        if len(self.obligations) > ANSWER_DUTIES or len(self.advice) > ANSWER_DUTIES:
            raise malformed(f"more than {ANSWER_DUTIES} obligations")
        if len(self.rests_on) > ANSWER_POLICIES or len({policy.id for policy in self.rests_on}) < len(self.rests_on):
            raise malformed(f"more than {ANSWER_POLICIES} policies, or one of them twice")
        definite = self.effect in (AnswerEffect.PERMIT, AnswerEffect.DENY)
        if (self.recycling is not None or self.holds_for is not None) and (not definite or self.obligations):
            raise malformed("only a Permit or Deny without obligations holds for other questions")


def duties_of(outcome: PolicyOutcome) -> tuple[tuple[AnswerDuty, ...], tuple[AnswerDuty, ...]]:
    """Return the obligations and the advice of an outcome, as answers carry them."""
    if not (outcome.obligations or outcome.advice):
        return (), ()
    obligations, advice = (
        tuple(
            AnswerDuty(duty.id, tuple((one.id, one.of.id, one.of.write(one.value)) for one in duty.assigned))
            for duty in duties
        )
        for duties in (outcome.obligations, outcome.advice)
    )
    return obligations, advice


_BEGINNING: Final = b"(8:sequence"


def read_request(data: bytes) -> UnverifiedValue[AccessRequest]:
    """Read a signed request. Raises `MalformedError`, `LimitError`, `RefusedError` as `parse_signed`."""
    return parse_signed(_bounded(data), AccessRequest)


def read_answer(data: bytes) -> UnverifiedValue[AccessAnswer]:
    """Read a signed answer. Raises `MalformedError`, `LimitError`, `RefusedError` as `parse_signed`."""
    return parse_signed(_bounded(data), AccessAnswer)


def _bounded(data: bytes) -> bytes:
    if len(data) > ANSWER_BYTES:
        raise LimitError("pdp.limit", f"a request or an answer is longer than {ANSWER_BYTES} bytes")
    if not data.startswith(_BEGINNING):
        raise malformed("not a signed statement")  # junk costs no parsing
    return data
