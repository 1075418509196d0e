"""Principals: one written form for one identity, and names that are for the eye only."""

import base64
import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import MalformedError
from penstock.model.principals import KEY, THRESHOLD, Petnames, Principal

principals = st.builds(Principal, st.binary(min_size=32, max_size=32), st.sampled_from([KEY, THRESHOLD]))
ZERO = Principal(bytes(32))
WRITTEN = "ed25519:" + "a" * 52


@given(principals)
@settings(deadline=None)
def test_the_written_form_reads_back(principal: Principal) -> None:
    text = str(principal)
    found = Principal.parse(text)
    assert found == principal
    assert found.scheme == principal.scheme
    scheme, _, encoded = text.partition(":")
    assert len(encoded) == 52
    assert base64.b32decode(encoded.upper() + "====") == principal.digest
    assert scheme in (KEY, THRESHOLD)


def test_the_written_form_of_a_known_digest() -> None:
    assert str(ZERO) == WRITTEN
    assert str(Principal(b"\xff" * 32, THRESHOLD)) == "threshold:" + "7" * 51 + "q"
    assert repr(ZERO) == f"Principal({WRITTEN})"


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "ed25519",
        "ed25519:",
        "a" * 52,
        WRITTEN.upper(),
        "ed25519:" + "A" * 52,
        "ed25519:" + "a" * 51 + "A",
        "Ed25519:" + "a" * 52,
        WRITTEN + "====",
        WRITTEN + "=",
        "ed25519:" + "a" * 48 + "====",
        "ed25519:" + "a" * 50 + "==",
        "ed25519:" + "a" * 51 + "b",  # unused bits
        "ed25519:" + "a" * 51 + "p",
        "ed25519:" + "a" * 51,
        "ed25519:" + "a" * 53,
        "ed25519:" + "a" * 10_000,
        "ed25519:" + "a" * 51 + "1",
        "ed25519:" + "a" * 51 + "0",
        "ed25519:" + "a" * 51 + "\u0430",  # Cyrillic a
        "ed25519:" + "\u0131" + "a" * 51,  # the dotless i, whose upper case is I
        "ed25519:" + "\u017f" + "a" * 51,  # the long s, whose upper case is S
        "\uff45d25519:" + "a" * 52,
        WRITTEN + "\n",
        " " + WRITTEN,
        WRITTEN + " ",
        WRITTEN + "\0",
        "ed25519::" + "a" * 52,
        "ed25519:ed25519:" + "a" * 52,
        "rsa:" + "a" * 52,
        "sha256:" + "a" * 52,
        "ed25519:" + "\ud800" * 52,
    ],
)
def test_no_other_form_is_read(text: str) -> None:
    with pytest.raises(MalformedError) as error:
        Principal.parse(text)
    assert error.value.code == "principal.malformed"
    assert len(error.value.message) < 200


@given(principals, st.data())
@settings(deadline=None)
def test_changing_one_character_changes_the_principal_or_is_refused(principal: Principal, data: st.DataObject) -> None:
    text = str(principal)
    place = data.draw(st.integers(0, len(text) - 1))
    letter = data.draw(st.characters().filter(lambda letter: letter != text[place]))
    changed = text[:place] + letter + text[place + 1 :]
    with contextlib.suppress(MalformedError):
        found = Principal.parse(changed)
        assert str(found) == changed
        # Another scheme would be the same principal, but no single character makes one.
        assert found != principal


@pytest.mark.parametrize(
    ("digest", "scheme"),
    [(b"", KEY), (bytes(31), KEY), (bytes(33), THRESHOLD), (bytes(32), ""), (bytes(32), "ED25519"), (bytes(32), "rsa")],
)
def test_a_principal_that_could_not_be_written_down_is_refused(digest: bytes, scheme: str) -> None:
    with pytest.raises(MalformedError) as error:
        Principal(digest, scheme)
    assert error.value.code == "principal.malformed"


def test_the_digest_alone_decides() -> None:
    key, quorum = Principal(bytes(32), KEY), Principal(bytes(32), THRESHOLD)
    assert key == quorum
    assert hash(key) == hash(quorum)
    assert str(key) != str(quorum)
    assert key < Principal(bytes(31) + b"\1")


def test_the_short_form_is_a_beginning() -> None:
    assert ZERO.short == "ed25519:" + "a" * 10 + "…"
    assert Principal(bytes(32), THRESHOLD).short == "threshold:" + "a" * 10 + "…"
    with pytest.raises(MalformedError) as error:
        Principal.parse(ZERO.short)
    assert error.value.code == "principal.malformed"


def test_petnames_are_for_display() -> None:
    other, nobody = Principal(b"\1" * 32), Principal(b"\2" * 32)
    given_names = {ZERO: "PITO", other: ""}
    names = Petnames(given_names)
    given_names[nobody] = "added later"
    assert names.show(ZERO) == "PITO"
    assert names.show(other) == other.short, "an empty petname would show nothing"
    assert names.show(nobody) == nobody.short
    assert dict(names) == {ZERO: "PITO", other: ""}
    assert len(names) == 2
    assert len(Petnames()) == 0
    with pytest.raises(KeyError):
        names[nobody]
