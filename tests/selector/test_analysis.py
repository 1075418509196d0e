"""Questions about all rows: against brute force over small domains, and algebra against the solver."""

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.selector.strategies import LITERALS, SCHEMA, Grammar, conditions

from penstock.errors import EvaluationError, SelectorError
from penstock.model.values import AttributeSpec, Enumerated, Kind, Ranged, Scalar, Schema, Value
from penstock.selector import (
    AnalysisVerdict,
    Compiled,
    Selector,
    SelectorAnalysis,
    compile_selector,
    covers,
    equivalent,
    evaluate,
    overlaps,
    parse,
    satisfiable,
)
from penstock.selector import algebra as set_algebra
from penstock.selector.algebra import RowQuestion
from penstock.selector.ast import AttributeReference, walk, write_name
from penstock.selector.limits import SelectorLimits

#: effort bounds the solver, which is the same on every machine; time does not, however busy this one is
LIMITS = SelectorLimits(solver_time=600_000, solver_effort=5_000_000)
UNHURRIED = SelectorLimits(solver_time=600_000)


def among(kind: Kind, *values: Value) -> AttributeSpec:
    return AttributeSpec(kind, Enumerated(frozenset(values)))


MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
SMALL: Schema = {
    "x": AttributeSpec(Kind.INTEGER, Ranged(0, 3)),
    "y": AttributeSpec(Kind.INTEGER, Ranged(-1, 1)),
    "s": among(Kind.STRING, "", "a", "ab", "b"),
    "b": AttributeSpec(Kind.BOOLEAN),
    "f": among(Kind.FLOAT, 0.5, 1.0, 2.0),
    "t": among(Kind.TIMESTAMP, MOMENT, MOMENT.replace(hour=1)),
}
SMALL_LITERALS: dict[Kind, st.SearchStrategy[Scalar]] = {
    Kind.INTEGER: st.integers(-2, 4),
    Kind.STRING: st.sampled_from(["", "a", "ab", "aa", "b", "c"]),
    Kind.BOOLEAN: st.booleans(),
    Kind.FLOAT: st.sampled_from([0.5, 0.75, 1.0, 2.0, 2.5]),
    Kind.TIMESTAMP: st.sampled_from([MOMENT, MOMENT.replace(minute=1), MOMENT.replace(hour=1)]),
}
ANY = Grammar(SMALL, SMALL_LITERALS, float_arithmetic=False)


@st.composite
def simple(draw: st.DrawFn, schema: Schema, literals: dict[Kind, st.SearchStrategy[Scalar]], depth: int = 2) -> str:
    """Draw a combination of predicates that compare one attribute with constants."""
    if depth and draw(st.booleans()):
        word = draw(st.sampled_from([" AND ", " OR ", " AND NOT "]))
        parts = [f"({draw(simple(schema, literals, depth - 1))})" for _ in range(draw(st.integers(1, 3)))]
        return draw(st.sampled_from(["", "NOT "])) + f"({word.join(parts)})"
    name = draw(st.sampled_from(sorted(schema)))
    only: Schema = {name: schema[name]}
    kind = schema[name].kind
    if kind is Kind.STRING and draw(st.booleans()):
        return f"{write_name(name)} LIKE {draw(PATTERNS)}"
    grammar = Grammar(only, literals, arithmetic=(), concat=False, kinds=(kind, Kind.INTEGER), like=False)
    text = draw(conditions(grammar, depth=0))
    # Attributes on both sides of an operator are the solver's business.
    uses = sum(isinstance(node, AttributeReference) for node in walk(parse(text).root))
    return text if uses <= 1 else f"{write_name(name)} IS NULL"


PATTERNS = st.sampled_from(["'a%'", "'ab'", "'%'", "''"])


def all_rows(schema: Schema) -> Iterator[dict[str, Scalar]]:
    choices: list[list[Scalar]] = []
    for spec in schema.values():
        match spec.domain:
            case Enumerated(values):
                choices.append([None, *values])
            case Ranged(int(low), int(high)):
                choices.append([None, *list(range(low, high + 1))])
            case _:
                choices.append([None, True, False])
    for row in itertools.product(*choices):
        yield dict(zip(schema, row, strict=True))


