"""A domain of authorization components for bench_components, and its processes.

`python components_parts.py <role> <fabric> …` says when it is ready. A role is `domain`, the PAP and the enforcement
point, which asks as often, and as many questions at a time, as each line on standard input says; `pdp` or `pip`,
another component of the domain; `quiet`, a `pdp` that prints nothing; `loans`, many decision points about loans; `raw`,
which answers signed bytes with signed bytes; or `attack`, a component that writes as many hostile samples as each line
says.
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

from penstock.authority.components.administration.administration_point import AdministrationComponent
from penstock.authority.components.administration.registry import AdministrationSettings
from penstock.authority.components.exchange.samples import (
    AttributeQuery,
    ComponentSample,
    Configuration,
    DecisionReply,
    DecisionRequest,
    PolicyText,
    Reconfiguration,
    RoleConfiguration,
    SampleContent,
    read_sample,
    sample_bytes,
    sample_key,
)
from penstock.authority.components.exchange.topics import ComponentKind, TopicKind, TopicLevels, qos_of
from penstock.authority.components.information.sources import EntityTable, FunctionAttributes
from penstock.authority.components.points.component import ComponentSettings
from penstock.authority.components.points.decision import DecisionComponent
from penstock.authority.components.points.enforcement import EnforcementComponent
from penstock.authority.components.points.information import InformationComponent
from penstock.authority.decisions.decision_point import Note, quiet
from penstock.authority.decisions.messages import AnswerEffect
from penstock.authority.decisions.questions import RESOURCE_TYPE, AccessQuestion
from penstock.crypto import SigningKey
from penstock.errors import PenstockError
from penstock.fabric import EmbeddedFabric, Fabric, FileKeeper, Publisher, Sample, SystemClock
from penstock.fabric.envelope import MICROSECONDS
from penstock.fabric.nats import NatsFabric
from penstock.policy.language.requests import ACTION_ID

DOMAIN: Final = "bank"
PAP: Final = SigningKey(bytes([51]) * 32)
RAW: Final = (SigningKey(bytes([52]) * 32), SigningKey(bytes([53]) * 32))
SIGNATURE: Final = 64
LEVELS: Final = TopicLevels(lifespan=30.0)
#: components of one process that join at a time
_TOGETHER: Final = 16
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


def administration(fabric: Fabric, answers: int = 1, note: Note = report) -> AdministrationComponent:
    settings = AdministrationSettings(
        domain=DOMAIN,
        id="pap",
        administrators=frozenset({PAP.principal}),
        roles=_ROLES,
        table=table(answers),
        levels=LEVELS,
    )
    return AdministrationComponent(fabric, PAP, settings, note=note)


def _settings(name: str, role: str) -> ComponentSettings:
    kind, administrators = _KINDS[role[:2]], frozenset({PAP.principal})
    return ComponentSettings(domain=DOMAIN, id=name, kind=kind, role=role, administrators=administrators, levels=LEVELS)


def key_of(name: str) -> SigningKey:
    return SigningKey(name.encode().ljust(32, b"."))


def enforcement(
    fabric: Fabric, of: type[EnforcementComponent] = EnforcementComponent, note: Note = report
) -> EnforcementComponent:
    return of(fabric, key_of("pep"), _settings("pep", "ER(1)"), actions=frozenset({"account/*"}), note=note)


def decision(
    fabric: Fabric,
    name: str = "pdp",
    role: str = "DR(1)",
    of: type[DecisionComponent] = DecisionComponent,
    note: Note = report,
) -> DecisionComponent:
    return of(fabric, key_of(name), _settings(name, role), note=note)


def information(fabric: Fabric) -> InformationComponent:
    async def rank(_query: AttributeQuery) -> Mapping[str, object]:
        return {"rank": 5}

    source = FunctionAttributes(rank, EntityTable("subject", "user", {"rank": "rank"}), SystemClock())
    return InformationComponent(fabric, key_of("pip"), _settings("pip", "IR(1)"), sources=[source], note=report)


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


class Attacker:
    """A decision point for loans that attacks the enforcement point, the other decision point, and the PAP.

    By turns: it writes junk, a forged configuration, a request, which is outside its list, a reply as the other
    decision point, and the oldest reconfiguration once more. No topic is sealed, and the fabric lets everybody write.
    """

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._acts: Iterator[tuple[Publisher, bytes, str]] = iter(())
        self._made = 0.0

    async def start(self) -> None:
        """Join, read nothing from then on, and take the certificate of the other decision point from its samples."""
        joined = decision(self._fabric, "mallory", "DR(2)", note=quiet)
        await joined.join()
        if joined.configuration is None:
            raise RuntimeError("the attacker has lost its role")
        self._own, self._number = joined.configuration.certificate, joined.number
        await joined.close()
        self._writers = {
            topic: await self._fabric.publisher(f"{DOMAIN}-{topic}", instance=instance)
            for topic, instance in (("DREQ_1", "pep"), ("DREP_1", "pep"), ("RPDP_1", ""))
        }
        self._writers["CONF_1"] = await self._fabric.publisher(f"{DOMAIN}-CONF_1", strength=9)
        required = await self._fabric.state(f"{DOMAIN}-QPDP_1")
        found = [read_sample(one.data) for one in required]
        self._stolen = next(one.certificate for one in found if one.sample.id == "pdp")
        plans = await self._fabric.state(f"{DOMAIN}-RPDP_1")
        self._old = next(one for one in plans if isinstance(read_sample(one.data).sample.content, Reconfiguration))

    async def attack(self, many: int) -> None:
        """Write so many samples. What is signed is made again when its time is nearly over."""
        if time.time() > self._made + LEVELS.lifespan / 3:
            self._made = time.time()
            self._acts = cycle(self._prepare())
        for writer, data, key in islice(self._acts, many):
            await writer.publish(data, key=key)

    def _prepare(self) -> list[tuple[Publisher, bytes, str]]:
        mine, asked = key_of("mallory"), question()
        reply = DecisionReply(DOMAIN, "pep", 1, asked.digest, AnswerEffect.PERMIT)
        fake = Configuration(DOMAIN, "pep", 9, refusal="role.denied")
        acts: list[tuple[str, str, bytes, SampleContent]] = [
            ("DREQ_1", "mallory", self._own, DecisionRequest.of(asked)),
            ("DREP_1", "pdp", self._stolen, reply),
            ("CONF_1", "pap", read_sample(self._old.data).certificate, fake),
        ]
        made = [(self._writers["DREQ_1"], b"junk", "junk"), (self._writers["RPDP_1"], self._old.data, self._old.key)]
        for topic, id_, certificate, content in acts:
            number = round(self._made * MICROSECONDS)
            sample = ComponentSample(DOMAIN, topic, id_, number, self._made, self._number, content)
            made.append((self._writers[topic], sample_bytes(sample, certificate, mine), sample_key(sample)))
        return made


async def lead(address: str) -> None:
    """Be the PAP and the enforcement point of a domain, and over DDS also its keeper."""
    async with AsyncExitStack() as stack:
        if address.startswith("dds:"):
            from penstock.fabric.dds_keeper import DdsKeeper  # noqa: PLC0415  # it needs an extra

            await stack.enter_async_context(await DdsKeeper.open(address, file=Path(":memory:")))
        await stack.enter_async_context(administration(await stack.enter_async_context(await connect(address))))
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)  # a decision point has joined
        pep = await stack.enter_async_context(enforcement(await stack.enter_async_context(await connect(address))))
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            turns, together = map(int, line.split())
            print(json.dumps([await seconds_of(pep, together) for _ in range(turns)]), flush=True)


async def seconds_of(pep: EnforcementComponent, together: int) -> float:
    """Return the seconds for so many questions at a time. All must be permitted."""
    began = time.perf_counter()
    for decided in await asyncio.gather(*(pep.decide(question()) for _ in range(together))):
        if decided.effect is not AnswerEffect.PERMIT:
            raise RuntimeError(f"a question was decided otherwise: {decided.effect}")
    return time.perf_counter() - began


async def main(role: str, address: str, *words: str) -> None:
    if role == "domain":
        await lead(address)
        return
    async with await connect(address) as fabric:
        parts: dict[str, Any] = {"pdp": decision, "pip": information, "quiet": partial(decision, note=quiet)}
        if role in parts:
            await parts[role](fabric).join()
        elif role == "attack":
            await (attacker := Attacker(fabric)).start()
            print("ready", flush=True)
            while line := await asyncio.to_thread(sys.stdin.readline):
                await attacker.attack(int(line))
            return
        elif role == "raw":
            await answer_raw(fabric, int(words[0]))
        else:
            numbers = range(*map(int, words))
            for at in range(0, len(numbers), _TOGETHER):
                points = [decision(fabric, f"loans{one}", "DR(2)") for one in numbers[at : at + _TOGETHER]]
                await asyncio.gather(*(one.join() for one in points))
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
