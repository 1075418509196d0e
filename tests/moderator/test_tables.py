"""What holds for any change of the tables, whoever made it."""

from dataclasses import replace

import pytest
from tests.moderator.kit import P1, P2, WORKFLOW, event, rule
from tests.trust.kit import refused

from penstock.moderator.deltas import Change, Delta, Logged, LoggedAs, Rooted, Standing, Status, Wish
from penstock.moderator.rules import SubscribeRule
from penstock.moderator.tables import Image, Tables

RULE = rule("a", "A1")
WANTED = SubscribeRule("s", event("A1"), P2, P2)
IN_FORCE, LEFT = Standing(RULE, Status.IN_FORCE, RULE), Standing(RULE, Status.LEFT)
STATED = Delta(rules={"a": Change(None, IN_FORCE)})
WISHED = Delta(wishes={"s": Change(None, Wish(WANTED, Status.IN_FORCE))})
GOING = {event("A1"): Change(Rooted(event("ActivityX")), None)}


def tables(*deltas: Delta) -> Tables:
    """Return tables after some changes, each of which is checked."""
    found = Tables()
    for delta in deltas:
        found.check(delta, WORKFLOW)
        found.write(delta)
    return found


def test_what_was_written_can_be_taken_back() -> None:
    both = STATED.then(WISHED).then(Delta(away={P2: Change(None, True)}))
    found = tables()
    found.write(both)
    assert (dict(found.rules), found.away) == ({"a": IN_FORCE}, {P2})
    found.write(both.inverse())
    assert (dict(found.rules), found.wishes, found.away) == ({}, {}, set())


def test_tables_are_those_of_an_image() -> None:
    entry = Logged((1, 0), LoggedAs.REJECTED, (RULE,))
    wishes = {"s": Wish(WANTED, Status.ENDED)}
    found = Tables.of(Image({"a": LEFT}, {}, {entry.place: entry}, frozenset({P1}), wishes))
    assert (dict(found.rules), found.wishes, found.away) == ({"a": LEFT}, wishes, {P1})
    assert [*found.history] == [entry]


@pytest.mark.parametrize(
    ("before", "delta", "code"),
    [
        # What is to be changed is not there, or is something else.
        ((), STATED.inverse(), "moderator.stale"),
        ((), WISHED.inverse(), "moderator.stale"),
        ((STATED,), STATED, "moderator.stale"),
        ((), Delta(away={P1: Change(True, None)}), "moderator.stale"),
        ((), Delta(types={event("B"): Change(Rooted(None), None)}), "moderator.stale"),
        # A publisher's rule and a subscriber's with one id.
        ((STATED,), Delta(wishes={"a": Change(None, Wish(replace(WANTED, id="a"), Status.ENDED))}), "id"),
        ((WISHED,), Delta(rules={"s": Change(None, Standing(replace(RULE, id="s"), Status.LEFT))}), "id"),
        ((), STATED.then(Delta(wishes={"a": Change(None, Wish(replace(WANTED, id="a"), Status.ENDED))})), "id"),
        # Rules, and the log, stay behind on a type that goes.
        ((STATED,), Delta(types=GOING), "moderator.in-use"),
        ((WISHED,), Delta(types=GOING), "moderator.in-use"),
        # Rules of somebody who is away, or leaves.
        ((Delta(away={P1: Change(None, True)}),), STATED, "moderator.away"),
        ((Delta(away={P2: Change(None, True)}),), WISHED, "moderator.away"),
        ((), WISHED.then(Delta(away={P2: Change(None, True)})), "moderator.away"),
    ],
)
def test_what_does_not_fit_is_refused(before: tuple[Delta, ...], delta: Delta, code: str) -> None:
    found = tables(*before)
    with refused("moderator.duplicate-id" if code == "id" else code):
        found.check(delta, WORKFLOW)


def test_who_leaves_leaves_no_rule_in_force() -> None:
    leaving = Delta(away={P2: Change(None, True)})
    with refused("moderator.away"):
        tables(WISHED).check_away(leaving)
    tables(STATED).check_away(leaving)
    resting = Delta(wishes={"s": Change(Wish(WANTED, Status.IN_FORCE), Wish(WANTED, Status.LEFT))})
    tables(WISHED).check_away(leaving.then(resting))


def test_an_ended_rule_lets_its_type_go() -> None:
    ended = Delta(rules={"a": Change(IN_FORCE, Standing(RULE, Status.ENDED))}, types=GOING)
    tables(STATED).check(ended, WORKFLOW)
