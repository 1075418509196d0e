"""A poll about proposals: who is asked, which votes count, and the outcome. `authority.polls` carries it out.

A poll's outcome is a function of the set of votes that count when it is closed, whatever happened to the messages:

1. *Who is asked*: the authors of the candidate and of all rules that some proposal would change, and the publishers
   bound by a rule that some proposal relaxes. Nobody else has a vote.
2. *Which votes count*: signed votes for this question, by principals that are asked, before the deadline. A repeated
   vote changes nothing. Of several votes of one voter the one with the highest number counts; if two different votes
   have that number, none counts.
3. *Silence refuses*: a voter without a vote that counts approves nothing and consents to nothing.
4. *Which proposal is chosen*: one that more than half of the rules' authors approve, and to which each publisher whose
   rule it relaxes consents. So a majority alone can only tighten rules, and no demand is dropped without a signature.
   The author of a rule that binds others has one vote; of those it binds, only the consents count. Of several such
   proposals the one with most approvals is chosen, then the one that changes least.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated, ClassVar

from penstock.codec.sexp import Form, ListForm, SExp, text
from penstock.crypto import SigningKey, digest
from penstock.errors import LimitError, RefusedError
from penstock.model.principals import Principal
from penstock.model.profiles import Profile
from penstock.moderator.base.base import RuleBase
from penstock.moderator.limits import POLL_VOTERS, POLL_VOTES
from penstock.moderator.rules.rules import PublishRule
from penstock.moderator.rules.steps import RuleStatus, Strategy
from penstock.moderator.settlement.proposals import Consent, Resolution, find, propose, resolution_digest
from penstock.trust.signed import (
    DIGEST,
    PRINCIPAL,
    Claim,
    SignedValue,
    UnverifiedValue,
    malformed,
    read_owner,
    sign_value,
    signed_form,
)

# ----------------------------------------------------------------------------------------------------------------------
# Signed statements of a poll about proposals (paper 1, section IV, distributed resolution).
#
#     (poll-question (moderator <principal>) (book <digest>) (since <steps>) (candidate <id>) (rules <rule> …)
#                    (options <option> …) (voters <principal> …) (time <date>) (deadline <date>) (until <date>))
#     <rule>    (<form>) | (<form> <stated>)
#     <option>  (<strategy> (relaxes <principal> …) (forms <form> …))
#     (poll-vote (poll <digest>) (voter <principal>) (number <n>) (approves <strategy> …) (consents <signed consent> …)
#                [(automatic)])
#     (poll-outcome (moderator <principal>) (poll <digest>) (time <date>) (chosen [<strategy>]) (votes <signed vote> …))
#
# A poll is identified by the digest of its question, so a vote is for everything that the voter saw: the current rules,
# their new forms, who else is asked, and until when. Of several votes of one voter the highest number counts. A vote
# that a policy cast is marked `automatic`, because a vote cast by hand replaces it. A voter that agrees to relax its
# own rule adds a consent for this poll, which a rule book uses.


@dataclass(frozen=True, slots=True)
class Touched:
    """A rule that some proposal would change: as it is in force, and as it was stated. A candidate is both."""

    form: PublishRule = field(repr=False)
    stated: PublishRule = field(repr=False)


@dataclass(frozen=True, slots=True)
class Option:
    """A proposal: whose rules it relaxes, and the candidate and all rules that change as they would be."""

    strategy: Strategy
    relaxes: tuple[Principal, ...]
    forms: tuple[PublishRule, ...] = field(repr=False)


def _write_touched(rule: Touched) -> SExp:
    return (rule.form.to_sexp(),) if rule.form == rule.stated else (rule.form.to_sexp(), rule.stated.to_sexp())


def _read_touched(value: SExp) -> Touched:
    match value:
        case (tuple(form), *stated) if len(stated) <= 1:
            read = PublishRule.from_sexp(form)
            return Touched(read, PublishRule.from_sexp(stated[0]) if stated else read)
    raise malformed("a rule must have a form, and optionally a stated form")


def _write_option(option: Option) -> SExp:
    return (
        option.strategy.encode(),
        (b"relaxes", *map(PRINCIPAL.write, option.relaxes)),
        (b"forms", *(form.to_sexp() for form in option.forms)),
    )


def _read_option(value: SExp) -> Option:
    match value:
        case (bytes(strategy), (b"relaxes", *relaxes), (b"forms", *forms)):
            return Option(
                _read_strategy(strategy), tuple(map(read_owner, relaxes)), tuple(map(PublishRule.from_sexp, forms))
            )
    raise malformed("a proposal has a strategy, the principals it relaxes, and forms")


def _read_strategy(value: SExp) -> Strategy:
    written = text(value)
    if written not in [*Strategy]:
        raise malformed("unknown strategy")
    return Strategy(written)


def _read_chosen(chosen: tuple[SExp, ...]) -> Strategy | None:
    if len(chosen) > 1:
        raise malformed("a poll chooses one proposal, or none")
    return _read_strategy(chosen[0]) if chosen else None


@dataclass(frozen=True, slots=True)
class PollQuestion(Claim):
    """The question to those affected: the proposals, who asks, and until when.

    Raises `MalformedError` (`evolution.malformed`) for an inconsistent question, `LimitError` (`poll.limit`).
    """

    HEAD: ClassVar = b"poll-question"
    SIGNER: ClassVar = "moderator"
    moderator: Principal
    #: the digest of the rule base's founding, and its number of steps
    book: Annotated[bytes, DIGEST] = field(repr=False)
    since: int
    candidate: str
    rules: Annotated[tuple[Touched, ...], Form(_write_touched, _read_touched)]
    #: ordered, smallest change first
    options: Annotated[tuple[Option, ...], Form(_write_option, _read_option)]
    voters: tuple[Principal, ...]
    time: datetime
    deadline: datetime
    #: when unused consents expire
    until: datetime

    def __post_init__(self) -> None:
        known = {rule.form.id: rule for rule in self.rules}
        if len(known) != len(self.rules) or self.candidate not in known:
            raise malformed("a question must list each rule once, including the candidate")
        if len({option.strategy for option in self.options}) != len(self.options) or not self.options:
            raise malformed("a question must list at least one proposal, and each once")
        if len(set(self.voters)) != len(self.voters):
            raise malformed("a question must list each voter once")
        if not all(rule.stated.stated_by in self.voters for rule in self.rules):
            raise malformed("a question must list all authors of rules that would change")
        for option in self.options:
            if not all(form.id in known for form in option.forms) or not set(option.relaxes) <= set(self.voters):
                raise malformed("a proposal must concern only rules and voters of its question")
        if not self.time < self.deadline < self.until:
            raise malformed("the deadline must be after the question, and consents must not expire before it")
        if len(self.voters) > POLL_VOTERS:
            raise LimitError("poll.limit", f"{len(self.voters)} publishers would have to be asked")

    @property
    def id(self) -> bytes:
        """Return the poll's id."""
        return digest(self.to_sexp())

    @property
    def deciding(self) -> tuple[Principal, ...]:
        """The voters whose approvals count: the rules' authors. The others can only consent."""
        stated_by = {rule.stated.stated_by for rule in self.rules}
        return tuple(voter for voter in self.voters if voter in stated_by)

    def rule(self, rule_id: str) -> Touched:
        """Return one of the rules that the question is about."""
        return next(rule for rule in self.rules if rule.form.id == rule_id)

    def option(self, strategy: Strategy) -> Option | None:
        """Return one of the proposals; None if the question does not list it."""
        return next((option for option in self.options if option.strategy is strategy), None)

    def consent(self, voter: Principal, option: Option) -> Consent:
        """Return the consent that a voter signs to let a proposal relax its rule."""
        return Consent(self.book, voter, self.subject(option), self.since, self.until, self.id)

    def subject(self, option: Option) -> bytes:
        """Return the digest that consents to a proposal name."""
        return resolution_digest(self.candidate, option.strategy, {form.id: form for form in option.forms})


