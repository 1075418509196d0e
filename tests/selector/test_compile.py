"""The compiled function against the reference interpreter."""

from collections.abc import Callable
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.selector.strategies import SCHEMA, VALUES, conditions, rows, wrong_rows

from penstock.errors import EvaluationError
from penstock.model.values import AttributeSpec, Scalar
from penstock.selector import compile_selector, evaluate, parse
from penstock.selector.ast import write_name, write_value
from penstock.selector.compile import compile_for_rows

#: every attribute has a value, mostly a special one: nulls would hide what arithmetic does
FULL_ROWS = st.fixed_dictionaries({name: VALUES[spec.kind] for name, spec in SCHEMA.items()})


def outcome(function: Callable[[], object]) -> object:
    try:
        return function()
    except EvaluationError as error:
        return error.code


@settings(deadline=None, max_examples=examples(300))
@given(conditions(), st.lists(rows() | FULL_ROWS, min_size=3, max_size=3))
def test_agrees_with_the_interpreter(text: str, some: list[dict[str, Scalar]]) -> None:
    selector = parse(text)
    functions = [compile_selector(selector, SCHEMA), compile_selector(selector)]
    for row in some:
        expected = outcome(partial(evaluate, selector, row))
        for function in functions:
            assert outcome(partial(function, row)) == expected


@settings(deadline=None, max_examples=examples(150))
@given(conditions(), rows() | FULL_ROWS | wrong_rows(), st.sets(st.sampled_from(sorted(SCHEMA))))
def test_rows_in_fixed_places_are_answered_as_maps_are(text: str, row: dict[str, Scalar], lacking: set[str]) -> None:
    selector = parse(text)
    known = [name for name in sorted(SCHEMA) if name not in lacking]
    expected = outcome(partial(evaluate, selector, {name: row.get(name) for name in known}))
    compiled = compile_for_rows(selector, {name: place for place, name in enumerate(known, 1)})
    assert outcome(partial(compiled, ["before", *map(row.get, known)])) == expected


@settings(deadline=None, max_examples=examples(200))
@given(conditions(), wrong_rows())
def test_agrees_on_rows_of_wrong_kinds(text: str, row: dict[str, Scalar]) -> None:
    selector = parse(text)
    expected = outcome(partial(evaluate, selector, row))
    assert outcome(partial(compile_selector(selector), row)) == expected


def test_part_of_a_schema_will_do() -> None:
    compiled = compile_selector(parse("i > 1 AND s = 'x'"), {"i": AttributeSpec(SCHEMA["i"].kind)})
    assert compiled({"i": 2, "s": "x"}) is True
    assert compiled({"i": 2}) is None
    assert compiled({"i": 0}) is False


def test_names_and_constants_never_become_code() -> None:
    hostile = "x\"]; raise SystemExit; y['\n\\"
    selector = parse(f"{write_name(hostile)} = {write_value(hostile)}")
    assert selector.attributes == {hostile}
    assert compile_selector(selector)({hostile: hostile}) is True


def test_large_selectors_compile() -> None:
    wide = parse(" AND ".join(f"(i <> {index} OR j > {index})" for index in range(300)))
    assert compile_selector(wide)({"i": -1, "j": 0}) is True
    deep = parse("NOT (b AND (i = 1 OR " * 15 + "TRUE" + "))" * 15)
    assert compile_selector(deep)({"b": True, "i": 2}) is evaluate(deep, {"b": True, "i": 2})
