"""A rule book as changes of a ledger: the founding first, and then its steps.

    kind `found`              after  <signed founding>, or the founding alone where no signatures are asked for
    kind of the request       before and after of the step (`penstock.moderator.base.records`), the latter within
                              (taken <bytes> [(time <microseconds>)]
                                     [(word <signed request>) (consents <signed consent> …)
                                      [(poll <signed question> <signed outcome>)]])

The time of a step is that of the change, unless the ledger was ahead of it: then the step has its own, in microseconds
since 1970.

A record that is too long for one change is split into several: all but the last are of kind `part`, and each has a
piece of the bytes before and after. They are appended together.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from typing import Annotated, ClassVar, Final

from penstock.authority.limits import AuthorityLimits
from penstock.codec.limits import wide
from penstock.codec.sexp import Form, SExp, canonical, parse_canonical
from penstock.crypto import SigningKey
from penstock.errors import MalformedError, RefusedError
from penstock.model.principals import Principal
from penstock.moderator.base.records import Record, from_record, request_from_sexp, request_to_sexp, to_record
from penstock.moderator.files.founding import Founding
from penstock.moderator.polls import PollOutcome, PollProof, PollQuestion
from penstock.moderator.rules.steps import CLOCK, Note, Pass, Request, Step
from penstock.moderator.settlement.proposals import Consent
from penstock.store.ledgers.ledgers import EMPTY, Change, Ledger, LedgerHead, NewChange, from_ticks, ticks
from penstock.trust.signed import DIGEST, Claim, UnverifiedValue, read_count, read_signed, sign_value
from penstock.trust.signed import malformed as malformed_statement

# ----------------------------------------------------------------------------------------------------------------------
# Signed requests to the moderator.
#
#     (moderator-request (book <digest>) (by <principal>) (serial <number>) (time <date>) (why <text>) <request>)
#
# A request is valid for one rule base, once, and only for a while: the serial numbers of a principal's requests
# increase, and the time must be close to the moderator's clock. So replayed and delayed requests have no effect.


def _read_request(value: SExp) -> Request:
    if not isinstance(value, tuple):
        raise malformed_statement("a request must be a list")
    return request_from_sexp(value)


@dataclass(frozen=True, slots=True)
class ModeratorRequest(Claim):
    """A request to the moderator."""

    HEAD: ClassVar = b"moderator-request"
    ORDER: ClassVar = ("book", "by", "serial", "time", "why", "request")
    SIGNER: ClassVar = "by"
    #: the digest of the founding of the rule base
    book: Annotated[bytes, DIGEST] = field(repr=False)
    by: Principal
    serial: int
    time: datetime
    request: Annotated[Request, Form(request_to_sexp, _read_request)]
    why: str = ""


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A received request with others' consents, not verified yet."""

    asked: UnverifiedValue[ModeratorRequest]
    consents: tuple[UnverifiedValue[Consent], ...] = ()
    #: the poll that chose it
    poll: PollProof | None = None


# ----------------------------------------------------------------------------------------------------------------------
# The founding and the steps.


