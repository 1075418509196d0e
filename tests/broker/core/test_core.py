"""What the parts of a node share: what is wanted is done in order."""

from datetime import datetime, timedelta

import pytest
from tests.broker.node_kit import BROKERS, Broker, settings
from tests.broker.sports import NEWS

from penstock.broker.local.requests import Unadvertise
from penstock.broker.routing.outputs import Cut
from penstock.broker.sealing.block_builder import Lingering
from penstock.errors import RefusedError
from penstock.model.events import TransitEvent


def cut(code: str) -> Cut:
    """Return something that is to be done outside."""
    return Cut(BROKERS[1].principal, RefusedError(code, "because"))


def test_what_is_wanted_while_something_is_done_comes_after_it() -> None:
    core, done = Broker(settings()).core, list[str]()
    first, second, third = map(cut, ("first", "second", "third"))

    def carry_out(wanted: Cut) -> None:
        done.append(wanted.reason.code)
        if wanted is first:
            core.settle([third])

    core.handle({Cut: carry_out})
    core.settle([first, second])
    assert done == ["first", "second", "third"]


def test_what_fails_keeps_nothing_else_from_being_done() -> None:
    core, done = Broker(settings()).core, list[str]()
    bad, after, later = map(cut, ("bad", "after", "later"))

    def carry_out(wanted: Cut) -> None:
        if wanted is bad:
            core.settle([after])
            raise RefusedError("some.code", "it fails")
        done.append(wanted.reason.code)

    core.handle({Cut: carry_out})
    with pytest.raises(RefusedError):
        core.settle([bad, later])
    assert done == ["later", "after"]


def test_whoever_wants_something_is_told_of_its_own_failures_and_operators_of_the_others() -> None:
    node, done = Broker(settings()), list[str]()
    core, (first, second, third) = node.core, map(cut, ("first", "second", "third"))

    def carry_out(wanted: Cut) -> None:
        done.append(wanted.reason.code)
        if wanted is first:
            core.settle([third])
        else:
            raise wanted.reason

    core.handle({Cut: carry_out})
    # Nothing was advertised: that fails inside.
    with pytest.raises(RefusedError) as caught:
        core.settle([Unadvertise("none"), first, second])
    assert caught.value.code == "route.unknown"
    assert done == ["first", "second", "third"]
    assert node.codes == {"second", "third"}


def test_who_is_woken_too_early_is_woken_again() -> None:
    core = Broker(settings(sealing=Lingering(linger=timedelta(seconds=1)))).core
    woken: list[datetime] = []
    core.wake = woken.append
    core.exchange.gathering.put(core.now(), [TransitEvent(NEWS.name.key, (), {})])
    core.settle(())
    core.flush()
    assert len(woken) == 2
    assert len(core.exchange.gathering) == 1
