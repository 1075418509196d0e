"""A rule book as changes of a ledger: the founding first, and then its steps.

    kind `found`              after  <signed founding>, or the founding alone where no signatures are asked for
    kind of the request       before and after of the step (`penstock.moderator.records`), the latter within
                              (taken <octets> [(word <signed request>) (consents <signed consent> …)])

What is longer than a change may be goes into several: all but the last are of kind `part`, and each has a piece of what
stands before and after. They are added as a whole.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from penstock.authority.signed_requests import Asked, Word
from penstock.codec.sexp import SExp, canonical, parse_canonical
from penstock.errors import MalformedError
from penstock.model.limits import Limits
from penstock.model.principals import Principal
from penstock.moderator.consents import Consent
from penstock.moderator.founding import Founding
from penstock.moderator.records import Record, from_record, to_record, wide
from penstock.moderator.steps import Note, Step
from penstock.store.records import Change, Entry
from penstock.trust.signed import UnverifiedValue, read_signed

PART: Final = "part"
FOUND: Final = "found"


@dataclass(frozen=True, slots=True)
class Taken:
    """A step as it was kept, and the word that it rests on, of which nothing is verified."""

    step: Step
    word: Word | None = None


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
        """Put a change together. Raises `MalformedError` (`moderator.record`) for parts of different changes."""
        last = parts[-1]
        if any((part.who, part.when, part.why) != (last.who, last.when, last.why) for part in parts):
            raise malformed("the parts of a change belong to different ones")
        before = b"".join(part.before or b"" for part in parts)
        after = b"".join(part.after or b"" for part in parts)
        return cls(last.who, last.when, last.kind, last.why, before, after)

    def entries(self, limits: Limits) -> Iterator[Entry]:
        """Yield the change as it is added to a ledger."""
        size = limits.store_value_bytes
        longest = max(len(self.before), len(self.after), 1)
        for start in range(0, longest, size):
            yield Entry(
                who=self.who,
                when=self.when,
                kind=self.kind if start + size >= longest else PART,
                why=self.why,
                before=self.before[start : start + size] or None,
                after=self.after[start : start + size] or None,
            )


def found(founding: Founding | UnverifiedValue[Founding], note: Note) -> Whole:
    """Return the change that a rule book begins with."""
    return Whole(note.who, note.when, FOUND, note.why, b"", canonical(founding.to_sexp()))


def read_found(octets: bytes) -> Founding:
    """Return what a rule book began with; where requests have to be signed, it is too.

    Raises `MalformedError` (`moderator.record`, and what its parts raise), and what `UnverifiedValue.verify` raises.
    """
    body = parse_canonical(octets, limits=wide(len(octets)))
    if not (isinstance(body, tuple) and body and body[0] == Founding.HEAD):
        return read_signed(body, Founding).verify().value
    founding = Founding.from_sexp(body)
    if founding.to_sexp() != body:
        raise malformed("a founding is not in its one form")
    if not founding.unsafe_unsigned:
        raise malformed("the founding is not signed")
    return founding


def take(step: Step, word: Word | None) -> Whole:
    """Return the change that a step is kept as."""
    record = to_record(step)
    words: tuple[SExp, ...] = ()
    if word is not None:
        agreed = (consent.to_sexp() for consent in word.consents)
        words = ((b"word", word.asked.to_sexp()), (b"consents", *agreed))
    note = step.note
    return Whole(note.who, note.when, record.kind, note.why, record.before, canonical((b"taken", record.after, *words)))


def read_taken(number: int, whole: Whole) -> Taken:
    """Return the step that was kept. Raises `MalformedError` (`moderator.record`, and what its parts raise)."""
    match parse_canonical(whole.after, limits=wide(len(whole.after))):
        case (b"taken", bytes(after)):
            word = None
        case (b"taken", bytes(after), (b"word", asked), (b"consents", *agreed)):
            word = Word(read_signed(asked, Asked), tuple(read_signed(each, Consent) for each in agreed))
        case _:
            raise malformed("a step is kept with the word that it rests on, or with none")
    note = Note(whole.who, whole.when, whole.why)
    return Taken(from_record(number, note, Record(whole.kind, whole.before, after)), word)


def malformed(message: str) -> MalformedError:
    """Return the error for a change that is none of a rule book."""
    return MalformedError("moderator.record", message, hint="the record was not written by this version of Penstock")
