"""Formulas over events made short: what follows from other parts is left out, and what is common is said once."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, reduce
from typing import Final

from penstock.model.values import AttributeSpec, Kind
from penstock.policy.residual_formulas import Following, Formula, Holds, Node, Present, Variable, opposite
from penstock.selector.ast import Comparison
from penstock.selector.sets import ValueSet, select, universe

#: parts of a conjunction that are compared with each other
_COMPARED: Final = 32


@cache
def _everything(kind: Kind) -> ValueSet:
    return universe(AttributeSpec(kind))


@cache
def _there(kind: Kind) -> ValueSet:
    return _everything(kind) - ValueSet(kind, (), null=True)


def _allowed(node: Node, variable: Variable) -> ValueSet | None:
    """Return the values of one attribute of which an atom, or its opposite, is true; none where they are not known."""
    match node.of:
        case Present():
            found = _there(variable.kind)
        case Holds() as atom if atom.constant is not None:
            found = ValueSet(variable.kind, select(variable.kind, *atom.constant))
        case _:
            return _there(variable.kind) if node.positive else None
    return found if node.positive else _everything(variable.kind) - found


def following(node: Node) -> Following:
    """Return what follows from a formula."""
    known = node.graph.following
    if node not in known:
        node.graph.step()
        known[node] = _following(node)
    return known[node]


def _following(node: Node) -> Following:
    if node.atom is not None:
        sets = {variable: _allowed(node, variable) for variable in node.atom.variables}
        return {variable: values for variable, values in sets.items() if values is not None}
    if node.positive:
        return reduce(_and_also, map(following, node.parts))
    return reduce(_or_else, (following(~part) for part in node.parts))


def _and_also(one: Following, other: Following) -> Following:
    return {**one, **other, **{name: one[name] & other[name] for name in one.keys() & other.keys()}}


def _or_else(one: Following, other: Following) -> Following:
    return {name: one[name] | other[name] for name in one.keys() & other.keys()}


@dataclass(frozen=True, slots=True)
class Known:
    """Formulas that are taken for true or false, and what follows from what is taken for true."""

    truths: Mapping[Node, bool] = field(default_factory=dict)
    follows: Following = field(default_factory=dict)

    def beside(self, nodes: Iterable[Node]) -> "Known":
        """Return what is known where some formulas hold too."""
        nodes = [*nodes]
        truths = {one: one is node for node in nodes for one in (node, ~node)}
        return Known({**self.truths, **truths}, reduce(_and_also, map(following, nodes), self.follows))

    def truth(self, node: Node) -> bool | None:
        """Say whether a formula is true; None where that is not known."""
        known = self.truths.get(node)
        if known is not None or node.atom is None:
            return known
        answers = {self._of_one(node, variable) for variable in node.atom.variables}
        return None if answers == {None} else False not in answers

    def _of_one(self, node: Node, variable: Variable) -> bool | None:
        """Say whether an atom is true by what is known of one attribute."""
        values = self.follows.get(variable)
        if values is None:
            return None
        if isinstance(node.of, Holds):
            if not values.spans and not values.nan:
                return not node.positive
            if node.of.constant is None:
                return None
        if (values & following(node)[variable]).empty:
            return False
        return True if (values & following(~node)[variable]).empty else None


def simplified(formula: Formula, known: Known) -> Formula:
    """Return a formula that says the same where something is known, and is shorter."""
    if isinstance(formula, bool):
        return formula
    formula.graph.step()
    truth = known.truth(formula)
    if truth is not None or formula.atom is not None:
        return formula if truth is None else truth
    made = _conjoined(formula, known)
    return made if formula.positive else _factored(opposite(made))


def _conjoined(node: Node, known: Known) -> Formula:
    """Shorten the conjunction that a node, or its opposite, is: each part where the others hold, one after another."""
    plain: list[Node] = []
    done: list[Node] = []
    inner = known
    pending = sorted((part for part in node.parts if part.atom is not None), key=_plainness)
    few = len(pending) <= _COMPARED
    while pending:
        part = pending.pop(0)
        truth = (inner.beside(pending) if few else inner).truth(part)
        if truth is False:
            return False
        if truth is None:
            plain.append(part)
            inner = inner.beside([part])
    pending = [part for part in node.parts if part.atom is None]
    few = len(pending) <= _COMPARED
    while pending:
        found = simplified(pending.pop(0), inner.beside([*done, *pending]) if few else inner)
        if found is False:
            return False
        if isinstance(found, Node):
            done.append(found)
    made = node.graph.every([*_needed(plain, done), *done])
    # What was looked at before may say less beside what has become plain since.
    again = any(one.atom is not None for one in done) and isinstance(made, Node) and made is not node
    return simplified(made, known) if again else made


def _needed(plain: list[Node], others: list[Node]) -> list[Node]:
    """Leave out what follows from the one formula that is not plain."""
    if len(others) != 1:
        # Each of several may have become short because of what would be left out.
        return plain
    known = Known().beside(others)
    return [one for one in plain if known.truth(one) is not True]


def _factored(formula: Formula) -> Formula:
    """Say once what all that are joined by a disjunction have in common."""
    if isinstance(formula, bool) or formula.positive or not isinstance(formula.of, frozenset):
        return formula
    graph = formula.graph
    ways = [~part for part in formula.parts]
    sets = [way.of if way.positive and isinstance(way.of, frozenset) else frozenset((way,)) for way in ways]
    common = frozenset.intersection(*sets)
    if not common:
        return formula
    return graph.every([*common, graph.some(graph.every(those - common) for those in sets)])


def _plainness(node: Node) -> tuple[int, int]:
    """Return an order in which what follows comes after that from which it does."""
    match node.of:
        case Holds() as atom:
            equal = atom.constant is not None and atom.constant[0] is Comparison.EQ
            return (0 if equal and node.positive else 1 if node.positive else 4), node.number
        case Present():
            return (2 if node.positive else 3), node.number
    return 5, node.number
