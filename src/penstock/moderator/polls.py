"""A poll about proposals: who is asked, which votes count, and the outcome. `authority.polls` carries it out.

A poll's outcome is a function of the set of votes that count when it is closed, whatever became of the messages:

1. *Who is asked*: whoever stated a rule that some proposal would change, whoever stated the candidate, and those that a
   rule binds that some proposal relaxes. Nobody else has a say, however many sign a vote.
2. *Which votes count*: those for this question, by who is asked, signed, and there before the deadline. A vote that
   comes again changes nothing. Of several of one voter the highest number counts; two of that number that differ are
   none.
3. *Silence refuses*: who has no vote that counts approves nothing and consents to nothing.
4. *What is chosen*: a proposal that more than half of all who stated those rules approve, and to which each publisher
   whose rule it relaxes consents. So a majority chooses among tightenings alone, and nobody's demand goes without its
   signature. Who binds others with its rule has one voice, as everybody: of those it binds the consents count alone.
   Of several proposals the one with most approvals is chosen, then the one that changes least.
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
# A poll is named by the digest of its question, so a vote is for all that its voter was shown: the rules as they are,
# what would become of each, who else is asked, and until when. Of several votes of one voter the highest number counts;
# one that a policy cast says so, because it gives way to one that was cast by hand. Who agrees that its own rule is
# relaxed adds a consent for this poll, which a rule book uses. `poll` computes the outcome of the votes.


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
    raise malformed("a rule has a form, and perhaps another that was stated")


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
        raise malformed("there is no such strategy")
    return Strategy(written)


def _read_chosen(chosen: tuple[SExp, ...]) -> Strategy | None:
    if len(chosen) > 1:
        raise malformed("a poll chooses one proposal, or none")
    return _read_strategy(chosen[0]) if chosen else None


@dataclass(frozen=True, slots=True)
class PollQuestion(Claim):
    """The question to those affected: the proposals, who asks, and until when.

    Raises `MalformedError` (`evolution.malformed`) for a question that means nothing, `LimitError` (`poll.limit`).
    """

    HEAD: ClassVar = b"poll-question"
    SIGNER: ClassVar = "moderator"
    moderator: Principal
    #: the digest of the founding of the rule base, and how many steps it had
    book: Annotated[bytes, DIGEST] = field(repr=False)
    since: int
    candidate: str
    rules: Annotated[tuple[Touched, ...], Form(_write_touched, _read_touched)]
    #: in the order in which they change least
    options: Annotated[tuple[Option, ...], Form(_write_option, _read_option)]
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
            raise malformed("a question has each proposal once, and one at least")
        if len(set(self.voters)) != len(self.voters):
            raise malformed("a question is put to each voter once")
        if not all(rule.stated.stated_by in self.voters for rule in self.rules):
            raise malformed("all whose rules would change are asked")
        for option in self.options:
            if not all(form.id in known for form in option.forms) or not set(option.relaxes) <= set(self.voters):
                raise malformed("a proposal is about the rules and the voters of its question")
        if not self.time < self.deadline < self.until:
            raise malformed("a question has a deadline after it is asked, and consents do not end before")
        if len(self.voters) > POLL_VOTERS:
            raise LimitError("poll.limit", f"{len(self.voters)} publishers would have to be asked")

    @property
    def id(self) -> bytes:
        """Return the poll's id."""
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
        """Return one of the proposals, if it is asked about."""
        return next((option for option in self.options if option.strategy is strategy), None)

    def consent(self, voter: Principal, option: Option) -> Consent:
        """Return what a voter signs so that its rule may be relaxed by one of the proposals."""
        return Consent(self.book, voter, self.subject(option), self.since, self.until, self.id)

    def subject(self, option: Option) -> bytes:
        """Return what consents to one of the proposals are to."""
        return resolution_digest(self.candidate, option.strategy, {form.id: form for form in option.forms})


