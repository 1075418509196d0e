"""A domain of authorization components for bench_components, and its processes.

`python components_parts.py <role> <fabric> …` says when it is ready. A role is `pdp` or `pip`, a component of the
domain, `raw`, which answers signed bytes with signed bytes, or `readers`, which read requests of others.
"""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from penstock.authority.components.administration import AdministrationComponent
from penstock.authority.components.component import ComponentSettings
from penstock.authority.components.decision import DecisionComponent
from penstock.authority.components.enforcement import EnforcementComponent
from penstock.authority.components.information import InformationComponent
from penstock.authority.components.information_sources import EntityTable, FunctionAttributes
from penstock.authority.components.registry import AdministrationSettings
from penstock.authority.components.samples import AttributeQuery, PolicyText, RoleConfiguration
from penstock.authority.components.topics import ComponentKind, TopicKind, TopicLevels, qos_of
from penstock.authority.decisions.questions import RESOURCE_TYPE, AccessQuestion
from penstock.crypto import SigningKey
from penstock.errors import PenstockError
from penstock.fabric import EmbeddedFabric, Fabric, FileKeeper, Sample, SystemClock
from penstock.fabric.nats import NatsFabric
from penstock.policy.language.requests import ACTION_ID

DOMAIN: Final = "bank"
PAP: Final = SigningKey(bytes([51]) * 32)
RAW: Final = (SigningKey(bytes([52]) * 32), SigningKey(bytes([53]) * 32))
SIGNATURE: Final = 64
LEVELS: Final = TopicLevels(lifespan=30.0)
_KINDS: Final = {"ER": ComponentKind.PEP, "DR": ComponentKind.PDP, "IR": ComponentKind.PIP}
_ROLES: Final = "\n".join(f"role {name}(n: integer); activate {name}(1); activate {name}(2);" for name in _KINDS)
_HEAD: Final = f"""namespace bench {{
    attribute sort {{ category = resource id = "{RESOURCE_TYPE}" type = string }}
    attribute does {{ category = action id = "{ACTION_ID}" type = string }}
    attribute rank {{ category = subject id = "rank" type = integer }}
"""


def _policy(name: str, sort: str) -> PolicyText:
    text = f"""{_HEAD} policy {name} {{ apply deny-overrides target clause sort == "{sort}"
        rule look {{ permit target clause does == "look" }}
        rule withdraw {{ permit target clause does == "withdraw" condition rank > 3 }} }} }}"""
    return PolicyText(name, "1", 1.0, text.encode())


def table(answers: int = 1) -> Mapping[str, RoleConfiguration]:
    """Return the roles: DR(1) decides about accounts, and DR(2) about loans. A PEP waits for so many answers."""
    read, write = ("RPDP_1", "QPEP_1", "DREQ_1", "IREP_1"), ("APDP_1", "QPDP_1", "DREP_1", "IREQ_1")
    mode = "first" if answers == 1 else f"n:{answers}"
    return {
        "ER(1)": RoleConfiguration("PEP", ("APEP_1", "QPEP_1", "DREQ_1"), ("RPEP_1", "DREP_1"), {"decision": mode}),
        "DR(1)": RoleConfiguration("PDP", write, read, policies=(_policy("accounts", "account"),)),
        "DR(2)": RoleConfiguration("PDP", write, read, policies=(_policy("loans", "loan"),)),
        "IR(1)": RoleConfiguration("PIP", ("APIP_1", "IREP_1"), ("RPIP_1", "QPDP_1", "IREQ_1")),
    }


def question(action: str = "look") -> AccessQuestion:
    return AccessQuestion.of(("user", "alice"), action, ("account", "7"))


def report(error: PenstockError) -> None:
    print(f"{error}", file=sys.stderr, flush=True)


def administration(fabric: Fabric, answers: int = 1) -> AdministrationComponent:
    settings = AdministrationSettings(
        domain=DOMAIN,
        id="pap",
        administrators=frozenset({PAP.principal}),
        roles=_ROLES,
        table=table(answers),
        levels=LEVELS,
    )
    return AdministrationComponent(fabric, PAP, settings, note=report)


def _settings(name: str, role: str) -> ComponentSettings:
    kind, administrators = _KINDS[role[:2]], frozenset({PAP.principal})
    return ComponentSettings(domain=DOMAIN, id=name, kind=kind, role=role, administrators=administrators, levels=LEVELS)


def _key(name: str) -> SigningKey:
    return SigningKey(name.encode().ljust(32, b"."))


def enforcement(fabric: Fabric, of: type[EnforcementComponent] = EnforcementComponent) -> EnforcementComponent:
    return of(fabric, _key("pep"), _settings("pep", "ER(1)"), actions=frozenset({"account/*"}), note=report)


def decision(
    fabric: Fabric, name: str = "pdp", role: str = "DR(1)", of: type[DecisionComponent] = DecisionComponent
) -> DecisionComponent:
    return of(fabric, _key(name), _settings(name, role), note=report)


def information(fabric: Fabric) -> InformationComponent:
    async def rank(_query: AttributeQuery) -> Mapping[str, object]:
        return {"rank": 5}

    source = FunctionAttributes(rank, EntityTable("subject", "user", {"rank": "rank"}), SystemClock())
    return InformationComponent(fabric, _key("pip"), _settings("pip", "IR(1)"), sources=[source], note=report)


def memory() -> EmbeddedFabric:
    return EmbeddedFabric(keeper=FileKeeper(Path(":memory:")))


async def connect(address: str) -> Fabric:
    """Return a fabric by the address of its server, or of its DDS domain."""
    if address.startswith("dds:"):
        from penstock.fabric.dds import DdsFabric  # noqa: PLC0415  # it needs an extra

        return await DdsFabric.connect(address)
    return await NatsFabric.connect(address, prefix="components")


async def answer_raw(fabric: Fabric, size: int) -> None:
    """Answer signed bytes with so many signed bytes, on topics with the same quality of service."""
    asks, answers = RAW
    for topic in ("raw-requests", "raw-answers"):
        await fabric.declare(topic, qos_of(TopicKind.DREQ, LEVELS))
    writer, body = await fabric.publisher("raw-answers", instance="raw"), bytes(size - SIGNATURE)

    async def answer(sample: Sample) -> None:
        asks.public.verify(sample.data[SIGNATURE:], sample.data[:SIGNATURE])
        await writer.publish(answers.sign(body) + body, key=sample.key)

    await fabric.subscribe("raw-requests", instances=["raw"], callback=answer)


async def main(role: str, address: str, *words: str) -> None:
    async with await connect(address) as fabric:
        parts: dict[str, Any] = {"pdp": decision, "pip": information}
        if role in parts:
            await parts[role](fabric).join()
        elif role == "raw":
            await answer_raw(fabric, int(words[0]))
        else:
            for number in range(int(words[0])):
                await fabric.subscribe(f"{DOMAIN}-DREQ_1", instances=[f"other{number}"], callback=_ignore)
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def _ignore(_sample: Sample) -> None:
    pass


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
