"""Several answers: the newest wins by the change times of the same policies, and what cannot be compared is refused."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.authority.decisions.kit import NOW, OTHER, OWNER, PDP, STRANGER, answer

from penstock.authority.decisions.messages import AccessAnswer, AnswerDuty, AnswerEffect, PolicyRevision
from penstock.authority.decisions.modes import FIRST, AnswerMode, is_newer, newest
from penstock.crypto import SigningKey
from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.policy.combining import DecisionTuple
from penstock.policy.language.results import MISSING_ATTRIBUTE
from penstock.trust.signed import SignedValue, sign_value

KEYS = (PDP, OTHER, STRANGER, OWNER)
PERMIT, DENY = AnswerEffect.PERMIT, AnswerEffect.DENY


def rests(*days: int, revision: str | None = None) -> tuple[PolicyRevision, ...]:
    return tuple(
        PolicyRevision(f"p{number}", revision or f"r{day}", NOW - timedelta(days=day))
        for number, day in enumerate(days)
    )


def signed(
    effect: AnswerEffect, rests_on: tuple[PolicyRevision, ...], key: SigningKey = PDP, **changed: Any
) -> SignedValue[AccessAnswer]:
    return sign_value(answer(effect=effect, rests_on=rests_on, key=key, **changed), key)


def test_the_newest_answer_wins_whatever_the_order() -> None:
    answers = [signed(PERMIT, rests(3), PDP), signed(DENY, rests(1), OTHER), signed(PERMIT, rests(2), STRANGER)]
    for order in permutations(answers):
        decision = newest(order)
        assert (decision.effect, decision.disagreed) == (DENY, True)
        assert decision.answers == (answers[1],)


def test_the_same_revision_is_equally_new_whatever_its_change_time() -> None:
    one = answer(rests_on=rests(1, revision="same"))
    other = answer(rests_on=rests(2, revision="same"))
    assert is_newer(one, other) is is_newer(other, one) is True
    with pytest.raises(RefusedError, match=r"pep\.incomparable"):
        newest([signed(PERMIT, one.rests_on), signed(DENY, other.rests_on, OTHER)])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (rests(1), rests(1, 2)),  # other policies
        (rests(1, 2), rests(2, 1)),  # one is newer here, the other there
        ((PolicyRevision("p0", "a", NOW),), (PolicyRevision("p0", "b", NOW),)),  # two revisions of one time
        (rests(1), ()),
    ],
)
def test_incomparable_answers_are_refused_if_they_differ(
    one: tuple[PolicyRevision, ...], other: tuple[PolicyRevision, ...]
) -> None:
    assert is_newer(answer(rests_on=one), answer(rests_on=other)) is None
    with pytest.raises(RefusedError, match=r"pep\.incomparable"):
        newest([signed(PERMIT, one), signed(DENY, other, OTHER)])
    assert newest([signed(DENY, one), signed(DENY, other, OTHER)]).effect is DENY
    with pytest.raises(RefusedError, match=r"pep\.incomparable"):
        newest([signed(PERMIT, one), signed(PERMIT, other, OTHER, obligations=(AnswerDuty("urn:log"),))])


@given(
    st.lists(st.tuples(st.sampled_from([PERMIT, DENY]), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=4)
)
def test_the_result_does_not_depend_on_the_order_and_is_not_older_than_any(
    drawn: Sequence[tuple[AnswerEffect, int, int]],
) -> None:
    answers = [signed(effect, rests(a, b), key) for (effect, a, b), key in zip(drawn, KEYS, strict=False)]

    def result(order: Sequence[SignedValue[AccessAnswer]]) -> str:
        try:
            decision = newest(order)
        except RefusedError as error:
            return error.code
        for chosen in decision.answers:
            for each in answers:
                ages = [(p.changed, q.changed) for p, q in zip(chosen.value.rests_on, each.value.rests_on, strict=True)]
                assert all(p == q for p, q in ages) or any(p > q for p, q in ages)
        return decision.effect

    assert len({result(order) for order in permutations(answers)}) == 1


def test_first_compares_nothing() -> None:
    answers = [signed(PERMIT, rests(9)), signed(DENY, rests(1), OTHER)]
    decision = FIRST.combine(answers)
    assert (decision.effect, decision.disagreed, decision.answers) == (PERMIT, False, (answers[0],))


def test_a_decision_tuple_combines_effects_in_the_order_of_the_points() -> None:
    majority = DecisionTuple.of({"P": "#P > #D", "D": "#D >= #P", "NA": ""})
    mode = AnswerMode(wait=1.0, answers=None, tuple=majority)
    duty = AnswerDuty("urn:log")
    answers = [
        signed(PERMIT, rests(1), PDP, obligations=(duty,)),
        signed(DENY, rests(1), OTHER),
        signed(PERMIT, rests(1), STRANGER, obligations=(duty,)),
    ]
    for order in permutations(answers):
        decision = mode.combine(order)
        assert (decision.effect, decision.obligations, decision.disagreed) == (PERMIT, (duty,), True)
        assert [one.value.point.digest for one in decision.answers] == sorted(one.value.point.digest for one in answers)
    none = AnswerMode(wait=1.0, answers=None, tuple=DecisionTuple.of({"P": "#P > 5 and #D = 0", "D": "#D > 5"}))
    assert none.combine(answers).effect is AnswerEffect.INDETERMINATE


def test_access_is_permitted_only_by_a_permit_whose_obligations_are_understood() -> None:
    duty = AnswerDuty("urn:log")
    for effect in AnswerEffect:
        status = "pdp.time" if effect is AnswerEffect.INDETERMINATE else None
        decision = FIRST.combine([signed(effect, rests(1), status=status)])
        assert decision.permits() is (effect is PERMIT)
    bound = FIRST.combine([signed(PERMIT, rests(1), obligations=(duty,))])
    assert not bound.permits()
    assert bound.permits(frozenset({"urn:log"}))


@pytest.mark.parametrize(
    ("effect", "status", "reason"),
    [
        (DENY, None, "denied"),
        (AnswerEffect.NOT_APPLICABLE, None, "not-applicable"),
        (AnswerEffect.INDETERMINATE, MISSING_ATTRIBUTE, "missing-attribute"),
        (AnswerEffect.INDETERMINATE, "foreign.unmapped", "foreign.unmapped"),
        (AnswerEffect.INDETERMINATE, "pdp.time", "pdp.time"),
    ],
)
def test_whoever_asked_learns_why_access_is_not_permitted(
    effect: AnswerEffect, status: str | None, reason: str
) -> None:
    refusal = FIRST.combine([signed(effect, rests(1), status=status)]).refusal()
    assert refusal is not None
    assert (refusal.code, refusal.fields) == ("pdp.not-permitted", {"reason": reason})
    assert refusal.message.startswith(f"the answer is {effect}: ")
    assert refusal.hint
    assert "p0" not in str(refusal.as_dict())  # the policy


def test_obligations_that_nobody_fulfils_are_named() -> None:
    duties = (AnswerDuty("urn:log"), AnswerDuty("urn:mail"))
    bound = FIRST.combine([signed(PERMIT, rests(1), obligations=duties)])
    refusal = bound.refusal(frozenset({"urn:log"}))
    assert refusal is not None
    assert refusal.fields == {"reason": "obligations", "obligations": ["urn:mail"]}
    assert bound.refusal(frozenset({"urn:log", "urn:mail"})) is None


def test_modes_are_read_from_text() -> None:
    assert AnswerMode.parse("first") is FIRST
    assert AnswerMode.parse("newest:0.5") == AnswerMode(wait=0.5, answers=None)
    assert AnswerMode.parse("n:3") == AnswerMode(answers=3)
    tuple_ = DecisionTuple.of({"P": "#P > 0", "D": "#P = 0"})
    assert AnswerMode.parse(f"tuple:0.2:{tuple_.id}").tuple == tuple_
    for text in ("", "first:1", "newest", "newest:-1", "newest:inf", "newest:nan", "n:0", "n:x", "some", "tuple:x:y"):
        with pytest.raises(MalformedError, match=r"pep\.mode"):
            AnswerMode.parse(text)
    with pytest.raises(PenstockError, match=r"combining\."):
        AnswerMode.parse("tuple:1:none")
