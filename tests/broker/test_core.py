"""What the parts of a node share: what is wanted is done in order."""

import pytest
from tests.broker.node_kit import BROKERS, Broker, settings

from penstock.broker.routing import Cut
from penstock.errors import RefusedError


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
        core.settle([bad])
    core.settle([later])
    assert done == ["after", "later"]
