"""What is said in a poll about a way out of a conflict, all of it signed (paper 1, section IV, distributed resolution).

    (poll-question (moderator <principal>) (book <digest>) (since <steps>) (candidate <id>) (rules <rule> …)
                   (options <option> …) (voters <principal> …) (time <date>) (deadline <date>) (until <date>))
    <rule>    (<form>) | (<form> <stated>)
    <option>  (<strategy> (relaxes <principal> …) (forms <form> …))
    (poll-vote (poll <digest>) (voter <principal>) (number <n>) (approves <strategy> …) (consents <signed consent> …)
               [(automatic)])
    (poll-outcome (moderator <principal>) (poll <digest>) (time <date>) (chosen [<strategy>]) (votes <signed vote> …))

A poll is named by the digest of its question, so a vote is for all that its voter was shown: the rules as they are,
what would become of each, who else is asked, and until when. Of several votes of one voter the highest number counts;
one that a policy cast says so, because it gives way to one that was cast by hand.
Who agrees that its own rule is relaxed adds a consent for this poll, which is what a rule book goes by. What the votes
come to is for `poll` to say.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Final

from penstock.codec.sexp import SExp, text
from penstock.codec.sexp import field as sexp_field
from penstock.crypto import digest
from penstock.errors import LimitError
from penstock.model.instants import format_date, parse_date
from penstock.model.limits import DEFAULT_LIMITS
from penstock.model.principals import Principal
from penstock.moderator.consents import Consent, resolution_digest
from penstock.moderator.rules import PublishRule
from penstock.moderator.steps import Strategy
from penstock.trust.signed import (
    UnverifiedValue,
    malformed,
    one,
    read_count,
    read_digest,
    read_owner,
    read_signed,
    read_time,
    time_field,
)

_AUTOMATIC: Final = b"automatic"


@dataclass(frozen=True, slots=True)
class Touched:
    """A rule that some way out would change: as it is in force, and as it was stated. A candidate is both."""

    form: PublishRule = field(repr=False)
    stated: PublishRule = field(repr=False)


@dataclass(frozen=True, slots=True)
class Option:
    """A way out: whose rules it relaxes, and the candidate and all rules that change as they would be."""

    strategy: Strategy
    relaxes: tuple[Principal, ...]
    forms: tuple[PublishRule, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Question:
    """What those affected are asked, by whom, and until when.

    Raises `MalformedError` (`evolution.malformed`) for a question that means nothing, `LimitError` (`poll.limit`).
    """

    HEAD: ClassVar = b"poll-question"
    moderator: Principal
    #: the digest of the founding of the rule base, and how many steps it had
    book: bytes = field(repr=False)
    since: int
    candidate: str
    rules: tuple[Touched, ...]
    #: in the order in which they change least
    options: tuple[Option, ...]
    voters: tuple[Principal, ...]
    time: datetime
    deadline: datetime
    #: when consents end, if nothing came of them
    until: datetime

    def __post_init__(self) -> None:
        known = {rule.form.id: rule for rule in self.rules}
        if len(known) != len(self.rules) or self.candidate not in known:
            raise malformed("a question has each rule once, and the candidate among them")
        if len({option.strategy for option in self.options}) != len(self.options) or not self.options:
            raise malformed("a question has each way out once, and one at least")
        if len(set(self.voters)) != len(self.voters):
            raise malformed("a question is put to each voter once")
        if not all(rule.stated.stated_by in self.voters for rule in self.rules):
            raise malformed("all whose rules would change are asked")
        for option in self.options:
            if not all(form.id in known for form in option.forms) or not set(option.relaxes) <= set(self.voters):
                raise malformed("a way out is about the rules and the voters of its question")
        if not self.time < self.deadline < self.until:
            raise malformed("a question has a deadline after it is asked, and consents do not end before")
        if len(self.voters) > DEFAULT_LIMITS.poll_voters:
            raise LimitError("poll.limit", f"{len(self.voters)} publishers would have to be asked")

    @property
    def signer(self) -> Principal:
        """The moderator that asks."""
        return self.moderator

    @property
    def id(self) -> bytes:
        """What names the poll."""
        return digest(self.to_sexp())

    @property
    def deciding(self) -> tuple[Principal, ...]:
        """Those of the voters whose approvals count: they stated the rules. The others consent, or do not."""
        stated_by = {rule.stated.stated_by for rule in self.rules}
        return tuple(voter for voter in self.voters if voter in stated_by)

    def rule(self, rule_id: str) -> Touched:
        """Return one of the rules that the question is about."""
        return next(rule for rule in self.rules if rule.form.id == rule_id)

    def option(self, strategy: Strategy) -> Option | None:
        """Return one of the ways out, if it is asked about."""
        return next((option for option in self.options if option.strategy is strategy), None)

    def consent(self, voter: Principal, option: Option) -> Consent:
        """Return what a voter signs so that its rule may be relaxed by one of the ways out."""
        return Consent(self.book, voter, self.subject(option), self.since, self.until, self.id)

    def subject(self, option: Option) -> bytes:
        """Return what consents to one of the ways out are to."""
        return resolution_digest(self.candidate, option.strategy, {form.id: form for form in option.forms})

    def to_sexp(self) -> SExp:
        """Return the body that is signed."""
        return (
            self.HEAD,
            (b"moderator", _who(self.moderator)),
            (b"book", self.book),
            (b"since", b"%d" % self.since),
            (b"candidate", self.candidate.encode()),
            (b"rules", *map(_touched, self.rules)),
            (b"options", *map(_option, self.options)),
            (b"voters", *map(_who, self.voters)),
            time_field(self.time),
            (b"deadline", format_date(self.deadline)),
            (b"until", format_date(self.until)),
        )

    @classmethod
    def from_sexp(cls, body: SExp) -> "Question":
        """Read a body. Raises `MalformedError` (`evolution.malformed`, and what the parts raise)."""
        return cls(
            read_owner(one(body, b"moderator")),
            read_digest(one(body, b"book")),
            read_count(one(body, b"since")),
            text(one(body, b"candidate")),
            tuple(map(_read_touched, _all(body, b"rules"))),
            tuple(map(_read_option, _all(body, b"options"))),
            tuple(map(read_owner, _all(body, b"voters"))),
            read_time(body),
            _read_date(body, b"deadline"),
            _read_date(body, b"until"),
        )


@dataclass(frozen=True, slots=True)
class Vote:
    """What one voter answers: the ways out that it approves, and its consents to those that relax its own rule.

    An empty vote refuses everything. Raises `MalformedError` (`evolution.malformed`).
    """

    HEAD: ClassVar = b"poll-vote"
    poll: bytes = field(repr=False)
    voter: Principal
    number: int
    approves: frozenset[Strategy] = frozenset()
    consents: tuple[UnverifiedValue[Consent], ...] = field(default=(), repr=False)
    #: cast by a policy, without anybody looking
    automatic: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.number <= DEFAULT_LIMITS.poll_votes:
            raise malformed(f"votes are numbered from 1 to {DEFAULT_LIMITS.poll_votes}")

    @property
    def signer(self) -> Principal:
        """The voter."""
        return self.voter

    def to_sexp(self) -> SExp:
        """Return the body that is signed."""
        return (
            self.HEAD,
            (b"poll", self.poll),
            (b"voter", _who(self.voter)),
            (b"number", b"%d" % self.number),
            (b"approves", *(strategy.encode() for strategy in sorted(self.approves))),
            (b"consents", *(consent.to_sexp() for consent in self.consents)),
            *([(_AUTOMATIC,)] if self.automatic else []),
        )

    @classmethod
    def from_sexp(cls, body: SExp) -> "Vote":
        """Read a body. Raises `MalformedError` (`evolution.malformed`, and what the parts raise)."""
        return cls(
            read_digest(one(body, b"poll")),
            read_owner(one(body, b"voter")),
            read_count(one(body, b"number")),
            frozenset(map(_read_strategy, _all(body, b"approves"))),
            tuple(read_signed(consent, Consent) for consent in _all(body, b"consents")),
            sexp_field(body, _AUTOMATIC) is not None,
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a poll came to, with the votes that it follows from."""

    HEAD: ClassVar = b"poll-outcome"
    moderator: Principal
    poll: bytes = field(repr=False)
    time: datetime
    chosen: Strategy | None
    votes: tuple[UnverifiedValue[Vote], ...] = field(repr=False)

    @property
    def signer(self) -> Principal:
        """The moderator that asked."""
        return self.moderator

    def to_sexp(self) -> SExp:
        """Return the body that is signed."""
        return (
            self.HEAD,
            (b"moderator", _who(self.moderator)),
            (b"poll", self.poll),
            time_field(self.time),
            (b"chosen",) if self.chosen is None else (b"chosen", self.chosen.encode()),
            (b"votes", *(vote.to_sexp() for vote in self.votes)),
        )

    @classmethod
    def from_sexp(cls, body: SExp) -> "Outcome":
        """Read a body. Raises `MalformedError` (`evolution.malformed`), `RefusedError` (what the votes raise)."""
        chosen = _all(body, b"chosen")
        if len(chosen) > 1:
            raise malformed("a poll chooses one way out, or none")
        return cls(
            read_owner(one(body, b"moderator")),
            read_digest(one(body, b"poll")),
            read_time(body),
            _read_strategy(chosen[0]) if chosen else None,
            tuple(read_signed(vote, Vote) for vote in _all(body, b"votes")),
        )


