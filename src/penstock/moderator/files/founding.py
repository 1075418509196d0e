"""The founding of a rule base: a statement that its moderator signs.

    (rule-book (name <ledger>) (moderator <principal>) (time <date>) (mode <mode>) <vocabulary>
               [(resolve <strategy>)] (heuristic <name>)
               (known-publishers <profile> …) (known-subscribers <profile> …) [(unsigned)]
               [(speakers <principal> …)] [(tightening poll)])
    <profile>  (<principal> (<attribute> <value>) …)

See `rules.vocabulary` for the fields of `<vocabulary>`. Later requests name the digest of this statement, so that none
of them can be used in another rule base.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, ClassVar, Final, Self

from penstock.codec.sexp import OMITTED, ListForm, Named, SExp, read_record, text
from penstock.codec.values import value_from_sexp, value_to_sexp
from penstock.crypto import digest
from penstock.errors import MalformedError, did_you_mean
from penstock.model.principals import Principal
from penstock.model.profiles import Profile, ProfileSchema
from penstock.model.values import Value
from penstock.moderator.rules.rules import Mode
from penstock.moderator.rules.steps import Strategy
from penstock.moderator.rules.vocabulary import VocabularyField
from penstock.moderator.settlement.addition import Customs, Tightening
from penstock.moderator.settlement.proposals import HEURISTICS, NEWEST
from penstock.trust.signed import Claim, malformed, read_owner

Known = Mapping[Principal, Profile]
"""Known principals, and their profiles."""


def _nobody() -> Known:
    return MappingProxyType({})


def _write_known(known: Known) -> Iterator[SExp]:
    for who, profile in sorted(known.items()):
        values = sorted((name, value) for name, value in profile.values.items() if value is not None)
        yield (str(who).encode(), *((name.encode(), value_to_sexp(value)) for name, value in values))


def _read_profile(row: SExp) -> tuple[Principal, Profile]:
    match row:
        case (who, *pairs):
            return read_owner(who), Profile(dict(map(_read_pair, pairs)))
    raise malformed("a profile must name its principal")


def _read_pair(pair: SExp) -> tuple[str, Value]:
    match pair:
        case (name, value):
            return text(name), value_from_sexp(value)
    raise malformed("a profile must list attributes with values")


_KNOWN: Final[ListForm[Known]] = ListForm(
    lambda known: tuple(_write_known(known)), lambda rows: dict(map(_read_profile, rows))
)


@dataclass(frozen=True, slots=True)
class Founding(Claim):
    """The founding of a rule base. Raises `MalformedError` (`moderator.founding`)."""

    HEAD: ClassVar = b"rule-book"
    ORDER: ClassVar = (
        *("name", "moderator", "time", "mode", "vocabulary", "resolve", "heuristic", "known_publishers"),
        *("known_subscribers", "unsafe_unsigned", "speakers", "tightening"),
    )
    SIGNER: ClassVar = "moderator"
    #: the ledger of the rule base
    name: str
    moderator: Principal
    time: datetime
    vocabulary: VocabularyField = field(repr=False)
    mode: Mode = Mode.SCOPED
    #: conventions of the domain: the proposal that is tried immediately, and which log entries are restored first
    resolve: Strategy | None = None
    heuristic: str = NEWEST.name
    known_publishers: Annotated[Known, _KNOWN] = field(default_factory=_nobody, repr=False)
    known_subscribers: Annotated[Known, _KNOWN] = field(default_factory=_nobody, repr=False)
    #: unsigned requests are accepted: whoever can write to the ledger can make any request
    unsafe_unsigned: Annotated[bool, Named(b"unsigned")] = False
    #: who may state rules; empty: everybody with a key
    speakers: Annotated[frozenset[Principal], OMITTED] = frozenset()
    tightening: Annotated[Tightening, OMITTED] = Tightening.FREE

    def __post_init__(self) -> None:
        if self.heuristic not in HEURISTICS:
            raise MalformedError(
                "moderator.founding",
                f"unknown heuristic `{self.heuristic[:80]}`",
                hint=did_you_mean(self.heuristic, HEURISTICS, f"there are: {', '.join(HEURISTICS)}"),
            )
        if self.tightening is Tightening.POLL and self.resolve not in (None, Strategy.FOLLOW):
            raise MalformedError(
                "moderator.founding",
                f"`{self.resolve}` would immediately change others' rules without a poll",
                hint="leave `resolve` or `tightening` out, or resolve by `follow`",
            )

    @property
    def customs(self) -> Customs:
        """Return the domain's customs for plans."""
        people = tuple(profile for _, profile in sorted(self.known_subscribers.items()))
        return Customs(self.resolve, HEURISTICS[self.heuristic], people, self.speakers, self.tightening)

    @property
    def digest(self) -> bytes:
        """Return the digest that identifies this rule base."""
        return digest(self.to_sexp())

    @classmethod
    def from_sexp(cls, body: SExp) -> Self:
        """Read a body. Raises `MalformedError` (`evolution.malformed`, and what the parts raise)."""
        read = read_record(cls, body)
        words = read.vocabulary
        return replace(
            read,
            known_publishers=_checked(read.known_publishers, words.publishers),
            known_subscribers=_checked(read.known_subscribers, words.subscribers),
        )


def _checked(known: Known, schema: ProfileSchema) -> Known:
    """Return profiles with values converted to the declared kinds."""
    values = {
        who: {name: value for name, value in profile.values.items() if value is not None}
        for who, profile in known.items()
    }
    return MappingProxyType({who: schema.profile(found) for who, found in values.items()})
