"""Find authority in an unordered bag of certificates.

`discover` answers one question: which part of a request may this principal do, if this root is trusted? The request is
a tag. The answer is the reductions of all chains from the root to the principal, narrowed to the request, none of which
covers another. For a request that names one thing the answer is complete. For a request that names many things, a
principal keeps at most `limits.grants_per_principal` different grants, and `truncated` says whether there were more, or
whether following them all would have been too much work.

The order of checks: dates and on-line tests first, then names, then authority. `now` is an argument.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Final, TypeAlias

from penstock.errors import LimitError, PenstockError, RefusedError
from penstock.model.instants import instant_key
from penstock.model.principals import Principal
from penstock.trust.certificates import Authorisation, Certificate, Name, Subject, Threshold
from penstock.trust.credentials import Credentials
from penstock.trust.limits import TRUST_LIMITS, TrustLimits
from penstock.trust.tags import ANY, Tag, TagBudget, covers, intersect
from penstock.trust.validity import ALWAYS, OnlineTest, Periods, State, Validity, both

# ----------------------------------------------------------------------------------------------------------------------
# Tuples, and the reduction of a chain of them (RFC 2693, section 6; paper 5, section 2.6.1).
#
#     (I1, S1, D1, A1, V1) + (I2, S2, D2, A2, V2)  =>  (I1, S2, D2, A1 ∩ A2, V1 ∩ V2)
#     iff A1 ∩ A2 and V1 ∩ V2 are not empty, S1 = I2 and D1 holds
#
# A certificate lower in a chain may therefore be wider than one above it: the result is the intersection.
#
# A chain is in order here. Below, `Closure` reduces all chains of a bag.


@dataclass(frozen=True, slots=True)
class FiveTuple:
    """An authorisation without its signature. `issuer` is None for an entry of the verifier's own list (ACL)."""

    issuer: Principal | None
    subject: Subject
    propagate: bool
    tag: Tag
    validity: Validity
    because: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FourTuple:
    """A name without its signature."""

    issuer: Principal
    name: bytes
    subject: Subject
    validity: Validity
    because: tuple[str, ...] = ()


def reduce_pair(upper: FiveTuple, lower: FiveTuple, room: TagBudget | None = None) -> FiveTuple | None:
    """Apply the reduction rule once. Return None if it does not apply. Raises `LimitError` as `intersect`."""
    if not upper.propagate or upper.subject != lower.issuer:
        return None
    tag = intersect(upper.tag, lower.tag, room=room)
    validity = upper.validity.intersect(lower.validity)
    if tag is None or validity is None:
        return None
    return FiveTuple(upper.issuer, lower.subject, lower.propagate, tag, validity, upper.because + lower.because)


# ----------------------------------------------------------------------------------------------------------------------
# 4-tuple reduction: which principals a name means, in whatever order the name certificates stand (RFC 2693, 6.4).
#
# Names are resolved all together by a fixpoint over `(principal, name) -> members`, which is polynomial in the number
# of name certificates. Rewriting one name chain after the other would not be: two certificates can make a chain grow
# indefinitely, or double at each step. Between the steps of a chain only members are kept, and for each member only the
# ways that are valid longest. A quorum is known by its hash. It has no name space, because no one could sign for it
# alone.


#: joins of two memberships over one bag, after which names that are left unresolved have no more members
STEPS: Final = 500_000


@dataclass(frozen=True, slots=True)
class NameMembership:
    """Why, and while, a name means one member."""

    member: Principal
    validity: Validity
    because: tuple[str, ...]


_Key = tuple[Principal, bytes]
_Ways = dict[Principal, list[NameMembership]]


