"""What holds for any change of the tables, whoever made it."""

from dataclasses import replace

import pytest
from tests.moderator.kit import P1, P2, WORKFLOW, event, rule
from tests.trust.kit import refused

from penstock.moderator.base.tables import Image, RuleTables
from penstock.moderator.rules.rules import SubscribeRule
from penstock.moderator.rules.steps import (
    Delta,
    Logged,
    LoggedAs,
    Rooted,
    RuleChange,
    RuleState,
    RuleStatus,
    SubscriberRule,
)

RULE = rule("a", "A1")
WANTED = SubscribeRule("s", event("A1"), P2, P2)
IN_FORCE, LEFT = RuleState(RULE, RuleStatus.IN_FORCE, RULE), RuleState(RULE, RuleStatus.LEFT)
STATED = Delta(rules={"a": RuleChange(None, IN_FORCE)})
WISHED = Delta(wishes={"s": RuleChange(None, SubscriberRule(WANTED, RuleStatus.IN_FORCE))})
GOING = {event("A1"): RuleChange(Rooted(event("ActivityX")), None)}


def tables(*deltas: Delta) -> RuleTables:
    """Return tables after some changes, each of which is checked."""
    found = RuleTables()
    for delta in deltas:
        found.check(delta, WORKFLOW)
        found.write(delta)
    return found


def test_what_was_written_can_be_taken_back() -> None:
    both = STATED.then(WISHED).then(Delta(away={P2: RuleChange(None, True)}))
    found = tables()
    found.write(both)
    assert (dict(found.rules), found.away) == ({"a": IN_FORCE}, {P2})
    found.write(both.inverse())
    assert (dict(found.rules), found.wishes, found.away) == ({}, {}, set())


def test_tables_are_those_of_an_image() -> None:
    entry = Logged((1, 0), LoggedAs.REJECTED, (RULE,))
    wishes = {"s": SubscriberRule(WANTED, RuleStatus.ENDED)}
    found = RuleTables.of(Image({"a": LEFT}, {}, {entry.place: entry}, frozenset({P1}), wishes))
    assert (dict(found.rules), found.wishes, found.away) == ({"a": LEFT}, wishes, {P1})
    assert [*found.history] == [entry]


@pytest.mark.parametrize(
    ("before", "delta", "code"),
    [
        # What is to be changed is not there, or is something else.
        ((), STATED.inverse(), "moderator.stale"),
        ((), WISHED.inverse(), "moderator.stale"),
        ((STATED,), STATED, "moderator.stale"),
        ((), Delta(away={P1: RuleChange(True, None)}), "moderator.stale"),
        ((), Delta(types={event("B"): RuleChange(Rooted(None), None)}), "moderator.stale"),
        # A publisher's rule and a subscriber's with one id.
        (
            (STATED,),
            Delta(wishes={"a": RuleChange(None, SubscriberRule(replace(WANTED, id="a"), RuleStatus.ENDED))}),
            "id",
        ),
        ((WISHED,), Delta(rules={"s": RuleChange(None, RuleState(replace(RULE, id="s"), RuleStatus.LEFT))}), "id"),
        (
            (),
            STATED.then(
                Delta(wishes={"a": RuleChange(None, SubscriberRule(replace(WANTED, id="a"), RuleStatus.ENDED))})
            ),
            "id",
        ),
        # Rules, and the log, stay behind on a type that goes.
        ((STATED,), Delta(types=GOING), "moderator.in-use"),
        ((WISHED,), Delta(types=GOING), "moderator.in-use"),
        # Rules of somebody who is away, or leaves.
        ((Delta(away={P1: RuleChange(None, True)}),), STATED, "moderator.away"),
        ((Delta(away={P2: RuleChange(None, True)}),), WISHED, "moderator.away"),
        ((), WISHED.then(Delta(away={P2: RuleChange(None, True)})), "moderator.away"),
    ],
)
def test_what_does_not_fit_is_refused(before: tuple[Delta, ...], delta: Delta, code: str) -> None:
    found = tables(*before)
    with refused("moderator.duplicate-id" if code == "id" else code):
        found.check(delta, WORKFLOW)


def test_who_leaves_leaves_no_rule_in_force() -> None:
    leaving = Delta(away={P2: RuleChange(None, True)})
    with refused("moderator.away"):
        tables(WISHED).check_away(leaving)
    tables(STATED).check_away(leaving)
    resting = Delta(
        wishes={"s": RuleChange(SubscriberRule(WANTED, RuleStatus.IN_FORCE), SubscriberRule(WANTED, RuleStatus.LEFT))}
    )
    tables(WISHED).check_away(leaving.then(resting))


def test_an_ended_rule_lets_its_type_go() -> None:
    ended = Delta(rules={"a": RuleChange(IN_FORCE, RuleState(RULE, RuleStatus.ENDED))}, types=GOING)
    tables(STATED).check(ended, WORKFLOW)