@dataclass(frozen=True, slots=True)
class Vote(Claim):
    """One voter's vote: the proposals that it approves, and its consents to those that relax its own rule.

    An empty vote refuses everything. Raises `MalformedError` (`evolution.malformed`).
    """

    HEAD: ClassVar = b"poll-vote"
    SIGNER: ClassVar = "voter"
    poll: Annotated[bytes, DIGEST] = field(repr=False)
    voter: Principal
    number: int
    approves: frozenset[Strategy] = frozenset()
    consents: Annotated[tuple[UnverifiedValue[Consent], ...], signed_form(Consent)] = field(default=(), repr=False)
    #: cast by a policy, not by hand
    automatic: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.number <= POLL_VOTES:
            raise malformed(f"votes are numbered from 1 to {POLL_VOTES}")


@dataclass(frozen=True, slots=True)
class PollOutcome(Claim):
    """The outcome of a poll, with the votes that it follows from."""

    HEAD: ClassVar = b"poll-outcome"
    SIGNER: ClassVar = "moderator"
    moderator: Principal
    poll: Annotated[bytes, DIGEST] = field(repr=False)
    time: datetime
    chosen: Annotated[Strategy | None, ListForm(lambda it: () if it is None else (it.encode(),), _read_chosen)]
    votes: Annotated[tuple[UnverifiedValue[Vote], ...], signed_form(Vote)] = field(repr=False)


