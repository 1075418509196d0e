"""A poll about a way out: who is asked, which votes count, and what they come to. `authority.polls` carries it out.

What a poll comes to is a function of the set of votes that count when it is closed, whatever became of the messages:

1. *Who is asked*: whoever stated a rule that some way out would change, whoever stated the candidate, and those whom a
   rule binds that some way out relaxes. Nobody else has a say, however many sign a vote.
2. *Which votes count*: those for this question, by who is asked, signed, and there before the deadline. A vote that
   comes again changes nothing. Of several of one voter the highest number counts; two of that number that differ are
   none.
3. *Silence refuses*: who has no vote that counts approves nothing and consents to nothing.
4. *What is chosen*: a way out that more than half of all who stated those rules approve, and to which each publisher
   whose rule it relaxes consents. So a majority chooses among tightenings alone, and nobody's demand goes without its
   signature. Who binds others with its rule has one voice, as everybody: of those it binds the consents count alone.
   Of several ways out the one with most approvals is chosen, then the one that changes least.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from penstock.crypto import SigningKey
from penstock.errors import RefusedError
from penstock.model.principals import Principal
from penstock.model.profiles import Profile
from penstock.moderator.ballots import Option, Outcome, Question, Touched, Vote
from penstock.moderator.base import RuleBase
from penstock.moderator.consents import Consent
from penstock.moderator.deltas import Status
from penstock.moderator.propose import Resolution, find, propose
from penstock.moderator.steps import Strategy
from penstock.trust.signed import SignedValue, UnverifiedValue, sign_value


def pose(  # noqa: PLR0913  # what a question says
    base: RuleBase,
    candidate: str,
    *,
    moderator: Principal,
    book: bytes,
    time: datetime,
    deadline: datetime,
    until: datetime,
    subscribers: Sequence[Profile] = (),
) -> Question:
    """Return what those affected by a rule that was rejected are to be asked.

    Raises `MalformedError` (`moderator.unknown-rule`, `evolution.malformed`), `LimitError` (`poll.limit`),
    `RefusedError`: `moderator.not-rejected`, and `moderator.unresolved` where there is no way out to ask about.
    """
    standing = base.standing(candidate)
    if standing.status is not Status.REJECTED or standing.stated.stated_by in base.away:
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
    return Question(
        moderator,
        book,
        base.next_number - 1,
        candidate,
        tuple(touched.values()),
        tuple(_option(proposal, candidate) for proposal in proposals),
        tuple(sorted(stated_by.union(*(proposal.relaxed for proposal in proposals)))),
        time,
        deadline,
        until,
    )


def _option(resolution: Resolution, candidate: str) -> Option:
    others = (revision.after for revision in resolution.revisions if revision.after.id != candidate)
    return Option(resolution.strategy, tuple(sorted(resolution.relaxed)), (resolution.forms[candidate], *others))


def check_current(base: RuleBase, question: Question, strategy: Strategy) -> None:
    """Check that a way out still is what was asked about, whatever else has changed.

    Raises `RefusedError` (`poll.stale`).
    """
    asked, standing = question.rule(question.candidate).stated, base.standings.get(question.candidate)
    if standing is not None and (standing.stated, standing.status) == (asked, Status.REJECTED):
        resolution = find(base, asked, strategy)
        if resolution is not None and _option(resolution, question.candidate) == question.option(strategy):
            changed = (each.before for each in resolution.revisions if each.before.id != question.candidate)
            if all(Touched(rule, base.standings[rule.id].stated) in question.rules for rule in changed):
                return
    raise RefusedError(
        "poll.stale", "the rules have changed since those affected were asked", hint="ask them again", strategy=strategy
    )


class Answer(StrEnum):
    """How a voter has answered."""

    SILENT = "silent"
    VOTED = "voted"
    #: by two votes of one number, which differ
    CONTRADICTED = "contradicted"


@dataclass(frozen=True, slots=True)
class Tally:
    """What votes come to."""

    answers: Mapping[Principal, Answer]
    #: by way out, in the order of the question, who approves it of those whose approvals count
    approvals: Mapping[Strategy, tuple[Principal, ...]]
    chosen: Option | None
    #: of those whose rules the chosen way relaxes
    consents: tuple[UnverifiedValue[Consent], ...]


def count(question: Question, votes: Iterable[SignedValue[Vote]]) -> Tally:
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
    return Tally(
        {voter: _answer(best.get(voter, {})) for voter in question.voters},
        approvals,
        chosen,
        () if chosen is None else consents[chosen.strategy],
    )


def _consents(
    question: Question, option: Option, given: Iterable[UnverifiedValue[Consent]]
) -> tuple[UnverifiedValue[Consent], ...]:
    """Return the consents to a way out of those whose rules it relaxes, in the order of the question."""
    subject = question.subject(option)
    found = {consent.value.by: consent for consent in given if consent.value.to == subject}
    return tuple(found[voter] for voter in option.relaxes if voter in found)


def _answer(votes: Mapping[bytes, SignedValue[Vote]]) -> Answer:
    if not votes:
        return Answer.SILENT
    return Answer.VOTED if len(votes) == 1 else Answer.CONTRADICTED


@dataclass(frozen=True, slots=True)
class Poll:
    """A question, and what has been heard of it so far."""

    question: SignedValue[Question]
    #: those that could count still: of each voter the one of the highest number, or two of it that differ
    votes: tuple[SignedValue[Vote], ...] = ()
    outcome: SignedValue[Outcome] | None = None

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

    def tally(self) -> Tally:
        """Return what the votes come to so far."""
        return count(self.question.value, self.votes)

    def sum_up(self, key: SigningKey, when: datetime) -> SignedValue[Outcome]:
        """Return what the poll has come to, signed. Raises `RefusedError` (`poll.open`, `evolution.wrong-key`)."""
        question = self.question.value
        if when < question.deadline:
            raise RefusedError("poll.open", "the deadline of the poll has not passed", hint="wait until then")
        chosen = self.tally().chosen
        votes = sorted(self.votes, key=lambda vote: (vote.value.voter, vote.digest))
        return sign_value(
            Outcome(
                question.moderator,
                self.id,
                when,
                None if chosen is None else chosen.strategy,
                tuple(vote.unverified() for vote in votes),
            ),
            key,
        )

    def close(self, outcome: SignedValue[Outcome]) -> "Poll":
        """Return the poll as it ended. Raises `RefusedError`: `poll.closed`, and what `verify_outcome` raises."""
        if self.outcome is not None:
            raise RefusedError("poll.closed", "the poll has been closed already")
        verify_outcome(self.question, outcome.unverified())
        return replace(self, outcome=outcome)


@dataclass(frozen=True, slots=True)
class Proof:
    """A poll as it ended, for those who were not asked; nothing of it is verified."""

    question: UnverifiedValue[Question]
    outcome: UnverifiedValue[Outcome]


def cast(  # noqa: PLR0913  # what a vote says
    question: SignedValue[Question],
    key: SigningKey,
    approves: Iterable[Strategy],
    consents: Iterable[Strategy] = (),
    *,
    number: int = 1,
    automatic: bool = False,
) -> SignedValue[Vote]:
    """Sign a vote; what is consented to is approved too.

    Raises `RefusedError`: what `check_vote` raises, and `poll.consent` where a consent would be needed that was not
    given in so many words, or is given to what relaxes nothing of the voter.
    """
    asked, voter = question.value, key.principal
    agreed = frozenset(consents)
    approved = frozenset(approves) | agreed
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


def cast_again(  # noqa: PLR0913  # what a vote says, and what was said before
    question: SignedValue[Question],
    key: SigningKey,
    approves: Iterable[Strategy],
    consents: Iterable[Strategy],
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
        same = cast(question, key, approves, consents, number=last, automatic=automatic)
        if same.digest == standing[0].digest:
            return same
    return cast(question, key, approves, consents, number=last + 1, automatic=automatic)


def check_vote(question: SignedValue[Question], signed: SignedValue[Vote]) -> None:
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
            "the vote approves of a way out that is not asked about",
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


def verify_outcome(question: SignedValue[Question], outcome: UnverifiedValue[Outcome]) -> Tally:
    """Verify what a moderator says that a poll has come to, from the votes alone; return how it was counted.

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
