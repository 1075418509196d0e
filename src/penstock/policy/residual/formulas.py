"""Formulas over the attributes of an event that is not known yet, and the selectors that they become.

A formula is a conjunction or the negation of one; equal formulas are one object. An atom says that an attribute has a
value, or that a comparison of attributes with values is true: for each event every atom is true or false, also if
values are null, which the selector language calls unknown. A disjunction is a negated conjunction of negations, so that
equal and opposite formulas are recognised where they are joined.

`selector_of` gives a selector that is TRUE for exactly the events for which the formula is true, with one exception: if
an event has NaN for a number in the selector, which is an error in the selector language, it is never TRUE, whatever
the policy would decide.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache, reduce
from typing import Final, TypeAlias

from penstock.errors import LimitError, MalformedError, RefusedError
from penstock.model.values import INTEGER_MAX, INTEGER_MIN, AttributeSpec, Kind, Value, check_value
from penstock.policy.analysis.formulas import all_of, one_of
from penstock.policy.language.datatypes import BOOLEAN, DATE_TIME, DOUBLE, INTEGER, STRING, DataType
from penstock.policy.language.datatypes import Value as PolicyValue
from penstock.policy.language.times import DAY, days_of
from penstock.policy.limits import RESIDUAL_STEPS
from penstock.selector import ALWAYS, NEVER, Selector, built
from penstock.selector.ast import (
    And,
    AttributeReference,
    Compare,
    ComparisonOperator,
    Condition,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    flatten,
    literal,
)
from penstock.selector.sets import ValueSet, select, universe

#: conjunctions up to this length are flattened when they are joined; longer ones are not, to avoid quadratic copying
_TAKEN_APART: Final = 64
#: up to so many parts are compared with each other
_COMPARED: Final = 32


@dataclass(frozen=True, slots=True)
class Variable:
    """An attribute of the event, or a broker's fact about the current instant, by its name in selectors."""

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
class ConditionAtom:
    """Attributes have values, and they satisfy a condition."""

    condition: Condition
    variables: tuple[Variable, ...]

    @property
    def constant(self) -> tuple[ComparisonOperator, Value] | None:
        """The operator and the constant, if a single attribute is compared with a constant."""
        match self.condition:
            case AttributeReference():
                return ComparisonOperator.EQ, True
            case Compare(operator, AttributeReference(), Literal(value)) if value is not None:
                return operator, value
        return None


Atom: TypeAlias = Present | ConditionAtom


@dataclass(slots=True, eq=False, repr=False)
class FormulaNode:
    """An atom, a conjunction, or the negation of one; there is one object for each, linked to its negation."""

    graph: "Graph"
    positive: bool
    of: Atom | frozenset["FormulaNode"]
    #: a serial number: an order that is the same for the same policy
    number: int
    opposite: "FormulaNode" = field(init=False)

    def __invert__(self) -> "FormulaNode":
        return self.opposite

    def __and__(self, other: "FormulaNode | bool") -> "FormulaNode | bool":
        return self.graph.every((self, other))

    def __or__(self, other: "FormulaNode | bool") -> "FormulaNode | bool":
        return self.graph.some((self, other))

    @property
    def parts(self) -> list["FormulaNode"]:
        """The parts of the conjunction that it, or its negation, is, in order; empty for an atom."""
        return sorted(self.of, key=lambda part: part.number) if isinstance(self.of, frozenset) else []

    @property
    def atom(self) -> Atom | None:
        """The atom that it, or its negation, is."""
        return None if isinstance(self.of, frozenset) else self.of


Formula: TypeAlias = FormulaNode | bool


def opposite(formula: Formula) -> Formula:
    """Return the negation."""
    return not formula if isinstance(formula, bool) else ~formula


Following: TypeAlias = Mapping[Variable, ValueSet]
"""Consequences of a formula for single attributes: the values that each can have, including null and NaN."""


