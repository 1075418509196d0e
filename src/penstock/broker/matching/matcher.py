"""Find the selectors that are TRUE on an event, at a cost that grows with the result rather than with their number.

Selectors are split into clauses (see `penstock.broker.matching.clauses`), and the clauses form a tree. A node has
clauses whose first constraints are already met. If it has few, each is evaluated. More are distributed over routes, by
the next constraint of each clause: a dictionary for single values, an interval tree for ranges and prefixes. An event
follows the routes that match its values, so it reaches only clauses whose routed constraints are all met.

Single values are routed first, then bounded ranges and prefixes, then ranges with one end; `IS NULL` and
`IS NOT NULL` come last. The rest is evaluated by compiled functions for each clause that the routes lead to:
constraints that would multiply the places of a clause, and opaque conditions. A selector without any routable
constraint is evaluated on every event; `Matcher.unrouted` counts these.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType
from typing import Any, Final, Generic, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from penstock.broker.limits import BrokerLimits
from penstock.broker.matching.clauses import Allowed, Clause, Fact, clauses, fact, is_point
from penstock.errors import EvaluationError
from penstock.model.values import Scalar, Schema
from penstock.selector import ALWAYS, Compiled, Selector, compile_selector
from penstock.selector.ast import And, AttributeReference, Condition, render, walk
from penstock.selector.compile import CompiledRows, compile_for_rows

# ----------------------------------------------------------------------------------------------------------------------
# A tree of half-open intervals that finds those which contain a place.
#
# The tree is ordered by lower ends, and each node knows how far the intervals below it reach, so a search skips those
# that end before the place: it costs a logarithm for each interval that is found. A part that has lost its balance is
# rebuilt, so no random source is needed, and no order of insertion is bad.


T = TypeVar("T")
End: TypeAlias = tuple[Any, ...]

#: A node is out of balance if a child has more than this share of its intervals.
_BALANCE: Final = 0.7
#: Reached by nothing: lower than every end.
_NOWHERE: Final[End] = ()


class _Spot(Generic[T]):
    __slots__ = ("high", "left", "low", "reach", "right", "size", "value")

    def __init__(self, low: End, high: End, value: T) -> None:
        self.low = low
        self.high = high
        #: None once it was removed
        self.value: T | None = value
        self.left: _Spot[T] | None = None
        self.right: _Spot[T] | None = None
        self.size = 1
        self.reach = high

    def measure(self) -> None:
        """Recompute size and reach from the children."""
        left, right = self.left, self.right
        self.size = 1 + (left.size if left else 0) + (right.size if right else 0)
        reach = _NOWHERE if self.value is None else self.high
        if left and left.reach > reach:
            reach = left.reach
        if right and right.reach > reach:
            reach = right.reach
        self.reach = reach

    @property
    def unbalanced(self) -> bool:
        larger = max(self.left.size if self.left else 0, self.right.size if self.right else 0)
        return larger > _BALANCE * self.size + 1


class IntervalTree(Generic[T]):
    """Values by interval `low <= place < high`.

    >>> tree = IntervalTree[str]()
    >>> tree.put((1,), (5,), "one to five")
    >>> tree.put((4,), (9,), "four to nine")
    >>> tree.holding((3,)), len(tree.holding((4,))), tree.holding((9,))
    (['one to five'], 2, [])
    """

    __slots__ = ("_dead", "_root")

    def __init__(self) -> None:
        self._root: _Spot[T] | None = None
        self._dead = 0

    def __len__(self) -> int:
        return (self._root.size if self._root else 0) - self._dead

    def get(self, low: End, high: End) -> T | None:
        """Return the value of exactly this interval, if it is stored."""
        path = self._path(low, high)
        found = path[-1] if path else None
        return found.value if found is not None and found.low == low and found.high == high else None

    def put(self, low: End, high: End, value: T) -> None:
        """Store a value, or replace the one that the interval had."""
        path = self._path(low, high)
        if not path:
            self._root = _Spot(low, high, value)
            return
        last = path[-1]
        if last.low == low and last.high == high:
            self._dead -= last.value is None
            last.value = value
        elif (low, high) < (last.low, last.high):
            last.left = _Spot(low, high, value)
        else:
            last.right = _Spot(low, high, value)
        self._settle(path)

    def discard(self, low: End, high: End) -> None:
        """Remove an interval, if it is stored."""
        path = self._path(low, high)
        if not path or path[-1].value is None or (path[-1].low, path[-1].high) != (low, high):
            return
        path[-1].value = None
        self._dead += 1
        if self._dead > len(self):
            self._root = _build(_living(self._root))
            self._dead = 0
        else:
            self._settle(path)

    def holding(self, place: End) -> list[T]:
        """Return the values of all intervals that contain a place."""
        found: list[T] = []
        pending = [self._root] if self._root else []
        while pending:
            spot = pending.pop()
            if spot.reach <= place:
                continue
            if spot.left is not None:
                pending.append(spot.left)
            if spot.low <= place:
                if spot.right is not None:
                    pending.append(spot.right)
                if spot.value is not None and place < spot.high:
                    found.append(spot.value)
        return found

    def _path(self, low: End, high: End) -> list[_Spot[T]]:
        """Return the path to the interval, or to where it would be inserted."""
        path: list[_Spot[T]] = []
        spot = self._root
        wanted = (low, high)
        while spot is not None:
            path.append(spot)
            here = (spot.low, spot.high)
            if wanted == here:
                break
            spot = spot.left if wanted < here else spot.right
        return path

    def _settle(self, path: list[_Spot[T]]) -> None:
        """Recompute the path upwards, and rebuild the highest part that is out of balance."""
        top = None
        for index in reversed(range(len(path))):
            path[index].measure()
            if path[index].unbalanced:
                top = index
        if top is None:
            return
        living = _living(path[top])
        self._dead -= path[top].size - len(living)
        rebuilt = _build(living)
        if top == 0:
            self._root = rebuilt
            return
        above = path[top - 1]
        if above.left is path[top]:
            above.left = rebuilt
        else:
            above.right = rebuilt
        for spot in reversed(path[:top]):
            spot.measure()


def _living(root: _Spot[T] | None) -> list[_Spot[T]]:
    """Return the nodes that were not removed, in order."""
    found: list[_Spot[T]] = []
    above: list[_Spot[T]] = []
    spot = root
    while above or spot is not None:
        while spot is not None:
            above.append(spot)
            spot = spot.left
        spot = above.pop()
        if spot.value is not None:
            found.append(spot)
        spot = spot.right
    return found


def _build(spots: list[_Spot[T]]) -> _Spot[T] | None:
    """Build a tree of minimal depth from ordered nodes."""
    if not spots:
        return None
    middle = len(spots) // 2
    root = spots[middle]
    root.left = _build(spots[:middle])
    root.right = _build(spots[middle + 1 :])
    root.measure()
    return root


# ----------------------------------------------------------------------------------------------------------------------
# The matcher.


K = TypeVar("K")
Values: TypeAlias = Mapping[str, Scalar]

#: The number of clauses of a node up to which they are evaluated one by one instead of routed.
_FEW: Final = 8
#: A few selectors are compiled together after so many events without a change.
_CALM: Final = 16
#: The layouts of rows that are remembered, and after how many rows tests are compiled for one.
_LAYOUTS: Final = 256
_OFTEN: Final = 256
#: The number of places that the constraints after the first may multiply a clause into.
_PLACES: Final = 64


class Matcher(Generic[K]):
    """Keys by selector.

    >>> from penstock.selector import parse
    >>> matcher = Matcher[str](BrokerLimits())
    >>> matcher.add("fast", parse("speed > 100"))
    >>> matcher.add("mine", parse("plate = 'AB 123' AND speed > 30"))
    >>> matcher.match({"plate": "AB 123", "speed": 50})
    ('mine',)
    """

    def __init__(self, limits: BrokerLimits) -> None:
        self._limits = limits
        self._root: _Node[K] = _Node(0)
        self._entries: dict[Selector, _Entry[K]] = {}
        self._selectors: dict[K, Selector] = {}
        #: the number of events since the last change, and the fast matcher that is compiled after some
        self._calm = 0
        self._quick: _Few[K] | None = None
        self._residuals: WeakValueDictionary[str, _Residual] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._selectors)

    def __contains__(self, key: K) -> bool:
        return key in self._selectors

    def __iter__(self) -> Iterator[K]:
        return iter(self._selectors)

    @property
    def unrouted(self) -> int:
        """The number of clauses that are evaluated on every event, because they cannot be routed."""
        return self._root.unrouted()

    def add(self, key: K, selector: Selector, schema: Schema | None = None) -> None:
        """Add a selector, or replace the one that the key had.

        Raises `SelectorError` when it does not fit the schema; an attribute that the schema lacks is null.
        """
        if schema is not None:
            selector.check(schema, missing="null")
        self.remove(key)
        self._calm, self._quick = 0, None
        entry = self._entries.get(selector)
        if entry is None:
            entry = self._entries[selector] = _Entry()
            entry.clauses = tuple(self._rooted(clause, entry) for clause in clauses(selector, self._limits))
            for rooted in entry.clauses:
                self._root.add(rooted)
        entry.keys[key] = None
        self._selectors[key] = selector

    def remove(self, key: K) -> bool:
        """Remove a key's selector, and return whether there was one."""
        selector = self._selectors.pop(key, None)
        if selector is None:
            return False
        self._calm, self._quick = 0, None
        entry = self._entries[selector]
        del entry.keys[key]
        if not entry.keys:
            del self._entries[selector]
            for rooted in entry.clauses:
                self._root.remove(rooted)
        return True

    def match(self, values: Values) -> tuple[K, ...]:
        """Return the keys whose selector is TRUE on these values, each once; the same answer may be the same tuple.

        An attribute that is not there is null; a selector in error does not match.
        """
        if self._quick is not None:
            return self._quick.match(values)
        self._count(1)
        facts = _Facts(values)
        found: list[K] = []
        seen: set[_Entry[K]] = set()
        pending = [self._root]
        while pending:
            node = pending.pop()
            for rooted in node.met(facts):
                entry = rooted.entry
                if entry not in seen:
                    seen.add(entry)
                    found.extend(entry.keys)
            for name, route in node.routes.items():
                route.follow(facts[name], pending)
        return tuple(found)

    def match_rows(self, layout: tuple[str, ...], rows: Sequence[Sequence[Scalar]]) -> list[tuple[K, ...]]:
        """Return the keys for each row, as `match` does: the values of `layout` stand in a row behind two others."""
        if self._quick is None:
            self._count(len(rows))
        if self._quick is not None:
            return self._quick.match_rows(layout, rows)
        return [self.match(dict(zip(layout, row[2:], strict=True))) for row in rows]

    def _count(self, events: int) -> None:
        self._calm += events
        if self._calm >= _CALM and len(self._entries) <= _FEW:
            self._quick = _Few({selector: tuple(entry.keys) for selector, entry in self._entries.items()})

    def _rooted(self, clause: Clause, entry: "_Entry[K]") -> "_Rooted[K]":
        constraints = tuple(sorted(clause.constraints.items(), key=_order))
        return _Rooted(entry, constraints, self._residual(clause.opaque) if clause.opaque else None)

    def _residual(self, conditions: tuple[Condition, ...]) -> "_Residual":
        root = conditions[0] if len(conditions) == 1 else And(conditions)
        text = render(root)
        known = self._residuals.get(text)
        if known is None:
            names = frozenset(node.name for node in walk(root) if isinstance(node, AttributeReference))
            known = self._residuals[text] = _Residual(Selector(text, root, names))
        return known


