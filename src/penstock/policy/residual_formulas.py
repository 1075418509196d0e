"""Formulas over the attributes of an event that is not known yet: conjunctions and their opposites, each kept once.

An atom says that an attribute has a value, or that a comparison holds of attributes that all have one: every atom is
true or false of an event, also where values are null, which the selector language would call unknown. A disjunction is
the opposite of a conjunction of opposites, so that what is the same, or the opposite, is seen to be where it is joined.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from penstock.errors import RefusedError
from penstock.model.limits import DEFAULT_LIMITS
from penstock.model.values import Kind, Value
from penstock.policy.formulas import all_of, one_of
from penstock.selector.ast import Attribute, Compare, Comparison, Condition, Literal
from penstock.selector.sets import ValueSet

#: conjunctions that are taken apart when they are joined to others; longer ones stay whole, or chains would be copied
_TAKEN_APART: Final = 64
#: parts that are compared with each other
_COMPARED: Final = 32


@dataclass(frozen=True, slots=True)
class Variable:
    """An attribute of the event, or something that brokers know of the moment, by the name that selectors have."""

    name: str
    kind: Kind
    of_moment: bool = False
    #: whether it always has a value
    certain: bool = False


@dataclass(frozen=True, slots=True)
class Present:
    """An attribute has a value."""

    variable: Variable

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The attribute."""
        return (self.variable,)


@dataclass(frozen=True, slots=True)
class Holds:
    """Attributes have values, and a condition holds of them."""

    condition: Condition
    variables: tuple[Variable, ...]

    @property
    def constant(self) -> tuple[Comparison, Value] | None:
        """How the one attribute is compared and with which constant, where it is."""
        match self.condition:
            case Attribute():
                return Comparison.EQ, True
            case Compare(operator, Attribute(), Literal(value)) if value is not None:
                return operator, value
        return None


Atom: TypeAlias = Present | Holds


@dataclass(slots=True, eq=False, repr=False)
class Node:
    """An atom or a conjunction, or the opposite of one; there is one object for each, and it knows its opposite."""

    graph: "Graph"
    positive: bool
    of: Atom | frozenset["Node"]
    #: when it was made: an order that is the same for the same policy
    number: int
    opposite: "Node" = field(init=False)

    def __invert__(self) -> "Node":
        return self.opposite

    def __and__(self, other: "Node | bool") -> "Node | bool":
        return self.graph.every((self, other))

    def __or__(self, other: "Node | bool") -> "Node | bool":
        return self.graph.some((self, other))

    @property
    def parts(self) -> list["Node"]:
        """Of what it, or its opposite, is the conjunction, in order; nothing for an atom."""
        return sorted(self.of, key=lambda part: part.number) if isinstance(self.of, frozenset) else []

    @property
    def atom(self) -> Atom | None:
        """Which atom it, or its opposite, is."""
        return None if isinstance(self.of, frozenset) else self.of


Formula: TypeAlias = Node | bool


def opposite(formula: Formula) -> Formula:
    """Return that it does not hold."""
    return not formula if isinstance(formula, bool) else ~formula


Following: TypeAlias = Mapping[Variable, ValueSet]
"""What follows from a formula about single attributes: the values that each may have, null and NaN among them."""


