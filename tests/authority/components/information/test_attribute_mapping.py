"""Attributes of another domain's subjects become ours by reviewed tables, or not at all."""

import operator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from penstock.authority.components.information.attribute_mapping import (
    MAPPING_BYTES,
    MAPPING_ROWS,
    AttributeMapping,
    ReviewedMapping,
    explain_mapping,
    map_subject,
    mapping_gaps,
    newest_mappings,
    read_mapping,
    read_reviewed_mapping,
    remember_mappings,
    review_mapping,
    sign_mapping,
)
from penstock.authority.decisions.questions import AccessQuestion, Entity
from penstock.crypto import SigningKey
from penstock.errors import PenstockError
from penstock.selector import evaluate
from penstock.trust.validity import ALWAYS, OnlineTest, Validity

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
HEAD = """
from = "bank"
to = "court"
types = { employee = "visitor" }
[attributes]
rank = { kind = "integer", range = [1, 5] }
branch = { kind = "string", values = ["north", "south"] }
vetted = { kind = "boolean" }
score = { kind = "float" }
"""
TABLE = f"""{HEAD}
[[rows]]
attribute = "clearance"
value = "secret"
where = "rank >= 3"
because = "vetted as we do"
[[rows]]
attribute = "clearance"
value = []
where = "rank < 3"
because = "not vetted"
[[rows]]
attribute = "regions"
value = ["N", "NE"]
where = "branch = 'north'"
because = "both regions"
"""
COURT, BANK, OTHER = (SigningKey(bytes([one]) * 32) for one in (1, 2, 3))
BY_BANK = {"bank": {BANK.principal}}


def row(where: str, *, attribute: str = "a", value: str = "1") -> str:
    return f'[[rows]]\nattribute = "{attribute}"\nvalue = {value}\nwhere = "{where}"\nbecause = "so"\n'


def mapping(*rows: str) -> AttributeMapping:
    return read_mapping((HEAD + "\n".join(rows)).encode())


def asked(of_type: str = "employee", **properties: Any) -> AccessQuestion:
    return AccessQuestion.of(Entity(of_type, "ann", properties), "read", ("file", "7"), {"hour": 9})


def mapped(table: AttributeMapping, **properties: Any) -> dict[str, Any]:
    return dict(map_subject(asked(**properties), table).subject.properties)


def code_of(call: object, *arguments: object) -> str:
    with pytest.raises(PenstockError) as caught:
        call(*arguments)  # type: ignore[operator]  # a function
    return caught.value.code


def test_a_subject_gets_what_the_table_says_and_nothing_else() -> None:
    found = map_subject(asked(rank=4, branch="north", admin=True), read_mapping(TABLE.encode()))
    # Never taken for a subject of this domain, nor is any of its attributes.
    assert found.subject == Entity("visitor", "ann@bank", {"clearance": "secret", "regions": ["N", "NE"]})
    assert (found.action, found.resource, found.context) == (Entity("", "read"), Entity("file", "7"), {"hour": 9})


def test_nothing_on_purpose_is_not_unmapped() -> None:
    assert mapped(read_mapping(TABLE.encode()), rank=2, branch="north") == {"regions": ["N", "NE"]}


@pytest.mark.parametrize(
    "properties",
    [
        {"rank": 4},  # without a branch
        {"rank": 4, "branch": "south"},  # a gap
        {"branch": "north"},  # neither TRUE nor FALSE
        {"rank": 9, "branch": "north"},  # values that the table does not expect
        {"rank": "4", "branch": "north"},
        {"rank": True, "branch": "north"},
        {"rank": [4, 1], "branch": "north"},
        {"rank": {"now": 4}, "branch": "north"},
        {"rank": 4, "branch": "west"},
        {"rank": 4, "branch": "north", "score": "high"},
    ],
)
def test_what_is_not_mapped_is_not_answered(properties: dict[str, Any]) -> None:
    table = read_mapping(TABLE.encode())
    assert code_of(map_subject, asked(**properties), table) == "foreign.unmapped"
    assert code_of(explain_mapping, asked(**properties), table) == "foreign.unmapped"


def test_types_of_subjects_are_mapped_too() -> None:
    question = asked("customer", rank=4, branch="north")
    assert code_of(map_subject, question, read_mapping(TABLE.encode())) == "foreign.unmapped"


def test_one_value_in_a_list_is_that_value_and_integers_are_floats() -> None:
    assert mapped(read_mapping(TABLE.encode()), rank=[4], branch=["north"])["clearance"] == "secret"
    assert mapped(mapping(row("score > 1")), score=2) == {"a": 1}


