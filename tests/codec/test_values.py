"""Attribute values and their domains as S-expressions: one value, one written form."""

import math
from datetime import UTC, datetime, timedelta, timezone
from enum import IntEnum, StrEnum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from penstock.codec.sexp import Hinted, SExp, canonical, parse
from penstock.codec.values import spec_from_sexp, spec_to_sexp, value_from_sexp, value_to_sexp
from penstock.errors import MalformedError, PenstockError
from penstock.model.values import AttributeSpec, Enumerated, Kind, Ranged, Value, kind_of

integers = st.integers(-(1 << 63), (1 << 63) - 1)
floats = st.floats(allow_nan=False)
moments = st.datetimes(timezones=st.just(UTC))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
values: st.SearchStrategy[Value] = texts | integers | floats | st.booleans() | moments


@given(values)
@settings(deadline=None, max_examples=examples(300))
def test_a_value_is_read_back(value: Value) -> None:
    written = value_to_sexp(value)
    found = value_from_sexp(parse(canonical(written)))
    assert found == value
    assert kind_of(found) is kind_of(value)
    assert value_to_sexp(found) == written
    if isinstance(value, float):
        assert isinstance(found, float)
        assert math.copysign(1, found) == math.copysign(1, value)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("AE05 XYZ", (b"string", b"AE05 XYZ")),
        ("", (b"string", b"")),
        ("Zürich", (b"string", "Zürich".encode())),
        (42, (b"integer", b"42")),
        (-(1 << 63), (b"integer", b"-9223372036854775808")),
        (True, (b"boolean", b"true")),
        (0.1, (b"float", b"0.1")),
        (1e300, (b"float", b"1e+300")),
        (-0.0, (b"float", b"-0.0")),
        (float("inf"), (b"float", b"inf")),
        (datetime(2026, 1, 31, 9, tzinfo=UTC), (b"timestamp", b"2026-01-31_09:00:00")),
        (datetime(2026, 1, 31, 9, 0, 0, 120, tzinfo=UTC), (b"timestamp", b"2026-01-31_09:00:00.000120")),
        (datetime(2026, 1, 31, 9, tzinfo=timezone(timedelta(hours=2))), (b"timestamp", b"2026-01-31_07:00:00")),
    ],
)
def test_the_written_form(value: Value, written: SExp) -> None:
    assert value_to_sexp(value) == written
    assert value_from_sexp(written) == value


class Colour(StrEnum):
    RED = "red"

    def __str__(self) -> str:
        return "Colour of blood"


class Level(IntEnum):
    HIGH = 3

    def __repr__(self) -> str:
        return "high"


class Measure(float):
    def __repr__(self) -> str:
        return f"Measure({float(self)})"


@pytest.mark.parametrize(
    ("value", "plain"), [(Colour.RED, "red"), (Level.HIGH, 3), (Measure(1.5), 1.5)], ids=["text", "int", "float"]
)
def test_a_subclass_is_written_as_the_value_that_it_is(value: Value, plain: Value) -> None:
    assert value_to_sexp(value) == value_to_sexp(plain)


@pytest.mark.parametrize(
    "written",
    [
        '(integer "042")',
        '(integer "+42")',
        '(integer " 42")',
        '(integer "4_2")',
        "(integer #d9a4#)",
        '(integer "-0")',
        '(integer "")',
        '(integer "1e3")',
        '(integer "100000000000000000000000000000000000000")',
        '(float "1")',
        '(float "1.00")',
        '(float "1E3")',
        '(float "1e400")',
        '(float "infinity")',
        '(float "0x1p3")',
        '(float "1_0.0")',
        '(float "")',
        "(boolean TRUE)",
        "(boolean yes)",
        '(boolean "1")',
        '(timestamp "2026-01-31")',
        '(timestamp "2026-01-31_09:00:00.000")',
        '(timestamp "2026-01-31_09:00:00.10")',
        "(string #ff#)",
        "(string #eda080#)",
        "(string a b)",
        "(string)",
        "(string (a))",
        "(String a)",
        "(null x)",
        "string",
        "()",
        "((string) a)",
    ],
)
def test_any_other_form_is_refused(written: str) -> None:
    with pytest.raises(MalformedError) as caught:
        value_from_sexp(parse(written.encode()))
    assert caught.value.code == "value.malformed"


