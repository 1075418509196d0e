"""The state of a rule book as a fold of its ledger. Every word is verified when it is read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from penstock.authority.rulebook_records import FOUND, PART, Taken, Whole, malformed, read_found, read_taken
from penstock.authority.rulebook_rights import Rights
from penstock.codec.sexp import SExp, canonical, parse_canonical, text
from penstock.errors import PenstockError, RefusedError
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.principals import Principal
from penstock.moderator.base import RuleBase
from penstock.moderator.founding import Founding
from penstock.moderator.records import image_from_sexp, image_to_sexp, to_record, wide
from penstock.moderator.steps import Step
from penstock.moderator.undo import plan_request
from penstock.store.ledgers import Ledger
from penstock.store.records import Change
from penstock.trust.signed import read_count


@dataclass(slots=True)
class Book:
    """What a rule book has come to. It changes with each step."""

    founding: Founding
    base: RuleBase
    rights: Rights
    #: the founding as it was kept
    found: bytes = field(repr=False)


@dataclass(slots=True)
class BookState:
    """A rule book, or none yet, and parts of a change that is not whole yet."""

    book: Book | None = None
    parts: list[Change] = field(default_factory=list)


class RuleBookFold:
    """See `penstock.store.folds.Fold`. Steps before a snapshot are read from the ledger when one is to be undone."""

    name = "rule-book-1"

    def __init__(self, ledger: Ledger, *, limits: Limits = DEFAULT_LIMITS) -> None:
        self._ledger = ledger
        # What was decided when a step was planned is decided again, however slow this machine is: by the solver's own
        # count of what it does, which is the same everywhere.
        self._limits = replace(limits, solver_time=max(limits.solver_time, limits.moderator_patience))

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
                self._take(state.book, read_taken(state.book.base.next_number, whole))
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
        return canonical((b"rule-book-state", book.found, (b"serials", *serials), image_to_sexp(book.base.image())))

    def load(self, data: bytes) -> BookState:
        """Return the state that was dumped. Raises `MalformedError`."""
        if not data:
            return BookState()
        match parse_canonical(data, limits=wide(len(data))):
            case (b"rule-book-state", bytes(found), (b"serials", *serials), image):
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
        return BookState(Book(founding, base, Rights(founding, dict(map(_read_serial, serials)), self._limits), found))

    def _found(self, whole: Whole) -> Book:
        founding = read_found(whole.after)
        if whole.kind != FOUND:
            raise malformed("a rule book begins with its founding")
        if founding.name != self._ledger.name or founding.moderator != whole.who:
            raise malformed("the founding is that of another rule book")
        base = RuleBase(founding.vocabulary, founding.mode, limits=self._limits)
        return Book(founding, base, Rights(founding, {}, self._limits), whole.after)

    def _take(self, book: Book, taken: Taken) -> None:
        book.rights.verify(book.base, taken)
        book.base.apply(taken.step)
        book.rights.note(taken)
        # Steps of old are rarely looked at, and there may be more of them than of anything else.
        if book.base.remembered > self._limits.moderator_steps:
            book.base.forget(self._earlier)

    def _earlier(self, count: int) -> Sequence[Step]:
        return [taken.step for taken in read_log(self._ledger, count)]


class VerifyingFold(RuleBookFold):
    """The same, where each step has to be what comes of its request when that is planned again."""

    def _take(self, book: Book, taken: Taken) -> None:
        step = taken.step
        planned = plan_request(book.base, step.request, step.note, book.founding.customs).step
        if to_record(planned) != to_record(step):
            raise malformed("a step is not what comes of its request")
        super()._take(book, taken)


def read_log(ledger: Ledger, count: int | None = None) -> Iterator[Taken]:
    """Yield the steps of a rule book, as they were kept: so many, or all.

    Raises `MalformedError` (`moderator.record`, and what its parts raise), `RefusedError` (`store.broken`).
    """
    parts: list[Change] = []
    number = 0
    for change in ledger.read():
        parts.append(change)
        if change.kind == PART:
            continue
        whole = Whole.of(parts)
        parts.clear()
        if number:
            yield read_taken(number, whole)
        if number == count:
            return
        number += 1


def _read_serial(value: SExp) -> tuple[Principal, int]:
    match value:
        case (who, serial):
            return Principal.parse(text(who)), read_count(serial)
    raise malformed("a serial number is somebody's")