class _Few(Generic[K]):
    """A few selectors that are evaluated one by one. Their combined results are remembered."""

    __slots__ = ("_answers", "_layouts", "_row_tests", "_selectors", "_tests")

    def __init__(self, keys: Mapping[Selector, tuple[K, ...]]) -> None:
        self._selectors = [(1 << place, selector) for place, selector in enumerate(keys) if selector != ALWAYS]
        self._tests = [(bit, compile_selector(selector)) for bit, selector in self._selectors]
        #: rows by layout, and the tests for those that have come often: compiling them takes long
        self._layouts: Counter[tuple[str, ...]] = Counter()
        self._row_tests: dict[tuple[str, ...], list[tuple[int, CompiledRows]]] = {}
        always = sum(1 << place for place, selector in enumerate(keys) if selector == ALWAYS)
        #: by the places of those that are TRUE, but for those that always are
        self._answers = _Answers(list(enumerate(keys.values())), always)

    def match(self, values: Values) -> tuple[K, ...]:
        true = 0
        for bit, holds in self._tests:
            try:
                if holds(values) is True:
                    true |= bit
            except EvaluationError:
                continue
        return self._answers[true]

    def match_rows(self, layout: tuple[str, ...], rows: Sequence[Sequence[Scalar]]) -> list[tuple[K, ...]]:
        answers = self._answers
        if not self._selectors:
            return [answers[0]] * len(rows)
        tests = self._row_tests.get(layout)
        if tests is None:
            tests = self._compile(layout, len(rows))
        if tests is None:
            return [self.match(dict(zip(layout, row[2:], strict=True))) for row in rows]
        found: list[tuple[K, ...]] = []
        for row in rows:
            true = 0
            for bit, holds in tests:
                try:
                    if holds(row) is True:
                        true |= bit
                except EvaluationError:
                    continue
            found.append(answers[true])
        return found

    def _compile(self, layout: tuple[str, ...], rows: int) -> list[tuple[int, CompiledRows]] | None:
        """Return the tests for rows of a layout if it has come often, and None otherwise."""
        if len(self._layouts) >= _LAYOUTS:
            self._layouts.clear()
            self._row_tests.clear()
        self._layouts[layout] += rows
        if self._layouts[layout] < _OFTEN:
            return None
        places = {name: place for place, name in enumerate(layout, 2)}
        tests = [(bit, compile_for_rows(selector, places)) for bit, selector in self._selectors]
        self._row_tests[layout] = tests
        return tests