@pytest.mark.parametrize(
    ("written", "code"),
    [
        ('(integer "9223372036854775808")', "value.range"),
        ('(integer "-9223372036854775809")', "value.range"),
        ("(float nan)", "value.nan"),
        ('(timestamp "yesterday")', "date.malformed"),
        ('(timestamp "2026-02-30_00:00:00")', "date.malformed"),
    ],
)
def test_what_is_no_value_of_its_kind(written: str, code: str) -> None:
    with pytest.raises(MalformedError) as caught:
        value_from_sexp(parse(written.encode()))
    assert caught.value.code == code


def test_display_hints_have_no_place_in_values() -> None:
    with pytest.raises(MalformedError):
        value_from_sexp((b"string", Hinted(b"text/plain", b"a")))


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (1 << 63, "value.range"),
        (float("nan"), "value.nan"),
        ("\ud800", "value.text"),
        (datetime(2026, 1, 1), "value.zone"),  # noqa: DTZ001  # the point of the case
        (None, "value.kind"),
        (b"bytes", "value.kind"),
    ],
)
def test_what_cannot_be_written(value: Value, code: str) -> None:
    with pytest.raises(MalformedError) as caught:
        value_to_sexp(value)
    assert caught.value.code == code


def domains(kind: Kind, members: st.SearchStrategy[Value]) -> st.SearchStrategy[AttributeSpec]:
    listed = st.frozensets(members, min_size=1, max_size=5).map(lambda chosen: AttributeSpec(kind, Enumerated(chosen)))
    return st.just(AttributeSpec(kind)) | listed


def ranges(kind: Kind, members: st.SearchStrategy[Value]) -> st.SearchStrategy[AttributeSpec]:
    def between(pair: list[Value]) -> AttributeSpec:
        low, high = sorted(pair)
        assert not isinstance(low, str)
        assert not isinstance(high, str)
        return AttributeSpec(kind, Ranged(low, high))

    return st.lists(members, min_size=2, max_size=2).map(between)


specs = st.one_of(
    domains(Kind.STRING, texts),
    domains(Kind.BOOLEAN, st.booleans()),
    *(
        domains(kind, members) | ranges(kind, members)
        for kind, members in ((Kind.INTEGER, integers), (Kind.FLOAT, floats), (Kind.TIMESTAMP, moments))
    ),
)


@given(specs)
@settings(deadline=None, max_examples=examples(200))
def test_a_domain_is_read_back(spec: AttributeSpec) -> None:
    written = spec_to_sexp(spec)
    assert spec_from_sexp(written) == spec
    assert spec_to_sexp(spec_from_sexp(written)) == written


@pytest.mark.parametrize(
    ("written", "code"),
    [
        ("()", "value.malformed"),
        ("(text)", "value.malformed"),
        ("(#ff#)", "value.malformed"),
        ("((string))", "value.malformed"),
        ("(string one-of)", "value.malformed"),
        ("(string (one-of a) (one-of b))", "value.malformed"),
        ("(string (one-of b a))", "value.malformed"),
        ("(string (one-of a a))", "value.malformed"),
        ("(string (one-of (a)))", "value.malformed"),
        ("(string (one-of))", "value.domain"),
        ("(string (range a b))", "value.domain"),
        ("(boolean (range false true))", "value.domain"),
        ('(integer (range "1"))', "value.malformed"),
        ('(integer (range "1" "2" "3"))', "value.malformed"),
        ('(integer (range "2" "1"))', "value.domain"),
        ('(integer (range "1" "1.5"))', "value.malformed"),
        ("(float (range nan nan))", "value.nan"),
        ('(float (one-of "-0.0" "0.0"))', "value.malformed"),
        ('(nothing (one-of "1"))', "value.malformed"),
    ],
)
def test_domains_that_are_refused(written: str, code: str) -> None:
    parts = parse(written.encode())
    assert isinstance(parts, tuple)
    with pytest.raises(MalformedError) as caught:
        spec_from_sexp(parts)
    assert caught.value.code == code


atoms = st.binary(max_size=12) | st.sampled_from([b"string", b"integer", b"float", b"timestamp", b"one-of", b"range"])
anything: st.SearchStrategy[SExp] = st.recursive(
    atoms, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=8
)


@given(anything)
@settings(deadline=None, max_examples=examples(300))
def test_nothing_but_our_own_errors(value: SExp) -> None:
    for read in (value_from_sexp, lambda found: spec_from_sexp(found if isinstance(found, tuple) else (found,))):
        try:
            read(value)
        except PenstockError as error:
            assert error.code.startswith(("value.", "date."))  # noqa: PT017  # most, but not all, are refused
