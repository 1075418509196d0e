"""Bounds on policies and their evaluation. A node file cannot set them: all decision points must decide alike."""

from dataclasses import dataclass
from typing import Final

from penstock.codec.limits import CodecLimits

#: nesting of a policy, and characters of a pattern
POLICY_DEPTH: Final = 64
POLICY_PATTERN: Final = 1_000
#: characters of a policy file
POLICY_BYTES: Final = 16 << 20
#: different attributes in a text of Cedar policies
CEDAR_ATTRIBUTES: Final = 1_000
#: results of functions: characters of a text, bits of an integer, days from the year 0
POLICY_TEXT: Final = 1 << 20
POLICY_INTEGER_BITS: Final = 4_096
POLICY_DAYS: Final = 1 << 40
#: calls that one higher-order function makes
POLICY_CALLS: Final = 1_000_000
#: requests in one request, requests that a policy asks because of one, and resources above and below one
POLICY_REQUESTS: Final = 10_000
POLICY_NESTED: Final = 32
POLICY_RESOURCES: Final = 100_000
#: states of the automaton of an expression over decisions
POLICY_STATES: Final = 1_000
#: the residual of a policy for events: steps to find it, values of an attribute that are tried, and its cases
RESIDUAL_STEPS: Final = 250_000
RESIDUAL_VALUES: Final = 64
RESIDUAL_CASES: Final = 64
#: the set of requests with the same answer: steps to find it, values that one attribute must not have before the whole
#: bag is stated instead, characters of the selector, and values of a bag in which it finds one
REQUEST_SET_STEPS: Final = 50_000
REQUEST_SET_LACKS: Final = 16
REQUEST_SET_TEXT: Final = 4_096
REQUEST_SET_BAG: Final = 1_000


@dataclass(frozen=True, kw_only=True)
class PolicyLimits(CodecLimits):
    """Bounds on policy files, and on the documents that hold them."""

    #: a policy file: bytes, and nesting
    policy_bytes: int = POLICY_BYTES
    policy_depth: int = POLICY_DEPTH
    #: steps of a pattern on a text, if it can match in many ways
    policy_matching: int = 1_000_000


POLICY_LIMITS: Final = PolicyLimits()
