"""Results: the decision, its status, and its obligations and advice (section 5.47 and following)."""

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
    """A decision; Indeterminate distinguishes what it could have been (section 7.10)."""

    PERMIT = "Permit"
    DENY = "Deny"
    NOT_APPLICABLE = "NotApplicable"
    INDETERMINATE_P = "Indeterminate{P}"
    INDETERMINATE_D = "Indeterminate{D}"
    INDETERMINATE_DP = "Indeterminate{DP}"

    # Hashed by identity: hashing the name, as enumerations do, would take too long.
    __hash__ = object.__hash__

    @property
    def plain(self) -> str:
        """The decision as it is returned in a response."""
        return self.value.partition("{")[0]

    @property
    def indeterminate(self) -> bool:
        """Whether the decision is Indeterminate."""
        return self.value.startswith("Indeterminate")

    @classmethod
    def of(cls, effect: RuleEffect) -> "XacmlDecision":
        """Return the decision of an effect."""
        return cls.PERMIT if effect is RuleEffect.PERMIT else cls.DENY

    @classmethod
    def spoiled(cls, effect: RuleEffect) -> "XacmlDecision":
        """Return the Indeterminate decision of an effect."""
        return cls.INDETERMINATE_P if effect is RuleEffect.PERMIT else cls.INDETERMINATE_D


@dataclass(frozen=True, slots=True)
class MissingAttribute:
    """A missing attribute, optionally with acceptable values."""

    category: str
    id: str
    of: DataType
    issuer: str | None = None


@dataclass(frozen=True, slots=True)
class DecisionStatus:
    """Why a decision could not be made, or OK."""

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
    """An obligation or an advice of a decision."""

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
    """The outcome of a rule, a policy or a policy set."""

    decision: XacmlDecision
    status: DecisionStatus = FINE
    obligations: tuple[Obligation, ...] = ()
    advice: tuple[Obligation, ...] = ()
    #: applicable policies, inner ones first
    applicable: tuple[PolicyId, ...] = ()


NOT_APPLICABLE: Final = PolicyOutcome(XacmlDecision.NOT_APPLICABLE)


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to one request."""

    decision: XacmlDecision
    status: DecisionStatus = FINE
    obligations: tuple[Obligation, ...] = ()
    advice: tuple[Obligation, ...] = ()
    #: attributes that the request wants back, to identify one of several requests
    attributes: tuple[Attributes, ...] = ()
    policies: tuple[PolicyId, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Response:
    """The results of all individual requests."""

    results: Sequence[Result]
