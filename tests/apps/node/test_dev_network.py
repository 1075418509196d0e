"""The network of `penstock dev`: each reader sees its part, and a change is enforced when `change` returns."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping

import pytest

from penstock.apps.node.dev_network import DevNetwork, DevReader, ReadRight, dev_network
from penstock.errors import PenstockError
from penstock.model.values import Scalar

Seen = dict[str, list[Mapping[str, Scalar]]]


def run(story: Callable[[DevNetwork, Seen], Awaitable[None]]) -> None:
    seen: Seen = {}

    def note(reader: DevReader | None, values: Mapping[str, Scalar]) -> None:
        seen.setdefault("published" if reader is None else reader.name, []).append(dict(values))

    async def main() -> None:
        async with asyncio.timeout(120), dev_network(secrets.token_bytes, note) as net:
            await story(net, seen)

    asyncio.run(main())


async def publish(net: DevNetwork, number: int = 2) -> None:
    """Publish readings, and wait until both brokers have delivered them: somebody at each may see all."""
    for _ in range(number):
        await net.publish()
    while min(net.readers[name].events for name in ("control-room", "billing")) < net.published:
        await asyncio.sleep(0.002)


def test_each_reader_sees_its_part() -> None:
    async def story(net: DevNetwork, seen: Seen) -> None:
        await publish(net, 4)
        assert seen["control-room"] == seen["published"]
        assert seen["billing"] == [one | {"region": None} for one in map(dict, seen["published"])]
        north = [one for one in map(dict, seen["published"]) if one["region"] == "north"]
        assert 0 < len(north) < 4
        assert seen["planner"] == [one | {"meter": None} for one in north]

    run(story)


def test_a_change_is_enforced_when_it_is_complete() -> None:
    async def story(net: DevNetwork, seen: Seen) -> None:
        assert await net.change("planner", ReadRight(())) > 0
        await publish(net)
        assert "planner" not in seen
        # The same right again, and more: a certificate that was revoked does not stand in the way.
        await net.change("planner", net.readers["planner"].granted)
        await publish(net)
        assert [set(one) - {name for name, value in one.items() if value is None} for one in seen["planner"]] == [
            {"region", "power"}
        ]
        await net.change("planner", ReadRight(("meter",)))
        await publish(net)
        assert [one["power"] for one in seen["planner"][1:]] == [None, None]
        assert [one["meter"] for one in seen["planner"][1:]] == [one["meter"] for one in seen["published"][4:]]

    run(story)


def test_no_change_is_no_policy_event() -> None:
    async def story(net: DevNetwork, _seen: Seen) -> None:
        assert await net.change("billing", net.readers["billing"].right) == 0.0

    run(story)


def test_who_is_not_a_reader() -> None:
    async def story(net: DevNetwork, _seen: Seen) -> None:
        with pytest.raises(PenstockError) as caught:
            await net.change("mallory", ReadRight(("meter",)))
        assert caught.value.code == "dev.command"

    run(story)
