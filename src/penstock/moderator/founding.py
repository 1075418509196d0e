"""What a rule base begins with, as its moderator founds it: a statement that it signs.

    (rule-book (name <ledger>) (moderator <principal>) (time <date>) (scope <scope>) (mode <mode>)
               (types (of <owner> <type> …) …) (publishers <attribute> …) (subscribers <attribute> …)
               [(resolve <strategy>)] (heuristic <name>)
               (known-publishers <profile> …) (known-subscribers <profile> …) [(unsigned)])
    <type>       (<name>) | (<name> <parent>) | (<name> <owner of the parent> <parent>)
    <attribute>  (<name> <kind> <domain>)
    <profile>    (<principal> (<attribute> <value>) …)

Its digest is what later requests name, so that none of them counts for another rule base.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from types import MappingProxyType
from typing import ClassVar

from penstock.codec.sexp import SExp, text
from penstock.codec.sexp import field as sexp_field
from penstock.codec.values import spec_from_sexp, spec_to_sexp, value_from_sexp, value_to_sexp
from penstock.crypto import digest
from penstock.errors import MalformedError
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.profiles import Profile, ProfileSchema
from penstock.model.tree import Scope, TypeTree
from penstock.model.values import Value
from penstock.moderator.adding import Customs
from penstock.moderator.conflicts import Mode
from penstock.moderator.heuristics import HEURISTICS, NEWEST
from penstock.moderator.steps import Strategy
from penstock.moderator.vocabulary import Vocabulary
from penstock.trust.signed import malformed, one, read_owner, read_time, time_field

Known = Mapping[Principal, Profile]
"""Who is known, and by which profile."""


def _nobody() -> Known:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Founding:
    """What a rule base begins with. Raises `MalformedError` (`moderator.founding`)."""

    HEAD: ClassVar = b"rule-book"
    #: the ledger that it is kept in
    name: str
    moderator: Principal
    time: datetime
    vocabulary: Vocabulary
    mode: Mode = Mode.SCOPED
    #: what the domain has agreed on beforehand: the way out that is tried at once, and what comes back first
    resolve: Strategy | None = None
    heuristic: str = NEWEST.name
    known_publishers: Known = field(default_factory=_nobody, repr=False)
    known_subscribers: Known = field(default_factory=_nobody, repr=False)
    #: requests count without a signature: whoever can write to the ledger is believed whatever it says
    unsafe_unsigned: bool = False

    def __post_init__(self) -> None:
        if self.heuristic not in HEURISTICS:
            raise MalformedError(
                "moderator.founding",
                f"there is no heuristic `{self.heuristic[:80]}`",
                hint=f"there are: {', '.join(HEURISTICS)}",
            )

    @property
    def signer(self) -> Principal:
        """The moderator."""
        return self.moderator

    @property
    def customs(self) -> Customs:
        """What the domain has agreed on, as plans need it."""
        people = tuple(profile for _, profile in sorted(self.known_subscribers.items()))
        return Customs(self.resolve, HEURISTICS[self.heuristic], people)

    @property
    def digest(self) -> bytes:
        """What tells this rule base from others."""
        return digest(self.to_sexp())

    def to_sexp(self) -> SExp:
        """Return the body that is signed. Raises `MalformedError` for a time that cannot be written."""
        words = self.vocabulary
        return (
            self.HEAD,
            (b"name", self.name.encode()),
            (b"moderator", str(self.moderator).encode()),
            time_field(self.time),
            (b"scope", words.tree.scope.encode()),
            (b"mode", self.mode.encode()),
            (b"types", *_types(words.tree)),
            (b"publishers", *_attributes(words.publishers)),
            (b"subscribers", *_attributes(words.subscribers)),
            *(() if self.resolve is None else ((b"resolve", self.resolve.encode()),)),
            (b"heuristic", self.heuristic.encode()),
            (b"known-publishers", *_known(self.known_publishers)),
            (b"known-subscribers", *_known(self.known_subscribers)),
            *(((b"unsigned",),) if self.unsafe_unsigned else ()),
        )

    @classmethod
    def from_sexp(cls, body: SExp) -> "Founding":
        """Read a body. Raises `MalformedError` (`evolution.malformed`, and what the parts raise)."""
        tree = TypeTree.of(dict(_read_types(_rows(body, b"types"))), Scope(_word(body, b"scope", Scope)))
        publishers, subscribers = (_read_attributes(_rows(body, name)) for name in (b"publishers", b"subscribers"))
        resolve = sexp_field(body, b"resolve")
        return cls(
            text(one(body, b"name")),
            read_owner(one(body, b"moderator")),
            read_time(body),
            Vocabulary(tree, publishers, subscribers),
            Mode(_word(body, b"mode", Mode)),
            None if resolve is None else Strategy(_word(body, b"resolve", Strategy)),
            text(one(body, b"heuristic")),
            _read_known(_rows(body, b"known-publishers"), publishers),
            _read_known(_rows(body, b"known-subscribers"), subscribers),
            sexp_field(body, b"unsigned") is not None,
        )


def _types(tree: TypeTree) -> Iterator[SExp]:
    for owner, events in groupby(sorted(tree.parents), key=lambda event: event.owner):
        yield (b"of", str(owner).encode(), *(_hung(event, tree.parents[event]) for event in events))


def _hung(event: TypeKey, parent: TypeKey | None) -> SExp:
    if parent is None:
        return (event.name.encode(),)
    elsewhere = () if parent.owner == event.owner else (str(parent.owner).encode(),)
    return (event.name.encode(), *elsewhere, parent.name.encode())


def _read_types(groups: tuple[SExp, ...]) -> Iterator[tuple[TypeKey, TypeKey | None]]:
    for group in groups:
        match group:
            case (b"of", owner, *types):
                of = read_owner(owner)
                yield from (_read_hung(of, each) for each in types)
            case _:
                raise malformed("types stand by their owners")


def _read_hung(owner: Principal, value: SExp) -> tuple[TypeKey, TypeKey | None]:
    match value:
        case (name,):
            return TypeKey(owner, text(name)), None
        case (name, parent):
            return TypeKey(owner, text(name)), TypeKey(owner, text(parent))
        case (name, other, parent):
            return TypeKey(owner, text(name)), TypeKey(read_owner(other), text(parent))
    raise malformed("a type has a name, and perhaps a parent")


def _attributes(schema: ProfileSchema) -> Iterator[SExp]:
    for name, spec in sorted(schema.attributes.items()):
        yield (name.encode(), *spec_to_sexp(spec))


def _read_attributes(rows: tuple[SExp, ...]) -> ProfileSchema:
    found = {}
    for row in rows:
        match row:
            case (name, *spec):
                found[text(name)] = spec_from_sexp(tuple(spec))
            case _:
                raise malformed("an attribute has a name and a kind")
    return ProfileSchema(found)


def _known(known: Known) -> Iterator[SExp]:
    for who, profile in sorted(known.items()):
        values = sorted((name, value) for name, value in profile.values.items() if value is not None)
        yield (str(who).encode(), *((name.encode(), value_to_sexp(value)) for name, value in values))


def _read_known(rows: tuple[SExp, ...], schema: ProfileSchema) -> Known:
    return MappingProxyType(dict(_read_profile(row, schema) for row in rows))


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


def _rows(body: SExp, name: bytes) -> tuple[SExp, ...]:
    found = sexp_field(body, name)
    if found is None:
        raise malformed(f"a rule book has `{name.decode()}`")
    return found[1:]


def _word(body: SExp, name: bytes, words: type[Scope] | type[Mode] | type[Strategy]) -> str:
    found = text(one(body, name))
    if found not in [*words]:
        raise malformed(f"a rule book has a `{name.decode()}` that is not known")
    return found