class NameTable:
    """The members of every name in a bag. Several ways to one member are kept while none is valid longer than another.

    `truncated` says whether `limits` or `steps` were exceeded: ways to one member, certificates in one way, or joins.
    """

    def __init__(self, fours: Iterable[FourTuple], *, limits: TrustLimits = TRUST_LIMITS, steps: int = STEPS) -> None:
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
                self._add((four.issuer, four.name), NameMembership(member, four.validity, four.because))
        askers: dict[_Key, set[int]] = {}
        waiting = set(range(len(linked)))
        order = deque(sorted(waiting))
        while order:
            index = order.popleft()
            waiting.discard(index)
            four, meaning = linked[index]
            key = (four.issuer, four.name)
            stated = NameMembership(four.issuer, four.validity, four.because)
            found, asked = self._resolve(meaning, stated)
            for name in asked:
                askers.setdefault(name, set()).add(index)
            if sum(self._add(key, membership) for membership in found):
                again = sorted(askers.get(key, set()) - waiting)
                waiting.update(again)
                order.extend(again)

    def resolve(self, name: Name) -> Iterator[NameMembership]:
        """Yield the members of a name, possibly chained: the members of `n2` in the members of `n1`, and so on."""
        yield from self._resolve(name, NameMembership(name.principal, ALWAYS, ()))[0]

    def held(self, member: Principal) -> Iterator[tuple[Principal, bytes, NameMembership]]:
        """Yield each name of a member, with the issuer before it and the way to it behind it."""
        for (issuer, name), members in self._members.items():
            for way in members.get(member, ()):
                yield issuer, name, way

    def _resolve(self, name: Name, stated: NameMembership) -> tuple[list[NameMembership], set[_Key]]:
        """Return the members of a name on top of a statement about it, and the names that were asked for."""
        asked: set[_Key] = set()
        current = [NameMembership(name.principal, stated.validity, stated.because)]
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

    def _join(self, ways: _Ways, left: NameMembership, right: NameMembership) -> None:
        """Add the membership that follows from two memberships, one after the other."""
        self._steps -= 1
        if self._steps < 0 or len(left.because) + len(right.because) > self._limits.chain_length:
            self.truncated = True
            return
        validity = left.validity.intersect(right.validity)
        if validity is not None:
            self._keep(ways, NameMembership(right.member, validity, left.because + right.because))

    def _add(self, key: _Key, found: NameMembership) -> bool:
        return self._keep(self._members.setdefault(key, {}), found)

    def _keep(self, known: _Ways, found: NameMembership) -> bool:
        ways = known.setdefault(found.member, [])
        if any(way.validity.covers(found.validity) for way in ways):
            return False
        kept = [way for way in ways if not found.validity.covers(way.validity)]
        if len(kept) >= self._limits.grants_per_principal:
            self.truncated = True
            return False
        ways[:] = [*kept, found]
        return True


# ----------------------------------------------------------------------------------------------------------------------
# What follows from a set of 5-tuples: authority flows from entries through certificates to principals.
#
# The rules, applied until nothing new follows:
#
# 1. a name is replaced by its members (`NameTable`);
# 2. a principal that may propagate passes its authority on through each certificate it issued (`reduce_pair`);
# 3. the authority of a threshold subject reaches every subject to which at least k of its n members pass it, a member
#    itself included: the intersection of k shares (RFC 2693; paper 5, section 2.6.4).
#
# Work is bounded by a polynomial, by `EFFORT`, and by `limits.chain_steps` within tags: a principal keeps at most
# `limits.grants_per_principal` grants of which none covers another, and going round a cycle of delegations only
# narrows, so it adds nothing. For rule 3 each member of a quorum has a flow of its own beside the main one: what it
# would pass on if it alone held the whole request. A flow does not depend on who gave the quorum its authority, so
# there are as many flows as members, however many chains lead to their quorums and however quorums are nested. A quorum
# is known by its hash throughout.


#: reductions and comparisons of grants for one question
EFFORT: Final = 100_000
#: different intersections of c shares that are kept while the members of a quorum are counted, for each c up to k
COMBINATIONS: Final = 16

