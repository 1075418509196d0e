"""Polls as changes of a ledger, and what they come to as a fold of it.

    kind `poll`       after  <signed question>
    kind `vote`       after  <signed vote>
    kind `outcome`    after  <signed outcome>
    kind `settled`    after  (settled <poll> <number of the step>)
    kind `unsettled`  after  (unsettled <poll> <code>)

The order of changes is what the moderator goes by: a vote counts if it stands before the outcome of its poll, and has a
time before the deadline. All signatures are verified whenever they are read.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias, TypeVar

from penstock.codec.sexp import SExp, canonical, parse_canonical, text
from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.moderator.ballots import Outcome, Question, Vote
from penstock.moderator.poll import Poll
from penstock.moderator.records import wide
from penstock.store.records import Change
from penstock.trust.signed import Claim, SignedValue, read_count, read_digest, read_signed

V = TypeVar("V", bound=Claim)


class Kind(StrEnum):
    """What happens to a poll."""

    POLL = "poll"
    VOTE = "vote"
    OUTCOME = "outcome"
    SETTLED = "settled"
    UNSETTLED = "unsettled"


@dataclass(frozen=True, slots=True)
class Settlement:
    """What the rule book made of what a poll chose: a step, or the code of its refusal."""

    step: int | None = None
    code: str = ""


@dataclass(frozen=True, slots=True)
class Kept:
    """A poll, and what came of it."""

    poll: Poll
    settlement: Settlement | None = None

    @property
    def open(self) -> bool:
        """Whether votes may still count."""
        return self.poll.outcome is None

    @property
    def pending(self) -> bool:
        """Whether something is to be done about it still."""
        return self.settlement is None


State: TypeAlias = dict[bytes, Kept]
"""All polls, by their ids, in the order in which they were asked."""


class PollsFold:
    """See `penstock.store.folds.Fold`."""

    name = "polls-1"

    def empty(self) -> State:
        """Return no polls."""
        return {}

    def step(self, state: State, change: Change) -> State:
        """Take a change in. Raises `RefusedError` (`poll.record`) for one that a moderator does not write."""
        try:
            _take(state, change)
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
        """Return the state as octets."""
        return canonical((b"polls", *(tuple(_dumped(kept)) for kept in state.values())))

    def load(self, data: bytes) -> State:
        """Return the state that was dumped. Raises `MalformedError`, also for what was not signed as it says."""
        body = parse_canonical(data, limits=wide(len(data)))
        try:
            if not isinstance(body, tuple) or body[:1] != (b"polls",):
                raise _malformed("not the state of polls")
            return {kept.poll.id: kept for kept in map(_loaded, body[1:])}
        except RefusedError as error:
            raise _malformed(error.message) from error


def signed_octets(octets: bytes, kind: type[V]) -> SignedValue[V]:
    """Read and verify a statement of one kind. Raises what `read_signed` and `UnverifiedValue.verify` raise."""
    return read_signed(parse_canonical(octets), kind).verify()


def settlement_octets(poll: bytes, settlement: Settlement) -> tuple[Kind, bytes]:
    """Return what a rule book made of a poll as it is kept."""
    if settlement.step is None:
        return Kind.UNSETTLED, canonical((Kind.UNSETTLED.encode(), poll, settlement.code.encode()))
    return Kind.SETTLED, canonical((Kind.SETTLED.encode(), poll, b"%d" % settlement.step))


def _take(state: State, change: Change) -> None:
    octets = change.after or b""
    match change.kind:
        case Kind.POLL:
            poll = Poll(signed_octets(octets, Question))
            if poll.id in state:
                raise _malformed("a question is asked twice")
            state[poll.id] = Kept(poll)
        case Kind.VOTE:
            vote = signed_octets(octets, Vote)
            kept = _known(state, vote.value.poll)
            try:
                state[vote.value.poll] = replace(kept, poll=kept.poll.hear(vote, change.when))
            except RefusedError as error:
                # Its time was that of a change before it, which another clock had written.
                if error.code != "poll.closed":
                    raise
        case Kind.OUTCOME:
            outcome = signed_octets(octets, Outcome)
            kept = _known(state, outcome.value.poll)
            state[outcome.value.poll] = _ended(replace(kept, poll=kept.poll.close(outcome)))
        case Kind.SETTLED | Kind.UNSETTLED:
            poll_id, settlement = _read_settlement(parse_canonical(octets))
            kept = _known(state, poll_id)
            if kept.open or not kept.pending:
                raise _malformed("a poll is settled once, when it has ended")
            state[poll_id] = replace(kept, settlement=settlement)
        case _:
            raise _malformed("nothing of the kind happens to polls")


def _ended(kept: Kept) -> Kept:
    """Return a poll that has come to its end; where nothing was chosen there is nothing to settle."""
    outcome = kept.poll.outcome
    if outcome is not None and outcome.value.chosen is None:
        return replace(kept, settlement=Settlement(None, "poll.nothing-chosen"))
    return kept


def _known(state: State, poll_id: bytes) -> Kept:
    kept = state.get(poll_id)
    if kept is None:
        raise _malformed("the poll was never asked")
    return kept


def _dumped(kept: Kept) -> Iterator[SExp]:
    yield kept.poll.question.to_sexp()
    yield tuple(vote.to_sexp() for vote in kept.poll.votes)
    yield () if kept.poll.outcome is None else (kept.poll.outcome.to_sexp(),)
    settled = kept.settlement
    yield () if settled is None else (parse_canonical(settlement_octets(kept.poll.id, settled)[1]),)


def _loaded(value: SExp) -> Kept:
    match value:
        case (tuple(question), tuple(votes), tuple(outcome), tuple(settled)) if len(outcome) < 2 and len(settled) < 2:
            return Kept(
                Poll(
                    read_signed(question, Question).verify(),
                    tuple(read_signed(vote, Vote).verify() for vote in votes),
                    read_signed(outcome[0], Outcome).verify() if outcome else None,
                ),
                _read_settlement(settled[0])[1] if settled else None,
            )
    raise _malformed("not a poll")


def _read_settlement(value: SExp) -> tuple[bytes, Settlement]:
    match value:
        case (b"settled", poll, step):
            return read_digest(poll), Settlement(read_count(step))
        case (b"unsettled", poll, code):
            return read_digest(poll), Settlement(None, text(code))
    raise _malformed("not what came of a poll")


def _malformed(message: str) -> MalformedError:
    return MalformedError("poll.record", message, hint="the record was not written by this version of Penstock")