# --- parts ----------------------------------------------------------------------------------------------------------


def _touched(rule: Touched) -> SExp:
    return (rule.form.to_sexp(),) if rule.form == rule.stated else (rule.form.to_sexp(), rule.stated.to_sexp())


def _read_touched(value: SExp) -> Touched:
    match value:
        case (tuple(form), *stated) if len(stated) <= 1:
            read = PublishRule.from_sexp(form)
            return Touched(read, PublishRule.from_sexp(stated[0]) if stated else read)
    raise malformed("a rule has a form, and perhaps another that was stated")


def _option(option: Option) -> SExp:
    return (
        option.strategy.encode(),
        (b"relaxes", *map(_who, option.relaxes)),
        (b"forms", *(form.to_sexp() for form in option.forms)),
    )


def _read_option(value: SExp) -> Option:
    match value:
        case (bytes(strategy), (b"relaxes", *relaxes), (b"forms", *forms)):
            return Option(
                _read_strategy(strategy), tuple(map(read_owner, relaxes)), tuple(map(PublishRule.from_sexp, forms))
            )
    raise malformed("a way out has a strategy, whom it relaxes, and forms")


def _read_date(body: SExp, name: bytes) -> datetime:
    date = one(body, name)
    if not isinstance(date, bytes):
        raise malformed("a date is an atom")
    return parse_date(date)


def _read_strategy(value: SExp) -> Strategy:
    written = text(value)
    if written not in [*Strategy]:
        raise malformed("there is no such strategy")
    return Strategy(written)


def _all(body: SExp, name: bytes) -> tuple[SExp, ...]:
    found = sexp_field(body, name)
    if found is None:
        raise malformed(f"a statement has one `({name.decode()} …)`")
    return found[1:]


def _who(principal: Principal) -> bytes:
    return str(principal).encode()
