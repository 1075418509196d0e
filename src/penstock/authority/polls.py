"""Polls of a rule book: each question, vote, outcome and settlement is a change in a ledger beside it.

    polls = Polls(store.ledger(polls_name("rules")), book, key)
    asked = polls.ask("m", now, deadline)
    polls.hear(vote, now)                    # each that arrives, in any order, any number of times
    polls.advance(now)                       # closes what is due, and takes the step that was chosen

Everything is stored in the ledger: a process that opens it continues where another one ended. The choice of a poll is
applied as one step of the rule book, and only if the step has exactly the effect that the question described. If the
rules have changed meanwhile, the poll has no effect. Votes are counted in `penstock.moderator.polls`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, ClassVar, Final, Never, TypeAlias, TypeVar

from penstock.authority.limits import AUTHORITY_LIMITS, AuthorityLimits
from penstock.authority.rulebook import RuleBook
from penstock.codec.sexp import BARE, Form, SExp, canonical, text
from penstock.crypto import SigningKey
from penstock.errors import FailedError, LimitError, MalformedError, PenstockError, RefusedError
from penstock.model.principals import Principal
from penstock.moderator.files.founding import Founding
from penstock.moderator.polls import (
    Poll,
    PollNotice,
    PollOutcome,
    PollProof,
    PollQuestion,
    Vote,
    check_current,
    pose,
    verify_outcome,
)
from penstock.moderator.rules.steps import Resolve
from penstock.moderator.settlement.proposals import poll_reason
from penstock.store.ledgers.folds import FoldView
from penstock.store.ledgers.ledgers import Change, Ledger, NewChange
from penstock.trust.signed import (
    DIGEST,
    Claim,
    SignedValue,
    UnverifiedValue,
    malformed,
    parse_signed,
    read_count,
    sign_value,
)

# ----------------------------------------------------------------------------------------------------------------------
# Polls as changes of a ledger, and their state as a fold.
#
#     kind `poll`       after  <signed question>
#     kind `vote`       after  <signed vote>
#     kind `outcome`    after  <signed outcome>
#     kind `settled`    after  <signed (poll-settled (moderator <principal>) (poll <digest>) (step <number>))>
#     kind `unsettled`  after  <signed (poll-settled (moderator <principal>) (poll <digest>) (code <code>))>
#
# The moderator uses the order of changes: a vote counts if it comes before the outcome of its poll, and its time is
# before the deadline. All signatures are verified whenever they are read. Questions, outcomes and settlements must be
# signed by the rule book's moderator. There are no snapshots, because a snapshot could leave votes out.

V = TypeVar("V", bound=Claim)


class PollRecordKind(StrEnum):
    """The kinds of changes of a poll."""

    POLL = "poll"
    VOTE = "vote"
    OUTCOME = "outcome"
    SETTLED = "settled"
    UNSETTLED = "unsettled"


@dataclass(frozen=True, slots=True)
class Settlement:
    """The result of applying a poll's choice in the rule book: a step, or the code of the refusal."""

    step: int | None = None
    code: str = ""


def _write_settlement(settlement: Settlement) -> SExp:
    step = settlement.step
    return (b"code", settlement.code.encode()) if step is None else (b"step", b"%d" % step)


def _read_settlement(value: SExp) -> Settlement:
    match value:
        case (b"code", code):
            return Settlement(None, text(code))
        case (b"step", step):
            return Settlement(read_count(step))
    raise malformed("a poll must be settled by a step, or by the code of a refusal")


@dataclass(frozen=True, slots=True)
class SettledPoll(Claim):
    """The settlement of a poll, signed by its moderator."""

    HEAD: ClassVar = b"poll-settled"
    SIGNER: ClassVar = "moderator"
    moderator: Principal
    poll: Annotated[bytes, DIGEST] = field(repr=False)
    settlement: Annotated[Settlement, Form(_write_settlement, _read_settlement), BARE]

    @property
    def kind(self) -> PollRecordKind:
        """Return the kind of change."""
        return PollRecordKind.UNSETTLED if self.settlement.step is None else PollRecordKind.SETTLED


