"""4-tuple reduction: which principals a name means, in whatever order the name certificates stand (RFC 2693, 6.4).

Names are resolved all together by a fixpoint over `(principal, name) -> members`, which is polynomial in the number of
name certificates. Rewriting one name chain after the other would not be: two certificates can make a chain grow for
ever, or double at each step.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.principals import Principal
from penstock.trust.reduction import FourTuple
from penstock.trust.subjects import Name, Threshold
from penstock.trust.validity import ALWAYS, Validity

Terminal = Principal | Threshold
"""What a name finally means."""


@dataclass(frozen=True, slots=True)
class Membership:
    """Why, and while, a name means one member."""

    member: Terminal
    validity: Validity
    because: tuple[str, ...]


class Names:
    """What every name in a bag means. Several ways to one member are kept while none outlasts another."""

    def __init__(self, fours: Iterable[FourTuple], *, limits: Limits = DEFAULT_LIMITS) -> None:
        self._members: dict[tuple[Principal, bytes], dict[Terminal, list[Membership]]] = {}
        self._limits = limits
        statements = list(fours)
        changed = bool(statements)
        while changed:
            changed = False
            for four in statements:
                for found in list(self._meaning(four)):
                    changed |= self._add(four.issuer, four.name, found)

    def resolve(self, name: Name) -> Iterator[Membership]:
        """Yield the members of a name, possibly chained: the members of `n2` in the members of `n1`, and so on."""
        current = [Membership(name.principal, ALWAYS, ())]
        for local in name.names:
            current = [joined for one in current for joined in self._step(one, local)]
        yield from current

    def _step(self, one: Membership, local: bytes) -> Iterator[Membership]:
        # A quorum has no name space: nobody could sign for it alone.
        if isinstance(one.member, Threshold):
            return
        for ways in self._members.get((one.member, local), {}).values():
            for way in ways:
                validity = one.validity.intersect(way.validity)
                if validity is not None:
                    yield Membership(way.member, validity, one.because + way.because)

    def _meaning(self, four: FourTuple) -> Iterator[Membership]:
        if not isinstance(four.subject, Name):
            yield Membership(four.subject, four.validity, four.because)
            return
        for found in self.resolve(four.subject):
            validity = four.validity.intersect(found.validity)
            if validity is not None:
                yield Membership(found.member, validity, four.because + found.because)

    def _add(self, principal: Principal, name: bytes, found: Membership) -> bool:
        ways = self._members.setdefault((principal, name), {}).setdefault(found.member, [])
        if any(way.validity.covers(found.validity) for way in ways):
            return False
        kept = [way for way in ways if not found.validity.covers(way.validity)]
        if len(kept) >= self._limits.grants_per_principal:
            return False
        ways[:] = [*kept, found]
        return True
