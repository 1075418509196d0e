"""The neighbours of a router: their sessions, the entries on both sides, and confirmations that entries arrived."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import Final, TypeAlias

from penstock.broker.limits import BrokerLimits
from penstock.broker.matching.matcher import Matcher
from penstock.broker.routing.messages import (
    Again,
    Body,
    Confirm,
    Confirmed,
    Enter,
    Greeting,
    Hop,
    Pulse,
    Stamp,
    WithdrawEntry,
)
from penstock.broker.routing.outputs import Laid
from penstock.broker.routing.trees import Tree
from penstock.broker.sealing.blocks import SealedPublications
from penstock.broker.wire.entries import AnyFilter, Entry, Filter, SubscriptionEntry
from penstock.broker.wire.publications import Publications
from penstock.errors import LimitError, MalformedError, RefusedError
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.values import INTEGER_MAX

# ----------------------------------------------------------------------------------------------------------------------
# One neighbour's sessions: which of its messages count, and when to request all of them again.
#
# A neighbour's entries are valid for the session in which it sent them. A greeting with a later stamp starts a session
# and voids the one before. Messages of earlier sessions, and repeated ones, are ignored. If a message is missing, this
# broker requests a new session. So whatever a transport loses, repeats or delays, this broker either has exactly what
# the neighbour sent, or knows that it does not.


class Heard(Enum):
    """The meaning of a hop for its receiver."""

    NEW = "the neighbour starts a session"
    REBORN = "the neighbour starts a session, and has forgotten mine"
    NEXT = "the next counted message: process it"
    NOTHING = "old, repeated, or without content"
    LOST = "request a new session"
    ASKED = "start a new session of my own"


class Hops:
    """Both directions of one link. Call `begin` on every new connection, and after `ASKED` and `REBORN`."""

    def __init__(self, incarnation: int) -> None:
        self._stamp = Stamp(incarnation, 0)
        self._sent = 0
        self._heard = Stamp(0, 0)
        self._taken = 0
        #: no greeting since the connection was made, or a message was lost since
        self._waiting = True

    @property
    def greeted(self) -> bool:
        """Whether this broker has all messages of the neighbour's session."""
        return not self._waiting

    def connect(self) -> None:
        """Expect a greeting on a new connection."""
        self._waiting = True

    def begin(self) -> Hop:
        """Start a session of this broker, and return its greeting."""
        self._stamp = Stamp(self._stamp.incarnation, self._stamp.session + 1)
        self._sent = 0
        return Hop(self._stamp, 0, Greeting())

    def say(self, body: Body) -> Hop:
        """Return a message of the current session."""
        self._sent += body.COUNTED
        return Hop(self._stamp, self._sent, body)

    def again(self) -> Hop:
        """Return the request for a session after all that are known."""
        return self.say(Again(self._heard))

    def hear(self, hop: Hop) -> Heard:
        """Return the meaning of a hop. Raises `RefusedError` (`network.stamp`) if no later stamp is possible."""
        if isinstance(hop.body, Again):
            return self._hear_again(hop.body.after)
        if isinstance(hop.body, Greeting):
            return self._hear_greeting(hop.stamp)
        if isinstance(hop.body, Pulse):
            return self._hear_pulse(hop)
        if self._waiting or hop.stamp != self._heard or hop.number <= self._taken:
            return Heard.NOTHING
        if hop.number > self._taken + 1:
            self._waiting = True
            return Heard.LOST
        self._taken = hop.number
        return Heard.NEXT

    def _hear_greeting(self, stamp: Stamp) -> Heard:
        if stamp <= self._heard:
            # On a new connection: its clock went backwards, or this is an echo of an earlier one.
            return Heard.LOST if self._waiting else Heard.NOTHING
        reborn = not self._waiting and stamp.incarnation != self._heard.incarnation
        self._heard, self._taken, self._waiting = stamp, 0, False
        return Heard.REBORN if reborn else Heard.NEW

    def _hear_pulse(self, hop: Hop) -> Heard:
        if not self._waiting and (hop.stamp, hop.number) <= (self._heard, self._taken):
            return Heard.NOTHING
        # The greeting or a later message is missing: links keep order, so it would have arrived before the pulse.
        self._heard, self._waiting = max(hop.stamp, self._heard), True
        return Heard.LOST

    def _hear_again(self, after: Stamp) -> Heard:
        if after < self._stamp:
            return Heard.NOTHING
        if after.incarnation >= INTEGER_MAX or after.session >= INTEGER_MAX:
            raise RefusedError("network.stamp", "a neighbour claims the highest possible session number")
        self._stamp = after
        return Heard.ASKED


