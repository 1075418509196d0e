"""`decide()`: the only function that returns a restriction.

It asks every source of authority about a request, and collects what they permit into one `Restriction`. A source that
cannot answer, or a credential that is not understood, never permits anything: it becomes an error in the decision. A
decision with an error and without a branch is INDETERMINATE, which is enforced exactly as DENY.

A source's answer is used only as far as it concerns the request: the same action, a scope that covers the type, and no
longer than the type itself is valid. Publishing on a topic is decided for all its super-topics too. A right on a
network is enforced once, by this decision, so a branch with a condition left to check grants nothing there.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import NoReturn, Protocol, TypeAlias

from penstock.errors import MalformedError, PenstockError, RefusedError, expect
from penstock.guard.limits import AGREED_BRANCHES
from penstock.guard.restriction import NOTHING, Branch, Restriction, TypeScope, When
from penstock.model.instants import in_utc
from penstock.model.names import NetworkName
from penstock.model.principals import Principal
from penstock.model.topics import TopicName, is_topic, topic_attribute
from penstock.trust.capabilities import Right
from penstock.trust.event_types import VerifiedType
from penstock.trust.limits import GRANTS_PER_PRINCIPAL
from penstock.trust.refusals import LackedRight

# ----------------------------------------------------------------------------------------------------------------------
# The hierarchical rule of topics: the rights that publishing and subscribing need in a tree of topics (paper 5, 5.5).
#
# Publishing on a topic needs the right to publish on all its super-topics as well, because their subscribers receive
# the message too. A message must satisfy the conditions of one right on each level. Subscribing needs the right on that
# topic alone. It includes the sub-topics, and needs no right on super-topics.
#
# `decide()` applies this rule, so that brokers, jobs and the command line do. It also forces each message to contain
# the topic it was published on, whatever its publisher wrote.


def super_topics(verified: VerifiedType) -> tuple[VerifiedType, ...]:
    """Return the super-topics of a topic, from the nearest to the first level. Other types have none.

    Raises `RefusedError` (`topic.super-topics`) if they are not known.
    """
    if not is_topic(verified.event_type.name):
        return ()
    found: list[VerifiedType] = []
    above = verified.parent
    while above is not None:
        found.append(above)
        above = above.parent
    needed = [topic.type_name for topic in TopicName.of_type(verified.event_type.name).super_topics]
    if [one.event_type.name for one in found] != needed:
        raise RefusedError(
            "topic.super-topics",
            f"the super-topics of `{verified.event_type.name.name}` are not known",
            hint="verify the topic together with them",
        )
    return tuple(found)


def both(on_topic: Restriction, above: Restriction) -> Restriction:
    """Return what rights on a topic and rights on a super-topic both permit."""
    return on_topic & Restriction(tuple(replace(branch, types=TypeScope()) for branch in above.branches))


def named(restriction: Restriction, verified: VerifiedType) -> Restriction:
    """Return rights to publish on a topic so that each message says its name."""
    topic = TopicName.of_type(verified.event_type.name)
    attribute = topic_attribute(topic)
    told = Branch(action=Right.PUBLISH, forced=((attribute, topic.path),))

    def listing(branch: Branch) -> Branch:
        return branch if branch.attributes is None else replace(branch, attributes=branch.attributes | {attribute})

    return Restriction(tuple(listing(branch) for branch in restriction.branches)) & Restriction((told,))


# ----------------------------------------------------------------------------------------------------------------------
# `decide()`: the only door.


class Effect(StrEnum):
    """The answer. Only PERMIT allows anything."""

    PERMIT = "permit"
    DENY = "deny"
    INDETERMINATE = "indeterminate"


@dataclass(frozen=True, slots=True)
class EventRequest:
    """A principal's request to publish or subscribe to a type. The type is verified, and so is its owner.

    Without `now` the request is about all times. Each branch of the answer then says when it is valid, and enforcement
    checks this for the time of each event. History is decided this way.

    Raises `MalformedError` (`guard.action`) for a right on networks.
    """

    principal: Principal
    action: Right
    type: VerifiedType
    now: datetime | None

    def __post_init__(self) -> None:
        _check_request(self.principal, self.action, self.now)
        expect(self.type, VerifiedType, "the type of a request", "verify it first: `verify_type(unverified, now)`")
        if self.action.on_network:
            raise _wrong_action(self.action)


@dataclass(frozen=True, slots=True)
class NetworkRequest:
    """A principal wants to connect to a network or to install types on it.

    Raises `MalformedError` (`guard.action`) for a right on event types.
    """

    principal: Principal
    action: Right
    network: NetworkName
    now: datetime

    def __post_init__(self) -> None:
        _check_request(self.principal, self.action, self.now)
        expect(self.network, NetworkName, "the network of a request")
        if not self.action.on_network:
            raise _wrong_action(self.action)


def _check_request(principal: Principal, action: Right, now: datetime | None) -> None:
    expect(principal, Principal, "the principal of a request", "a key's principal is `key.principal`")
    expect(action, Right, "the action of a request", "use `Right.SUBSCRIBE` and its like")
    if now is not None:
        expect(now, datetime, "the time of a request")
        in_utc(now)


def _wrong_action(action: Right) -> MalformedError:
    return MalformedError(
        "guard.action",
        f"`{action}` does not apply to this kind of request",
        hint="connect and install are rights on a network, all others on event types",
    )


Request: TypeAlias = EventRequest | NetworkRequest


@dataclass(frozen=True, slots=True)
class DecisionProblem:
    """Something that kept a source or a credential from counting."""

    code: str
    message: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class Ruling:
    """The answer of one source: the branches it permits, its errors, and why it permits nothing.

    A refusal is not an error: `refusals` explain it to operators. For a network request a branch without attributes
    means yes.
    """

    branches: tuple[Branch, ...] = ()
    problems: tuple[DecisionProblem, ...] = ()
    refusals: tuple[DecisionProblem, ...] = ()

    def __and__(self, other: "Ruling") -> "Ruling":
        """Return what both permit, up to the bound on branches."""
        return self._with(other, Restriction.of(self.branches) & Restriction.of(other.branches))

    def __or__(self, other: "Ruling") -> "Ruling":
        """Return what either permits, up to the bound on branches."""
        return self._with(other, Restriction.of((*self.branches, *other.branches)))

    def _with(self, other: "Ruling", found: Restriction) -> "Ruling":
        problems = [*self.problems, *other.problems]
        kept = found.branches[:AGREED_BRANCHES]
        if len(kept) < len(found.branches):
            problems.append(
                DecisionProblem("guard.truncated", "more grants were found than are kept; some are left out")
            )
        return Ruling(kept, tuple(problems), () if kept else (*self.refusals, *other.refusals))


class Authority(Protocol):
    """A source of authority: capabilities, active roles, policies, rules agreed through the moderator."""

    def rule(self, request: Request, /) -> Ruling:
        """Return the source's ruling on a request."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to a request. It has no truth value: ask for the effect, or `require()` it."""

    effect: Effect
    restriction: Restriction = NOTHING
    because: tuple[str, ...] = ()
    errors: tuple[DecisionProblem, ...] = ()
    #: what was decided, for the words of a refusal
    request: Request | None = field(default=None, compare=False, repr=False)

    def __bool__(self) -> NoReturn:
        raise TypeError("a decision is not a boolean: compare its effect, or call require()")

    def require(self) -> Restriction:
        """Return the restriction of a permission. Raises `RefusedError` (`guard.denied`, `guard.indeterminate`)."""
        if self.effect is Effect.PERMIT:
            return self.restriction
        if self.effect is Effect.DENY:
            raise self._refusal("guard.denied", self.errors[0].message if self.errors else "no credential permits it")
        first = self.errors[0] if self.errors else DecisionProblem("guard.indeterminate", "no reason is known")
        why = f"the request could not be decided: {first.message}"
        raise self._refusal("guard.indeterminate", why, cause=first.code)

    def _refusal(self, code: str, why: str, **fields: str) -> RefusedError:
        request = self.request
        if request is None:
            return RefusedError(code, why, **fields)
        about = request.network if isinstance(request, NetworkRequest) else request.type.event_type.name
        return LackedRight(request.principal, request.action, about).refuse(code, why, **fields)