PART: Final = "part"
FOUND: Final = "found"
#: more than any time has
_LAST_TICK: Final = 10**18


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A recorded step with its signed statement, not verified yet."""

    step: Step
    word: SignedRequest | None = None
    #: the record that the step was read from, which is `to_record` of it
    record: Record | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Whole:
    """A change with all its parts."""

    who: Principal
    when: datetime
    kind: str
    why: str
    before: bytes
    after: bytes

    @classmethod
    def of(cls, parts: Sequence[Change]) -> "Whole":
        """Join the parts of a change. Raises `MalformedError` (`moderator.record`) for parts of different changes."""
        last = parts[-1]
        if any((part.who, part.when, part.why) != (last.who, last.when, last.why) for part in parts):
            raise malformed("the parts belong to different changes")
        before = b"".join(part.before or b"" for part in parts)
        after = b"".join(part.after or b"" for part in parts)
        return cls(last.who, last.when, last.kind, last.why, before, after)

    def entries(self, limits: AuthorityLimits) -> Iterator[NewChange]:
        """Yield the changes that are appended to a ledger."""
        size = limits.store_value_bytes
        longest = max(len(self.before), len(self.after), 1)
        for start in range(0, longest, size):
            yield NewChange(
                who=self.who,
                when=self.when,
                kind=self.kind if start + size >= longest else PART,
                why=self.why,
                before=self.before[start : start + size] or None,
                after=self.after[start : start + size] or None,
            )


def found(founding: Founding | UnverifiedValue[Founding], note: Note) -> Whole:
    """Return the first change of a rule book."""
    return Whole(note.who, note.when, FOUND, note.why, b"", canonical(founding.to_sexp()))


def begin(ledger: Ledger, founding: Founding, whole: Whole, limits: AuthorityLimits) -> None:
    """Write the first change of a rule book.

    Raises `RefusedError` (`moderator.book-exists`), `MalformedError` (`moderator.founding`) for another ledger's.
    """
    if founding.name != ledger.name:
        raise MalformedError("moderator.founding", f"the founding is for `{founding.name}`, not `{ledger.name}`")
    try:
        ledger.append(EMPTY, [*whole.entries(limits)])
    except RefusedError as error:
        if error.code != "store.conflict":
            raise
        raise RefusedError(
            "moderator.book-exists", f"the ledger `{ledger.name}` is not empty", hint="choose another name"
        ) from error


# The same bytes are read from the ledger and from its snapshots, and have long lists of types and attributes.
@lru_cache(maxsize=4)
def read_found(data: bytes) -> Founding:
    """Return the founding of a rule book. It is signed if requests must be.

    Raises `MalformedError` (`moderator.record`, and errors of its parts), and as `UnverifiedValue.verify`.
    """
    body = parse_canonical(data, limits=wide(len(data)))
    if not (isinstance(body, tuple) and body and body[0] == Founding.HEAD):
        return read_signed(body, Founding).verify().value
    founding = Founding.from_sexp(body)
    if founding.to_sexp() != body:
        raise malformed("the founding is not in canonical form")
    if not founding.unsafe_unsigned:
        raise malformed("the founding is not signed")
    return founding


def read_founding(ledger: Ledger) -> Founding:
    """Return the founding of a ledger's rule book. Raises as `read_found`, and errors of reading a ledger."""
    parts: list[Change] = []
    while not parts or parts[-1].kind == PART:
        number = len(parts) + 1
        found = [*ledger.read(number, number)]
        if not found:
            raise malformed("there is no founding")
        parts += found
    return read_found(Whole.of(parts).after)


def take(step: Step, word: SignedRequest | None, latest: datetime | None = None) -> Whole:
    """Return the change for a step, in a ledger whose last change has a time."""
    record, note = to_record(step), step.note
    when = note.when if latest is None else max(note.when, latest)
    said: tuple[SExp, ...] = () if when == note.when else ((b"time", b"%d" % ticks(note.when)),)
    if word is not None:
        agreed = (consent.to_sexp() for consent in word.consents)
        said += ((b"word", word.asked.to_sexp()), (b"consents", *agreed))
        if word.poll is not None:
            said += ((b"poll", word.poll.question.to_sexp(), word.poll.outcome.to_sexp()),)
    return Whole(note.who, when, record.kind, note.why, record.before, canonical((b"taken", record.after, *said)))


def read_taken(number: int, whole: Whole) -> RecordedStep:
    """Return the step of a change. Raises `MalformedError` (`moderator.record`, and errors of its parts)."""
    when, body = whole.when, parse_canonical(whole.after, limits=wide(len(whole.after)))
    match body:
        case (b"taken", bytes(after), (b"time", bytes(time)), *said):
            when = _own_time(time, whole.when)
        case (b"taken", bytes(after), *said):
            pass
        case _:
            raise malformed("not a step of a rule book")
    match said:
        case []:
            word = None
        case [(b"word", asked), (b"consents", *agreed), *polled]:
            consents = tuple(read_signed(each, Consent) for each in agreed)
            word = SignedRequest(read_signed(asked, ModeratorRequest), consents, _read_poll(polled))
        case _:
            raise malformed("a step must have one signed request, or none")
    note = Note(whole.who, when, whole.why)
    record = Record(whole.kind, whole.before, after)
    return RecordedStep(from_record(number, note, record), word, record)


def nobodys(taken: RecordedStep) -> RecordedStep:
    """Return a step in a book with signatures: a step without a signed request belongs to the clock.

    The record can contain any name, and old books have the moderator's.
    """
    if taken.word is not None or not isinstance(taken.step.request, Pass):
        return taken
    return replace(taken, step=replace(taken.step, note=replace(taken.step.note, who=CLOCK)))


def _read_poll(polled: Sequence[SExp]) -> PollProof | None:
    match polled:
        case []:
            return None
        case [(b"poll", question, outcome)]:
            return PollProof(read_signed(question, PollQuestion), read_signed(outcome, PollOutcome))
    raise malformed("a step must have one poll, or none")


def read_ticks(value: bytes) -> datetime:
    """Read a time in microseconds since 1970. Raises `MalformedError` (`moderator.record`, `evolution.malformed`)."""
    try:
        count = read_count(value, _LAST_TICK)
        if b"%d" % count != value:
            raise malformed("a time is not in canonical form")
        return from_ticks(count)
    except OverflowError as error:
        raise malformed("an invalid time") from error


