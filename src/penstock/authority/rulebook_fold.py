"""The state of a rule book as a fold of its ledger.

Whenever a step is read, the words that it rests on are verified, and what was asked for is planned again: who can write
to the ledger writes nothing that counts, unless it is what comes of something that was signed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from penstock.authority.rulebook_records import (
    FOUND,
    PART,
    Taken,
    Whole,
    malformed,
    nobodys,
    read_found,
    read_taken,
    read_ticks,
)
from penstock.authority.rulebook_rights import Rights
from penstock.authority.rulebook_time import Times, is_moderators
from penstock.codec.sexp import SExp, canonical, parse_canonical, text
from penstock.errors import PenstockError, RefusedError
from penstock.model.limits import DEFAULT_LIMITS, Limits, wide
from penstock.model.principals import Principal
from penstock.moderator.base import RuleBase
from penstock.moderator.founding import Founding
from penstock.moderator.records import image_from_sexp, image_to_sexp, to_record
from penstock.moderator.steps import Step
from penstock.moderator.undo import plan_request
from penstock.store.ledgers import Ledger
from penstock.store.records import Change, ticks
from penstock.trust.signed import read_count


@dataclass(slots=True)
class Book:
    """What a rule book has come to. It changes with each step."""

    founding: Founding
    base: RuleBase
    rights: Rights
    #: the founding as it was kept
    found: bytes = field(repr=False)
    #: that of the last step
    time: datetime


@dataclass(slots=True)
class BookState:
    """A rule book, or none yet, and parts of a change that is not whole yet."""

    book: Book | None = None
    parts: list[Change] = field(default_factory=list)


class RuleBookFold:
    """See `penstock.store.folds.Fold`. Steps before a snapshot are read from the ledger when one is to be undone."""

    name = "rule-book-3"

    def __init__(self, ledger: Ledger, *, limits: Limits = DEFAULT_LIMITS) -> None:
        self._ledger = ledger
        # What was decided when a step was planned is decided again, however slow this machine is: by the solver's own
        # count of what it does, which is the same everywhere.
        self._limits = replace(limits, solver_time=max(limits.solver_time, limits.moderator_patience))
        self._times = Times.within(limits)
        #: steps, by their numbers, that were planned on the states that they are to follow, and need not be again
        self.planned: Mapping[int, Step] = {}

    def empty(self) -> BookState:
        """Return the state before the founding."""
        return BookState()

    def step(self, state: BookState, change: Change) -> BookState:
        """Take a change in. Raises `RefusedError` (`moderator.book`) for one that nobody could have asked for."""
        state.parts.append(change)
        if change.kind == PART:
            return state
        try:
            whole = Whole.of(state.parts)
            state.parts.clear()
            if state.book is None:
                state.book = self._found(whole)
            else:
                taken = read_taken(state.book.base.next_number, whole)
                self._take(state.book, taken if state.book.founding.unsafe_unsigned else nobodys(taken))
        except PenstockError as error:
            raise RefusedError(
                "moderator.book",
                f"change {change.number} of `{change.ledger}` is none of this rule book: {error.message}",
                hint="somebody else has written to the ledger; restore a backup whose head you know",
                number=change.number,
                reason=error.code,
            ) from error
        return state

    def dump(self, state: BookState) -> bytes:
        """Return the state as octets."""
        if state.book is None:
            return b""
        book = state.book
        serials = ((str(who).encode(), b"%d" % serial) for who, serial in sorted(book.rights.serials.items()))
        time = (b"time", b"%d" % ticks(book.time))
        image = image_to_sexp(book.base.state)
        return canonical((b"rule-book-state", book.found, time, (b"serials", *serials), image))

    def load(self, data: bytes) -> BookState:
        """Return the state that was dumped. Raises `MalformedError`."""
        if not data:
            return BookState()
        match parse_canonical(data, limits=wide(len(data))):
            case (b"rule-book-state", bytes(found), (b"time", bytes(time)), (b"serials", *serials), image):
                pass
            case _:
                raise malformed("not the state of a rule book")
        try:
            founding = read_found(found)
            base = RuleBase.resume(
                founding.vocabulary,
                founding.mode,
                image_from_sexp(image),
                self._earlier,
                limits=self._limits,
            )
        except RefusedError as error:
            raise malformed("a snapshot of rules that collide, or of a founding that nobody signed") from error
        rights = Rights(founding, dict(map(_read_serial, serials)), self._limits)
        return BookState(Book(founding, base, rights, found, read_ticks(time)))

    def _found(self, whole: Whole) -> Book:
        founding = read_found(whole.after)
        if whole.kind != FOUND:
            raise malformed("a rule book begins with its founding")
        if founding.name != self._ledger.name or founding.moderator != whole.who:
            raise malformed("the founding is that of another rule book")
        base = RuleBase(founding.vocabulary, founding.mode, limits=self._limits)
        return Book(founding, base, Rights(founding, {}, self._limits), whole.after, whole.when)

    def _take(self, book: Book, taken: Taken) -> None:
        self.check(book, taken)
        step = taken.step
        if step != self.planned.get(step.number):
            planned = plan_request(book.base, step.request, step.note, book.founding.customs).step
            if to_record(planned) != to_record(step):
                raise malformed("a step is not what comes of its request")
        book.base.apply(step)
        book.rights.note(taken)
        book.time = step.note.when
        # Steps of old are rarely looked at, and there may be more of them than of anything else.
        if book.base.remembered > self._limits.moderator_steps:
            book.base.forget(self._earlier)

    def check(self, book: Book, taken: Taken) -> None:
        """Check that a step rests on words that count, at its time. Raises what `Rights` and `Times` raise."""
        self._times.check(book.time, taken.step.note.when, moderator=is_moderators(book.founding, taken))
        book.rights.verify(book.base, taken)

    def _earlier(self, count: int) -> Sequence[Step]:
        return [taken.step for taken in read_log(self._ledger, count)]


def same_state(one: BookState, other: BookState) -> bool:
    """Say whether two states are the same, whatever is read of them so far. Raises what reading rules raises."""

    def told(state: BookState) -> tuple[object, ...]:
        if state.book is None:
            return ()
        book, image = state.book, state.book.base.image()
        return (book.found, book.time, book.rights.serials, image, image.unsettled, image.steps)

    return told(one) == told(other)


def read_log(ledger: Ledger, count: int | None = None) -> Iterator[Taken]:
    """Yield the steps of a rule book, as they were kept: so many, or all. The ledger is read to its end.

    Raises `MalformedError` (`moderator.record`, and what its parts raise), `RefusedError` (`store.broken`).
    """
    parts: list[Change] = []
    number, unsigned = 0, False
    for change in ledger.read():
        parts.append(change)
        if change.kind == PART:
            continue
        whole = Whole.of(parts)
        parts.clear()
        # What comes later shows that nobody has put others in the place of these.
        if not number:
            unsigned = read_found(whole.after).unsafe_unsigned
        elif count is None or number <= count:
            taken = read_taken(number, whole)
            yield taken if unsigned else nobodys(taken)
        number += 1


def _read_serial(value: SExp) -> tuple[Principal, int]:
    match value:
        case (who, serial):
            return Principal.parse(text(who)), read_count(serial)
    raise malformed("a serial number is somebody's")