ROWS = list(all_rows(SMALL))


def true_rows(selector: Selector) -> set[int]:
    compiled = compile_selector(selector, SMALL)
    return {index for index, row in enumerate(ROWS) if is_true(compiled, row)}


def is_true(compiled: Compiled, row: dict[str, Scalar]) -> bool:
    try:
        return compiled(row) is True
    except EvaluationError:
        return False


def true_on(selector: Selector, row: object) -> bool:
    assert isinstance(row, dict)
    try:
        return evaluate(selector, row) is True
    except EvaluationError:
        return False


def check_witnesses(a: Selector, b: Selector, schema: Schema, ask: Callable[..., SelectorAnalysis]) -> None:
    """Check that whatever row comes back shows what it should."""
    found = ask(overlaps, a, b)
    if found.verdict is AnalysisVerdict.YES:
        assert true_on(a, found.witness)
        assert true_on(b, found.witness)
    covered = ask(covers, a, b)
    if covered.verdict is AnalysisVerdict.NO:
        assert true_on(b, covered.witness)
        assert not true_on(a, covered.witness)
    same = ask(equivalent, a, b)
    if same.verdict is AnalysisVerdict.NO:
        assert true_on(a, same.witness) is not true_on(b, same.witness)
    for answer in (found, covered, same):
        if answer.witness is not None:
            assert set(answer.witness) == a.attributes | b.attributes
            for name, value in answer.witness.items():
                schema[name].check(value)


def compare_with_brute_force(a: Selector, b: Selector, ask: Callable[..., SelectorAnalysis], *, settled: bool) -> None:
    first, second = true_rows(a), true_rows(b)
    expected = {
        overlaps: bool(first & second),
        covers: second <= first,
        equivalent: first == second,
    }
    for question, truth in expected.items():
        answer = ask(question, a, b)
        if settled or answer.verdict is not AnalysisVerdict.UNKNOWN:
            assert answer.verdict is (AnalysisVerdict.YES if truth else AnalysisVerdict.NO), question.__name__
    check_witnesses(a, b, SMALL, ask)


def force_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(question: RowQuestion) -> None:
        raise set_algebra.TooHardError

    monkeypatch.setattr(set_algebra, "search", refuse)


@settings(deadline=None, max_examples=examples(150))
@given(simple(SMALL, SMALL_LITERALS), simple(SMALL, SMALL_LITERALS))
def test_algebra_agrees_with_brute_force(first: str, second: str) -> None:
    def ask(question: Callable[..., SelectorAnalysis], a: Selector, b: Selector) -> SelectorAnalysis:
        answer = question(a, b, SMALL, limits=LIMITS)
        assert answer.by == "algebra"
        return answer

    compare_with_brute_force(parse(first), parse(second), ask, settled=True)


@settings(deadline=None, max_examples=examples(40))
@given(conditions(ANY, depth=2), conditions(ANY, depth=2))
def test_solver_agrees_with_brute_force(first: str, second: str) -> None:
    def ask(question: Callable[..., SelectorAnalysis], a: Selector, b: Selector) -> SelectorAnalysis:
        with pytest.MonkeyPatch.context() as patch:
            force_solver(patch)
            answer = question(a, b, SMALL, limits=LIMITS)
        assert answer.by == "solver"
        return answer

    compare_with_brute_force(parse(first), parse(second), ask, settled=False)


@settings(deadline=None, max_examples=examples(60))
@given(simple(SCHEMA, LITERALS), simple(SCHEMA, LITERALS))
def test_algebra_and_solver_agree_without_domains(first: str, second: str) -> None:
    a, b = parse(first), parse(second)
    for question in (covers, overlaps, equivalent):
        by_algebra = question(a, b, SCHEMA, limits=LIMITS)
        assert by_algebra.by == "algebra"
        assert by_algebra.verdict is not AnalysisVerdict.UNKNOWN
        with pytest.MonkeyPatch.context() as patch:
            force_solver(patch)
            by_solver = question(a, b, SCHEMA, limits=LIMITS)
        assert by_solver.verdict in (by_algebra.verdict, AnalysisVerdict.UNKNOWN), question.__name__
    check_witnesses(a, b, SCHEMA, lambda ask, *pair: ask(*pair, SCHEMA, limits=LIMITS))


