"""Bounds on rules and polls. A node file cannot set them: all who follow a rule book must accept the same rules."""

from dataclasses import dataclass
from typing import Final

from penstock.selector.limits import SelectorLimits

#: a rule: length of its id, and publishers that it belongs to
MODERATOR_ID_LENGTH: Final = 128
MODERATOR_PUBLISHERS: Final = 1_024
#: parsed functions that are cached
MODERATOR_FUNCTIONS: Final = 4_096
#: answers about pairs of functions that a detector remembers
MODERATOR_ANSWERS: Final = 65_536
#: a poll: publishers that are asked, and votes of one of them
POLL_VOTERS: Final = 128
POLL_VOTES: Final = 16
#: bytes of a block of rules when it is unpacked
RULE_BLOCK_BYTES: Final = 512 << 20


@dataclass(frozen=True, kw_only=True)
class ModeratorLimits(SelectorLimits):
    """Bounds on a detector, and on the selectors that it compares."""

    #: answers about pairs of functions that a detector remembers
    moderator_answers: int = MODERATOR_ANSWERS


MODERATOR_LIMITS: Final = ModeratorLimits()
