"""What components that ask have in common, and components that answer."""

import secrets
from collections.abc import Collection
from typing import ClassVar

from penstock.authority.components.exchange.samples import ComponentSample, Configuration, RequiredNames, SampleContent
from penstock.authority.components.exchange.topics import TopicInstance, TopicKind
from penstock.authority.components.exchange.verification import VerifiedSample
from penstock.authority.components.information.dependencies import DependencyList, FilterChange, Names, Requester
from penstock.authority.components.points.component import Component, ComponentSettings
from penstock.authority.decisions.decision_point import Note, quiet
from penstock.crypto import Signer
from penstock.errors import PenstockError, RefusedError
from penstock.fabric import Clock, Fabric, RandomBytes


class RequestingComponent(Component):
    """A component that writes requests: to all topics of its write-list, because repliers may read any of them."""

    #: when what it requires was last published, by `Clock.steady`, and whether anybody has answered since
    _published = 0.0
    _answered = False

    @property
    def settled(self) -> bool:
        """Whether repliers read the requests of this component: somebody has answered, and the others had time enough.

        Until then, a request without enough answers is written again.
        """
        return self._answered and self._clock.steady() >= self._published + self._verifier.lifespan

    async def publish_required(self, kind: TopicKind, names: Names) -> None:
        """Say what this component requires; nothing when it leaves. Raises as `write`."""
        self._published, self._answered = self._clock.steady(), False
        await self.write_all(kind, RequiredNames(tuple(sorted(names))))

    def configuration_of(self, number: int) -> Configuration | None:
        """Return the configuration with a number, if it is in force or kept."""
        return None if self._timeline is None else self._timeline.kept(number)

    def writes(self, kind: TopicKind) -> list[int]:
        """Return the instances of a type of topic that the component can write."""
        return [instance.number for instance in self._publishers if instance.kind is kind]

    async def write_all(
        self, kind: TopicKind, record: SampleContent, *, number: int | None = None, under: VerifiedSample | None = None
    ) -> ComponentSample:
        """Write a sample to all instances of a type of topic, under one number; a reader of two drops the copy.

        Raises as `write`.
        """
        number = self.next_number() if number is None else number
        written = [
            await self.write(kind, record, instance=one, number=number, under=under) for one in self.writes(kind)
        ]
        if not written:
            raise RefusedError(
                "component.outside-list",
                f"component `{self.settings.id}` cannot write {kind}",
                hint="its role's topics-list does not have it",
                component=self.settings.id,
            )
        return written[0]


class ReplyingComponent(Component):
    """A component that reads requests: of components that require what it provides, and of no others."""

    #: the type of topic on which it reads requests
    READS: ClassVar[TopicKind]

    def __init__(  # noqa: PLR0913  # named settings, each with a default
        self,
        fabric: Fabric,
        key: Signer,
        settings: ComponentSettings,
        *,
        dependencies: DependencyList,
        clock: Clock | None = None,
        random: RandomBytes = secrets.token_bytes,
        note: Note = quiet,
    ) -> None:
        super().__init__(fabric, key, settings, clock=clock, random=random, note=note)
        #: what it provides, and what others require
        self.dependencies = dependencies
        self._read: frozenset[str] = frozenset()
        self._rereading = False

    @property
    def filtered(self) -> frozenset[Requester]:
        """The filter list: components whose requests are not read."""
        return self.dependencies.filtered

    def requesters_of(self, instance: TopicInstance) -> Collection[str] | None:
        """Return whose requests are read: those of components that depend on this one."""
        return self._read if instance.kind is self.READS else super().requesters_of(instance)

    async def required(self, component: str, names: Names) -> None:
        """Take what a component requires; nothing if it left, or if its lease has run out."""
        self.depend(self.dependencies.require((self.settings.domain, component), names))

    async def departed(self, component: str) -> None:
        """Forget what a component requires that has crashed."""
        await self.required(component, frozenset())

    async def returned(self, sample: VerifiedSample) -> None:
        """Take again what a component requires that is back."""
        await self.received(sample)

    def depend(self, change: FilterChange) -> None:
        """Read the requests of other components from now on."""
        if (change.read or change.drop) and not self._rereading:
            self._rereading = True
            self._begin("reading the requests of other components", self._reread())

    async def _reread(self) -> None:
        """Follow the dependencies. What several components require at the same time is one change."""
        try:
            while (wanted := frozenset(name for _, name in self.dependencies.read)) != self._read:
                before, self._read = self._read, wanted
                try:
                    await self.reread(self.READS)
                except PenstockError as error:
                    self._read = before
                    self._note(error)
                    await self._clock.sleep(self._verifier.lifespan)
        finally:
            self._rereading = False

    async def close(self) -> None:
        """Close all topics, and forget what others require."""
        self.dependencies = DependencyList(self.dependencies.provided, self.dependencies.meet)
        self._read = frozenset()
        await super().close()
