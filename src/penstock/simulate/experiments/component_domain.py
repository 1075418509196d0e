"""A domain of 1,046 authorization components, as Table 5 of paper 4 has it, run by the real components in virtual time.

The paper gives the numbers of instances and how many components of each kind there are in the end. Here each rule lets
components take one role with one topics-list. Enforcement roles have the combining algorithms and priorities, and
decision roles the policies. Topics have several instances: roles of one group talk to each other.
"""

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from penstock.authority.components.administration.administration_point import AdministrationComponent
from penstock.authority.components.administration.registry import AdministrationSettings
from penstock.authority.components.exchange.samples import AttributeQuery, PolicyText, RoleConfiguration
from penstock.authority.components.exchange.topics import CONCEPTUAL_ROLES, ComponentKind, TopicLevels
from penstock.authority.components.information.sources import EntityTable, FunctionAttributes
from penstock.authority.components.points.component import Component, ComponentSettings
from penstock.authority.components.points.decision import DecisionComponent
from penstock.authority.components.points.enforcement import EnforcementComponent
from penstock.authority.components.points.information import InformationComponent
from penstock.authority.components.points.log_point import LogComponent
from penstock.authority.decisions.questions import RESOURCE_TYPE
from penstock.crypto import SigningKey
from penstock.errors import PenstockError
from penstock.fabric import EmbeddedFabric, FileKeeper
from penstock.policy.language.requests import ACTION_ID
from penstock.roles.engine import SetFact
from penstock.simulate.simulation import Simulation

Member: TypeAlias = tuple[str, ComponentKind, int]
"""The name of a component, its kind, and the number of its role."""

_DOMAIN: Final = "uls"
_KINDS: Final = (ComponentKind.PEP, ComponentKind.PDP, ComponentKind.PIP, ComponentKind.PLP)
_LEVELS: Final = TopicLevels(lifespan=30.0, lease=60.0)
#: virtual seconds between two components that start, and until everything that can join has joined
_APART, _JOINING = 0.02, 120.0


@dataclass(frozen=True, slots=True)
class DomainSize:
    """How many components of each kind join, and how many roles each kind has. Defaults are those of Table 5."""

    components: tuple[int, ...] = (479, 285, 187, 93)
    roles: tuple[int, ...] = (120, 100, 60, 40)
    #: components that ask for a role which no rule lets them have
    rejected: int = 2
    #: components that leave again
    left: int = 1
    reconfigurations: int = 20
    #: groups of roles that talk to each other
    groups: int = 20

    @property
    def total(self) -> int:
        """How many components ask to join."""
        return sum(self.components) + self.rejected


@dataclass(slots=True)
class DomainOutcome:
    """How it ended: components by kind and by what became of them, times, and how much was exchanged."""

    joined: Counter[ComponentKind] = field(default_factory=Counter)
    #: by kind: when each joined, in virtual seconds
    joins: dict[ComponentKind, list[float]] = field(default_factory=lambda: {kind: [] for kind in _KINDS})
    left: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    waiting: int = 0
    #: virtual seconds until the last one had joined, and seconds of the processor that it took
    conf_seconds: float = 0.0
    conf_processor: float = 0.0
    #: reconfigurations that all have applied, and virtual seconds of the slowest one
    reconfigured: int = 0
    reconf_seconds: float = 0.0
    reconf_processor: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    trace: str = ""


def role_table(size: DomainSize) -> dict[str, RoleConfiguration]:
    """Return the configuration of each role: topics-list, combining algorithm, priorities and policies."""
    found = {}
    for kind, roles in zip(_KINDS, size.roles, strict=True):
        for number in range(1, roles + 1):
            found[f"{CONCEPTUAL_ROLES[kind]}({number})"] = _role(kind, number, (number - 1) % size.groups + 1)
    return found


