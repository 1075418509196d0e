"""Recycling, rule by rule: what follows, what does not, what is learnt, and what a contradiction drops."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.authority.decisions.recycling_worlds import (
    DENY,
    LABELS,
    NOW,
    PERMIT,
    POLICY,
    START,
    answer,
    premises_of,
    update,
)

from penstock.authority.decisions.messages import (
    AnswerDuty,
    AnswerEffect,
    LabelRecycling,
    PolicyRevision,
    RecyclingClass,
    RoleRecycling,
)
from penstock.authority.decisions.questions import SUBJECT_TYPE, AccessQuestion, Entity, facts_of
from penstock.authority.decisions.recycling import Recycled, Recycler, RecyclingRule, _compiled
from penstock.authority.decisions.updates import PolicyUpdate, ResourceChange, RolePermissionChange
from penstock.authority.limits import AuthorityLimits
from penstock.policy.residual.request_attributes import compile_request_set
from penstock.selector import parse

ROLES = RoleRecycling("roles")


def asked(*roles: str, user: str = "alice", action: str = "read", item: str = "report") -> AccessQuestion:
    listed: list[Any] = [*roles]
    return AccessQuestion.of(Entity("user", user, {"roles": listed}), action, ("document", item))


def labelled(user: str, action: str, item: str) -> AccessQuestion:
    return AccessQuestion.of(("user", user), action, ("file", item))


class Kept:
    """A recycler at one instant."""

    def __init__(self, declared: RecyclingClass | None = None, **limits: int) -> None:
        self.recycler = Recycler(limits=AuthorityLimits(**limits))
        self.recycler.follow({POLICY: "0"})
        self.declared = declared

    def learn(self, question: AccessQuestion, effect: AnswerEffect, /, **changed: object) -> bool:
        said = answer(question, effect, self.declared)
        return self.recycler.learn(question, replace(said, **changed), NOW).kept  # type: ignore[arg-type]  # by name

    def __call__(self, question: AccessQuestion) -> AnswerEffect | None:
        found = self.recycler.answer(question, NOW)
        return None if found is None else found.effect

    def found(self, question: AccessQuestion) -> Recycled:
        found = self.recycler.answer(question, NOW)
        assert found is not None
        return found


# --- what is learnt ---------------------------------------------------------------------------------------------------


def test_the_same_question_has_the_same_answer() -> None:
    kept = Kept()
    assert kept.learn(asked("a"), PERMIT)
    assert kept.learn(asked("b"), DENY)
    found = kept.found(asked("a"))
    assert (found.effect, found.rule) == (PERMIT, RecyclingRule.PRECISE)
    assert list(premises_of(found)) == [asked("a")]
    assert kept(asked("b")) is DENY
    # Nothing else follows without a declared class.
    assert kept(asked("a", "c")) is None
    assert kept(asked("a", user="bob")) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"effect": AnswerEffect.NOT_APPLICABLE},
        {"effect": AnswerEffect.INDETERMINATE, "status": "x"},
        {"obligations": (AnswerDuty("log"),)},
        {"advice": (AnswerDuty("log"),)},
        {"until": START},
        {"question": bytes(32)},
        {"rests_on": ()},
        {"rests_on": (PolicyRevision(POLICY, "1", START),)},
        {"rests_on": (PolicyRevision(POLICY, "0", START), PolicyRevision("other", "0", START))},
    ],
)
def test_other_answers_are_not_learnt(changed: dict[str, object]) -> None:
    kept = Kept()
    assert not kept.learn(asked("a"), PERMIT, **changed)
    assert len(kept.recycler) == 0
    assert kept(asked("a")) is None


def test_an_answer_ends() -> None:
    kept = Kept(ROLES)
    kept.learn(asked("a", "b"), PERMIT)
    soon = answer(asked("b"), DENY, ROLES, lasts=10)
    assert kept.recycler.learn(asked("b"), soon, NOW).kept
    assert kept(asked("a")) is PERMIT
    # Without the Deny the remainder is both roles again.
    assert kept.recycler.answer(asked("a"), NOW + 10) is None
    assert len(kept.recycler) == 1
    assert kept.recycler.answer(asked("a", "b"), NOW + 3_599) is not None
    assert kept.recycler.answer(asked("a", "b"), NOW + 3_600) is None
    assert (len(kept.recycler), kept.recycler.bytes) == (0, 0)


# --- roles ------------------------------------------------------------------------------------------------------------


def test_a_remainder_permits_and_denied_roles_deny() -> None:
    kept = Kept(ROLES)
    kept.learn(asked("a", "b"), PERMIT)
    assert kept(asked("a", "b", "c")) is PERMIT
    assert kept(asked("a")) is None
    kept.learn(asked("b", "d"), DENY)
    found = kept.found(asked("a", "x"))
    assert (found.effect, found.rule, found.over) == (PERMIT, RecyclingRule.REMAINDER, ("a",))
    assert set(premises_of(found)) == {asked("a", "b"), asked("b", "d")}
    kept.learn(asked("e"), DENY)
    found = kept.found(asked("d", "e", user="bob"))
    assert (found.effect, found.rule) == (DENY, RecyclingRule.DENIED_ROLES)
    assert found.over == ("d", "e")
    assert set(premises_of(found)) == {asked("b", "d"), asked("e")}
    assert kept(asked("d", "x")) is None


def test_a_permission_is_an_action_and_a_resource_with_its_properties() -> None:
    kept = Kept(ROLES)
    kept.learn(asked("a"), PERMIT)
    assert kept(asked("a", "b", action="write")) is None
    assert kept(asked("a", "b", item="other")) is None
    secret = Entity("document", "report", {"secret": True})
    question = AccessQuestion(asked("a", "b").subject, Entity("", "read"), secret)
    assert kept(question) is None
    kept.learn(question, PERMIT)
    more = AccessQuestion(asked("a", "b", "c").subject, Entity("", "read"), secret)
    assert kept(more) is PERMIT
    assert kept(replace(more, resource=replace(secret, properties={"secret": False}))) is None


def test_a_question_without_roles_is_only_answered_precisely() -> None:
    kept = Kept(ROLES)
    kept.learn(asked("a"), DENY)
    assert kept(asked()) is None
    assert kept(AccessQuestion.of(("user", "alice"), "read", ("document", "report"))) is None
    for odd in ([1], {"a": 1}, 7, ["a", True], ["a", ["a"]]):
        subject = Entity("user", "alice", {"roles": odd})  # type: ignore[dict-item]  # of several types
        assert kept(AccessQuestion.of(subject, "read", ("document", "report"))) is None
    one = AccessQuestion.of(Entity("user", "alice", {"roles": "a"}), "read", ("document", "report"))
    assert kept(one) is DENY


def test_an_empty_remainder_is_a_contradiction() -> None:
    kept = Kept(ROLES)
    kept.learn(asked("a", "b"), PERMIT)
    kept.learn(asked("a"), DENY)
    kept.learn(asked("a", item="other"), DENY)
    last = answer(asked("b", "c"), DENY, ROLES)
    learning = kept.recycler.learn(asked("b", "c"), last, NOW)
    assert not learning.kept
    assert [one.question for one in learning.contradiction] == [asked("a", "b"), asked("a"), asked("b", "c")]
    # Everything about the permission is dropped, and nothing else.
    assert [one.question for one in kept.recycler.cached()] == [asked("a", item="other")]
    assert kept(asked("a")) is None
    # The other way round, and a Permit without any role.
    kept.learn(asked("a", "b"), DENY)
    assert not kept.learn(asked("a"), PERMIT)
    assert not kept.learn(asked(), PERMIT)
    assert kept(asked("a", "b")) is None


def test_an_answer_that_contradicts_a_cached_one_drops_it() -> None:
    kept = Kept()
    kept.learn(asked("a"), PERMIT)
    learning = kept.recycler.learn(asked("a"), answer(asked("a"), DENY), NOW)
    assert len(learning.contradiction) == 2
    assert kept(asked("a")) is None


def test_roles_of_another_attribute_are_not_mixed() -> None:
    kept = Kept(ROLES)
    kept.learn(asked("a"), DENY)
    other = AccessQuestion.of(Entity("user", "x", {"groups": ["b"]}), "read", ("document", "report"))
    assert kept.learn(other, DENY, recycling=RoleRecycling("groups"))
    assert kept(asked("a", user="bob")) is None
    assert len(kept.recycler) == 1


# --- changes ----------------------------------------------------------------------------------------------------------


def change(role: str, *, granted: bool, item: str = "report") -> PolicyUpdate:
    return update(1, [RolePermissionChange(role, "read", "document", item, granted)])


def test_a_role_that_loses_a_permission_drops_the_permits_whose_original_set_has_it() -> None:
    kept = Kept(ROLES)
    for roles, effect in ((("a", "b"), PERMIT), (("c",), PERMIT), (("b",), DENY)):
        kept.learn(asked(*roles), effect)
    report = kept.recycler.change(change("b", granted=False))
    assert (report.dropped, report.kept, report.lost) == (1, 2, False)
    assert (kept(asked("a", "b")), kept(asked("c")), kept(asked("b"))) == (None, PERMIT, DENY)


def test_a_role_that_gets_a_permission_drops_the_denials_with_it() -> None:
    kept = Kept(ROLES)
    for roles, effect in ((("a", "b"), PERMIT), (("b", "d"), DENY), (("e",), DENY)):
        kept.learn(asked(*roles), effect)
    assert kept(asked("a")) is PERMIT
    assert kept.recycler.change(change("d", granted=True)).dropped == 1
    # The remainder of the Permit is both roles again.
    assert (kept(asked("a")), kept(asked("a", "b")), kept(asked("b")), kept(asked("e"))) == (None, PERMIT, None, DENY)


def test_answers_are_carried_over_to_the_new_revision() -> None:
    kept = Kept(ROLES)
    kept.learn(asked("a"), PERMIT)
    kept.recycler.change(change("z", granted=True))
    assert kept(asked("a", "q")) is PERMIT
    assert not kept.learn(asked("b"), DENY)
    assert kept.learn(asked("b"), DENY, rests_on=(PolicyRevision(POLICY, "1", START),))


def test_a_role_change_drops_answers_without_roles_about_the_same_permission() -> None:
    kept = Kept()
    kept.learn(asked("a"), PERMIT)
    kept.learn(asked("a", item="other"), PERMIT)
    assert kept.recycler.change(change("z", granted=True)).dropped == 1
    assert kept(asked("a", item="other")) is PERMIT


def test_other_changes_drop_the_resources_that_they_name() -> None:
    kept = Kept(ROLES)
    for item in ("report-1", "report-2", "note"):
        kept.learn(asked("a", item=item), PERMIT)
    assert kept.recycler.change(update(1, [ResourceChange("document", "report-1", exact=True)])).dropped == 1
    assert kept.recycler.change(update(2, [ResourceChange("image")])).dropped == 0
    assert kept.recycler.change(update(3, [ResourceChange("document", "report")])).dropped == 1
    assert kept.recycler.change(update(4, [ResourceChange()])).dropped == 1


def test_an_update_of_another_revision_drops_everything() -> None:
    kept = Kept()
    kept.learn(asked("a"), PERMIT)
    assert kept.recycler.change(update(2, [])).lost
    assert len(kept.recycler) == 0
    # A policy that nobody knew: it is new, or the cache has lost track.
    kept.recycler.follow({POLICY: "0"})
    kept.learn(asked("a"), PERMIT)
    new = replace(update(1, [ResourceChange("image")]), policy="other", before=None)
    assert kept.recycler.change(new).dropped == 0
    assert kept.recycler.change(replace(new, policy="third", before="9")).lost
    assert kept(asked("a")) is None


def test_unexpected_revisions_drop_everything() -> None:
    kept = Kept()
    kept.learn(asked("a"), PERMIT)
    assert kept.recycler.follow({POLICY: "0"}).kept == 1
    assert kept.recycler.follow({POLICY: "0", "more": "1"}).dropped == 1


# --- labels -----------------------------------------------------------------------------------------------------------


def test_paths_permit_and_negations_deny() -> None:
    kept = Kept(LABELS)
    kept.learn(labelled("s1", "read", "o1"), PERMIT)  # s1 ≥ o1
    kept.learn(labelled("s2", "append", "o1"), PERMIT)  # o1 ≥ s2
    kept.learn(labelled("s2", "read", "o2"), PERMIT)  # s2 ≥ o2
    found = kept.found(labelled("s1", "read", "o2"))
    assert (found.effect, found.rule) == (PERMIT, RecyclingRule.PATH)
    assert found.over == ("user s1", "file o1", "user s2", "file o2")
    assert len(found.premises) == 3
    assert kept(labelled("s1", "append", "o2")) is None
    assert kept(labelled("s1", "write", "o2")) is None
    kept.learn(labelled("s1", "read", "o3"), DENY)  # ¬(s1 ≥ o3), so ¬(s2 ≥ o3)
    found = kept.found(labelled("s2", "read", "o3"))
    assert (found.effect, found.rule) == (DENY, RecyclingRule.NEGATION)
    assert {one.text for one in premises_of(found)} == {
        labelled(*one).text for one in (("s1", "read", "o1"), ("s2", "append", "o1"), ("s1", "read", "o3"))
    }
    assert kept(labelled("s2", "write", "o3")) is DENY
    # Never the reverse order.
    assert kept(labelled("s1", "append", "o3")) is None


def test_a_denied_write_says_that_not_both_are_true() -> None:
    kept = Kept(LABELS)
    kept.learn(labelled("s", "write", "o"), DENY)
    assert kept(labelled("s", "read", "o")) is None
    assert kept(labelled("s", "append", "o")) is None
    kept.learn(labelled("s", "read", "o"), PERMIT)
    found = kept.found(labelled("s", "append", "o"))
    assert found.effect is DENY
    assert {one.action.id for one in premises_of(found)} == {"write", "read"}
    kept.learn(labelled("t", "write", "o"), PERMIT)  # t = o, so t ≠ s
    kept.learn(labelled("s", "write", "p"), PERMIT)  # p = s
    assert kept(labelled("t", "write", "p")) is DENY


def test_labels_that_differ_deny_writes_of_equal_ones() -> None:
    kept = Kept(LABELS)
    kept.learn(labelled("s", "write", "o"), DENY)
    kept.learn(labelled("s", "write", "p"), PERMIT)  # p = s
    kept.learn(labelled("t", "write", "o"), PERMIT)  # t = o
    found = kept.found(labelled("t", "write", "p"))
    assert (found.effect, found.rule) == (DENY, RecyclingRule.UNEQUAL)
    assert len(found.premises) == 3
    assert kept(labelled("t", "read", "p")) is None


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ((("s", "read", "o", PERMIT), ("t", "append", "o", PERMIT)), ("s", "read", "p", DENY)),
        ((("s", "write", "o", DENY), ("s", "read", "o", PERMIT)), ("s", "append", "o", PERMIT)),
    ],
)
def test_a_path_against_a_negation_drops_the_graph(
    first: tuple[tuple[str, str, str, AnswerEffect], ...], last: tuple[str, str, str, AnswerEffect]
) -> None:
    kept = Kept(LABELS)
    for *one, effect in first:
        assert kept.learn(labelled(*one), effect)
    kept.learn(labelled("t", "read", "p"), PERMIT)
    kept.learn(asked("a"), PERMIT, recycling=None)
    learning = kept.recycler.learn(labelled(*last[:3]), answer(labelled(*last[:3]), last[3], LABELS), NOW)
    assert not learning.kept
    assert len(learning.contradiction) >= 3
    assert [one.question for one in kept.recycler.cached()] == [asked("a")]


def test_the_mandatory_part_alone_can_only_deny() -> None:
    kept = Kept(LABELS)
    permitted, denied = replace(LABELS, mandatory=PERMIT), replace(LABELS, mandatory=DENY)
    # The access matrix denies, the labels permit: s1 ≥ o1.
    kept.learn(labelled("s1", "read", "o1"), DENY, recycling=permitted)
    kept.learn(labelled("s2", "append", "o1"), PERMIT, recycling=permitted)
    kept.learn(labelled("s2", "read", "o2"), PERMIT)
    # o2 has no matrix, and the path over o1 counts.
    assert kept(labelled("s1", "read", "o2")) is PERMIT
    kept.learn(labelled("s3", "write", "o2"), PERMIT)
    # s1 ≥ o1 ≥ s2 ≥ o2 = s3, but o1 has a matrix.
    assert kept(labelled("s3", "append", "o1")) is None
    kept.learn(labelled("s1", "read", "o3"), DENY, recycling=denied)
    assert kept(labelled("s3", "read", "o3")) is DENY
    # The point contradicts itself.
    assert not kept.learn(labelled("s9", "read", "o9"), PERMIT, recycling=denied)


def test_actions_and_entities_that_are_not_known_are_asked_about() -> None:
    kept = Kept(LABELS)
    kept.learn(labelled("s", "read", "o"), PERMIT)
    kept.learn(labelled("s", "list", "o"), PERMIT)
    assert kept(labelled("s", "print", "o")) is None
    assert kept(labelled("x", "read", "o")) is None
    assert kept(labelled("s", "read", "x")) is None
    # A subject is not the object of the same name.
    assert kept(AccessQuestion.of(("file", "o"), "read", ("file", "o"))) is None


def test_a_derivation_says_what_was_known_then() -> None:
    kept = Kept(LABELS)
    for one in (("s1", "read", "o1"), ("s2", "append", "o1"), ("s2", "read", "o2")):
        kept.learn(labelled(*one), PERMIT)
    found = kept.found(labelled("s1", "read", "o2"))
    kept.learn(labelled("s1", "append", "o2"), PERMIT)
    kept.recycler.change(update(1, [ResourceChange("file", "o1")]))
    assert kept(labelled("s1", "read", "o2")) is None
    assert found.over == ("user s1", "file o1", "user s2", "file o2")


# --- sets -------------------------------------------------------------------------------------------------------------

CLERKS = '"resource.id" = \'report\' AND "action.name" = \'read\' AND "has ""clerk"" subject.properties.roles"'


def test_a_set_answers_what_it_contains() -> None:
    kept = Kept()
    kept.learn(asked("clerk"), PERMIT, holds_for=CLERKS)
    found = kept.found(asked("clerk", "x", user="bob"))
    assert (found.effect, found.rule) == (PERMIT, RecyclingRule.SET)
    assert list(premises_of(found)) == [asked("clerk")]
    for other in (asked("x"), asked("clerk", action="write"), asked("clerk", item="note")):
        assert kept(other) is None


def test_a_set_that_cannot_be_read_or_leaves_out_its_question_is_ignored() -> None:
    for text in ("(", "unknown = 1", "\"resource.id\" = 'other'", CLERKS.replace("clerk", "boss")):
        kept = Kept()
        assert kept.learn(asked("clerk"), PERMIT, holds_for=text)
        assert kept(asked("clerk")) is PERMIT
        assert kept(asked("clerk", "x")) is None
        assert kept(asked("clerk", item="other")) is None


def test_odd_properties_are_only_answered_precisely() -> None:
    kept = Kept(ROLES)
    kept.learn(asked("a"), PERMIT, holds_for="\"action.name\" = 'read'")
    for more in ({SUBJECT_TYPE: "admin"}, {"roles": ["a"], "x": {"y": 1}}):
        subject = Entity("user", "bob", more)  # type: ignore[arg-type]  # of several types
        assert kept(AccessQuestion.of(subject, "read", ("document", "report"))) is None


def test_facts_of_sets_are_those_of_policies() -> None:
    kept = Kept()
    subject = Entity("user", "u", {"age": 7, "vip": True, "names": ["a", 2, "b", 2.5]})
    question = AccessQuestion(subject, Entity("", "read", {"how": "fast"}), Entity("document", "d"), {"ip": "::1"})
    text = (
        '"integer subject.properties.age" > 5 AND "boolean subject.properties.vip" = TRUE AND '
        "\"subject.type\" = 'user' AND \"resource.type\" = 'document' AND \"context.ip\" = '::1' AND "
        '"count subject.properties.names" = 2 AND "count double subject.properties.names" = 1 AND '
        '"action.properties.how" = \'fast\' AND "count resource.properties.none" = 0'
    )
    kept.learn(question, PERMIT, holds_for=text)
    assert kept(replace(question, resource=Entity("document", "e"))) is PERMIT
    assert kept(replace(question, context={"ip": "::2"})) is None
    assert kept(replace(question, context={})) is None
    ages: list[tuple[Any, object]] = [(6, PERMIT), (5, None), (6.5, None), ("6", None), ([6], PERMIT), ([6, 7], None)]
    for age, expected in ages:
        changed = replace(subject, properties={**subject.properties, "age": age})
        assert kept(replace(question, subject=changed)) is expected, age


CONDITIONS = [
    "\"{0}.properties.a\" = 'x'",
    '"has ""x"" {0}.properties.a"',
    'NOT "has ""x"" {0}.properties.a"',
    '"count {0}.properties.a" = 0',
    '"count integer {0}.properties.a" = 1',
    '"integer {0}.properties.a" > 1',
    '"boolean {0}.properties.a" = TRUE',
    """\"list {0}.properties.a\" = '["x","y"]'""",
    "\"context.a\" = 'x'",
    '"count double context.a" = 0',
    "\"resource.id\" = 'x'",
    "\"action.name\" = 'x'",
    "\"subject.type\" <> 'x'",
]
VALUES = st.sampled_from(["x", "y", 1, 2, True, 2.5, None])
PLAIN = st.dictionaries(st.sampled_from("ab"), VALUES | st.lists(VALUES, max_size=3), max_size=2)