# ----------------------------------------------------------------------------------------------------------------------
# Polls: who is asked, which votes count, and the outcome.


@dataclass(frozen=True, slots=True)
class PollNotice:
    """Who asks, for which rule book, when, until when votes count, and until when consents do."""

    moderator: Principal
    book: bytes
    time: datetime
    deadline: datetime
    until: datetime


def pose(base: RuleBase, candidate: str, notice: PollNotice, subscribers: Sequence[Profile] = ()) -> PollQuestion:
    """Return the question for the principals affected by a rejected rule.

    Raises `MalformedError` (`moderator.unknown-rule`, `evolution.malformed`), `LimitError` (`poll.limit`),
    `RefusedError`: `moderator.not-rejected`, and `moderator.unresolved` if there is no proposal.
    """
    standing = base.standing(candidate)
    if standing.status is not RuleStatus.REJECTED or standing.stated.stated_by in base.away:
        raise RefusedError(
            "moderator.not-rejected", f"rule `{candidate}` is {standing.status}", hint="only rejected rules are polled"
        )
    proposals = propose(base, standing.stated, subscribers)
    if not proposals:
        raise RefusedError(
            "moderator.unresolved",
            f"rule `{candidate}` cannot come into force in any way",
            hint="state another one, or ask others to withdraw theirs",
            proposals=(),
        )
    touched = {candidate: Touched(standing.stated, standing.stated)}
    for revision in (revision for proposal in proposals for revision in proposal.revisions):
        rule = revision.before
        touched.setdefault(rule.id, Touched(rule, base.standings[rule.id].stated))
    stated_by = {rule.stated.stated_by for rule in touched.values()}
    return PollQuestion(
        notice.moderator,
        notice.book,
        base.next_number - 1,
        candidate,
        tuple(touched.values()),
        tuple(_option(proposal, candidate) for proposal in proposals),
        tuple(sorted(stated_by.union(*(proposal.relaxed for proposal in proposals)))),
        notice.time,
        notice.deadline,
        notice.until,
    )


def _option(resolution: Resolution, candidate: str) -> Option:
    others = (revision.after for revision in resolution.revisions if revision.after.id != candidate)
    return Option(resolution.strategy, tuple(sorted(resolution.relaxed)), (resolution.forms[candidate], *others))