# ----------------------------------------------------------------------------------------------------------------------
# The entries of two neighbours with each other in their current sessions.


@dataclass(slots=True)
class NeighbourEntries:
    """A neighbour's entries here, under its handles, and this broker's entries there, under its own."""

    entered: dict[int, Entry] = field(default_factory=dict)
    #: the handles of the entries that count, because the neighbour may make them
    heeded: set[int] = field(default_factory=set)
    told: dict[TypeKey, dict[Entry, int]] = field(default_factory=dict)
    _handles: int = 0

    def enter(self, handle: int, entry: Entry, most: int) -> None:
        """Add an entry of the neighbour.

        Raises `MalformedError` (`route.handle`) if the handle is in use, `LimitError` (`route.limit`) beyond `most`.
        """
        if handle in self.entered:
            raise MalformedError("route.handle", "a neighbour uses one handle for two entries")
        if len(self.entered) >= most:
            raise LimitError("route.limit", f"a neighbour has more than {most} entries")
        self.entered[handle] = entry

    def withdraw(self, handle: int) -> Entry:
        """Remove an entry of the neighbour, and return it. Raises `MalformedError` (`route.handle`)."""
        if handle not in self.entered:
            raise MalformedError("route.handle", "a neighbour withdraws an unknown entry")
        return self.entered.pop(handle)

    def heed(self, handle: int, *, allowed: bool) -> bool:
        """Count an entry, or not any longer; return whether that is a change."""
        if allowed == (handle in self.heeded):
            return False
        if allowed:
            self.heeded.add(handle)
        else:
            self.heeded.discard(handle)
        return True

    def counting(self) -> Iterator[Entry]:
        """Yield the neighbour's entries that count."""
        return (self.entered[handle] for handle in self.heeded)

    def forget_told(self) -> None:
        """Forget this broker's entries: a session starts or ends."""
        self.told, self._handles = {}, 0

    def tell(self, entry: Entry) -> Enter:
        """Return the message that adds an entry."""
        self._handles += 1
        self.told.setdefault(entry.tree, {})[entry] = self._handles
        return Enter(self._handles, entry)

    def untell(self, entry: Entry) -> WithdrawEntry:
        """Return the message that withdraws an entry."""
        told = self.told[entry.tree]
        handle = told.pop(entry)
        if not told:
            del self.told[entry.tree]
        return WithdrawEntry(handle)

    def differing(self, key: TypeKey, wanted: Mapping[Entry, bool]) -> Iterator[tuple[Entry, bool]]:
        """Yield the entries of a tree to add (True) or withdraw (False)."""
        told = self.told.get(key, {})
        return ((entry, holds) for entry, holds in wanted.items() if holds != (entry in told))


# ----------------------------------------------------------------------------------------------------------------------
# Neighbours with lost links: their subscriptions, and the number of events that they did not get.
#
# When a link breaks, the neighbour's entries no longer count, and other paths are used if there are any. Its
# subscriptions are kept apart until it subscribes again, so that an operator can see the cost of an outage. A neighbour
# that left properly has withdrawn its subscriptions before. Selectors are indexed when the first event of their type
# arrives.


@dataclass(slots=True)
class _Asked:
    """One neighbour's subscriptions to one type: filters until there is an event, then an index of them."""

    filters: list[AnyFilter] = field(default_factory=list)
    index: Matcher[int] | None = None

    def count(self, block: Publications, limits: BrokerLimits) -> int:
        """Return how many events of a block the neighbour would have got."""
        every = len(block.events)
        if len(self.filters) > limits.route_filters or not all(isinstance(one, Filter) for one in self.filters):
            return every
        if isinstance(block, SealedPublications):
            return every
        if self.index is None:
            self.index = Matcher(limits)
            for number, one in enumerate(self.filters):
                if isinstance(one, Filter):
                    self.index.add(number, one.selector)
        return sum(bool(self.index.match(event.values)) for event in block.events)


