"""A fabric that fails in the middle of something, which must leave nothing behind."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from penstock.errors import FailedError
from penstock.fabric import EmbeddedFabric, Fabric, FileKeeper, Publisher, Qos, TopicSubscription


class FailingFabric(EmbeddedFabric):
    """Fails at one of the calls that open something, and knows what was opened."""

    def __init__(self, fails_at: int, **named: Any) -> None:
        super().__init__(keeper=FileKeeper(Path(":memory:")), **named)
        self.left = fails_at
        self.opened: list[Publisher | TopicSubscription] = []

    def _call(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise FailedError("fabric.unreachable", "the servers of the fabric do not answer")

    async def declare(self, topic: str, qos: Qos) -> None:
        self._call()
        await super().declare(topic, qos)

    async def publisher(self, topic: str, *, strength: int = 0, instance: str = "") -> Any:
        self._call()
        made = await super().publisher(topic, strength=strength, instance=instance)
        self.opened.append(made)
        return made

    async def subscribe(self, topic: str, *about: Any, **named: Any) -> TopicSubscription:
        self._call()
        made = await super().subscribe(topic, *about, **named)
        self.opened.append(made)
        return made


async def leaves_nothing(make: Callable[[Fabric], AbstractAsyncContextManager[object]], **named: Any) -> int:
    """Begin something on a fabric that fails at the first call, at the second one, and so on until it has begun.

    Check that nothing is open after each failure, and return how many calls failed.
    """
    for number in count(1):
        async with FailingFabric(number, **named) as fabric:
            with suppress(FailedError):
                async with make(fabric):
                    return number - 1
            assert [type(one).__name__ for one in fabric.opened if not one._closed] == [], number
    raise AssertionError
