"""The forms a tag takes in memory. All are immutable, hashable, and in normal form: made by `parse_tag`.

Atoms and lists are themselves, so that the common case costs a comparison of bytes; star forms are small classes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal, TypeAlias

from penstock.codec.sexp import Hinted, SExp
from penstock.trust.tags.patterns import Pattern

Atom: TypeAlias = bytes | Hinted
ATOM: Final = (bytes, Hinted)
#: a list of nothing but atoms; most members of sets are, and they can be looked up instead of compared one by one
Flat: TypeAlias = tuple[Atom, ...]


class Everything(Enum):
    """The one value `ANY`, compared by identity."""

    ANY = "*"


ANY: Final = Everything.ANY

#: What a request holds in the place of a `(* where …)`. No other tag but `(*)` matches it, which is what keeps the
#: law: a predicate on the event shares nothing with a tag on the request.
EVENT: Final[SExp] = ()


@dataclass(frozen=True, slots=True)
class Set:
    """What any member matches: two or more members; or none at all (`NOTHING`). Of a few, none covers another."""

    atoms: frozenset[Atom]
    flats: frozenset[Flat]
    rest: frozenset["Tag"]
    #: the lengths that occur in `flats`
    lengths: tuple[int, ...] = field(compare=False, repr=False)

    def members(self) -> Iterator["Tag"]:
        """Iterate over all members, in no particular order."""
        yield from self.atoms
        yield from self.flats
        yield from self.rest


@dataclass(frozen=True, slots=True)
class Where:
    """A predicate on the event: all conjuncts hold. Each is `(is ID VALUE)` or `(sql TEXT (NAME ID) …)`."""

    conjuncts: frozenset[SExp]


Tag: TypeAlias = Atom | tuple["Tag", ...] | Literal[Everything.ANY] | Set | Pattern | Where

#: The tag that no request matches, as `parse_tag` returns it; `intersect` returns None instead.
NOTHING: Final = Set(frozenset(), frozenset(), frozenset(), ())


def is_flat(tag: tuple[Tag, ...]) -> bool:
    """Say whether a list has nothing but atoms."""
    return all(type(element) is bytes or type(element) is Hinted for element in tag)