def check_current(base: RuleBase, question: PollQuestion, strategy: Strategy) -> None:
    """Check that a proposal is still the same as in the question, whatever else has changed.

    Raises `RefusedError` (`poll.stale`).
    """
    asked, standing = question.rule(question.candidate).stated, base.standings.get(question.candidate)
    if standing is not None and (standing.stated, standing.status) == (asked, RuleStatus.REJECTED):
        resolution = find(base, asked, strategy)
        if resolution is not None and _option(resolution, question.candidate) == question.option(strategy):
            changed = (each.before for each in resolution.revisions if each.before.id != question.candidate)
            if all(Touched(rule, base.standings[rule.id].stated) in question.rules for rule in changed):
                return
    raise RefusedError(
        "poll.stale", "the rules have changed since the poll began", hint="ask them again", strategy=strategy
    )


class VoterResponse(StrEnum):
    """A voter's response."""

    SILENT = "silent"
    VOTED = "voted"
    #: two different votes have the same number
    CONTRADICTED = "contradicted"


@dataclass(frozen=True, slots=True)
class VoteTally:
    """The count of votes."""

    answers: Mapping[Principal, VoterResponse]
    #: for each proposal, in the order of the question: the voters whose approvals count and who approve it
    approvals: Mapping[Strategy, tuple[Principal, ...]]
    chosen: Option | None
    #: the consents of those whose rules the chosen proposal relaxes
    consents: tuple[UnverifiedValue[Consent], ...]


def count(question: PollQuestion, votes: Iterable[SignedValue[Vote]]) -> VoteTally:
    """Count the votes for a question by the module's four rules; their order does not matter."""
    best: dict[Principal, dict[bytes, SignedValue[Vote]]] = {}
    for vote in votes:
        mine = best.setdefault(vote.value.voter, {})
        number = max((each.value.number for each in mine.values()), default=0)
        if vote.value.number > number:
            mine.clear()
        if vote.value.number >= number:
            mine.setdefault(vote.digest, vote)
    counted = {voter: next(iter(mine.values())) for voter, mine in best.items() if len(mine) == 1}
    approvals = {
        option.strategy: tuple(
            voter
            for voter in question.deciding
            if voter in counted and option.strategy in counted[voter].value.approves
        )
        for option in question.options
    }
    given = [consent for vote in counted.values() for consent in vote.value.consents]
    consents = {option.strategy: _consents(question, option, given) for option in question.options}
    open_ = [
        option
        for option in question.options
        if 2 * len(approvals[option.strategy]) > len(question.deciding)
        and {consent.value.by for consent in consents[option.strategy]} == set(option.relaxes)
    ]
    # `max` returns the first of equal ones, and the options are ordered by the size of their changes.
    chosen = max(open_, key=lambda option: len(approvals[option.strategy]), default=None)
    return VoteTally(
        {voter: _answer(best.get(voter, {})) for voter in question.voters},
        approvals,
        chosen,
        () if chosen is None else consents[chosen.strategy],
    )


def _consents(
    question: PollQuestion, option: Option, given: Iterable[UnverifiedValue[Consent]]
) -> tuple[UnverifiedValue[Consent], ...]:
    """Return the consents to a proposal of those whose rules it relaxes, in the order of the question."""
    subject = question.subject(option)
    found = {consent.value.by: consent for consent in given if consent.value.to == subject}
    return tuple(found[voter] for voter in option.relaxes if voter in found)


def _answer(votes: Mapping[bytes, SignedValue[Vote]]) -> VoterResponse:
    if not votes:
        return VoterResponse.SILENT
    return VoterResponse.VOTED if len(votes) == 1 else VoterResponse.CONTRADICTED