class Graph:
    """A set of formulas that share their parts."""

    def __init__(self) -> None:
        #: a cache of consequences
        self.following: dict[FormulaNode, Following] = {}
        self._known: dict[Atom | frozenset[FormulaNode], FormulaNode] = {}
        self._steps = 0

    def atom(self, atom: Atom) -> FormulaNode:
        """Return an atom as a formula."""
        return self._node(atom)

    def present(self, variable: Variable) -> Formula:
        """Return that an attribute has a value."""
        return variable.certain or self._node(Present(variable))

    def some(self, formulas: Iterable[Formula]) -> Formula:
        """Return the disjunction."""
        return opposite(self.every(map(opposite, formulas)))

    def every(self, formulas: Iterable[Formula]) -> Formula:
        """Return the conjunction. Raises `RefusedError` (`policy.residual-limit`)."""
        parts: dict[FormulaNode, None] = {}
        pending = [*formulas]
        while pending:
            self.step()
            formula = pending.pop()
            if formula is False or (isinstance(formula, FormulaNode) and ~formula in parts):
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

    def _shortened(self, parts: dict[FormulaNode, None]) -> list[Formula]:
        """Remove negated conjunctions that the other parts shorten, and return their shorter forms."""
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
        if self._steps > RESIDUAL_STEPS:
            raise too_large()

    def _node(self, of: Atom | frozenset[FormulaNode]) -> FormulaNode:
        found = self._known.get(of)
        if found is None:
            number = len(self._known)
            found, other = FormulaNode(self, True, of, number), FormulaNode(self, False, of, number)
            found.opposite, other.opposite = other, found
            self._known[of] = found
        return found


def _stronger(parts: Iterable[FormulaNode]) -> list[FormulaNode]:
    """Remove negated conjunctions that follow from the negation of a shorter one, if there are few."""
    parts = [*parts]
    denied = {part: part.of for part in parts if not part.positive and isinstance(part.of, frozenset)}
    if not 1 < len(denied) <= _COMPARED:
        return parts
    weak = {part for part, of in denied.items() if any(other < of for other in denied.values())}
    return [part for part in parts if part not in weak]


def too_large() -> RefusedError:
    """Return the error for a residual that is too large for a selector."""
    return RefusedError(
        "policy.residual-limit",
        "the residual of the policy is too large for a selector",
        hint="use event attributes in fewer rules, or enforce the policy event by event",
    )


@all_of.register
def _all_of(one: FormulaNode, formulas: Sequence[Formula]) -> Formula:
    return one.graph.every(formulas)


@one_of.register
def _one_of(one: FormulaNode, formulas: Sequence[Formula]) -> Formula:
    return one.graph.some(formulas)


# --- the event and the moment ----------------------------------------------------------------------------------------