OPEN: Schema = {
    "price": AttributeSpec(Kind.FLOAT),
    "cost": AttributeSpec(Kind.FLOAT),
    "n": AttributeSpec(Kind.INTEGER),
    "m": AttributeSpec(Kind.INTEGER),
    "stock": AttributeSpec(Kind.STRING),
    "name": AttributeSpec(Kind.STRING),
    "halted": AttributeSpec(Kind.BOOLEAN),
    "level": AttributeSpec(Kind.INTEGER, Ranged(0, 9)),
    "colour": among(Kind.STRING, "red", "green"),
    "at": AttributeSpec(Kind.TIMESTAMP),
}

SATISFIABLE = [
    # text, verdict, means
    ("price > 24 AND stock IN ('NOK', 'ERIC')", AnalysisVerdict.YES, "algebra"),
    ("price > 24 AND price < 24", AnalysisVerdict.NO, "algebra"),
    ("price > 0.1 AND price < 0.10000000000000002", AnalysisVerdict.NO, "algebra"),
    ("n > 1 AND n < 2", AnalysisVerdict.NO, "algebra"),
    ("n > 1.5 AND n < 2.5", AnalysisVerdict.YES, "algebra"),
    ("n > 9223372036854775806 AND n <> 9223372036854775807", AnalysisVerdict.NO, "algebra"),
    ("price > 9007199254740992 AND price < 9007199254740994", AnalysisVerdict.NO, "algebra"),
    ("price > 1.7976931348623157e308", AnalysisVerdict.YES, "algebra"),
    ("level > 9", AnalysisVerdict.NO, "algebra"),
    ("colour > 'green' AND colour <> 'red'", AnalysisVerdict.NO, "algebra"),
    ("colour LIKE 'r%' AND colour NOT LIKE 're%'", AnalysisVerdict.NO, "algebra"),
    ("n IS NULL AND n = 1", AnalysisVerdict.NO, "algebra"),
    ("n IS NULL AND NOT halted", AnalysisVerdict.YES, "algebra"),
    ("n = NULL", AnalysisVerdict.NO, "algebra"),
    ("n NOT IN (1, NULL)", AnalysisVerdict.NO, "algebra"),
    ("n = 1 / 0 OR n = 1 + 1", AnalysisVerdict.YES, "algebra"),
    ("n = 1 / 0", AnalysisVerdict.NO, "algebra"),
    ("stock > 'a' AND stock < 'a\x00'", AnalysisVerdict.NO, "algebra"),
    (
        "at > TIMESTAMP '2026-01-01 00:00:00' AND at < TIMESTAMP '2026-01-01 00:00:00.000001'",
        AnalysisVerdict.NO,
        "algebra",
    ),
    ("n + 1 < n", AnalysisVerdict.NO, "solver"),
    ("n / m = -3 AND m > 5", AnalysisVerdict.YES, "solver"),
    ("n / 3 = -2 AND n > -6", AnalysisVerdict.NO, "solver"),
    ("n - m > 9223372036854775807", AnalysisVerdict.NO, "solver"),
    ("n / level = 5 AND level < 1", AnalysisVerdict.NO, "solver"),
    ("1 / level IS NOT NULL AND level < 1", AnalysisVerdict.NO, "solver"),
    ("(1 / level IS NULL OR 1 / level IS NOT NULL) AND level < 1", AnalysisVerdict.NO, "solver"),
    ("n + 1 IS NULL AND n IS NOT NULL", AnalysisVerdict.NO, "solver"),
    ("price / cost > 0 AND cost = 0.0", AnalysisVerdict.NO, "solver"),
    (
        "price + cost IS NOT NULL AND price > 1.7e308 AND cost = price AND price < 1.75e308",
        AnalysisVerdict.NO,
        "solver",
    ),
    ("-n = -9223372036854775808", AnalysisVerdict.NO, "solver"),
    ("n < m AND m < n + 1", AnalysisVerdict.NO, "solver"),
    ("price < cost AND cost < price", AnalysisVerdict.NO, "solver"),
    ("price > 0.1 AND price < 0.10000000000000002 AND price = cost", AnalysisVerdict.NO, "solver"),
    ("price < n AND n < price", AnalysisVerdict.NO, "solver"),
    ("price > n AND price < n + 1 AND n > 5", AnalysisVerdict.YES, "solver"),
    ("price = cost AND price > 1.7976931348623157e308", AnalysisVerdict.YES, "solver"),
    ("price + 1.0 < price", AnalysisVerdict.NO, "solver"),
    ("price * 2.0 > 10.5 AND price < 5.3", AnalysisVerdict.YES, "solver"),
    ("price * n > 100.5", AnalysisVerdict.YES, "solver"),
    ("price < n AND n < price + 1.0", AnalysisVerdict.YES, "solver"),
    ("price + cost > 10 AND stock LIKE 'a%' AND n + m = 7 AND level > 3", AnalysisVerdict.YES, "solver"),
    ("stock || name = 'hello' AND stock LIKE '_e%'", AnalysisVerdict.YES, "solver"),
    ("stock LIKE '%a_b%' AND stock NOT LIKE '%a%'", AnalysisVerdict.NO, "solver"),
    ("stock LIKE '%\U0010ffff%' AND stock <> name", AnalysisVerdict.YES, "solver"),
    ("stock > '\U0002ffff' AND stock NOT LIKE '\U0002ffff%' AND stock <> name", AnalysisVerdict.YES, "solver"),
    ("stock LIKE '%!u{41}%' ESCAPE '#' AND stock LIKE '%A%' AND stock NOT LIKE '%!%'", AnalysisVerdict.NO, "solver"),
    ("colour <> stock AND colour NOT IN ('red')", AnalysisVerdict.YES, "solver"),
    ("at > TIMESTAMP '2026-01-01 00:00:00' AND NOT (at <> at)", AnalysisVerdict.YES, "solver"),
]