@dataclass(frozen=True, slots=True)
class Poll:
    """A question, and the votes so far."""

    question: SignedValue[PollQuestion]
    #: votes that can still count: each voter's highest number, with two votes if they differ
    votes: tuple[SignedValue[Vote], ...] = ()
    outcome: SignedValue[PollOutcome] | None = None

    @property
    def id(self) -> bytes:
        """The poll's id: the digest of its question."""
        return self.question.digest

    def hear(self, vote: SignedValue[Vote], when: datetime) -> "Poll":
        """Return the poll with a new vote; the same poll if the vote changes nothing.

        Raises `RefusedError`: `poll.closed` after the deadline, and what `check_vote` raises.
        """
        check_vote(self.question, vote)
        if self.outcome is not None or when >= self.question.value.deadline:
            raise RefusedError("poll.closed", "the vote came after the deadline", hint="it counts as silence")
        mine = [each for each in self.votes if each.value.voter == vote.value.voter]
        number = mine[0].value.number if mine else 0
        if vote.value.number < number:
            return self
        if vote.value.number > number:
            others = tuple(each for each in self.votes if each.value.voter != vote.value.voter)
            return replace(self, votes=(*others, vote))
        # Two different votes already make this number invalid.
        known = len(mine) > 1 or any(each.digest == vote.digest for each in mine)
        return self if known else replace(self, votes=(*self.votes, vote))

    def tally(self) -> VoteTally:
        """Return the count of the votes so far."""
        return count(self.question.value, self.votes)

    def sum_up(self, key: SigningKey, when: datetime) -> SignedValue[PollOutcome]:
        """Return the signed outcome. Raises `RefusedError` (`poll.open`, `evolution.wrong-key`)."""
        question = self.question.value
        if when < question.deadline:
            raise RefusedError("poll.open", "the deadline of the poll has not passed", hint="wait until then")
        chosen = self.tally().chosen
        votes = sorted(self.votes, key=lambda vote: (vote.value.voter, vote.digest))
        return sign_value(
            PollOutcome(
                question.moderator,
                self.id,
                when,
                None if chosen is None else chosen.strategy,
                tuple(vote.unverified() for vote in votes),
            ),
            key,
        )

    def close(self, outcome: SignedValue[PollOutcome]) -> "Poll":
        """Return the poll as it ended. Raises `RefusedError`: `poll.closed`, and what `verify_outcome` raises."""
        if self.outcome is not None:
            raise RefusedError("poll.closed", "the poll has been closed already")
        verify_outcome(self.question, outcome.unverified())
        return replace(self, outcome=outcome)


@dataclass(frozen=True, slots=True)
class PollProof:
    """A closed poll, for those who were not asked. It is not verified."""

    question: UnverifiedValue[PollQuestion]
    outcome: UnverifiedValue[PollOutcome]


@dataclass(frozen=True, slots=True)
class Ballot:
    """A voter's choice: the proposals that it approves, and those that may relax its own rule."""

    approves: frozenset[Strategy] = frozenset()
    consents: frozenset[Strategy] = frozenset()


def cast(
    question: SignedValue[PollQuestion],
    key: SigningKey,
    ballot: Ballot,
    *,
    number: int = 1,
    automatic: bool = False,
) -> SignedValue[Vote]:
    """Sign a vote; a consent to a proposal also approves it.

    Raises `RefusedError`: what `check_vote` raises, and `poll.consent` if a needed consent is not given explicitly, or
    a consent is given to a proposal that relaxes no rule of the voter.
    """
    asked, voter = question.value, key.principal
    agreed = ballot.consents
    approved = ballot.approves | agreed
    options = [option for option in asked.options if option.strategy in approved]
    for option in options:
        if (voter in option.relaxes) is not (option.strategy in agreed):
            relaxed = "relaxes your rule" if voter in option.relaxes else "relaxes no rule of yours"
            raise RefusedError(
                "poll.consent",
                f"`{option.strategy}` {relaxed}",
                hint="consent to what relaxes your own rule, and approve of all else",
            )
    signed = (sign_value(asked.consent(voter, option), key) for option in options if option.strategy in agreed)
    given = tuple(each.unverified() for each in signed)
    vote = sign_value(Vote(question.digest, voter, number, approved, given, automatic), key)
    check_vote(question, vote)
    return vote


