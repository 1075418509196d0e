"""S-expressions that others wrote (`PENSTOCK_SUITES`); our own cases beside this file cover the same ground."""

import re
from pathlib import Path

import pytest

from penstock.codec import sexp
from penstock.errors import MalformedError


def key_of(data: bytes) -> bytes:
    """Return the `Key:` value of a file of `Name: value` lines with continuation lines and comments."""
    lines = [line for line in data.replace(b"\r\n", b"\n").split(b"\n") if not re.match(rb"\s*(#\s|$)", line)]
    start = next(i for i, line in enumerate(lines) if line.startswith(b"Key:"))
    value = [lines[start].removeprefix(b"Key:")]
    for line in lines[start + 1 :]:
        if not line.startswith((b" ", b"\t")):
            break
        value.append(line)
    return b"\n".join(value)


def test_one_certificate_in_three_forms(suites: Path) -> None:
    advanced, transport, canonical = (
        (suites / "sexp" / "baseline" / f"sexp-sample-{letter}").read_bytes() for letter in "abc"
    )
    value = sexp.parse_canonical(canonical)
    assert sexp.parse(advanced) == sexp.parse(transport) == value
    assert sexp.canonical(value) == canonical
    assert sexp.transport(value) == transport.strip()
    assert sexp.parse(sexp.advanced(value).encode()) == value
    assert sexp.head(value) == b"certificate"


def test_a_canonical_private_key(suites: Path) -> None:
    data = (suites / "sexp" / "compat" / "g10" / "canonical.key").read_bytes()
    value = sexp.parse_canonical(data)
    assert sexp.canonical(value) == data
    assert sexp.head(value) == b"protected-private-key"


def test_private_keys_in_advanced_form(suites: Path) -> None:
    files = sorted((suites / "sexp" / "compat" / "g23").glob("correct*.key"))
    assert files
    keys = [sexp.parse(key_of(file.read_bytes())) for file in files]
    for key in keys:
        assert sexp.head(key) == b"private-key"
        assert sexp.parse(sexp.advanced(key).encode()) == key
        # Cut behind any of its bytes, the key is refused; a few places stand for all.
        text = sexp.advanced(key).encode()
        for end in range(1, len(text), 97):
            with pytest.raises(MalformedError):
                sexp.parse(text[:end])
