"""A network for tests of programs: a real broker, real rights, real refusals."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.broker.node_kit import LONG, refused, run

import penstock
from penstock.crypto import SigningKey
from penstock.errors import MalformedError
from penstock.model.event_classes import event, event_class_of
from penstock.testing import LocalNetwork, network
from penstock.trust.event_types import sign_type


@event("grid/org.grid.Reading")
@dataclass
class Reading:
    power: float
    region: str | None = None
    meter: str | None = None


@event("grid/org.grid.Alarm")
@dataclass
class Alarm(Reading):
    reason: str | None = None


@event
@dataclass
class Note:
    text: str


async def exchange(net: LocalNetwork, *sent: object) -> list[Reading]:
    """Publish as the meter, and return what the planner sees."""
    async with net.connect("planner") as planner, net.connect("meter") as meter:
        seen = await planner.subscribe(Reading)
        for one in sent:
            await meter.publish(one)
        await meter.publish(Reading(0.0, "end"))
        found = [await seen.next(LONG)]
        while found[-1].power != 0.0:
            found.append(await seen.next(LONG))
        return found[:-1]


def test_events_pass_by_the_rights_that_were_granted() -> None:
    async def main() -> None:
        async with network(Reading) as net:
            net.grant("meter", "publish", Reading, forced={"meter": "M-17"})
            net.grant("planner", "subscribe", Reading, attributes=["power", "region"], where="region <> 'south'")
            sent = Reading(1, "north", "M-99"), Reading(2, "south")
            assert await exchange(net, *sent) == [Reading(1.0, "north", None)]
            net.grant("planner", "subscribe", "grid/org.grid.Reading")
            assert await exchange(net, *sent) == [Reading(1.0, "north", "M-17"), Reading(2.0, "south", "M-17")]

    run(main())


def test_what_was_not_granted_is_refused_as_in_production() -> None:
    async def main() -> None:
        async with network(Reading) as net, net.connect("stranger") as stranger:
            await refused("broker.not-permitted", stranger.subscribe(Reading))
            await refused("broker.not-permitted", stranger.publish(Reading(1.0)))
            assert [one.effect for one in net.decisions if one.principal == net.key("stranger").principal][
                -1
            ] != "permit"
            await refused("broker.not-operator", stranger.status())
            async with net.connect("owner") as owner:
                assert (await owner.status())["sessions"] == 2

    run(main())


def test_a_right_is_taken_back_while_events_flow() -> None:
    async def main() -> None:
        async with network(Reading) as net:
            net.grant("meter", "publish", Reading)
            lent = net.grant("planner", "subscribe", Reading)
            async with net.connect("planner") as planner, net.connect("meter") as meter:
                seen = await planner.subscribe(Reading)
                await meter.publish(Reading(1.0))
                assert await seen.next(LONG) == Reading(1.0)
                net.revoke(lent)
                await meter.publish(Reading(2.0))
                net.grant("planner", "subscribe", Reading)
                await meter.publish(Reading(3.0))
                assert await seen.next(LONG) == Reading(3.0)

    run(main())


def test_types_that_extend_others_and_types_without_an_owner() -> None:
    async def main() -> None:
        async with network(Alarm, Note) as net:
            for one in (Reading, Alarm, Note):
                net.grant("meter", "publish", one)
                net.grant("planner", "subscribe", one)
            assert await exchange(net, Alarm(2.0, reason="fire"), Reading(1.0)) == [Reading(2.0), Reading(1.0)]
            async with net.connect("planner") as planner, net.connect("meter") as meter:
                alarms, notes = await planner.subscribe(Alarm), await planner.subscribe(Note)
                await meter.publish(Alarm(3.0, reason="flood"))
                await meter.publish(Note("hello"))
                assert await alarms.next(LONG) == Alarm(3.0, reason="flood")
                assert await notes.next(LONG) == Note("hello")

    run(main())


def test_signed_types_and_keys_of_ones_own() -> None:
    grid = SigningKey(b"g" * 32)
    signed = sign_type(event_class_of(Reading).definition(grid.principal), grid)

    async def main() -> None:
        async with network(signed, keys={"grid": grid}) as net:
            net.grant("meter", "publish", Reading)
            net.grant("planner", "subscribe", Reading)
            assert await exchange(net, Reading(1.0)) == [Reading(1.0)]

    run(main())
    with pytest.raises(MalformedError) as failed:
        LocalNetwork([signed], {})
    assert failed.value.code == "testing.no-key"


def test_programs_that_connect_by_their_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with network(Reading) as net:
            net.grant("planner", "subscribe", Reading)
            net.grant("meter", "publish", Reading)
            for name, value in net.environment("planner", tmp_path).items():
                monkeypatch.setenv(name, value)

            async def program() -> Reading:
                async with penstock.connect() as client:
                    assert client.principal == net.key("planner").principal
                    return await (await client.subscribe(Reading)).next(LONG)

            running = asyncio.create_task(program())
            async with net.connect("meter") as meter:
                await net.wait_for_subscriber(Reading)
                await meter.publish(Reading(1.0))
            assert await running == Reading(1.0)

    run(main())
    assert (tmp_path / "planner.key").stat().st_mode & 0o077 == 0


def test_mistakes_are_named() -> None:
    async def main() -> None:
        async with network(Reading) as net:
            mistakes: dict[str, tuple[str, type, list[str]]] = {
                "capability.right": ("write", Reading, []),
                "type.unknown-attribute": ("publish", Reading, ["watt"]),
                "broker.unknown-type": ("publish", Note, []),
                "event.class": ("publish", int, []),
            }
            for code, (right, of, attributes) in mistakes.items():
                with pytest.raises(penstock.PenstockError) as caught:
                    net.grant("meter", right, of, attributes=attributes)
                assert caught.value.code == code

    run(main())


def test_two_networks_at_a_time_know_nothing_of_each_other() -> None:
    async def main() -> None:
        async with network(Reading) as one, network(Reading) as other:
            for net in (one, other):
                net.grant("meter", "publish", Reading)
                net.grant("planner", "subscribe", Reading)
            assert one.key("meter") == other.key("meter")
            both = await asyncio.gather(exchange(one, Reading(1.0)), exchange(other, Reading(2.0)))
            assert [*both] == [[Reading(1.0)], [Reading(2.0)]]

    run(main())