@pytest.mark.parametrize(("text", "verdict", "means"), SATISFIABLE)
def test_satisfiable(text: str, verdict: AnalysisVerdict, means: str) -> None:
    answer = satisfiable(parse(text), OPEN, limits=UNHURRIED)
    assert (answer.verdict, answer.by) == (verdict, means)
    assert (answer.witness is not None) is (verdict is AnalysisVerdict.YES)
    if answer.witness is not None:
        assert evaluate(parse(text), answer.witness) is True


COVERS = [
    ("price > 20", "price > 24 AND stock IN ('NOK', 'ERIC')", AnalysisVerdict.YES, "algebra"),
    ("price > 24", "price > 20", AnalysisVerdict.NO, "algebra"),
    ("n > 0 OR n <= 0", "n IS NOT NULL", AnalysisVerdict.YES, "algebra"),
    ("n > 0 OR n <= 0", "TRUE", AnalysisVerdict.NO, "algebra"),
    ("colour IN ('red', 'green')", "colour IS NOT NULL", AnalysisVerdict.YES, "algebra"),
    ("level BETWEEN 0 AND 9 OR level IS NULL", "TRUE", AnalysisVerdict.YES, "algebra"),
    # A NaN is a value that no selector can read.
    ("price IS NULL OR price IS NOT NULL", "TRUE", AnalysisVerdict.NO, "algebra"),
    ("n IS NULL OR n IS NOT NULL", "TRUE", AnalysisVerdict.YES, "algebra"),
    # No single disjunct covers; together they do.
    ("n < 5 OR n > 3", "n BETWEEN 0 AND 9", AnalysisVerdict.YES, "algebra"),
    ("n < 5 AND halted OR n > 3 AND NOT halted OR n BETWEEN 3 AND 5", "n = 4", AnalysisVerdict.YES, "algebra"),
    ("n < 5 AND halted OR n > 3 AND NOT halted", "n = 4", AnalysisVerdict.NO, "algebra"),
    ("stock LIKE 'a%'", "stock LIKE 'ab%'", AnalysisVerdict.YES, "algebra"),
    ("stock LIKE '%a%'", "stock LIKE '%ba%'", AnalysisVerdict.YES, "solver"),
    ("stock LIKE '%ba%'", "stock LIKE '%a%'", AnalysisVerdict.NO, "solver"),
    ("n + m = m + n", "n IS NOT NULL AND m IS NOT NULL", AnalysisVerdict.NO, "solver"),
    ("n < m", "n < 5 AND m > 5", AnalysisVerdict.YES, "solver"),
    ("FALSE", "FALSE", AnalysisVerdict.YES, "algebra"),
]


