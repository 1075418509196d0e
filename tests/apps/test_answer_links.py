"""Decisions over three paths, two fabrics, one and several points, which are killed and restarted in between."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from tests.authority.decisions.kit import OWNER, PEP, Policies, grant

from penstock.apps import answer_links
from penstock.apps.answer_links import AnswerLinks
from penstock.authority.decisions.coverage import resources
from penstock.authority.decisions.decision_point import PolicyDecisionPoint
from penstock.authority.decisions.enforcement_point import AskPath, EnforcementPoint, PointAddress
from penstock.authority.decisions.messages import AnswerEffect, PolicyRevision
from penstock.authority.decisions.modes import FIRST, AnswerMode
from penstock.authority.decisions.questions import AccessQuestion
from penstock.authority.decisions.rights import DecisionRights
from penstock.crypto import SigningKey
from penstock.errors import PenstockError
from penstock.fabric import EmbeddedFabric, Fabric
from penstock.fabric.nats import NatsFabric
from penstock.model.instants import parse_instant
from penstock.policy.language.results import XacmlDecision
from penstock.testing.fabric_suite import refused
from penstock.testing.nats import NatsServer
from penstock.trust.capabilities import DecisionRight
from penstock.trust.credentials import Credentials

KEYS = tuple(SigningKey(bytes([number]) * 32) for number in range(20, 23))
CERTIFICATES = Credentials.of(*map(grant, KEYS), grant(PEP, DecisionRight.ASK))
FIRST_POLICY = PolicyRevision("reports", "1", parse_instant("2026-01-01"))
SECOND_POLICY = PolicyRevision("reports", "2", parse_instant("2026-01-02"))
BEFORE = {"1": XacmlDecision.PERMIT, "2": XacmlDecision.DENY}
AFTER = {"1": XacmlDecision.DENY, "2": XacmlDecision.PERMIT}
PATIENT, HASTY = 50.0, 0.2
_PREFIXES = count()


def document(name: str) -> AccessQuestion:
    return AccessQuestion.of(("user", "alice"), "read", ("document", name))


@dataclass
class World:
    """Decision points that come and go, and enforcement points that ask them."""

    path: AskPath
    fabric: Callable[[], Any]
    stack: AsyncExitStack
    running: dict[SigningKey, AsyncExitStack] = field(default_factory=dict)
    ports: dict[SigningKey, int] = field(default_factory=dict)

    def rights(self) -> DecisionRights:
        return DecisionRights(OWNER.principal, CERTIFICATES)

    async def start(self, key: SigningKey, decisions: dict[str, XacmlDecision], policy: PolicyRevision) -> None:
        stack = self.running[key] = AsyncExitStack()
        links = AnswerLinks(key, OWNER.principal, "127.0.0.1", self.ports.get(key, 0))
        await stack.enter_async_context(links)
        self.ports[key] = int(links.address.rpartition(":")[2])
        fabric = None if self.path is AskPath.DIRECT else await self.fabric()
        source = Policies(decisions, policy, covers=resources(("document", None)))
        await stack.enter_async_context(
            PolicyDecisionPoint(fabric, key, source, rights=self.rights(), links=links, lifetime=60)
        )

    async def kill(self, key: SigningKey) -> None:
        await self.running.pop(key).aclose()

    async def pep(self, timeout: float = PATIENT, mode: AnswerMode = FIRST) -> EnforcementPoint:
        links = await self.stack.enter_async_context(AnswerLinks(PEP, OWNER.principal, "127.0.0.1"))
        points = [PointAddress(f"127.0.0.1:{port}", key.principal) for key, port in self.ports.items()]
        fabric = None if self.path is AskPath.DIRECT else await self.fabric()
        return await self.stack.enter_async_context(
            EnforcementPoint(
                fabric, PEP, self.rights(), path=self.path, timeout=timeout, mode=mode, links=links, points=points
            )
        )

    async def close(self) -> None:
        for key in [*self.running]:
            await self.kill(key)


def play(path: AskPath, server: NatsServer | None, test: Callable[[World], Any]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(120), AsyncExitStack() as stack:
            prefix, shared = f"suite{next(_PREFIXES)}", EmbeddedFabric()

            async def opened() -> Fabric:
                if server is None:
                    return shared
                return await stack.enter_async_context(await NatsFabric.connect(server.url, prefix=prefix))

            await stack.enter_async_context(shared)
            world = World(path, opened, stack)
            try:
                await test(world)
            finally:
                await world.close()

    asyncio.run(whole())


@pytest.fixture(params=["embedded", "nats"])
def nats(request: pytest.FixtureRequest, server: NatsServer) -> NatsServer | None:
    return server if request.param == "nats" else None


@pytest.mark.parametrize("number", [1, 3], ids=["one", "several"])
@pytest.mark.parametrize("path", AskPath)
def test_points_are_killed_and_restarted(path: AskPath, nats: NatsServer | None, number: int) -> None:
    async def test(world: World) -> None:
        keys = KEYS[:number]
        for key in keys:
            await world.start(key, BEFORE, FIRST_POLICY)
        point, hasty = await world.pep(), await world.pep(HASTY)
        all_of_them = await world.pep(mode=AnswerMode.parse(f"n:{number}"))
        for each in (point, all_of_them):
            decisions = await asyncio.gather(*(each.ask(document(name)) for name in ("1", "2", "3")))
            assert [decision.effect for decision in decisions] == ["Permit", "Deny", "NotApplicable"]
        # The last one is enough.
        for key in keys[:-1]:
            await world.kill(key)
            assert (await point.ask(document("1"))).permits()
        await world.kill(keys[-1])
        with refused("pep.unreachable" if path is AskPath.DIRECT else "pep.no-answer"):
            await hasty.ask(document("1"))
        # They come back, one with the old policies and the last with others: the newest wins.
        for key in keys[:-1]:
            await world.start(key, BEFORE, FIRST_POLICY)
        await world.start(keys[-1], AFTER, SECOND_POLICY)
        decision = await all_of_them.ask(document("1"))
        assert (decision.effect, decision.disagreed) == (AnswerEffect.DENY, number > 1)
        assert all_of_them.counts["disagreements"] == (number > 1)
        # The enforcement point has seen newer policies, so that the old ones do not count any more.
        if number == 1:
            await world.kill(keys[0])
            await world.start(keys[0], BEFORE, FIRST_POLICY)
            compares = await world.pep(HASTY, AnswerMode.parse("n:1"))
            compares._newest.update(all_of_them._newest)
            with refused("pep.not-believed"):
                await compares.ask(document("1"))

    play(path, nats, test)


@pytest.mark.parametrize("path", [AskPath.DIRECT, AskPath.STRAIGHT_BACK])
def test_a_link_is_only_to_the_principal_at_the_address(path: AskPath) -> None:
    async def test(world: World) -> None:
        await world.start(KEYS[0], BEFORE, FIRST_POLICY)
        point = await world.pep(HASTY)
        assert (await point.ask(document("1"))).permits()
        if path is AskPath.DIRECT:
            # Somebody else at the address of the decision point gets no request.
            await world.kill(KEYS[0])
            world.ports[KEYS[1]] = world.ports[KEYS[0]]
            await world.start(KEYS[1], BEFORE, FIRST_POLICY)
            with refused("pep.unreachable"):
                await point.ask(document("1"))
            return
        # Somebody else at the address in a request gets no answer.
        errors: list[PenstockError] = []
        heard: list[bytes] = []
        async with AnswerLinks(KEYS[1], OWNER.principal, "127.0.0.1") as thief:
            thief.listen(lambda _principal, data, _reply: heard.append(data))
            async with AnswerLinks(PEP, OWNER.principal, "127.0.0.1", shown=thief.address) as links:
                fabric = await world.fabric()
                async with EnforcementPoint(
                    fabric, PEP, world.rights(), path=path, timeout=HASTY, links=links, note=errors.append
                ) as robbed:
                    with refused("pep.no-answer"):
                        await robbed.ask(document("2"))
        assert heard == []

    play(path, None, test)


def test_addresses_of_others_are_checked() -> None:
    async def whole() -> None:
        async with AnswerLinks(PEP, OWNER.principal) as links:
            assert links.address == ""
            for wrong in ("", "host", "host:", "host:x", ":1", "host:0", "host:70000"):
                with refused("pep.address"):
                    await links.send(wrong, KEYS[0].principal, b"")
            with refused("link.unreachable"):
                await links.send("127.0.0.1:1", KEYS[0].principal, b"")

    asyncio.run(whole())


def test_who_names_one_address_after_another_displaces_only_its_own_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_links, "_MOST", 4)
    monkeypatch.setattr(answer_links, "_MOST_OF_ONE", 2)

    async def whole() -> None:
        async with (
            AnswerLinks(KEYS[0], OWNER.principal, "127.0.0.1") as here,
            AnswerLinks(PEP, OWNER.principal) as links,
        ):
            await links.send(here.address, KEYS[0].principal, b"")
            for port in range(1, 7):
                with refused("link.unreachable"):
                    await links.send(f"127.0.0.1:{port}", KEYS[1].principal, b"")
            assert (here.address, KEYS[0].principal) in links._kept
            assert len(links._kept) == 3

    asyncio.run(whole())


def test_points_of_other_owners_are_not_let_in() -> None:
    async def whole() -> None:
        async with (
            AnswerLinks(KEYS[0], OWNER.principal, "127.0.0.1") as here,
            AnswerLinks(PEP, PEP.principal) as stranger,
        ):
            with pytest.raises(PenstockError):
                await stranger.send(here.address, KEYS[0].principal, b"hello")

    asyncio.run(whole())
