"""YAML is read as plain data, or refused."""

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from penstock.codec import yaml_text
from penstock.codec.limits import CodecLimits
from penstock.codec.yaml_text import Lined, Written, read_yaml, write_yaml
from penstock.errors import LimitError, MalformedError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("a:", {"a": None}),
        ("[1, -2, 0, 1.5, -0.5e3]", [1, -2, 0, 1.5, -500.0]),
        ("[no, on, yes, 0777, 0x10, 1_000, 2026-01-31, .5, 1e3, NaN, True]", None),
        ("{true: false, 1: 'true', null: \"1\"}", {"true": False, "1": "true", "null": "1"}),
        ("- |\n  two\n  lines\n- >-\n  folded\n  text", ["two\nlines\n", "folded text"]),
    ],
)
def test_values(text: str, value: object) -> None:
    read = read_yaml(text)
    if "no, on" in text:
        assert isinstance(read, list)
        assert all(isinstance(item, str) for item in read)
    else:
        assert read == value


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a: [", "yaml.malformed"),
        ("a: \x00", "yaml.malformed"),
        ("a: &x 1\nb: *x", "yaml.unsupported"),
        ("a: *x", "yaml.unsupported"),
        ("&x a: 1", "yaml.unsupported"),
        ("a: !!python/object/apply:os.system [ls]", "yaml.unsupported"),
        ("a: !!str 1", "yaml.unsupported"),
        ("? [a, b]\n: 1", "yaml.unsupported"),
        ("a: 1\n---\nb: 2", "yaml.unsupported"),
        ("a: 1\nb: 2\na: 3", "yaml.duplicate-key"),
    ],
)
def test_what_is_refused(text: str, code: str) -> None:
    with pytest.raises(MalformedError) as raised:
        read_yaml(text)
    assert raised.value.code == code


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("abc", CodecLimits(yaml_length=2)),
        ("[[[1]]]", CodecLimits(yaml_depth=2)),
        ("[1, 2]", CodecLimits(yaml_nodes=2)),
    ],
)
def test_limits(text: str, limits: object) -> None:
    with pytest.raises(LimitError) as raised:
        read_yaml(text, limits=limits)  # type: ignore[arg-type]  # limits, all of them
    assert raised.value.code == "yaml.limit"


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**18), 10**18)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6)
    | st.text("ab:-# '\"\n0~1e.+", max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", min_size=1, max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(plain)
@settings(max_examples=examples(100))
def test_what_is_written_is_read_back(value: Written) -> None:
    assert read_yaml(write_yaml(value)) == value


@given(plain)
@settings(max_examples=examples(50))
def test_both_parsers_read_the_same(value: Written) -> None:
    text = write_yaml(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml_text, "LOADER", yaml.SafeLoader)
        assert read_yaml(text) == value


def test_mappings_know_their_lines() -> None:
    read = read_yaml("a:\n- {b: 1,\n   c: 2}\n\nd: 3\n")
    assert isinstance(read, Lined)
    assert read.lines == {"a": 1, "d": 5}
    assert isinstance(inner := read["a"], list)
    assert isinstance(first := inner[0], Lined)
    assert first.lines == {"b": 2, "c": 3}


@given(st.text(max_size=40) | st.text("{}[]:-?&*!|>'\"%@,# \nab1", max_size=30))
@settings(max_examples=examples(200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        read_yaml(text)
    except MalformedError as error:
        assert error.code.startswith("yaml.")  # noqa: PT017  # either is fine, nothing else is