def decide(request: Request, authorities: Iterable[Authority]) -> Decision:
    """Decide a request.

    Never raises for the fault of a credential, nor for a source that refuses to answer with a `PenstockError`.
    Raises `MalformedError` (`value.zone`) when `now` has no time zone.
    """
    if isinstance(request, EventRequest) and request.now and not request.type.validity.contains(request.now):
        # Paper 5, chapter 5: a type whose credentials have expired is expired.
        problem = DecisionProblem("type.expired", "the event type is not valid now", request.type.id)
        return Decision(Effect.INDETERMINATE, errors=(problem,), request=request)
    known = tuple(authorities)
    refusals: list[DecisionProblem] = []
    restriction, problems = _collect(request, known, refusals)
    if isinstance(request, EventRequest) and request.action is Right.PUBLISH and is_topic(request.type.event_type.name):
        restriction = _on_topic(request, restriction, known, problems, refusals)
    if restriction.branches:
        return Decision(Effect.PERMIT, restriction, restriction.because, tuple(problems), request)
    errors = tuple(dict.fromkeys((*problems, *refusals)))
    return Decision(Effect.INDETERMINATE if problems else Effect.DENY, errors=errors, request=request)


def _collect(
    request: Request, authorities: Iterable[Authority], refusals: list[DecisionProblem]
) -> tuple[Restriction, list[DecisionProblem]]:
    """Return the sources' branches and errors for a request; add why they refuse it."""
    branches: list[Branch] = []
    problems: list[DecisionProblem] = []
    for authority in authorities:
        try:
            ruling = authority.rule(request)
        except PenstockError as error:
            problems.append(DecisionProblem(error.code, error.message))
            continue
        problems += ruling.problems
        refusals += ruling.refusals
        for branch in ruling.branches:
            if branch.action is not request.action:
                continue
            if isinstance(request, EventRequest):
                branches += _on_type(branch, request.type)
            elif _settled(branch, request.now):
                branches.append(branch)
            else:
                problems.append(
                    DecisionProblem(
                        "guard.unsettled",
                        "a right on a network has a condition that cannot be checked",
                        *branch.because[-1:],
                    )
                )
    return Restriction.of(branches), problems