@given(
    st.lists(st.sampled_from(CONDITIONS), min_size=1, max_size=3),
    st.sampled_from(["subject", "resource", "action"]),
    st.tuples(PLAIN, PLAIN, PLAIN, PLAIN),
    st.sampled_from("xy"),
)
def test_a_plain_question_belongs_to_the_sets_that_its_facts_belong_to(
    conditions: list[str], entity: str, properties: tuple[dict[str, Any], ...], name: str
) -> None:
    selector = parse(" AND ".join(conditions).format(entity))
    of_subject, of_action, of_resource, context = properties
    question = AccessQuestion(
        Entity(name, "u", of_subject), Entity("", name, of_action), Entity("d", name, of_resource), context
    )
    assert _compiled(selector)(question) is compile_request_set(selector)(facts_of(question))


@pytest.mark.parametrize("gone", range(3))
def test_sets_that_are_found_by_the_same_values_go_one_by_one(gone: int) -> None:
    kept = Kept()
    names = ("clerk", "boss", "guest")
    for name in names:
        kept.learn(asked(name, user=name), PERMIT, holds_for=CLERKS.replace("clerk", name))
    kept.recycler._drop_all([one for one in kept.recycler._entries.values() if one.number == gone + 1])
    assert [kept(asked(name, user="x")) for name in names] == [None if n == gone else PERMIT for n in range(3)]


