"""Random selectors that are well typed by construction, schemas for them, and rows that fit or do not."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from functools import cache

from hypothesis import strategies as st

from penstock.model.values import INTEGER_MAX, INTEGER_MIN, AttributeSpec, Kind, Scalar, Schema
from penstock.selector.ast import write_name, write_value

SCHEMA: Schema = {
    "s": AttributeSpec(Kind.STRING),
    "license-plate": AttributeSpec(Kind.STRING),
    "i": AttributeSpec(Kind.INTEGER),
    "j": AttributeSpec(Kind.INTEGER),
    "f": AttributeSpec(Kind.FLOAT),
    "g": AttributeSpec(Kind.FLOAT),
    "b": AttributeSpec(Kind.BOOLEAN),
    "select": AttributeSpec(Kind.BOOLEAN),
    "t": AttributeSpec(Kind.TIMESTAMP),
    "timestamp": AttributeSpec(Kind.TIMESTAMP),
}

STRINGS = st.sampled_from(["", "a", "ab", "b", "A", "a%b", "a_b", "é", "\U0010ffff", "ß'", "ab\n", "\x00"]) | st.text(
    alphabet="ab%_!\n", max_size=5
)
INTEGERS = st.sampled_from(
    [0, 1, -1, 2, 3, INTEGER_MAX, INTEGER_MIN, INTEGER_MAX - 1, 2**53 + 1, -(2**53) - 1]
) | st.integers(-10, 10)
FINITE = st.sampled_from([0.0, 1.0, -1.5, 0.5, 2.0**53, 1e308, -1e308, 5e-324, 9.223372036854776e18]) | st.floats(
    allow_nan=False, allow_infinity=False
)
FLOATS = FINITE | st.sampled_from([float("inf"), float("-inf"), float("nan"), -0.0])
BOOLEANS = st.booleans()
MOMENTS = st.integers(0, 86_400_000_000).map(
    lambda offset: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=offset)
)
EXTREMES = st.sampled_from([datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
ZONED = (MOMENTS | EXTREMES) | MOMENTS.map(lambda moment: moment.astimezone(timezone(timedelta(hours=5, minutes=30))))

VALUES: dict[Kind, st.SearchStrategy[Scalar]] = {
    Kind.STRING: STRINGS,
    Kind.INTEGER: INTEGERS,
    Kind.FLOAT: FLOATS,
    Kind.BOOLEAN: BOOLEANS,
    Kind.TIMESTAMP: ZONED,
}
LITERALS: dict[Kind, st.SearchStrategy[Scalar]] = {**VALUES, Kind.FLOAT: FINITE, Kind.TIMESTAMP: MOMENTS | EXTREMES}


@dataclass(frozen=True, eq=False)
class Grammar:
    """What a random selector may hold; SQLite and the solver share only part of the language with us."""

    schema: Schema
    literals: dict[Kind, st.SearchStrategy[Scalar]]
    arithmetic: tuple[str, ...] = ("+", "-", "*", "/")
    concat: bool = True
    nulls: bool = True
    kinds: tuple[Kind, ...] = tuple(Kind)
    like: bool = True
    float_arithmetic: bool = True


FULL = Grammar(SCHEMA, LITERALS)


@cache  # to make a strategy takes longer than to draw from it
def terms(grammar: Grammar, kind: Kind, depth: int = 2) -> st.SearchStrategy[str]:
    """Draw the text of a term of one kind."""
    names = [name for name, spec in grammar.schema.items() if spec.kind is kind]
    choices = ["literal"] + ["attribute"] * (3 if names else 0) + (["null"] if grammar.nulls else [])
    numbers = (Kind.INTEGER, Kind.FLOAT) if grammar.float_arithmetic else (Kind.INTEGER,)
    if depth and kind in numbers and grammar.arithmetic:
        choices += ["arithmetic", "minus"]
    if depth and kind is Kind.STRING and grammar.concat:
        choices.append("concat")
    shapes, attributes, others = (st.sampled_from(each) for each in (choices, names, [Kind.INTEGER, kind]))
    operators = st.sampled_from(grammar.arithmetic)

    @st.composite
    def term(draw: st.DrawFn) -> str:
        match draw(shapes):
            case "literal":
                return write_value(draw(grammar.literals[kind]))
            case "attribute":
                return write_name(draw(attributes))
            case "arithmetic":
                other = draw(others)
                left, right = draw(terms(grammar, kind, depth - 1)), draw(terms(grammar, other, depth - 1))
                return f"({left} {draw(operators)} {right})"
            case "minus":
                return f"- ({draw(terms(grammar, kind, depth - 1))})"
            case "concat":
                return f"({draw(terms(grammar, kind, depth - 1))} || {draw(terms(grammar, kind, depth - 1))})"
            case _:
                return "NULL"

    return term()


NEGATIONS = st.sampled_from(["", "NOT "])
EQUALITIES = st.sampled_from(["=", "<>"])
COMPARISONS = st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "!="])


@cache
def conditions(grammar: Grammar = FULL, depth: int = 3) -> st.SearchStrategy[str]:
    """Draw the text of a well-typed condition."""
    choices = ["compare", "compare", "between", "in", "null"]
    if Kind.BOOLEAN in grammar.kinds:
        choices.append("boolean")
    if grammar.like and Kind.STRING in grammar.kinds:
        choices.append("like")
    if depth:
        choices += ["and", "or", "not"] * 2
    booleans = [write_name(name) for name, spec in grammar.schema.items() if spec.kind is Kind.BOOLEAN]
    constants = st.sampled_from(booleans * 3 + ["TRUE", "FALSE"] + (["NULL"] if grammar.nulls else []))
    shapes, kinds = st.sampled_from(choices), st.sampled_from(grammar.kinds)
    ordered_kinds = st.sampled_from([kind for kind in grammar.kinds if kind is not Kind.BOOLEAN])

    @st.composite
    def condition(draw: st.DrawFn) -> str:
        negation, kind, ordered = draw(NEGATIONS), draw(kinds), draw(ordered_kinds)
        match draw(shapes):
            case "compare":
                other = draw(_mate(grammar, kind))
                left, right = draw(terms(grammar, kind)), draw(terms(grammar, other))
                return f"{left} {draw(EQUALITIES if kind is Kind.BOOLEAN else COMPARISONS)} {right}"
            case "between":
                bounds = [draw(terms(grammar, draw(_mate(grammar, ordered)))) for _ in range(2)]
                return f"{draw(terms(grammar, ordered))} {negation}BETWEEN {bounds[0]} AND {bounds[1]}"
            case "in":
                items = [draw(terms(grammar, draw(_mate(grammar, kind)), 0)) for _ in range(draw(st.integers(1, 3)))]
                return f"{draw(terms(grammar, kind))} {negation}IN ({', '.join(items)})"
            case "null":
                return f"{draw(terms(grammar, kind))} IS {negation}NULL"
            case "boolean":
                return draw(constants)
            case "like":
                return f"{draw(terms(grammar, Kind.STRING))} {negation}LIKE {draw(patterns())}"
            case "not":
                return f"NOT ({draw(conditions(grammar, depth - 1))})"
            case junction:
                parts = [f"({draw(conditions(grammar, depth - 1))})" for _ in range(draw(st.integers(2, 3)))]
                return f" {junction} ".join(parts)

    return condition()


@cache
def _mate(grammar: Grammar, kind: Kind) -> st.SearchStrategy[Kind]:
    numbers = [number for number in (Kind.INTEGER, Kind.FLOAT) if number in grammar.kinds]
    return st.sampled_from([kind, *numbers] if kind in numbers else [kind])


@cache
@st.composite
def patterns(draw: st.DrawFn) -> str:
    """Draw a LIKE pattern, sometimes with an escape."""
    if draw(st.booleans()):
        return write_value(draw(st.text(alphabet="ab%_", max_size=6)))
    pieces = draw(st.lists(st.sampled_from(["a", "b", "%", "_", "!%", "!_", "!!"]), max_size=6))
    return f"{write_value(''.join(pieces))} ESCAPE '!'"


def rows(
    schema: Schema = SCHEMA, values: dict[Kind, st.SearchStrategy[Scalar]] = VALUES
) -> st.SearchStrategy[dict[str, Scalar]]:
    """Draw rows that fit the schema; attributes may be null or absent."""
    return st.fixed_dictionaries({}, optional={name: st.none() | values[spec.kind] for name, spec in schema.items()})


#: a timestamp without a time zone, which no attribute can have
NAIVE = datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)

WRONG = st.one_of(*VALUES.values(), st.none(), st.integers(-(2**70), 2**70), st.just(NAIVE))
"""Values of any kind, also some that no attribute can have."""


def wrong_rows() -> st.SearchStrategy[dict[str, Scalar]]:
    """Draw rows whose values may be of a wrong kind."""
    return st.fixed_dictionaries({}, optional=dict.fromkeys(SCHEMA, WRONG))
