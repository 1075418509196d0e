"""The updates and heartbeats of a decision point on a fabric, and what caches report about them.

    async with PolicyFeed(fabric, key, revisions) as feed:
        ...
        await feed.replace(newer, [ResourceChange("document")])   # when other policies decide

A heartbeat follows each update immediately, and then each period.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, Self

from penstock.authority.decisions.messages import PolicyRevision
from penstock.authority.decisions.updates import (
    EVERYTHING,
    PolicyChange,
    UpdateAuthor,
    UpdateResult,
    UpdateTopics,
    read_update,
)
from penstock.authority.limits import FEED_CACHES, FEED_UPDATES
from penstock.crypto import Signer
from penstock.errors import PenstockError
from penstock.fabric import Clock, Fabric, Publisher, SystemClock
from penstock.fabric.tasks import keep_running
from penstock.model.principals import Principal

PERIOD: Final = 1.0
"""Seconds between heartbeats."""


class PolicyFeed:
    """See the module. The policies are those that the point decides by now."""

    def __init__(  # noqa: PLR0913  # named settings, each with a default
        self,
        fabric: Fabric,
        key: Signer,
        policies: Iterable[PolicyRevision],
        *,
        period: float = PERIOD,
        topics: UpdateTopics | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._fabric = fabric
        self._key = key
        self._period = period
        self._topics = topics or UpdateTopics()
        self._clock = clock or SystemClock()
        self._author = UpdateAuthor(key, self._now(), policies)
        self._writer: Publisher | None = None
        self._tasks: list[asyncio.Task[None]] = []
        #: what caches did, by the digests of the last updates
        self._results: OrderedDict[bytes, dict[Principal, UpdateResult]] = OrderedDict()

    async def __aenter__(self) -> Self:
        await self._topics.declare(self._fabric)
        self._writer = await self._fabric.publisher(self._topics.updates)
        self._tasks = [
            keep_running("sending heartbeats", self._beat),
            keep_running("collecting results of updates", self._collect),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._writer is not None:
            await self._writer.close()

    async def replace(
        self, policies: Iterable[PolicyRevision], changes: Iterable[PolicyChange] = EVERYTHING
    ) -> list[bytes]:
        """Announce that other policies decide now, and for which resources that may matter.

        Call it before the first answer by the new policies. Return the digests of the updates. Raises as
        `Publisher.publish`; caches then notice the gap by the next heartbeat.
        """
        digests = []
        updates = self._author.replace(self._now(), policies, changes)
        for signed in updates:
            self._results[signed.digest] = {}
            if len(self._results) > FEED_UPDATES:
                self._results.popitem(last=False)
            digests.append(signed.digest)
        for signed in updates:
            await self._publish(signed.to_bytes())
        await self.heartbeat()
        return digests

    async def heartbeat(self) -> None:
        """Send a heartbeat now. Raises as `Publisher.publish`."""
        await self._publish(self._author.heartbeat(self._now()).to_bytes())

    def results(self, update: bytes) -> Mapping[Principal, UpdateResult]:
        """Return what caches reported about one of the last updates."""
        return self._results.get(update, {})

    async def _publish(self, data: bytes) -> None:
        if self._writer is not None:
            await self._writer.publish(data, key=self._key.principal.digest.hex())

    async def _beat(self) -> None:
        while True:
            await self.heartbeat()
            await self._clock.sleep(self._period)

    async def _collect(self) -> None:
        key = self._key.principal.digest.hex()
        async with await self._fabric.subscribe(self._topics.results, keys=[key]) as samples:
            async for sample in samples:
                self._take(sample.data)

    def _take(self, data: bytes) -> None:
        try:
            found = read_update(data)
            value = found.value
            known = self._results.get(value.update) if isinstance(value, UpdateResult) else None
            if known is None or not isinstance(value, UpdateResult):
                self.counts["ignored"] += 1
                return
            if value.cache not in known and len(known) >= FEED_CACHES:
                self.counts["ignored"] += 1
                return
            found.verify()
        except PenstockError:
            self.counts["malformed"] += 1
            return
        known[value.cache] = value
        self.counts["results"] += 1

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.now(), UTC)