def _on_topic(
    request: EventRequest,
    restriction: Restriction,
    authorities: tuple[Authority, ...],
    problems: list[DecisionProblem],
    refusals: list[DecisionProblem],
) -> Restriction:
    """Restrict rights to publish on a topic by those on its super-topics (paper 5, section 5.5)."""
    try:
        for above in super_topics(request.type):
            wider, found = _collect(replace(request, type=above), authorities, refusals)
            problems += found
            restriction = both(restriction, wider)
            if len(restriction.branches) > GRANTS_PER_PRINCIPAL:
                restriction = Restriction(restriction.branches[:GRANTS_PER_PRINCIPAL])
                problems.append(
                    DecisionProblem("guard.truncated", "more grants were found than are kept; some are left out")
                )
        return named(restriction, request.type)
    except PenstockError as error:
        problems.append(DecisionProblem(error.code, error.message, request.type.id))
        return NOTHING


def _on_type(branch: Branch, verified: VerifiedType) -> Iterator[Branch]:
    """Yield a branch limited to the type's validity: it depends on the type's credentials too."""
    when = branch.when.intersect(When(verified.validity))
    if when is not None and branch.types.covers(verified.event_type):
        yield replace(branch, when=when, because=tuple(dict.fromkeys(branch.because + verified.because)))


def _settled(branch: Branch, now: datetime) -> bool:
    """Return whether a branch is valid now and has no condition on an event or the environment."""
    return branch.unconditional and branch.when.validity.contains(now)