_Source = tuple[Principal | Name, bool] | None
"""The source of a flow: a quorum's member, with or without the right to pass its share on; None for the entries."""

_Held = dict[Principal, list[FiveTuple]]
_Rule = Callable[[FiveTuple, FiveTuple, TagBudget], FiveTuple | None]


def dominates(one: FiveTuple, other: FiveTuple, room: TagBudget | None = None) -> bool:
    """Return whether a holder of `one` gains nothing from `other`."""
    return (
        (one.propagate or not other.propagate)
        and one.validity.covers(other.validity)
        and (one.tag == other.tag or covers(one.tag, other.tag, room=room))
    )


class Closure:
    """Everything that some entries entail together with a bag of certificates.

    With `exhaustive`, only equal grants are dropped, as RFC 2693 would list them, and more of them than
    `limits.certificates`, or more work than `effort`, raise `LimitError`. Without it, grants that another one covers
    are dropped too, and `truncated` says whether something had to be left out for a limit.
    """

    def __init__(
        self,
        fives: Iterable[FiveTuple],
        fours: Iterable[FourTuple],
        quorums: dict[Principal, Threshold],
        *,
        exhaustive: bool = False,
        limits: TrustLimits = TRUST_LIMITS,
    ) -> None:
        self.quorums = dict(quorums)
        self.by_issuer: dict[Principal, list[FiveTuple]] = {}
        for five in fives:
            if five.issuer is not None:
                self.by_issuer.setdefault(five.issuer, []).append(self._plain(five))
        self.names = NameTable(fours, limits=limits)
        self.exhaustive = exhaustive
        self.limits = limits
        self.effort = EFFORT
        self.truncated = False

    def follow(self, entries: Sequence[FiveTuple]) -> list[FiveTuple]:
        """Return all grants that follow, the entries included, in the order in which they were found.

        With `exhaustive`, these include grants to names and to members of a quorum together that led to others.

        Raises `LimitError` (`chain.limit`) when `exhaustive` finds too many.
        """
        return _Flows(self, [self._plain(entry) for entry in entries]).order

    def grants(self, entries: Sequence[FiveTuple], principal: Principal) -> list[FiveTuple]:
        """Return the grants that follow for one principal, those with the fewest credentials first."""
        found = _Flows(self, [self._plain(entry) for entry in entries]).held[None].get(principal, [])
        return sorted(found, key=lambda grant: len(grant.because))

    def held(self, entries: Sequence[FiveTuple]) -> Mapping[Principal, list[FiveTuple]]:
        """Return the grants that follow for every principal, those with the fewest credentials first."""
        found = _Flows(self, [self._plain(entry) for entry in entries]).held[None]
        return {one: sorted(grants, key=lambda grant: len(grant.because)) for one, grants in found.items()}

    def plain(self, subject: Subject) -> Principal | Name:
        """Return a subject. For a quorum return its hash, and remember the quorum."""
        if not isinstance(subject, Threshold):
            return subject
        principal = subject.principal
        self.quorums.setdefault(principal, subject)
        return principal

    def _plain(self, five: FiveTuple) -> FiveTuple:
        return replace(five, subject=self.plain(five.subject)) if isinstance(five.subject, Threshold) else five


