"""Results: the decision, why it could not be made, and obligations and advice with it (section 5.47 and following)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from penstock.policy.language.datatypes import DataType, Value
from penstock.policy.language.policies import RuleEffect
from penstock.policy.language.requests import Attributes

_STATUS: Final = "urn:oasis:names:tc:xacml:1.0:status:"
OK: Final = f"{_STATUS}ok"
MISSING_ATTRIBUTE: Final = f"{_STATUS}missing-attribute"
SYNTAX_ERROR: Final = f"{_STATUS}syntax-error"
PROCESSING_ERROR: Final = f"{_STATUS}processing-error"


class XacmlDecision(Enum):
    """A decision; Indeterminate with what it could have been (section 7.10)."""

    PERMIT = "Permit"
    DENY = "Deny"
    NOT_APPLICABLE = "NotApplicable"
    INDETERMINATE_P = "Indeterminate{P}"
    INDETERMINATE_D = "Indeterminate{D}"
    INDETERMINATE_DP = "Indeterminate{DP}"

    # Each is itself alone: looking at its name, as enumerations do, would take longer than what it is wanted for.
    __hash__ = object.__hash__

    @property
    def plain(self) -> str:
        """The form in which it is returned."""
        return self.value.partition("{")[0]

    @property
    def indeterminate(self) -> bool:
        """Whether it could not be made."""
        return self.value.startswith("Indeterminate")

    @classmethod
    def of(cls, effect: RuleEffect) -> "XacmlDecision":
        """Return what an effect decides."""
        return cls.PERMIT if effect is RuleEffect.PERMIT else cls.DENY

    @classmethod
    def spoiled(cls, effect: RuleEffect) -> "XacmlDecision":
        """Return what is left of an effect when something went wrong."""
        return cls.INDETERMINATE_P if effect is RuleEffect.PERMIT else cls.INDETERMINATE_D


@dataclass(frozen=True, slots=True)
class MissingAttribute:
    """An attribute that was wanted and is not there; where the request could name it, with values that would do."""

    category: str
    id: str
    of: DataType
    issuer: str | None = None


@dataclass(frozen=True, slots=True)
class DecisionStatus:
    """Why a decision could not be made, or that all is well."""

    code: str = OK
    message: str = ""
    missing: tuple[MissingAttribute, ...] = ()


FINE: Final = DecisionStatus()


@dataclass(frozen=True, slots=True)
class Assigned:
    """An attribute of an obligation, with one value."""

    id: str
    of: DataType
    value: Value
    category: str | None = None
    issuer: str | None = None


@dataclass(frozen=True, slots=True)
class Obligation:
    """An obligation or an advice that goes with a decision."""

    id: str
    assigned: tuple[Assigned, ...] = ()


@dataclass(frozen=True, slots=True)
class PolicyId:
    """A policy, or a policy set, that was applicable."""

    id: str
    version: str
    is_set: bool = False


@dataclass(frozen=True, slots=True)
class PolicyOutcome:
    """What comes of a rule, a policy or a policy set."""

    decision: XacmlDecision
    status: DecisionStatus = FINE
    obligations: tuple[Obligation, ...] = ()
    advice: tuple[Obligation, ...] = ()
    #: policies that were applicable, the inner ones first
    applicable: tuple[PolicyId, ...] = ()


NOT_APPLICABLE: Final = PolicyOutcome(XacmlDecision.NOT_APPLICABLE)


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to one request."""

    decision: XacmlDecision
    status: DecisionStatus = FINE
    obligations: tuple[Obligation, ...] = ()
    advice: tuple[Obligation, ...] = ()
    #: what the request wants back, so that it is known to which of several requests this is the answer
    attributes: tuple[Attributes, ...] = ()
    policies: tuple[PolicyId, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Response:
    """The answers to all requests in one."""

    results: Sequence[Result]
