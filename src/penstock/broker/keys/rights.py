"""Who may manage, hold and read the keys of a group, and for how long. `decide()` alone decides that.

A broker presents the same capabilities as for publishing and subscribing (section 7.6). A request and its decision
entitle a broker to a key under these rules:

1. The request names this broker, this type, and a right that needs the key. `route` does not need it: a broker that
   only carries events cannot read them.
2. The right covers all events, because a key opens all of them. A right that depends on values, guards, the
   environment or an online test does not count. Such conditions apply to clients, at their brokers.
3. The broker has a right on every served version of the type, because all versions share their keys.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from penstock.broker.core.core import Core
from penstock.broker.local.requests import settled
from penstock.broker.wire.protocol import LABELS
from penstock.errors import RefusedError
from penstock.guard import EventRequest, Recorded
from penstock.guard.decision import Decision
from penstock.guard.environment import environment_schema
from penstock.guard.restriction import Branch
from penstock.model.names import AttributeId, TypeKey, TypeName
from penstock.model.principals import Principal
from penstock.model.types import Sealing
from penstock.selector import ALWAYS as TRUE
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import VerifiedType
from penstock.trust.key_statements import NOT_BROKER, KeyGroup
from penstock.trust.refusals import LackedRight

# ----------------------------------------------------------------------------------------------------------------------
# Who may hold the key of a group, and for how long: decided by `decide()` alone.


Grounds: TypeAlias = Iterable[tuple[EventRequest, Decision]]
"""The requests that were decided about a broker, each with its decision."""

MEMBERS: Final = frozenset((Right.PUBLISH, Right.SUBSCRIBE))
READERS: Final = frozenset((Right.HISTORY,))
PUBLISHERS: Final = frozenset((Right.PUBLISH,))


@dataclass(frozen=True, slots=True)
class KeyEntitlement:
    """The time in which a right is valid without a break. Both ends are included; None means no bound."""

    since: datetime | None = None
    until: datetime | None = None

    def covers(self, instant: datetime) -> bool:
        """Return whether the right was already valid at an earlier time."""
        return self.since is None or self.since <= instant

    def expired(self, now: datetime) -> bool:
        """Return whether the right has ended."""
        return self.until is not None and now > self.until


def entitlement(  # noqa: PLR0913  # each argument is one of the facts that a right rests on
    grounds: Grounds,
    broker: Principal,
    group: KeyGroup,
    served: Collection[TypeName],
    now: datetime,
    *,
    rights: frozenset[Right] = MEMBERS,
) -> KeyEntitlement:
    """Return the time in which a broker is entitled to a key. `served` are the served versions of the type.

    Raises `RefusedError` (`keys.not-entitled`).
    """
    versions = _by_version(grounds, broker, group, now, rights)
    # (3) A version without a decision counts as refused.
    if not served or not all(versions.get(version) for version in served):
        raise RefusedError(
            "keys.not-entitled",
            f"{broker.short} does not present a right to this key of `{group.type.name}`",
            hint="grant it a right on the attribute in all versions, without conditions",
        )
    found = [_longest(versions[version]) for version in served]
    begins = [one.since for one in found if one.since is not None]
    ends = [one.until for one in found if one.until is not None]
    return KeyEntitlement(max(begins, default=None), min(ends, default=None))


def _by_version(
    grounds: Grounds, broker: Principal, group: KeyGroup, now: datetime, rights: frozenset[Right]
) -> Mapping[TypeName, list[Branch]]:
    found: dict[TypeName, list[Branch]] = {}
    for request, decision in grounds:
        # (1) A decision on another request does not count.
        name = request.type.event_type.name
        if request.principal != broker or name.key != group.type or request.action not in rights:
            continue
        branches = found.setdefault(name, [])
        branches += [branch for branch in decision.restriction.branches if _opens(branch, request, group, now)]
    return found


def _opens(branch: Branch, request: EventRequest, group: KeyGroup, now: datetime) -> bool:
    """Return whether a branch covers all events now, and shows what the key opens (2)."""
    validity = branch.when.validity
    bare = branch.where == TRUE and branch.when.condition == TRUE and branch.only is None
    whole = bare and not (branch.forced or branch.guards)
    shown = group.attribute is None or branch.shows(group.attribute)
    return whole and shown and branch.action is request.action and not validity.online and validity.contains(now)


def _longest(branches: Iterable[Branch]) -> KeyEntitlement:
    """Return the time that branches cover which are all valid now: from the first start to the last end."""
    validities = [branch.when.validity for branch in branches]
    begins = [validity.starts for validity in validities]
    ends = [validity.ends for validity in validities]
    since = None if None in begins else min(filter(None, begins))
    return KeyEntitlement(since, None if None in ends else max(filter(None, ends)))


# ----------------------------------------------------------------------------------------------------------------------
# The credentials that key holders have presented, kept for as long as they hold keys.
#
# When policy changes, a manager decides again about each holder by its credentials. A holder that cannot be reached
# does not lose its right: its last credentials count until it presents others, they expire, or policy revokes them. A
# manager that has just started knows its holders only from its log, which says that they had a right and until when.
# They get some time to present credentials: `key_grace` if policy has changed since the start, otherwise as long as an
# epoch can last. After that a silent holder is decided about by policy alone, because its right may have been revoked
# while no manager was running.
#
# Each review costs some decisions, and in a starting network every broker presents credentials. If nothing else has
# changed, only brokers with new credentials are reviewed.


class KeyEvidence:
    """The credentials that key holders have presented. `begin` is called again after the log was read."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.begin()

    def begin(self) -> None:
        """Start with no credentials."""
        core = self._core
        self._sources = core.sources
        limits, now = core.settings.limits, core.now()
        self._grace = timedelta(milliseconds=limits.key_grace)
        self._longest = timedelta(milliseconds=limits.key_longest)
        self._shown: dict[Principal, Credentials] = {}
        self._disclosed: dict[Principal, Credentials] = {}
        self._by: tuple[object, int] | None = None
        #: holders without credentials, and since when that is known; and when the first of them must be reviewed
        self._silent: dict[Principal, datetime] = {}
        self._due: datetime | None = now

    def news(self) -> frozenset[Principal] | None:
        """Return the brokers with other credentials than at the last call; None if all must be reviewed."""
        core, before = self._core, self._disclosed
        by, self._disclosed = (core.sources, core.library.changes), dict(core.disclosed)
        changed = {who for who in {*before, *self._disclosed} if before.get(who) is not self._disclosed.get(who)}
        # If nothing has changed, a date was reached.
        everybody = by != self._by or not changed
        self._by = by
        return None if everybody else frozenset(changed)

    def look(self, holders: Iterable[Principal]) -> None:
        """Record the holders' current credentials, and forget those of brokers that hold no key any more."""
        disclosed, known = self._core.disclosed, self._shown
        shown = {broker: disclosed.get(broker, known.get(broker)) for broker in holders}
        self._shown = {broker: bag for broker, bag in shown.items() if bag is not None}

    def joined(self, broker: Principal) -> None:
        """Record the credentials of a broker that joins: it may have gone when `look` is called."""
        shown = self._core.disclosed.get(broker)
        if shown is not None:
            self._shown[broker] = shown

    def of(self, broker: Principal) -> Credentials:
        """Return a broker's last credentials."""
        return self._shown.get(broker, Credentials())

    def unseen(self, holders: Iterable[Principal]) -> frozenset[Principal]:
        """Return the holders that are not reviewed yet: they still have time to present credentials."""
        core, now, before = self._core, self._core.now(), self._silent
        silent = (broker for broker in holders if broker not in self._shown and broker != core.principal)
        self._silent = {broker: before.get(broker, now) for broker in silent}
        changed = core.sources != self._sources
        longest = self._grace if changed else self._longest
        ends = {broker: since + longest for broker, since in self._silent.items()}
        spared = {broker: until for broker, until in ends.items() if now < until}
        self._due = min(spared.values(), default=None)
        return frozenset(spared)

    @property
    def due(self) -> bool:
        """Whether a holder that has presented nothing must be reviewed now."""
        return self._due is not None and self._core.now() >= self._due