class _Flows:
    """One computation: the flow of the entries, and those of the members of the quorums that it meets."""

    def __init__(self, closure: Closure, entries: Sequence[FiveTuple]) -> None:
        self.order: list[FiveTuple] = []
        self.held: dict[_Source, _Held] = {None: {}}
        #: grants to names, and to members of quorums together, if every grant is listed
        self._named: dict[Name, list[FiveTuple]] = {}
        self._together: dict[Threshold, list[FiveTuple]] = {}
        self._closure = closure
        self._effort = closure.effort
        # All tags of one question together: a hundred monstrous ones cost as much as one.
        self._room = TagBudget(steps=closure.limits.chain_steps)
        # The request that shares are parts of: the entries' common tag.
        tags = {entry.tag for entry in entries}
        self._asked = tags.pop() if len(tags) == 1 else ANY
        self._pending: deque[tuple[_Source, FiveTuple]] = deque()
        #: the quorums that have authority, with or without the right to pass on: the source of the flow, and the grant
        self._holders: dict[tuple[Principal, bool], list[tuple[_Source, FiveTuple]]] = {}
        #: what such a quorum would pass to which subject, if it held the whole request
        self._passed: dict[tuple[Principal, bool], _Held] = {}
        self._members: dict[Principal, list[Principal | Name]] = {}
        #: the quorums in which a member's share is used
        self._seats: dict[_Source, list[Principal]] = {}
        #: quorums, and the subjects to which some of their members newly pass shares
        self._met: dict[tuple[Principal, bool, Principal], None] = {}
        for entry in entries:
            self._push(None, entry)
        # Shortest chains first, and shares are only counted when no flow has anything pending.
        while self._effort >= 0 and (self._pending or self._met):
            if self._pending:
                self._arrive(*self._pending.popleft())
            else:
                quorum, propagate, principal = next(iter(self._met))
                del self._met[quorum, propagate, principal]
                self._count(quorum, propagate, principal)
        if self._effort < 0:
            self._exhausted()
        closure.truncated |= closure.names.truncated

    def _push(self, source: _Source, grant: FiveTuple) -> None:
        """Rule 1."""
        subject = grant.subject
        if not isinstance(subject, Name):
            self._pending.append((source, grant))
            return
        if source is None and self._closure.exhaustive:
            if not self._keep(self._named.setdefault(subject, []), grant):
                return
            self.order.append(grant)
        for found in self._closure.names.resolve(subject):
            validity = grant.validity.intersect(found.validity)
            if validity is not None:
                because = grant.because + found.because
                self._pending.append(
                    (source, FiveTuple(grant.issuer, found.member, grant.propagate, grant.tag, validity, because))
                )

    def _arrive(self, source: _Source, grant: FiveTuple) -> None:
        principal = _principal(grant)
        if not self._keep(self.held[source].setdefault(principal, []), grant):
            return
        if source is None:
            self.order.append(grant)
            if self._closure.exhaustive and len(self.order) > self._closure.limits.certificates:
                self._exhausted()
        else:
            for quorum in self._seats[source]:
                self._met[quorum, source[1], principal] = None
        if principal in self._closure.quorums:
            self._convene(source, grant, principal)
        elif grant.propagate:
            self._pass_on(source, grant, principal)

    def _pass_on(self, source: _Source, grant: FiveTuple, principal: Principal) -> None:
        """Rule 2."""
        issued = self._closure.by_issuer.get(principal, ())
        if issued and len(grant.because) >= self._closure.limits.chain_length:
            self._closure.truncated = True
            return
        self._effort -= len(issued)
        for five in issued:
            reduced = self._meet(reduce_pair, grant, five)
            if reduced is not None:
                self._push(source, reduced)

    def _meet(self, rule: _Rule, left: FiveTuple, right: FiveTuple) -> FiveTuple | None:
        """Return the intersection of two rights, or None. Set `truncated` if it exceeds a bound."""
        try:
            return rule(left, right, self._room)
        except LimitError:
            # One certificate with a huge tag must not disable the others.
            self._closure.truncated = True
            if self._closure.exhaustive:
                raise
            return None

    def _convene(self, source: _Source, grant: FiveTuple, principal: Principal) -> None:
        """Rule 3, when authority reaches a quorum."""
        key = (principal, grant.propagate)
        if key not in self._holders:
            self._holders[key] = []
            self._passed[key] = {}
            if principal not in self._members:
                # A member that is listed twice, by hash and written out, has one share.
                subjects = self._closure.quorums[principal].subjects
                self._members[principal] = list(dict.fromkeys(self._closure.plain(subject) for subject in subjects))
            for member in self._members[principal]:
                self._seat(principal, member, grant.propagate)
        self._holders[key].append((source, grant))
        for known in self._passed[key].values():
            for share in known:
                self._hand_over(source, grant, share)

    def _seat(self, quorum: Principal, member: Principal | Name, propagate: bool) -> None:
        source = (member, propagate)
        self._seats.setdefault(source, []).append(quorum)
        if source in self.held:
            self._met.update(dict.fromkeys((quorum, propagate, principal) for principal in self.held[source]))
        else:
            self.held[source] = {}
            self._push(source, FiveTuple(None, member, propagate, self._asked, ALWAYS))

    def _count(self, quorum: Principal, propagate: bool, principal: Principal) -> None:
        """Apply rule 3 when shares reach a principal: the quorum passes on what at least k members pass on."""
        if principal == quorum:
            return  # what returns to the quorum is narrower than what it had
        key = (quorum, propagate)
        k = self._closure.quorums[quorum].k
        ways = [way for member in self._members[quorum] if (way := self.held[member, propagate].get(principal))]
        if len(ways) < k:
            return
        known = self._passed[key].setdefault(principal, [])
        for share in self._combine(ways, k):
            if self._keep(known, share):
                for source, grant in self._holders[key]:
                    self._hand_over(source, grant, share)

    def _combine(self, ways: list[list[FiveTuple]], k: int) -> list[FiveTuple]:
        """Return the intersections of k members' grants, one grant from each."""
        # partial[c]: intersections of c shares among the members seen so far
        partial: list[list[FiveTuple]] = [[] for _ in range(k + 1)]
        for way in ways:
            for c in range(k - 1, 0, -1):
                for left in list(partial[c]):
                    for right in way:
                        if self._effort < 0:
                            return []
                        if (both := self._both(left, right)) is not None:
                            self._keep(partial[c + 1], both, COMBINATIONS)
            for share in way:
                self._keep(partial[1], share, COMBINATIONS)
        return partial[k]

    def _hand_over(self, source: _Source, grant: FiveTuple, share: FiveTuple) -> None:
        if (both := self._both(grant, share)) is not None:
            if source is None and self._closure.exhaustive:
                self._list_members(grant, share)
            self._pending.append((source, replace(both, subject=share.subject)))

    def _list_members(self, grant: FiveTuple, share: FiveTuple) -> None:
        """List the joint grants of the first k members that pass a share on, if the quorum has other members too."""
        quorum, passed_to = _principal(grant), _principal(share)
        k, members = self._closure.quorums[quorum].k, self._members[quorum]
        ways = ((member, self.held[member, grant.propagate].get(passed_to, [])) for member in members)
        led = [member for member, way in ways if any(dominates(each, share, self._room) for each in way)][:k]
        self._effort -= len(members)
        # A single member has the quorum's grant, and is listed for that.
        if not 1 < k == len(led) < len(members):
            return
        together = Threshold(k, tuple(led))
        known = self._together.setdefault(together, [*self.held[None].get(together.principal, ())])
        if self._keep(known, grant):
            self.order.append(replace(grant, subject=together))

    def _both(self, left: FiveTuple, right: FiveTuple) -> FiveTuple | None:
        self._effort -= 1
        return self._meet(_shared, left, right)

    def _keep(self, held: list[FiveTuple], grant: FiveTuple, room: int | None = None) -> bool:
        self._effort -= 1 + len(held)
        if self._closure.exhaustive:
            if any(_same(other, grant) for other in held):
                return False
            held.append(grant)
            return True
        if any(dominates(other, grant, self._room) for other in held):
            return False
        held[:] = [other for other in held if not dominates(grant, other, self._room)]
        if len(held) >= (self._closure.limits.grants_per_principal if room is None else room):
            self._closure.truncated = True
            return False
        held.append(grant)
        return True

    def _exhausted(self) -> None:
        self._closure.truncated = True
        if self._closure.exhaustive:
            raise LimitError("chain.limit", "more grants follow from this list than can be listed")