def _role(kind: ComponentKind, number: int, group: int, version: int = 1) -> RoleConfiguration:
    def topics(*names: str) -> tuple[str, ...]:
        return tuple(f"{name}_{group}" for name in names)

    if kind is ComponentKind.PEP:
        write, read = topics("APEP", "QPEP", "DREQ"), topics("RPEP", "DREP")
        return RoleConfiguration(kind, write, read, {"decision": f"n:{(number - 1) % 3 + version}"}, {_DOMAIN: number})
    if kind is ComponentKind.PDP:
        write, read = topics("APDP", "QPDP", "DREP", "IREQ"), topics("RPDP", "QPEP", "DREQ", "IREP")
        return RoleConfiguration(kind, write, read, policies=(_policy(number, version),))
    if kind is ComponentKind.PIP:
        return RoleConfiguration(kind, topics("APIP", "IREP"), topics("RPIP", "QPDP", "IREQ"))
    return RoleConfiguration(kind, topics("APLP"), topics("RPLP", "DREQ", "DREP"))


def _policy(number: int, version: int) -> PolicyText:
    text = f"""namespace uls {{
    attribute sort {{ category = resource id = "{RESOURCE_TYPE}" type = string }}
    attribute does {{ category = action id = "{ACTION_ID}" type = string }}
    attribute rank {{ category = subject id = "rank" type = integer }}
    policy p{number} {{ apply deny-overrides target clause sort == "sort{number}"
        rule look {{ permit target clause does == "look" }}
        rule change {{ permit target clause does == "change" condition rank > {version} }} }} }}"""
    return PolicyText(f"p{number}", str(version), float(version), text.encode())


def role_rules(size: DomainSize) -> str:
    """Return the OASIS policy: one rule for each role, which facts let components satisfy."""
    lines = ["fact admitted(who: principal, role: string, n: integer);"]
    lines += [f"role {CONCEPTUAL_ROLES[kind]}(n: integer);" for kind in _KINDS]
    lines += [
        f"activate {role}({number}) if fact admitted(principal, '{role}', {number}) *;"
        for role, roles in ((CONCEPTUAL_ROLES[kind], roles) for kind, roles in zip(_KINDS, size.roles, strict=True))
        for number in range(1, roles + 1)
    ]
    return "\n".join(lines)


def members(size: DomainSize) -> Iterator[Member]:
    """Yield those that may join: the name, the kind and the number of the role of each."""
    for kind, many, roles in zip(_KINDS, size.components, size.roles, strict=True):
        for number in range(many):
            yield f"{kind.lower()}{number}", kind, number % roles + 1


def component_key(name: str) -> SigningKey:
    """Return the key of a component."""
    return SigningKey(name.encode().ljust(32, b"."))


def component_settings(name: str, kind: ComponentKind, number: int) -> ComponentSettings:
    """Return the settings of a component that asks for the role of a number."""
    return ComponentSettings(
        domain=_DOMAIN,
        id=name,
        kind=kind,
        role=f"{CONCEPTUAL_ROLES[kind]}({number})",
        administrators=frozenset({component_key("pap").principal}),
        levels=_LEVELS,
    )


def administration_settings(size: DomainSize, admitted: Iterable[Member]) -> AdministrationSettings:
    """Return the settings of a PAP that admits these members."""
    facts = [
        SetFact("admitted", True, (str(component_key(name).principal), CONCEPTUAL_ROLES[kind], number))
        for name, kind, number in admitted
    ]
    return AdministrationSettings(
        domain=_DOMAIN,
        id="pap",
        administrators=frozenset({component_key("pap").principal}),
        roles=role_rules(size),
        table=role_table(size),
        founding=tuple(facts),
        levels=_LEVELS,
    )


