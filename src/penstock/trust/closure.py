"""What follows from a set of 5-tuples: authority flows from entries through certificates to principals.

The rules, applied until nothing new follows:

1. a name is replaced by its members (`naming`);
2. a principal that may propagate passes its authority on through each certificate it issued (`reduce_pair`);
3. the authority of a threshold subject reaches whomever at least k of its n members pass it to, a member itself
   included: the intersection of k shares (RFC 2693; paper 5, section 2.6.4).

Work is bounded by a polynomial: a principal keeps at most `limits.grants_per_principal` grants of which none covers
another, and going round a cycle of delegations only narrows, so it adds nothing.
"""

from collections.abc import Iterable, Iterator, Sequence

from penstock.errors import LimitError
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.principals import Principal
from penstock.trust.naming import Names, Terminal
from penstock.trust.reduction import FiveTuple, FourTuple, reduce_pair
from penstock.trust.subjects import Name, Threshold
from penstock.trust.tags import covers, intersect
from penstock.trust.validity import Validity


def dominates(one: FiveTuple, other: FiveTuple) -> bool:
    """Say whether whoever holds `one` gains nothing from `other`."""
    return (
        (one.propagate or not other.propagate)
        and one.validity.covers(other.validity)
        and (one.tag == other.tag or covers(one.tag, other.tag))
    )