def test_gaps_are_found_with_a_subject_that_falls_into_them() -> None:
    (gap,) = mapping_gaps(read_mapping(TABLE.encode()))
    assert str(gap) == "no row of `regions` matches branch = 'south'"
    assert mapping_gaps(mapping(row("rank < 3"), row("rank >= 3", value="2"))) == ()
    # That an attribute is absent is not a gap: it is never mapped.
    assert mapping_gaps(mapping(row("vetted"), row("NOT vetted", value="2"))) == ()
    (hole,) = mapping_gaps(mapping(row("rank < 3"), row("rank > 3", value="2")))
    assert hole.witness == {"rank": 3}


def test_the_explanation_says_what_led_to_each_attribute() -> None:
    assert explain_mapping(asked(rank=2, branch="north"), read_mapping(TABLE.encode())) == (
        "type `employee` at bank is type `visitor` at court",
        "`rank < 3` at bank (rank = 2) is no `clearance` at court: not vetted",
        "`branch = 'north'` at bank (branch = 'north') is `regions = ['N', 'NE']` at court: both regions",
    )


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["<", ">", "=", ">="]), st.integers(1, 5)), min_size=1, max_size=3),
    st.integers(1, 5),
)
def test_a_table_that_is_read_says_one_thing_of_each_subject(cells: list[tuple[str, int]], rank: int) -> None:
    rows = [row(f"rank {sign} {bound}", value=str(place)) for place, (sign, bound) in enumerate(cells)]
    # The naive reading: every rank is tried.
    ranks = range(1, 6)
    tests = {"<": operator.lt, ">": operator.gt, "=": operator.eq, ">=": operator.ge}
    matching = [[value for value in ranks if tests[sign](value, bound)] for sign, bound in cells]
    if any(not those for those in matching):
        assert code_of(mapping, *rows) == "foreign.unreachable"
    elif len({value for those in matching for value in those}) < sum(map(len, matching)):
        assert code_of(mapping, *rows) == "foreign.overlap"
    else:
        table = mapping(*rows)
        places = [place for place, those in enumerate(matching) if rank in those]
        if places:
            assert mapped(table, rank=rank) == {"a": places[0]}
        else:
            assert code_of(map_subject, asked(rank=rank), table) == "foreign.unmapped"
        missing = set(ranks).difference(*matching)
        gaps = mapping_gaps(table)
        assert [gap.witness and gap.witness["rank"] in missing for gap in gaps] == [True] * bool(missing)
        assert all(evaluate(one.where, {"rank": rank}) in (True, False) for one in table.rows)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("from = ", "foreign.syntax"),
        ('from = "bank"', "foreign.missing"),
        (f"more = 1\n{TABLE}", "foreign.unknown-key"),
        (TABLE.replace('"court"', '"the court"'), "component.name"),
        (TABLE.replace('because = "not vetted"', ""), "foreign.missing"),
        (TABLE.replace("value = []", "value = [[]]"), "foreign.value"),
        (TABLE.replace("value = []", "value = 2026-01-01"), "foreign.value"),
        (TABLE.replace('"integer"', '"timestamp"'), "foreign.value"),
        (TABLE.replace("range = [1, 5]", "range = [1]"), "foreign.value"),
        (TABLE.replace("range = [1, 5]", "range = [5, 1]"), "value.domain"),
        (TABLE.replace('["north", "south"]', "[1, [2]]"), "foreign.value"),
        (TABLE.replace('["north", "south"]', "[1, 2]"), "value.kind"),
        (TABLE.replace("rank < 3", "rank <"), "selector.syntax"),
        (TABLE.replace("rank < 3", "rang < 3"), "selector.unknown-attribute"),
        (TABLE.replace("rank < 3", "rank < 'a'"), "selector.type"),
        (TABLE.replace('"clearance"', '"urn:oasis:names:tc:xacml:1.0:subject:subject-id"'), "foreign.value"),
        (TABLE.replace("rank < 3", "rank < 4"), "foreign.overlap"),
        (TABLE.replace("rank < 3", "rank < 1"), "foreign.unreachable"),
        (HEAD.replace("[attributes]", "rows = 1\n[attributes]"), "foreign.value"),
        (f"{TABLE}# {'x' * MAPPING_BYTES}", "foreign.limit"),
        (HEAD + "\n".join(row("rank < 3", attribute=f"a{one}") for one in range(MAPPING_ROWS + 1)), "foreign.limit"),
    ],
)
def test_tables_that_are_refused(text: str, code: str) -> None:
    assert code_of(read_mapping, text.encode()) == code