class LostNeighbours:
    """The subscriptions of neighbours with lost links."""

    def __init__(self, limits: BrokerLimits) -> None:
        self._limits = limits
        self._asked: dict[Principal, dict[TypeKey, _Asked]] = {}
        #: whether any neighbour is lost
        self.anybody = False

    def __len__(self) -> int:
        return len(self._asked)

    def lose(self, peer: Principal, entered: Iterable[Entry]) -> None:
        """Keep the subscriptions among a neighbour's entries."""
        asked: dict[TypeKey, _Asked] = {}
        for entry in entered:
            if isinstance(entry, SubscriptionEntry):
                asked.setdefault(entry.tree, _Asked()).filters.append(entry.filter)
        if asked:
            self._asked[peer] = asked
            self.anybody = True

    def asks_again(self, peer: Principal, tree: TypeKey) -> None:
        """Forget a neighbour's subscriptions to a type, because it subscribes again."""
        asked = self._asked.get(peer)
        if asked is not None and asked.pop(tree, None) is not None and not asked:
            self.forget(peer)

    def forget(self, peer: Principal) -> None:
        """Forget a neighbour: it has sent all entries again, or has been gone for long."""
        self._asked.pop(peer, None)
        self.anybody = bool(self._asked)

    def missing(self, block: Publications, came_from: Principal | None) -> Iterator[tuple[Principal, int]]:
        """Yield the lost neighbours that would have got events of a block, and how many."""
        for peer, asked in self._asked.items():
            found = asked.get(block.type)
            if found is not None and peer not in (came_from, block.origin):
                number = found.count(block, self._limits)
                if number:
                    yield peer, number


# ----------------------------------------------------------------------------------------------------------------------
# All neighbours.


@dataclass(slots=True)
class Neighbour:
    """A neighbour: its session, when it was last heard of, and the entries on both sides."""

    hops: Hops
    up: bool = False
    last: float = 0.0
    #: when the connection was made
    since: float = 0.0
    ledger: NeighbourEntries = field(default_factory=NeighbourEntries)


class Peers(dict[Principal, Neighbour]):
    """The neighbours of a router. `allowed` returns whether a neighbour may learn of a tree."""

    def __init__(self, allowed: Callable[[TypeKey, Principal], bool]) -> None:
        super().__init__()
        self._allowed = allowed

    def up(self) -> list[Principal]:
        """Return the neighbours with a connection."""
        return [principal for principal, peer in self.items() if peer.up]

    def news(self, trees: Iterable[Tree]) -> Iterator[tuple[Principal, Enter | WithdrawEntry]]:
        """Yield the entries to add or withdraw, by neighbour, after these trees have changed."""
        moves: list[tuple[Principal, Entry, bool]] = []
        for tree in trees:
            for principal, wanted in self._wanted(tree).items():
                differing = self[principal].ledger.differing(tree.key, wanted)
                moves.extend((principal, entry, holds) for entry, holds in differing)
        # The new path is set up before the old one is removed.
        for principal, entry, holds in sorted(moves, key=lambda move: not move[2]):
            ledger = self[principal].ledger
            yield principal, ledger.tell(entry) if holds else ledger.untell(entry)

    def _wanted(self, tree: Tree) -> Mapping[Principal, Mapping[Entry, bool]]:
        """Return the changed entries of a tree that each neighbour should have (True) or lose (False)."""
        everything, moves = tree.changed, tree.moves()
        if not everything:
            return moves
        wanted: dict[Principal, dict[Entry, bool]] = {}
        for principal in self.up():
            told = self[principal].ledger.told.get(tree.key, {})
            wanted[principal] = dict.fromkeys(told, False)
            if self._allowed(tree.key, principal):
                wanted[principal].update(dict.fromkeys(tree.entries_for(principal), True))
        return wanted


