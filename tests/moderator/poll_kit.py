"""What the tests of polls share: three publishers that agree, one that asks for more, and votes in one line."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from tests.moderator.kit import P1, P2, P3, P4, rule
from tests.moderator.life import add, base_of
from tests.trust.kit import key, who

from penstock.crypto import SigningKey
from penstock.moderator.base.base import RuleBase
from penstock.moderator.polls import Ballot, PollNotice, PollQuestion, Vote, cast, pose
from penstock.moderator.rules.rules import PublishRule
from penstock.moderator.rules.steps import Strategy
from penstock.trust.signed import SignedValue, sign_value

MODERATOR = key(21)
VOTERS = (P1, P2, P3, P4)
KEYS: dict[str, SigningKey] = {str(who(number)): key(number) for number in (11, 12, 13, 14)}
STRANGER = key(66)
ASKED = datetime(2026, 1, 2, tzinfo=UTC)
DEADLINE = ASKED + timedelta(minutes=10)
IN_TIME = DEADLINE - timedelta(microseconds=1)
UNTIL = DEADLINE + timedelta(days=1)
BOOK = bytes(range(32))
FOLLOW, ADD, DELETE = Strategy.FOLLOW, Strategy.ADD, Strategy.DELETE

ENGINEERS = (
    rule("a", "A1", "role = 'engineer'", of=[P1]),
    rule("b", "A1", "role = 'engineer'", of=[P2]),
    rule("c", "A12", "role = 'engineer'", of=[P3]),
)
#: what P4 asks for; it can follow the others, or all demand both, or nobody demands anything
CANDIDATE = rule("m", "A1", "machine = 'M'", of=[P4])


def contested(*rules: PublishRule, candidate: PublishRule = CANDIDATE) -> RuleBase:
    base = base_of()
    add(base, *(rules or ENGINEERS), candidate)
    return base


def question(base: RuleBase | None = None, candidate: str = "m") -> SignedValue[PollQuestion]:
    notice = PollNotice(MODERATOR.principal, BOOK, ASKED, DEADLINE, UNTIL)
    asked = pose(base or contested(), candidate, notice)
    return sign_value(asked, MODERATOR)


def vote(
    asked: SignedValue[PollQuestion],
    signer: SigningKey,
    *approves: Strategy,
    consents: Iterable[Strategy] = (),
    number: int = 1,
) -> SignedValue[Vote]:
    return cast(asked, signer, Ballot(frozenset(approves), frozenset(consents)), number=number)
