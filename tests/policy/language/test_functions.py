"""Every function, by examples that say what the standard says of it."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import EvaluationError
from penstock.policy.engine.evaluate import status_of
from penstock.policy.language.datatypes import (
    BOOLEAN,
    DATE_TIME,
    INTEGER,
    TYPES,
    XPATH,
    Bag,
    DataType,
    Kind,
    Value,
    data_type,
    read_value,
)
from penstock.policy.language.functions import FUNCTIONS, V1, V2, V3
from penstock.policy.language.results import PROCESSING_ERROR, SYNTAX_ERROR

CASES: list[tuple[str, tuple[Any, ...], Any]] = [
    (f"{V1}integer-divide", (-7, 2), -3),
    (f"{V1}integer-mod", (-7, 2), -1),
    (f"{V1}integer-mod", (7, -2), 1),
    (f"{V1}integer-add", (1, 2, 3), 6),
    (f"{V1}integer-abs", (-5,), 5),
    (f"{V1}double-to-integer", (-2.9,), -2),
    (f"{V1}round", (2.5,), 2.0),
    (f"{V1}floor", (-2.5,), -3.0),
    (f"{V1}double-equal", (math.nan, -math.nan), True),
    (f"{V1}string-normalize-space", (" \t a b\n",), "a b"),
    (f"{V1}string-normalize-space", ("\u00a0a\u00a0",), "\u00a0a\u00a0"),
    (f"{V3}string-from-dayTimeDuration", (read_value("P1DT2H", data_type("dayTimeDuration")),), "P1DT2H"),
    (f"{V3}anyURI-starts-with", ("http", "http://x"), True),
    (f"{V3}string-from-rfc822Name", (read_value("a@B.c", data_type("rfc822Name")),), "a@B.c"),
    (f"{V3}string-from-dnsName", (read_value("A.b:80", data_type("dnsName")),), "A.b:80"),
    (f"{V2}rfc822Name-regexp-match", ("@[A-Z]+$", read_value("a@B", data_type("rfc822Name"))), True),
    (f"{V2}dnsName-regexp-match", (r"^A\.", read_value("A.b", data_type("dnsName"))), True),
    (f"{V2}ipAddress-regexp-match", (r"^10\..*:80$", read_value("10.0.0.1:80", data_type("ipAddress"))), True),
    (f"{V2}x500Name-regexp-match", ("o=Medi Corp", read_value("o=Medi Corp, c=US", data_type("x500Name"))), True),
    (f"{V2}anyURI-regexp-match", ("^urn:", "urn:x"), True),
    (f"{V3}string-equal-ignore-case", ("É", "é"), True),
    (f"{V3}string-starts-with", ("ab", "abc"), True),
    (f"{V3}anyURI-ends-with", ("c", "abc"), True),
    (f"{V3}string-contains", ("x", "abc"), False),
    (f"{V3}string-substring", ("hello", 1, -1), "ello"),
    (f"{V3}anyURI-substring", ("hello", 1, 3), "el"),
    (f"{V3}integer-from-string", ("17",), 17),
    (f"{V3}string-from-double", (math.inf,), "INF"),
    (f"{V3}string-from-double", (45.5,), "4.55E1"),
    (f"{V3}string-from-double", (-0.0,), "-0.0E0"),
    (f"{V3}string-from-double", (1e16,), "1.0E16"),
    (f"{V3}string-from-double", (-2.5e-7,), "-2.5E-7"),
    (f"{V3}string-from-double", (1e7,), "1.0E7"),
    (f"{V3}string-from-time", (read_value("01:00:00+02:00", data_type("time")),), "23:00:00Z"),
    (f"{V3}string-from-time", (read_value("01:00:00", data_type("time")),), "01:00:00"),
    (f"{V3}string-from-date", (read_value("2026-05-01+12:00", data_type("date")),), "2026-05-01+12:00"),
    (f"{V3}string-from-date", (read_value("2026-05-01-12:00", data_type("date")),), "2026-05-02+12:00"),
    (f"{V3}string-from-dateTime", (read_value("2026-05-01T23:30:00-01:00", DATE_TIME),), "2026-05-02T00:30:00Z"),
    (f"{V3}string-from-boolean", (True,), "true"),
    (f"{V2}string-concatenate", ("a", "b", "c"), "abc"),
    (f"{V1}string-regexp-match", (r"\d{3}", "123"), True),
    (f"{V1}string-intersection", (("a", "b", "b"), ("b", "c")), ("b",)),
    (f"{V1}string-union", (("a", "b"), ("b", "c")), ("a", "b", "c")),
    (f"{V1}string-subset", (("a", "a"), ("a", "b")), True),
    (f"{V1}string-set-equals", (("a", "b"), ("b", "a", "a")), True),
    (f"{V1}string-at-least-one-member-of", (("a",), ("b",)), False),
    (f"{V1}string-bag-size", (("a", "a"),), 2),
    (f"{V1}string-is-in", ("a", ("b", "a")), True),
    (f"{V1}string-bag", ("a", "b"), ("a", "b")),
]
FAILING: list[tuple[str, tuple[Any, ...]]] = [
    (f"{V1}integer-divide", (1, 0)),
    (f"{V1}integer-mod", (1, 0)),
    (f"{V1}double-divide", (1.0, 0.0)),
    (f"{V1}double-to-integer", (math.nan,)),
    (f"{V1}integer-to-double", (10**400,)),
    (f"{V1}integer-multiply", (1 << 4000, 1 << 4000)),
    (f"{V1}string-one-and-only", ((),)),
    (f"{V1}string-one-and-only", (("a", "b"),)),
    (f"{V3}string-substring", ("abc", 2, 9)),
    (f"{V3}string-substring", ("abc", -1, 2)),
    (f"{V3}integer-from-string", ("x",)),
    (f"{V1}string-regexp-match", ("(", "x")),
    (f"{V2}string-concatenate", ("x" * (1 << 20), "y")),
]


@pytest.mark.parametrize(("name", "arguments", "expected"), CASES)
def test_it_gives(name: str, arguments: tuple[Any, ...], expected: object) -> None:
    assert FUNCTIONS[name].call(*arguments) == expected


@pytest.mark.parametrize("name", ["double-abs", "round", "floor"])
def test_what_is_no_number_is_found_in_bags(name: str) -> None:
    assert FUNCTIONS[f"{V1}double-is-in"].call(FUNCTIONS[f"{V1}{name}"].call(math.nan), (math.nan,))


@pytest.mark.parametrize(("name", "arguments"), FAILING)
def test_it_has_no_value(name: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(EvaluationError) as caught:
        FUNCTIONS[name].call(*arguments)
    read = name.endswith("-from-string")
    assert caught.value.code == ("xacml.value" if read else "xacml.processing")
    assert status_of(caught.value).code == (SYNTAX_ERROR if read else PROCESSING_ERROR)


@pytest.mark.parametrize(
    ("moment", "begin", "end", "within"),
    [
        ("10:00:00Z", "09:00:00Z", "11:00:00Z", True),
        ("23:30:00Z", "22:00:00Z", "02:00:00Z", True),
        ("01:00:00Z", "22:00:00Z", "02:00:00Z", True),
        ("12:00:00Z", "22:00:00Z", "02:00:00Z", False),
        ("10:00:00+02:00", "08:00:00Z", "08:00:00Z", True),
        ("10:00:00+02:00", "09:00:00", "11:00:00", True),
    ],
)
def test_times_lie_within_a_part_of_a_day(moment: str, begin: str, end: str, within: bool) -> None:
    read = next(one for one in TYPES if one.name == "time").read
    assert FUNCTIONS[f"{V2}time-in-range"].call(read(moment), read(begin), read(end)) is within


#: section 10.2.8, but for bags and sets, and for functions that take functions: what each takes, and what it gives
SIGNATURES = {
    **{
        f"{V1}{one}-equal": f"{one} {one} boolean"
        for one in (
            "string", "boolean", "integer", "double", "date", "time", "dateTime", "anyURI", "x500Name", "rfc822Name",
            "hexBinary", "base64Binary",
        )
    },
    **{f"{V3}{one}-equal": f"{one} {one} boolean" for one in ("dayTimeDuration", "yearMonthDuration")},
    f"{V3}string-equal-ignore-case": "string string boolean",
    **{
        f"{V1}{one}-{name}": f"{one} {one} {one}"
        for one in ("integer", "double")
        for name in ("add", "subtract", "multiply", "divide")
    },
    f"{V1}integer-mod": "integer integer integer",
    **{f"{V1}{one}-abs": f"{one} {one}" for one in ("integer", "double")},
    f"{V1}round": "double double",
    f"{V1}floor": "double double",
    f"{V1}string-normalize-space": "string string",
    f"{V1}string-normalize-to-lower-case": "string string",
    f"{V1}double-to-integer": "double integer",
    f"{V1}integer-to-double": "integer double",
    f"{V1}or": "boolean boolean",
    f"{V1}and": "boolean boolean",
    f"{V1}n-of": "integer boolean boolean",
    f"{V1}not": "boolean boolean",
    **{
        f"{V1}{one}-{sign}-than{equal}": f"{one} {one} boolean"
        for one in ("integer", "double", "string", "time", "date", "dateTime")
        for sign in ("greater", "less")
        for equal in ("", "-or-equal")
    },
    **{
        f"{V3}{moment}-{sign}-{length}": f"{moment} {length} {moment}"
        for moment, length in (
            ("dateTime", "dayTimeDuration"), ("dateTime", "yearMonthDuration"), ("date", "yearMonthDuration"),
        )
        for sign in ("add", "subtract")
    },
    f"{V2}time-in-range": "time time time boolean",
    f"{V2}string-concatenate": "string string string",
    **{
        f"{V3}{one}-from-string": f"string {one}"
        for one in (
            "boolean", "integer", "double", "time", "date", "dateTime", "anyURI", "dayTimeDuration",
            "yearMonthDuration", "x500Name", "rfc822Name", "ipAddress", "dnsName",
        )
    },
    **{
        f"{V3}string-from-{one}": f"{one} string"
        for one in (
            "boolean", "integer", "double", "time", "date", "dateTime", "anyURI", "dayTimeDuration",
            "yearMonthDuration", "x500Name", "rfc822Name", "ipAddress", "dnsName",
        )
    },
    **{
        f"{V3}{one}-{name}": f"string {one} boolean"
        for one in ("string", "anyURI")
        for name in ("starts-with", "ends-with", "contains")
    },
    **{f"{V3}{one}-substring": f"{one} integer integer string" for one in ("string", "anyURI")},
    f"{V1}string-regexp-match": "string string boolean",
    **{
        f"{V2}{one}-regexp-match": f"string {one} boolean"
        for one in ("anyURI", "ipAddress", "dnsName", "rfc822Name", "x500Name")
    },
    f"{V1}x500Name-match": "x500Name x500Name boolean",
    f"{V1}rfc822Name-match": "string rfc822Name boolean",
    f"{V3}xpath-node-count": "xpathExpression integer",
    f"{V3}xpath-node-equal": "xpathExpression xpathExpression boolean",
    f"{V3}xpath-node-match": "xpathExpression xpathExpression boolean",
    f"{V3}access-permitted": "anyURI string boolean",
}  # fmt: skip


@pytest.mark.parametrize("name", SIGNATURES)
def test_they_take_and_give_what_the_standard_says(name: str) -> None:
    *takes, gives = map(data_type, SIGNATURES[name].split())
    function = FUNCTIONS[name]
    assert function.accepts(tuple(takes))
    assert function.gives is gives
    assert not function.accepts((*takes, XPATH))


@pytest.mark.parametrize("one", TYPES, ids=str)
def test_each_type_has_its_functions_on_bags_and_sets(one: DataType) -> None:
    since = {"ipAddress": V2, "dnsName": V2, "xpathExpression": V3, "dayTimeDuration": V3, "yearMonthDuration": V3}
    begin, bag = since.get(one.name, V1), Bag(one)
    kinds: dict[str, tuple[tuple[Kind, ...], Kind]] = {
        "one-and-only": ((bag,), one),
        "bag-size": ((bag,), INTEGER),
        "bag": ((one, one), bag),
    }
    if one is not XPATH:
        kinds |= {
            "is-in": ((one, bag), BOOLEAN),
            "intersection": ((bag, bag), bag),
            "at-least-one-member-of": ((bag, bag), BOOLEAN),
            "union": ((bag, bag), bag),
            "subset": ((bag, bag), BOOLEAN),
            "set-equals": ((bag, bag), BOOLEAN),
        }
    for name, (takes, gives) in kinds.items():
        function = FUNCTIONS[f"{begin}{one}-{name}"]
        assert function.accepts(takes)
        assert function.gives == gives


SAMPLES = {
    "string": st.text(max_size=4),
    "boolean": st.booleans(),
    "integer": st.integers(-5, 5),
    "double": st.floats(),
    "anyURI": st.from_regex(r"[a-z:/]{0,5}", fullmatch=True),
    "hexBinary": st.binary(max_size=3),
    "base64Binary": st.binary(max_size=3),
    "time": st.sampled_from(["10:00:00Z", "11:00:00+01:00", "10:00:00"]),
    "date": st.sampled_from(["2026-05-01", "2026-05-01Z", "2026-05-02+01:00"]),
    "dateTime": st.sampled_from(["2026-05-01T00:00:00Z", "2026-05-01T01:00:00+01:00"]),
    "dayTimeDuration": st.sampled_from(["P1D", "PT24H", "PT1H"]),
    "yearMonthDuration": st.sampled_from(["P1Y", "P12M", "P1M"]),
    "rfc822Name": st.sampled_from(["a@B.c", "a@b.c"]),
    "x500Name": st.sampled_from(["c=us", "C=US", "c=de"]),
    "ipAddress": st.sampled_from(["10.0.0.1", "10.0.0.2:80"]),
    "dnsName": st.sampled_from(["a.b", "*.b"]),
}
PLAIN = ("string", "boolean", "integer", "double", "anyURI", "hexBinary", "base64Binary")


def samples(one: DataType) -> "st.SearchStrategy[Value]":
    found: st.SearchStrategy[Any] = SAMPLES[one.name]
    return found if one.name in PLAIN else found.map(one.read)


@given(st.data())
def test_arguments_of_the_right_kinds_give_a_value_or_an_error_of_ours(data: st.DataObject) -> None:
    known = [one for one in FUNCTIONS.values() if not one.within and "xpath" not in one.id]
    function = data.draw(st.sampled_from(known))
    kinds = [*function.takes[:-1], *[function.takes[-1]] * max(1, function.repeated or 1)]
    arguments = [
        tuple(data.draw(st.lists(samples(kind.of), max_size=3))) if isinstance(kind, Bag) else data.draw(samples(kind))
        for kind in kinds
    ]
    try:
        found = function.call(*arguments)
    except EvaluationError:
        return
    if not isinstance(function.gives, Bag) and function.gives.name not in ("string", "xpathExpression"):
        written = function.gives.write(found)
        assert function.gives.write(read_value(written, function.gives)) == written