def cast_again(
    question: SignedValue[PollQuestion],
    key: SigningKey,
    ballot: Ballot,
    earlier: Iterable[SignedValue[Vote]],
    *,
    automatic: bool = False,
) -> SignedValue[Vote]:
    """Sign a vote that replaces earlier votes of the voter; return the last one if it says the same.

    An automatic vote does not replace one that was cast by hand. Raises what `cast` raises.
    """
    mine = [vote for vote in earlier if (vote.value.poll, vote.value.voter) == (question.digest, key.principal)]
    last = max((vote.value.number for vote in mine), default=0)
    standing = [vote for vote in mine if vote.value.number == last]
    if automatic:
        by_hand = next((vote for vote in standing if not vote.value.automatic), None)
        if by_hand is not None:
            return by_hand
    if len(standing) == 1:
        same = cast(question, key, ballot, number=last, automatic=automatic)
        if same.digest == standing[0].digest:
            return same
    return cast(question, key, ballot, number=last + 1, automatic=automatic)


def check_vote(question: SignedValue[PollQuestion], signed: SignedValue[Vote]) -> None:
    """Check that a vote belongs to a question, and that its consents are the voter's own, to approved proposals.

    Raises `RefusedError`: `poll.foreign` for another question, `poll.not-asked`, `poll.unknown-option`,
    `poll.consent`, and what verifying consents raises.
    """
    asked, vote = question.value, signed.value
    if vote.poll != question.digest:
        raise RefusedError("poll.foreign", "the vote answers another question")
    if vote.voter not in asked.voters:
        raise RefusedError("poll.not-asked", f"{vote.voter.short} is not among those who are asked")
    options = [asked.option(strategy) for strategy in vote.approves]
    if None in options:
        raise RefusedError(
            "poll.unknown-option",
            "the vote approves a proposal that is not in the question",
            hint="choose among: " + ", ".join(option.strategy for option in asked.options),
        )
    if not vote.consents:
        return
    relaxing = (option for option in options if option is not None and vote.voter in option.relaxes)
    wanted = {asked.consent(vote.voter, option) for option in relaxing}
    if len({consent.value for consent in vote.consents}) != len(vote.consents):
        raise RefusedError("poll.consent", "a vote has a consent twice")
    for consent in vote.consents:
        if consent.value not in wanted:
            raise RefusedError("poll.consent", "a consent in a vote is not to a proposal that relaxes the voter's rule")
        consent.verify()


def verify_outcome(question: SignedValue[PollQuestion], outcome: UnverifiedValue[PollOutcome]) -> VoteTally:
    """Verify a moderator's outcome from the votes alone; return the count.

    (1) The moderator that asked has signed it, for this question, and not before the deadline. (2) Each vote is signed
    by a principal that was asked. (3) Counting the votes gives the outcome.

    Raises `RefusedError`: `poll.outcome`, and what `UnverifiedValue.verify` and `check_vote` raise.
    """
    # (1) Nobody else may close a poll.
    said = outcome.verify().value
    if (said.moderator, said.poll) != (question.value.moderator, question.digest):
        raise RefusedError("poll.outcome", "the outcome belongs to another poll")
    if said.time < question.value.deadline:
        raise RefusedError("poll.outcome", "the poll was closed before its deadline")
    # (2) An outcome contains its evidence.
    votes = [vote.verify() for vote in said.votes]
    for vote in votes:
        check_vote(question, vote)
    # (3) Everybody who counts gets the same result.
    tally = count(question.value, votes)
    if said.chosen is not (None if tally.chosen is None else tally.chosen.strategy):
        raise RefusedError("poll.outcome", "counting the votes gives another outcome")
    return tally
