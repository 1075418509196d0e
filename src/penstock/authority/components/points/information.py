"""PIP: an information point answers for the attributes that its sources provide (`information_sources`).

It reads the requests of decision points whose policies require one of these attributes, and of no others. A source that
fails answers nothing, and is reported; what the others have is sent without it.
"""

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any

from penstock.authority.components.exchange.samples import (
    AttributeQuery,
    Configuration,
    InformationField,
    InformationReply,
    InformationRequest,
    RequiredNames,
)
from penstock.authority.components.exchange.topics import TopicKind
from penstock.authority.components.exchange.verification import VerifiedSample
from penstock.authority.components.information.dependencies import DependencyList, Names, attributes_meet
from penstock.authority.components.information.sources import AttributeSource, FoundAttributes
from penstock.authority.components.points.component import ComponentSettings
from penstock.authority.components.points.request_components import ReplyingComponent
from penstock.authority.decisions.decision_point import Note, quiet
from penstock.authority.limits import PIP_REQUESTS
from penstock.crypto import Signer
from penstock.errors import FailedError, LimitError, PenstockError
from penstock.fabric import Clock, Fabric, RandomBytes
from penstock.fabric.tasks import waited_for


class InformationComponent(ReplyingComponent):
    """See the module. It closes its sources when it leaves."""

    READS = TopicKind.IREQ

    def __init__(  # noqa: PLR0913  # named settings, each with a default
        self,
        fabric: Fabric,
        key: Signer,
        settings: ComponentSettings,
        *,
        sources: Sequence[AttributeSource],
        clock: Clock | None = None,
        random: RandomBytes = secrets.token_bytes,
        note: Note = quiet,
    ) -> None:
        super().__init__(
            fabric,
            key,
            settings,
            dependencies=DependencyList(provided_by(sources), attributes_meet),
            clock=clock,
            random=random,
            note=note,
        )
        self._sources = tuple(sources)
        self._answering: set[asyncio.Task[None]] = set()

    async def provide(self, sources: Sequence[AttributeSource]) -> None:
        """Answer from other sources from now on, and read the requests for their attributes. Closes no source."""
        self._sources = tuple(sources)
        self.depend(self.dependencies.provide(provided_by(self._sources)))

    # ------------------------------------------------------------------------------------------------------------------
    # What the layer calls.

    async def leave(self) -> None:
        """Leave the domain, and close the sources."""
        await super().leave()
        for source in self._sources:
            await source.close()

    async def received(self, sample: VerifiedSample) -> None:
        """Handle what decision points require and ask. Raises `LimitError` (`pip.limit`)."""
        match sample.record:
            case RequiredNames(names):
                await self.required(sample.writer.id, frozenset(names))
            case InformationRequest(queries):
                if len(self._answering) >= PIP_REQUESTS:
                    raise LimitError("pip.limit", f"{PIP_REQUESTS} requests for information wait for their sources")
                task = self._begin("answering for attributes", self._answer(sample, queries))
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)

    # ------------------------------------------------------------------------------------------------------------------
    # Answers.

    async def _answer(self, request: VerifiedSample, queries: Sequence[AttributeQuery]) -> None:
        try:
            configuration = request.configuration
            if configuration is None:
                return
            fields = await self._fields_of(queries, configuration)
            if fields:
                reply = InformationReply(self.settings.domain, request.writer.id, request.number, tuple(fields))
                await self.write(TopicKind.IREP, reply, under=request)
        except PenstockError as error:
            self._refuse(error)

    async def _fields_of(
        self, queries: Sequence[AttributeQuery], configuration: Configuration
    ) -> list[InformationField]:
        """Return what the sources have within a quarter of the lifespan."""
        reads = [(query, source) for query in queries for source in self._sources if source.table.wanted(query)]
        if len(reads) == 1:
            # Whoever asks stops waiting when it is time; there is nothing else to send meanwhile.
            return _fields(reads[0][0], await self._read_one(*reads[0]))
        readings = {waited_for(self._read_one(*read)): read[0] for read in reads}
        if not readings:
            return []
        timer = waited_for(self._clock.sleep(configuration.lifespan / 4))
        try:
            left: set[asyncio.Future[FoundAttributes]] = {*readings}
            while left and not timer.done():
                waits: list[asyncio.Future[Any]] = [timer, *left]
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                left = {one for one in left if not one.done()}
            if left:
                self._note(FailedError("component.source", f"{len(left)} sources of attributes are too slow"))
            found = [
                field
                for reading, query in readings.items()
                if reading.done()
                for field in _fields(query, reading.result())
            ]
            # An attribute that two sources have is answered for by the first one.
            return [*{(one.category, one.name): one for one in reversed(found)}.values()]
        finally:
            timer.cancel()
            for reading in readings:
                reading.cancel()

    async def _read_one(self, query: AttributeQuery, source: AttributeSource) -> FoundAttributes:
        try:
            return await source.read(query)
        except PenstockError as error:
            self._refuse(error)
        except Exception as error:  # noqa: BLE001  # whatever a source raises, it answers nothing
            message = f"a source of attributes failed: {type(error).__name__}"
            self._refuse(FailedError("component.source", message))
        return {}


def provided_by(sources: Sequence[AttributeSource]) -> Names:
    """Return the names of the attributes that sources provide."""
    return frozenset[str]().union(*(source.table.provides for source in sources))


def _fields(query: AttributeQuery, found: FoundAttributes) -> list[InformationField]:
    return [
        InformationField(query.category, query.type, query.id, name, one.value, one.changed)
        for name, one in found.items()
    ]