@pytest.mark.parametrize(("a", "b", "verdict", "means"), COVERS)
def test_covers(a: str, b: str, verdict: AnalysisVerdict, means: str) -> None:
    answer = covers(parse(a), parse(b), OPEN, limits=UNHURRIED)
    assert (answer.verdict, answer.by) == (verdict, means)
    if verdict is AnalysisVerdict.NO:
        assert true_on(parse(b), answer.witness)
        assert not true_on(parse(a), answer.witness)


def test_equivalent() -> None:
    assert equivalent(parse("NOT (n < 3 OR n > 5)"), parse("n BETWEEN 3 AND 5"), OPEN).verdict is AnalysisVerdict.YES
    assert equivalent(parse("n + 0 = 3"), parse("n = 3"), OPEN).verdict is AnalysisVerdict.YES
    # Both are never FALSE on the same rows, but TRUE is what counts.
    assert equivalent(parse("n = 3 AND n = NULL"), parse("FALSE"), OPEN).verdict is AnalysisVerdict.YES
    told_apart = equivalent(parse("n > 3"), parse("n >= 3"), OPEN)
    assert (told_apart.verdict, told_apart.witness) == (AnalysisVerdict.NO, {"n": 3})


def test_what_the_solver_cannot_settle_is_unknown() -> None:
    # Cubes are hard, and the effort allowed is small.
    hard = parse("n * n * n + m * m * m = level * level * level * 4 + 114 AND n > 1000 AND m < -1000")
    answer = satisfiable(hard, OPEN, limits=SelectorLimits(solver_time=100, solver_effort=10_000))
    assert (answer.verdict, answer.witness, answer.by) == (AnalysisVerdict.UNKNOWN, None, "solver")
    same = equivalent(hard, parse("n = 1"), OPEN, limits=SelectorLimits(solver_time=100, solver_effort=10_000))
    assert same.verdict is not AnalysisVerdict.YES


def test_many_disjuncts_are_left_to_the_solver() -> None:
    text = " AND ".join(f"(n > {index} OR m > {index} OR level > {index})" for index in range(8))
    answer = satisfiable(parse(text), OPEN)
    assert (answer.verdict, answer.by) == (AnalysisVerdict.YES, "solver")


def test_an_answer_has_no_truth_value() -> None:
    with pytest.raises(TypeError):
        bool(satisfiable(parse("n = 1"), OPEN))


@pytest.mark.parametrize("text", ["nowhere = 1", "n = 'x'"])
def test_selectors_must_fit_the_schema(text: str) -> None:
    for ask in (covers, overlaps, equivalent):
        with pytest.raises(SelectorError):
            ask(parse("n = 1"), parse(text), OPEN)
    with pytest.raises(SelectorError):
        satisfiable(parse(text), OPEN)


def test_witnesses_that_fail_are_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(set_algebra, "search", lambda question: {"n": 2})
    answer = satisfiable(parse("n = 1"), OPEN)
    assert (answer.verdict, answer.witness) == (AnalysisVerdict.UNKNOWN, None)
    monkeypatch.setattr(set_algebra, "search", lambda question: {"level": 10})
    assert satisfiable(parse("level > 1"), OPEN).verdict is AnalysisVerdict.UNKNOWN


def test_importing_is_light() -> None:
    code = "import sys, penstock.selector; print(sorted({'z3', 'sqlglot'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
