"""Those who leave, one of several or the last of them, and those who take back that a rule is theirs."""

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.guard.agreed_kit import PROFILES as CLAIMS
from tests.guard.agreed_kit import agreed, agreement
from tests.moderator.kit import P1, P2, P3, P4, event, rule
from tests.moderator.life import NOW, add, ask, base_of, in_force, resolve
from tests.trust.kit import refused

from penstock.model.principals import Principal
from penstock.model.profiles import Profile
from penstock.moderator.base.base import RuleBase
from penstock.moderator.base.records import from_record, image_from_sexp, image_to_sexp, to_record
from penstock.moderator.detection.subscribers import PublishRules, Subscriptions
from penstock.moderator.rules.rules import PublishRule, SubscribeRule
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
    Strategy,
    SubscriberRule,
    Undo,
    WithdrawRule,
)
from penstock.selector import parse
from penstock.trust.validity import ALWAYS, Validity

ENGINEERS, AT_A = "role = 'engineer'", "company = 'A'"
#: of P1 and P2; the other one is stated by somebody who publishes nothing
JOINT = rule("j", "A1", ENGINEERS, of=[P1, P2])
FOREIGN = replace(JOINT, id="f", stated_by=P3)


def publishers(base: RuleBase) -> set[Principal]:
    """Who may publish A1: by the rules in force, by the answers about pairs, and where it is enforced."""
    rules = base.rules
    nobody = {who: Profile({}) for who in (P1, P2, P3)}
    by_rules = [one for one in rules if isinstance(one, PublishRule)]
    found = PublishRules(base.detector.vocabulary, by_rules, nobody).publishers(event("A1"))
    entitled = {one.publisher for one in found}
    known = Subscriptions(base.detector.vocabulary, rules, nobody | {P4: Profile({"role": "engineer"})})
    assert {who for who in (P1, P2, P3) if known.allow(event("A1"), who, P4).allowed} == entitled
    assert set(agreed(agreement(*rules), CLAIMS).publishers) == entitled
    return entitled


def test_one_of_several_who_leaves_publishes_no_longer() -> None:
    base = base_of()
    add(base, JOINT)
    before = base.image()
    ask(base, Leave(P2))
    assert publishers(base) == {P1}
    # What they demanded together holds on.
    assert in_force(base) == {"j": "{(role, engineer)}"}
    ask(base, Return(P2))
    assert publishers(base) == {P1, P2}
    assert base.image() == before


def test_a_rule_rests_when_whoever_stated_it_leaves_or_all_that_it_is_of() -> None:
    base = base_of()
    add(base, JOINT, FOREIGN)
    ask(base, Leave(P1))
    assert (base.standings["j"].status, publishers(base)) == (RuleStatus.LEFT, {P2})
    ask(base, Leave(P2))
    assert (base.standings["f"].status, publishers(base)) == (RuleStatus.LEFT, set())
    # The first of them is not back alone: the other rule came to rest because of both.
    with refused("moderator.depends"):
        ask(base, Undo(3))
    ask(base, Return(P2))
    assert ({*in_force(base)}, publishers(base)) == ({"f"}, {P2})
    ask(base, Return(P1))
    assert ({*in_force(base)}, publishers(base)) == ({"f", "j"}, {P1, P2})


def test_nothing_comes_into_force_for_those_who_are_all_away() -> None:
    base = base_of()
    later = replace(FOREIGN, validity=Validity.between(NOW + timedelta(days=1), None))
    add(base, later)
    ask(base, Leave(P1))
    ask(base, Leave(P2))
    ask(base, Pass(), day=2)
    assert base.standings["f"].status is RuleStatus.WAITING
    with refused("moderator.away"):
        ask(base, Add(replace(FOREIGN, id="g")))
    ask(base, Return(P2), day=2)
    assert publishers(base) == {P2}
    # To undo that P1 was there would leave a rule in force that is nobody's.
    ask(base, Return(P1), day=2)
    ask(base, Leave(P2), day=2)
    with refused("moderator.away"):
        ask(base, Undo(6), day=2)


def test_a_rejected_rule_waits_for_one_of_its_publishers() -> None:
    base = base_of()
    add(base, rule("r", "A1", AT_A, of=[P4]), FOREIGN)
    assert base.standings["f"].status is RuleStatus.REJECTED
    ask(base, Leave(P1))
    ask(base, Leave(P2))
    ask(base, WithdrawRule("r"))
    assert base.standings["f"].status is RuleStatus.REJECTED
    ask(base, Return(P1))
    assert publishers(base) == {P1}


def test_one_of_several_takes_back_that_a_rule_is_its_own() -> None:
    base = base_of()
    add(base, JOINT, rule("r", "A1", AT_A, of=[P4]))
    before = base.image()
    with refused("moderator.not-yours"):
        ask(base, WithdrawRule("j"), who=P4)
    ask(base, WithdrawRule("j"), who=P2)
    assert (publishers(base), base.standings["j"].stated.publishers) == ({P1}, (P1,))
    with refused("moderator.not-yours"):
        ask(base, WithdrawRule("j"), who=P2)
    ask(base, Undo(3), who=P2)
    assert base.image() == before
    ask(base, WithdrawRule("j"), who=P1)
    assert base.standings["j"].status is RuleStatus.WITHDRAWN


def test_with_the_last_publisher_a_rule_goes() -> None:
    base = base_of()
    add(base, FOREIGN)
    ask(base, WithdrawRule("f"), who=P1)
    ask(base, WithdrawRule("f"), who=P2)
    assert base.standings["f"].status is RuleStatus.WITHDRAWN


def test_who_went_does_not_come_back_with_what_the_log_has() -> None:
    base = base_of()
    add(base, JOINT, rule("r", "A1", AT_A, of=[P4]))
    resolve(base, "r", Strategy.ADD)
    assert any(one.id == "j" for entry in base.history for one in entry.rules)
    ask(base, WithdrawRule("j"), who=P2)
    ask(base, WithdrawRule("r"), who=P4)
    assert (in_force(base), publishers(base)) == ({"j": "{(role, engineer)}"}, {P1})


def test_a_rule_whose_other_publishers_are_away_rests_when_one_takes_itself_out() -> None:
    base = base_of()
    add(base, FOREIGN)
    ask(base, Leave(P1))
    ask(base, WithdrawRule("f"), who=P2)
    assert (base.standings["f"].status, base.standings["f"].stated.publishers) == (RuleStatus.LEFT, (P1,))
    ask(base, Return(P1))
    assert publishers(base) == {P1}


@pytest.mark.parametrize("who", [P1, P2])
def test_a_subscriber_goes_from_what_others_stated_for_it(who: Principal) -> None:
    base = base_of()
    ask(base, StateSubscriberRule(SubscribeRule("s", event("A1"), P1, P2)), who=P2)
    with refused("moderator.not-yours"):
        ask(base, WithdrawRule("s"), who=P3)
    found = []
    for request in (Leave(who), Return(who), WithdrawRule("s")):
        ask(base, request, who=who)
        found.append(base.wishes["s"].status)
    assert found == [RuleStatus.LEFT, RuleStatus.IN_FORCE, RuleStatus.WITHDRAWN]


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
