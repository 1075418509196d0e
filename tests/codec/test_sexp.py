"""S-expressions: what each form reads and refuses, by examples; RFC 9804's own are marked with their section."""

import pytest

from penstock.codec import sexp
from penstock.codec.limits import CodecLimits
from penstock.codec.sexp import Hinted, SExp
from penstock.errors import LimitError, MalformedError

CANONICAL: list[tuple[bytes, SExp]] = [
    (b"0:", b""),
    (b"3:abc", b"abc"),
    (b"10:foo)]}>bar", b"foo)]}>bar"),  # 6.2
    (b"3:\x00(\xff", b"\x00(\xff"),
    (b"()", ()),
    (b"(())", ((),)),
    (b"(6:issuer3:bob)", (b"issuer", b"bob")),  # 6.2
    (b"(4:icon[12:image/bitmap]9:xxxxxxxxx)", (b"icon", Hinted(b"image/bitmap", b"xxxxxxxxx"))),  # 6.2
    (b"(7:subject(3:ref5:alice6:mother))", (b"subject", (b"ref", b"alice", b"mother"))),  # 6.2
    (b"[0:]0:", Hinted(b"", b"")),
    (b"(1:a()1:b)", (b"a", (), b"b")),
]

ADVANCED: list[tuple[bytes, SExp]] = [
    (b" \t\v\r\n\fabc \t\v\r\n\f", b"abc"),
    (b'"subject"', b"subject"),  # 4.2
    (b'7"subject"', b"subject"),  # 4.2
    (b'"\\xFE is the same octet as \\376"', b"\xfe is the same octet as \xfe"),  # 4.2
    (b'3"\\n\\n\\n"', b"\n\n\n"),  # 4.2
    (b'"This has \\\n        one line."', b"This has         one line."),  # 4.2
    (b'"a\\\r\nb\\\n\rc\\\rd\\\ne"', b"abcde"),
    (b'"\\a\\b\\f\\n\\r\\t\\v\\?\\\'\\"\\\\"', b"\a\b\f\n\r\t\v?'\"\\"),
    (b'""', b""),
    (b":=..", b":=.."),  # 4.3
    (b"//example.net/names/smith", b"//example.net/names/smith"),  # 4.3
    (b"*", b"*"),  # 4.3
    (b"foo3:abc", b"foo3:abc"),
    (b"#616263#", b"abc"),  # 4.4
    (b"3#616263#", b"abc"),  # 4.4
    (b"# 616\n  263 #", b"abc"),  # 4.4
    (b"##", b""),  # 4.4
    (b"#fFaA#", b"\xff\xaa"),
    (b"|YWJj|", b"abc"),  # 4.5
    (b"| Y W\n J j |", b"abc"),  # 4.5
    (b"3|YWJj|", b"abc"),  # 4.5
    (b"|YWJjZA==|", b"abcd"),  # 4.5
    (b"|YWJjZA|", b"abcd"),  # 4.5
    (b"|YWJjZA=|", b"abcd"),  # 7.1: up to two equals signs
    (b"||", b""),  # 4.5
    (b"[ text/richtext ] abc", Hinted(b"text/richtext", b"abc")),  # 4.6
    (b'["text/plain; charset=utf-8"]#c3b6#', Hinted(b"text/plain; charset=utf-8", b"\xc3\xb6")),
    (b"( a ( bob c ) ( ( d e ) ( e f ) )  )", (b"a", (b"bob", b"c"), ((b"d", b"e"), (b"e", b"f")))),  # 5
    (b'(|ODpFeGFtcGxlIQ==| "1997" murphy 3:XC+)', (b"8:Example!", b"1997", b"murphy", b"XC+")),  # 5
    (b'(a"b"#63#|ZA==|3:efgh[i]j)', (b"a", b"b", b"c", b"d", b"efg", b"h", Hinted(b"i", b"j"))),
    (b"{KDE6YTE6YjE\n   6Yyk= }", (b"a", b"b", b"c")),  # 6.3
    (b" {KDE6YTE6YjE6Yyk} ", (b"a", b"b", b"c")),
]

