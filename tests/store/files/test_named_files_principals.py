"""Principals by their petnames, and where they are at home."""

import pytest

from penstock.errors import LimitError, MalformedError
from penstock.model import Principal
from penstock.store.files.named_files import NamedPrincipals, NameErrors

NAMING = NameErrors(
    file="list of guests",
    no_match="guests.no-match",
    limit="guests.limit",
    twice="guests.twice",
    principal="guests.principal",
    help="read on",
)
ONE, OTHER = Principal(bytes(32)), Principal(bytes([1]) * 32)
NAMES = NamedPrincipals({"met": ONE, "the met": ONE, "ccs": OTHER}, NAMING)


def test_a_word_is_a_principal_or_a_petname() -> None:
    assert (NAMES.find("guest 1", str(OTHER)), NAMES.find("guest 2", "the met")) == (OTHER, ONE)
    assert NAMES.petnames.show(ONE) == "met"


@pytest.mark.parametrize(("text", "code"), [("mat", "guests.principal"), ("ed25519:met", "principal.malformed")])
def test_another_word_is_an_error(text: str, code: str) -> None:
    with pytest.raises(MalformedError) as caught:
        NAMES.find("guest 1", text)
    assert caught.value.code == code


def test_whoever_is_not_known_is_told_who_is() -> None:
    with pytest.raises(MalformedError) as caught:
        NAMES.find("guest 1", "mat")
    assert caught.value.message == "guest 1: `mat` is neither a principal nor one of the names of the list of guests"
    assert (caught.value.hint or "").endswith("ccs, met, the met")


def test_domains_have_everybody_who_is_at_home_there() -> None:
    police, city = NAMES.domains({"met": "police", "ccs": "city", str(ONE): "police"})
    assert [(one.name, tuple(one.members())) for one in (police, city)] == [("police", (ONE,)), ("city", (OTHER,))]
    (both,) = NAMES.domains({"met": "London", "ccs": "London"})
    assert tuple(both.members()) == (ONE, OTHER)
    assert NAMES.domains({}) == ()


@pytest.mark.parametrize(
    ("homes", "code"),
    [({"met": "police", "the met": "city"}, "guests.twice"), ({"mat": "police"}, "guests.principal")],
)
def test_nobody_has_two_homes_and_nobody_else_has_one(homes: dict[str, str], code: str) -> None:
    with pytest.raises(MalformedError) as caught:
        NAMES.domains(homes)
    assert caught.value.code == code


def test_errors_have_the_codes_of_their_kind_of_file() -> None:
    assert isinstance(NAMING.too_many("3 guests"), LimitError)
    assert (NAMING.too_many("3 guests").code, NAMING.given_twice("met").code) == ("guests.limit", "guests.twice")
