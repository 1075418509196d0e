"""Who is in the network, how they are linked, and where the events of a type meet.

Each broker announces its own links under rising numbers, and everybody passes on what is new. A link counts when both
ends announce it, so that a broker that has crashed is gone as soon as its neighbours say so, whatever it said last. The
brokers that are live for me are those I can reach; an announcement of somebody whom nobody reaches is kept for a while,
because a partition may heal, and then forgotten.

From the same announcements all brokers compute the same rendezvous node of a type, by the highest hash of the type and
the broker, and the same tree of shortest paths to it. A type's name goes into the hash without its version, so that all
versions meet (paper 5, section 4.4). When a broker comes or goes, only those types move whose highest hash it has.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from typing import Final, Protocol, TypeAlias

from penstock.broker.messages import Announcement
from penstock.crypto.keys import digest
from penstock.errors import LimitError, MalformedError, RefusedError
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.values import INTEGER_MAX

MayRoute: TypeAlias = Callable[[TypeKey, Principal], bool]
"""Whether a broker may stand on a path of a type. All brokers of that type's overlay must answer alike."""


def everybody(_type: TypeKey, _broker: Principal) -> bool:
    """Let each broker route each type."""
    return True


class Proof(Protocol):
    """How announcements are believed. The words are a digest that covers all of an announcement but its proof."""

    def sign(self, words: bytes) -> bytes:
        """Return this broker's proof of its own words."""
        ...

    def verify(self, broker: Principal, words: bytes, proof: bytes) -> None:
        """Check another broker's proof. Raises `RefusedError`."""
        ...


class TrustingProof:
    """No proof at all: for networks in which every broker believes every other."""

    def sign(self, words: bytes) -> bytes:  # noqa: ARG002  # part of the port
        """Return an empty proof."""
        return b""

    def verify(self, broker: Principal, words: bytes, proof: bytes) -> None:
        """Accept."""


TRUSTING: Final = TrustingProof()


def announced_words(announcement: Announcement) -> bytes:
    """Return the digest that an announcement's proof is about."""
    links = tuple(link.digest for link in announcement.links)
    order = (str(announcement.incarnation).encode(), str(announcement.number).encode())
    return digest((b"penstock-announcement", announcement.broker.digest, *order, (b"links", *links)))


@lru_cache(maxsize=DEFAULT_LIMITS.cache_entries)
def type_digest(key: TypeKey) -> bytes:
    """Return h(owner ‖ name), the identity of a type in all its versions."""
    return digest((b"type", key.owner.digest, key.name.encode()))


def weight(key: TypeKey, broker: Principal) -> bytes:
    """Return the weight of a broker for a type: the highest one makes the rendezvous node."""
    return sha256(type_digest(key) + broker.digest).digest()


def rendezvous(key: TypeKey, brokers: Iterator[Principal]) -> Principal | None:
    """Return the broker with the highest weight, or None of none."""
    return max(brokers, key=lambda broker: weight(key, broker), default=None)


@dataclass(slots=True)
class _Known:
    announcement: Announcement
    #: when it was last heard or reached
    last: float


@dataclass(frozen=True, slots=True)
class View:
    """The live part of the network, as one broker sees it: live brokers and their links in both directions."""

    me: Principal
    links: Mapping[Principal, frozenset[Principal]]
    _distances: dict[Principal, dict[Principal, int]] = field(default_factory=dict, repr=False, compare=False)

    def root(self, key: TypeKey, may_route: MayRoute = everybody) -> Principal | None:
        """Return the rendezvous node of a type among the live brokers that may route it; None if I may not."""
        if not may_route(key, self.me):
            return None
        return rendezvous(key, iter(self._live(key, may_route)))

    def parent(self, key: TypeKey, may_route: MayRoute = everybody) -> Principal | None:
        """Return my next hop to the rendezvous node; None where I am it, or may not route the type."""
        root = self.root(key, may_route)
        if root is None or root == self.me:
            return None
        distances = self._distances_from(root, key, may_route)
        nearest = distances[self.me] - 1
        candidates = (link for link in self.links[self.me] if distances.get(link) == nearest)
        # Of equally short paths each type takes its own, which spreads the load.
        return rendezvous(key, candidates)

    def _live(self, key: TypeKey, may_route: MayRoute) -> Iterator[Principal]:
        if may_route is everybody:
            return iter(self.links)
        return iter(self._distances_from(self.me, key, may_route))

    def _distances_from(self, start: Principal, key: TypeKey, may_route: MayRoute) -> dict[Principal, int]:
        if may_route is not everybody:
            return _distances(start, self.links, lambda broker: may_route(key, broker))
        if start not in self._distances:
            self._distances[start] = _distances(start, self.links, lambda _broker: True)
        return self._distances[start]


