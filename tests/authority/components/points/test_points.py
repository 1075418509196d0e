"""PEP, PDP and PIP together: a question is decided by the policies of the configuration, with information from PIPs."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import pytest
from tests.authority.components.kit import KINDS, PAP_KEY, TABLE, administration, key_of, memory_fabric, pap

from penstock.authority.components.administration.registry import AdministrationSettings
from penstock.authority.components.exchange.samples import (
    AttributeQuery,
    ConfigurationLease,
    DecisionReply,
    PolicyText,
    RequiredNames,
    RoleConfiguration,
)
from penstock.authority.components.exchange.topics import TopicInstance, TopicKind, TopicLevels
from penstock.authority.components.exchange.verification import VerifiedSample
from penstock.authority.components.information.sources import EntityTable, FunctionAttributes
from penstock.authority.components.points.component import Component, ComponentSettings
from penstock.authority.components.points.decision import DecisionComponent
from penstock.authority.components.points.enforcement import EnforcementComponent
from penstock.authority.components.points.information import InformationComponent
from penstock.authority.decisions.decision_point import quiet
from penstock.authority.decisions.messages import AnswerEffect
from penstock.authority.decisions.modes import AskedDecision
from penstock.authority.decisions.questions import RESOURCE_TYPE, AccessQuestion
from penstock.errors import FailedError, PenstockError, RefusedError
from penstock.fabric import FOREVER, Fabric, Priority, Sample, SystemClock
from penstock.fabric.nats import NatsFabric
from penstock.fabric.tasks import waited_for
from penstock.policy.combining import DecisionTuple
from penstock.policy.language.requests import ACTION_ID
from penstock.testing.fabric_suite import ManualClock, WrongClock
from penstock.testing.nats import NatsServer

P, D, NA, IN = AnswerEffect.PERMIT, AnswerEffect.DENY, AnswerEffect.NOT_APPLICABLE, AnswerEffect.INDETERMINATE
HEAD = f"""namespace t {{
    attribute sort {{ category = resource id = "{RESOURCE_TYPE}" type = string }}
    attribute does {{ category = action id = "{ACTION_ID}" type = string }}
    attribute rank {{ category = subject id = "rank" type = integer }}
    attribute owner {{ category = resource id = "owner" type = string }}
    attribute name {{ category = subject id = "urn:oasis:names:tc:xacml:1.0:subject:subject-id" type = string }}
"""


def policy(name: str, body: str, changed: float = 1.0, revision: str = "r1") -> PolicyText:
    return PolicyText(name, revision, changed, f"{HEAD} policy {name} {{ {body} }} }}".encode())


LOOK = policy("look", 'apply deny-overrides rule r { permit target clause sort == "account" and does == "look" }')
WITHDRAW = policy(
    "withdraw",
    """apply deny-overrides target clause sort == "account" and does == "withdraw"
       rule own { permit condition rank > 3 and owner == name }""",
)


C = TypeVar("C", bound=Component)


class Bank:
    """A domain whose clock stands still, and its components."""

    def __init__(
        self,
        stack: AsyncExitStack,
        fabric: Fabric,
        clock: Any,
        administered: AdministrationSettings,
    ) -> None:
        self.stack, self.fabric, self.clock = stack, fabric, clock
        self.notes: list[PenstockError] = []
        self.joining: Any = None
        self.administration = pap(fabric, administered, clock, note=self.notes.append)

    def settings(self, name: str, role: str) -> ComponentSettings:
        return ComponentSettings(
            domain="bank",
            id=name,
            kind=KINDS[role.partition("(")[0]],
            role=role,
            administrators=frozenset({PAP_KEY.principal}),
            levels=TopicLevels(lifespan=8.0),
            joining=self.joining,
        )

    async def pep(self, name: str = "pep1", role: str = "ER(1)", **named: Any) -> EnforcementComponent:
        made = EnforcementComponent(
            self.fabric, key_of(name), self.settings(name, role), clock=self.clock, note=self.notes.append, **named
        )
        return await self._joined(made)

    async def pdp(self, name: str = "pdp1", role: str = "DR(1)", key: str = "") -> DecisionComponent:
        made = DecisionComponent(
            self.fabric, key_of(key or name), self.settings(name, role), clock=self.clock, note=self.notes.append
        )
        return await self._joined(made)

    async def pip(
        self, name: str, *tables: tuple[str, str, Mapping[str, Any]], role: str = "IR(1)", key: str = ""
    ) -> InformationComponent:
        sources = [_source(of, kind, records, self.clock) for of, kind, records in tables]
        made = InformationComponent(
            self.fabric,
            key_of(key or name),
            self.settings(name, role),
            sources=sources,
            clock=self.clock,
            note=self.notes.append,
        )
        return await self._joined(made)

    async def _joined(self, component: C) -> C:
        await self.stack.enter_async_context(component)
        await settle()
        return component


def _source(of: str, kind: str, records: Mapping[str, Any], clock: ManualClock) -> FunctionAttributes:
    async def read(query: AttributeQuery) -> Mapping[str, object] | None:
        record = records.get(query.id)
        if isinstance(record, Exception):
            raise record
        return record if record is None else dict(record)

    names = {name for record in records.values() if isinstance(record, Mapping) for name in record}
    table = EntityTable(of, kind, {name: name for name in names - {"changed"}}, changed="changed")
    return FunctionAttributes(read, table, clock)


async def settle() -> None:
    for _ in range(60):
        await asyncio.sleep(0)


@asynccontextmanager
async def bank(
    *members: tuple[str, str], roles: Mapping[str, Any] | None = None, lease: float = FOREVER, **row: Any
) -> AsyncIterator[Bank]:
    clock = ManualClock()
    async with AsyncExitStack() as stack:
        fabric = await stack.enter_async_context(memory_fabric(clock))
        table = {**TABLE, **(roles or {}), **{f"{name}(1)": one for name, one in row.items()}}
        levels = TopicLevels(lifespan=8.0, lease=lease)
        made = Bank(stack, fabric, clock, administration(*members, table=table, levels=levels))
        await stack.enter_async_context(made.administration)
        yield made


def role(name: str, **changed: Any) -> RoleConfiguration:
    row = TABLE[f"{name}(1)"]
    return RoleConfiguration(row.kind, row.write, row.read, **changed)


def question(action: str = "look", kind: str = "account") -> AccessQuestion:
    return AccessQuestion.of(("user", "alice"), action, (kind, "7"))


async def over(clock: ManualClock, asking: Awaitable[AskedDecision]) -> AskedDecision:
    """Return what is decided when time passes."""
    task = asyncio.ensure_future(asking)
    for _ in range(20):
        await settle()
        if task.done():
            break
        await clock.advance(1.0)
    return await task


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await scenario()

    asyncio.run(bounded())


STAFF = ("subject", "user", {"alice": {"rank": 5, "changed": 100.0}})
ACCOUNTS = ("resource", "account", {"7": {"owner": "alice", "changed": 100.0}})
TRIO = (("pep1", "ER(1)"), ("pdp1", "DR(1)"), ("pip1", "IR(1)"))


def test_a_decision_without_information() -> None:
    async def scenario() -> None:
        async with bank(*TRIO, DR=role("DR", policies=(LOOK,))) as made:
            await made.pdp()
            pep = await made.pep()
            decision = await pep.decide(question())
            assert (decision.effect, len(decision.answers)) == (P, 1)
            rests = decision.answers[0].value.rests_on
            assert [(one.id, one.revision, one.changed.timestamp()) for one in rests] == [("look", "r1", 1.0)]
            assert decision.answers[0].value.point == key_of("pdp1").principal
            assert (await pep.decide(question("delete"))).effect is NA
            assert made.notes == []

    run(scenario)


def test_a_decision_with_information_in_one_round_trip() -> None:
    async def scenario() -> None:
        async with bank(*TRIO, DR=role("DR", policies=(LOOK, WITHDRAW))) as made:
            await made.pip("pip1", STAFF, ACCOUNTS)
            await made.pdp()
            pep = await made.pep()
            asked: list[Any] = []
            await made.fabric.subscribe("bank-IREQ_1", instances=None, callback=lambda sample: _record(asked, sample))
            assert (await pep.decide(question("withdraw"))).effect is P
            await settle()
            assert len(asked) == 1
            assert (await pep.decide(question("look"))).effect is P
            await settle()
            assert len(asked) == 1, "nothing is needed to look"
            assert made.notes == []

    run(scenario)


async def _record(into: list[Any], sample: Any) -> None:
    into.append(sample)


def test_information_that_does_not_come_is_indeterminate() -> None:
    async def scenario() -> None:
        async with bank(*TRIO, DR=role("DR", policies=(LOOK, WITHDRAW))) as made:
            await made.pdp()
            pep = await made.pep()
            decision = await over(made.clock, pep.decide(question("withdraw")))
            assert decision.effect is IN
            failing = ("subject", "user", {"alice": FailedError("component.source", "no"), "bob": {"rank": 1}})
            await made.pip("pip1", failing, ACCOUNTS)
            decision = await over(made.clock, pep.decide(question("withdraw")))
            assert decision.effect is IN
            assert "component.source" in {note.code for note in made.notes}

    run(scenario)


def test_who_has_not_opened_its_topics_yet_says_so() -> None:
    async def scenario() -> None:
        async with bank(*TRIO) as made:
            pep = await made.pep()
            await pep.leave()
            await made.clock.advance(1.0)
            prepare, asked = pep.prepare, []

            async def ask(configuration: Any) -> None:
                await prepare(configuration)
                with pytest.raises(RefusedError) as caught:
                    await pep.decide(question())
                asked.append(caught.value.code)

            pep.prepare = ask  # type: ignore[method-assign]
            await pep.join()
            assert asked == ["component.not-joined"]

    run(scenario)


def test_nobody_answers() -> None:
    async def scenario() -> None:
        async with bank(*TRIO) as made:
            pep = await made.pep()
            with pytest.raises(RefusedError, match=r"pep\.no-answer"):
                await over(made.clock, pep.decide(question()))
            waiting = asyncio.ensure_future(pep.decide(question()))
            await settle()
            await pep.close()
            with pytest.raises(RefusedError, match=r"component\.not-joined"):
                await waiting
            with pytest.raises(RefusedError, match=r"component\.not-joined"):
                await pep.decide(question())

    run(scenario)


def test_a_wrong_reply_that_is_quicker_than_the_acknowledgement_spoils_nothing() -> None:
    async def scenario() -> None:
        async with bank(*TRIO, ("pdp2", "DR(1)"), DR=role("DR", policies=(LOOK,))) as made:
            hostile = await made.pdp("pdp2")
            await made.pdp()
            pep = await made.pep()

            async def lie(request: VerifiedSample, asked: AccessQuestion) -> None:
                del asked
                reply = DecisionReply("bank", "pep1", request.number, bytes(32), P)
                await hostile.write(TopicKind.DREP, reply, under=request)

            hostile._decide = lie  # type: ignore[method-assign]
            publisher = pep._publishers[TopicInstance(TopicKind.DREQ)]
            publish = publisher.publish

            async def slow(data: bytes, **named: Any) -> None:
                await publish(data, **named)
                await settle()

            publisher.publish = slow  # type: ignore[method-assign]
            assert (await pep.decide(question())).effect is P
            assert [note.code for note in made.notes] == ["pep.unasked"]

    run(scenario)


def test_whoever_asked_learns_that_answers_came_but_none_counts() -> None:
    async def scenario() -> None:
        async with bank(*TRIO, DR=role("DR", policies=(LOOK,))) as made:
            hostile, pep = await made.pdp(), await made.pep()

            async def lie(request: VerifiedSample, asked: AccessQuestion) -> None:
                del asked
                reply = DecisionReply("bank", "pep1", request.number, bytes(32), P)
                await hostile.write(TopicKind.DREP, reply, under=request)

            hostile._decide = lie  # type: ignore[method-assign]
            with pytest.raises(RefusedError) as caught:
                await over(made.clock, pep.decide(question()))
            reasons = caught.value.fields["reasons"]
            assert (caught.value.code, [*reasons]) == ("pep.not-believed", ["pep.unasked"])  # type: ignore[misc]  # by code

    run(scenario)


def test_a_question_is_asked_again_until_a_decision_point_reads_it() -> None:
    async def scenario() -> None:
        async with bank(*TRIO, DR=role("DR", policies=(LOOK,))) as made:
            pep = await made.pep()
            asking = asyncio.ensure_future(pep.decide(question()))
            await settle()
            await made.pdp()
            assert (await over(made.clock, asking)).effect is P
            assert made.clock.now() < 1_800_000_002.0, "a part of the lifespan"

    run(scenario)


def test_filter_lists_follow_actions_and_departures() -> None:
    async def scenario() -> None:
        members = (*TRIO, ("pep2", "ER(1)"))
        async with bank(*members, DR=role("DR", policies=(LOOK,))) as made:
            pdp = await made.pdp()
            pep = await made.pep(actions=frozenset({"account/look"}))
            other = await made.pep("pep2", actions=frozenset({"account/withdraw"}))
            assert pdp.filtered == {("bank", "pep2")}
            with pytest.raises(RefusedError, match=r"pep\.no-answer"):
                await over(made.clock, other.decide(question()))
            counts = pdp._readers[TopicInstance(TopicKind.DREQ)].counts
            assert (counts.taken, counts.unselected) == (0, 0), "nothing is sent there at all"
            assert (await pep.decide(question())).effect is P
            await other.require(frozenset({"account/*"}))
            await settle()
            assert pdp.filtered == frozenset()
            assert (await other.decide(question())).effect is P
            await other.leave()
            await settle()
            assert pdp.dependencies.read == {("bank", "pep1")}
            # Other policies decide about other actions.
            await made.administration.reconfigure({"DR(1)": role("DR", policies=(WITHDRAW,))})
            await made.clock.advance(10.0)
            await settle()
            assert pdp.filtered == {("bank", "pep1")}

    run(scenario)


def test_an_information_point_reads_only_who_needs_it() -> None:
    async def scenario() -> None:
        async with bank(*TRIO, DR=role("DR", policies=(LOOK,))) as made:
            pip = await made.pip("pip1", STAFF)
            pdp = await made.pdp()
            assert pip.dependencies.read == pip.filtered == frozenset(), "it requires nothing"
            await made.administration.reconfigure({"DR(1)": role("DR", policies=(WITHDRAW,))})
            await made.clock.advance(10.0)
            await settle()
            assert pip.dependencies.read == {("bank", "pdp1")}
            await pip.provide([_source("subject", "user", {"alice": {"age": 1}}, made.clock)])
            assert pip.filtered == {("bank", "pdp1")}
            await pdp.leave()
            await settle()
            assert pip.filtered == frozenset()

    run(scenario)


DENY = policy("look", 'apply deny-overrides rule r { deny target clause sort == "account" }', 2.0, "r2")
OTHER = policy("look", 'apply deny-overrides rule r { deny target clause sort == "account" }', 1.0, "r1")
TWO = DecisionTuple.of({"P": "#P > 1", "D": "#P <= 1 and #D > 0", "IN": "#P <= 1 and #D = 0 and #IN > 0"})


@pytest.mark.parametrize(
    ("mode", "second", "outcome"),
    [
        ("first", DENY, P),
        ("n:2", LOOK, P),
        ("n:2", DENY, D),  # the same identity with a later change time
        ("n:2", OTHER, "pep.incomparable"),  # the same change time with another value
        ("n:3", LOOK, "pep.too-few"),
        ("newest:1", DENY, D),
        (f"tuple:1:{TWO.id}", LOOK, P),
        (f"tuple:1:{TWO.id}", DENY, D),
    ],
)
def test_decisions_are_combined(mode: str, second: PolicyText, outcome: AnswerEffect | str) -> None:
    async def scenario() -> None:
        members = (("pep1", "ER(1)"), ("pdp1", "DR(1)"), ("pdp2", "DR(2)"))
        rows = {"ER(1)": role("ER", combining={"decision": mode}), **decision_roles(LOOK, second)}
        async with bank(*members, roles=rows) as made:
            await made.pdp()
            pep = await made.pep()
            await made.pdp("pdp2", "DR(2)")
            if isinstance(outcome, AnswerEffect):
                assert (await over(made.clock, pep.decide(question()))).effect is outcome
            else:
                with pytest.raises(RefusedError) as raised:
                    await over(made.clock, pep.decide(question()))
                assert raised.value.code == outcome
            alarms = (
                {"pep.incomparable"}
                if outcome == "pep.incomparable"
                else {"pep.disagreement"}
                if outcome is D
                else set()
            )
            assert {note.code for note in made.notes} == alarms

    run(scenario)


def decision_roles(*policies: PolicyText) -> dict[str, RoleConfiguration]:
    return {f"DR({place})": role("DR", policies=(one,)) for place, one in enumerate(policies, 1)}


@pytest.mark.parametrize(
    ("mode", "ranks", "effect", "alarm"),
    [
        ("compose", (5,), P, None),
        ("n:2", (5,), IN, None),  # too few
        ("n:2", (5, 5), P, None),
        ("n:2", (1, (5, 200.0)), P, None),  # the newest wins
        ("n:2", (5, 1), IN, "pdp.contradiction"),
    ],
)
def test_information_is_combined(mode: str, ranks: tuple[Any, ...], effect: AnswerEffect, alarm: str | None) -> None:
    async def scenario() -> None:
        pips = [f"pip{place}" for place, _ in enumerate(ranks)]
        simple = policy("r", "apply deny-overrides rule r { permit condition rank > 3 }")
        rows = {"DR(1)": role("DR", policies=(simple,), combining={"information": mode})}
        async with bank(*TRIO[:2], *((one, "IR(1)") for one in pips), roles=rows) as made:
            for name, rank in zip(pips, ranks, strict=True):
                value, changed = rank if isinstance(rank, tuple) else (rank, 100.0)
                await made.pip(name, ("subject", "user", {"alice": {"rank": value, "changed": changed}}))
            await made.pdp()
            pep = await made.pep()
            assert (await over(made.clock, pep.decide(question()))).effect is effect
            assert {note.code for note in made.notes} == ({alarm} if alarm else set())

    run(scenario)


def test_two_components_with_one_key_do_not_confirm_each_other() -> None:
    async def scenario() -> None:
        asks = role("ER", combining={"decision": "n:2"})
        decides = role("DR", policies=(LOOK, WITHDRAW), combining={"information": "n:2"})
        async with bank(*TRIO, ER=asks, DR=decides) as made:
            for name in ("pip1", "pip2"):
                await made.pip(name, STAFF, ACCOUNTS, key="pip1")
                await made.clock.advance(0.1)
            for name in ("pdp1", "pdp2"):
                await made.pdp(name, key="pdp1")
                await made.clock.advance(0.1)
            pep = await made.pep()
            with pytest.raises(RefusedError, match=r"pep\.too-few"):
                await over(made.clock, pep.decide(question()))
            await made.administration.reconfigure({"ER(1)": role("ER", combining={"decision": "first"})})
            await made.clock.advance(2.0)
            assert (await over(made.clock, pep.decide(question()))).effect is P
            assert (await over(made.clock, pep.decide(question("withdraw")))).effect is IN

    run(scenario)


def test_a_reconfiguration_loses_no_question_and_mixes_nothing() -> None:
    async def scenario() -> None:
        rows = {"DR(1)": role("DR", policies=(LOOK,)), "ER(1)": role("ER", combining={"decision": "n:2"})}
        async with bank(*TRIO, ("pdp2", "DR(1)"), roles=rows) as made:
            for name in ("pdp1", "pdp2"):
                await made.pdp(name)
            pep = await made.pep()
            effects: list[AnswerEffect] = []

            async def ask() -> None:
                decision = await pep.decide(question())
                assert not decision.disagreed
                effects.append(decision.effect)

            await made.administration.reconfigure({"DR(1)": role("DR", policies=(DENY,))})
            tasks = []
            for _ in range(40):
                tasks.append(asyncio.ensure_future(ask()))
                await made.clock.advance(0.25)
            for _ in range(10):
                await settle()
                await made.clock.advance(0.5)
            await asyncio.gather(*tasks)
            assert len(effects) == 40
            assert effects == sorted(effects, reverse=True), "first Permit, then Deny, and nothing between"
            assert {*effects} == {P, D}
            assert made.notes == []

    run(scenario)


def test_whoever_began_to_read_later_is_asked_again() -> None:
    async def scenario() -> None:
        rows = {"ER(1)": role("ER", combining={"decision": "n:2"}), **decision_roles(LOOK, LOOK)}
        async with bank(("pep1", "ER(1)"), ("pdp1", "DR(1)"), ("pdp2", "DR(2)"), roles=rows) as made:
            await made.pdp()
            pep = await made.pep()
            asking = asyncio.ensure_future(pep.decide(question()))
            await settle()
            await made.pdp("pdp2", "DR(2)")
            assert (await over(made.clock, asking)).effect is P

    run(scenario)


def test_a_crash_is_found_by_the_lease() -> None:
    async def scenario() -> None:
        async with bank(*TRIO, DR=role("DR", policies=(WITHDRAW,)), lease=3.0) as made:
            pip = await made.pip("pip1", STAFF)
            pdp = await made.pdp()
            pep = await made.pep()
            assert pdp.dependencies.read == {("bank", "pep1")}
            assert pip.dependencies.read == {("bank", "pdp1")}
            await pep.close()
            await made.clock.advance(4.0)
            await settle()
            assert pdp.dependencies.read == frozenset()
            await pdp.close()
            await made.clock.advance(4.0)
            await settle()
            assert pip.dependencies.read == frozenset()

    run(scenario)


def test_who_was_only_slow_is_read_again() -> None:
    async def scenario() -> None:
        async with bank(*TRIO, DR=role("DR", policies=(LOOK,)), lease=3.0) as made:
            pdp = await made.pdp()
            pep = await made.pep()
            (asking,) = [one for topic, one in pep._publishers.items() if topic.kind is TopicKind.QPEP]
            publish, asking.publish = asking.publish, quiet_publish  # type: ignore[method-assign]  # it is slow
            await made.clock.advance(4.0)
            await settle()
            assert pdp.dependencies.read == frozenset()
            asking.publish = publish  # type: ignore[method-assign]  # and back
            await made.clock.advance(1.0)
            await settle()
            assert pdp.dependencies.read == {("bank", "pep1")}
            decision = await over(made.clock, pep.decide(question()))
            assert (decision.effect, made.notes) == (AnswerEffect.PERMIT, [])

    run(scenario)


# ----------------------------------------------------------------------------------------------------------------------
# Clocks that are set right.


@pytest.mark.parametrize("lease", [FOREVER, 3.0])
def test_a_question_does_not_wait_longer_because_a_clock_that_was_ahead_is_set_right(lease: float) -> None:
    async def scenario() -> None:
        async with bank(*TRIO, lease=lease) as made:
            clock = WrongClock(made.clock)
            pep = await made._joined(
                EnforcementComponent(made.fabric, key_of("pep1"), made.settings("pep1", "ER(1)"), clock=clock)
            )
            await made.administration.close()
            await made.clock.advance(4.0)
            clock.wrong = 20.0
            asking = waited_for(pep.decide(question()))
            await settle()
            clock.wrong = 0.0
            await made.clock.advance(7.0)
            assert not asking.done()
            await made.clock.advance(2.0)
            with pytest.raises(RefusedError, match=r"pep\.no-answer" if lease == FOREVER else r"component\.lease"):
                await asking

    run(scenario)


# ----------------------------------------------------------------------------------------------------------------------
# Leases of configurations.


DENY_LOOK = policy("look", 'apply deny-overrides rule r { deny target clause does == "look" }', revision="r2")


class Late:
    """A component that can be kept from hearing the PAPs."""

    deaf = False

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.unheard: list[tuple[TopicInstance, int, Sample]] = []

    async def _hear(self, instance: TopicInstance, reader: int, sample: Sample) -> None:
        if self.deaf and instance.kind in (TopicKind.RPEP, TopicKind.RPDP):
            self.unheard.append((instance, reader, sample))
        else:
            await super()._hear(instance, reader, sample)  # type: ignore[misc]  # of the component

    async def hear_all(self) -> None:
        """Hear what came meanwhile."""
        self.deaf, unheard, self.unheard = False, self.unheard, []
        for one in unheard:
            await self._hear(*one)


class LatePep(Late, EnforcementComponent):
    """See `Late`."""


class LatePdp(Late, DecisionComponent):
    """See `Late`."""


class LateBank:
    """A PEP and a PDP with a lease, and the decisions of a PEP that asks every second."""

    def __init__(self, made: Bank, pep: LatePep, pdp: LatePdp) -> None:
        self.made, self.pep, self.pdp = made, pep, pdp
        #: when each was asked, and what was decided or raised
        self.found: list[tuple[float, str]] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def _ask(self) -> None:
        asked = self.made.clock.now()
        try:
            decision = await self.pep.decide(question())
            self.found.append((asked, decision.answers[0].value.rests_on[0].revision))
        except PenstockError as error:
            self.found.append((asked, error.code))

    async def go_on(self, seconds: int) -> None:
        for _ in range(seconds):
            self.tasks.append(asyncio.ensure_future(self._ask()))
            await settle()
            await self.made.clock.advance(1.0)
            await settle()

    async def reconfigured(self) -> float:
        """Announce another policy, and return the expected time."""
        task = asyncio.ensure_future(self.made.administration.reconfigure({"DR(1)": role("DR", policies=(DENY_LOOK,))}))
        while not task.done():
            await self.go_on(1)
        found = self.made.administration.expected_time(await task)
        assert found is not None
        return found


@asynccontextmanager
async def late_bank(lease: float = 6.0) -> AsyncIterator[LateBank]:
    async with bank(*TRIO, DR=role("DR", policies=(LOOK,)), lease=lease) as made:
        named = {"clock": made.clock, "note": made.notes.append}
        pdp = await made._joined(LatePdp(made.fabric, key_of("pdp1"), made.settings("pdp1", "DR(1)"), **named))
        pep = await made._joined(LatePep(made.fabric, key_of("pep1"), made.settings("pep1", "ER(1)"), **named))
        late = LateBank(made, pep, pdp)
        yield late
        for task in late.tasks:
            task.cancel()


@pytest.mark.parametrize("deaf", [("pep", "pdp"), ("pep",), ("pdp",), ()], ids=" and ".join)
def test_who_hears_late_of_a_reconfiguration_never_decides_by_the_old_policy_after_it(deaf: tuple[str, ...]) -> None:
    async def scenario() -> None:
        async with late_bank() as late:
            for name in deaf:
                getattr(late, name).deaf = True
            expected = await late.reconfigured()
            assert expected - late.made.clock.now() <= (6.0 if deaf else 2.0)
            await late.go_on(round(expected - late.made.clock.now()) + 5)
            old = [asked for asked, what in late.found if what == "r1"]
            assert max(old) <= expected
            if deaf:
                assert {what for asked, what in late.found if asked > expected} <= {"component.lease"}
                assert ("component.lease" in [error.code for error in late.made.notes]) is ("pep" in deaf)
            # When they hear of it, they work on, and answer what has waited.
            for name in deaf:
                await getattr(late, name).hear_all()
            await late.go_on(9)
            assert late.made.clock.now() - max(asked for asked, _ in late.found) <= 1.0
            assert [what for _, what in late.found][-8:] == ["r2"] * 8
            assert max(asked for asked, what in late.found if what == "r1") <= expected

    run(scenario)


def test_a_domain_with_a_lease_works_on_as_long_as_a_pap_is_there() -> None:
    async def scenario() -> None:
        async with late_bank() as late:
            await late.go_on(60)
            assert ([what for _, what in late.found], late.made.notes) == (["r1"] * 60, [])
            await late.made.administration.close()
            await late.go_on(20)
            ends = late.found[-1][0]
            unheard = [what for asked, what in late.found if asked > 1_800_000_066.0 and what != "r1"]
            assert set(unheard) == {"component.lease"}
            assert ends > 1_800_000_066.0
            # Another PAP takes over.
            second = pap(late.made.fabric, late.made.administration.settings, late.made.clock, note=quiet)
            async with second:
                await late.go_on(5)
            assert [what for _, what in late.found][-5:] == ["r1"] * 5

    run(scenario)


def test_an_old_lease_counts_no_more_and_a_lease_of_an_unknown_configuration_does_not_count() -> None:
    async def scenario() -> None:
        async with late_bank() as late:
            pep, now = late.pep, late.made.clock.now()
            timeline, end = pep._timeline, pep._lease_end
            assert timeline is not None
            assert end == now + 6.0
            await pep._prolong(timeline, ConfigurationLease(1, 10, now + 1.0, recall=True))
            assert pep._lease_end == now + 1.0
            await pep._prolong(timeline, ConfigurationLease(1, 9, now + 9.0))
            await pep._prolong(timeline, ConfigurationLease(1, 10, now + 9.0))
            await pep._prolong(timeline, ConfigurationLease(2, 11, now + 9.0))
            assert pep._lease_end == now + 1.0
            await pep._prolong(timeline, ConfigurationLease(1, 12, now + 8.0))
            await pep._prolong(timeline, ConfigurationLease(1, 13, now + 7.0))
            assert pep._lease_end == now + 8.0

    run(scenario)


def test_a_newcomer_works_by_a_reconfiguration_from_its_expected_time_on() -> None:
    async def scenario() -> None:
        async with late_bank() as late:
            late.pdp.deaf = True  # so that leases are not returned
            expected = await late.reconfigured()
            clock = late.made.clock
            pep = LatePep(late.made.fabric, key_of("pep1"), late.made.settings("pep1", "ER(1)"), clock=clock)
            await late.pep.leave()
            late.pep = await late.made._joined(pep)
            await late.pdp.hear_all()
            late.found.clear()
            assert clock.now() < expected - 2.0
            await late.go_on(1)
            assert late.found == []
            await late.go_on(6)
            assert late.found
            assert {what for _, what in late.found} == {"r2"}

    run(scenario)


async def quiet_publish(*_: Any, **_named: Any) -> None:
    """Say nothing."""


def test_names_of_a_hostile_component_meet_nothing_and_fail_nowhere() -> None:
    async def scenario() -> None:
        async with bank(*TRIO, DR=role("DR", policies=(LOOK,))) as made:
            pdp = await made.pdp()
            pep = await made.pep(actions=frozenset({"account/look"}))
            for names in (("a/b/c/d",), ("",), ("/",), ("account",)):
                await pep.write(TopicKind.QPEP, RequiredNames(names))
                await settle()
                assert pdp.filtered == {("bank", "pep1")}
            assert made.notes == []

    run(scenario)


def test_over_nats_nothing_is_sent_to_a_component_that_filters_it_out(server: NatsServer) -> None:
    loans = policy("loans", 'apply deny-overrides target clause sort == "loan" rule r { permit }')

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            fabrics = [
                await stack.enter_async_context(await NatsFabric.connect(server.url, prefix="filtered"))
                for _ in range(3)
            ]
            table = {**TABLE, **decision_roles(LOOK, loans)}
            members = (("pep1", "ER(1)"), ("pdp1", "DR(1)"), ("pdp2", "DR(2)"))
            levels = TopicLevels(lifespan=8.0)
            made = Bank(stack, fabrics[0], SystemClock(), administration(*members, table=table, levels=levels))
            await stack.enter_async_context(made.administration)
            made.fabric = fabrics[1]
            filtering = await made.pdp("pdp2", "DR(2)")
            made.fabric = fabrics[2]
            await made.pdp()
            pep = await made.pep(actions=frozenset({"account/look"}))
            assert (await pep.decide(question())).effect is P
            while filtering.filtered != {("bank", "pep1")}:
                await asyncio.sleep(0.01)
            client = await fabrics[1].link.client(Priority.NORMAL)
            before = client.stats["in_bytes"]
            for _ in range(10):
                assert (await pep.decide(question())).effect is P
            counts = filtering._readers[TopicInstance(TopicKind.DREQ)].counts
            assert (counts.taken, counts.unselected) == (0, 0)
            assert client.stats["in_bytes"] - before < 500, "not even one request"

    run(scenario)