# ----------------------------------------------------------------------------------------------------------------------
# Confirmations that entries have reached every broker that needs them.
#
# After a broker has entered something with a neighbour, it asks the neighbour to confirm it (`Confirm`). Links
# keep order, so the neighbour has processed the entries by then, and has sent others what follows from them. It asks
# those others in turn, except the one that asks, and answers (`Confirmed`) when all of them have. A tree has no cycles,
# so the answers come to an end. While brokers still disagree about the tree, a question may stay unanswered: it waits
# for `BrokerLimits.route_confirm` at most.
#
# - A path that is confirmed already needs no question: a subscription that it covers is set up immediately.
# - A question covers everything that was sent before it. While one is under way others wait for the next one, so a
#   thousand new subscriptions cost two questions on each link, and not a thousand.
# - Answers bring news: a broker that asks for a type first hears of its publishers then, and only then sends them its
#   subscription. So a wait has several stages until nothing is left to confirm, but never more than `_STAGES`: an
#   interest, the subscription that follows, and the same for sub-types that are heard of meanwhile. On behalf of a
#   neighbour one stage is enough, except for sub-types: the neighbour asks again itself.


Trees: TypeAlias = Callable[[], Iterable[TypeKey]]
"""Returns the trees that a wait is about."""

_STAGES: Final = 4
_Place: TypeAlias = tuple[Principal, TypeKey]


@dataclass(slots=True, eq=False)
class _Wait:
    """A client, or a neighbour that has asked, which waits until entries are confirmed."""

    trees: Trees
    since: float
    #: the token of the client's wait
    token: str = ""
    #: the neighbour that asks, in which tree, and the number of its question
    asker: Principal | None = None
    tree: TypeKey | None = None
    number: int = 0
    stages: int = _STAGES
    #: the marks that must be confirmed, by place; and those that were, in earlier stages
    needs: dict[_Place, int] = field(default_factory=dict)
    met: dict[_Place, int] = field(default_factory=dict)
    over: bool = False


@dataclass(slots=True)
class _Edge:
    """Messages to a neighbour about a tree that are not all confirmed, and how many were asked about."""

    #: the mark of the last message; and of the last one that a neighbour caused rather than a client
    told: int = 0
    followed: int = 0
    asked: int = 0
    #: the number of the question that is under way
    number: int | None = None
    waiting: list[_Wait] = field(default_factory=list)


