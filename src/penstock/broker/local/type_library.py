"""The event types of a broker: signed definitions by name, verified again when a credential they depend on ends."""

from collections.abc import Callable, Iterator
from datetime import datetime

from penstock.broker.evolution.statements import refuse_reserved
from penstock.broker.limits import BrokerLimits
from penstock.errors import LimitError, PenstockError, RefusedError
from penstock.model.names import NetworkName, TypeKey, TypeName
from penstock.model.types import Protection, Sealing
from penstock.model.values import AttributeSpec, Schema
from penstock.trust.caches import CertificateCache, TypeCache
from penstock.trust.discovery import OnlineChecker, no_online_checker
from penstock.trust.event_types import UnverifiedType, VerifiedType


class Library:
    """See the module. Parents and previous versions are looked up among the installed types.

    `changed` is called when a type was added or removed.
    """

    def __init__(
        self,
        network: NetworkName | None = None,
        changed: Callable[[], None] = lambda: None,
        *,
        online: OnlineChecker = no_online_checker,
        certificates: CertificateCache | None = None,
        limits: BrokerLimits,
    ) -> None:
        self._definitions: dict[TypeName, UnverifiedType] = {}
        self._limits = limits
        self._cache = TypeCache(
            network=network,
            types=self._definitions.get,
            online=online,
            certificates=certificates or CertificateCache(limits.cache_entries),
            entries=limits.cache_entries,
        )
        #: the types whose ancestors have been one of these, however that may have changed since
        self._below: dict[TypeKey, set[TypeName]] = {}
        self._protected: dict[TypeKey, Protection] = {}
        #: how often a type was added or removed
        self.changes = 0
        #: the types of which at least one version is blinded
        self.blinded: set[TypeKey] = set()
        #: changes when a blinded type is added or removed
        self.revision = 0
        self._changed = changed

    def recheck(self) -> None:
        """Verify all types again when they are needed: on-line tests have other results."""
        self._cache.forget()

    def certificates(self) -> frozenset[str]:
        """Return the certificates that came with types."""
        definitions = self._definitions.values()
        return frozenset(one.id for definition in definitions for one in definition.credentials.certificates)

    def __len__(self) -> int:
        return len(self._definitions)

    def __contains__(self, name: TypeName) -> bool:
        return name in self._definitions

    def add(self, unverified: UnverifiedType, now: datetime) -> VerifiedType:
        """Add a type that verifies. Adding the same type again changes nothing.

        Raises what `verify_type` raises, `RefusedError` (`broker.type-exists`) for another definition under a name that
        is in use, `broker.reserved-type`, and `LimitError` (`broker.types`).
        """
        name = unverified.definition.name
        refuse_reserved(name.name)
        known = self._definitions.get(name)
        if known is not None and known.fingerprint != unverified.fingerprint:
            raise RefusedError(
                "broker.type-exists",
                f"`{name.name}` version {name.version} is here already, with another definition",
                hint="make a new version",
            )
        if known is None and len(self) >= self._limits.broker_types:
            raise LimitError("broker.types", f"a broker serves at most {self._limits.broker_types} types")
        verified = self._cache.verify(unverified, now)
        self._definitions[name] = unverified
        for key in (verified.event_type.key, *verified.event_type.ancestors):
            self._below.setdefault(key, set()).add(name)
        self._protected.clear()
        self.changes += 1
        self._look_at(name.key)
        self._changed()
        return verified

    def remove(self, name: TypeName) -> None:
        """Remove a type, if it is installed."""
        self._definitions.pop(name, None)
        for names in self._below.values():
            names.discard(name)
        self._protected.clear()
        self.changes += 1
        self._look_at(name.key)
        self._changed()

    def _look_at(self, key: TypeKey) -> None:
        """Record whether a type is blinded after it was added or removed."""
        before = key in self.blinded
        self.blinded.discard(key)
        versions = (self._definitions[name].definition for name in self._below.get(key, ()) if name.key == key)
        if any(version.blinded for version in versions):
            self.blinded.add(key)
        self.revision += before or key in self.blinded

    def get(self, name: TypeName, now: datetime) -> VerifiedType:
        """Return a type. Raises `RefusedError` (`broker.unknown-type`) and what `verify_type` raises."""
        return self._cache.verify(self._definition(name), now)

    def _definition(self, name: TypeName) -> UnverifiedType:
        definition = self._definitions.get(name)
        if definition is None:
            raise RefusedError(
                "broker.unknown-type",
                f"`{name.name}` version {name.version} is not known here",
                hint="check its name; its owner installs it with `penstock net install` or `Client.add_type`",
            )
        return definition

    def __iter__(self) -> Iterator[TypeKey]:
        """Yield the installed types, without their versions, and their ancestors."""
        return iter(self._below)

    def sealing(self, key: TypeKey) -> Sealing:
        """Return how events of a type are sealed: as the strictest installed version says."""
        return self.protection(key).sealing

    def is_of(self, key: TypeKey, above: TypeKey) -> bool:
        """Say whether events of a type count as events of another type that they claim to extend.

        For a type that is not sealed the claim is believed, also if the extending type is not installed here. For a
        sealed type the extending type must be installed: otherwise anybody could forge events of it.
        """
        if key == above or self.sealing(above) is Sealing.NONE:
            return True
        return any(name.key == key for name in self._below.get(above, ()))

    def protection(self, key: TypeKey) -> Protection:
        """Return the protection of a type's events: sealed as `sealing` says, and signed if one version is."""
        found = self._protected.get(key)
        if found is None:
            named = (self._definitions[name].definition for name in self._below.get(key, ()) if name.key == key)
            versions = [(definition.sealing, definition.signed) for definition in named]
            levels = {sealing for sealing, _ in versions}
            level = next((level for level in (Sealing.ATTRIBUTE, Sealing.EVENT) if level in levels), Sealing.NONE)
            found = Protection(level, any(signed for _, signed in versions))
            if versions:
                self._protected[key] = found
        return found

    def definitions(self, name: TypeName) -> list[UnverifiedType]:
        """Return the definition of a type after those that it depends on: parents and previous versions.

        Raises `RefusedError` (`broker.unknown-type`) if the type is not installed.
        """
        found: dict[TypeName, UnverifiedType] = {}
        self._collect(self._definition(name), found, set())
        return list(found.values())

    def _collect(self, one: UnverifiedType, found: dict[TypeName, UnverifiedType], begun: set[TypeName]) -> None:
        made = one.definition
        if made.name in begun:
            return
        begun.add(made.name)
        previous = None if made.previous is None else TypeName(made.name.owner, made.name.name, made.previous)
        for needed in (made.extends, previous):
            if needed is not None and needed in self._definitions:
                self._collect(self._definitions[needed], found, begun)
        found[made.name] = one

    def below(self, key: TypeKey, now: datetime) -> Iterator[VerifiedType]:
        """Yield every version of the sub-types of a type, and of the type itself, that is valid now; parents first."""
        found: list[VerifiedType] = []
        for name in sorted(self._below.get(key, ())):
            try:
                found.append(self._cache.verify(self._definitions[name], now))
            except PenstockError:
                # It was valid when it was added: a credential that it depends on has ended, and all rights on it.
                continue
        return iter(sorted(found, key=lambda verified: len(verified.event_type.ancestors)))

    def known(self, key: TypeKey, now: datetime | None) -> Iterator[VerifiedType]:
        """Yield the same as `below`, or nothing without a time."""
        return iter(()) if now is None else self.below(key, now)

    def schema(self, key: TypeKey, now: datetime) -> Schema:
        """Return the attributes of a type and its sub-types in all versions, by id."""
        specs: dict[str, AttributeSpec] = {}
        for verified in self.below(key, now):
            specs.update({str(attribute.id): attribute.spec for attribute in verified.event_type.attributes})
        return specs
