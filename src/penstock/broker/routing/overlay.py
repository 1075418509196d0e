"""Which brokers may carry which types (Belokosztolszki et al., sections 5 and 6.3).

An owner grants `route` on its types to brokers that it trusts, or to domains that delegate it to theirs: the paper's
certificate chains, as capabilities. Routing treats brokers without this right as if they had failed, so each type has
an overlay of its own. The right follows from the same reduction as all decisions. It must be unconditional and cover
all versions of a type. A right that depends on attributes, events or the environment does not count, because these are
not evaluated at each hop.

The right `stamp`, to sign time-stamps for an owner, is decided in the same way. A stamp is about the owner's whole
policy, so the right counts only if it covers all of the owner's types.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from penstock.broker.limits import BrokerLimits
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.trust.caches import Recent
from penstock.trust.capabilities import EVENT_TYPE, Right
from penstock.trust.credentials import Credentials
from penstock.trust.discovery import Closure, FiveTuple, OnlineChecker, no_online_checker, sift
from penstock.trust.policy_state import Revocations
from penstock.trust.tags import ANY, Set, Tag
from penstock.trust.validity import ALWAYS, earliest, turning_point

#: the elements of a tag about event types: head, owner, name, version and right
_PLACES: Final = 5
_NAME: Final = 2
_VERSION: Final = 3
_NOTHING: Final = Credentials()


@dataclass(frozen=True, slots=True)
class UnsafeOpen:
    """Types that every broker of the network may carry: those of some owners, or all.

    For a network whose brokers all belong to one organisation. Every broker that joins can then read the events.
    """

    owners: frozenset[Principal] = frozenset()
    everyone: bool = False

    def covers(self, owner: Principal) -> bool:
        """Return whether every broker may carry an owner's types."""
        return self.everyone or owner in self.owners


CLOSED = UnsafeOpen()
"""The default: a broker needs the right `route`."""


