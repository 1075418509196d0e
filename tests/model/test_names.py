"""Names that begin with their owner: one written form each, and nothing that only looks like a name."""

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from penstock.errors import MalformedError
from penstock.model.limits import TYPE_NAME_LENGTH
from penstock.model.names import AttributeId, NetworkName, TypeKey, TypeName, check_attribute_name, check_token
from penstock.model.principals import THRESHOLD, Principal

PITO = Principal(b"\1" * 32)
POLICE = Principal(b"\2" * 32)
LONGEST = TYPE_NAME_LENGTH

principals = st.builds(Principal, st.binary(min_size=32, max_size=32))
words = st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,12}", fullmatch=True)
type_names = st.lists(words, min_size=1, max_size=5).map(".".join)
tokens = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}", fullmatch=True)
network_names = st.from_regex(r"[A-Za-z0-9_]([A-Za-z0-9_. -]{0,20}[A-Za-z0-9_.-])?", fullmatch=True)

Maker = Callable[[str], object]


def network(text: str) -> NetworkName:
    return NetworkName(PITO, text)


def version(text: str) -> TypeName:
    return TypeName(PITO, "Numberplate", text)


def uid(text: str) -> AttributeId:
    return AttributeId(PITO, "Numberplate", text)


def token(text: str) -> None:
    check_token(text, "version")


TYPES: list[Maker] = [
    lambda text: TypeKey(PITO, text),
    lambda text: TypeName(PITO, text),
    lambda text: AttributeId(PITO, text, "1"),
]
TOKENS: list[Maker] = [version, uid, token]
ALL: list[Maker] = [*TYPES, *TOKENS, check_attribute_name, network]

HOSTILE = [
    "",
    " ",
    "a" * 10_000,
    "a" * (LONGEST + 1),
    "Numberplate\n",
    "\nNumberplate",
    "Number\nplate",
    "Numberplate\r\n",
    "Number\0plate",
    "Number\x1b[2Jplate",
    "Number\x7fplate",
    "Number\u200bplate",  # zero width space
    "Number\u202eplate",  # right-to-left override
    "Number\u00adplate",  # soft hyphen
    "\ufeffNumberplate",
    "N\u0443mberplate",  # Cyrillic u
    "\u039dumberplate",  # Greek Nu
    "\uff2eumberplate",  # full width N
    "Numberplate\u0661",  # Arabic-Indic digit
    "Numberplate\u00b2",  # superscript two
    "Nu\u0301mberplate",  # combining acute
    "stra\u00dfe",
    "Number\u2010plate",  # hyphen that is not `-`
    "Number\u00a0plate",
    "Number/plate",
    "Number@plate",
    "Number#plate",
    "Number:plate",
    "Number*",
    "Number\tplate",
    "\ud800",
    "-",
    "-Numberplate",
]


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names(make: Maker, text: str) -> None:
    with pytest.raises(MalformedError) as error:
        make(text)
    assert error.value.code == "name.malformed"
    assert len(error.value.message) < 200
    assert len(str(error.value.fields)) < 1000


@pytest.mark.parametrize("make", TYPES)
@pytest.mark.parametrize("text", [".", "a.", ".a", "a..b", "a.1b", "a.-b", "1a", "a b", "uk.gov.pito.", "a. b"])
def test_type_names_are_dotted_words(make: Maker, text: str) -> None:
    with pytest.raises(MalformedError) as error:
        make(text)
    assert error.value.code == "name.malformed"


@pytest.mark.parametrize("text", ["uk.gov.pito.Numberplate", "Numberplate", "_", "a-b.c_d", "A1.B2", "a" * LONGEST])
def test_good_type_names(text: str) -> None:
    for make in TYPES:
        make(text)


@pytest.mark.parametrize("text", ["9a", "a.b", "a b", "@"])
def test_attribute_names_are_one_word(text: str) -> None:
    with pytest.raises(MalformedError) as error:
        check_attribute_name(text)
    assert error.value.code == "name.malformed"


@pytest.mark.parametrize("text", ["license-plate", "numberplate", "_hidden", "a", "A9", "a" * LONGEST])
def test_good_attribute_names(text: str) -> None:
    check_attribute_name(text)


@pytest.mark.parametrize("make", TOKENS)
@pytest.mark.parametrize("text", ["a" * 65, "_", "a_b", "a.b", "1.0", "1 "])
def test_versions_and_uids_are_tokens(make: Maker, text: str) -> None:
    with pytest.raises(MalformedError) as error:
        make(text)
    assert error.value.code == "name.malformed"


@pytest.mark.parametrize("make", TOKENS)
@pytest.mark.parametrize("text", ["0", "4799", "c0ffee", "1e2f3a4b-0000-4000-8000-000000000000", "a" * 64])
def test_good_versions_and_uids(make: Maker, text: str) -> None:
    make(text)


@pytest.mark.parametrize("text", ["UK Police Network ", " UK", "-UK", ".UK", "UK\tPolice"])
def test_network_names_do_not_hide_blanks(text: str) -> None:
    with pytest.raises(MalformedError) as error:
        network(text)
    assert error.value.code == "name.malformed"


