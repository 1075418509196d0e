"""Whether what was entered with neighbours has gone all the way: to every broker that has to know of it.

A broker that has told a neighbour something about a tree asks it (`Confirm`). The neighbour has then taken in what was
told before, since links keep order, and has told others what follows from it. It asks those others in turn, all but the
one that asks, and answers (`Confirmed`) when all of them have. A tree has no circles, so that the answers come to an
end; where brokers still disagree about the tree, somebody waits in vain, for `BrokerLimits.route_confirm` at most.

- A path that is confirmed already needs no question: a subscription that is covered by one is set up immediately.
- A question is about everything that was sent before it. While one is under way others wait for the next, so that a
  thousand new subscriptions cost two questions on each link, and not a thousand.
- Answers bring news with them: who asks for a type first hears of its publishers then, and only then tells them what it
  wants. So a wait has several stages, until nothing is left to confirm, and never more than `_STAGES`: an interest, the
  subscription that follows, and the same of sub-types that are heard of meanwhile. On behalf of a neighbour one is
  enough, but for sub-types: it asks again itself.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Final, TypeAlias

from penstock.broker.limits import BrokerLimits
from penstock.broker.routing.messages import Confirm, Confirmed
from penstock.broker.routing.outputs import Laid
from penstock.model.names import TypeKey
from penstock.model.principals import Principal

Trees: TypeAlias = Callable[[], Iterable[TypeKey]]
"""The trees that a wait is about, as they are when it is asked."""

_STAGES: Final = 4
_Place: TypeAlias = tuple[Principal, TypeKey]


@dataclass(slots=True, eq=False)
class _Wait:
    """Somebody who waits until what was sent is confirmed: a client, or a neighbour that has asked."""

    trees: Trees
    since: float
    #: what the client's wait is called
    token: str = ""
    #: the neighbour that asks, in which tree, and the number of its question
    asker: Principal | None = None
    tree: TypeKey | None = None
    number: int = 0
    stages: int = _STAGES
    #: how much of what was sent has to be confirmed, and where; and how much was, in earlier stages
    needs: dict[_Place, int] = field(default_factory=dict)
    met: dict[_Place, int] = field(default_factory=dict)
    over: bool = False


@dataclass(slots=True)
class _Edge:
    """Messages to a neighbour about a tree that are not all confirmed, and how many were asked about."""

    #: the mark of the last word; and of the last one that followed from what neighbours said, not from a client's wish
    told: int = 0
    followed: int = 0
    asked: int = 0
    #: the number of the question that is under way
    number: int | None = None
    waiting: list[_Wait] = field(default_factory=list)


class Confirmations:
    """See the module. Messages to neighbours and to clients are in `said` and `laid`, until they are taken."""

    def __init__(self, limits: BrokerLimits) -> None:
        self._time = limits.route_confirm / 1000
        self._numbers = count(1)
        self._marks = count(1)
        self._edges: dict[Principal, dict[TypeKey, _Edge]] = {}
        #: by the neighbour and the number of the question that it was asked
        self._questions: dict[tuple[Principal, int], TypeKey] = {}
        self._waits: dict[_Wait, None] = {}
        #: of neighbours, those that have not been answered, by what they ask about
        self._asked: dict[_Place, _Wait] = {}
        self.said: list[tuple[Principal, Confirm | Confirmed]] = []
        self.laid: list[Laid] = []

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waits)

    # What happens.

    def told(self, peer: Principal, tree: TypeKey, *, wish: bool = False) -> None:
        """Record that a neighbour was sent something about a tree; `wish` where a client has just asked for it."""
        edge = self._edges.setdefault(peer, {}).setdefault(tree, _Edge())
        edge.told = next(self._marks)
        if not wish:
            edge.followed = edge.told

    def await_for_client(self, token: str, trees: Trees, now: float) -> None:
        """Wait until what was sent is confirmed; `laid` says so."""
        self._begin(_Wait(trees, now, token))

    def await_for_peer(self, peer: Principal, question: Confirm, trees: Trees, now: float) -> None:
        """Wait for what a neighbour asks about; a later question about the same tree is in the place of an earlier."""
        place = peer, question.tree
        if place in self._asked:
            self._end(self._asked.pop(place))
        wait = self._asked[place] = _Wait(trees, now, asker=peer, tree=question.tree, number=question.number)
        self._begin(wait)

    def confirmed(self, peer: Principal, number: int) -> None:
        """Take an answer of a neighbour."""
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
        """Forget what a neighbour was sent, and what it has asked: a session is over."""
        for tree, edge in self._edges.pop(peer, {}).items():
            self._questions.pop((peer, edge.number or 0), None)
            self._meet((peer, tree), edge.waiting)
        for place in [place for place in self._asked if place[0] == peer]:
            self._end(self._asked.pop(place))

    def forget_tree(self, tree: TypeKey) -> None:
        """Forget a tree in which nothing stands any more."""
        for peer in [peer for peer, edges in self._edges.items() if tree in edges]:
            edge = self._remove(peer, tree)
            self._questions.pop((peer, edge.number or 0), None)
            self._meet((peer, tree), edge.waiting)

    def expire(self, now: float) -> None:
        """Let nobody wait for longer than is allowed."""
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

    # How it goes on.

    def _begin(self, wait: _Wait) -> None:
        self._waits[wait] = None
        self._go_on(wait)

    def _go_on(self, wait: _Wait) -> None:
        """Begin the next stage of a wait, or end it if nothing is left to confirm."""
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
        """Return what has to be confirmed next, and how much of it.

        First everything that was sent before. Then what has followed from what the answers brought: not what clients
        ask for meanwhile, nor, on behalf of a neighbour, what others enter in its tree. It would never end.
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
