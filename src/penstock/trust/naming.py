"""4-tuple reduction: which principals a name means, in whatever order the name certificates stand (RFC 2693, 6.4).

Names are resolved all together by a fixpoint over `(principal, name) -> members`, which is polynomial in the number of
name certificates. Rewriting one name chain after the other would not be: two certificates can make a chain grow for
ever, or double at each step. Between the steps of a chain only members are kept, never the ways to them that another
way outlasts. A quorum stands for its hash; it has no name space, since nobody could sign for it alone.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.principals import Principal
from penstock.trust.reduction import FourTuple
from penstock.trust.subjects import Name, Threshold
from penstock.trust.validity import ALWAYS, Validity

#: joins of two memberships over one bag, after which names that are left unresolved have no more members
STEPS: Final = 500_000


@dataclass(frozen=True, slots=True)
class Membership:
    """Why, and while, a name means one member."""

    member: Principal
    validity: Validity
    because: tuple[str, ...]


_Key = tuple[Principal, bytes]
_Ways = dict[Principal, list[Membership]]


class Names:
    """What every name in a bag means. Several ways to one member are kept while none outlasts another.

    `truncated` says whether there was more than `limits` and `steps` let be kept: ways to one member, certificates in
    one way, or joins of all.
    """

    def __init__(self, fours: Iterable[FourTuple], *, limits: Limits = DEFAULT_LIMITS, steps: int = STEPS) -> None:
        self._members: dict[_Key, _Ways] = {}
        self._limits = limits
        self._steps = steps
        self.truncated = False
        # Plain members first; then a statement is looked at again whenever a name that it asked for has changed.
        linked: list[tuple[FourTuple, Name]] = []
        for four in fours:
            if isinstance(four.subject, Name):
                linked.append((four, four.subject))
            else:
                member = four.subject.principal if isinstance(four.subject, Threshold) else four.subject
                self._add((four.issuer, four.name), Membership(member, four.validity, four.because))
        askers: dict[_Key, set[int]] = {}
        waiting = set(range(len(linked)))
        order = deque(sorted(waiting))
        while order:
            index = order.popleft()
            waiting.discard(index)
            four, meaning = linked[index]
            key = (four.issuer, four.name)
            stated = Membership(four.issuer, four.validity, four.because)
            found, asked = self._resolve(meaning, stated)
            for name in asked:
                askers.setdefault(name, set()).add(index)
            if sum(self._add(key, membership) for membership in found):
                again = sorted(askers.get(key, set()) - waiting)
                waiting.update(again)
                order.extend(again)

    def resolve(self, name: Name) -> Iterator[Membership]:
        """Yield the members of a name, possibly chained: the members of `n2` in the members of `n1`, and so on."""
        yield from self._resolve(name, Membership(name.principal, ALWAYS, ()))[0]

    def held(self, member: Principal) -> Iterator[tuple[Principal, bytes, Membership]]:
        """Yield each name that means somebody, after whoever gives it, and each way to it."""
        for (issuer, name), members in self._members.items():
            for way in members.get(member, ()):
                yield issuer, name, way

    def _resolve(self, name: Name, stated: Membership) -> tuple[list[Membership], set[_Key]]:
        """Return the members of a name on top of a statement about it, and the names that were asked for."""
        asked: set[_Key] = set()
        current = [Membership(name.principal, stated.validity, stated.because)]
        for local in name.names:
            following: _Ways = {}
            for one in current:
                key = (one.member, local)
                asked.add(key)
                for ways in self._members.get(key, {}).values():
                    for way in ways:
                        self._join(following, one, way)
            current = [way for ways in following.values() for way in ways]
        return current, asked

    def _join(self, ways: _Ways, left: Membership, right: Membership) -> None:
        """Add what two memberships, one after the other, say about the member of the second."""
        self._steps -= 1
        if self._steps < 0 or len(left.because) + len(right.because) > self._limits.chain_length:
            self.truncated = True
            return
        validity = left.validity.intersect(right.validity)
        if validity is not None:
            self._keep(ways, Membership(right.member, validity, left.because + right.because))

    def _add(self, key: _Key, found: Membership) -> bool:
        return self._keep(self._members.setdefault(key, {}), found)

    def _keep(self, known: _Ways, found: Membership) -> bool:
        ways = known.setdefault(found.member, [])
        if any(way.validity.covers(found.validity) for way in ways):
            return False
        kept = [way for way in ways if not found.validity.covers(way.validity)]
        if len(kept) >= self._limits.grants_per_principal:
            self.truncated = True
            return False
        ways[:] = [*kept, found]
        return True