class _Answers(dict[int, tuple[K, ...]]):
    """The keys for each set of places, computed on first use."""

    def __init__(self, keys: list[tuple[int, tuple[K, ...]]], always: int) -> None:
        super().__init__()
        self._keys_of = keys
        self._always = always

    def __missing__(self, true: int) -> tuple[K, ...]:
        places = true | self._always
        found = tuple(key for place, keys in self._keys_of if places >> place & 1 for key in keys)
        self[true] = found
        return found


class _Facts(dict[str, Fact]):
    """The facts of one event, each computed on first use."""

    def __init__(self, values: Values) -> None:
        super().__init__()
        self.values_ = values

    def __missing__(self, name: str) -> Fact:
        known = self[name] = fact(self.values_.get(name))
        return known


class _Residual:
    """A condition that only evaluation can decide, compiled on first use."""

    __slots__ = ("__weakref__", "_compiled", "_selector")

    def __init__(self, selector: Selector) -> None:
        self._selector = selector
        self._compiled: Compiled | None = None

    def holds(self, values: Values) -> bool:
        if self._compiled is None:
            self._compiled = compile_selector(self._selector)
        try:
            return self._compiled(values) is True
        except EvaluationError:
            return False


class _Entry(Generic[K]):
    """The keys that share one selector."""

    __slots__ = ("clauses", "keys")

    def __init__(self) -> None:
        # A dictionary keeps the order, so that one history always gives one answer.
        self.keys: dict[K, None] = {}
        self.clauses: tuple[_Rooted[K], ...] = ()


