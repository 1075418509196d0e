"""Delivery programs: the expressions for a set of readers, each evaluated once.

Readers with equal restrictions, versions and filters share one program. Programs that differ only in their constants
(a plate, a region, a period) share one *shape*, whose constants are parameters: the constants then go into a table
that is joined, and never into expressions, of which Spark can bear some dozens and not ten thousand.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, TypeAlias

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.guard.restriction import Branch
from penstock.model.types import EventType
from penstock.model.values import Kind, Value, kind_of
from penstock.pipeline.enforce.policy import ConstantsIn
from penstock.pipeline.enforce.policy import Program as Program
from penstock.pipeline.enforce.policy import answered as answered
from penstock.pipeline.enforce.policy import programs_of as programs_of
from penstock.pipeline.enforce.policy import unfiltered as unfiltered
from penstock.pipeline.frames import (
    ColumnSource,
    ParameterLike,
    PlainColumn,
    form_of,
    hide_tables,
    literal,
    micros,
    quoted,
)
from penstock.pipeline.shared_columns import OF, SharedColumns
from penstock.selector import ALWAYS as TRUE
from penstock.selector import Selector
from penstock.selector.ast import (
    And,
    Arithmetic,
    AttributeReference,
    Between,
    Compare,
    ComparisonOperator,
    Concat,
    Condition,
    In,
    IsNull,
    Like,
    Literal,
    Negate,
    Not,
    Or,
    Term,
    map_attributes,
)

_NULL: Final = Literal(None, None)
_EXACT: Final = 2**53
"""Up to here every whole number is a real one."""


@dataclass(slots=True)
class Constants:
    """Collects the constants of a program while its shape is made. A parameter's name is none that an attribute has."""

    values: list[Value] = field(default_factory=list)

    def name(self, value: Value) -> str:
        """Return the name of a new parameter for a constant."""
        self.values.append(value)
        return f"@p{len(self.values) - 1}"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters, in order."""
        return tuple(f"@p{number}" for number in range(len(self.values)))

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of the constants, in order."""
        return tuple(kind_of(value) for value in self.values)


Kinds: TypeAlias = Mapping[str, Kind]
"""Of which kind the attributes are that a condition names."""


def parametrise(node: Condition, constants: Constants, kinds: Kinds) -> Condition:
    """Return a condition with a parameter in the place of every constant that is compared or computed with."""

    def term(part: Term, beside: Term | None = None) -> Term:
        match part:
            case Literal(value, kind) if value is not None and kind is not None:
                return AttributeReference(constants.name(_aligned(value, beside, kinds)))
            case Negate(operand):
                return Negate(term(operand))
            case Arithmetic(operator, left, right):
                return Arithmetic(operator, term(left), term(right))
            case Concat(left, right):
                return Concat(term(left), term(right))
        return part

    match node:
        case Compare(operator, left, right):
            return Compare(operator, term(left, right), term(right, left))
        case Between(value, low, high):
            return Between(term(value), term(low, value), term(high, value))
        case In(value, items):
            return In(term(value), tuple(term(item, value) for item in items))
        case Like(value, pattern, escape):
            form, text = form_of(pattern, escape)
            return ParameterLike(term(value), constants.name(text), form=form)
        case IsNull(value):
            return IsNull(term(value))
        case Not(operand):
            return Not(parametrise(operand, constants, kinds))
        case And(operands):
            return And(tuple(parametrise(operand, constants, kinds) for operand in operands))
        case Or(operands):
            return Or(tuple(parametrise(operand, constants, kinds) for operand in operands))
    return node


def _aligned(value: Value, beside: Term | None, kinds: Kinds) -> Value:
    """Return a number as the kind of the attribute that it is compared with, where that is the same number.

    Comparing a whole number with a real one exactly is a long expression; people write `speed > 30` all the time.
    """
    kind = kinds.get(beside.name) if isinstance(beside, AttributeReference) else None
    if kind is Kind.FLOAT and type(value) is int and abs(value) <= _EXACT:
        return float(value)
    if kind is Kind.INTEGER and type(value) is float and value.is_integer() and abs(value) <= _EXACT:
        return int(value)
    return value


@dataclass(frozen=True, slots=True)
class ShapeBranch:
    """A branch with parameters for its constants. `starts` and `ends` name parameters too, where there are dates.

    Where `bits` names parameters, those hold the words of what the branch shows (`restrict`), and `attributes` is None.
    """

    attributes: frozenset[str] | None
    where: Condition
    guards: frozenset[str]
    when: Condition
    starts: str | None
    ends: str | None
    bits: tuple[str, ...] = ()

    def shows(self, attribute: str) -> bool:
        """Return whether the branch lists an attribute."""
        return self.attributes is None or attribute in self.attributes


