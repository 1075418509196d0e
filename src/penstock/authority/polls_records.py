"""Polls as changes of a ledger, and their state as a fold.

    kind `poll`       after  <signed question>
    kind `vote`       after  <signed vote>
    kind `outcome`    after  <signed outcome>
    kind `settled`    after  <signed (poll-settled (moderator <principal>) (poll <digest>) (step <number>))>
    kind `unsettled`  after  <signed (poll-settled (moderator <principal>) (poll <digest>) (code <code>))>

The moderator uses the order of changes: a vote counts if it comes before the outcome of its poll, and has a
time before the deadline. All signatures are verified whenever they are read, and questions and what came of them are
those of the rule book's moderator. There are no snapshots: one could leave votes out.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, ClassVar, Final, Never, TypeAlias, TypeVar

from penstock.codec.sexp import BARE, Form, SExp, canonical, parse_canonical, text
from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.model.principals import Principal
from penstock.moderator.files.founding import Founding
from penstock.moderator.polls import Poll, PollOutcome, PollQuestion, Vote
from penstock.store.ledgers.records import Change
from penstock.trust.signed import DIGEST, Claim, SignedValue, malformed, read_count, read_signed

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
    raise malformed("a poll is settled by a step, or by the code of a refusal")


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
        """Return the settlement; without a chosen proposal there is nothing to settle."""
        if self.settled is not None:
            return self.settled.value.settlement
        outcome = self.poll.outcome
        return _NOTHING if outcome is not None and outcome.value.chosen is None else None

    @property
    def open(self) -> bool:
        """Say whether votes may still count."""
        return self.poll.outcome is None

    @property
    def pending(self) -> bool:
        """Say whether the poll needs further action."""
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
        """Take a change in. Raises `RefusedError` (`poll.record`) for one that a moderator does not write."""
        try:
            self._take(state, change)
        except PenstockError as error:
            raise RefusedError(
                "poll.record",
                f"change {change.number} of `{change.ledger}` is none of a poll: {error.message}",
                hint="somebody else has written to the ledger; restore a backup whose head you know",
                number=change.number,
                reason=error.code,
            ) from error
        return state

    def dump(self, state: State) -> bytes:
        """Return the state as bytes."""
        return canonical((b"polls", *(tuple(_dumped(kept)) for kept in state.values())))

    def load(self, data: bytes) -> Never:  # noqa: ARG002  # whatever it holds
        """Raise `MalformedError`: polls are counted from their changes alone."""
        raise _malformed("there are no snapshots of polls")

    def _take(self, state: State, change: Change) -> None:
        octets = change.after or b""
        match change.kind:
            case PollRecordKind.POLL:
                poll = Poll(signed_octets(octets, PollQuestion))
                self._check(poll.question.value)
                if poll.id in state:
                    raise _malformed("a question is asked twice")
                state[poll.id] = Kept(poll)
            case PollRecordKind.VOTE:
                vote = signed_octets(octets, Vote)
                kept = _known(state, vote.value.poll)
                try:
                    state[vote.value.poll] = replace(kept, poll=kept.poll.hear(vote, change.when))
                except RefusedError as error:
                    # Its time was that of a change before it, which another clock had written.
                    if error.code != "poll.closed":
                        raise
            case PollRecordKind.OUTCOME:
                outcome = signed_octets(octets, PollOutcome)
                kept = _known(state, outcome.value.poll)
                state[outcome.value.poll] = replace(kept, poll=kept.poll.close(outcome))
            case PollRecordKind.SETTLED | PollRecordKind.UNSETTLED:
                settled = signed_octets(octets, SettledPoll)
                kept = _known(state, settled.value.poll)
                if (settled.value.moderator, settled.value.kind) != (self._moderator, change.kind):
                    raise _malformed("a poll is settled by the moderator that asked")
                if kept.open or not kept.pending:
                    raise _malformed("a poll is settled once, when it has ended")
                state[settled.value.poll] = replace(kept, settled=settled)
            case _:
                raise _malformed("nothing of the kind happens to polls")

    def _check(self, question: PollQuestion) -> None:
        """Check that a question is one of this rule book."""
        if question.moderator != self._moderator:
            raise _malformed("somebody else than the moderator asks")
        if question.book != self._book:
            raise _malformed("a question is about another rule book")


def signed_octets(octets: bytes, kind: type[V]) -> SignedValue[V]:
    """Read and verify a statement of one kind. Raises what `read_signed` and `UnverifiedValue.verify` raise."""
    return read_signed(parse_canonical(octets), kind).verify()


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
