"""A table of rules is the same however much of it was read, and what was kept falsely is refused when it is read."""

import zlib
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.moderator.kit import OWNER, P1, P2, WORKFLOW, event, rule, words
from tests.trust.kit import CURRENT, refused

from penstock.codec.sexp import canonical
from penstock.moderator.base.base import RuleBase
from penstock.moderator.base.records import image_from_sexp, image_to_sexp
from penstock.moderator.base.tables import Image
from penstock.moderator.rules.rule_blocks import RuleBlock, Standings
from penstock.moderator.rules.rules import Mode
from penstock.moderator.rules.steps import Delta, RuleChange, RuleState, RuleStatus

ENGINEERS = "role = 'engineer'"


def in_force(id_: str, about: str, fnc_s: str = ENGINEERS) -> RuleState:
    stated = rule(id_, about, fnc_s)
    return RuleState(stated, RuleStatus.IN_FORCE, stated)


def image(*standings: RuleState) -> Image:
    return Image({each.stated.id: each for each in standings}, dict(WORKFLOW.parents), {}, frozenset())


def kept(table: Standings) -> Standings:
    """Return a table as it is after it was kept, and read again by somebody else."""
    found = image_from_sexp(image_to_sexp(Image(table, {}, {}, frozenset()))).rules
    assert isinstance(found, Standings)
    return found


REVISED = RuleState(rule("c", "A2"), RuleStatus.IN_FORCE, rule("c", "A2", ENGINEERS))
LIMITED = RuleState(replace(rule("d", "A2"), validity=CURRENT), RuleStatus.WAITING)
ENDING, ENDED = (
    RuleState(replace(rule(id_, "A2"), validity=CURRENT), status)
    for id_, status in (("e", RuleStatus.LEFT), ("f", RuleStatus.ENDED))
)
TABLE = {each.stated.id: each for each in (in_force("a", "A1"), in_force("b", "A1"), REVISED, LIMITED, ENDING, ENDED)}


def test_what_was_kept_is_read_when_it_is_asked_for() -> None:
    table = kept(Standings.of(TABLE))
    assert (len(table), [*table], "a" in table, "x" in table, table.get("x")) == (6, [*"abcdef"], True, False, None)
    assert table.limited() == {"d": CURRENT.begin, "e": CURRENT.end}
    assert table.read == 0
    assert table["b"] == TABLE["b"]
    assert table.read == 1
    assert table.revised() == {"c": REVISED}
    assert table.read == 2
    assert dict(table) == TABLE


def test_only_what_has_changed_is_packed_again() -> None:
    table = kept(Standings.of(TABLE))
    before = {block.event: block for block in table.blocks()}
    table["g"] = in_force("g", "A1")
    after = {block.event: block for block in table.blocks()}
    assert after[event("A2")] is before[event("A2")]
    assert after[event("A1")].ids == ["a", "b", "g"]
    assert table.read == 1
    assert dict(kept(table)) == {**TABLE, "g": table["g"]}


IDS = st.sampled_from("abcdef")
STANDINGS = st.sampled_from(
    [
        lambda id_: in_force(id_, "A1"),
        lambda id_: in_force(id_, "A2", "TRUE"),
        lambda id_: RuleState(rule(id_, "A1"), RuleStatus.REJECTED),
        lambda id_: RuleState(rule(id_, "A3"), RuleStatus.IN_FORCE, rule(id_, "A3", ENGINEERS)),
        lambda id_: RuleState(replace(rule(id_, "A3"), validity=CURRENT), RuleStatus.ENDED),
        lambda id_: RuleState(replace(rule(id_, "A2"), validity=CURRENT), RuleStatus.WAITING),
        lambda id_: RuleState(replace(rule(id_, "A1"), validity=CURRENT), RuleStatus.LEFT),
    ]
)
CHANGES = st.lists(st.tuples(st.sampled_from(["write", "drop", "read", "keep"]), IDS, STANDINGS), max_size=30)


