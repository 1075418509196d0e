"""Bounds on rule books and polls in ledgers. A node file cannot set them: brokers do not keep rule books."""

from dataclasses import dataclass
from typing import Final

from penstock.moderator.limits import ModeratorLimits
from penstock.store.limits import StoreLimits

#: seconds: the longest time until the deadline of a poll
POLL_LONGEST: Final = 30 * 86_400


@dataclass(frozen=True, kw_only=True)
class AuthorityLimits(ModeratorLimits, StoreLimits):
    """Bounds on a rule book, its polls, their rules and their ledgers."""

    #: steps of a rule book that are kept in memory: others are read again when one of them is to be undone
    moderator_steps: int = 10_000
    #: steps of a rule book after which a snapshot is kept: as many as a command replays while it starts anyway
    moderator_snapshot_every: int = 100
    #: a signed request: seconds between its time and the moderator's clock, and how often it is planned again because
    #: others were quicker
    moderator_request_age: int = 86_400
    moderator_attempts: int = 64
    #: seconds that pass between two steps without the moderator's word
    moderator_leap: int = 366 * 86_400
    #: milliseconds of wall time for the solver on the rules of a log, where only its own count may decide whether it
    #: finds an answer
    moderator_patience: int = 60_000
    #: seconds: the longest time until the deadline of a poll, and how long consents are valid afterwards
    poll_longest: int = POLL_LONGEST
    poll_consent: int = 86_400


AUTHORITY_LIMITS: Final = AuthorityLimits()