#: refused as canonical, and where
REFUSED_CANONICAL: list[tuple[bytes, str, int]] = [
    (b"", "sexp.truncated", 0),
    (b"(", "sexp.truncated", 1),
    (b"(3:abc", "sexp.truncated", 6),
    (b"3:ab", "sexp.truncated", 4),
    (b"30:ab", "sexp.truncated", 5),
    (b"3", "sexp.truncated", 1),
    (b"30", "sexp.truncated", 2),
    (b"[", "sexp.truncated", 1),
    (b"[3:abc", "sexp.truncated", 6),
    (b"[3:abc]", "sexp.truncated", 7),
    (b")", "sexp.syntax", 0),
    (b"03:abc", "sexp.syntax", 0),
    (b"00:", "sexp.syntax", 0),
    (b"(01:a)", "sexp.syntax", 1),
    (b"+1:a", "sexp.syntax", 0),
    (b" 1:a", "sexp.syntax", 0),
    (b"1 :a", "sexp.syntax", 0),
    (b"1_0:aaaaaaaaaa", "sexp.syntax", 0),
    (b"\xd9\xa1:a", "sexp.syntax", 0),
    (b"-1:a", "sexp.syntax", 0),
    (b"(1:a 1:b)", "sexp.syntax", 4),
    (b"abc", "sexp.syntax", 0),
    (b'"abc"', "sexp.syntax", 0),
    (b"[3:abc)1:a", "sexp.syntax", 6),
    (b"[(1:a)]1:a", "sexp.syntax", 1),
    (b"[[1:a]1:b]1:a", "sexp.syntax", 1),
    (b"{MTph}", "sexp.syntax", 0),
    (b"3:abcd", "sexp.trailing", 5),
    (b"()()", "sexp.trailing", 2),
    (b"())", "sexp.trailing", 2),
    (b"1:a\n", "sexp.trailing", 3),
    (b"9" * 18 + b":", "sexp.truncated", 19),
    (b"9" * 19 + b":", "sexp.limit", 0),
    (b"9" * 100_000, "sexp.limit", 0),
]

REFUSED: list[tuple[bytes, str, int]] = [
    (b"", "sexp.truncated", 0),
    (b"  ", "sexp.truncated", 2),
    (b"(a", "sexp.truncated", 2),
    (b'"abc', "sexp.truncated", 4),
    (b'"abc\\', "sexp.truncated", 5),
    (b'"abc\\x4', "sexp.truncated", 7),
    (b"#61", "sexp.truncated", 3),
    (b"|YWJj", "sexp.truncated", 5),
    (b"{YWJj", "sexp.truncated", 5),
    (b"[a", "sexp.truncated", 2),
    (b"[a]", "sexp.truncated", 3),
    (b"12", "sexp.truncated", 2),
    (b"4:abc", "sexp.truncated", 5),
    (b")", "sexp.syntax", 0),
    (b"(a]", "sexp.syntax", 2),
    (b"(a {MTph})", "sexp.syntax", 3),
    (b"[a b]c", "sexp.syntax", 3),
    (b"[(a)]c", "sexp.syntax", 1),
    (b"[[a]b]c", "sexp.syntax", 1),
    (b"[a](c)", "sexp.syntax", 3),
    (b"012:abc", "sexp.syntax", 1),
    (b"12abc", "sexp.syntax", 2),
    (b'4"abc"', "sexp.syntax", 0),
    (b"2#616263#", "sexp.syntax", 0),
    (b"4|YWJj|", "sexp.syntax", 0),
    (b'"a\nb"', "sexp.syntax", 2),
    (b'"\xc3\xb6"', "sexp.syntax", 1),
    (b'"\\z"', "sexp.syntax", 1),
    (b'"\\400"', "sexp.syntax", 1),
    (b'"\\12"', "sexp.syntax", 1),
    (b'"\\xg0"', "sexp.syntax", 1),
    (b"#616#", "sexp.syntax", 0),
    (b"#6g#", "sexp.syntax", 0),
    (b"|YWJj!|", "sexp.syntax", 0),
    (b"|Y|", "sexp.syntax", 0),
    (b"|YWJj=|", "sexp.syntax", 0),
    (b"|YWI==|", "sexp.syntax", 0),
    (b"|YW=Jj|", "sexp.syntax", 0),
    (b"|YWJjZB==|", "sexp.syntax", 0),  # the same bytes as |YWJjZA==| but for stray bits
    (b"{IDE6YQ==}", "sexp.syntax", 0),  # braces hold the canonical form, without white space
    (b"{}", "sexp.truncated", 0),
    (b"a b", "sexp.trailing", 2),
    (b"(a) )", "sexp.trailing", 4),
    (b"9" * 10_000 + b'"a"', "sexp.limit", 0),
]


