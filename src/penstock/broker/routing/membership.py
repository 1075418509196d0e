"""Who is in the network, how they are linked, and where the events of a type meet.

Each broker announces its own links under rising numbers, and all brokers forward new announcements. A link counts if
both ends announce it, so a crashed broker is gone as soon as its neighbours announce that. The live brokers are those
that this one can reach. The announcement of an unreachable broker is kept for a while, because a partition may heal.

From the same announcements all brokers compute the same rendezvous node of a type, by the highest hash of type and
broker, and the same tree of shortest paths to it. The hash covers the type's name without its version, so that all
versions meet (paper 5, section 4.4). When a broker comes or goes, only the types with its hash as the highest move.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from typing import Final, Protocol, TypeAlias

from penstock.broker.limits import BrokerLimits
from penstock.broker.routing.messages import Announcement, Disclosure
from penstock.codec.sexp import canonical
from penstock.crypto.keys import KEY_BYTES, SIGNATURE_BYTES, PublicKey, SigningKey, digest
from penstock.errors import LimitError, MalformedError, RefusedError
from penstock.model.limits import CACHE_ENTRIES
from penstock.model.names import NetworkName, TypeKey
from penstock.model.principals import Principal
from penstock.model.values import INTEGER_MAX

# ----------------------------------------------------------------------------------------------------------------------
# Proofs that forwarded announcements and disclosures are those of the broker that they name.


LABEL: Final = b"penstock-words-1"


class AnnouncementProof(Protocol):
    """Signs and verifies announcements and disclosures. `words` is a digest of everything but the proof."""

    def sign(self, words: bytes) -> bytes:
        """Return this broker's proof."""
        ...

    def verify(self, broker: Principal, words: bytes, proof: bytes) -> None:
        """Raise `RefusedError` if another broker's proof is wrong."""
        ...


class TrustingProof:
    """No proof at all, for networks in which all brokers trust each other."""

    def sign(self, words: bytes) -> bytes:  # noqa: ARG002  # part of the port
        """Return an empty proof."""
        return b""

    def verify(self, broker: Principal, words: bytes, proof: bytes) -> None:
        """Accept."""


TRUSTING: Final = TrustingProof()


class SignedProof:
    """A broker's public key, and its signature over a label, the network and the digest.

    The same digest arrives over several paths, so verified ones are remembered, up to `BrokerLimits.cache_entries`.
    """

    def __init__(self, key: SigningKey, network: NetworkName, limits: BrokerLimits) -> None:
        self._key, self._network, self._limits = key, network, limits
        self._right: OrderedDict[bytes, None] = OrderedDict()

    def sign(self, words: bytes) -> bytes:
        """Return the public key and the signature."""
        return self._key.public.raw + self._key.sign(self._message(words))

    def verify(self, broker: Principal, words: bytes, proof: bytes) -> None:
        """Raise `RefusedError` (`network.proof`) unless the key is the broker's and its signature is valid."""
        name = sha256(broker.digest + sha256(words).digest() + proof).digest()
        if name in self._right:
            self._right.move_to_end(name)
            return
        self._check(broker, words, proof)
        self._right[name] = None
        if len(self._right) > self._limits.cache_entries:
            self._right.popitem(last=False)

    def _check(self, broker: Principal, words: bytes, proof: bytes) -> None:
        problem = RefusedError("network.proof", f"a forged announcement of {broker.short}", hint="cut the link")
        if len(proof) != KEY_BYTES + SIGNATURE_BYTES:
            raise problem
        key = PublicKey(proof[:KEY_BYTES])
        if key.principal != broker:
            raise problem
        try:
            key.verify(self._message(words), proof[KEY_BYTES:])
        except RefusedError:
            raise problem from None

    def _message(self, words: bytes) -> bytes:
        return canonical((LABEL, (self._network.owner.digest, self._network.name.encode()), words))


# ----------------------------------------------------------------------------------------------------------------------
# The network.


MayRoute: TypeAlias = Callable[[TypeKey, Principal], bool]
"""Returns whether a broker may be on a path of a type. All brokers of the type's overlay must agree."""


def everybody(_type: TypeKey, _broker: Principal) -> bool:
    """Let every broker route every type."""
    return True


Admitted: TypeAlias = Callable[[Principal], bool]
"""Returns whether a broker may be part of the network."""


def anybody(_broker: Principal) -> bool:
    """Admit every broker."""
    return True