def _principal(grant: FiveTuple) -> Principal:
    if not isinstance(grant.subject, Principal):
        raise TypeError("names and quorums are resolved before grants are kept")
    return grant.subject


def _same(one: FiveTuple, other: FiveTuple) -> bool:
    return one.propagate == other.propagate and one.tag == other.tag and one.validity == other.validity


def _shared(left: FiveTuple, right: FiveTuple, room: TagBudget) -> FiveTuple | None:
    tag = intersect(left.tag, right.tag, room=room)
    validity = left.validity.intersect(right.validity)
    if tag is None or validity is None:
        return None
    because = tuple(dict.fromkeys(left.because + right.because))
    return FiveTuple(left.issuer, left.subject, left.propagate and right.propagate, tag, validity, because)


# ----------------------------------------------------------------------------------------------------------------------
# Find authority in a bag of certificates.


OnlineChecker: TypeAlias = Callable[[OnlineTest, str, datetime], Validity]
"""Answers an on-line test for a certificate id: for how long it holds. Raises `RefusedError` when it does not."""

OnlineHistory: TypeAlias = Callable[[OnlineTest, str], Periods]
"""Answers an on-line test for a certificate id about all times: when it held."""

NO_ENDS: Final[Mapping[str, Validity]] = MappingProxyType({})
"""No certificate was revoked before its time."""


