"""Formulas over events made short: what follows from other parts is left out, and what is common is said once."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Final

from penstock.policy.residual_formulas import Atom, Following, Formula, Holds, Node, Present, Variable, opposite
from penstock.selector.ast import Comparison
from penstock.selector.scalar import compare

#: parts of a conjunction that are compared with each other
_COMPARED: Final = 32
_NOTHING: Final = Following()


def following(node: Node) -> Following:
    """Return what follows from a formula."""
    known = node.graph.following
    if node not in known:
        node.graph.step()
        known[node] = _following(node)
    return known[node]


def _following(node: Node) -> Following:
    match node.of:
        case Present(variable):
            return Following(frozenset((variable,))) if node.positive else _NOTHING
        case Holds(_, variables) as atom if node.positive:
            match atom.constant:
                case (variable, Comparison.EQ, value):
                    return Following(frozenset(variables), {variable: frozenset((value,))})
            return Following(frozenset(variables))
        case Holds():
            return _NOTHING
    if node.positive:
        return reduce(_and_also, map(following, node.parts))
    return reduce(_or_else, (following(~part) for part in node.parts))


def _and_also(one: Following, other: Following) -> Following:
    both = {name: one.values[name] & other.values[name] for name in one.values.keys() & other.values.keys()}
    return Following(one.there | other.there, {**one.values, **other.values, **both})


def _or_else(one: Following, other: Following) -> Following:
    values = {name: one.values[name] | other.values[name] for name in one.values.keys() & other.values.keys()}
    return Following(one.there & other.there, values)


@dataclass(frozen=True, slots=True)
class Known:
    """Atoms that are taken for true or false, and what follows from what is taken for true."""

    literals: Mapping[Node, bool] = field(default_factory=dict)
    missing: frozenset[Variable] = frozenset()
    follows: Following = _NOTHING

    def beside(self, nodes: Iterable[Node]) -> "Known":
        """Return what is known where some formulas hold too."""
        nodes = [*nodes]
        literals = {one: one is node for node in nodes if node.atom is not None for one in (node, ~node)}
        missing = {node.of.variable for node in nodes if isinstance(node.of, Present) and not node.positive}
        follows = reduce(_and_also, map(following, nodes), self.follows)
        return Known({**self.literals, **literals}, self.missing | missing, follows)

    def truth(self, literal: Node) -> bool | None:
        """Say whether an atom, or its opposite, is true; None where that is not known."""
        known = self.literals.get(literal)
        if known is not None:
            return known
        found = self._atom(literal.of)
        return found if found is None or literal.positive else not found

    def _atom(self, atom: Atom | frozenset[Node]) -> bool | None:
        match atom:
            case Present(variable):
                return True if variable in self.follows.there else None
            case Holds(_, variables):
                return self._compared(atom) if self.missing.isdisjoint(variables) else False
        return None

    def _compared(self, atom: Holds) -> bool | None:
        match atom.constant:
            case (variable, operator, value) if variable in self.follows.values:
                answers = {compare(operator, one, value) for one in self.follows.values[variable]}
                return answers.pop() if len(answers) == 1 else None
        return None


def simplified(formula: Formula, known: Known) -> Formula:
    """Return a formula that says the same where something is known, and is shorter."""
    if isinstance(formula, bool):
        return formula
    formula.graph.step()
    if formula.atom is not None:
        truth = known.truth(formula)
        return formula if truth is None else truth
    made = _conjoined(formula, known)
    return made if formula.positive else _factored(opposite(made))


def _conjoined(node: Node, known: Known) -> Formula:
    """Shorten the conjunction that a node, or its opposite, is: each part where the others hold, one after another."""
    plain: list[Node] = []
    done: list[Node] = []
    inner = known
    for part in sorted((part for part in node.parts if part.atom is not None), key=_plainness):
        truth = inner.truth(part)
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
            equal = atom.constant is not None and atom.constant[1] is Comparison.EQ
            return (0 if equal and node.positive else 1 if node.positive else 4), node.number
        case Present():
            return (2 if node.positive else 3), node.number
    return 5, node.number