@pytest.mark.parametrize(
    ("text", "dropped"),
    [
        (CLERKS, (0, 0, 0)),
        ("\"action.name\" = 'read'", (1, 1, 1)),
        ("\"action.name\" = 'read' AND \"resource.type\" = 'document'", (1, 1, 0)),
    ],
)
def test_changes_drop_sets_that_they_may_concern(text: str, dropped: tuple[int, ...]) -> None:
    announced = (
        update(1, [ResourceChange("document", "note", exact=True)]),
        change("x", granted=False, item="note"),
        update(1, [ResourceChange("image", "note")]),
    )
    for one, expected in zip(announced, dropped, strict=True):
        kept = Kept()
        kept.learn(asked("clerk"), PERMIT, holds_for=text)
        assert kept.recycler.change(one).dropped == expected


# --- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["a", "of-the-set"])
def test_entries_are_bounded_and_unused_ones_give_way(role: str) -> None:
    kept = Kept(recycling_entries=16)
    for number in range(16):
        kept.learn(asked("a", item=str(number)), PERMIT, holds_for=f"\"resource.id\" = '{number}'")
    assert kept(asked(role, item="0")) is PERMIT
    for number in range(16, 20):
        kept.learn(asked("a", item=str(number)), PERMIT)
    assert len(kept.recycler) <= 16
    assert kept(asked("a", item="0")) is PERMIT
    assert kept(asked("a", item="1")) is None


