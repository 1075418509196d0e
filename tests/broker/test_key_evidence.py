"""What holders of keys have shown: remembered while they hold keys, and waited for after a start."""

from datetime import timedelta

from tests.broker.node_kit import BROKERS, Broker, bag, settings
from tests.broker.sports import NEWS, grant

from penstock.broker.core import Core
from penstock.broker.door import Sources
from penstock.broker.key_evidence import KeyEvidence
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
    core.sources = Sources(SHOWN)
    assert evidence.news() is None


def test_holders_have_time_to_show_themselves_while_policy_is_what_it_was_and_for_a_while_after_a_start() -> None:
    core, evidence = begun()
    core.disclosed[ONE] = SHOWN
    evidence.look([ONE, OTHER, core.principal])
    assert (evidence.unseen([ONE, OTHER, core.principal]), evidence.open) == (frozenset([OTHER]), False)
    core.sources = Sources(SHOWN)
    assert (evidence.unseen([ONE, OTHER]), evidence.open) == (frozenset([OTHER]), True)
    core._now += timedelta(milliseconds=core.settings.limits.key_grace)
    assert not evidence.waits
    assert (evidence.unseen([ONE, OTHER]), evidence.open) == (frozenset(), False)