@dataclass(frozen=True, slots=True)
class Vote(Claim):
    """One voter's answer: the proposals that it approves, and its consents to those that relax its own rule.

    An empty vote refuses everything. Raises `MalformedError` (`evolution.malformed`).
    """

    HEAD: ClassVar = b"poll-vote"
    SIGNER: ClassVar = "voter"
    poll: Annotated[bytes, DIGEST] = field(repr=False)
    voter: Principal
    number: int
    approves: frozenset[Strategy] = frozenset()
    consents: Annotated[tuple[UnverifiedValue[Consent], ...], signed_form(Consent)] = field(default=(), repr=False)
    #: cast by a policy, without anybody looking
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
    """Return what those affected by a rule that was rejected are to be asked.

    Raises `MalformedError` (`moderator.unknown-rule`, `evolution.malformed`), `LimitError` (`poll.limit`),
    `RefusedError`: `moderator.not-rejected`, and `moderator.unresolved` where there is no proposal to ask about.
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
    """Check that a proposal still is what was asked about, whatever else has changed.

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
        "poll.stale", "the rules have changed since those affected were asked", hint="ask them again", strategy=strategy
    )


class VoterResponse(StrEnum):
    """A voter's response."""

    SILENT = "silent"
    VOTED = "voted"
    #: by two votes of one number, which differ
    CONTRADICTED = "contradicted"


@dataclass(frozen=True, slots=True)
class VoteTally:
    """The count of votes."""

    answers: Mapping[Principal, VoterResponse]
    #: by proposal, in the order of the question, who approves it of those whose approvals count
    approvals: Mapping[Strategy, tuple[Principal, ...]]
    chosen: Option | None
    #: of those whose rules the chosen way relaxes
    consents: tuple[UnverifiedValue[Consent], ...]


def count(question: PollQuestion, votes: Iterable[SignedValue[Vote]]) -> VoteTally:
    """Count the votes for a question, as the module says; the order in which they are given is of no effect."""
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
    # The first of the greatest: the options are in the order in which they change least.
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
    #: those that could count still: of each voter the one of the highest number, or two of it that differ
    votes: tuple[SignedValue[Vote], ...] = ()
    outcome: SignedValue[PollOutcome] | None = None

    @property
    def id(self) -> bytes:
        """What names the poll: the digest of its question."""
        return self.question.digest

    def hear(self, vote: SignedValue[Vote], when: datetime) -> "Poll":
        """Return the poll with a vote that has arrived; this one where the vote changes nothing.

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
        # Two that differ say all that can be said about that number.
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
    """A poll as it ended, for those who were not asked; nothing of it is verified."""

    question: UnverifiedValue[PollQuestion]
    outcome: UnverifiedValue[PollOutcome]


@dataclass(frozen=True, slots=True)
class Ballot:
    """What somebody answers: what it approves of, and what its own rule may be relaxed by."""

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
    """Sign a vote; what is consented to is approved too.

    Raises `RefusedError`: what `check_vote` raises, and `poll.consent` where a consent would be needed that was not
    given in so many words, or is given to what relaxes nothing of the voter.
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
    """Sign a vote that takes the place of earlier ones of the voter; return the last of them where that says the same.

    What a policy would cast leaves alone what was cast by hand. Raises what `cast` raises.
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
    """Check that a vote is an answer to a question, and that its consents are the voter's, to what it approves.

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
            "the vote approves of a proposal that is not asked about",
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
            raise RefusedError("poll.consent", "a consent in a vote is to something else than relaxes the voter's rule")
        consent.verify()


def verify_outcome(question: SignedValue[PollQuestion], outcome: UnverifiedValue[PollOutcome]) -> VoteTally:
    """Verify a moderator's outcome from the votes alone; return the count.

    (1) The moderator that asked has signed it, for this question, and not before the deadline. (2) Each vote is signed
    by who was asked. (3) They come to what was said.

    Raises `RefusedError`: `poll.outcome`, and what `UnverifiedValue.verify` and `check_vote` raise.
    """
    # (1) Nobody else may end a poll.
    said = outcome.verify().value
    if (said.moderator, said.poll) != (question.value.moderator, question.digest):
        raise RefusedError("poll.outcome", "an outcome is of another poll")
    if said.time < question.value.deadline:
        raise RefusedError("poll.outcome", "a poll was closed before its deadline")
    # (2) An outcome carries its evidence.
    votes = [vote.verify() for vote in said.votes]
    for vote in votes:
        check_vote(question, vote)
    # (3) Whoever counts comes to the same.
    tally = count(question.value, votes)
    if said.chosen is not (None if tally.chosen is None else tally.chosen.strategy):
        raise RefusedError("poll.outcome", "the votes come to something else than the outcome says")
    return tally
