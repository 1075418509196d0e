"""The inside of a broker: events of sealed types go in the order in which they came, whatever becomes of some."""

from datetime import timedelta
from typing import TYPE_CHECKING, cast

from tests.broker.sealed_kit import ALL, CAR, NOW, Line

from penstock.broker.core.exchange import Exchange, ExchangePorts
from penstock.broker.limits import BrokerLimits
from penstock.broker.local.requests import Publish
from penstock.broker.routing.outputs import Send
from penstock.broker.sealing.blocks import BlockBuilder, Lingering
from penstock.broker.wire.publications import Publications
from penstock.model.events import Event

if TYPE_CHECKING:
    from penstock.broker.core.event_path import EventPath
    from penstock.broker.local.local_broker import LocalBroker


def published(*plates: str) -> Publish:
    return Publish("a", tuple(Event.of(CAR, {"plate": plate}, id=plate[:3], time=NOW).to_transit() for plate in plates))


def sent(*publishes: Publish) -> tuple[list[list[str]], str | None]:
    """Return the ids of events that go to the neighbour, in blocks of up to three, and what failed first."""
    limits = BrokerLimits(route_block_bytes=2_000, route_block_events=3)
    line = Line({"pub": ALL, "sub": ALL}, limits=limits)
    line.advertise("pub")
    line.subscribe("sub")
    # Publications do not concern the local broker once it has let them pass.
    local, path = cast("LocalBroker", None), cast("EventPath", None)
    gathering = BlockBuilder(Lingering(linger=timedelta(seconds=1), events=4), limits, lambda _of_type: False)
    ports = ExchangePorts(sealable=lambda _events: None, take_own=lambda _now, _event: None)
    outward, failed = Exchange(local, line.routers["pub"], path, gathering, ports).settle(NOW, publishes)
    blocks = [output.hop.body for output in outward if isinstance(output, Send)]
    ids = [[event.id for event in block.events] for block in blocks if isinstance(block, Publications)]
    return ids, None if failed is None else failed.code


def test_blocks_that_are_ready_together_go_in_their_order_and_before_what_came_later() -> None:
    found = sent(published("a1", "a2"), published("b1", "b2", "b3", "b4"), published("c1", "c2", "c3", "c4"))
    assert found == ([["a1", "a2"], ["b1", "b2", "b3"], ["b4"], ["c1", "c2", "c3"], ["c4"]], None)


def test_a_block_that_is_too_long_keeps_no_other_from_going() -> None:
    found = sent(published("a1" + "x" * 2_000), published("b1", "b2", "b3", "b4"))
    assert found == ([["b1", "b2", "b3"], ["b4"]], "route.event-size")