def no_online_checker(test: OnlineTest, certificate: str, _now: datetime) -> Validity:
    """Refuse every on-line test: without someone to ask, a certificate that must be asked about is not valid."""
    raise RefusedError(
        "cert.online-test",
        f"there is no checker for the on-line test `{test.kind}`",
        hint="give the verifier a checker for on-line tests",
        certificate=certificate,
    )


@dataclass(frozen=True, slots=True)
class UnusableCertificate:
    """A certificate that was ignored, and why: a code (`cert.expired`, …) and a message for people."""

    certificate: Certificate
    code: str
    why: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """The certificates of a bag that are usable at one moment, as tuples, and those that are not."""

    fives: tuple[FiveTuple, ...]
    fours: tuple[FourTuple, ...]
    quorums: dict[Principal, Threshold]
    unusable: tuple[UnusableCertificate, ...]


@dataclass(frozen=True, slots=True)
class Findings:
    """The result of `discover`: grants for the principal, best first. No grant means no authority."""

    grants: tuple[FiveTuple, ...]
    evidence: Evidence
    truncated: bool = False


def sift(
    credentials: Credentials,
    now: datetime | None,
    online: OnlineChecker = no_online_checker,
    ends: Mapping[str, Validity] = NO_ENDS,
    history: OnlineHistory | None = None,
) -> Evidence:
    """Sort verified certificates into those usable now and those that are not. Never raises for a certificate.

    `ends` has the last validity of revoked certificates, by id.

    Without `now` all dates are kept, so that the conclusions have dates themselves. History is decided this way.
    `history` says when on-line tests held. Without it, a certificate with one is then not usable.
    """
    moment = None if now is None else instant_key(now)
    fives: list[FiveTuple] = []
    fours: list[FourTuple] = []
    unusable: list[UnusableCertificate] = []
    for certificate in credentials:
        statement = certificate.statement
        validity = statement.validity
        state = State.VALID if moment is None else validity.state(moment)
        if state is not State.VALID:
            when = validity.not_before if state is State.NOT_YET else validity.not_after
            word = "valid only from" if state is State.NOT_YET else "expired on"
            unusable.append(UnusableCertificate(certificate, f"cert.{state}", f"{word} {(when or b'').decode()}"))
            continue
        if (end := ends.get(certificate.id)) is not None:
            left = validity.intersect(end)
            if left is None or (moment is not None and left.state(moment) is not State.VALID):
                words = f"was valid until {(end.not_after or b'').decode()}, and was revoked"
                unusable.append(UnusableCertificate(certificate, "cert.revoked", words))
                continue
            validity = left
        periods: Periods = (validity,)
        if validity.online:
            try:
                if now is not None:
                    periods = (_ask(validity, certificate.id, now, online),)
                else:
                    periods = _ask_always(validity, certificate.id, history)
            except PenstockError as error:
                unusable.append(UnusableCertificate(certificate, error.code, error.message))
                continue
        because = (certificate.id,)
        for period in periods:
            if isinstance(statement, Authorisation):
                fives.append(
                    FiveTuple(statement.issuer, statement.subject, statement.propagate, statement.tag, period, because)
                )
            else:
                fours.append(FourTuple(statement.issuer, statement.name, statement.subject, period, because))
    return Evidence(tuple(fives), tuple(fours), credentials.thresholds(), tuple(unusable))


