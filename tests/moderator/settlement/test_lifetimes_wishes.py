"""Subscribers' rules live and end as publishers' do, but for conflicts, which they have none of."""

from datetime import timedelta

import pytest
from tests.moderator.kit import P1, P2, event, rule
from tests.moderator.life import NOW, add, ask, base_of
from tests.trust.kit import refused

from penstock.model.principals import Principal
from penstock.moderator.base.base import RuleBase
from penstock.moderator.base.records import from_record, image_from_sexp, image_to_sexp, to_record
from penstock.moderator.detection.subscribers import Subscriptions
from penstock.moderator.rules.rules import SubscribeRule
from penstock.moderator.rules.steps import (
    Add,
    Leave,
    Pass,
    RemoveType,
    RenameType,
    Request,
    Return,
    RuleStatus,
    StateSubscriberRule,
    SubscriberRule,
    Undo,
    WithdrawRule,
)
from penstock.selector import parse
from penstock.trust.validity import ALWAYS, Validity

DAY = timedelta(days=1)


def wish(
    id_: str = "s1", about: str = "A1", fnc_p: str = "licensed", *, by: Principal = P1, validity: Validity = ALWAYS
) -> SubscribeRule:
    return SubscribeRule(id_, event(about), by, by, parse(fnc_p), validity)


def status(base: RuleBase, id_: str = "s1") -> RuleStatus:
    return base.wishes[id_].status


def subscribed(*rules: SubscribeRule) -> RuleBase:
    base = base_of()
    for each in rules or (wish(),):
        ask(base, StateSubscriberRule(each), who=each.stated_by)
    return base


def test_stated_and_withdrawn() -> None:
    base = subscribed()
    assert status(base) is RuleStatus.IN_FORCE
    assert [*base.rules] == [wish()]
    ask(base, WithdrawRule("s1"), who=P1)
    assert status(base) is RuleStatus.WITHDRAWN
    assert not base.rules
    with refused("moderator.gone"):
        ask(base, WithdrawRule("s1"), who=P1)
    ask(base, StateSubscriberRule(wish(about="A2")), who=P1)
    assert base.rules == (wish(about="A2"),)


def test_they_say_who_suits_whom() -> None:
    base = subscribed(wish(about="A1", fnc_p="company = 'A'", by=P2))
    add(base, rule("r1", "A1", "role = 'engineer'"))
    words = base.detector.vocabulary
    profiles = {P1: words.publishers.profile({"company": "A"}), P2: words.subscribers.profile({"role": "engineer"})}
    assert Subscriptions(words, base.rules, profiles).allow(event("A1"), P1, P2).allowed
    profiles[P1] = words.publishers.profile({"company": "B"})
    assert not Subscriptions(words, base.rules, profiles).allow(event("A1"), P1, P2).allowed


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (wish("r1", by=P2), "moderator.duplicate-id"),
        (wish("s1"), "moderator.duplicate-id"),
        (wish("s2", about="None"), "moderator.unknown-type"),
        (wish("s2", fnc_p="role = 'engineer'"), "moderator.unknown-attribute"),
        (wish("s2", fnc_p="company = 'Z'"), "moderator.domain"),
        (wish("s2", fnc_p="company = 'A' AND company = 'B'"), "moderator.contradiction"),
        (wish("s2", validity=Validity.between(None, NOW - DAY)), "moderator.period"),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(asked: SubscribeRule, code: str) -> None:
    base = subscribed()
    add(base, rule("r1", "A1"))
    before = base.image()
    with refused(code):
        ask(base, StateSubscriberRule(asked), who=asked.stated_by)
    assert (base.image(), base.next_number) == (before, 3)


def test_others_do_not_speak_for_a_subscriber() -> None:
    base = subscribed()
    with refused("moderator.not-yours"):
        ask(base, StateSubscriberRule(wish("s2")), who=P2)
    with refused("moderator.not-yours"):
        ask(base, WithdrawRule("s1"), who=P2)


def test_a_publisher_cannot_take_the_id_either() -> None:
    base = subscribed()
    with refused("moderator.duplicate-id"):
        ask(base, Add(rule("s1", "A1")))


def test_periods_begin_and_end() -> None:
    base = subscribed(wish(validity=Validity.between(NOW + DAY, NOW + 3 * DAY)), wish("s2"))
    assert status(base) is RuleStatus.WAITING
    ask(base, Pass(), day=2)
    assert (status(base), status(base, "s2")) == (RuleStatus.IN_FORCE, RuleStatus.IN_FORCE)
    ask(base, Pass(), day=4)
    assert (status(base), status(base, "s2")) == (RuleStatus.ENDED, RuleStatus.IN_FORCE)


def test_they_rest_while_somebody_is_away() -> None:
    base = subscribed(wish(), wish("s2", by=P2), wish("s3", validity=Validity.between(NOW + DAY, None)))
    ask(base, Leave(P1))
    assert (status(base), status(base, "s2")) == (RuleStatus.LEFT, RuleStatus.IN_FORCE)
    with refused("moderator.away"):
        ask(base, StateSubscriberRule(wish("s4")), who=P1)
    ask(base, Pass(), day=2)
    assert status(base, "s3") is RuleStatus.WAITING
    ask(base, Return(P1), day=2)
    assert (status(base), status(base, "s3")) == (RuleStatus.IN_FORCE, RuleStatus.IN_FORCE)


def test_they_follow_their_event_types() -> None:
    base = subscribed(wish(about="A10"))
    ask(base, RenameType(event("A10"), event("B")))
    assert base.rules == (wish(about="B"),)
    ask(base, RemoveType(event("B")))
    assert status(base) is RuleStatus.ENDED


@pytest.mark.parametrize(
    "request_", [WithdrawRule("s1"), Leave(P1), RemoveType(event("A1")), StateSubscriberRule(wish("s2"))]
)
def test_every_step_about_them_can_be_undone_and_kept(request_: Request) -> None:
    base = subscribed()
    before = base.image()
    step = ask(base, request_, who=P1).step
    assert from_record(step.number, step.note, to_record(step)) == step
    assert image_from_sexp(image_to_sexp(base.image())) == base.image()
    ask(base, Undo(2))
    assert base.image() == before


def test_an_undo_gives_no_id_away_twice() -> None:
    base = base_of()
    add(base, rule("s1", "A1"))
    ask(base, Undo(1))
    ask(base, StateSubscriberRule(wish()), who=P1)
    with refused("moderator.depends"):
        ask(base, Undo(2))


def test_one_is_never_rejected() -> None:
    with pytest.raises(ValueError, match="not rejected"):
        SubscriberRule(wish(), RuleStatus.REJECTED)