class Closure:
    """Everything that some entries entail together with a bag of certificates.

    With `exhaustive`, only equal grants are dropped, as RFC 2693 would list them, and more of them than
    `limits.certificates` raise `LimitError`. Without it, grants that another one covers are dropped too, and
    `truncated` says whether a principal had more than could be kept.
    """

    def __init__(
        self,
        fives: Iterable[FiveTuple],
        names: Names,
        quorums: dict[Principal, Threshold],
        *,
        exhaustive: bool = False,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self._by_issuer: dict[Principal, list[FiveTuple]] = {}
        for five in fives:
            if five.issuer is not None:
                self._by_issuer.setdefault(five.issuer, []).append(five)
        self._names = names
        self._quorums = quorums
        self._exhaustive = exhaustive
        self._limits = limits
        self.truncated = False

    @classmethod
    def of(
        cls,
        fives: Iterable[FiveTuple],
        fours: Iterable[FourTuple],
        quorums: dict[Principal, Threshold],
        *,
        exhaustive: bool = False,
        limits: Limits = DEFAULT_LIMITS,
    ) -> "Closure":
        """Prepare the closure of a bag."""
        return cls(fives, Names(fours, limits=limits), quorums, exhaustive=exhaustive, limits=limits)

    def follow(self, entries: Sequence[FiveTuple]) -> list[FiveTuple]:
        """Return all grants that follow, the entries included, in the order in which they were found.

        Raises `LimitError` (`chain.limit`) when `exhaustive` finds too many.
        """
        order: list[FiveTuple] = []
        self._run(entries, frozenset(), order)
        return order

    def grants(self, entries: Sequence[FiveTuple], principal: Principal) -> list[FiveTuple]:
        """Return the grants that follow for one principal, those with the fewest credentials first."""
        found = self._run(entries, frozenset()).get(principal, [])
        return sorted(found, key=lambda grant: len(grant.because))

    def _run(
        self, entries: Iterable[FiveTuple], active: frozenset[Threshold], order: list[FiveTuple] | None = None
    ) -> dict[Terminal, list[FiveTuple]]:
        held: dict[Terminal, list[FiveTuple]] = {}
        found = [] if order is None else order
        pending = [grant for entry in entries for grant in self._resolve(entry)]
        for grant in pending:  # grows while it is walked: breadth first, shortest chains first
            if not self._keep(held.setdefault(_terminal(grant), []), grant):
                continue
            found.append(grant)
            if self._exhaustive and len(found) > self._limits.certificates:
                raise LimitError("chain.limit", f"more than {self._limits.certificates} grants follow from this list")
            pending += self._next(grant, active)
        return held

    def _next(self, grant: FiveTuple, active: frozenset[Threshold]) -> Iterator[FiveTuple]:
        subject = _terminal(grant)
        if isinstance(subject, Threshold):
            # A share that comes back to its own quorum can only be narrower than what the quorum had.
            if subject not in active:
                yield from self._shares(grant, subject, active | {subject})
            return
        if not grant.propagate or len(grant.because) >= self._limits.chain_length:
            return
        for five in self._by_issuer.get(subject, ()):
            reduced = reduce_pair(grant, five)
            if reduced is not None:
                yield from self._resolve(reduced)

    def _resolve(self, grant: FiveTuple) -> Iterator[FiveTuple]:
        """Rule 1; and a quorum that is named by its hash is replaced by its members."""
        subject = grant.subject
        if isinstance(subject, Name):
            for found in self._names.resolve(subject):
                validity = grant.validity.intersect(found.validity)
                if validity is not None:
                    yield self._about(found.member, grant, validity, grant.because + found.because)
        elif isinstance(subject, Principal) and subject in self._quorums:
            yield self._about(subject, grant, grant.validity, grant.because)
        else:
            yield grant

    def _about(self, member: Terminal, grant: FiveTuple, validity: Validity, because: tuple[str, ...]) -> FiveTuple:
        subject = self._quorums.get(member, member) if isinstance(member, Principal) else member
        return FiveTuple(grant.issuer, subject, grant.propagate, grant.tag, validity, because)

    def _shares(self, grant: FiveTuple, quorum: Threshold, active: frozenset[Threshold]) -> Iterator[FiveTuple]:
        """Rule 3. Each member's share flows on its own; k shares that meet at one principal count."""
        tables = [
            self._run(
                [FiveTuple(grant.issuer, member, grant.propagate, grant.tag, grant.validity, grant.because)], active
            )
            for member in quorum.subjects
        ]
        for terminal in dict.fromkeys(terminal for table in tables for terminal in table):
            if terminal == quorum:
                continue
            ways = [table[terminal] for table in tables if terminal in table]
            if len(ways) >= quorum.k:
                yield from self._combine(ways, quorum.k)

    def _combine(self, ways: list[list[FiveTuple]], k: int) -> list[FiveTuple]:
        """Return the intersections of one grant each from k of the members' ways."""
        # partial[c]: intersections of c shares among the members seen so far
        partial: list[list[FiveTuple]] = [[] for _ in range(k + 1)]
        for way in ways:
            for c in range(k - 1, 0, -1):
                for left in list(partial[c]):
                    for right in way:
                        if (both := _both(left, right)) is not None:
                            self._keep(partial[c + 1], both)
            for share in way:
                self._keep(partial[1], share)
        return partial[k]

    def _keep(self, held: list[FiveTuple], grant: FiveTuple) -> bool:
        if self._exhaustive:
            if any(_same(other, grant) for other in held):
                return False
            held.append(grant)
            return True
        if any(dominates(other, grant) for other in held):
            return False
        held[:] = [other for other in held if not dominates(grant, other)]
        if len(held) >= self._limits.grants_per_principal:
            self.truncated = True
            return False
        held.append(grant)
        return True


def _terminal(grant: FiveTuple) -> Terminal:
    if isinstance(grant.subject, Name):
        raise TypeError("names are resolved before grants are kept")
    return grant.subject


def _same(one: FiveTuple, other: FiveTuple) -> bool:
    return one.propagate == other.propagate and one.tag == other.tag and one.validity == other.validity


def _both(left: FiveTuple, right: FiveTuple) -> FiveTuple | None:
    tag = intersect(left.tag, right.tag)
    validity = left.validity.intersect(right.validity)
    if tag is None or validity is None:
        return None
    because = left.because + tuple(id_ for id_ in right.because if id_ not in left.because)
    return FiveTuple(left.issuer, left.subject, left.propagate and right.propagate, tag, validity, because)
