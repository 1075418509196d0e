"""Which combining algorithm an id means: one of the standard's, or a decision tuple."""

from penstock.policy.combine import POLICY_ALGORITHMS, RULE_ALGORITHMS, Algorithm, algorithm
from penstock.policy.tuples import PREFIX, tuple_algorithm


def rule_algorithm(name: str) -> Algorithm:
    """Return the algorithm that combines rules. Raises `MalformedError` (`xacml.combining`) and as tuples do."""
    return tuple_algorithm(name) if name.startswith(PREFIX) else algorithm(name, RULE_ALGORITHMS)


def policy_algorithm(name: str) -> Algorithm:
    """Return the algorithm that combines policies. Raises as `rule_algorithm`."""
    return tuple_algorithm(name) if name.startswith(PREFIX) else algorithm(name, POLICY_ALGORITHMS)
