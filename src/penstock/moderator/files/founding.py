"""What a rule base begins with, as its moderator founds it: a statement that it signs.

    (rule-book (name <ledger>) (moderator <principal>) (time <date>) (mode <mode>) <vocabulary>
               [(resolve <strategy>)] (heuristic <name>)
               (known-publishers <profile> …) (known-subscribers <profile> …) [(unsigned)]
               [(speakers <principal> …)] [(tightening poll)])
    <profile>  (<principal> (<attribute> <value>) …)

See `rules.vocabulary` for the fields about what rules may speak about. The digest of it all is what later requests
name, so that none of them counts for another rule base.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import ClassVar

from penstock.codec.sexp import SExp, text
from penstock.codec.sexp import field as sexp_field
from penstock.codec.values import value_from_sexp, value_to_sexp
from penstock.crypto import digest
from penstock.errors import MalformedError
from penstock.model.principals import Principal
from penstock.model.profiles import Profile, ProfileSchema
from penstock.model.values import Value
from penstock.moderator.rules.conflicts import Mode
from penstock.moderator.rules.steps import Strategy
from penstock.moderator.rules.vocabulary import Vocabulary, read_vocabulary, rows, vocabulary_fields
from penstock.moderator.settlement.addition import Customs, Tightening
from penstock.moderator.settlement.proposals import HEURISTICS, NEWEST
from penstock.trust.signed import Claim, malformed, one, read_owner, read_time, time_field

Known = Mapping[Principal, Profile]
"""Who is known, and by which profile."""


def _nobody() -> Known:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Founding(Claim):
    """What a rule base begins with. Raises `MalformedError` (`moderator.founding`)."""

    HEAD: ClassVar = b"rule-book"
    #: the ledger that it is kept in
    name: str
    moderator: Principal
    time: datetime
    vocabulary: Vocabulary = field(repr=False)
    mode: Mode = Mode.SCOPED
    #: conventions of the domain: the proposal that is tried immediately, and what comes back first
    resolve: Strategy | None = None
    heuristic: str = NEWEST.name
    known_publishers: Known = field(default_factory=_nobody, repr=False)
    known_subscribers: Known = field(default_factory=_nobody, repr=False)
    #: requests count without a signature: whoever can write to the ledger is believed whatever it says
    unsafe_unsigned: bool = False
    #: who may state rules; nobody named: whoever has a key
    speakers: frozenset[Principal] = frozenset()
    tightening: Tightening = Tightening.FREE

    def __post_init__(self) -> None:
        if self.heuristic not in HEURISTICS:
            raise MalformedError(
                "moderator.founding",
                f"there is no heuristic `{self.heuristic[:80]}`",
                hint=f"there are: {', '.join(HEURISTICS)}",
            )
        if self.tightening is Tightening.POLL and self.resolve not in (None, Strategy.FOLLOW):
            raise MalformedError(
                "moderator.founding",
                f"`{self.resolve}` would immediately change others' rules without a poll",
                hint="leave `resolve` or `tightening` out, or resolve by `follow`",
            )

    @property
    def signer(self) -> Principal:
        """The moderator."""
        return self.moderator

    @property
    def customs(self) -> Customs:
        """What the domain has agreed on, as plans need it."""
        people = tuple(profile for _, profile in sorted(self.known_subscribers.items()))
        return Customs(self.resolve, HEURISTICS[self.heuristic], people, self.speakers, self.tightening)

    @property
    def digest(self) -> bytes:
        """What tells this rule base from others."""
        return digest(self.to_sexp())

    def to_sexp(self) -> SExp:
        """Return the body that is signed. Raises `MalformedError` for a time that cannot be written."""
        return (
            self.HEAD,
            (b"name", self.name.encode()),
            (b"moderator", str(self.moderator).encode()),
            time_field(self.time),
            (b"mode", self.mode.encode()),
            *vocabulary_fields(self.vocabulary),
            *(() if self.resolve is None else ((b"resolve", self.resolve.encode()),)),
            (b"heuristic", self.heuristic.encode()),
            (b"known-publishers", *_known(self.known_publishers)),
            (b"known-subscribers", *_known(self.known_subscribers)),
            *(((b"unsigned",),) if self.unsafe_unsigned else ()),
            *(((b"speakers", *(str(who).encode() for who in sorted(self.speakers))),) if self.speakers else ()),
            *(() if self.tightening is Tightening.FREE else ((b"tightening", self.tightening.encode()),)),
        )

    @classmethod
    def from_sexp(cls, body: SExp) -> "Founding":
        """Read a body. Raises `MalformedError` (`evolution.malformed`, and what the parts raise)."""
        words = read_vocabulary(body)
        resolve = sexp_field(body, b"resolve")
        return cls(
            text(one(body, b"name")),
            read_owner(one(body, b"moderator")),
            read_time(body),
            words,
            Mode(_word(body, b"mode", Mode)),
            None if resolve is None else Strategy(_word(body, b"resolve", Strategy)),
            text(one(body, b"heuristic")),
            _read_known(rows(body, b"known-publishers"), words.publishers),
            _read_known(rows(body, b"known-subscribers"), words.subscribers),
            sexp_field(body, b"unsigned") is not None,
            frozenset(map(read_owner, (sexp_field(body, b"speakers") or ())[1:])),
            _read_tightening(body),
        )


def _known(known: Known) -> Iterator[SExp]:
    for who, profile in sorted(known.items()):
        values = sorted((name, value) for name, value in profile.values.items() if value is not None)
        yield (str(who).encode(), *((name.encode(), value_to_sexp(value)) for name, value in values))


def _read_known(listed: tuple[SExp, ...], schema: ProfileSchema) -> Known:
    return MappingProxyType(dict(_read_profile(row, schema) for row in listed))


def _read_profile(row: SExp, schema: ProfileSchema) -> tuple[Principal, Profile]:
    match row:
        case (who, *pairs):
            return read_owner(who), schema.profile(dict(map(_read_pair, pairs)))
    raise malformed("a profile is of somebody")


def _read_pair(pair: SExp) -> tuple[str, Value]:
    match pair:
        case (name, value):
            return text(name), value_from_sexp(value)
    raise malformed("a profile has attributes with values")


def _read_tightening(body: SExp) -> Tightening:
    if sexp_field(body, b"tightening") is None:
        return Tightening.FREE
    return Tightening(_word(body, b"tightening", Tightening))


def _word(body: SExp, name: bytes, words: type[Mode] | type[Strategy] | type[Tightening]) -> str:
    found = text(one(body, name))
    if found not in [*words]:
        raise malformed(f"a rule book has a `{name.decode()}` that is not known")
    return found