@pytest.mark.parametrize(("data", "value"), CANONICAL)
def test_canonical_form_is_read_and_written(data: bytes, value: SExp) -> None:
    assert sexp.parse_canonical(data) == value
    assert sexp.canonical(value) == data
    assert sexp.parse(data) == value
    assert sexp.parse(sexp.transport(value)) == value


@pytest.mark.parametrize(("data", "value"), ADVANCED)
def test_other_forms_are_read(data: bytes, value: SExp) -> None:
    assert sexp.parse(data) == value
    assert sexp.parse_many(data) == [value]


@pytest.mark.parametrize(("data", "code", "offset"), REFUSED_CANONICAL)
def test_canonical_form_is_strict(data: bytes, code: str, offset: int) -> None:
    with pytest.raises(MalformedError) as caught:
        sexp.parse_canonical(data)
    assert (caught.value.code, caught.value.fields["offset"]) == (code, offset)
    assert caught.value.hint


@pytest.mark.parametrize(("data", "code", "offset"), REFUSED)
def test_other_forms_are_strict(data: bytes, code: str, offset: int) -> None:
    with pytest.raises(MalformedError) as caught:
        sexp.parse(data)
    assert (caught.value.code, caught.value.fields["offset"]) == (code, offset)
    assert caught.value.hint


def test_transport_form() -> None:
    assert sexp.transport((b"a", b"b", b"c")) == b"{KDE6YTE6YjE6Yyk=}"  # 6.3


def test_many_values() -> None:
    assert sexp.parse_many(b"") == []
    assert sexp.parse_many(b" \n") == []
    assert sexp.parse_many(b"(1:a)\n{KDE6YTE6YjE6Yyk=}\nb 3:cde\n") == [(b"a",), (b"a", b"b", b"c"), b"b", b"cde"]
    with pytest.raises(MalformedError) as caught:
        sexp.parse_many(b"(a) (b")
    assert caught.value.code == "sexp.truncated"


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (b"token-1", "token-1"),
        (b"1token", '"1token"'),
        (b"", '""'),
        (b'say "hi"\\\n\t\r', '"say \\"hi\\"\\\\\\n\\t\\r"'),
        (b"\x00\xff", "#00ff#"),
        (b"\xff" * 21, "|////////////////////////////|"),
        (Hinted(b"text/plain", b"a b"), '[text/plain]"a b"'),
        ((), "()"),
        ((b"a", (), (b"b",)), "(a () (b))"),
    ],
)
def test_advanced_form_takes_the_readable_spelling(value: SExp, printed: str) -> None:
    assert sexp.advanced(value) == printed
    assert sexp.parse(printed.encode()) == value


def test_advanced_form_breaks_lines_at_the_width() -> None:
    value = (b"cert", (b"issuer", b"k1"), (b"subject", (b"name", b"k2", b"friend")), (b"tag", (b"*",)))
    assert sexp.advanced(value) == "(cert (issuer k1) (subject (name k2 friend)) (tag (*)))"
    assert sexp.advanced(value, width=30) == ("(cert\n (issuer k1)\n (subject (name k2 friend))\n (tag (*)))")
    assert sexp.advanced(value, width=24) == ("(cert\n (issuer k1)\n (subject\n  (name k2 friend))\n (tag (*)))")