class Overlay:
    """Decides which brokers may carry a type. Answers are remembered until credentials or dates change them.

    A type that its owner grants to nobody is carried by the owner alone.
    """

    def __init__(
        self,
        *,
        unsafe_open: UnsafeOpen = CLOSED,
        online: OnlineChecker = no_online_checker,
        limits: BrokerLimits,
    ) -> None:
        self._open = unsafe_open
        self._online = online
        self._limits = limits
        self._policy = Credentials()
        self._revocations = Revocations()
        self._disclosed: dict[Principal, Credentials] = {}
        #: rises whenever answers are forgotten
        self.version = 0
        self._turn: datetime | None = None
        self._bag: Credentials | None = None
        self._closures: dict[Principal, Closure] = {}
        #: the brokers that may carry a type, or one of an owner's types at least; and those that may stamp for it
        self._answers: Recent[tuple[Right, TypeKey | str], frozenset[Principal]] = Recent(limits.cache_entries)

    # Credentials.

    def change(self, policy: Credentials, revocations: Revocations) -> None:
        """Use other credentials and revocations of owners."""
        self._policy, self._revocations = policy, revocations
        self._forget()

    def disclose(self, broker: Principal, credentials: Credentials) -> None:
        """Replace a broker's own credentials."""
        if self._disclosed.get(broker) != credentials:
            self._disclosed[broker] = credentials
            self._forget()

    def leave(self, broker: Principal) -> None:
        """Forget a broker's own credentials."""
        if self._disclosed.pop(broker, None) is not None:
            self._forget()

    def recheck(self) -> None:
        """Forget all answers: the clock was corrected, so dates that had passed are in the future again."""
        self._forget()

    # Answers.

    def may_route(self, now: datetime, of_type: TypeKey, broker: Principal) -> bool:
        """Return whether a broker may carry the events of a type."""
        owner = of_type.owner
        return broker == owner or self._open.covers(owner) or broker in self._trusted(now, of_type)

    def trusted(self, now: datetime, of_type: TypeKey, brokers: Iterable[Principal]) -> frozenset[Principal]:
        """Return the brokers among these that may carry the events of a type: its overlay."""
        return frozenset(broker for broker in brokers if self.may_route(now, of_type, broker))

    def trusts(self, now: datetime, owner: Principal, broker: Principal, shown: Credentials = _NOTHING) -> bool:
        """Return whether a broker may carry at least one of an owner's types, so that stamps may come from it.

        The current credentials of all brokers count, and those that this broker has `shown` before, if it is away.
        """
        if broker == owner or self._open.covers(owner) or broker in self._trusted(now, owner):
            return True
        if not len(shown):
            return False
        before = self._closure_of(_together(self._policy, shown), now, owner)
        return any(broker == grant.subject for grant in _granted(before, owner, ANY))

    def stampers(self, now: datetime, owner: Principal) -> frozenset[Principal]:
        """Return the principals besides an owner that may sign time-stamps for it."""
        return self._trusted(now, owner, Right.STAMP) - {owner}

    def turns(self) -> datetime | None:
        """Return when a remembered answer may change by its dates."""
        return self._turn

    def _trusted(self, now: datetime, about: TypeKey | Principal, right: Right = Right.ROUTE) -> frozenset[Principal]:
        if self._turn is not None and now >= self._turn:
            self._forget()
        # The owner as text, because requests compare it as text: one digest has several spellings.
        key = right, about if isinstance(about, TypeKey) else str(about)
        known = self._answers.get(key)
        if known is None:
            known = self._ask(now, about, right)
            self._answers.put(key, known)
        return known

    def _ask(self, now: datetime, about: TypeKey | Principal, right: Right) -> frozenset[Principal]:
        """Return all brokers with the right, in one pass over everything that the owner's authority reaches."""
        owner, name = (about.owner, about.name.encode()) if isinstance(about, TypeKey) else (about, ANY)
        whole = _granted(self._closure(now, owner), owner, name, right)
        self._turn = earliest(self._turn, turning_point((grant.validity for grant in whole), now))
        return frozenset(grant.subject for grant in whole if isinstance(grant.subject, Principal))

    def _closure(self, now: datetime, owner: Principal) -> Closure:
        """Return the closure of the credentials that are valid for an owner now."""
        if self._bag is None:
            self._bag = _together(self._policy, *self._disclosed.values())
            dates = turning_point((certificate.statement.validity for certificate in self._bag), now)
            self._turn = earliest(self._turn, dates)
        if owner not in self._closures:
            self._closures[owner] = self._closure_of(self._bag, now, owner)
        return self._closures[owner]

    def _closure_of(self, bag: Credentials, now: datetime, owner: Principal) -> Closure:
        found = sift(self._revocations.strike(bag, owner), now, self._online)
        return Closure(found.fives, found.fours, found.quorums)

    def _forget(self) -> None:
        self.version += 1
        self._turn = self._bag = None
        self._closures = {}
        self._answers = Recent(self._limits.cache_entries)


def route_request(owner: Principal, name: Tag = ANY, right: Right = Right.ROUTE) -> Tag:
    """Return the tag that requests `route` on one or any of an owner's types, or `stamp` for the owner."""
    return (EVENT_TYPE, str(owner).encode(), name, ANY, right.encode())


def _granted(closure: Closure, owner: Principal, name: Tag, right: Right = Right.ROUTE) -> list[FiveTuple]:
    """Return the unconditional grants of a right on an owner's types of a name."""
    request = route_request(owner, name, right)
    grants = closure.follow([FiveTuple(None, owner, True, request, ALWAYS)])
    enough = _of_all_types if right is Right.STAMP else _unconditional
    return [grant for grant in grants if any(map(enough, _members(grant.tag)))]


def _members(tag: Tag) -> Iterable[Tag]:
    return tag.members() if isinstance(tag, Set) else (tag,)


def _unconditional(tag: Tag) -> bool:
    """Return whether a reduced right covers all versions and is unconditional."""
    return isinstance(tag, tuple) and len(tag) == _PLACES and tag[_VERSION] is ANY


def _of_all_types(tag: Tag) -> bool:
    """Return whether a reduced right is unconditional and covers all types of an owner."""
    return isinstance(tag, tuple) and _unconditional(tag) and tag[_NAME] is ANY


def _together(*bags: Credentials) -> Credentials:
    certificates = {certificate.id: certificate for bag in bags for certificate in bag}
    quorums = dict.fromkeys(quorum for bag in bags for quorum in bag.quorums)
    return Credentials(tuple(certificates.values()), tuple(quorums))