class _Rooted(Generic[K]):
    """A clause in the tree, with its constraints in routing order."""

    __slots__ = ("constraints", "entry", "residual", "routed")

    def __init__(
        self, entry: _Entry[K], constraints: tuple[tuple[str, Allowed], ...], residual: _Residual | None
    ) -> None:
        self.entry = entry
        self.constraints = constraints
        self.residual = residual
        self.routed = _routed(constraints)

    def holds(self, facts: _Facts, depth: int) -> bool:
        """Return whether the clause is met, given that its first `depth` constraints are."""
        for name, allowed in self.constraints[depth:]:
            if not allowed.admits(facts[name]):
                return False
        return self.residual is None or self.residual.holds(facts.values_)


def _routed(constraints: tuple[tuple[str, Allowed], ...]) -> int:
    """Return how many constraints are routed: a clause has a place for each combination of their spans."""
    places = 1
    for depth, (_, allowed) in enumerate(constraints):
        places *= len(allowed.spans)
        if depth and places > max(_PLACES, len(constraints[0][1].spans)):
            return depth
    return len(constraints)


def _order(constraint: tuple[str, Allowed]) -> tuple[int, int, str]:
    """Return the routing order of a constraint: selective ones first, in one order for all clauses."""
    name, allowed = constraint
    if allowed.family in (object, NoneType):
        rank = 3 if allowed.family is object else 4
    elif allowed.points:
        rank = 0
    else:
        # An end of one part is not a value.
        rank = 2 if any(len(low) == 1 or len(high) == 1 for low, high in allowed.spans) else 1
    return rank, len(allowed.spans), name


