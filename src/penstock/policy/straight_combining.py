"""What combining algorithms come to where nothing fails, and nothing is to be done besides (`straight`)."""

import re
from enum import Enum
from typing import Final

from penstock.policy.results import Decision

P, D, NA = Decision.PERMIT, Decision.DENY, Decision.NOT_APPLICABLE


class Combining(Enum):
    """What an algorithm comes to where nothing fails."""

    DENY_OVERRIDES = D
    PERMIT_OVERRIDES = P
    FIRST = NA
    DENY_UNLESS_PERMIT = "permit or else deny"
    PERMIT_UNLESS_DENY = "deny or else permit"

    @property
    def decisive(self) -> frozenset[Decision]:
        """What decides at once, whatever else is said."""
        match self:
            case Combining.FIRST:
                return frozenset((P, D))
            case Combining.DENY_OVERRIDES | Combining.PERMIT_UNLESS_DENY:
                return frozenset((D,))
            case Combining.PERMIT_OVERRIDES | Combining.DENY_UNLESS_PERMIT:
                return frozenset((P,))

    @property
    def otherwise(self) -> Decision:
        """What is said where no child decides."""
        if self is Combining.DENY_UNLESS_PERMIT:
            return D
        return P if self is Combining.PERMIT_UNLESS_DENY else NA


_ALGORITHM: Final = re.compile(r"urn:oasis:names:tc:xacml:([13])\.0:(?:rule|policy)-combining-algorithm:([a-z-]+)")
_KNOWN: Final = {
    ("3", "deny-overrides"): Combining.DENY_OVERRIDES,
    ("3", "ordered-deny-overrides"): Combining.DENY_OVERRIDES,
    ("3", "permit-overrides"): Combining.PERMIT_OVERRIDES,
    ("3", "ordered-permit-overrides"): Combining.PERMIT_OVERRIDES,
    ("1", "first-applicable"): Combining.FIRST,
    ("3", "deny-unless-permit"): Combining.DENY_UNLESS_PERMIT,
    ("3", "permit-unless-deny"): Combining.PERMIT_UNLESS_DENY,
}


def combining_of(name: str) -> Combining | None:
    """Return what an algorithm comes to; none for the rarer ones."""
    found = _ALGORITHM.fullmatch(name)
    return None if found is None else _KNOWN.get((found[1], found[2]))