@dataclass(frozen=True, slots=True)
class Shape:
    """The common form of programs that differ only in their constants."""

    event_type: EventType
    branches: tuple[ShapeBranch, ...]
    selector: Condition
    kinds: tuple[Kind, ...]


def shape_of(program: Program, kinds: Kinds) -> tuple[Shape, tuple[Value, ...]]:
    """Return the shape of a program, and its constants; `kinds` is of the attributes of events, by id."""
    constants = Constants()
    branches = tuple(shape_branch(b, b.holds_where(), constants, kinds) for b in program.restriction.branches)
    own = {attribute.name: attribute.spec.kind for attribute in program.event_type.attributes}
    selector = parametrise(program.selector.root, constants, own)
    return Shape(program.event_type, branches, selector, constants.kinds), tuple(constants.values)


def shape_branch(branch: Branch, where: Selector, constants: Constants, kinds: Kinds) -> ShapeBranch:
    """Return a branch with parameters for its constants; `where` is the selector that it is asked."""

    def moment(instant: datetime | None) -> str | None:
        return None if instant is None else constants.name(instant)

    return ShapeBranch(
        None if branch.attributes is None else frozenset(str(attribute) for attribute in branch.attributes),
        parametrise(where.root, constants, kinds),
        branch.guards,
        parametrise(branch.when.condition.root, constants, {}),
        moment(branch.when.validity.starts),
        moment(branch.when.validity.ends),
    )


def renamed_branch(branch: ShapeBranch, names: Mapping[str, str]) -> ShapeBranch:
    """Return a branch whose attributes have other names; one without a name is null, and not shown."""
    attributes = branch.attributes
    return replace(
        branch,
        attributes=None if attributes is None else frozenset(names[name] for name in attributes if name in names),
        where=renamed_condition(branch.where, names),
    )


def renamed_condition(node: Condition, names: Mapping[str, str]) -> Condition:
    """Return a condition whose attributes have other names; one without a name is null. Parameters keep theirs."""

    def change(attribute: AttributeReference) -> Term:
        name = attribute.name
        return attribute if name.startswith("@p") else AttributeReference(names[name]) if name in names else _NULL

    # A condition stays one.
    return map_attributes(node, change)  # type: ignore[return-value]


def shared_shape(
    program: Program, kinds: Kinds, shared: SharedColumns, about: Mapping[str, Sequence[int]]
) -> tuple[Shape, tuple[Value, ...]]:
    """Return the shape of a program over shared columns, and its constants; `kinds` is by attribute id.

    `about` has the numbers of the types that a branch with a guard is about. One type is a constant; so programs of
    many types have one shape. A branch about no type is left out.
    """
    shape, values = shape_of(program, kinds)
    own, constants = shared.own(program.event_type), Constants(list(values))
    branches = []
    for branch in shape.branches:
        types = [about[guard] for guard in branch.guards if guard in about]
        if not all(types):
            continue
        parts = _conjuncts(renamed_condition(branch.where, shared.columns))
        single = [guard for guard in branch.guards if len(about.get(guard, ())) == 1]
        for guard in single:
            number = AttributeReference(constants.name(about[guard][0]))
            parts = (Compare(ComparisonOperator.EQ, AttributeReference(OF), number), *parts)
        parts = tuple(part for part in parts if part != TRUE.root) or (TRUE.root,)
        made = replace(
            branch,
            attributes=frozenset(str(column) for name, column in own.items() if branch.shows(name)),
            where=parts[0] if len(parts) == 1 else And(parts),
            guards=branch.guards.difference(single),
        )
        branches.append(made)
    bounded = {own[a.id]: a.spec for a in program.event_type.attributes if a.id in own and a.spec.domain is not None}
    names = {a.name: str(own[a.id]) for a in program.event_type.attributes if a.id in own}
    selector = renamed_condition(shape.selector, names)
    made_of = Shape(shared.event_type(bounded), tuple(branches), selector, constants.kinds)
    return made_of, tuple(constants.values)