def announced_words(announcement: Announcement) -> bytes:
    """Return the digest that an announcement's proof signs."""
    links = tuple(link.digest for link in announcement.links)
    order = (str(announcement.incarnation).encode(), str(announcement.number).encode())
    return digest((b"penstock-announcement", announcement.broker.digest, *order, (b"links", *links)))


def disclosed_words(disclosure: Disclosure) -> bytes:
    """Return the digest that a disclosure's proof signs."""
    order = (str(disclosure.incarnation).encode(), str(disclosure.number).encode())
    return digest((b"penstock-disclosure", disclosure.broker.digest, *order, sha256(disclosure.data).digest()))


@lru_cache(maxsize=CACHE_ENTRIES)
def type_digest(key: TypeKey) -> bytes:
    """Return h(owner ‖ name), which identifies a type in all its versions."""
    return digest((b"type", key.owner.digest, key.name.encode()))


def weight(key: TypeKey, broker: Principal) -> bytes:
    """Return the weight of a broker for a type: the broker with the highest is the rendezvous node."""
    return sha256(type_digest(key) + broker.digest).digest()


def rendezvous(key: TypeKey, brokers: Iterator[Principal]) -> Principal | None:
    """Return the broker with the highest weight; None if there are no brokers."""
    return max(brokers, key=lambda broker: weight(key, broker), default=None)


@dataclass(slots=True)
class _Known:
    announcement: Announcement
    #: when it was last heard of or reachable
    last: float
    disclosure: Disclosure | None = None
    #: a later one that was not read yet
    unread: Disclosure | None = None

    @property
    def disclosed(self) -> bytes:
        return self.disclosure.data if self.disclosure is not None else b""


