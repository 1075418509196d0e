"""Capabilities from role privileges (paper 5, section 6.1): what active roles permit, as certificates to issue.

A domain issues a short-lived capability for each privilege of an active role, renews it while the role is active, and
revokes it when the role ends. Each has a purpose that names the role's record and the privilege, so that services that
share a domain agree on which ones there are. Privileges to appoint are not capabilities: the role engine enforces them.

Privileges name attributes, and certificates contain their ids. So a capability also covers versions of the type in
which the same attribute has another name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Final

from penstock.codec.sexp import canonical
from penstock.errors import MalformedError, PenstockError
from penstock.model.names import TypeKey, TypeName
from penstock.model.principals import Principal
from penstock.model.types import EventType
from penstock.roles.engine import (
    GroundEventPrivilege,
    GroundNetworkPrivilege,
    HeldPrivilege,
    RoleEngine,
)
from penstock.roles.language import EVENT
from penstock.selector import ALWAYS
from penstock.trust.capabilities import BoundSelector, event_tag, network_tag
from penstock.trust.event_types import VerifiedType
from penstock.trust.tags import Tag, to_sexp

ROLE: Final = "role "
"""How the purposes of capabilities from roles begin."""


@dataclass(frozen=True, slots=True)
class RoleCapability:
    """A capability that an active role calls for, until the role must end."""

    purpose: str
    holder: Principal
    tag: Tag
    until: datetime | None


@dataclass(frozen=True, slots=True)
class RoleCapabilities:
    """The capabilities of all active roles, and the privileges that cannot be capabilities, with the reason."""

    capabilities: tuple[RoleCapability, ...] = ()
    problems: tuple[PenstockError, ...] = ()


def role_capabilities(engine: RoleEngine, types: Mapping[TypeName, VerifiedType]) -> RoleCapabilities:
    """Return the capabilities of all active roles at the engine's time. Raises `LimitError` (`role.search`)."""
    found: dict[str, RoleCapability] = {}
    problems: list[PenstockError] = []
    for principal in sorted(set(engine.sessions().values())):
        for held in engine.privileges(principal):
            try:
                for tag in _tags(held, types):
                    digest = sha256(canonical(to_sexp(tag))).hexdigest()[:16]
                    purpose = f"{ROLE}{held.record.name} {held.record.id} {digest}"
                    found[purpose] = RoleCapability(purpose, principal, tag, held.record.until)
            except PenstockError as error:
                problems.append(error)
    return RoleCapabilities(tuple(found.values()), tuple(problems))


def _tags(held: HeldPrivilege, types: Mapping[TypeName, VerifiedType]) -> Iterator[Tag]:
    match held.privilege:
        case GroundNetworkPrivilege(right, network):
            if held.when != ALWAYS:
                raise MalformedError(
                    "acs.role-condition",
                    f"role `{held.record.name}` has a right on a network that depends on the time of day",
                    hint="give the condition to the role, not to the right",
                )
            yield network_tag(network.owner, network.name, [right])
        case GroundEventPrivilege() as privilege:
            if privilege.asks:
                raise MalformedError(
                    "acs.role-predicate",
                    f"role `{held.record.name}` has a right that depends on predicate `{privilege.asks[0].name}`, which"
                    " only brokers evaluate, and certificates cannot name",
                    hint="use a predicate with a selector, or let brokers use the roles directly",
                )
            when = () if held.when == ALWAYS else (held.when.text,)
            if not privilege.below and privilege.attributes is None and not privilege.forced and not _used(privilege):
                yield event_tag(privilege.owner, privilege.types, None, [privilege.right], when=when)
                return
            covered = {
                one.event_type.key: one.event_type for one in types.values() if _covers(privilege, one.event_type)
            }
            if not covered:
                raise MalformedError(
                    "acs.role-type",
                    f"role `{held.record.name}` has a right on `{privilege.types}`, which the service does not know",
                    hint="add the file of the type to `types` in the domain file",
                )
            for event_type in covered.values():
                yield _bound(privilege, event_type, when)


def _used(privilege: GroundEventPrivilege) -> list[str]:
    return sorted(attribute.removeprefix(EVENT) for attribute in privilege.where.attributes)


def _covers(privilege: GroundEventPrivilege, event_type: EventType) -> bool:
    if privilege.below:
        return TypeKey(privilege.owner, privilege.types) in (event_type.key, *event_type.ancestors)
    name = event_type.name
    if name.owner != privilege.owner:
        return False
    return name.name.startswith(privilege.types[:-1]) if privilege.types.endswith("*") else name.name == privilege.types


def _bound(privilege: GroundEventPrivilege, event_type: EventType, when: tuple[str, ...]) -> Tag:
    """Return a right with its attributes bound to their ids, so that renaming one changes nothing."""
    name, used = event_type.name, _used(privilege)
    # `attribute` raises for one that the type does not have. Listed ones are left out, as brokers do with roles.
    forced = {event_type.attribute(attribute).id: value for attribute, value in privilege.forced}
    bindings = {attribute: event_type.attribute(attribute).id for attribute in used}
    where = privilege.where.rename({EVENT + attribute: attribute for attribute in used})
    listed = privilege.attributes
    return event_tag(
        name.owner,
        name.name,
        None,
        [privilege.right],
        attributes=None
        if listed is None
        else [event_type.by_name[one].id for one in listed if one in event_type.by_name],
        forced=forced,
        where=[BoundSelector(where, bindings)] if used else [],
        when=when,
    )
