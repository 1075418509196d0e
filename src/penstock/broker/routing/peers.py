"""The brokers that a router talks with: which of them are up, and what each has entered here and was sent."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from penstock.broker.limits import BrokerLimits
from penstock.broker.matching.matcher import Matcher
from penstock.broker.routing.messages import Again, Body, Enter, Greeting, Hop, Pulse, Stamp, WithdrawEntry
from penstock.broker.routing.trees import Tree
from penstock.broker.sealing.blocks import SealedPublications
from penstock.broker.wire.entries import AnyFilter, Entry, Filter, SubscriptionEntry
from penstock.broker.wire.publications import Publications
from penstock.errors import LimitError, MalformedError, RefusedError
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.values import INTEGER_MAX

# ----------------------------------------------------------------------------------------------------------------------
# One neighbour's sessions: which of its words count, and when to ask for all of them again.
#
# What a neighbour has told me holds for the session in which it said so. A greeting under a later stamp begins a
# session and voids the one before; words of earlier sessions, and words heard before, are ignored; a word that is
# missing makes me ask for a new session. So whatever a transport loses, repeats or keeps back, I either hold exactly
# what the neighbour meant to tell me, or know that I do not.


class Heard(Enum):
    """What a hop means for its receiver."""

    NEW = "the neighbour begins a session"
    REBORN = "the neighbour begins a session, and has forgotten mine"
    NEXT = "the next counted word: take it"
    NOTHING = "old, repeated, or without content"
    LOST = "ask for a new session"
    ASKED = "begin a new session of my own"


class Hops:
    """Both directions of one link. `begin` on every new connection, and whenever `hear` says `ASKED` or `REBORN`."""

    def __init__(self, incarnation: int) -> None:
        self._stamp = Stamp(incarnation, 0)
        self._sent = 0
        self._heard = Stamp(0, 0)
        self._taken = 0
        #: no greeting since the connection was made, or a word was lost since
        self._waiting = True

    @property
    def greeted(self) -> bool:
        """Whether I hold what the neighbour has told me."""
        return not self._waiting

    def connect(self) -> None:
        """Expect a greeting: there is a new connection."""
        self._waiting = True

    def begin(self) -> Hop:
        """Begin a session of my own and return its greeting."""
        self._stamp = Stamp(self._stamp.incarnation, self._stamp.session + 1)
        self._sent = 0
        return Hop(self._stamp, 0, Greeting())

    def say(self, body: Body) -> Hop:
        """Return a word in the present session."""
        self._sent += body.COUNTED
        return Hop(self._stamp, self._sent, body)

    def again(self) -> Hop:
        """Return the request for a session after all that I have heard of."""
        return self.say(Again(self._heard))

    def hear(self, hop: Hop) -> Heard:
        """Say what a hop means. Raises `RefusedError` (`network.stamp`) when no later stamp is left."""
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
        # The greeting, or some word since, has not come, and what comes in order would have come before the pulse.
        self._heard, self._waiting = max(hop.stamp, self._heard), True
        return Heard.LOST

    def _hear_again(self, after: Stamp) -> Heard:
        if after < self._stamp:
            return Heard.NOTHING
        if after.incarnation >= INTEGER_MAX or after.session >= INTEGER_MAX:
            raise RefusedError("network.stamp", "a neighbour claims a session after which there is none")
        self._stamp = after
        return Heard.ASKED


# ----------------------------------------------------------------------------------------------------------------------
# What two neighbours have entered with each other in their present sessions.


@dataclass(slots=True)
class NeighbourEntries:
    """What a neighbour has entered here, under its handles, and what was entered there, under mine."""

    entered: dict[int, Entry] = field(default_factory=dict)
    #: the handles of that which it may enter
    heeded: set[int] = field(default_factory=set)
    told: dict[TypeKey, dict[Entry, int]] = field(default_factory=dict)
    _handles: int = 0

    def enter(self, handle: int, entry: Entry, most: int) -> None:
        """Write down what the neighbour enters.

        Raises `MalformedError` (`route.handle`) if the handle is taken, `LimitError` (`route.limit`) beyond `most`.
        """
        if handle in self.entered:
            raise MalformedError("route.handle", "a neighbour enters two things under one handle")
        if len(self.entered) >= most:
            raise LimitError("route.limit", f"a neighbour enters more than {most} things")
        self.entered[handle] = entry

    def withdraw(self, handle: int) -> Entry:
        """Strike out what the neighbour withdraws, and return it. Raises `MalformedError` (`route.handle`)."""
        if handle not in self.entered:
            raise MalformedError("route.handle", "a neighbour withdraws what it has not entered")
        return self.entered.pop(handle)

    def heed(self, handle: int, *, allowed: bool) -> bool:
        """Let an entry count, or no longer; say whether that is a change."""
        if allowed == (handle in self.heeded):
            return False
        if allowed:
            self.heeded.add(handle)
        else:
            self.heeded.discard(handle)
        return True

    def counting(self) -> Iterator[Entry]:
        """Yield what the neighbour has entered, and may enter."""
        return (self.entered[handle] for handle in self.heeded)

    def forget_told(self) -> None:
        """Forget what was entered with the neighbour: a session begins, or is over."""
        self.told, self._handles = {}, 0

    def tell(self, entry: Entry) -> Enter:
        """Enter something with the neighbour."""
        self._handles += 1
        self.told.setdefault(entry.tree, {})[entry] = self._handles
        return Enter(self._handles, entry)

    def untell(self, entry: Entry) -> WithdrawEntry:
        """Withdraw something from the neighbour."""
        told = self.told[entry.tree]
        handle = told.pop(entry)
        if not told:
            del self.told[entry.tree]
        return WithdrawEntry(handle)

    def differing(self, key: TypeKey, wanted: Mapping[Entry, bool]) -> Iterator[tuple[Entry, bool]]:
        """Yield the entries of a tree to send (True) or withdraw (False)."""
        told = self.told.get(key, {})
        return ((entry, holds) for entry, holds in wanted.items() if holds != (entry in told))


# ----------------------------------------------------------------------------------------------------------------------
# Neighbours whose links were lost: what they had asked for, and how much of it could not be passed on to them.
#
# When a link breaks, what the neighbour entered counts no longer: other paths are found, if there are any. What it had
# asked for is kept aside until it asks again, so that an operator can see what an outage has cost. Nothing is kept of a
# neighbour that took leave, since it withdrew everything before. Selectors are put into an index by the first event of
# their type that comes meanwhile.


@dataclass(slots=True)
class _Asked:
    """What one neighbour had asked for of one type: filters until there is an event, then an index of them."""

    filters: list[AnyFilter] = field(default_factory=list)
    index: Matcher[int] | None = None

    def count(self, block: Publications, limits: BrokerLimits) -> int:
        """Return how many events of a block the neighbour would have been sent."""
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
    """See the module. Where nobody is lost, it is empty, and nothing is to be asked."""

    def __init__(self, limits: BrokerLimits) -> None:
        self._limits = limits
        self._asked: dict[Principal, dict[TypeKey, _Asked]] = {}
        #: whether anybody is lost
        self.anybody = False

    def __len__(self) -> int:
        return len(self._asked)

    def lose(self, peer: Principal, entered: Iterable[Entry]) -> None:
        """Keep aside what a neighbour had entered."""
        asked: dict[TypeKey, _Asked] = {}
        for entry in entered:
            if isinstance(entry, SubscriptionEntry):
                asked.setdefault(entry.tree, _Asked()).filters.append(entry.filter)
        if asked:
            self._asked[peer] = asked
            self.anybody = True

    def asks_again(self, peer: Principal, tree: TypeKey) -> None:
        """Forget what a neighbour had asked for of a type: it asks for it again."""
        asked = self._asked.get(peer)
        if asked is not None and asked.pop(tree, None) is not None and not asked:
            self.forget(peer)

    def forget(self, peer: Principal) -> None:
        """Forget a neighbour: it has said everything again, or has been gone for long."""
        self._asked.pop(peer, None)
        self.anybody = bool(self._asked)

    def missing(self, block: Publications, came_from: Principal | None) -> Iterator[tuple[Principal, int]]:
        """Yield which lost neighbours would have been sent how many events of a block."""
        for peer, asked in self._asked.items():
            found = asked.get(block.type)
            if found is not None and peer not in (came_from, block.origin):
                number = found.count(block, self._limits)
                if number:
                    yield peer, number


# ----------------------------------------------------------------------------------------------------------------------
# The brokers that a router talks with: which of them are up, and what each has entered here and was sent.


@dataclass(slots=True)
class Neighbour:
    """A neighbour: the session with it, when it was heard last, and what was entered on either side."""

    hops: Hops
    up: bool = False
    last: float = 0.0
    #: when the connection was made
    since: float = 0.0
    ledger: NeighbourEntries = field(default_factory=NeighbourEntries)


class Peers(dict[Principal, Neighbour]):
    """See the module. `allowed` says which trees a neighbour may hear of."""

    def __init__(self, allowed: Callable[[TypeKey, Principal], bool]) -> None:
        super().__init__()
        self._allowed = allowed

    def up(self) -> list[Principal]:
        """Return those with a connection."""
        return [principal for principal, peer in self.items() if peer.up]

    def news(self, trees: Iterable[Tree]) -> Iterator[tuple[Principal, Enter | WithdrawEntry]]:
        """Yield the entries to make or withdraw, by neighbour, after these trees have changed."""
        moves: list[tuple[Principal, Entry, bool]] = []
        for tree in trees:
            for principal, wanted in self._wanted(tree).items():
                differing = self[principal].ledger.differing(tree.key, wanted)
                moves.extend((principal, entry, holds) for entry, holds in differing)
        # A path is laid before the old one is given up.
        for principal, entry, holds in sorted(moves, key=lambda move: not move[2]):
            ledger = self[principal].ledger
            yield principal, ledger.tell(entry) if holds else ledger.untell(entry)

    def _wanted(self, tree: Tree) -> Mapping[Principal, Mapping[Entry, bool]]:
        """Return which entries of a tree each neighbour should know, of those that have changed."""
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