def _distances(
    start: Principal, links: Mapping[Principal, frozenset[Principal]], allowed: Callable[[Principal], bool]
) -> dict[Principal, int]:
    found = {start: 0}
    pending = deque([start])
    while pending:
        broker = pending.popleft()
        for link in links.get(broker, ()):
            if link not in found and allowed(link):
                found[link] = found[broker] + 1
                pending.append(link)
    return found


class Membership:
    """The announcements that one broker knows, its own among them.

    `incarnation` has to be greater than that of the broker's earlier lives; if it is not, the broker finds out when an
    announcement of an earlier life comes back to it, and goes beyond that.
    """

    def __init__(
        self, me: Principal, incarnation: int, *, proof: Proof = TRUSTING, limits: Limits = DEFAULT_LIMITS
    ) -> None:
        self._proof = proof
        self._limits = limits
        self._links: set[Principal] = set()
        self._left = False
        self._known: dict[Principal, _Known] = {}
        self._view: View | None = None
        self.me = me
        self.own = self._signed(Announcement(me, incarnation, 0))

    @property
    def incarnation(self) -> int:
        """The incarnation of this broker."""
        return self.own.incarnation

    def announcements(self) -> list[Announcement]:
        """Return everything that a new neighbour has to know."""
        return [self.own, *(known.announcement for known in self._known.values())]

    def link_up(self, peer: Principal) -> Announcement | None:
        """Take a link into my announcement; return it if it is new. Who has left takes part no more.

        Raises `LimitError` (`network.limit`) when there are too many links.
        """
        if peer in self._links or self._left:
            return None
        if peer == self.me:
            raise MalformedError("network.self", "a broker has no link to itself")
        if len(self._links) >= self._limits.network_links:
            raise LimitError("network.limit", f"a broker has more than {self._limits.network_links} links")
        self._links.add(peer)
        return self._announce()

    def link_down(self, peer: Principal) -> Announcement | None:
        """Take a link out of my announcement; return it if it is new."""
        if peer not in self._links:
            return None
        self._links.discard(peer)
        return self._announce()

    def leave(self) -> Announcement:
        """Announce that I have no links, from now on, and return the announcement."""
        self._left = True
        self._links.clear()
        return self._announce()

    def hear(self, announcement: Announcement, now: float) -> Announcement | None:
        """Take in an announcement; return what has to be passed on, if anything.

        Raises `RefusedError` where the proof is wrong, and `LimitError` (`network.limit`) when there are too many
        brokers.
        """
        if announcement.broker == self.me:
            return self._outlive(announcement)
        known = self._known.get(announcement.broker)
        if known is not None and announcement.order <= known.announcement.order:
            return None
        if known is None and len(self._known) >= self._limits.network_brokers:
            raise LimitError("network.limit", f"a network has more than {self._limits.network_brokers} brokers")
        self._proof.verify(announcement.broker, announced_words(announcement), announcement.proof)
        self._known[announcement.broker] = _Known(announcement, now)
        self._view = None
        return announcement

    def forget(self, now: float, lifetime: float) -> None:
        """Forget brokers that nobody has reached for `lifetime`."""
        live = self.view.links
        for broker, known in list(self._known.items()):
            if broker in live:
                known.last = now
            elif now - known.last > lifetime:
                del self._known[broker]
                self._view = None

    @property
    def view(self) -> View:
        """The live part of the network."""
        if self._view is None:
            claimed = {broker: frozenset(known.announcement.links) for broker, known in self._known.items()}
            claimed[self.me] = frozenset(self._links)
            mutual = {
                broker: frozenset(link for link in links if broker in claimed.get(link, ()))
                for broker, links in claimed.items()
            }
            live = _distances(self.me, mutual, lambda _broker: True)
            self._view = View(self.me, {broker: mutual[broker] for broker in sorted(live)})
        return self._view

    def _outlive(self, announcement: Announcement) -> Announcement | None:
        if announcement.order <= self.own.order or announcement.incarnation >= INTEGER_MAX:
            return None
        try:
            self._proof.verify(self.me, announced_words(announcement), announcement.proof)
        except RefusedError:
            # Somebody else's words: nobody believes them, so there is nothing to go beyond.
            return None
        self.own = replace(self.own, incarnation=announcement.incarnation + 1)
        return self._announce()

    def _announce(self) -> Announcement:
        self._view = None
        links = tuple(sorted(self._links))
        self.own = self._signed(replace(self.own, number=self.own.number + 1, links=links, proof=b""))
        return self.own

    def _signed(self, announcement: Announcement) -> Announcement:
        return replace(announcement, proof=self._proof.sign(announced_words(announcement)))
