"""A domain with its PAP, for tests of components."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from penstock.authority.components.administration.administration_point import AdministrationComponent
from penstock.authority.components.administration.registry import AdministrationSettings
from penstock.authority.components.exchange.samples import Configuration, RoleConfiguration
from penstock.authority.components.exchange.topics import CONCEPTUAL_ROLES
from penstock.authority.components.exchange.verification import VerifiedSample
from penstock.authority.components.points.component import Component, ComponentSettings
from penstock.crypto import SigningKey
from penstock.errors import PenstockError
from penstock.fabric import Clock, EmbeddedFabric, Fabric, FileKeeper
from penstock.roles.engine import SetFact

PAP_KEY, SECOND_PAP_KEY, STRANGER = (SigningKey(bytes([number]) * 32) for number in (201, 202, 203))
ROLES: Final = """
role ER(n: integer);
role DR(n: integer);
role IR(n: integer);
role LR(n: integer);
role SR(n: integer);
fact admitted(who: principal, role: string, n: integer);
activate ER(n) if fact admitted(principal, 'ER', n) *;
activate DR(n) if fact admitted(principal, 'DR', n) *;
activate IR(n) if fact admitted(principal, 'IR', n) *;
activate LR(n) if fact admitted(principal, 'LR', n) *;
activate SR(n) if fact admitted(principal, 'SR', n) *;
"""
TABLE: Final[Mapping[str, RoleConfiguration]] = {
    "ER(1)": RoleConfiguration("PEP", ("APEP_1", "QPEP_1", "DREQ_1"), ("RPEP_1", "DREP_1"), {"decision": "first"}),
    "DR(1)": RoleConfiguration(
        "PDP", ("APDP_1", "QPDP_1", "DREP_1", "IREQ_1"), ("RPDP_1", "QPEP_1", "DREQ_1", "IREP_1")
    ),
    "IR(1)": RoleConfiguration("PIP", ("APIP_1", "IREP_1"), ("RPIP_1", "QPDP_1", "IREQ_1")),
    "LR(1)": RoleConfiguration("PLP", ("APLP_1",), ("RPLP_1", "DREQ_1", "DREP_1")),
    "SR(1)": RoleConfiguration("PSP", ("SPOL_1",), ("APOL_1",)),
}
KINDS: Final = {role: kind for kind, role in CONCEPTUAL_ROLES.items()}


def key_of(name: str) -> SigningKey:
    """Return the key of a component in tests."""
    return SigningKey(name.encode().ljust(32, b"."))


def memory_fabric(clock: Clock | None = None, **named: Any) -> EmbeddedFabric:
    """Return a fabric whose persistent topics are in memory."""
    return EmbeddedFabric(clock=clock, keeper=FileKeeper(Path(":memory:")), **named)


def admitted(name: str, role: str) -> SetFact:
    """Return the fact that lets a component have a role."""
    of, _, number = role.partition("(")
    return SetFact("admitted", True, (str(key_of(name).principal), of, int(number[:-1])))


def administration(*names: tuple[str, str], **changed: Any) -> AdministrationSettings:
    """Return settings of a PAP that admits components with their roles."""
    values: dict[str, Any] = {
        "domain": "bank",
        "id": "pap1",
        "administrators": frozenset({PAP_KEY.principal, SECOND_PAP_KEY.principal}),
        "roles": ROLES,
        "table": TABLE,
        "founding": tuple(admitted(*one) for one in names),
        **changed,
    }
    return AdministrationSettings(**values)


class Recorder(Component):
    """A component that records what happens to it."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.seen: list[VerifiedSample] = []
        self.configurations: list[Configuration] = []
        self.again: list[int] = []
        self.ends: list[PenstockError] = []

    async def received(self, sample: VerifiedSample) -> None:
        """Record the sample."""
        self.seen.append(sample)

    async def configured(self, configuration: Configuration) -> None:
        """Record the configuration."""
        self.configurations.append(configuration)

    async def superseded(self, numbers: list[int]) -> None:
        """Record the numbers."""
        self.again += numbers

    async def lost(self, error: PenstockError) -> None:
        """Record the loss."""
        self.ends.append(error)


def recorder(fabric: Fabric, name: str, of_kind: str, clock: Clock | None = None, **changed: Any) -> Recorder:
    """Return a component of the kind that has such roles; its name is its id, and gives its key."""
    named = {one: changed.pop(one) for one in ("note", "key", "beside") if one in changed}
    values: dict[str, Any] = {
        "domain": "bank",
        "id": name,
        "kind": KINDS[of_kind.partition("(")[0]],
        "role": of_kind,
        "administrators": frozenset({PAP_KEY.principal, SECOND_PAP_KEY.principal}),
        **changed,
    }
    key = named.pop("key", key_of(name))
    return Recorder(fabric, key, ComponentSettings(**values), clock=clock, **named)


def pap(
    fabric: Fabric, settings: AdministrationSettings, clock: Clock | None = None, **named: Any
) -> AdministrationComponent:
    """Return a PAP."""
    return AdministrationComponent(fabric, named.pop("key", PAP_KEY), settings, clock=clock, **named)
