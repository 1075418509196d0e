"""A domain as it is now, read from CONF without being a PAP, and what a plan would change in it.

`read_live_domain` folds what the PAPs have written to CONF: the components that have joined, their roles and topics,
and the configuration of each role that somebody has taken. `role_differences` compares it with the roles of a plan.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from penstock.authority.components.administration.registry import AdministrationSettings, DomainRegistry
from penstock.authority.components.administration.specification import specified_policies
from penstock.authority.components.exchange.certificates import ComponentCertificate
from penstock.authority.components.exchange.samples import (
    Configuration,
    DomainCheckpoint,
    PolicyText,
    ReconfigurationPlan,
    RoleConfiguration,
    Withdrawal,
)
from penstock.authority.components.exchange.topics import TopicInstance, TopicKind, topic_name
from penstock.authority.components.exchange.verification import SampleVerifier
from penstock.errors import PenstockError
from penstock.fabric import Fabric


@dataclass(frozen=True, slots=True)
class LiveDomain:
    """What PAPs have written to CONF, taken together."""

    #: the configuration number
    number: int
    components: Mapping[str, ComponentCertificate]
    #: the configuration of each role that a component has taken, or that a reconfiguration has changed
    roles: Mapping[str, RoleConfiguration]
    #: by reconfiguration under way: its expected time
    pending: Mapping[int, float]
    #: samples on CONF that are not genuine, or do not fit
    refused: int = 0
    #: the ids of policies that PSPs have specified
    specified: frozenset[str] = frozenset()
    #: components that PAPs have missed and that have not joined again: the code, and when their roles ended
    missed: Mapping[str, tuple[str, float]] = field(default_factory=dict)


async def read_live_domain(fabric: Fabric, settings: AdministrationSettings, now: float) -> LiveDomain:
    """Read a domain from the fabric. Raises `RefusedError` (`fabric.unknown-topic`) if it never ran there."""
    conf = TopicInstance(TopicKind.CONF)
    verifier = SampleVerifier(settings.domain, settings.administrators, settings.levels.lifespan)
    registry = DomainRegistry(settings)
    roles: dict[str, RoleConfiguration] = {}
    refused = 0
    specified: set[str] = set()
    missed: dict[str, tuple[str, float]] = {}
    for sample in await fabric.state(topic_name(settings.domain, conf)):
        try:
            data = registry.opened(str(conf), sample.data)
            found = verifier.verify(data, conf, sample.key, sample.writer, now)
            state = registry.follow(found.record, found.time)
            match found.record:
                case Configuration() as answer:
                    if answer.certificate:
                        missed.pop(answer.id, None)
                        certificate = registry.members[answer.id].certificate
                        roles[certificate.role_name] = registry.recorded_row(answer)
                case ReconfigurationPlan() as plan:
                    specified |= set() if plan.specified is None else {plan.specified.policy}
                    for role, row in plan.roles.items():
                        roles.pop(role, None)
                        if row is not None:
                            roles[role] = row
                case Withdrawal() as withdrawal:
                    missed |= {id_: (code, found.time) for id_, code in withdrawal.missed.items()}
                case DomainCheckpoint() if state is not None:
                    roles = dict(registry.table)
                    specified |= specified_policies(state.extension)
        except PenstockError:
            refused += 1
    return LiveDomain(
        registry.number,
        {id_: member.certificate for id_, member in sorted(registry.members.items())},
        roles,
        {number: progress.plan.expected for number, progress in registry.progress.items()},
        refused,
        frozenset(specified),
        {id_: one for id_, one in sorted(missed.items()) if id_ not in registry.members},
    )


@dataclass(frozen=True, slots=True)
class RoleDifference:
    """What a plan changes for the components of one role."""

    role: str
    #: the components that have it now
    components: tuple[str, ...]
    #: its new configuration; None if it ends
    after: RoleConfiguration | None
    #: what changes, in words
    changes: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        return {
            "role": self.role,
            "components": [*self.components],
            "ends": self.after is None,
            "changes": [*self.changes],
        }


def role_differences(live: LiveDomain, planned: Mapping[str, RoleConfiguration]) -> list[RoleDifference]:
    """Return what a plan changes in a domain, by role. Roles that nobody has taken yet are new.

    A policy whose text is the same keeps its change time. Policies that PSPs have specified stay.
    """
    holders: dict[str, list[str]] = {}
    for id_, certificate in live.components.items():
        holders.setdefault(certificate.role_name, []).append(id_)
    found: list[RoleDifference] = []
    for role in sorted({*live.roles, *planned}):
        before, after = live.roles.get(role), planned.get(role)
        if after is not None and before is not None:
            after = _continued(before, after, live.specified)
        changes = tuple(_changes(before, after))
        if changes:
            found.append(RoleDifference(role, tuple(holders.get(role, ())), after, changes))
    return found


def _continued(before: RoleConfiguration, after: RoleConfiguration, specified: frozenset[str]) -> RoleConfiguration:
    known = {(one.id, one.revision): one for one in before.policies}
    planned = [known.get((one.id, one.revision), one) for one in after.policies]
    ids = {one.id for one in planned}
    others = [one for one in before.policies if one.id in specified and one.id not in ids]
    return msgspec.structs.replace(after, policies=(*planned, *others))


def _changes(before: RoleConfiguration | None, after: RoleConfiguration | None) -> list[str]:
    if before is None:
        return ["the role is new"]
    if after is None:
        return ["the role ends"]
    found: list[str] = []
    if before.kind != after.kind:
        found.append(f"the role is one of {after.kind}s, no longer of {before.kind}s")
    for verb in ("write", "read"):
        old, new = set(getattr(before, verb)), set(getattr(after, verb))
        found += [f"it can {verb} {one}" for one in sorted(new - old)]
        found += [f"it can no longer {verb} {one}" for one in sorted(old - new)]
    for what, old_values, new_values in (
        ("combining algorithm for", before.combining, after.combining),
        ("priority of", before.priorities, after.priorities),
    ):
        for name in sorted({*old_values, *new_values}):
            old_value, new_value = old_values.get(name), new_values.get(name)
            if old_value != new_value:
                found.append(f"the {what} {name} is {_said(new_value)}, no longer {_said(old_value)}")
    olds: dict[str, PolicyText] = {one.id: one for one in before.policies}
    news: dict[str, PolicyText] = {one.id: one for one in after.policies}
    found += [f"policy {one} is added" for one in sorted(news.keys() - olds.keys())]
    found += [f"policy {one} is removed" for one in sorted(olds.keys() - news.keys())]
    both = sorted(olds.keys() & news.keys())
    found += [f"policy {one} changes" for one in both if olds[one].revision != news[one].revision]
    if not found and before.policies != after.policies:
        found.append("the order of its policies changes")
    return found


def _said(value: object) -> str:
    return "not given" if value is None else f"`{value}`"