class ComponentDomain:
    """The domain in a simulation."""

    def __init__(self, size: DomainSize, simulation: Simulation, folder: Path) -> None:
        self._size, self._simulation, self._folder = size, simulation, folder
        # Latencies do not matter for what is counted.
        self._fabric = EmbeddedFabric(
            clock=simulation.clock("fabric"),
            random=simulation.random("fabric").randbytes,
            keeper=FileKeeper(Path(":memory:")),
        )
        self._joined: dict[str, Component] = {}
        self.outcome = DomainOutcome()

    async def configure(self) -> AdministrationComponent:
        """Run the conf process: let all join, and some leave again. Return the PAP."""
        size, outcome, clock = self._size, self.outcome, self._simulation
        pap = await self._administration()
        asked = [*members(size), *((f"stranger{n}", ComponentKind.PEP, 3) for n in range(size.rejected))]
        for name, kind, number in asked:
            self._simulation.start(name, self._take_part(name, kind, number))
            await asyncio.sleep(_APART)
        end = clock.time + _JOINING
        while self._ended < size.total and clock.time < end:
            await asyncio.sleep(0.1)
        outcome.waiting = size.total - self._ended
        for name in [f"pep{n}" for n in range(size.left)]:
            await self._joined.pop(name).leave()
            outcome.left += 1
            outcome.joined[ComponentKind.PEP] -= 1
        return pap

    async def reconfigure(self, pap: AdministrationComponent) -> None:
        """Reconfigure roles one after the other, and wait until all have applied each."""
        roles = [f"DR({n % self._size.roles[1] + 1})" for n in range(self._size.reconfigurations)]
        for version, role in enumerate(roles, start=2):
            number = int(role[3:-1])
            began = self._simulation.time
            changed = _role(ComponentKind.PDP, number, (number - 1) % self._size.groups + 1, version)
            await pap.base_time(await pap.reconfigure({role: changed}))
            self.outcome.reconfigured += 1
            self.outcome.reconf_seconds = max(self.outcome.reconf_seconds, self._simulation.time - began)

    @property
    def _ended(self) -> int:
        return self.outcome.joined.total() + self.outcome.rejected.total()

    async def _administration(self) -> AdministrationComponent:
        settings = administration_settings(self._size, members(self._size))
        pap = AdministrationComponent(self._fabric, component_key("pap"), settings, **self._around("pap"))
        await self._simulation.start("pap", pap.join())
        return pap

    def _around(self, process: str) -> dict[str, Any]:
        return {"clock": self._simulation.clock(process), "random": self._simulation.random(process).randbytes}

    async def _take_part(self, name: str, kind: ComponentKind, number: int) -> None:
        component = self._component(name, kind, number)
        try:
            await component.join()
        except PenstockError as error:
            self.outcome.rejected[error.code] += 1
            self._simulation.note(name, "rejected", code=error.code)
            return
        self.outcome.joined[kind] += 1
        self.outcome.joins[kind].append(self._simulation.time)
        self._joined[name] = component
        self._simulation.note(name, "joined", of=str(kind))

    def _component(self, name: str, kind: ComponentKind, number: int) -> Component:
        settings = component_settings(name, kind, number)
        fabric, key, around = self._fabric, component_key(name), self._around(name)
        around["note"] = self._count
        if kind is ComponentKind.PEP:
            return EnforcementComponent(fabric, key, settings, actions=frozenset({f"sort{number}/*"}), **around)
        if kind is ComponentKind.PDP:
            return DecisionComponent(fabric, key, settings, **around)
        if kind is ComponentKind.PIP:
            source = FunctionAttributes(_rank, EntityTable("subject", "user", {"rank": "rank"}), around["clock"])
            return InformationComponent(fabric, key, settings, sources=[source], **around)
        return LogComponent(fabric, key, settings, self._folder / name, **around)

    def _count(self, error: PenstockError) -> None:
        self.outcome.counts[error.code] += 1


async def _rank(query: AttributeQuery) -> dict[str, object]:
    return {"rank": len(query.id)}


def run_domain(size: DomainSize, seed: int = 1) -> DomainOutcome:
    """Run the conf process of a domain, and then its reconfigurations."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        simulation = stack.enter_context(Simulation(seed))
        domain = ComponentDomain(size, simulation, folder)
        start = time.process_time()
        pap = simulation.run(domain.configure())
        domain.outcome.conf_processor = time.process_time() - start
        domain.outcome.conf_seconds = simulation.log[-1].at
        start = time.process_time()
        simulation.run(domain.reconfigure(pap))
        domain.outcome.reconf_processor = time.process_time() - start
        domain.outcome.trace = simulation.trace
        return domain.outcome
