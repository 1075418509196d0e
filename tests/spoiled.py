"""Documents that were good until something happened to them: cut, doubled, stuffed with what readers stumble over."""

import re
from collections.abc import Sequence
from typing import Final

from hypothesis import strategies as st

#: what has broken readers before: marks and halves of encodings, entities, depth, numbers beyond all types, names twice
NASTY: Final[Sequence[bytes]] = (
    b"\xef\xbb\xbf", b"\xff\xfe", b"\x00", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x80\xa8",
    b"\\ud800", b"\\u0000", b"\\", b'"', b"'", b"\r", b"\x1b[2J", b"\x0b",
    b"[" * 500, b"{" * 500, b"(" * 500, b"not " * 500, b'{"a":' * 500, b"<a>" * 500, b"]", b"}", b")",
    b"<!DOCTYPE a [<!ENTITY b 'c'>]>", b"&b;", b"&#0;", b"&#x110000;", b"<![CDATA[", b"]]>", b"<!--", b"<?x?>",
    b'<a xmlns:b="urn:b" b:c=""/>', b"<xi:include href='file:///etc/passwd'/>",
    b"9" * 400, b"9" * 5_000, b"-", b"1e999", b"-0", b"0x10", b"NaN", b"Infinity", b"INF", b"1.7976931348623157e308",
    b"P" + b"9" * 30 + b"Y", b"-P1M", b"99999-13-32T25:61:61Z", b"2026-02-30", b"23:59:60+14:01", b"24:00:00",
    b"(a+)+$", b"[", b"\\p{L}", b"{1,999999999}", b"a{99999}{99999}", b"//*[position()>1]//*", b"true", b"null",
    b"256.0.0.1", b"::1/129", b"%00", b"1-99999", b"urn:x",
    b"http://www.w3.org/2001/XMLSchema#integer", b"http://www.w3.org/2001/XMLSchema#date",
    b"http://www.w3.org/2001/XMLSchema#double", b"http://www.w3.org/2001/XMLSchema#base64Binary",
)  # fmt: skip

#: what stands in quotes, between tags, or is a number
_VALUES: Final = re.compile(rb"""(?<=["'>:\[ ])([^"'<>:\[\], ]+)(?=["'<,\]} ])""")


def flipped(data: bytes, place: int = -1, bit: int = 0) -> bytes:
    """Return the bytes with one bit the other way round: what an byte written over would leave as it is at times."""
    changed = bytearray(data)
    changed[place] ^= 1 << bit
    return bytes(changed)


@st.composite
def spoiled(draw: st.DrawFn, samples: Sequence[bytes]) -> bytes:
    """Draw one of the samples with one to three things done to it."""
    data = draw(st.sampled_from(samples))
    for _ in range(draw(st.integers(1, 3))):
        data = _once(draw, data)
    return data


def _once(draw: st.DrawFn, data: bytes) -> bytes:
    start = draw(st.integers(0, len(data)))
    end = min(len(data), start + draw(st.integers(0, 60)))
    before, within, after = data[:start], data[start:end], data[end:]
    match draw(st.integers(0, 9)):
        case 0:
            return before
        case 1:
            return before + after
        case 2:
            return before + within + within + after
        case 3:
            return before + draw(st.binary(max_size=8)) + after
        case 4:
            return _other_encoding(draw, data)
        case 5 | 6 | 7:
            return _other_value(draw, data)
        case _:
            return before + draw(st.sampled_from(NASTY)) + (after if draw(st.booleans()) else within + after)


def _other_value(draw: st.DrawFn, data: bytes) -> bytes:
    """Put something else where a value stands, so that the document stays one, and is understood further."""
    places = [found.span(1) for found in _VALUES.finditer(data)]
    if not places:
        return data
    start, end = draw(st.sampled_from(places))
    others = [data[one:other] for one, other in places]
    return data[:start] + draw(st.sampled_from(NASTY) | st.sampled_from(others)) + data[end:]


def _other_encoding(draw: st.DrawFn, data: bytes) -> bytes:
    name = draw(st.sampled_from(["utf-16", "utf-16-be", "utf-32", "utf-8-sig", "utf-7", "cp037"]))
    return data.decode("utf-8", "replace").encode(name, "replace")