@given(principals, type_names, tokens, network_names)
@settings(deadline=None)
def test_written_forms_read_back(owner: Principal, name: str, number: str, net: str) -> None:
    type_name = TypeName(owner, name, number)
    assert TypeName.parse(str(type_name)) == type_name
    assert str(type_name) == f"{owner}/{name}@{number}"
    assert str(type_name.key) == str(TypeKey(owner, name)) == f"{owner}/{name}"
    attribute = AttributeId(owner, name, number)
    found = AttributeId.parse(str(attribute))
    assert found == attribute
    assert hash(found) == hash(attribute)
    assert (found.owner, found.type_name, found.uid) == (owner, name, number)
    network_name = NetworkName(owner, net)
    assert NetworkName.parse(str(network_name)) == network_name


@given(st.text(max_size=80) | st.text(alphabet="ab0.-_@#/: \n", max_size=40).map(lambda rest: f"{PITO}/{rest}"))
@settings(deadline=None, max_examples=examples(300))
def test_what_is_read_is_written_the_same_way(text: str) -> None:
    for parse in (TypeName.parse, AttributeId.parse, NetworkName.parse):
        with contextlib.suppress(MalformedError):
            # The one short form: a type name without a version means version 0.
            assert text in {written := str(parse(text)), written.removesuffix("@0")}


def test_a_type_name_without_a_version_is_version_0() -> None:
    assert TypeName.parse(f"{PITO}/uk.gov.pito.Numberplate") == TypeName(PITO, "uk.gov.pito.Numberplate", "0")
    assert TypeName(PITO, "Numberplate").version == "0"


@pytest.mark.parametrize(
    ("rest", "code"),
    [
        ("", "name.malformed"),
        ("/", "name.malformed"),
        ("/Numberplate@", "name.malformed"),
        ("/Numberplate@0@0", "name.malformed"),
        ("/Numberplate@0\n", "name.malformed"),
        ("/Numberplate @0", "name.malformed"),
        ("/Numberplate#9525", "name.malformed"),
        ("//Numberplate@0", "name.malformed"),
        (" /Numberplate@0", "principal.malformed"),
        ("====/Numberplate@0", "principal.malformed"),
    ],
)
def test_forms_that_are_no_type_name(rest: str, code: str) -> None:
    with pytest.raises(MalformedError) as error:
        TypeName.parse(f"{PITO}{rest}")
    assert error.value.code == code


@pytest.mark.parametrize(
    ("rest", "code"),
    [
        ("", "name.malformed"),
        ("/Numberplate", "name.malformed"),
        ("/Numberplate#", "name.malformed"),
        ("/#9525", "name.malformed"),
        ("/Numberplate@0#9525", "name.malformed"),
        ("/Numberplate#9525#9525", "name.malformed"),
        ("#9525", "name.malformed"),
        ("a/Numberplate#9525", "principal.malformed"),
    ],
)
def test_forms_that_are_no_attribute_id(rest: str, code: str) -> None:
    with pytest.raises(MalformedError) as error:
        AttributeId.parse(f"{PITO}{rest}")
    assert error.value.code == code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("UK Police Network", "name.malformed"),
        (f"{PITO}/", "name.malformed"),
        (f"{PITO}/UK/Police", "name.malformed"),
        ("pito/UK Police Network", "principal.malformed"),
        ("/UK Police Network", "principal.malformed"),
    ],
)
def test_forms_that_are_no_network_name(text: str, code: str) -> None:
    with pytest.raises(MalformedError) as error:
        NetworkName.parse(text)
    assert error.value.code == code


def test_the_owner_is_part_of_every_name() -> None:
    assert TypeKey(PITO, "Numberplate") != TypeKey(POLICE, "Numberplate")
    assert TypeName(PITO, "Numberplate") != TypeName(POLICE, "Numberplate")
    assert AttributeId(PITO, "Numberplate", "9525") != AttributeId(POLICE, "Numberplate", "9525")
    assert NetworkName(PITO, "UK Police Network") != NetworkName(POLICE, "UK Police Network")


def test_an_owner_that_is_written_otherwise_is_another() -> None:
    # Tags and keys hold what is written; whoever says the wrong one must not have it taken for the true one.
    other = Principal(PITO.digest, THRESHOLD)
    assert other == PITO
    assert TypeKey(PITO, "Numberplate") != TypeKey(other, "Numberplate")
    assert TypeName(PITO, "Numberplate") != TypeName(other, "Numberplate")
    assert TypeKey(PITO, "Numberplate") == TypeKey(Principal(PITO.digest), "Numberplate")
    assert TypeName(other, "Numberplate", "1").key == TypeKey(other, "Numberplate")
    assert TypeName(PITO, "Numberplate") != TypeKey(PITO, "Numberplate")


def test_a_uid_is_unique_within_one_type_only() -> None:
    assert AttributeId(PITO, "Numberplate", "9525") != AttributeId(PITO, "Congestion", "9525")
    assert AttributeId(PITO, "Numberplate", "9525") != AttributeId(PITO, "Numberplate", "3879")


def test_names_differ_by_case() -> None:
    assert TypeKey(PITO, "Numberplate") != TypeKey(PITO, "numberplate")
    assert TypeName(PITO, "Numberplate", "a") != TypeName(PITO, "Numberplate", "A")