def equality(shapes: Sequence[Shape], sources: Kinds) -> tuple[str, tuple[int, ...]] | None:
    """Return an attribute that every branch of some shapes compares with a constant, and the parameters' numbers.

    The parameters of the shapes are counted through. An event whose attribute equals none of those constants satisfies
    none of the shapes.
    """
    found: list[dict[str, int]] = []
    for shape, start, parts in _demands(shapes):
        keys: dict[str, int] = {}
        for part in parts:
            match part:
                case Compare(ComparisonOperator.EQ, AttributeReference(name), AttributeReference(parameter)) | Compare(
                    ComparisonOperator.EQ, AttributeReference(parameter), AttributeReference(name)
                ) if parameter.startswith("@p"):
                    number = int(parameter[2:])
                    if sources.get(name) is shape.kinds[number]:
                        keys.setdefault(name, start + number)
        found.append(keys)
    # By the type of events only if there is nothing else: more programs have that in common.
    shared = sorted(set.intersection(*(set(keys) for keys in found)), key=lambda one: (one == OF, one)) if found else []
    return (shared[0], tuple(keys[shared[0]] for keys in found)) if shared else None


def span(shapes: Sequence[Shape], sources: Kinds) -> tuple[str, tuple[tuple[int, int], ...]] | None:
    """Return a number or time that every branch of some shapes bounds on both sides, and the parameters' numbers."""
    found: list[dict[str, tuple[int, int]]] = []
    for shape, start, parts in _demands(shapes):
        lows: dict[str, int] = {}
        highs: dict[str, int] = {}
        for part in parts:
            match part:
                case Between(AttributeReference(name), AttributeReference(low), AttributeReference(high)):
                    _bound(shape, sources, name, low, lows)
                    _bound(shape, sources, name, high, highs)
                case Compare(
                    ComparisonOperator.GE | ComparisonOperator.GT, AttributeReference(name), AttributeReference(low)
                ):
                    _bound(shape, sources, name, low, lows)
                case Compare(
                    ComparisonOperator.LE | ComparisonOperator.LT, AttributeReference(name), AttributeReference(high)
                ):
                    _bound(shape, sources, name, high, highs)
        found.append({name: (start + lows[name], start + highs[name]) for name in lows.keys() & highs.keys()})
    shared = sorted(set.intersection(*(set(keys) for keys in found))) if found else []
    return (shared[0], tuple(keys[shared[0]] for keys in found)) if shared else None


def _bound(shape: Shape, sources: Kinds, name: str, parameter: str, into: dict[str, int]) -> None:
    if not parameter.startswith("@p") or sources.get(name) not in (Kind.INTEGER, Kind.FLOAT, Kind.TIMESTAMP):
        return
    number = int(parameter[2:])
    if shape.kinds[number] is sources[name]:
        into.setdefault(name, number)


def _demands(shapes: Sequence[Shape]) -> Iterator[tuple[Shape, int, tuple[Condition, ...]]]:
    """Yield for each branch what an event must satisfy to be shown by it, attributes under their ids.

    With it come the shape, and the number of its first parameter. The reader's own filter is part of what must be
    satisfied: what it sees of an attribute is the value, or null, which satisfies nothing.
    """
    start = 0
    for shape in shapes:
        ids = {name: str(attribute.id) for name, attribute in shape.event_type.by_name.items()}
        own = tuple(_renamed(part, ids) for part in _conjuncts(shape.selector))
        for branch in shape.branches:
            yield shape, start, (*_conjuncts(branch.where), *own)
        start += len(shape.kinds)


def _renamed(part: Condition, ids: Mapping[str, str]) -> Condition:
    def term(node: Term) -> Term:
        return AttributeReference(ids.get(node.name, node.name)) if isinstance(node, AttributeReference) else node

    match part:
        case Compare(operator, left, right):
            return Compare(operator, term(left), term(right))
        case Between(value, low, high):
            return Between(term(value), term(low), term(high))
    return part


def _conjuncts(node: Condition) -> tuple[Condition, ...]:
    return node.operands if isinstance(node, And) else (node,)


# ----------------------------------------------------------------------------------------------------------------------
# Constants of a policy as data. In an expression they would be printed: in plans, in the UI, in logs.


_STORED: Final[Mapping[Kind, pa.DataType]] = {
    Kind.STRING: pa.string(),
    Kind.INTEGER: pa.int64(),
    Kind.FLOAT: pa.float64(),
    Kind.BOOLEAN: pa.bool_(),
    # As microseconds: Spark would shift a timestamp by the session's zone on its way.
    Kind.TIMESTAMP: pa.int64(),
}
"""The types in which constants stand in tables."""
_ROW: Final = "@row"


def restored(column: Column, kind: Kind) -> ColumnSource:
    """Return a column of a table of constants as the value that it stands for."""
    value = F.timestamp_micros(column) if kind is Kind.TIMESTAMP else column
    return ColumnSource(value, kind, PlainColumn(value))


