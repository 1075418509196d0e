"""What holders of keys have shown: remembered while they hold keys, and waited for after a start."""

from datetime import timedelta

from tests.broker.node_kit import BROKERS, Broker, bag, settings
from tests.broker.sports import NEWS, grant

from penstock.broker.core.core import Core
from penstock.broker.keys.rights import KeyEvidence
from penstock.broker.local.decisions import AuthoritySources
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials

ONE, OTHER = BROKERS[1].principal, BROKERS[2].principal
SHOWN = bag(grant(BROKERS[1], NEWS, Right.SUBSCRIBE))


def begun() -> tuple[Core, KeyEvidence]:
    core = Broker(settings()).core
    return core, KeyEvidence(core)


def test_what_a_holder_has_shown_counts_until_it_shows_something_else() -> None:
    core, evidence = begun()
    core.disclosed[ONE] = SHOWN
    evidence.look([ONE, OTHER])
    del core.disclosed[ONE]
    evidence.look([ONE, OTHER])
    assert (evidence.of(ONE), evidence.of(OTHER)) == (SHOWN, Credentials())
    core.disclosed[ONE] = Credentials()
    evidence.look([ONE])
    assert evidence.of(ONE) == Credentials()
    evidence.look([])
    core.disclosed.clear()
    evidence.look([ONE])
    assert evidence.unseen([ONE]) == {ONE}


def test_what_somebody_shows_who_joins_is_taken_in_at_once() -> None:
    core, evidence = begun()
    core.disclosed[ONE] = SHOWN
    evidence.joined(ONE)
    evidence.joined(OTHER)
    core.disclosed.clear()
    evidence.look([ONE, OTHER])
    assert (evidence.of(ONE), evidence.unseen([ONE, OTHER])) == (SHOWN, frozenset([OTHER]))


def test_those_are_judged_who_show_something_else_and_everybody_where_nobody_does() -> None:
    core, evidence = begun()
    assert evidence.news() is None
    core.disclosed[ONE] = SHOWN
    assert evidence.news() == frozenset([ONE])
    assert evidence.news() is None
    del core.disclosed[ONE]
    core.disclosed[OTHER] = SHOWN
    assert evidence.news() == frozenset([ONE, OTHER])
    core.disclosed.clear()
    core.library.remove(NEWS.name)
    assert evidence.news() is None
    core.disclosed[ONE] = SHOWN
    core.sources = AuthoritySources(SHOWN)
    assert evidence.news() is None


def test_holders_have_time_to_show_themselves_and_less_where_policy_has_changed() -> None:
    core, evidence = begun()
    limits, everybody = core.settings.limits, [ONE, OTHER, core.principal]
    assert evidence.due
    core.disclosed[ONE] = SHOWN
    evidence.look(everybody)
    assert (evidence.unseen(everybody), evidence.due) == (frozenset([OTHER]), False)
    core.latest += timedelta(milliseconds=limits.key_grace)
    assert (evidence.unseen(everybody), evidence.due) == (frozenset([OTHER]), False)
    core.sources = AuthoritySources(SHOWN)
    assert (evidence.unseen(everybody), evidence.due) == (frozenset(), False)


def test_whom_another_manager_has_just_admitted_has_time_to_show_itself() -> None:
    core, evidence = begun()
    evidence.unseen([OTHER])
    core.latest += timedelta(hours=1)
    core.sources = AuthoritySources(SHOWN)
    assert evidence.unseen([ONE, OTHER]) == {ONE}
    core.latest += timedelta(milliseconds=core.settings.limits.key_grace)
    assert evidence.unseen([ONE, OTHER]) == frozenset()


def test_after_a_start_policy_that_changes_leaves_some_time_too() -> None:
    core, evidence = begun()
    core.sources = AuthoritySources(SHOWN)
    assert (evidence.unseen([OTHER]), evidence.due) == (frozenset([OTHER]), False)
    core.latest += timedelta(milliseconds=core.settings.limits.key_grace)
    assert evidence.due
    assert (evidence.unseen([OTHER]), evidence.due) == (frozenset(), False)


def test_who_is_silent_for_longer_than_an_epoch_can_last_is_judged_also_where_policy_is_what_it_was() -> None:
    core, evidence = begun()
    longest = timedelta(milliseconds=core.settings.limits.key_longest)
    evidence.unseen([ONE])
    core.latest += longest / 2
    # Another one holds the key since then, and its time begins when that is known.
    assert (evidence.unseen([ONE, OTHER]), evidence.due) == (frozenset([ONE, OTHER]), False)
    core.latest += longest / 2
    assert evidence.due
    assert (evidence.unseen([ONE, OTHER]), evidence.due) == (frozenset([OTHER]), False)
    core.disclosed[OTHER] = SHOWN
    evidence.look([ONE, OTHER])
    core.latest += longest
    assert (evidence.unseen([ONE, OTHER]), evidence.due) == (frozenset(), False)
