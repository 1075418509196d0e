"""Who is in the network, how they are linked, and where the events of a type meet.

Each broker announces its own links under rising numbers, and everybody passes on what is new. A link counts when both
ends announce it, so that a broker that has crashed is gone as soon as its neighbours say so, whatever it said last. The
brokers that are live for me are those I can reach; an announcement of a broker that nobody reaches is kept for a while,
because a partition may heal, and then forgotten.

From the same announcements all brokers compute the same rendezvous node of a type, by the highest hash of the type and
the broker, and the same tree of shortest paths to it. A type's name goes into the hash without its version, so that all
versions meet (paper 5, section 4.4). When a broker comes or goes, only those types move whose highest hash it has.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
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
# Why a broker believes that words which went through many hands are those of the broker that they speak for.


LABEL: Final = b"penstock-words-1"


class AnnouncementProof(Protocol):
    """How announcements and disclosures are believed. The words are a digest of all but the proof."""

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


class SignedProof:
    """A broker's public key, and its signature over a label, the network and the words.

    The same words come by several ways; what has been found right is remembered, up to `BrokerLimits.cache_entries`.
    """

    def __init__(self, key: SigningKey, network: NetworkName, limits: BrokerLimits) -> None:
        self._key, self._network, self._limits = key, network, limits
        self._right: OrderedDict[bytes, None] = OrderedDict()

    def sign(self, words: bytes) -> bytes:
        """Return the public key and the signature."""
        return self._key.public.raw + self._key.sign(self._message(words))

    def verify(self, broker: Principal, words: bytes, proof: bytes) -> None:
        """Check that the key is that broker's, and the signature that key's.

        Raises `RefusedError` (`network.proof`), whatever the reason.
        """
        name = sha256(broker.digest + sha256(words).digest() + proof).digest()
        if name in self._right:
            self._right.move_to_end(name)
            return
        self._check(broker, words, proof)
        self._right[name] = None
        if len(self._right) > self._limits.cache_entries:
            self._right.popitem(last=False)

    def _check(self, broker: Principal, words: bytes, proof: bytes) -> None:
        problem = RefusedError("network.proof", f"these are not the words of {broker.short}", hint="cut the link")
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
# Who is in the network, how they are linked, and where the events of a type meet.


MayRoute: TypeAlias = Callable[[TypeKey, Principal], bool]
"""Whether a broker may stand on a path of a type. All brokers of that type's overlay must answer alike."""


def everybody(_type: TypeKey, _broker: Principal) -> bool:
    """Let each broker route each type."""
    return True


Admitted: TypeAlias = Callable[[Principal], bool]
"""Whether a broker may be part of the network."""


def anybody(_broker: Principal) -> bool:
    """Admit each broker."""
    return True


def announced_words(announcement: Announcement) -> bytes:
    """Return the digest that an announcement's proof is about."""
    links = tuple(link.digest for link in announcement.links)
    order = (str(announcement.incarnation).encode(), str(announcement.number).encode())
    return digest((b"penstock-announcement", announcement.broker.digest, *order, (b"links", *links)))


def disclosed_words(disclosure: Disclosure) -> bytes:
    """Return the digest that a disclosure's proof is about."""
    order = (str(disclosure.incarnation).encode(), str(disclosure.number).encode())
    return digest((b"penstock-disclosure", disclosure.broker.digest, *order, sha256(disclosure.data).digest()))


@lru_cache(maxsize=CACHE_ENTRIES)
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
    disclosure: Disclosure | None = None
    #: a later one that nobody has read yet
    unread: Disclosure | None = None

    @property
    def disclosed(self) -> bytes:
        return self.disclosure.data if self.disclosure is not None else b""


@dataclass(frozen=True, slots=True)
class NetworkView:
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
        """Return my next hop to the rendezvous node; None if I am it, or may not route the type."""
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
    """The announcements that one broker knows, its own among them, and what each broker discloses.

    `incarnation` has to be greater than that of the broker's earlier lives; if it is not, the broker finds out when an
    announcement of an earlier life comes back to it, and goes beyond that.

    Who is not admitted does not count and is not passed on. What such brokers said is kept aside, so that they can be
    admitted for what they disclosed (`review`).
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
        #: the neighbours that first announced those who wait
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
        """Return everything that a new neighbour has to know; who somebody is comes before what he discloses."""
        others = self._known.values()
        disclosures = [self._own_disclosure, *(known.disclosure for known in others)]
        return [self.own, *(known.announcement for known in others), *filter(None, disclosures)]

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

    def disclose(self, data: bytes) -> Disclosure:
        """Disclose something in place of what I disclosed before, and return it.

        Raises `LimitError` (`network.limit`) when it is too long.
        """
        if len(data) > self._limits.network_disclosure:
            raise LimitError("network.limit", f"a broker discloses more than {self._limits.network_disclosure} bytes")
        own = self._own_disclosure
        if own is None or own.incarnation < self.incarnation:
            return self._disclose(self.incarnation, 1, data)
        return self._disclose(own.incarnation, own.number + 1, data)

    def renew(self) -> list[Announcement | Disclosure]:
        """Return what I say of myself under new numbers, for those who have forgotten me by mistake."""
        own: list[Announcement | Disclosure] = [self._announce()]
        if self._own_disclosure is not None:
            own.append(self.disclose(self._own_disclosure.data))
        return own

    def hear(self, announcement: Announcement, now: float, source: Principal | None = None) -> Announcement | None:
        """Take in an announcement that a neighbour brings; return what has to be passed on, if anything.

        Raises `RefusedError` where the proof is wrong, and `LimitError` (`network.limit`) when there are too many
        brokers.
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
        """Take in a disclosure; return what has to be passed on, and the bytes where they are new.

        New bytes are passed on, and told to new neighbours, once they were read (`believe`): junk goes no further.
        Raises `RefusedError` where the proof is wrong. Nobody discloses anything before he has announced himself.
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
        """Let what a broker discloses count, now that it was read; return what has to be passed on, if anything."""
        held = self._held(broker)
        if held is None or held.unread is None or held.unread.data != data:
            return None
        held.disclosure, held.unread = held.unread, None
        return held.disclosure if broker in self._known else None

    def is_unread(self, broker: Principal, data: bytes) -> bool:
        """Return whether a broker still discloses this, and nobody has read it."""
        held = self._held(broker)
        return held is not None and held.unread is not None and held.unread.data == data

    def disbelieve(self, broker: Principal, data: bytes) -> None:
        """Keep nothing of what a broker discloses: it cannot be read. The same words are not taken again."""
        held = self._held(broker)
        if held is not None and held.unread is not None and held.unread.data == data:
            held.disclosure = None
            held.unread = replace(held.unread, data=b"")

    def review(self) -> list[Announcement | Disclosure]:
        """Ask again who is admitted; return what has to be passed on of those who are so now."""
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
        """Forget brokers that nobody has reached for `lifetime`; return those forgotten who had disclosed something."""
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
            # Anybody can announce himself: who brings many takes the place of those that he has brought.
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
            # Somebody else's words: nobody believes them, so there is nothing to go beyond.
            return None
        self.own = replace(self.own, incarnation=announcement.incarnation + 1)
        return self._announce()

    def _outdo(self, disclosure: Disclosure) -> Disclosure | None:
        """Say again what I disclose where words of an earlier life stand in its way."""
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
