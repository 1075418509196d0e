"""What components that ask have in common, and components that answer."""

from collections.abc import Collection
from typing import ClassVar

from penstock.authority.components.component import Component
from penstock.authority.components.dependencies import DependencyList, FilterChange, Names, Requester
from penstock.authority.components.samples import ComponentSample, Configuration, SampleContent
from penstock.authority.components.topics import TopicInstance, TopicKind, component_key
from penstock.authority.components.verification import VerifiedSample
from penstock.errors import RefusedError
from penstock.fabric import KeyChoice, KeysUnder


class RequestingComponent(Component):
    """A component that writes requests: to all topics of its write-list, because repliers may read any of them."""

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
    #: what it provides, and what others require; the kinds set it
    dependencies: DependencyList

    @property
    def filtered(self) -> frozenset[Requester]:
        """The filter list: components whose requests are not read."""
        return self.dependencies.filtered

    def keys_of(self, instance: TopicInstance) -> Collection[KeyChoice] | None:
        """Return the keys to read: of requests, only those of components that depend on this one."""
        if instance.kind is self.READS:
            return [KeysUnder(component_key(*one)) for one in self.dependencies.read]
        return super().keys_of(instance)

    async def required(self, component: str, names: Names) -> None:
        """Take what a component requires; nothing if it left, or if its lease has run out.

        Raises as `TopicSubscription.add`.
        """
        await self.refilter_by(self.dependencies.require((self.settings.domain, component), names))

    async def refilter_by(self, change: FilterChange) -> None:
        """Read the requests of other components from now on. Raises as `TopicSubscription.add`."""
        for instance, reader in [*self._readers.items()]:
            if instance.kind is self.READS:
                for one in change.read:
                    await reader.add(KeysUnder(component_key(*one)))
                for one in change.drop:
                    await reader.drop(KeysUnder(component_key(*one)))