def test_bytes_are_bounded() -> None:
    kept = Kept(recycling_bytes=100_000)
    for number in range(100):
        assert kept.learn(asked("a", item=f"{number}" * 1_000), PERMIT)
        assert kept.recycler.bytes <= 100_000
    assert 0 < len(kept.recycler) < 20
    assert not kept.learn(asked("a", item="x" * 50_000), PERMIT)


def test_remainders_are_bounded() -> None:
    kept = Kept(ROLES)
    for number in range(300):
        kept.learn(asked("a", f"b{number}"), PERMIT)
        kept.learn(asked("a", f"b{number}", "c"), PERMIT)
    (permission,) = kept.recycler._permissions.values()
    (remainders,) = permission._remainders.values()
    # Those that contain another one answer nothing that it does not.
    assert [len(one) for one, _ in remainders] == [2] * 64
    assert kept(asked("a", "b0", "z")) is PERMIT


def test_graphs_and_shapes_of_sets_are_bounded() -> None:
    kept = Kept(recycling_labels=8)
    for number in range(200):
        kept.learn(labelled(f"s{number}", "read", f"o{number}"), PERMIT, recycling=LABELS)
        names = LabelRecycling(frozenset({f"r{number}"}), frozenset({"a"}), frozenset({"w"}))
        kept.learn(labelled("s", f"r{number}", f"p{number}"), PERMIT, recycling=names)
        properties = {f"p{number}": "x"}
        question = AccessQuestion.of(Entity("user", "u", properties), "read", ("document", "d"))
        kept.learn(question, PERMIT, holds_for=f"\"subject.properties.p{number}\" = 'x'")
    recycler = kept.recycler
    assert len(recycler._graphs) <= 16
    assert all(graph.size <= 8 for graph in recycler._graphs.values())
    assert len(recycler._sets.shapes) <= 17


def test_dropping_everything_leaves_nothing_behind() -> None:
    kept = Kept(ROLES)
    kept.learn(asked("a"), PERMIT)
    kept.learn(labelled("s", "read", "o"), PERMIT, recycling=LABELS)
    kept.learn(asked("b"), DENY, recycling=None, holds_for="\"action.name\" = 'read' AND \"resource.id\" = 'report'")
    kept.recycler.clear()
    recycler = kept.recycler
    assert not any((recycler._precise, recycler._permissions, recycler._graphs, recycler._sets.shapes, recycler._ends))
    assert recycler.bytes == 0
