"""Tables of files that people write: what is not as it must be is an error, with a code of that kind of file."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from penstock.errors import MalformedError
from penstock.model import Principal
from penstock.store.files.strict_tables import Strict

FILE = Strict(
    syntax="file.syntax",
    unknown="file.unknown",
    missing="file.missing",
    value="file.value",
    zone="file.zone",
    help="read on",
)
WHO = Principal(bytes(32))


def test_what_is_as_it_must_be_is_returned() -> None:
    assert FILE.parse(b"a = 1") == FILE.parse("a = 1") == {"a": 1}
    assert FILE.texts("a", ["b", ""]) == ("b", "")
    assert FILE.flag("a", False) is False
    assert FILE.time_zone("a", "Europe/Amsterdam").key == "Europe/Amsterdam"
    assert FILE.name("a", "Müller & Co") == "Müller & Co"
    assert FILE.petnames("a", "names.toml") == "names.toml"
    assert FILE.petnames("a", {"met": str(WHO)}) == {"met": WHO}
    assert FILE.homes("a", {"met": "police", str(WHO): "police"}) == {
        "met": "police",
        str(WHO): "police",
    }
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert FILE.facts("a", {"n": 1, "when": noon, "on": True}) == {"n": 1, "when": noon, "on": True}


@pytest.mark.parametrize(
    ("read", "code"),
    [
        (lambda: FILE.parse("a ="), "file.syntax"),
        (lambda: FILE.parse(b"\xff"), "file.syntax"),
        (lambda: FILE.known("it", {"a": 1}, {"b"}), "file.unknown"),
        (lambda: FILE.needed("it", {"a": 1}, "b"), "file.missing"),
        (lambda: FILE.table("a", []), "file.value"),
        (lambda: FILE.text("a", ""), "file.value"),
        (lambda: FILE.texts("a", ["b", 1]), "file.value"),
        (lambda: FILE.some("a", ()), "file.value"),
        (lambda: FILE.flag("a", 1), "file.value"),
        (lambda: FILE.time_zone("a", 1), "file.value"),
        (lambda: FILE.time_zone("a", "Europe/Nowhere"), "file.zone"),
        (lambda: FILE.time_zone("a", "../etc/passwd"), "file.zone"),
        (lambda: FILE.name("a", "x" * 129), "file.value"),
        (lambda: FILE.name("a", "a\nb"), "file.value"),
        (lambda: FILE.petnames("a", 1), "file.value"),
        (lambda: FILE.petnames("a", {"a/b": str(WHO)}), "petname.malformed"),
        (lambda: FILE.homes("a", {"met": ""}), "file.value"),
        (lambda: FILE.facts("a", {"n": []}), "file.value"),
        (lambda: FILE.facts("a", {"hour": 1}), "environment.reserved"),
    ],
)
def test_what_is_not_is_an_error(read: Callable[[], object], code: str) -> None:
    with pytest.raises(MalformedError) as caught:
        read()
    assert caught.value.code == code


def test_a_key_that_is_nearly_right_is_told() -> None:
    with pytest.raises(MalformedError) as caught:
        FILE.known("it", {"creds": 1, "netwrok": 2}, {"network", "creds"})
    assert (caught.value.message, caught.value.hint) == (
        "it has no key `netwrok`",
        "did you mean `network`?",
    )
