"""S-expressions: round-trips over random values, and no answer but a value or a `MalformedError` on any bytes."""

import base64
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.budget import examples

from penstock.codec import sexp
from penstock.codec.limits import CodecLimits
from penstock.codec.sexp import Hinted, SExp
from penstock.errors import MalformedError

READERS: list[Callable[[bytes], object]] = [sexp.parse_canonical, sexp.parse, sexp.parse_many]

octets = st.binary(max_size=40) | st.text(max_size=20).map(str.encode) | st.sampled_from([b"tag", b"*", b"a b", b""])
atoms: st.SearchStrategy[SExp] = octets | st.builds(Hinted, octets, octets)
values: st.SearchStrategy[SExp] = st.recursive(
    atoms, lambda inner: st.lists(inner, max_size=5).map(tuple), max_leaves=25
)
blanks = st.text(alphabet=" \t\n\r\v\f", max_size=3).map(str.encode)
#: bytes that mean something, so that random strings of them get deep into the readers
syntax = st.lists(
    st.sampled_from([b"(", b")", b"[", b"]", b"{", b"}", b'"', b"#", b"|", b":", b"\\", b"\\x", b" ", b"=", b"+"])
    | st.sampled_from([b"0", b"1", b"2", b"3", b"12", b"a", b"ab", b"YQ", b"MTph", b"\xff", b"*", b"\n"]),
    max_size=30,
).map(b"".join)


@given(values, st.integers(1, 120))
@settings(deadline=None, max_examples=examples(300))
def test_every_form_reads_back(value: SExp, width: int) -> None:
    data = sexp.canonical(value)
    assert sexp.parse_canonical(data) == value
    assert sexp.parse(data) == value
    assert sexp.parse(sexp.transport(value)) == value
    printed = sexp.advanced(value, width=width)
    assert printed.isascii()
    assert sexp.parse(printed.encode("ascii")) == value


@given(st.lists(values, max_size=5), blanks, st.lists(st.integers(0, 2), min_size=5, max_size=5))
@settings(deadline=None, max_examples=examples(100))
def test_many_values_read_back_in_any_mixture_of_forms(items: list[SExp], blank: bytes, forms: list[int]) -> None:
    writers = (sexp.canonical, sexp.transport, lambda value: sexp.advanced(value).encode())
    data = b"".join(blank + writers[form](value) + b"\n" for value, form in zip(items, forms, strict=False))
    assert sexp.parse_many(data) == items


@given(octets, blanks, st.sampled_from(["hexadecimal", "base64", "quoted", "verbatim"]), st.booleans(), st.booleans())
@settings(deadline=None, max_examples=examples(300))
def test_every_spelling_of_an_atom(atom: bytes, blank: bytes, form: str, counted: bool, padded: bool) -> None:
    length = b"%d" % len(atom) if counted else b""
    if form == "hexadecimal":
        data = length + b"#" + blank + blank.join(b"%x" % digit for octet in atom for digit in divmod(octet, 16)) + b"#"
    elif form == "base64":
        text = base64.b64encode(atom)
        text = text if padded else text.rstrip(b"=")
        data = length + b"|" + blank.join(text[i : i + 3] for i in range(0, len(text), 3)) + blank + b"|"
    elif form == "quoted":
        data = length + b'"' + b"".join(b"\\x%02x" % o if padded else b"\\%03o" % o for o in atom) + b'"'
    else:
        data = b"%d:%b" % (len(atom), atom)
    assert sexp.parse(data) == atom
    assert sexp.parse(b"(" + blank + data + blank + data + b")") == (atom, atom)


def same_or_refused(read: Callable[[bytes], object], data: bytes) -> object:
    """Return what was read; anything but a value or a well-made `MalformedError` fails the test."""
    try:
        return read(data)
    except MalformedError as error:
        refusal = error
    assert refusal.code in {"sexp.truncated", "sexp.syntax", "sexp.trailing", "sexp.limit"}
    assert isinstance(refusal.fields["offset"], int)
    assert 0 <= refusal.fields["offset"] <= len(data)
    assert refusal.hint
    return None


@given(st.binary(max_size=200) | syntax)
@example(b"[0:]")
@example(b"{=}")
@settings(deadline=None, max_examples=examples(1500))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for read in READERS:
        same_or_refused(read, data)
    value = same_or_refused(sexp.parse_canonical, data)
    if value is not None:
        # One spelling per value: what the strict reader takes is what the writer writes.
        assert sexp.canonical(value) == data  # type: ignore[arg-type]  # a value of SExp, read above


@given(values, st.data())
@settings(deadline=None, max_examples=examples(500))
def test_damaged_encodings_are_read_or_refused(value: SExp, data: st.DataObject) -> None:
    encoded = data.draw(
        st.sampled_from([sexp.canonical(value), sexp.transport(value), sexp.advanced(value).encode()]), "encoded"
    )
    at = data.draw(st.integers(0, len(encoded)), "at")
    damage = data.draw(st.sampled_from(["cut", "drop", "insert", "replace", "double"]), "damage")
    octet = data.draw(st.binary(min_size=1, max_size=1) | st.sampled_from([b"(", b")", b"9", b'"', b"["]), "octet")
    damaged = {
        "cut": encoded[:at],
        "drop": encoded[:at] + encoded[at + 1 :],
        "insert": encoded[:at] + octet + encoded[at:],
        "replace": encoded[:at] + octet + encoded[at + 1 :],
        "double": encoded[:at] + encoded,
    }[damage]
    for read in READERS:
        same_or_refused(read, damaged)


@given(values)
@settings(deadline=None, max_examples=examples(100))
def test_no_beginning_of_a_canonical_form_is_one(value: SExp) -> None:
    data = sexp.canonical(value)
    for end in range(len(data)):
        with pytest.raises(MalformedError) as caught:
            sexp.parse_canonical(data[:end])
        assert caught.value.code == "sexp.truncated"


@given(syntax, st.integers(0, 4), st.integers(0, 6), st.integers(0, 30))
@settings(deadline=None, max_examples=examples(300))
def test_nothing_above_a_limit_is_read(data: bytes, depth: int, nodes: int, size: int) -> None:
    limits = CodecLimits(sexp_depth=depth, sexp_nodes=nodes, sexp_bytes=size)
    for read in (sexp.parse_canonical, sexp.parse):
        try:
            value = read(data, limits=limits)
        except MalformedError:
            continue
        assert len(data) <= size
        deep, many = measure(value)
        assert deep <= depth
        assert many <= nodes


def measure(value: SExp) -> tuple[int, int]:
    """Return the depth and the number of atoms and lists."""
    if not isinstance(value, tuple):
        return 0, 1
    inner = [measure(item) for item in value]
    return 1 + max((depth for depth, _ in inner), default=0), 1 + sum(nodes for _, nodes in inner)