@dataclass(frozen=True, slots=True)
class Kept:
    """A poll and its settlement."""

    poll: Poll
    settled: SignedValue[SettledPoll] | None = None

    @property
    def settlement(self) -> Settlement | None:
        """Return the settlement. Without a chosen proposal there is nothing to settle."""
        if self.settled is not None:
            return self.settled.value.settlement
        outcome = self.poll.outcome
        return _NOTHING if outcome is not None and outcome.value.chosen is None else None

    @property
    def open(self) -> bool:
        """Return whether votes may still count."""
        return self.poll.outcome is None

    @property
    def pending(self) -> bool:
        """Return whether the poll needs further action."""
        return self.settlement is None


_NOTHING: Final = Settlement(None, "poll.nothing-chosen")

State: TypeAlias = dict[bytes, Kept]
"""All polls, by their ids, in the order in which they were asked."""


class PollsFold:
    """See `penstock.store.ledgers.folds.Fold`: the polls of the rule book that begins with a founding."""

    name = "polls-2"

    def __init__(self, founding: Founding) -> None:
        self._moderator = founding.moderator
        self._book = founding.digest

    def empty(self) -> State:
        """Return no polls."""
        return {}

    def step(self, state: State, change: Change) -> State:
        """Apply a change. Raises `RefusedError` (`poll.record`) for a change that a moderator does not write."""
        try:
            self._take(state, change)
        except PenstockError as error:
            raise RefusedError(
                "poll.record",
                f"change {change.number} of `{change.ledger}` is not a valid change of a poll: {error.message}",
                hint="another program has written to the ledger; restore a backup whose head you know",
                number=change.number,
                reason=error.code,
            ) from error
        return state

    def dump(self, state: State) -> bytes:
        """Return the state as bytes."""
        return canonical((b"polls", *(tuple(_dumped(kept)) for kept in state.values())))

    def load(self, data: bytes) -> Never:  # noqa: ARG002  # whatever it holds
        """Raise `MalformedError`: polls are counted from their changes alone."""
        raise _malformed("polls do not have snapshots")

    def _take(self, state: State, change: Change) -> None:
        data = change.after or b""
        match change.kind:
            case PollRecordKind.POLL:
                poll = Poll(read_verified(data, PollQuestion))
                self._check(poll.question.value)
                if poll.id in state:
                    raise _malformed("the question was asked before")
                state[poll.id] = Kept(poll)
            case PollRecordKind.VOTE:
                vote = read_verified(data, Vote)
                kept = _known(state, vote.value.poll)
                try:
                    state[vote.value.poll] = replace(kept, poll=kept.poll.hear(vote, change.when))
                except RefusedError as error:
                    # The change had the time of an earlier change, which another clock had written.
                    if error.code != "poll.closed":
                        raise
            case PollRecordKind.OUTCOME:
                outcome = read_verified(data, PollOutcome)
                kept = _known(state, outcome.value.poll)
                state[outcome.value.poll] = replace(kept, poll=kept.poll.close(outcome))
            case PollRecordKind.SETTLED | PollRecordKind.UNSETTLED:
                settled = read_verified(data, SettledPoll)
                kept = _known(state, settled.value.poll)
                if (settled.value.moderator, settled.value.kind) != (self._moderator, change.kind):
                    raise _malformed("only the moderator that asked can settle a poll")
                if kept.open or not kept.pending:
                    raise _malformed("a poll can be settled once, after it has ended")
                state[settled.value.poll] = replace(kept, settled=settled)
            case _:
                raise _malformed("not a kind of change of polls")

    def _check(self, question: PollQuestion) -> None:
        """Check that a question is about this rule book."""
        if question.moderator != self._moderator:
            raise _malformed("the question is not signed by the moderator")
        if question.book != self._book:
            raise _malformed("the question is about another rule book")


def read_verified(data: bytes, kind: type[V]) -> SignedValue[V]:
    """Read and verify a statement of one kind. Raises as `read_signed` and `UnverifiedValue.verify`."""
    return parse_signed(data, kind).verify()


def _known(state: State, poll_id: bytes) -> Kept:
    kept = state.get(poll_id)
    if kept is None:
        raise _malformed("the poll was never asked")
    return kept