def about_moment(node: FormulaNode) -> bool | None:
    """Return whether a formula uses only the environment; None if it uses the event too."""
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
    """Split a formula into pairs of conditions on the event and on the environment; it is true if one pair is.

    Raises `RefusedError` (`policy.residual-limit`) if that takes more pairs than allowed.
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


# ----------------------------------------------------------------------------------------------------------------------
# Simplification: parts that follow from others are removed, and common parts are factored out.


@cache
def _everything(kind: Kind) -> ValueSet:
    return universe(AttributeSpec(kind))


@cache
def _there(kind: Kind) -> ValueSet:
    return _everything(kind) - ValueSet(kind, (), null=True)


def _allowed(node: FormulaNode, variable: Variable) -> ValueSet | None:
    """Return the values of one attribute for which an atom, or its negation, is true; None if they are not known."""
    match node.of:
        case Present():
            found = _there(variable.kind)
        case ConditionAtom() as atom if atom.constant is not None:
            found = ValueSet(variable.kind, select(variable.kind, *atom.constant))
        case _:
            return _there(variable.kind) if node.positive else None
    return found if node.positive else _everything(variable.kind) - found


def following(node: FormulaNode) -> Following:
    """Return the consequences of a formula for single attributes."""
    known = node.graph.following
    if node not in known:
        node.graph.step()
        known[node] = _following(node)
    return known[node]


def _following(node: FormulaNode) -> Following:
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
class Assumptions:
    """Formulas that are assumed to be true or false, and their consequences."""

    truths: Mapping[FormulaNode, bool] = field(default_factory=dict)
    follows: Following = field(default_factory=dict)

    def beside(self, nodes: Iterable[FormulaNode]) -> "Assumptions":
        """Return the assumptions extended by some formulas."""
        nodes = [*nodes]
        truths = {one: one is node for node in nodes for one in (node, ~node)}
        return Assumptions({**self.truths, **truths}, reduce(_and_also, map(following, nodes), self.follows))

    def truth(self, node: FormulaNode) -> bool | None:
        """Return whether a formula is true; None if that is not known."""
        known = self.truths.get(node)
        if known is not None or node.atom is None:
            return known
        answers = {self._of_one(node, variable) for variable in node.atom.variables}
        return None if answers == {None} else False not in answers

    def _of_one(self, node: FormulaNode, variable: Variable) -> bool | None:
        """Return whether an atom is true, from the known values of one attribute."""
        values = self.follows.get(variable)
        if values is None:
            return None
        if isinstance(node.of, ConditionAtom):
            if not values.spans and not values.nan:
                return not node.positive
            if node.of.constant is None:
                return None
        if (values & following(node)[variable]).empty:
            return False
        return True if (values & following(~node)[variable]).empty else None


def simplified(formula: Formula, known: Assumptions) -> Formula:
    """Return a shorter formula that is equivalent under assumptions."""
    if isinstance(formula, bool):
        return formula
    formula.graph.step()
    truth = known.truth(formula)
    if truth is not None or formula.atom is not None:
        return formula if truth is None else truth
    made = _conjoined(formula, known)
    return made if formula.positive else _factored(opposite(made))


def _conjoined(node: FormulaNode, known: Assumptions) -> Formula:
    """Shorten a conjunction or its negation: simplify each part under the assumption of the others, in turn."""
    plain: list[FormulaNode] = []
    done: list[FormulaNode] = []
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
        if isinstance(found, FormulaNode):
            done.append(found)
    made = node.graph.every([*_needed(plain, done), *done])
    # Earlier parts can become shorter when later ones were simplified.
    again = any(one.atom is not None for one in done) and isinstance(made, FormulaNode) and made is not node
    return simplified(made, known) if again else made


def _needed(plain: list[FormulaNode], others: list[FormulaNode]) -> list[FormulaNode]:
    """Remove parts that follow from the only formula that is not an atom."""
    if len(others) != 1:
        # With several such formulas, each may have been shortened because of parts that would be removed.
        return plain
    known = Assumptions().beside(others)
    return [one for one in plain if known.truth(one) is not True]


def _factored(formula: Formula) -> Formula:
    """Factor out the common parts of a disjunction."""
    if isinstance(formula, bool) or formula.positive or not isinstance(formula.of, frozenset):
        return formula
    graph = formula.graph
    ways = [~part for part in formula.parts]
    sets = [way.of if way.positive and isinstance(way.of, frozenset) else frozenset((way,)) for way in ways]
    common = frozenset.intersection(*sets)
    if not common:
        return formula
    return graph.every([*common, graph.some(graph.every(those - common) for those in sets)])


def _plainness(node: FormulaNode) -> tuple[int, int]:
    """Return a sort key by which consequences come after their causes."""
    match node.of:
        case ConditionAtom() as atom:
            equal = atom.constant is not None and atom.constant[0] is ComparisonOperator.EQ
            return (0 if equal and node.positive else 1 if node.positive else 4), node.number
        case Present():
            return (2 if node.positive else 3), node.number
    return 5, node.number


EQ, LT, LE, GT, GE = (
    ComparisonOperator.EQ,
    ComparisonOperator.LT,
    ComparisonOperator.LE,
    ComparisonOperator.GT,
    ComparisonOperator.GE,
)
_LARGEST: Final = 1.7976931348623157e308
_EPOCH: Final = days_of(1970, 1, 1) * DAY
_START: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_FIRST: Final = (datetime.min.replace(tzinfo=UTC) - _START) // _MICROSECOND
_LAST: Final = (datetime.max.replace(tzinfo=UTC) - _START) // _MICROSECOND


class UnsaidError(Exception):
    """The selector language cannot express the construct in the message."""


# --- comparisons -----------------------------------------------------------------------------------------------------


def compared(
    graph: Graph, variable: Variable, operator: ComparisonOperator, value: PolicyValue, of_type: DataType
) -> Formula:
    """Return the comparison of an attribute with a constant. Raises `UnsaidError`."""
    return _COMPARE[of_type](graph, variable, operator, value)


def compared_with(
    graph: Graph, one: Variable, operator: ComparisonOperator, other: Variable, of_type: DataType
) -> Formula:
    """Return the comparison of two attributes. Raises `UnsaidError`."""
    if one == other and of_type is not DOUBLE:
        return graph.present(one) if operator in (EQ, LE, GE) else False
    if one.of_moment is not other.of_moment:
        # Filters at publishers do not know the environment, and conditions on the environment do not know the event.
        raise UnsaidError("a comparison of the event with the environment")
    variables = (one,) if one == other else (one, other)
    return graph.atom(
        ConditionAtom(Compare(operator, AttributeReference(one.name), AttributeReference(other.name)), variables)
    )


def like(graph: Graph, variable: Variable, *, before: bool, part: str, behind: bool) -> Formula:
    """Return that a string contains a part: at its beginning, at its end, or anywhere. Raises `UnsaidError`."""
    _check(Kind.STRING, part)
    if not part:
        return graph.present(variable)
    escaped = "".join(f"\\{letter}" if letter in "%_\\" else letter for letter in part)
    pattern = f"{'%' if before else ''}{escaped}{'%' if behind else ''}"
    escape = "\\" if escaped != part else None
    return graph.atom(ConditionAtom(Like(AttributeReference(variable.name), pattern, escape), (variable,)))


def _atom(graph: Graph, variable: Variable, operator: ComparisonOperator, value: str | float | datetime) -> Formula:
    return graph.atom(ConditionAtom(Compare(operator, AttributeReference(variable.name), literal(value)), (variable,)))


def _texts(graph: Graph, variable: Variable, operator: ComparisonOperator, value: str) -> Formula:
    _check(Kind.STRING, value)
    return _atom(graph, variable, operator, value)


def _booleans(graph: Graph, variable: Variable, _operator: ComparisonOperator, value: bool) -> Formula:
    true = graph.atom(ConditionAtom(AttributeReference(variable.name), (variable,)))
    return true if value else graph.every([graph.present(variable), ~true])


def _integers(graph: Graph, variable: Variable, operator: ComparisonOperator, value: int) -> Formula:
    if INTEGER_MIN <= value <= INTEGER_MAX:
        return _atom(graph, variable, operator, value)
    return _beyond(graph, variable, operator, above=value > 0)


def _beyond(graph: Graph, variable: Variable, operator: ComparisonOperator, *, above: bool) -> Formula:
    """Return the comparison with a constant that is outside the range of all values."""
    return graph.present(variable) if operator in ((LT, LE) if above else (GT, GE)) else False


def _doubles(graph: Graph, variable: Variable, operator: ComparisonOperator, value: float) -> Formula:
    if math.isnan(value):
        if operator is EQ:
            raise UnsaidError("equality with NaN")
        return False
    if math.isinf(value):
        return _infinite(graph, variable, operator if value > 0 else operator.flipped, 1 if value > 0 else -1)
    return _atom(graph, variable, operator, value)


def _infinite(graph: Graph, variable: Variable, operator: ComparisonOperator, sign: int) -> Formula:
    """Return the comparison with an infinite constant, which has no literal."""

    def atom(side: ComparisonOperator) -> Formula:
        return _atom(graph, variable, side if sign > 0 else side.flipped, sign * _LARGEST)

    match operator:
        case ComparisonOperator.EQ | ComparisonOperator.GE:
            return atom(GT)
        case ComparisonOperator.LT:
            return atom(LE)
        case ComparisonOperator.LE:
            # That it is there would not do: it may be no number.
            return graph.some([atom(LE), atom(GT)])
    return False


def _moments(graph: Graph, variable: Variable, operator: ComparisonOperator, value: PolicyValue) -> Formula:
    exact = (value.order - _EPOCH) * 1_000_000
    whole = math.floor(exact)
    if exact != whole:
        if operator is EQ:
            return False
        operator, whole = (LE, whole) if operator in (LT, LE) else (GE, whole + 1)
    if not _FIRST <= whole <= _LAST:
        return _beyond(graph, variable, operator, above=whole > 0)
    return _atom(graph, variable, operator, _START + whole * _MICROSECOND)


_COMPARE: Final[Mapping[DataType, Callable[[Graph, Variable, ComparisonOperator, PolicyValue], Formula]]] = {
    STRING: _texts,
    BOOLEAN: _booleans,
    INTEGER: _integers,
    DOUBLE: _doubles,
    DATE_TIME: _moments,
}


def _check(kind: Kind, value: PolicyValue) -> None:
    try:
        check_value(kind, value)
    except MalformedError:
        raise UnsaidError("a value that no event can have") from None


# --- selectors -------------------------------------------------------------------------------------------------------


def selector_of(formula: Formula) -> Selector:
    """Return a selector that is TRUE if a formula is true. Raises `RefusedError` (`policy.residual-limit`)."""
    if isinstance(formula, bool):
        return ALWAYS if formula else NEVER
    try:
        return built(_condition(formula, frozenset()))
    except (LimitError, RecursionError):
        raise too_large() from None


def _condition(node: FormulaNode, there: frozenset[Variable]) -> Condition:
    """Write a formula, given that some attributes have values."""
    match node.of:
        case Present(variable):
            missing = IsNull(AttributeReference(variable.name))
            return Not(missing) if node.positive else missing
        case ConditionAtom() as atom:
            return atom.condition if node.positive else _failing(atom, there)
        case _:
            return _conjunction(node.parts, there) if node.positive else _disjunction(node.parts, there)


def _failing(atom: ConditionAtom, there: frozenset[Variable]) -> Condition:
    missing: list[Condition] = [
        IsNull(AttributeReference(one.name)) for one in atom.variables if not one.certain and one not in there
    ]
    match atom.condition:
        case Compare(operator, left, right):
            fails: Condition = Compare(operator.negated, left, right)
        case condition:
            fails = Not(condition)
    return flatten(Or, [*missing, fails], 0)


def _conjunction(parts: Iterable[FormulaNode], there: frozenset[Variable]) -> Condition:
    """Write a conjunction. If a comparison or its negation is TRUE, its attributes have values: no test is needed."""
    parts = [*parts]
    there |= {variable for part in parts if part.positive and part.atom is not None for variable in part.atom.variables}
    comparisons = [part.atom for part in parts if isinstance(part.atom, ConditionAtom)]
    asked = {variable for atom in comparisons if there.issuperset(atom.variables) for variable in atom.variables}
    written = [
        _condition(part, there)
        for part in parts
        if not (part.positive and isinstance(part.of, Present) and part.of.variable in asked)
    ]
    return flatten(And, _gathered(written, ComparisonOperator.NE), 0)


def _disjunction(parts: Iterable[FormulaNode], there: frozenset[Variable]) -> Condition:
    """Write a negated conjunction. If one part tests that a value is missing, the others need not."""
    parts = [*parts]
    there |= {part.of.variable for part in parts if part.positive and isinstance(part.of, Present)}
    written = [_condition(~part, there) for part in parts]
    return flatten(Or, _gathered(_once(written), ComparisonOperator.EQ), 0)


def _once(conditions: Iterable[Condition]) -> list[Condition]:
    flat = flatten(Or, [*conditions], 0)
    return [*dict.fromkeys(flat.operands)] if isinstance(flat, Or) else [flat]


def _gathered(conditions: Iterable[Condition], operator: ComparisonOperator) -> list[Condition]:
    """Merge equalities of one attribute with constants into one condition."""
    found: list[Condition] = []
    places: dict[AttributeReference, int] = {}
    values: dict[AttributeReference, list[Literal]] = {}
    for condition in conditions:
        match condition:
            case Compare(found_operator, AttributeReference() as attribute, Literal() as value) if (
                found_operator is operator
            ):
                if attribute not in places:
                    places[attribute] = len(found)
                    found.append(condition)
                values.setdefault(attribute, []).append(value)
            case _:
                found.append(condition)
    for attribute, constants in values.items():
        if len(constants) > 1:
            within = In(attribute, tuple(constants))
            found[places[attribute]] = within if operator is EQ else Not(within)
    return found
