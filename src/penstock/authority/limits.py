"""Bounds on rule books, polls, domains, facts and decisions. A node file cannot set them: brokers keep no ledgers."""

from dataclasses import dataclass
from typing import Final

from penstock.moderator.limits import ModeratorLimits
from penstock.store.limits import StoreLimits

#: seconds: the longest time until the deadline of a poll
POLL_LONGEST: Final = 30 * 86_400
#: rows of a source of facts, and bytes of an endpoint's answer
FACT_ROWS: Final = 100_000
FACT_BYTES: Final = 16 * 2**20
#: a question to a decision point: bytes, properties within properties, and characters of the names that these get
QUESTION_BYTES: Final = 1 << 20
QUESTION_DEPTH: Final = 8
QUESTION_NAME: Final = 1_000
#: a request or an answer: bytes, milliseconds that a request and an answer last at most, characters of a text in it,
#: obligations, policies that an answer rests on, and actions of a kind
ANSWER_BYTES: Final = QUESTION_BYTES + (64 << 10)
REQUEST_LIFESPAN: Final = 60_000
ANSWER_PERIOD: Final = 7 * 24 * 3_600_000
ANSWER_TEXT: Final = 1_000
ANSWER_DUTIES: Final = 64
ANSWER_POLICIES: Final = 256
ANSWER_ACTIONS: Final = 64
#: changes in one policy update; updates whose results a decision point keeps, and results of one of them
UPDATE_CHANGES: Final = 1_000
FEED_UPDATES: Final = 64
FEED_CACHES: Final = 1_000
#: a decision point: keys that it subscribes to, senders that it remembers; an enforcement point: questions that wait
#: for an answer, answers to one of them that are verified, and policies whose newest change it remembers
POINT_KEYS: Final = 100_000
POINT_SENDERS: Final = 10_000
PEP_QUESTIONS: Final = 10_000
PEP_ANSWERS: Final = 256
PEP_POLICIES: Final = 10_000
#: seconds for which the point that answered first is asked alone about resources of one type, after which all others
#: are asked too if it does not answer, and for which no point is preferred after that
PREFERRED_PERIOD: Final = 1.0
PREFERRED_WAIT: Final = 0.05
PREFERRED_PAUSE: Final = 60.0
#: requests for information that an information point reads its sources for
PIP_REQUESTS: Final = 1_000
#: seconds that clocks of points may differ
POINT_SKEW: Final = 2.0
#: seconds between two looks at a clock by which something waits: somebody may set it right meanwhile
CLOCK_LOOK: Final = 1.0
#: AuthZEN over a fabric: attributes of an event and characters of one, questions in a batch, seconds that a request may
#: wait and a clock may differ, and requests that a point remembers to recognise copies
EVENT_ATTRIBUTES: Final = 32
EVENT_ATTRIBUTE: Final = 4_096
EVENT_QUESTIONS: Final = 1_000
EVENT_LIFESPAN: Final = 300
EVENT_SKEW: Final = 30
EVENT_COPIES: Final = 100_000


@dataclass(frozen=True, kw_only=True)
class AuthorityLimits(ModeratorLimits, StoreLimits):
    """Bounds on a rule book, its polls, their rules and their ledgers, and on what a domain keeps."""

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
    #: a domain: members, certificates that it keeps, certificates in one change, characters of a name
    domain_members: int = 100_000
    domain_certificates: int = 100_000
    domain_batch: int = 256
    domain_name_length: int = 128
    #: seconds between the time of a request to a domain and the service's clock, and for which its outcome is kept:
    #: longer than that, because the clocks of services that share a store may differ
    domain_request_age: int = 300
    domain_request_memory: int = 3_600
    #: how often a change is planned again because others were quicker, and changes after which a snapshot is kept
    domain_attempts: int = 64
    domain_snapshot_every: int = 500
    #: seconds: the shortest lifetime of a capability that is renewed
    domain_shortest: int = 30
    #: decision points whose answers are cached; the answers of each: their number and bytes, subjects and objects of
    #: one graph of labels, and sets of requests that are tried for one question and one combination of bound attributes
    recycling_points: int = 16
    recycling_entries: int = 10_000
    recycling_bytes: int = 64 << 20
    recycling_labels: int = 4_096
    recycling_scan: int = 16


AUTHORITY_LIMITS: Final = AuthorityLimits()