def _dumped(kept: Kept) -> Iterator[SExp]:
    yield kept.poll.question.to_sexp()
    yield tuple(vote.to_sexp() for vote in kept.poll.votes)
    yield () if kept.poll.outcome is None else (kept.poll.outcome.to_sexp(),)
    yield () if kept.settled is None else (kept.settled.to_sexp(),)


def _malformed(message: str) -> MalformedError:
    return MalformedError("poll.record", message, hint="the record was not written by this version of Penstock")


# ----------------------------------------------------------------------------------------------------------------------
# Ask, collect votes, close polls and take the steps that they choose.


def polls_name(book: str) -> str:
    """Return the name of the ledger of a rule book's polls."""
    return f"{book}.polls"


def read_polls(ledger: Ledger, founding: Founding) -> State:
    """Return all polls of the rule book with that founding, by their ids. Raises what `FoldView` and `PollsFold`
    raise."""
    return FoldView(ledger, PollsFold(founding)).state


class Polls:
    """The polls of one rule book, and its moderator's key. For one thread at a time. Methods raise errors of stores.

    Raises `RefusedError` (`poll.not-moderator`) if the key is not the moderator's.
    """

    def __init__(
        self, ledger: Ledger, book: RuleBook, key: SigningKey, *, limits: AuthorityLimits = AUTHORITY_LIMITS
    ) -> None:
        if key.principal != book.founding.moderator:
            raise RefusedError(
                "poll.not-moderator", "only the moderator of a rule book can start polls", hint="use its key"
            )
        self._view = FoldView(ledger, PollsFold(book.founding), limits=limits)
        self._book = book
        self._key = key
        self._limits = limits

    @property
    def kept(self) -> State:
        """All polls read so far, by their ids."""
        return self._view.state

    @property
    def moderator(self) -> SigningKey:
        """The moderator's key."""
        return self._key

    def refresh(self) -> None:
        """Apply the changes of other processes."""
        self._view.refresh()

    def plan(self, rule_id: str, when: datetime, deadline: datetime) -> PollQuestion:
        """Return the question about a rejected rule, without changing anything.

        Raises as `pose`, `LimitError` (`poll.limit`) for a deadline too far away, and `RefusedError`
        (`poll.running`) while there is a poll about the rule.
        """
        if deadline - when > timedelta(seconds=self._limits.poll_longest):
            raise LimitError(
                "poll.limit", "the deadline is too far away", hint=f"at most {self._limits.poll_longest} seconds"
            )
        if any(kept.pending and kept.poll.question.value.candidate == rule_id for kept in self.kept.values()):
            raise RefusedError("poll.running", f"there is a poll about rule `{rule_id}` already", hint="wait for it")
        # The voters are the principals whose rules are in force now.
        with self._book.rehearsal(when):
            until = deadline + timedelta(seconds=self._limits.poll_consent)
            notice = PollNotice(self._key.principal, self._book.id, when, deadline, until)
            return pose(self._book.base, rule_id, notice, self._book.founding.customs.subscribers)

    def ask(self, rule_id: str, when: datetime, deadline: datetime) -> Poll:
        """Start a poll about a rejected rule. Raises as `plan`."""

        def asked(now: datetime) -> Iterable[NewChange]:
            self._book.pass_time(now, self._key)
            question = sign_value(self.plan(rule_id, now, deadline), self._key)
            yield self._entry(PollRecordKind.POLL, question, now, f"about rule {rule_id}")

        (poll_id,) = self._change(asked, when)
        return self.kept[poll_id].poll

    def hear(self, vote: UnverifiedValue[Vote], when: datetime) -> Poll:
        """Add a vote as it arrived. A known vote changes nothing.

        Raises `RefusedError`: `poll.unknown`, and as verification and `Poll.hear`. The vote is not added then.
        """
        signed = vote.verify()

        def heard(now: datetime) -> Iterable[NewChange]:
            poll = self._known(signed.value.poll).poll
            if poll.hear(signed, now) is not poll:
                yield self._entry(PollRecordKind.VOTE, signed, now, f"of {signed.value.voter.short}")

        self._change(heard, when)
        return self._known(signed.value.poll).poll

    def advance(self, when: datetime) -> tuple[Kept, ...]:
        """Close the polls whose deadline has passed, apply the steps that they chose, and return the polls that ended.

        Raises `FailedError` if a store fails. The rest is done at the next call.
        """
        self.refresh()
        due = [poll_id for poll_id, kept in self.kept.items() if kept.pending]
        return tuple(self.kept[poll_id] for poll_id in due if self._end(poll_id, when))

    def _known(self, poll_id: bytes) -> Kept:
        kept = self.kept.get(poll_id)
        if kept is None:
            raise RefusedError("poll.unknown", "there is no such poll")
        return kept

    def _end(self, poll_id: bytes, when: datetime) -> bool:
        """End and settle a poll as far as possible now."""

        def closed(now: datetime) -> Iterable[NewChange]:
            kept = self._known(poll_id)
            if kept.open and now >= kept.poll.question.value.deadline:
                yield self._entry(PollRecordKind.OUTCOME, kept.poll.sum_up(self._key, now), now)

        def settled(now: datetime) -> Iterable[NewChange]:
            kept = self._known(poll_id)
            if not kept.open and kept.pending:
                settled = SettledPoll(self._key.principal, poll_id, self._settle(kept.poll, now))
                yield self._entry(settled.kind, sign_value(settled, self._key), now)

        self._change(closed, when)
        self._change(settled, when)
        return not self._known(poll_id).pending

    def _settle(self, poll: Poll, when: datetime) -> Settlement:
        """Apply the step that a poll chose, if it was not applied before a crash.

        (1) Search the book for the step. (2) Check that it has the effect that the question described. (3) Give the
        poll to the book, which checks it too, because others may write to the book in between.

        Raises `FailedError`, and `RefusedError` (`moderator.busy`): then the result is unknown.
        """
        question, outcome = poll.question.value, poll.outcome
        if outcome is None:
            raise ValueError("the poll has not ended")
        proof = PollProof(poll.question.unverified(), outcome.unverified())
        tally = verify_outcome(poll.question, proof.outcome)
        option, why = tally.chosen, poll_reason(poll.id)
        if option is None:
            raise ValueError("nothing was chosen")
        # (1) The reason names the poll. Only steps by the moderator are searched.
        self._book.refresh()
        for step in self._book.base.steps[question.since :]:
            if (step.note.who, step.note.why) == (self._key.principal, why):
                return Settlement(step.number)
        try:
            # (2) The rules may have changed since, by others or with time.
            self._book.pass_time(when, self._key)
            check_current(self._book.base, question, option.strategy)
            # (3) The book counts the votes too, and compares.
            request = Resolve(question.candidate, option.strategy, frozenset(option.relaxes))
            plan = self._book.ask(self._key, request, when, why, tally.consents, poll=proof)
        except FailedError:
            raise
        except PenstockError as error:
            if error.code == "moderator.busy":
                raise
            return Settlement(None, error.code)
        return Settlement(plan.step.number)

    def _entry(
        self,
        kind: PollRecordKind,
        signed: SignedValue[PollQuestion] | SignedValue[Vote] | SignedValue[PollOutcome] | SignedValue[SettledPoll],
        now: datetime,
        why: str = "",
    ) -> NewChange:
        return NewChange(who=self._key.principal, when=now, kind=kind, why=why, after=signed.to_bytes())

    def _change(self, made: Callable[[datetime], Iterable[NewChange]], when: datetime) -> tuple[bytes, ...]:
        """Append a change based on the current state; if others were faster, try again."""
        for _ in range(self._limits.moderator_attempts):
            self.refresh()
            # Times in a ledger never decrease, so decide for the time that will be written.
            last, known = self._view.head.when, set(self.kept)
            entries = [*made(when if last is None else max(when, last))]
            try:
                if entries:
                    self._view.append(entries)
            except RefusedError as error:
                if error.code != "store.conflict":
                    raise
                continue
            return tuple(poll_id for poll_id in self.kept if poll_id not in known)
        raise RefusedError("moderator.busy", "other processes kept changing the polls", hint="try again")