class Confirmations:
    """Waits for confirmations. Messages to neighbours and clients are in `said` and `laid`, until they are taken."""

    def __init__(self, limits: BrokerLimits) -> None:
        self._time = limits.route_confirm / 1000
        self._numbers = count(1)
        self._marks = count(1)
        self._edges: dict[Principal, dict[TypeKey, _Edge]] = {}
        #: by the neighbour and the number of the question that it was asked
        self._questions: dict[tuple[Principal, int], TypeKey] = {}
        self._waits: dict[_Wait, None] = {}
        #: neighbours' questions that were not answered yet, by neighbour and tree
        self._asked: dict[_Place, _Wait] = {}
        self.said: list[tuple[Principal, Confirm | Confirmed]] = []
        self.laid: list[Laid] = []

    def __len__(self) -> int:
        """Return the number of waits."""
        return len(self._waits)

    # Inputs.

    def told(self, peer: Principal, tree: TypeKey, *, wish: bool = False) -> None:
        """Record a message to a neighbour about a tree; `wish` if a client's request has caused it."""
        edge = self._edges.setdefault(peer, {}).setdefault(tree, _Edge())
        edge.told = next(self._marks)
        if not wish:
            edge.followed = edge.told

    def await_for_client(self, token: str, trees: Trees, now: float) -> None:
        """Wait until the entries are confirmed, and then add `Laid` to `laid`."""
        self._begin(_Wait(trees, now, token))

    def await_for_peer(self, peer: Principal, question: Confirm, trees: Trees, now: float) -> None:
        """Wait for a neighbour's question. A later one about the same tree replaces an earlier one."""
        place = peer, question.tree
        if place in self._asked:
            self._end(self._asked.pop(place))
        wait = self._asked[place] = _Wait(trees, now, asker=peer, tree=question.tree, number=question.number)
        self._begin(wait)

    def confirmed(self, peer: Principal, number: int) -> None:
        """Process a neighbour's answer."""
        tree = self._questions.pop((peer, number), None)
        edge = None if tree is None else self._edges.get(peer, {}).get(tree)
        if tree is None or edge is None:
            return
        place, edge.number = (peer, tree), None
        met = [wait for wait in edge.waiting if wait.needs.get(place, 0) <= edge.asked]
        edge.waiting = [wait for wait in edge.waiting if wait.needs.get(place, 0) > edge.asked]
        if edge.told == edge.asked:
            self._remove(peer, tree)
        elif edge.waiting:
            self._ask(peer, tree, edge)
        self._meet(place, met)

    def forget(self, peer: Principal) -> None:
        """Forget the messages to a neighbour, and its questions: a session is over."""
        for tree, edge in self._edges.pop(peer, {}).items():
            self._questions.pop((peer, edge.number or 0), None)
            self._meet((peer, tree), edge.waiting)
        for place in [place for place in self._asked if place[0] == peer]:
            self._end(self._asked.pop(place))

    def forget_tree(self, tree: TypeKey) -> None:
        """Forget an empty tree."""
        for peer in [peer for peer, edges in self._edges.items() if tree in edges]:
            edge = self._remove(peer, tree)
            self._questions.pop((peer, edge.number or 0), None)
            self._meet((peer, tree), edge.waiting)

    def expire(self, now: float) -> None:
        """End the waits that have lasted too long."""
        late = [wait for wait in self._waits if now - wait.since >= self._time]
        for wait in late:
            self._end(wait)
            if wait.asker is None:
                self.laid.append(Laid(wait.token, complete=False))
            elif wait.tree is not None:
                self._asked.pop((wait.asker, wait.tree), None)
        if late:
            for edges in self._edges.values():
                for edge in edges.values():
                    edge.waiting = [wait for wait in edge.waiting if not wait.over]

    # Stages.

    def _begin(self, wait: _Wait) -> None:
        self._waits[wait] = None
        self._go_on(wait)

    def _go_on(self, wait: _Wait) -> None:
        """Start the next stage of a wait, or end it if nothing is left to confirm."""
        needs = self._needs(wait) if wait.stages else {}
        if not needs:
            self._finish(wait)
            return
        wait.stages -= 1
        wait.needs = needs
        for peer, tree in needs:
            edge = self._edges[peer][tree]
            edge.waiting.append(wait)
            if edge.number is None:
                self._ask(peer, tree, edge)

    def _needs(self, wait: _Wait) -> dict[_Place, int]:
        """Return the marks that must be confirmed next.

        First everything that was sent before. Then the messages that the answers have caused: neither new requests of
        clients nor, on behalf of a neighbour, new entries of others in its tree. Otherwise it would never end.
        """
        first, needs = wait.stages == _STAGES, dict[_Place, int]()
        for tree in wait.trees():
            for peer, edges in self._edges.items() if first or tree != wait.tree else ():
                edge, place = edges.get(tree), (peer, tree)
                if edge is not None and place != (wait.asker, wait.tree):
                    mark = edge.told if first else edge.followed
                    if mark > wait.met.get(place, 0):
                        needs[place] = mark
        return needs

    def _finish(self, wait: _Wait) -> None:
        self._end(wait)
        if wait.asker is None:
            self.laid.append(Laid(wait.token))
        elif wait.tree is not None:
            del self._asked[wait.asker, wait.tree]
            self.said.append((wait.asker, Confirmed(wait.number)))

    def _end(self, wait: _Wait) -> None:
        wait.over = True
        del self._waits[wait]

    def _meet(self, place: _Place, waits: Iterable[_Wait]) -> None:
        for wait in waits:
            wait.met[place] = wait.needs.pop(place, 0)
            if not wait.needs and not wait.over:
                self._go_on(wait)

    def _ask(self, peer: Principal, tree: TypeKey, edge: _Edge) -> None:
        edge.number, edge.asked = next(self._numbers), edge.told
        self._questions[peer, edge.number] = tree
        self.said.append((peer, Confirm(edge.number, tree)))

    def _remove(self, peer: Principal, tree: TypeKey) -> _Edge:
        edge = self._edges[peer].pop(tree)
        if not self._edges[peer]:
            del self._edges[peer]
        return edge