@pytest.mark.parametrize("read", [sexp.parse_canonical, sexp.parse])
def test_a_million_parentheses_meet_the_depth_limit(read: object) -> None:
    assert callable(read)
    with pytest.raises(LimitError) as caught:
        read(b"(" * 1_000_000, limits=CodecLimits(sexp_bytes=2_000_000))
    assert caught.value.code == "sexp.limit"
    assert caught.value.fields["offset"] == 64


@pytest.mark.parametrize("read", [sexp.parse_canonical, sexp.parse, sexp.parse_many])
def test_each_limit_holds_and_no_less(read: object) -> None:
    assert callable(read)
    for data, exact, less in [
        (b"((1:a))", CodecLimits(sexp_depth=2), CodecLimits(sexp_depth=1)),
        (b"(1:a1:b)", CodecLimits(sexp_nodes=3), CodecLimits(sexp_nodes=2)),
        (b"(1:a)", CodecLimits(sexp_bytes=5), CodecLimits(sexp_bytes=4)),
    ]:
        read(data, limits=exact)
        with pytest.raises(LimitError) as caught:
            read(data, limits=less)
        assert caught.value.code == "sexp.limit"
        assert "offset" in caught.value.fields


def test_limits_hold_inside_braces() -> None:
    deep = sexp.transport((((b"a",),),))
    with pytest.raises(LimitError):
        sexp.parse(deep, limits=CodecLimits(sexp_depth=2))
    with pytest.raises(LimitError):
        sexp.parse_many(sexp.transport(b"a" * 1000), limits=CodecLimits(sexp_bytes=100))


def test_values_deeper_than_the_stack_of_python_are_written() -> None:
    value: SExp = ()
    for _ in range(100_000):
        value = (value,)
    assert sexp.canonical(value) == b"(" * 100_001 + b")" * 100_001
    assert sexp.advanced(value, width=40).count("(") == 100_001
    generous = CodecLimits(sexp_depth=200_000, sexp_nodes=200_000)
    assert sexp.canonical(sexp.parse_canonical(sexp.canonical(value), limits=generous)) == sexp.canonical(value)
    # Taken apart by hand: the interpreter frees nested tuples by recursion it bounds, but comparison has no bound.
    while value:
        assert isinstance(value, tuple)
        value = value[0]


def test_head_field_and_text() -> None:
    cert = (b"cert", (b"issuer", b"k1"), b"issuer", (b"subject", b"k2"))
    assert sexp.head(cert) == b"cert"
    assert sexp.head(()) is None
    assert sexp.head(b"cert") is None
    assert sexp.head(((b"a",),)) is None
    assert sexp.field(cert, b"issuer") == (b"issuer", b"k1")
    assert sexp.field(cert, b"tag") is None
    assert sexp.field(b"cert", b"tag") is None
    with pytest.raises(MalformedError) as caught:
        sexp.field((*cert, (b"issuer", b"k3")), b"issuer")
    assert caught.value.code == "sexp.duplicate"
    assert sexp.text("plate £".encode()) == "plate £"
    for wrong in (b"\xff", b"\xed\xa0\x80", (b"a",), Hinted(b"a", b"b")):
        with pytest.raises(MalformedError) as caught:
            sexp.text(wrong)
        assert caught.value.code == "sexp.text"


def test_a_file_of_values_is_bounded_as_a_whole() -> None:
    assert sexp.parse_many(b"a b", limits=CodecLimits(file_values=2)) == [b"a", b"b"]
    for limits in (CodecLimits(file_values=1), CodecLimits(file_bytes=2)):
        with pytest.raises(LimitError) as refused:
            sexp.parse_many(b"a b", limits=limits)
        assert refused.value.code == "sexp.limit"