# --- signed -----------------------------------------------------------------------------------------------------------


def test_a_table_counts_when_its_author_and_a_reviewer_have_signed_it() -> None:
    signed = sign_mapping(TABLE.encode(), 3, NOW, COURT)
    found = read_reviewed_mapping(review_mapping(signed, NOW, BANK), {COURT.principal}, BY_BANK)
    assert (found.number, found.time, found.author, found.reviewers) == (3, NOW, COURT.principal, (BANK.principal,))
    assert map_subject(asked(rank=4, branch="north"), found.mapping).subject.id == "ann@bank"


def reviewed(number: int, where: str = "rank >= 3", validity: Validity = ALWAYS) -> ReviewedMapping:
    signed = sign_mapping(TABLE.replace("rank >= 3", where).encode(), number, NOW, COURT, validity)
    return read_reviewed_mapping(review_mapping(signed, NOW, BANK), {COURT.principal}, BY_BANK)


def test_of_several_tables_for_two_domains_the_greatest_number_counts() -> None:
    old, new, other = reviewed(3, "rank >= 3"), reviewed(4, "rank >= 4"), reviewed(4, "rank >= 3")
    assert newest_mappings([new, old]) == newest_mappings([old, new, new]) == (new,)
    assert code_of(newest_mappings, [new, other]) == "foreign.number"


def test_who_signed_what_is_checked() -> None:
    court, bank, others = {COURT.principal}, BY_BANK, {"bank": {OTHER.principal}}
    signed = sign_mapping(TABLE.encode(), 3, NOW, COURT)
    file = review_mapping(signed, NOW, BANK)
    assert code_of(read_reviewed_mapping, signed, court, bank) == "foreign.review"
    assert code_of(read_reviewed_mapping, file, {OTHER.principal}, bank) == "foreign.author"
    assert code_of(read_reviewed_mapping, file, court, others) == "foreign.review"
    # Who may review the tables of another domain may not review those of this one.
    assert code_of(read_reviewed_mapping, file, court, {"court": {BANK.principal}}) == "foreign.review"
    assert code_of(review_mapping, signed, NOW, COURT) == "foreign.review"
    # An author who is also a reviewer does not count twice.
    assert code_of(read_reviewed_mapping, signed, court, {"bank": court}) == "foreign.review"
    # A review of an earlier table does not count for a later one.
    later = sign_mapping(TABLE.replace("rank >= 3", "rank > 2").encode(), 4, NOW, COURT)
    swapped = file.replace(_inner(signed), _inner(later))
    assert code_of(read_reviewed_mapping, swapped, court, bank) == "foreign.review"
    changed = file.replace(b"rank >= 3", b"rank >= 2")
    assert code_of(read_reviewed_mapping, changed, court, bank) == "evolution.signature-mismatch"
    assert code_of(sign_mapping, b"from", 3, NOW, COURT) == "foreign.syntax"
    assert code_of(read_reviewed_mapping, b"(10:statements)", court, bank) == "foreign.syntax"


def test_a_table_counts_while_it_is_valid() -> None:
    day = timedelta(days=1)
    found = reviewed(3, validity=Validity.between(NOW, NOW + day))
    assert found.at(NOW) is found.at(NOW + day) is found.mapping
    assert code_of(found.at, NOW - day) == "foreign.not-yet-valid"
    assert code_of(found.at, NOW + 2 * day) == "foreign.expired"
    online = Validity(online=(OnlineTest("crl", (b"online", b"crl")),))
    assert code_of(sign_mapping, TABLE.encode(), 3, NOW, COURT, online) == "evolution.malformed"


def test_an_older_table_does_not_take_the_place_of_a_newer_one() -> None:
    old, new, other = reviewed(3), reviewed(4, "rank >= 4"), reviewed(4)
    kept = remember_mappings([new], remember_mappings([old]))
    assert code_of(remember_mappings, [old], kept) == "foreign.rollback"
    assert code_of(remember_mappings, [other], kept) == "foreign.number"
    assert remember_mappings([new], kept) == remember_mappings([], kept) == kept
    # It is remembered while no table is applied.
    assert code_of(remember_mappings, [old], remember_mappings([], kept)) == "foreign.rollback"
    for damaged in (b"", b"{}", b"[1]", b"\xff", kept[:-3], kept.replace(b"number", b"numbers")):
        assert code_of(remember_mappings, [new], damaged) == "foreign.remembered"


def _inner(data: bytes) -> bytes:
    """Return the statement in a file of one."""
    return data.removeprefix(b"(10:statements").removesuffix(b")")
