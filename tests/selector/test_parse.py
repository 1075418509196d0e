"""Reading text: what is accepted, what is refused and where the caret stands."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.selector.strategies import conditions

from penstock.errors import LimitError, PenstockError, SelectorError
from penstock.selector import Selector, parse
from penstock.selector.limits import SelectorLimits

CANONICAL = [
    ("price>24 and stock in('NOK','ERIC')", "price > 24 AND stock IN ('NOK', 'ERIC')"),
    ("a != 1", "a <> 1"),
    ("a NOT LIKE 'x!%%' ESCAPE '!'", "a NOT LIKE 'x!%%' ESCAPE '!'"),
    ("NOT a LIKE 'x'", "a NOT LIKE 'x'"),
    ("NOT a IN (1)", "a NOT IN (1)"),
    ("NOT a IS NULL", "a IS NOT NULL"),
    ("a NOT BETWEEN 1 AND 2 AND b", "a NOT BETWEEN 1 AND 2 AND b"),
    ("a BETWEEN 1 AND 2 OR b", "a BETWEEN 1 AND 2 OR b"),
    ("a = 1 AND b = 2 OR c = 3 AND NOT d", "(a = 1 AND b = 2) OR (c = 3 AND (NOT d))"),
    ("(a AND b) AND (c AND d)", "a AND b AND c AND d"),
    ("NOT a = b", "NOT a = b"),
    ("NOT (NOT a)", "NOT (NOT a)"),
    ("a + b * c - d / 2 > 1", "(a + (b * c)) - (d / 2) > 1"),
    ("a - b - c = 0", "(a - b) - c = 0"),
    ("-a * -b = 1", "(-a) * (-b) = 1"),
    ("- - a = 1", "-(-a) = 1"),
    ("- 5 = a", "-5 = a"),
    ("a - -5 = 1", "a - -5 = 1"),
    ("a || b || 'c' = 'abc'", "(a || b) || 'c' = 'abc'"),
    ("a || b LIKE 'c%'", "a || b LIKE 'c%'"),
    ("\"license-plate\" = 'it''s'", "\"license-plate\" = 'it''s'"),
    ('"a""b" = 1', '"a""b" = 1'),
    ('"AND" = 1', '"AND" = 1'),
    ('"price" = 1', "price = 1"),
    ("date = 1 AND left = 2 AND user = 3", "date = 1 AND left = 2 AND user = 3"),
    ("timestamp = 1", "timestamp = 1"),
    ("Größe > 1", "Größe > 1"),
    ("1. = a AND .5 = a AND 1e3 = a", "1.0 = a AND 0.5 = a AND 1000.0 = a"),
    ("-0.0 = a", "0.0 = a"),
    ("007 = a", "7 = a"),
    ("t = TIMESTAMP '2026-01-31 09:00:00'", "t = TIMESTAMP '2026-01-31 09:00:00+00:00'"),
    ("t = timestamp '2026-01-31 09:00:00.5+01:30'", "t = TIMESTAMP '2026-01-31 07:30:00.500000+00:00'"),
    ("((((a))))", "a"),
    ("true OR False OR nUlL", "TRUE OR FALSE OR NULL"),
    ("a = '\n\x00%'", "a = '\n\x00%'"),
    ("-9223372036854775808 < a", "-9223372036854775808 < a"),
]


@pytest.mark.parametrize(("text", "canonical"), CANONICAL)
def test_canonical_text(text: str, canonical: str) -> None:
    selector = parse(text)
    assert selector.text == canonical
    assert parse(canonical) == selector
    assert parse(canonical).root == selector.root


REFUSED = [
    # text, code, offset of the caret
    ("", "selector.syntax", 0),
    ("   ", "selector.syntax", 3),
    ("a =", "selector.syntax", 3),
    ("a b", "selector.syntax", 2),
    ("a = 1)", "selector.syntax", 5),
    ("(a = 1", "selector.syntax", 0),
    ("a IN (1", "selector.syntax", 5),
    ("a IN ()", "selector.syntax", 6),
    ("a IN 1", "selector.syntax", 5),
    ("(a, b) = 1", "selector.syntax", 2),
    ("a == 1", "selector.syntax", 3),
    ("a = +1", "selector.syntax", 4),
    ("a NOT = 1", "selector.syntax", 6),
    ("a BETWEEN 1 OR 2", "selector.syntax", 12),
    ("a ESCAPE 'x'", "selector.syntax", 9),
    ("a = 'x", "selector.syntax", 4),
    ('"" = 1', "selector.syntax", 0),
    ("12abc = 1", "selector.syntax", 0),
    ("1.2.3 = a", "selector.syntax", 0),
    ("a \x00 = 1", "selector.syntax", 2),
    ("ıs = 1 AND a ıs NULL", "selector.syntax", 13),
    ("a = 1;", "selector.unsupported", 5),
    ("a.b = 1", "selector.unsupported", 1),
    ("a = 1 -- no", "selector.unsupported", 6),
    ("a /* no */ = 1", "selector.unsupported", 2),
    ("a = ?", "selector.unsupported", 4),
    ("a = :x", "selector.unsupported", 4),
    ("a = $1", "selector.unsupported", 4),
    ("a = @x", "selector.unsupported", 4),
    ("a::int = 1", "selector.unsupported", 1),
    ("a % 2 = 1", "selector.unsupported", 2),
    ("a[1] = 1", "selector.unsupported", 1),
    ("b AND upper(a) = 'X'", "selector.unsupported", 6),
    ("CAST(a AS int) = 1", "selector.unsupported", 0),
    ("a = CASE WHEN b THEN 1 END", "selector.unsupported", 4),
    ("a IN (SELECT 1)", "selector.unsupported", 6),
    ("EXISTS (SELECT 1)", "selector.unsupported", 0),
    ("a IS TRUE", "selector.unsupported", 5),
    ("a = DATE '2026-01-31'", "selector.unsupported", 4),
    ("a = x'ff'", "selector.unsupported", 4),
    ("a LIKE b", "selector.unsupported", 7),
    ("a LIKE 'x' || 'y'", "selector.unsupported", 7),
    ("a LIKE NULL", "selector.unsupported", 7),
    ("a = b = c", "selector.unsupported", 0),
    ("a = (b > c)", "selector.unsupported", 5),
    ("a IS NULL IS NULL", "selector.unsupported", 0),
    ("a = NOT b", "selector.unsupported", 8),
    ("b AND a + 1", "selector.type", 6),
    ("b AND 'x'", "selector.type", 6),
    ("a BETWEEN 1 AND 2 AND 3", "selector.type", 22),
    ("a = 9223372036854775808", "selector.literal", 4),
    ("a -9223372036854775808 = 1", "selector.literal", 3),
    ("a = " + "9" * 10_000, "selector.literal", 4),
    ("a = 1e999", "selector.literal", 4),
    ("a = '\ud800'", "selector.literal", 4),
    ("a = TIMESTAMP '2026-02-30 00:00:00'", "selector.literal", 14),
    ("a = TIMESTAMP '2026-02-01'", "selector.literal", 14),
    ("a = TIMESTAMP '0001-01-01 00:00:00+05:00'", "selector.literal", 14),
    ("a LIKE 'x!y' ESCAPE '!'", "selector.pattern", 7),
    ("a LIKE 'x!' ESCAPE '!'", "selector.pattern", 7),
    ("a LIKE 'x' ESCAPE '!!'", "selector.pattern", 7),
    ("a LIKE 'x' ESCAPE ''", "selector.pattern", 7),
]


@pytest.mark.parametrize(("text", "code", "position"), REFUSED)
def test_refusals_point_at_the_place(text: str, code: str, position: int) -> None:
    with pytest.raises(SelectorError) as caught:
        parse(text)
    assert (caught.value.code, caught.value.position) == (code, position)
    assert caught.value.hint
    assert caught.value.pointer().endswith(" " * (position - text.rfind("\n", 0, position) - 1) + "^")


def test_the_caret_stands_in_its_line() -> None:
    with pytest.raises(SelectorError) as caught:
        parse("a = 1\nAND b.c = 2")
    assert caught.value.pointer() == "AND b.c = 2\n     ^"


TOO_LARGE = [
    "(" * 100_000,
    "(" * 8_000,
    "(" * 65 + "a" + ")" * 65,
    "NOT (" * 64 + "a" + ")" * 64,
    "NOT " * 1_000 + "a",
    "- " * 1_000 + "1 = a",
    "a + " * 1_000 + "1 = a",
    "a || " * 1_000 + "a = a",
    "a AND " * 2_800 + "a AND (" * 10 + "b",
    "a IN (" + "1, " * 5_000 + "1)",
    "(" * 60 + "a + a" + " + a)" * 60 + " = 1" + " AND a + a" * 1,
    "x" * 16_385,
]


@pytest.mark.parametrize("text", TOO_LARGE)
def test_large_input_meets_a_limit(text: str) -> None:
    with pytest.raises(PenstockError) as caught:
        parse(text)
    assert caught.value.code in ("selector.limit", "selector.syntax", "selector.type")


@pytest.mark.parametrize("text", TOO_LARGE[:8] + TOO_LARGE[9:10])
def test_the_limit_has_its_code(text: str) -> None:
    with pytest.raises(LimitError) as caught:
        parse(text)
    assert caught.value.code == "selector.limit"


def test_what_lies_within_the_limits_is_read() -> None:
    assert parse("(" * 64 + "a" + ")" * 64).text == "a"
    assert parse("NOT (" * 63 + "a" + ")" * 63).attributes == {"a"}
    assert len(parse("a AND " * 2_000 + "a").text) > 10_000
    assert parse("a IN (" + "1, " * 3_000 + "1)").attributes == {"a"}


def test_limits_are_those_of_the_caller() -> None:
    with pytest.raises(LimitError):
        parse("a = 1 AND b = 2", limits=SelectorLimits(selector_length=10))
    with pytest.raises(LimitError):
        parse("a = 1 AND b = 2", limits=SelectorLimits(selector_nodes=6))
    with pytest.raises(LimitError):
        parse("a = 1 AND b = 2", limits=SelectorLimits(selector_depth=2))
    parse("a = 1 AND b = 2", limits=SelectorLimits(selector_depth=3, selector_nodes=7, selector_length=15))
    # The canonical text counts too: whoever stores it must be able to read it back.
    with pytest.raises(LimitError):
        parse("a=1", limits=SelectorLimits(selector_length=4))


@settings(deadline=None, max_examples=examples(200))
@given(conditions())
def test_canonical_text_reads_back(text: str) -> None:
    selector = parse(text)
    again = parse(selector.text)
    assert again == selector
    assert again.root == selector.root
    assert again.text == selector.text
    assert hash(again) == hash(selector)


WORDS = st.sampled_from(
    [
        *("a", "b", "1", "1.5", "1e5", "1e999", "'x'", '"q"', "(", ")", ",", "+", "-", "*", "/", "||", "=", "<>", "<"),
        *(">", ">=", "AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "TIMESTAMP", "CASE"),
        *("SELECT", "FROM", "CAST", ";", ".", "--", "/*", "::", "?", "[", "]", "%", "~", "^", "#", "@", "$", "\\", "'"),
        *('"', "\n", "\ud800", "ı"),
    ]
)


@settings(deadline=None, max_examples=examples(400))
@given(st.text(max_size=40) | st.lists(WORDS, max_size=12).map(" ".join) | st.lists(WORDS, max_size=12).map("".join))
@example("a" * 20_000)
@example("1e")
@example("a LIKE 'x' ESCAPE")
def test_any_text_is_read_or_refused(text: str) -> None:
    read_or_refused(text)


@settings(deadline=None, max_examples=examples(200))
@given(conditions(), st.data())
def test_damaged_text_is_read_or_refused(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 5)))
    read_or_refused(text[:start] + data.draw(st.just("") | WORDS | st.characters()) + text[end:])


def read_or_refused(text: str) -> None:
    error, selector = attempt(text)
    if selector is not None:
        assert parse(selector.text).root == selector.root
    elif isinstance(error, SelectorError):
        assert 0 <= error.position <= len(text)
        assert error.pointer()
        assert error.code.startswith("selector.")
    else:
        assert error is not None
        assert error.code == "selector.limit"


def attempt(text: str) -> tuple[PenstockError | None, Selector | None]:
    try:
        return None, parse(text)
    except PenstockError as error:
        return error, None