class _Node(Generic[K]):
    """Clauses whose first `depth` constraints are met: in a short list, or distributed over routes."""

    __slots__ = ("depth", "done", "routes", "waiting")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        #: evaluated one by one; None once they are routed
        self.waiting: list[_Rooted[K]] | None = []
        #: clauses without further routable constraints
        self.done: dict[_Rooted[K], None] = {}
        self.routes: dict[str, _Route[K]] = {}

    @property
    def empty(self) -> bool:
        return not (self.waiting or self.done or self.routes)

    def unrouted(self) -> int:
        return len(self.done) + sum(not rooted.routed for rooted in self.waiting or ())

    def met(self, facts: _Facts) -> list[_Rooted[K]]:
        depth = self.depth
        return [rooted for rooted in self.waiting or self.done if rooted.holds(facts, depth)]

    def add(self, rooted: _Rooted[K]) -> None:
        if self.waiting is None:
            self.spread(rooted)
            return
        self.waiting.append(rooted)
        if len(self.waiting) > _FEW:
            waiting, self.waiting = self.waiting, None
            for each in waiting:
                self.spread(each)

    def spread(self, rooted: _Rooted[K]) -> None:
        if rooted.routed <= self.depth:
            self.done[rooted] = None
            return
        name, allowed = rooted.constraints[self.depth]
        route = self.routes.get(name)
        if route is None:
            route = self.routes[name] = _Route()
        for node in route.places(allowed, self.depth + 1):
            node.add(rooted)

    def remove(self, rooted: _Rooted[K]) -> None:
        if self.waiting is not None:
            self.waiting.remove(rooted)
        elif rooted.routed <= self.depth:
            del self.done[rooted]
        else:
            name, allowed = rooted.constraints[self.depth]
            self.routes[name].remove(rooted, allowed)
            if self.routes[name].empty:
                del self.routes[name]


class _Route(Generic[K]):
    """The routes from a node by one attribute."""

    __slots__ = ("points", "present", "ranges")

    def __init__(self) -> None:
        self.points: dict[Fact, _Node[K]] = {}
        self.ranges: dict[type, IntervalTree[_Node[K]]] = {}
        self.present: _Node[K] | None = None

    @property
    def empty(self) -> bool:
        return not self.points and not self.ranges and self.present is None

    def follow(self, known: Fact, pending: list[_Node[K]]) -> None:
        """Add the nodes that a fact leads to."""
        node = self.points.get(known)
        if node is not None:
            pending.append(node)
        tree = self.ranges.get(known[0])
        if tree is not None:
            pending += tree.holding(known[1])
        if self.present is not None and known[0] is not NoneType and known[0] is not EvaluationError:
            pending.append(self.present)

    def places(self, allowed: Allowed, depth: int) -> Iterator[_Node[K]]:
        """Yield the node of each span, created if there is none."""
        if allowed.family is object:
            if self.present is None:
                self.present = _Node(depth)
            yield self.present
            return
        for span in allowed.spans:
            node = self.find(allowed.family, span)
            if node is None:
                node = _Node(depth)
                self.put(allowed.family, span, node)
            yield node

    def find(self, family: type, span: tuple[Any, Any]) -> _Node[K] | None:
        if is_point(span):
            return self.points.get((family, span[0]))
        tree = self.ranges.get(family)
        return None if tree is None else tree.get(*span)

    def put(self, family: type, span: tuple[Any, Any], node: _Node[K]) -> None:
        if is_point(span):
            self.points[family, span[0]] = node
        else:
            if family not in self.ranges:
                self.ranges[family] = IntervalTree()
            self.ranges[family].put(*span, node)

    def remove(self, rooted: _Rooted[K], allowed: Allowed) -> None:
        for node in list(self.places(allowed, 0)):
            node.remove(rooted)
        if self.present is not None and self.present.empty:
            self.present = None
        if allowed.family is not object:
            for span in allowed.spans:
                self.drop_if_empty(allowed.family, span)

    def drop_if_empty(self, family: type, span: tuple[Any, Any]) -> None:
        node = self.find(family, span)
        if node is None or not node.empty:
            return
        if is_point(span):
            del self.points[family, span[0]]
            return
        self.ranges[family].discard(*span)
        if not len(self.ranges[family]):
            del self.ranges[family]