@dataclass(frozen=True, slots=True)
class NetworkView:
    """The live part of the network, as one broker sees it: brokers, and links that both ends announce."""

    me: Principal
    links: Mapping[Principal, frozenset[Principal]]
    _distances: dict[Principal, dict[Principal, int]] = field(default_factory=dict, repr=False, compare=False)

    def root(self, key: TypeKey, may_route: MayRoute = everybody) -> Principal | None:
        """Return a type's rendezvous node among the live brokers that may route it; None if this one may not."""
        if not may_route(key, self.me):
            return None
        return rendezvous(key, iter(self._live(key, may_route)))

    def parent(self, key: TypeKey, may_route: MayRoute = everybody) -> Principal | None:
        """Return this broker's next hop to the rendezvous node; None if it is the node, or may not route the type."""
        root = self.root(key, may_route)
        if root is None or root == self.me:
            return None
        distances = self._distances_from(root, key, may_route)
        nearest = distances[self.me] - 1
        candidates = (link for link in self.links[self.me] if distances.get(link) == nearest)
        # Among equally short paths each type has its own, which spreads the load.
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
    """The announcements and disclosures of all known brokers, including this one.

    `incarnation` must be greater than in earlier runs of the broker. If it is not, the broker finds out when an
    announcement of an earlier run comes back, and exceeds that.

    Announcements of brokers that are not admitted do not count and are not forwarded. They are kept apart, so that
    these brokers can be admitted for what they disclose (`review`).
    """

    def __init__(
        self,
        me: Principal,
        incarnation: int,
        *,
        proof: AnnouncementProof = TRUSTING,
        admitted: Admitted = anybody,
        limits: BrokerLimits,
    ) -> None:
        self._proof = proof
        self._admitted = admitted
        self._limits = limits
        self._links: set[Principal] = set()
        self._left = False
        self._known: dict[Principal, _Known] = {}
        self._waiting: dict[Principal, _Known] = {}
        #: the neighbours that first announced the brokers that wait
        self._brought: dict[Principal, Principal | None] = {}
        self._forgotten: list[Principal] = []
        self._view: NetworkView | None = None
        self.me = me
        self.own = self._signed(Announcement(me, incarnation, 0))
        self._own_disclosure: Disclosure | None = None

    @property
    def incarnation(self) -> int:
        """The incarnation of this broker."""
        return self.own.incarnation

    def announcements(self) -> list[Announcement | Disclosure]:
        """Return everything that a new neighbour must know: all announcements, and then all disclosures."""
        others = self._known.values()
        disclosures = [self._own_disclosure, *(known.disclosure for known in others)]
        return [self.own, *(known.announcement for known in others), *filter(None, disclosures)]

    def link_up(self, peer: Principal) -> Announcement | None:
        """Add a link to this broker's announcement; return it if it is new. After `leave` nothing changes.

        Raises `LimitError` (`network.limit`) if there are too many links.
        """
        if peer in self._links or self._left:
            return None
        if peer == self.me:
            raise MalformedError("network.self", "a broker cannot link to itself")
        if len(self._links) >= self._limits.network_links:
            raise LimitError("network.limit", f"a broker has more than {self._limits.network_links} links")
        self._links.add(peer)
        return self._announce()

    def link_down(self, peer: Principal) -> Announcement | None:
        """Remove a link from this broker's announcement; return it if it is new."""
        if peer not in self._links:
            return None
        self._links.discard(peer)
        return self._announce()

    def leave(self) -> Announcement:
        """Return the announcement that this broker has no links from now on."""
        self._left = True
        self._links.clear()
        return self._announce()

    def disclose(self, data: bytes) -> Disclosure:
        """Replace this broker's disclosure, and return it.

        Raises `LimitError` (`network.limit`) if it is too long.
        """
        if len(data) > self._limits.network_disclosure:
            raise LimitError("network.limit", f"a broker discloses more than {self._limits.network_disclosure} bytes")
        own = self._own_disclosure
        if own is None or own.incarnation < self.incarnation:
            return self._disclose(self.incarnation, 1, data)
        return self._disclose(own.incarnation, own.number + 1, data)

    def renew(self) -> list[Announcement | Disclosure]:
        """Return this broker's announcement and disclosure under new numbers, for brokers that have forgotten it."""
        own: list[Announcement | Disclosure] = [self._announce()]
        if self._own_disclosure is not None:
            own.append(self.disclose(self._own_disclosure.data))
        return own

    def introduce(self, announcements: Iterable[Announcement], now: float) -> None:
        """Know brokers by their last announcements, which are not verified."""
        self._known.update({one.broker: _Known(one, now) for one in announcements if one.broker != self.me})
        self._view = None

    def hear(self, announcement: Announcement, now: float, source: Principal | None = None) -> Announcement | None:
        """Process an announcement that a neighbour sent; return the announcement to forward, if any.

        Raises `RefusedError` if the proof is wrong, and `LimitError` (`network.limit`) if there are too many brokers.
        """
        broker = announcement.broker
        if broker == self.me:
            return self._outlive(announcement)
        held = self._held(broker)
        if held is not None and announcement.order <= held.announcement.order:
            return None
        self._proof.verify(broker, announced_words(announcement), announcement.proof)
        if held is None:
            self._enrol(broker, _Known(announcement, now), source)
        else:
            if announcement.links != held.announcement.links:
                self._view = None
            held.announcement, held.last = announcement, now
        return announcement if broker in self._known else None

    def hear_disclosure(self, disclosure: Disclosure) -> tuple[Disclosure | None, bytes | None]:
        """Process a disclosure; return the disclosure to forward, if any, and its bytes if they are new.

        New bytes are forwarded once they were read (`believe`), so junk is not. A disclosure of a broker that has not
        announced itself is ignored. Raises `RefusedError` if the proof is wrong.
        """
        broker = disclosure.broker
        if broker == self.me:
            return self._outdo(disclosure), None
        held = self._held(broker)
        latest = None if held is None else held.unread or held.disclosure
        if held is None or (latest is not None and disclosure.order <= latest.order):
            return None, None
        self._proof.verify(broker, disclosed_words(disclosure), disclosure.proof)
        held.unread = disclosure
        if held.disclosure is not None and disclosure.data == held.disclosed:
            return self.believe(broker, disclosure.data), None
        return None, disclosure.data

    def believe(self, broker: Principal, data: bytes) -> Disclosure | None:
        """Accept a broker's disclosure, after it was read; return the disclosure to forward, if any."""
        held = self._held(broker)
        if held is None or held.unread is None or held.unread.data != data:
            return None
        held.disclosure, held.unread = held.unread, None
        return held.disclosure if broker in self._known else None

    def is_unread(self, broker: Principal, data: bytes) -> bool:
        """Return whether this is a broker's latest disclosure, and was not read yet."""
        held = self._held(broker)
        return held is not None and held.unread is not None and held.unread.data == data

    def disbelieve(self, broker: Principal, data: bytes) -> None:
        """Drop a broker's disclosure, because it cannot be read. The same one is not accepted again."""
        held = self._held(broker)
        if held is not None and held.unread is not None and held.unread.data == data:
            held.disclosure = None
            held.unread = replace(held.unread, data=b"")

    def review(self) -> list[Announcement | Disclosure]:
        """Decide again who is admitted; return what to forward of newly admitted brokers."""
        for broker in [broker for broker in self._known if not self._admitted(broker)]:
            self._wait(broker, self._known.pop(broker), None)
            self._view = None
        news: list[Announcement | Disclosure] = []
        room = self._limits.network_brokers - len(self._known)
        for broker in [broker for broker in self._waiting if self._admitted(broker)][:room]:
            known = self._waiting.pop(broker)
            self._enrol(broker, known, self._brought.pop(broker, None))
            news += [known.announcement, *filter(None, [known.disclosure])]
        return news

    def forget(self, now: float, lifetime: float) -> list[Principal]:
        """Forget brokers that were unreachable for `lifetime`; return those that had disclosed something."""
        live = self.view.links
        for held in (self._known, self._waiting):
            for broker, known in list(held.items()):
                if broker in live:
                    known.last = now
                elif now - known.last > lifetime:
                    self._drop(held, broker)
                    self._view = None
        forgotten, self._forgotten = self._forgotten, []
        return forgotten

    @property
    def view(self) -> NetworkView:
        """The live part of the network."""
        if self._view is None:
            claimed = {broker: frozenset(known.announcement.links) for broker, known in self._known.items()}
            claimed[self.me] = frozenset(self._links)
            mutual = {
                broker: frozenset(link for link in links if broker in claimed.get(link, ()))
                for broker, links in claimed.items()
            }
            live = _distances(self.me, mutual, lambda _broker: True)
            self._view = NetworkView(self.me, {broker: mutual[broker] for broker in sorted(live)})
        return self._view

    def _held(self, broker: Principal) -> _Known | None:
        return self._known.get(broker) or self._waiting.get(broker)

    def _enrol(self, broker: Principal, known: _Known, source: Principal | None) -> None:
        if not self._admitted(broker):
            self._wait(broker, known, source)
            return
        if len(self._known) >= self._limits.network_brokers:
            raise LimitError("network.limit", f"a network has more than {self._limits.network_brokers} brokers")
        self._known[broker] = known
        self._view = None

    def _wait(self, broker: Principal, known: _Known, source: Principal | None) -> None:
        if len(self._waiting) >= self._limits.network_waiting:
            # Anybody can announce itself, so the neighbour that brings most displaces one that it has brought.
            ((most, _),) = Counter(self._brought.values()).most_common(1)
            self._drop(self._waiting, next(one for one, by in self._brought.items() if by == most))
        self._waiting[broker], self._brought[broker] = known, source

    def _drop(self, held: dict[Principal, _Known], broker: Principal) -> None:
        self._brought.pop(broker, None)
        if held.pop(broker).disclosed:
            self._forgotten.append(broker)

    def _outlive(self, announcement: Announcement) -> Announcement | None:
        if announcement.order <= self.own.order or announcement.incarnation >= INTEGER_MAX:
            return None
        try:
            self._proof.verify(self.me, announced_words(announcement), announcement.proof)
        except RefusedError:
            # Forged: nobody accepts it, so there is nothing to exceed.
            return None
        self.own = replace(self.own, incarnation=announcement.incarnation + 1)
        return self._announce()

    def _outdo(self, disclosure: Disclosure) -> Disclosure | None:
        """Renew this broker's disclosure if one of an earlier run supersedes it."""
        own = self._own_disclosure
        if own is None or disclosure.order <= own.order or disclosure.number >= INTEGER_MAX:
            return None
        try:
            self._proof.verify(self.me, disclosed_words(disclosure), disclosure.proof)
        except RefusedError:
            return None
        return self._disclose(disclosure.incarnation, disclosure.number + 1, own.data)

    def _announce(self) -> Announcement:
        self._view = None
        links = tuple(sorted(self._links))
        self.own = self._signed(replace(self.own, number=self.own.number + 1, links=links, proof=b""))
        return self.own

    def _signed(self, announcement: Announcement) -> Announcement:
        return replace(announcement, proof=self._proof.sign(announced_words(announcement)))

    def _disclose(self, incarnation: int, number: int, data: bytes) -> Disclosure:
        plain = Disclosure(self.me, incarnation, number, data)
        self._own_disclosure = replace(plain, proof=self._proof.sign(disclosed_words(plain)))
        return self._own_disclosure