def _own_time(time: bytes, latest: datetime) -> datetime:
    when = read_ticks(time)
    if when >= latest:
        raise malformed("a step has its own time only if the ledger is ahead of it")
    return when


def malformed(message: str) -> MalformedError:
    """Return the error for a change that does not belong to a rule book."""
    return MalformedError("moderator.record", message, hint="the record was not written by this version of Penstock")


# ----------------------------------------------------------------------------------------------------------------------
# Snapshots of a rule book, signed by its moderator.
#
#     (kept <state> [<signed statement>])
#     (rule-book-snapshot (book <digest>) (by <moderator>) (number <number>) (hash <hash>) (state <digest>))
#
# A snapshot hides the steps that led to it. So the moderator signs the state and its head, and a snapshot without its
# signature is ignored. In a book without signatures, snapshots are not signed.
#
# Other writers of a book store snapshots too, beside those of the moderator and signed with their own keys. A writer
# accepts only its own: they contain what it has verified itself.


@dataclass(frozen=True, slots=True)
class Vouched(Claim):
    """A rule book's state at a head, signed by its moderator, or by a principal for itself."""

    HEAD: ClassVar = b"rule-book-snapshot"
    SIGNER: ClassVar = "by"
    book: Annotated[bytes, DIGEST] = field(repr=False)
    by: Principal
    number: int
    hash: Annotated[bytes, DIGEST] = field(repr=False)
    #: the digest of the state
    state: Annotated[bytes, DIGEST] = field(repr=False)

    @classmethod
    def of(cls, founding: Founding, head: LedgerHead, data: bytes, by: Principal | None = None) -> "Vouched":
        """Return the bytes to sign, for the moderator unless another signer is named."""
        return cls(founding.digest, by or founding.moderator, head.number, head.hash, sha256(data).digest())


class Snapshots:
    """See `penstock.store.ledgers.folds.Keeping`: snapshots of the rule book of a ledger."""

    def __init__(self, ledger: Ledger, own: Principal | None = None) -> None:
        self._ledger = ledger
        #: the principal whose own snapshots are accepted, beside those of the moderator
        self._own = own
        self._key: SigningKey | None = None
        self._begun: Founding | None = None

    @property
    def _founding(self) -> Founding:
        """Return the founding, parsed once."""
        if self._begun is None:
            self._begun = read_founding(self._ledger)
        return self._begun

    @contextmanager
    def signed_by(self, key: SigningKey | None) -> Iterator[None]:
        """Use the moderator's key within this context."""
        self._key, before = key, self._key
        try:
            yield
        finally:
            self._key = before

    @property
    def able(self) -> bool:
        """Whether the moderator's key or the own key is available, or none is needed."""
        founding = self._founding
        return founding.unsafe_unsigned or (
            self._key is not None and self._key.principal in (founding.moderator, self._own)
        )

    def slots(self, fold: str) -> Sequence[str]:
        """Return the names of the moderator's snapshots and of the own ones. The first can be written."""
        own = () if self._own is None else (f"{fold}/{self._own.digest.hex()}",)
        return (*own, fold) if self._keeps_own() else (fold, *own)

    def _keeps_own(self) -> bool:
        """Return whether the available key is the own key, and not the moderator's."""
        if self._key is None or self._key.principal != self._own:
            return False
        founding = self._founding
        return not founding.unsafe_unsigned and self._own != founding.moderator

    def wrap(self, head: LedgerHead, data: bytes) -> bytes:
        """Return the stored form of a state. Raises `RefusedError`: `moderator.unsigned`, `evolution.wrong-key`."""
        founding = self._founding
        if founding.unsafe_unsigned:
            return canonical((b"kept", data))
        if self._key is None:
            raise RefusedError(
                "moderator.unsigned", "a snapshot must be signed by the moderator", hint="use the moderator's key"
            )
        vouched = Vouched.of(founding, head, data, self._own if self._keeps_own() else None)
        return canonical((b"kept", data, sign_value(vouched, self._key).to_sexp()))

    def unwrap(self, head: LedgerHead, data: bytes) -> bytes:
        """Return a stored state. Raises `MalformedError` unless the moderator or the own key signed it."""
        try:
            founding = self._founding
            match parse_canonical(data, limits=wide(len(data))):
                case (b"kept", bytes(data)) if founding.unsafe_unsigned:
                    return data
                case (b"kept", bytes(data), signed):
                    # A signature of another state or by another principal is not accepted.
                    vouched = read_signed(signed, Vouched).verify().value
                    by = vouched.by if vouched.by == self._own else founding.moderator
                    if vouched == Vouched.of(founding, head, data, by):
                        return data
        except RefusedError as error:
            raise malformed("the snapshot has no valid signature") from error
        raise malformed("not a snapshot of this rule book signed by its moderator")