def plain(value: Value | None) -> object:
    """Return a constant as it is put into a table."""
    return micros(value) if isinstance(value, datetime) else value


def table(spark: SparkSession, kinds: Mapping[str, Kind], rows: Iterable[Sequence[Value | None]]) -> DataFrame:
    """Return a small table that is part of the plan: no job has to make it, and no plan prints it."""
    stored = list(zip(*([plain(value) for value in row] for row in rows), strict=True)) or [()] * len(kinds)
    columns = {
        name: pa.array(values, type=_STORED[kind]) for (name, kind), values in zip(kinds.items(), stored, strict=True)
    }
    fields = [pa.field(name, values.type, nullable=values.null_count > 0) for name, values in columns.items()]
    hide_tables(spark)
    return spark.createDataFrame(pa.table(columns, schema=pa.schema(fields)))


@dataclass(slots=True)
class OneRow:
    """Constants that every event needs: one row, joined to all of them."""

    prefix: str
    _found: list[tuple[str, Kind, Value]] = field(default_factory=list)

    def source(self, value: Value, kind: Kind) -> ColumnSource:
        """Take a constant in, and return where it will stand."""
        name = f"{self.prefix}{len(self._found)}"
        self._found.append((name, kind, value))
        return restored(quoted(name), kind)

    def parameters(self, constants: Constants) -> dict[str, ColumnSource]:
        """Take the constants of a shape in, and return where its parameters will stand."""
        return {
            name: self.source(value, kind)
            for name, value, kind in zip(constants.names, constants.values, constants.kinds, strict=True)
        }

    def join(self, frame: DataFrame) -> DataFrame:
        """Return the frame with the constants beside every row."""
        if not self._found:
            return frame
        kinds = {name: kind for name, kind, _ in self._found}
        # A number that is 0 in every row, which Spark does not see: it would make a cross join of a join by a constant.
        zero = quoted(frame.columns[0]).isNull().cast("bigint").bitwiseAND(F.lit(0))
        return look_up(frame, zero, kinds, [0, *(value for _, _, value in self._found)])


@dataclass(slots=True)
class PrintedConstants(OneRow):
    """Constants that plans may print: they stand in the expressions themselves, and nothing is joined."""

    def source(self, value: Value, kind: Kind) -> ColumnSource:
        """Return a constant as a column."""
        column = literal(value, kind)
        return ColumnSource(column, kind, PlainColumn(column))


def constants_row(prefix: str, constants: ConstantsIn) -> OneRow:
    """Return where constants go that every event needs."""
    return PrintedConstants(prefix) if constants == "public" else OneRow(prefix)


def look_up(frame: DataFrame, key: Column, kinds: Mapping[str, Kind], row: Sequence[Value | None]) -> DataFrame:
    """Return the rows of a frame that have a key, an integer, with the columns of a table of one row beside them.

    The first value of the row is its key. Spark copies every row that leaves a cross join or `explode`, because those
    can make many of one; a join by a key that is unique copies none.
    """
    found = table(frame.sparkSession, {_ROW: Kind.INTEGER, **kinds}, [row])
    return frame.join(F.broadcast(found), key == quoted(_ROW)).drop(_ROW)


@dataclass(slots=True)
class Slots:
    """Columns that the parameters of several shapes share: a row of the table has the constants of one of them."""

    prefix: str
    _kinds: dict[str, Kind] = field(default_factory=dict)

    def take(self, kinds: Sequence[Kind]) -> dict[str, ColumnSource]:
        """Return where the parameters of a shape will stand."""
        names = self._named(kinds)
        self._kinds.update(zip(names, kinds, strict=True))
        return {f"@p{n}": restored(quoted(name), kind) for n, (name, kind) in enumerate(zip(names, kinds, strict=True))}

    @property
    def kinds(self) -> Mapping[str, Kind]:
        """The columns."""
        return self._kinds

    def row(self, kinds: Sequence[Kind], values: Sequence[Value]) -> list[Value | None]:
        """Return the constants of a shape in the order of the columns."""
        found: dict[str, Value] = dict(zip(self._named(kinds), values, strict=True))
        return [found.get(name) for name in self._kinds]

    def _named(self, kinds: Sequence[Kind]) -> list[str]:
        seen: Counter[Kind] = Counter()
        names = []
        for kind in kinds:
            names.append(f"{self.prefix}{kind}{seen[kind]}")
            seen[kind] += 1
        return names