class Graph:
    """All formulas that belong together."""

    def __init__(self) -> None:
        #: what follows from which, as far as it was asked for
        self.following: dict[Node, Following] = {}
        self._known: dict[Atom | frozenset[Node], Node] = {}
        self._steps = 0

    def atom(self, atom: Atom) -> Node:
        """Return an atom as a formula."""
        return self._node(atom)

    def present(self, variable: Variable) -> Formula:
        """Return that an attribute has a value."""
        return variable.certain or self._node(Present(variable))

    def some(self, formulas: Iterable[Formula]) -> Formula:
        """Return that one holds."""
        return opposite(self.every(map(opposite, formulas)))

    def every(self, formulas: Iterable[Formula]) -> Formula:
        """Return that all hold. Raises `RefusedError` (`policy.residual-limit`)."""
        parts: dict[Node, None] = {}
        pending = [*formulas]
        while pending:
            self.step()
            formula = pending.pop()
            if formula is False or (isinstance(formula, Node) and ~formula in parts):
                return False
            if isinstance(formula, bool) or formula in parts:
                continue
            if formula.positive and isinstance(formula.of, frozenset) and len(formula.of) <= _TAKEN_APART:
                pending.extend(formula.parts)
                continue
            parts[formula] = None
            if not pending:
                pending = self._shortened(parts)
        kept = _stronger(parts)
        return kept[0] if len(kept) == 1 else self._node(frozenset(kept)) if kept else True

    def _shortened(self, parts: dict[Node, None]) -> list[Formula]:
        """Take out the opposites of conjunctions that say less beside the other parts, and return what they say."""
        changed: list[Formula] = []
        for part in [*parts]:
            if part.positive or not isinstance(part.of, frozenset):
                continue
            if any(~one in parts for one in part.of):
                del parts[part]
            elif not part.of.isdisjoint(parts):
                del parts[part]
                changed.append(opposite(self.every(one for one in part.parts if one not in parts)))
        return changed

    def step(self) -> None:
        """Count a step. Raises `RefusedError` (`policy.residual-limit`)."""
        self._steps += 1
        if self._steps > DEFAULT_LIMITS.residual_steps:
            raise too_large()

    def _node(self, of: Atom | frozenset[Node]) -> Node:
        found = self._known.get(of)
        if found is None:
            number = len(self._known)
            found, other = Node(self, True, of, number), Node(self, False, of, number)
            found.opposite, other.opposite = other, found
            self._known[of] = found
        return found


def _stronger(parts: Iterable[Node]) -> list[Node]:
    """Leave out the opposites of conjunctions that follow from the opposite of a shorter one, where there are few."""
    parts = [*parts]
    denied = {part: part.of for part in parts if not part.positive and isinstance(part.of, frozenset)}
    if not 1 < len(denied) <= _COMPARED:
        return parts
    weak = {part for part, of in denied.items() if any(other < of for other in denied.values())}
    return [part for part in parts if part not in weak]


def too_large() -> RefusedError:
    """Return the error of what is left of a policy and is too much for a selector."""
    return RefusedError(
        "policy.residual-limit",
        "what is left of the policy is too large for a selector",
        hint="let fewer rules speak about the event, or have it enforced event by event",
    )


@all_of.register
def _all_of(one: Node, formulas: Sequence[Formula]) -> Formula:
    return one.graph.every(formulas)


@one_of.register
def _one_of(one: Node, formulas: Sequence[Formula]) -> Formula:
    return one.graph.some(formulas)


# --- the event and the moment ----------------------------------------------------------------------------------------


def about_moment(node: Node) -> bool | None:
    """Say whether a formula asks for the moment alone; None where it asks for the event too."""
    kinds: set[bool] = set()
    pending, seen = [node], {node}
    while pending:
        current = pending.pop()
        if current.atom is not None:
            kinds |= {variable.of_moment for variable in current.atom.variables}
        fresh = [part for part in current.parts if part not in seen]
        seen.update(fresh)
        pending += fresh
    return kinds.pop() if len(kinds) == 1 else None


def apart(formula: Formula, most: int) -> list[tuple[Formula, Formula]]:
    """Return pairs of what is asked of the event and of the moment: the formula holds where both of one pair do.

    Raises `RefusedError` (`policy.residual-limit`) where that takes more pairs than allowed.
    """
    if isinstance(formula, bool):
        return [(formula, True)] if formula else []
    kind = about_moment(formula)
    if kind is not None:
        return [(True, formula)] if kind else [(formula, True)]
    graph = formula.graph
    pairs: list[tuple[Formula, Formula]]
    if not formula.positive:
        pairs = [pair for part in formula.parts for pair in apart(~part, most)]
    else:
        pairs = [(True, True)]
        for part in formula.parts:
            further = apart(part, most)
            joined = [
                (graph.every([one, other]), graph.every([when, also])) for one, when in pairs for other, also in further
            ]
            pairs = [pair for pair in joined if False not in pair]
            if len(pairs) > most:
                raise too_large()
    if len(pairs) > most:
        raise too_large()
    return pairs
