"""`decide()`: the only door.

A request meets every source of authority; what they allow is collected into one `Restriction`. A source that cannot
answer, or a credential that is not understood, never allows anything: it becomes an error in the decision. No branch
and an error is INDETERMINATE, which is enforced exactly as DENY.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NoReturn, Protocol, TypeAlias

from penstock.errors import PenstockError, RefusedError
from penstock.guard.restriction import NOTHING, Branch, Restriction
from penstock.model.names import NetworkName
from penstock.model.principals import Principal
from penstock.trust.capabilities import Right
from penstock.trust.event_types import VerifiedType


class Effect(StrEnum):
    """The answer. Only PERMIT allows anything."""

    PERMIT = "permit"
    DENY = "deny"
    INDETERMINATE = "indeterminate"


@dataclass(frozen=True, slots=True)
class EventRequest:
    """A principal wants to publish or subscribe to a type. The type is verified: it says who its owner is."""

    principal: Principal
    action: Right
    type: VerifiedType
    now: datetime


@dataclass(frozen=True, slots=True)
class NetworkRequest:
    """A principal wants to connect to a network or to install types on it."""

    principal: Principal
    action: Right
    network: NetworkName
    now: datetime


Request: TypeAlias = EventRequest | NetworkRequest


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that kept a source or a credential from counting."""

    code: str
    message: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What one source says: branches it allows, and what went wrong while it was asked.

    For a network request a branch without attributes stands for yes.
    """

    branches: tuple[Branch, ...] = ()
    problems: tuple[Problem, ...] = ()


class Authority(Protocol):
    """A source of authority: capabilities, active roles, policies, rules agreed through the moderator."""

    def rule(self, request: Request, /) -> Ruling:
        """Say what the source allows of a request."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to a request. It has no truth value: ask for the effect, or `require()` it."""

    effect: Effect
    restriction: Restriction = NOTHING
    because: tuple[str, ...] = ()
    errors: tuple[Problem, ...] = ()

    def __bool__(self) -> NoReturn:
        raise TypeError("a decision is no boolean: compare its effect, or call require()")

    def require(self) -> Restriction:
        """Return the restriction of a permission. Raises `RefusedError` (`guard.denied`, `guard.indeterminate`)."""
        if self.effect is Effect.PERMIT:
            return self.restriction
        if self.effect is Effect.DENY:
            raise RefusedError(
                "guard.denied", "no credential gives this right", hint="`penstock explain` shows what is missing"
            )
        first = self.errors[0]
        raise RefusedError(
            "guard.indeterminate", f"the request could not be decided: {first.message}", cause=first.code
        )


def decide(request: Request, authorities: Iterable[Authority]) -> Decision:
    """Decide a request. Never raises for the fault of a credential or a source."""
    branches: list[Branch] = []
    problems: list[Problem] = []
    if isinstance(request, EventRequest) and not request.type.validity.contains(request.now):
        # Paper 5, chapter 5: a type whose credentials have expired is expired.
        problem = Problem("type.expired", "the event type is not valid now", request.type.id)
        return Decision(Effect.INDETERMINATE, errors=(problem,))
    for authority in authorities:
        try:
            ruling = authority.rule(request)
        except PenstockError as error:
            problems.append(Problem(error.code, error.message))
            continue
        problems += ruling.problems
        branches += ruling.branches
    restriction = Restriction.of(branches)
    if restriction.branches:
        rests_on = request.type.because if isinstance(request, EventRequest) else ()
        because = tuple(dict.fromkeys(restriction.because + rests_on))
        return Decision(Effect.PERMIT, restriction, because, tuple(problems))
    return Decision(Effect.INDETERMINATE if problems else Effect.DENY, errors=tuple(problems))