def valid_period(certificate: Certificate, now: datetime, online: OnlineChecker) -> Validity:
    """Return the dates of a certificate, narrowed by its on-line tests if they hold now."""
    validity = certificate.statement.validity
    if not validity.online:
        return validity
    try:
        return _ask(validity, certificate.id, now, online)
    except PenstockError:
        return validity


def _ask(validity: Validity, certificate: str, now: datetime, online: OnlineChecker) -> Validity:
    """Run the on-line tests, and return a period without tests."""
    period = Validity(validity.not_before, validity.not_after)
    for test in validity.online:
        narrowed = period.intersect(online(test, certificate, now))
        if narrowed is None or not narrowed.contains(now):
            raise RefusedError("cert.online-test", f"the on-line test `{test.kind}` does not hold now")
        period = Validity(narrowed.not_before, narrowed.not_after)
    return period


def _ask_always(validity: Validity, certificate: str, history: OnlineHistory | None) -> Periods:
    """Run the on-line tests about all times, and return periods without tests."""
    if history is None:
        raise RefusedError("cert.online-test", "an on-line test cannot be asked about all times")
    found: Periods = (Validity(validity.not_before, validity.not_after),)
    for test in validity.online:
        found = both(found, history(test, certificate))
    if not found:
        raise RefusedError("cert.online-test", "the on-line tests never held")
    return found


def discover(  # noqa: PLR0913  # each argument is one of the facts that a decision rests on
    credentials: Credentials,
    root: Principal,
    principal: Principal,
    request: Tag,
    now: datetime,
    *,
    online: OnlineChecker = no_online_checker,
    limits: TrustLimits = TRUST_LIMITS,
) -> Findings:
    """Find which part of `request` the principal may do, if `root` is trusted.

    Raises `MalformedError` (`value.zone`) if `now` has no time zone. A faulty certificate never raises: if its right
    cannot be intersected within bounds it grants nothing, and `truncated` is set.
    """
    evidence = sift(credentials, now, online)
    return follow(evidence, root, principal, request, limits=limits)


def follow(
    evidence: Evidence, root: Principal, principal: Principal, request: Tag, *, limits: TrustLimits = TRUST_LIMITS
) -> Findings:
    """Find authority among sifted certificates; see `discover`."""
    closure = Closure(evidence.fives, evidence.fours, evidence.quorums, limits=limits)
    grants = closure.grants([FiveTuple(None, root, True, request, ALWAYS)], principal)
    return Findings(tuple(grants), evidence, closure.truncated)


def follow_all(
    evidence: Evidence, root: Principal, request: Tag, *, limits: TrustLimits = TRUST_LIMITS
) -> Mapping[Principal, Findings]:
    """Find the authority of every principal among sifted certificates: what `follow` finds for each, in one pass."""
    closure = Closure(evidence.fives, evidence.fours, evidence.quorums, limits=limits)
    held = closure.held([FiveTuple(None, root, True, request, ALWAYS)])
    return {one: Findings(tuple(grants), evidence, closure.truncated) for one, grants in held.items()}
