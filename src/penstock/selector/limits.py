"""Bounds on selectors and on the solver. A node file cannot set them: all brokers must accept the same selectors."""

from dataclasses import dataclass
from typing import Final

#: characters of a selector
SELECTOR_LENGTH: Final = 16_384


@dataclass(frozen=True, kw_only=True)
class SelectorLimits:
    """Bounds on a selector, and on what the solver may spend to answer a question about some."""

    #: a selector: characters, nesting, nodes of its syntax tree
    selector_length: int = SELECTOR_LENGTH
    selector_depth: int = 64
    selector_nodes: int = 4_096
    #: the solver: milliseconds of wall time, and z3's own deterministic resource count
    solver_time: int = 2_000
    solver_effort: int = 20_000_000


SELECTOR_LIMITS: Final = SelectorLimits()