# ----------------------------------------------------------------------------------------------------------------------
# A node's decisions about keys, by its sources and the others' credentials: who manages, holds, and reads old ones.


_NOTHING: Final = Credentials()
#: the rights of members, in the order in which they are asked about
_IN_ORDER: Final = (Right.PUBLISH, Right.SUBSCRIBE)


class KeyClaims:
    """Decides who may manage a type's keys, hold them, and read old ones. Everything is asked of `decide()`."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def sealed(self, of_type: TypeKey | None = None) -> Iterator[VerifiedType]:
        """Yield all versions of all sealed types, or of one of them."""
        core = self._core
        for key in list(core.library) if of_type is None else [of_type]:
            for verified in core.library.below(key, core.now()):
                if verified.event_type.key == key and verified.event_type.sealing is not Sealing.NONE:
                    yield verified

    def attributes(self, of_type: TypeKey, name: str) -> set[AttributeId]:
        """Return the ids that an attribute has in the versions of a sealed type."""
        types = [one.event_type for one in self.sealed(of_type)]
        return {one.by_name[name].id for one in types if name in one.by_name}

    def attribute_name(self, group: KeyGroup) -> str:
        """Return the name of a group's attribute; an empty string for the group of a whole type."""
        if group.labels:
            return LABELS
        for verified in self.sealed(group.type):
            for attribute in verified.event_type.attributes:
                if attribute.id == group.attribute:
                    return attribute.name
        return "" if group.attribute is None else str(group.attribute)

    def served(self, of_type: TypeKey) -> tuple[TypeName, ...]:
        """Return the versions of a type whose groups are managed here."""
        core = self._core
        if not self.manages(core.now(), of_type, core.principal):
            return ()
        return tuple(one.event_type.name for one in self.sealed(of_type))

    def manages(self, _now: datetime, of_type: TypeKey, manager: Principal, shown: Credentials = _NOTHING) -> bool:
        """Return whether a principal may manage a type's keys: it is the owner, or has `keys` on all versions."""
        if manager == of_type.owner:
            return True
        versions = list(self.sealed(of_type))
        now = self._core.now()
        asked = (EventRequest(manager, Right.KEYS, verified, now) for verified in versions)
        return bool(versions) and all(settled(self._ask(request, shown).decision) for request in asked)

    def is_broker(self, broker: Principal, of_type: TypeKey, shown: Credentials = _NOTHING) -> bool:
        """Return whether a principal is a broker of the network and has `route` on a type.

        Its current credentials and those `shown` before count. Clients have no such right and get no keys: their
        brokers decide for them.
        """
        core = self._core
        if not core.is_broker(broker, shown):
            return False
        if broker == core.principal or core.overlay.may_route(core.now(), of_type, broker):
            return True
        asked = (EventRequest(broker, Right.ROUTE, verified, core.now()) for verified in self.sealed(of_type))
        return bool(len(shown)) and all(settled(self._ask(request, shown).decision) for request in asked)

    def joining(self, broker: Principal, group: KeyGroup) -> Grounds:
        """Yield the recorded decisions about a broker that asks to join.

        Raises `RefusedError`: `keys.not-broker`, and `keys.not-managed` for a group that the type does not have:
        a right to everything would otherwise open any number of groups for attributes that do not exist.
        """
        if not self.is_broker(broker, group.type):
            why = "it gets no keys: the coordinator must grant it `broker`, and the type's owner `route`"
            raise LackedRight(broker, Right.ROUTE, group.type).refuse(NOT_BROKER, why)
        if not any(group in groups_of(verified) for verified in self.sealed(group.type)):
            raise RefusedError(
                "keys.not-managed",
                f"this key manager does not know this key group of `{group.type.name}`",
                hint="give the manager the version of the type that has the attribute",
            )
        yield from self.decided(broker, group, _IN_ORDER)

    def grounds_of(self, group: KeyGroup, broker: Principal, shown: Credentials = _NOTHING) -> Grounds:
        """Yield unrecorded decisions about a broker, by its current credentials and those `shown` before."""
        if not self.is_broker(broker, group.type, shown):
            return
        for found, request in self._considered(broker, group, _IN_ORDER, shown):
            yield request, found.decision

    def decided(self, broker: Principal, group: KeyGroup, rights: Iterable[Right], shown: bytes = b"") -> Grounds:
        """Yield the recorded decisions about a broker that asks for a key. Raises what reading `shown` raises."""
        for found, request in self._considered(broker, group, rights, self._core.read_bag(shown)):
            self._core.recorder.write(found.record)
            yield request, found.decision

    def may_hold(self, broker: Principal, group: KeyGroup, look: "KeyLook | None" = None) -> bool:
        """Return whether a broker may hold the key of a group."""
        return self.right(broker, group, look) is not None

    def right(self, broker: Principal, group: KeyGroup, look: "KeyLook | None" = None) -> KeyEntitlement | None:
        """Return a broker's right to hold the key of a group, if it has one."""
        return self._entitlement(broker, group, (look or KeyLook(self)).grounds(group, broker), MEMBERS)

    def may_publish(self, broker: Principal, of_type: TypeKey, attributes: Iterable[str]) -> bool:
        """Return whether a broker may publish all events of a type with these attributes."""
        whole = KeyGroup(of_type)
        grounds = [(request, found.decision) for found, request in self._considered(broker, whole, PUBLISHERS)]
        groups = (whole, *(KeyGroup(of_type, AttributeId.parse(attribute)) for attribute in attributes))
        return all(self._is_entitled(broker, group, grounds, PUBLISHERS) for group in groups)

    def has_history(self, group: KeyGroup, who: Principal) -> bool:
        """Decide whether a principal may have keys of old epochs, and record the decision."""
        return self._is_entitled(who, group, self.decided(who, group, (Right.HISTORY,)), READERS)

    def _is_entitled(self, who: Principal, group: KeyGroup, grounds: Grounds, rights: frozenset[Right]) -> bool:
        return self._entitlement(who, group, grounds, rights) is not None

    def _entitlement(
        self, who: Principal, group: KeyGroup, grounds: Grounds, rights: frozenset[Right]
    ) -> KeyEntitlement | None:
        served = {one.event_type.name for one in self.sealed(group.type)}
        try:
            return entitlement(grounds, who, group, served, self._core.now(), rights=rights)
        except RefusedError:
            return None

    def _considered(
        self, broker: Principal, group: KeyGroup, rights: Iterable[Right], shown: Credentials = _NOTHING
    ) -> Iterator[tuple[Recorded, EventRequest]]:
        for verified in self.sealed(group.type):
            for right in rights:
                request = EventRequest(broker, right, verified, self._core.now())
                yield self._ask(request, shown), request

    def _ask(self, request: EventRequest, shown: Credentials) -> Recorded:
        core = self._core
        # This broker's own credentials are among the sources already.
        shown = core.disclosed.get(request.principal, _NOTHING) + shown
        authorities = core.sources.authorities(shown, environment_schema())
        return core.recorder.consider(request, authorities, core.sources.revision)


def groups_of(verified: VerifiedType) -> Iterator[KeyGroup]:
    """Yield the key groups of a sealed type."""
    event_type = verified.event_type
    yield KeyGroup(event_type.key)
    if event_type.blinded:
        yield KeyGroup(event_type.key, labels=True)
    if event_type.sealing is Sealing.ATTRIBUTE:
        for attribute in event_type.attributes:
            yield KeyGroup(event_type.key, attribute.id)


class KeyLook:
    """Remembers decisions during one review, so that each broker is decided about once for all groups of a type."""

    def __init__(self, claims: KeyClaims) -> None:
        self._claims = claims
        self._grounds: dict[tuple[TypeKey, Principal], Grounds] = {}

    def grounds(self, group: KeyGroup, broker: Principal, shown: Credentials = _NOTHING) -> Grounds:
        """Return the decisions of `KeyClaims.grounds_of`."""
        about = group.type, broker
        if about not in self._grounds:
            self._grounds[about] = list(self._claims.grounds_of(group, broker, shown))
        return self._grounds[about]