@given(CHANGES)
@settings(deadline=None, max_examples=examples(100))
def test_a_table_is_what_a_dictionary_is(changes: list[tuple[str, str, Callable[[str], RuleState]]]) -> None:
    table, model = Standings(), dict[str, RuleState]()
    for what, id_, made in changes:
        match what:
            case "write":
                table[id_] = model[id_] = made(id_)
            case "drop":
                assert (table.pop(id_, None) is None) == (model.pop(id_, None) is None)
            case "read":
                assert table.get(id_) == model.get(id_)
            case _:
                table = kept(table)
        assert len(table) == len(model)
        live = (RuleStatus.WAITING, RuleStatus.LEFT)
        due = {each for each, it in model.items() if it.stated.validity == CURRENT and it.status in live}
        assert due <= table.limited().keys() <= {each for each, it in model.items() if it.stated.validity == CURRENT}
    # The order in which a table was written does not matter.
    assert [*table.blocks()] == [*Standings.of(dict(sorted(model.items()))).blocks()]
    assert table.revised() == {each: it for each, it in model.items() if it.form not in (None, it.stated)}
    assert dict(table) == model


BLOCK = next(Standings.of({"a": TABLE["a"], "b": TABLE["b"]}).blocks())


def packed(*rows: RuleState) -> bytes:
    return RuleBlock.of(event("A1"), {each.stated.id: each for each in rows}).packed


@pytest.mark.parametrize(
    "false",
    [
        replace(BLOCK, packed=b"nothing"),
        replace(BLOCK, packed=BLOCK.packed[:-1]),
        replace(BLOCK, packed=zlib.compress(b"(")),
        replace(BLOCK, packed=zlib.compress(canonical((b"x", b"y")))),
        replace(BLOCK, packed=zlib.compress(canonical(((b"x",), (b"y",))))),
        replace(BLOCK, packed=packed(TABLE["a"])),
        replace(BLOCK, packed=packed(in_force("c", "A1"), in_force("d", "A1"))),
        replace(BLOCK, packed=packed(in_force("a", "A2"), in_force("b", "A2"))),
        replace(BLOCK, packed=packed(*(RuleState(rule(one, "A1"), RuleStatus.WITHDRAWN) for one in "ab"))),
        replace(BLOCK, stated=[("TRUE", "TRUE", ["a", "b"])]),
    ],
)
def test_a_block_that_holds_something_else_than_it_lists_answers_nothing(false: RuleBlock) -> None:
    base = RuleBase.resume(words(WORKFLOW), Mode.SCOPED, replace(image(), rules=Standings([false])), lambda _: ())
    for _ in range(2):
        with refused("moderator.book"):
            base.detector.conflicts(rule("x", "A10", ENGINEERS))
        with base.draft() as draft, refused("moderator.book"):
            draft.fits({"x": in_force("x", "A10")})
        with refused("moderator.book", "moderator.stale"):
            base.change(Delta(rules={"a": RuleChange(TABLE["a"], None)}))
        assert [*base.detector.rules] == ["a", "b"]


@pytest.mark.parametrize(
    "blocks",
    [
        [replace(BLOCK, stated=[*BLOCK.stated, *BLOCK.stated])],
        [replace(BLOCK, stated=[("TRUE", "TRUE", [])])],
        [replace(BLOCK, event=event("A99"))],
    ],
)
def test_blocks_that_cannot_be_are_refused(blocks: list[RuleBlock]) -> None:
    with refused("moderator.duplicate-id", "moderator.unknown-type"):
        RuleBase.resume(words(WORKFLOW), Mode.SCOPED, replace(image(), rules=Standings(blocks)), lambda _: ())


def test_a_question_reads_one_rule_of_those_that_state_the_same_and_none_beside_its_path() -> None:
    many = [in_force(f"r{number}", about) for number, about in enumerate(["ActivityX", "A1", "A10", "A2", "A13"] * 20)]
    base = RuleBase.resume(
        words(WORKFLOW), Mode.SCOPED, replace(image(), rules=kept(Standings.of(image(*many).rules))), lambda _: ()
    )
    assert base.detector.conflicts(rule("x", "A10", ENGINEERS, of=[P2])) == ()
    assert base.read == 3
    (found, *_) = base.detector.conflicts(rule("x", "A10", "role = 'worker'", of=[P2]))
    assert len(found.rules) == 20
    assert base.read == 3
    # Above are those on which the question has to do with all below.
    assert base.detector.conflicts(rule("x", "ActivityX", ENGINEERS, of=[P1])) == ()
    assert base.read == 5
    assert len(base.detector.rules) == 100
    assert OWNER not in base.detector.rules["r0"].publishers
