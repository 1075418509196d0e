"""Components join, write, read, are reconfigured and leave, on a fabric in memory with a clock that tests move."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import wraps
from typing import Any, Final

import msgspec
import pytest
from tests.authority.components.kit import (
    PAP_KEY,
    SECOND_PAP_KEY,
    STRANGER,
    TABLE,
    administration,
    admitted,
    key_of,
    memory_fabric,
    pap,
    recorder,
)

from penstock.authority.components.exchange import verification as verification_module
from penstock.authority.components.exchange.certificates import (
    ComponentCertificate,
    administrator_certificate,
    certificate_bytes,
)
from penstock.authority.components.exchange.reports import INTERVAL
from penstock.authority.components.exchange.samples import (
    AppliedTime,
    BaseTime,
    ComponentSample,
    Configuration,
    DecisionReply,
    DecisionRequest,
    JoinRequest,
    PolicyApplied,
    Reconfiguration,
    RequiredNames,
    sample_bytes,
    sample_key,
)
from penstock.authority.components.exchange.topics import TopicInstance, TopicKind, TopicLevels, topic_name
from penstock.authority.components.exchange.verification import WRITER_SAMPLES
from penstock.authority.components.points import component as component_module
from penstock.authority.decisions.messages import AnswerEffect
from penstock.authority.decisions.questions import AccessQuestion
from penstock.authority.limits import PEP_QUESTIONS
from penstock.crypto import PublicKey, SigningKey
from penstock.errors import FailedError, PenstockError, RefusedError
from penstock.fabric.tasks import waited_for
from penstock.roles.engine import SetFact
from penstock.testing.fabric_suite import ManualClock, WrongClock

QUESTION: Final = AccessQuestion.of(("user", "alice"), "read", ("document", "report-7"))
REQUEST: Final = DecisionRequest.of(QUESTION)
OTHER_PDP: Final = msgspec.structs.replace(TABLE["DR(1)"], combining={"policy": "other"})


class World:
    """A fabric, a clock, and a PAP that admits what the test names."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.fabric = memory_fabric(self.clock)
        self.notes: list[PenstockError] = []

    @property
    def codes(self) -> list[str]:
        return [error.code for error in self.notes]

    def pap(self, *names: tuple[str, str], **changed: Any) -> Any:
        named = {one: changed.pop(one) for one in ("key",) if one in changed}
        return pap(self.fabric, administration(*names, **changed), self.clock, note=self.notes.append, **named)

    def component(self, name: str, of_kind: str, **changed: Any) -> Any:
        clock = changed.pop("clock", self.clock)
        return recorder(self.fabric, name, of_kind, clock, note=self.notes.append, **changed)

    async def settle(self) -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    async def forge(self, topic: str, content: Any, key: SigningKey, certificate: bytes, **changed: Any) -> None:
        """Write a sample as somebody who has the fabric, but maybe not the right."""
        now = self.clock.now()
        values = {
            "domain": "bank",
            "id": "pep1",
            "number": round(now * 1e6),
            "time": now,
            "configuration": 1,
            **changed,
        }
        sample = ComponentSample(topic=topic, content=content, **values)
        name = topic_name("bank", TopicInstance.parse(topic))
        data = sample_bytes(sample, certificate, key)
        to = content.id if isinstance(content, DecisionReply) else ""
        async with await self.fabric.publisher(name, strength=9, instance=to) as publisher:
            await publisher.publish(data, key=sample_key(sample))
        await self.settle()


def world(test: Callable[[World], Awaitable[None]]) -> Callable[[], None]:
    """Run a test with a world of its own."""

    @wraps(test)
    def run() -> None:
        async def whole() -> None:
            async with asyncio.timeout(60):
                made = World()
                async with made.fabric:
                    await test(made)

        asyncio.run(whole())

    del run.__wrapped__
    return run


NAMES: Final = (("pep1", "ER(1)"), ("pdp1", "DR(1)"), ("pdp2", "DR(1)"))


# ----------------------------------------------------------------------------------------------------------------------
# The conf process.


@world
async def test_components_join_ask_and_answer(w: World) -> None:
    async with w.pap(*NAMES), w.component("pep1", "ER(1)") as pep, w.component("pdp1", "DR(1)") as pdp:
        assert pep.configuration.combining == {"decision": "first"}
        assert (pep.number, pep.certificate.role_name) == (1, "ER(1)")
        sent = await pep.write(TopicKind.DREQ, REQUEST)
        await w.settle()
        (asked,) = pdp.seen
        assert (asked.record, asked.number, asked.writer.id) == (REQUEST, sent.number, "pep1")
        assert asked.configuration is pdp.configuration
        reply = DecisionReply("bank", "pep1", asked.number, QUESTION.digest, AnswerEffect.PERMIT)
        await pdp.write(TopicKind.DREP, reply, under=asked)
        await w.settle()
        assert [one.record for one in pep.seen] == [reply]
    assert w.notes == []


@world
async def test_a_component_can_join_before_its_pap_is_there(w: World) -> None:
    pep = w.component("pep1", "ER(1)")
    joining = waited_for(pep.join())
    await w.settle()
    await w.clock.advance(21)
    assert not joining.done()
    assert w.codes == ["component.join-waits"] * 2
    async with w.pap(*NAMES):
        await joining
        assert pep.number == 1
        await pep.leave()


@pytest.mark.parametrize("behind", [20.0, 3600.0])
def test_a_component_whose_clock_is_behind_joins_when_it_is_set_right(behind: float) -> None:
    @world
    async def run(w: World) -> None:
        async with w.pap(*NAMES):
            clock = WrongClock(w.clock, -behind)
            pep = w.component("pep1", "ER(1)", clock=clock)
            joining = waited_for(pep.join())
            await w.settle()
            await w.clock.advance(11)
            assert not joining.done()
            assert w.codes == ["component.late", "component.join-waits"]
            clock.wrong = 0.0
            await w.clock.advance(11)
            await joining
            assert pep.number == 1
            await pep.leave()

    run()


@world
async def test_a_component_that_starts_again_with_a_clock_that_is_behind_joins_when_it_is_set_right(w: World) -> None:
    async with w.pap(*NAMES):
        pep = w.component("pep1", "ER(1)")
        await pep.join()
        await pep.close()
        await w.clock.advance(1)
        clock = WrongClock(w.clock, -1.5)
        again = w.component("pep1", "ER(1)", clock=clock)
        joining = waited_for(again.join())
        await w.settle()
        assert w.codes == ["component.rejected", "component.clock"]
        clock.wrong = 0.0
        await w.clock.advance(11)
        await joining
        assert again.joined
        await again.leave()


@pytest.mark.parametrize(
    ("name", "changed", "reason"),
    [
        ("pep9", {"role": "ER(1)"}, "role.denied"),
        ("pep1", {"role": "ER(2)"}, "component.role-unknown"),
        ("pep1", {"role": "DR(1)"}, "component.role-unknown"),
        ("pep1", {"role": "ER("}, "component.role"),
        ("pep1", {"certificates": (b"junk",)}, "sexp.syntax"),
        ("pep1", {"certificates": (administrator_certificate(STRANGER, "shop", "pap"),)}, "component.certificate"),
    ],
)
def test_who_may_not_join_is_rejected_and_reported(name: str, changed: dict[str, Any], reason: str) -> None:
    @world
    async def run(w: World) -> None:
        async with w.pap(*NAMES):
            with pytest.raises(RefusedError, match=r"component\.rejected") as caught:
                await w.component(name, "ER(1)", **changed).join()
            assert caught.value.fields["reason"] == reason
            assert [(error.code, error.fields["reason"]) for error in w.notes] == [("component.rejected", reason)]

    run()


@world
async def test_nobody_can_take_the_id_of_another(w: World) -> None:
    async with w.pap(*NAMES, ("thief", "ER(1)")), w.component("pep1", "ER(1)") as pep:
        with pytest.raises(RefusedError) as caught:
            await w.component("pep1", "ER(1)", key=key_of("thief")).join()
        assert caught.value.fields["reason"] == "component.id-taken"
        await pep.write(TopicKind.DREQ, REQUEST)


@world
async def test_a_component_that_crashed_joins_again_and_its_old_certificate_ends(w: World) -> None:
    async with w.pap(*NAMES) as p, w.component("pdp1", "DR(1)") as pdp:
        pep = w.component("pep1", "ER(1)")
        await pep.join()
        old = pep.configuration.certificate
        await pep.close()
        await w.clock.advance(1)
        async with w.component("pep1", "ER(1)") as again:
            await w.settle()
            await w.forge("DREQ_1", REQUEST, key_of("pep1"), old)
            assert w.codes == ["component.withdrawn"]
            await again.write(TopicKind.DREQ, REQUEST)
            await w.settle()
            assert len(pdp.seen) == 1
            assert [*p.registry.members] == ["pdp1", "pep1"]


@world
async def test_who_leaves_loses_its_role(w: World) -> None:
    async with w.pap(*NAMES) as p, w.component("pdp1", "DR(1)") as pdp:
        pep = w.component("pep1", "ER(1)")
        await pep.join()
        certificate = pep.configuration.certificate
        await pep.leave()
        await w.settle()
        assert [*p.registry.members] == ["pdp1"]
        await w.forge("DREQ_1", REQUEST, key_of("pep1"), certificate)
        assert (pdp.seen, w.codes) == ([], ["component.withdrawn"])
        with pytest.raises(RefusedError, match=r"component\.not-joined"):
            await pep.write(TopicKind.DREQ, REQUEST)
        # A late one learns it too.
        async with w.component("pdp2", "DR(1)") as late:
            await w.settle()
            await w.clock.advance(1)
            await w.forge("DREQ_1", REQUEST, key_of("pep1"), certificate)
            assert late.seen == []


@world
async def test_a_newcomer_on_a_new_topic_does_not_believe_roles_that_have_ended(w: World) -> None:
    night = msgspec.structs.replace(TABLE["ER(1)"], read=("RPEP_2", "DREP_1"))
    async with w.pap(*NAMES, ("pep2", "ER(2)")) as p:
        certificates = []
        for _ in range(2):
            pdp = w.component("pdp1", "DR(1)")
            await pdp.join()
            certificates.append(pdp.configuration.certificate)
            await pdp.leave()
            await w.clock.advance(1)
        await p.reconfigure({"ER(2)": night})
        await w.clock.advance(2)
        async with w.component("pep2", "ER(2)") as pep:
            await w.settle()
            reply = DecisionReply("bank", "pep2", 7, QUESTION.digest, AnswerEffect.PERMIT)
            for number, certificate in enumerate(certificates):
                forged = {"id": "pdp1", "number": number, "configuration": 2}
                await w.forge("DREP_1", reply, key_of("pdp1"), certificate, **forged)
            assert (pep.seen, w.codes, pep.counts) == ([], ["component.withdrawn"], {"component.withdrawn": 2})


@world
async def test_a_newcomer_on_a_new_topic_does_not_believe_certificates_that_were_replaced(w: World) -> None:
    night = msgspec.structs.replace(TABLE["ER(1)"], read=("RPEP_2", "DREP_1"))
    narrow = msgspec.structs.replace(TABLE["DR(1)"], write=("APDP_1", "QPDP_1"))
    async with w.pap(*NAMES, ("pep2", "ER(2)")) as p, w.component("pdp1", "DR(1)") as pdp:
        old = pdp.configuration.certificate
        for row in ({"DR(1)": narrow}, {"ER(2)": night}):
            await p.reconfigure(row)
            await w.clock.advance(2)
            await w.settle()
        async with w.component("pep2", "ER(2)") as pep:
            await w.settle()
            reply = DecisionReply("bank", "pep2", 7, QUESTION.digest, AnswerEffect.PERMIT)
            await w.forge("DREP_1", reply, key_of("pdp1"), old, id="pdp1", configuration=3)
            assert (pep.seen, pep.counts) == ([], {"component.withdrawn": 1})


@world
async def test_a_required_name_that_was_written_again_by_another_does_not_count(w: World) -> None:
    async with w.pap(*NAMES, levels=TopicLevels(lease=6)):
        pep = w.component("pep1", "ER(1)")
        await pep.join()
        await pep.write(TopicKind.QPEP, RequiredNames(("account/read",)))
        (first,) = await w.fabric.state("bank-QPEP_1")
        for _ in range(10):
            await w.clock.advance(2)
        async with w.component("pdp1", "DR(1)") as late:  # it lives, and says so
            await w.settle()
            assert [one.record for one in late.seen] == [RequiredNames(("account/read",))]
        for task in list(pep._tasks):  # it crashes
            task.cancel()
        await w.clock.advance(9)
        async with await w.fabric.publisher("bank-QPEP_1") as stranger:
            await stranger.publish(first.data, key=first.key)
            async with w.component("pdp2", "DR(1)") as newcomer:
                await w.settle()
                assert (newcomer.seen, newcomer.counts) == ([], {"component.late": 1})
        await pep.close()


ACTIVE_ROLES: Final = """
role ER(n: integer);
fact admitted(who: principal, role: string, n: integer);
activate ER(1) if fact admitted(principal, 'ER', 1) *;
activate ER(2) if role ER(1) *;
"""


@world
async def test_roles_that_a_principal_has_active_count_as_prerequisites(w: World) -> None:
    table = {**TABLE, "ER(2)": TABLE["ER(1)"]}
    async with w.pap(("pep1", "ER(1)"), roles=ACTIVE_ROLES, table=table) as p:
        first = w.component("pep1", "ER(1)")
        await first.join()
        for beside, key, reason in (
            ((), "pep1", "role.denied"),
            ((first,), "thief", "component.certificate"),
        ):
            with pytest.raises(RefusedError) as caught:
                await w.component("pep1b", "ER(2)", key=key_of(key), beside=beside).join()
            assert caught.value.fields["reason"] == reason
            await w.clock.advance(1)
        second = w.component("pep1b", "ER(2)", key=key_of("pep1"), beside=(first,))
        await second.join()
        assert second.certificate.role_name == "ER(2)"
        # One component has one role at a time.
        await w.clock.advance(1)
        with pytest.raises(RefusedError) as caught:
            await w.component("pep1", "ER(2)", key=key_of("pep1"), beside=(first,)).join()
        assert caught.value.fields["reason"] == "component.role-needed"
        # What a role rests on ends, and so does the role.
        await first.leave()
        await w.settle()
        assert ([error.code for error in second.ends], p.registry.members) == (["component.role-lost"], {})


@world
async def test_a_role_ends_with_what_it_relies_on(w: World) -> None:
    async with w.pap(*NAMES) as p, w.component("pep1", "ER(1)") as pep, w.component("pdp1", "DR(1)"):
        fact = admitted("pep1", "ER(1)")
        await p.change_roles([SetFact(fact.fact, False, fact.arguments)])
        await w.settle()
        assert pep.configuration is None
        assert [error.code for error in pep.ends] == ["component.role-lost"]
        assert [*p.registry.members] == ["pdp1"]


@world
async def test_others_learn_of_a_crash_after_the_lease(w: World) -> None:
    levels = TopicLevels(lease=6)
    async with w.pap(*NAMES, levels=levels), w.component("pdp1", "DR(1)") as pdp:
        gone: list[str] = []

        async def departed(component: str) -> None:
            gone.append(component)

        pdp.departed = departed
        pep = w.component("pep1", "ER(1)")
        await pep.join()
        await pep.write(TopicKind.QPEP, RequiredNames(("account/read",)))
        for _ in range(10):
            await w.clock.advance(2)
        assert gone == []
        # It crashes: nothing is closed, and nobody says that it is alive.
        for task in list(pep._tasks):
            task.cancel()
        await w.clock.advance(7)
        await w.settle()
        assert gone == ["pep1"]
        await pep.close()


# ----------------------------------------------------------------------------------------------------------------------
# Topics-lists and hostile components.


@world
async def test_a_component_writes_nothing_outside_its_list(w: World) -> None:
    async with w.pap(*NAMES), w.component("pep1", "ER(1)") as pep:
        for kind in (TopicKind.DREP, TopicKind.JOIN, TopicKind.CONF, TopicKind.RPEP):
            with pytest.raises(RefusedError, match=r"component\.outside-list"):
                await pep.write(kind, REQUEST)
        with pytest.raises(RefusedError, match=r"component\.outside-list"):
            await pep.write(TopicKind.DREQ, REQUEST, instance=2)


@world
async def test_what_a_hostile_component_writes_is_refused_and_reported(w: World) -> None:
    async with w.pap(*NAMES), w.component("pep1", "ER(1)") as pep, w.component("pdp1", "DR(1)") as pdp:
        mine, theirs = pdp.configuration.certificate, pep.configuration.certificate
        reply = DecisionReply("bank", "pep1", 1, QUESTION.digest, AnswerEffect.PERMIT)
        own = certificate_bytes(
            changed_certificate(pep.certificate, key=STRANGER.public.raw, issuer=STRANGER.principal), STRANGER
        )
        attacks: list[tuple[str, Any, SigningKey, bytes, dict[str, Any]]] = [
            ("component.outside-list", ("DREQ_1", REQUEST), key_of("pdp1"), mine, {"id": "pdp1"}),
            ("component.certificate", ("DREQ_1", REQUEST), key_of("pdp1"), mine, {}),
            ("key.bad-signature", ("DREQ_1", REQUEST), key_of("pdp1"), theirs, {}),
            ("component.certificate", ("DREQ_1", REQUEST), STRANGER, own, {}),
            ("component.certificate", ("DREQ_1", REQUEST), key_of("pep1"), theirs, {"configuration": 0}),
            ("component.misdirected", ("DREQ_1", REQUEST), key_of("pep1"), theirs, {"domain": "shop"}),
            ("component.late", ("DREQ_1", REQUEST), key_of("pep1"), theirs, {"time": w.clock.now() - 15}),
            ("component.late", ("DREQ_1", REQUEST), key_of("pep1"), theirs, {"time": w.clock.now() + 3}),
            ("key.bad-signature", ("DREP_1", reply), key_of("pep1"), mine, {"id": "pdp1"}),
            ("component.outside-list", ("RPEP_1", Reconfiguration(2, 1.0)), key_of("pdp1"), mine, {"id": "pdp1"}),
            ("component.outside-list", ("RPEP_1", BaseTime(2, 1.0)), key_of("pep1"), theirs, {}),
            ("component.outside-list", ("APEP_1", AppliedTime(2, 1.0)), key_of("pdp1"), mine, {"id": "pdp1"}),
        ]
        for code, (topic, content), key, certificate, changed in attacks:
            await w.clock.advance(INTERVAL)  # each is reported again
            w.notes.clear()
            await w.forge(topic, content, key, certificate, **changed)
            assert w.codes == [code], (code, topic)
        assert (pdp.seen, pep.seen, pep.number) == ([], [], 1)
        # Junk.
        w.notes.clear()
        async with await w.fabric.publisher("bank-DREQ_1") as publisher:
            await publisher.publish(b"junk", key="bank/pep1/1")
        await w.settle()
        assert w.codes == ["component.sample"]


def changed_certificate(certificate: ComponentCertificate, **changed: Any) -> ComponentCertificate:
    values = {name: getattr(certificate, name) for name in ComponentCertificate.__slots__}
    return ComponentCertificate(**{**values, **changed})


@world
async def test_a_reply_to_another_component_is_refused(w: World) -> None:
    async with (
        w.pap(*NAMES, ("pep2", "ER(1)")),
        w.component("pep1", "ER(1)") as pep,
        w.component("pdp1", "DR(1)") as pdp,
    ):
        # A genuine reply to `pep2`, which somebody writes again where `pep1` reads.
        reply = DecisionReply("bank", "pep2", 7, QUESTION.digest, AnswerEffect.PERMIT)
        now = w.clock.now()
        sample = ComponentSample("bank", "DREP_1", "pdp1", 1, now, 1, reply)
        async with await w.fabric.publisher("bank-DREP_1", instance="pep1") as publisher:
            data = sample_bytes(sample, pdp.configuration.certificate, key_of("pdp1"))
            await publisher.publish(data, key=sample_key(sample))
        await w.settle()
        assert (pep.seen, w.codes) == ([], ["component.misdirected"])


@world
async def test_a_request_to_join_that_cannot_be_read_does_not_stop_a_pap(w: World) -> None:
    async with w.pap(*NAMES) as p:
        requests = [JoinRequest(STRANGER.public.raw, "PEP", role) for role in ("ER(--1)", "ER(1", "ER(\u00b2)")]
        for number, request in enumerate(requests):
            await w.forge("JOIN_1", request, STRANGER, b"", id="other", number=number, configuration=0)
        assert [error.fields["reason"] for error in w.notes] == ["component.role"]
        assert (len(p.registry._answered), p.registry.waiting) == (3, {})
        # Nor does one that finds a fault.
        admit = p.registry._admit
        p.registry._admit = lambda sample, *more: 1 / 0 if sample.id == "other" else admit(sample, *more)
        await w.forge("JOIN_1", requests[0], STRANGER, b"", id="other", number=9, configuration=0)
        assert w.notes[-1].fields["reason"] == "component.internal"
        async with w.component("pep1", "ER(1)"):
            assert [*p.registry.members] == ["pep1"]


@world
async def test_a_copy_is_refused(w: World) -> None:
    async with w.pap(*NAMES), w.component("pep1", "ER(1)") as pep, w.component("pdp1", "DR(1)") as pdp:
        sample = await pep.write(TopicKind.DREQ, REQUEST)
        await pep.write(TopicKind.QPEP, RequiredNames(("account/read",)))
        await w.settle()
        assert len(pdp.seen) == 2
        await w.forge("DREQ_1", REQUEST, key_of("pep1"), pep.configuration.certificate, number=sample.number)
        await w.forge("QPEP_1", RequiredNames(), key_of("pep1"), pep.configuration.certificate, number=sample.number)
        assert (len(pdp.seen), w.codes) == (2, ["component.copy", "component.copy"])


@world
async def test_what_honest_components_cause_is_not_reported(w: World) -> None:
    both = {
        "ER(1)": msgspec.structs.replace(TABLE["ER(1)"], write=("APEP_1", "QPEP_1", "DREQ_1", "DREQ_2")),
        "DR(1)": msgspec.structs.replace(TABLE["DR(1)"], read=("RPDP_1", "QPEP_1", "DREQ_1", "DREQ_2", "IREP_1")),
    }
    async with w.pap(*NAMES, table={**TABLE, **both}), w.component("pdp1", "DR(1)") as pdp:
        pep = w.component("pep1", "ER(1)")
        await pep.join()
        # A request on two instances of its topic.
        number = pep.next_number()
        for instance in (1, 2):
            await pep.write(TopicKind.DREQ, REQUEST, instance=instance, number=number)
        # What a machine delays that has too much to do.
        certificate = pep.configuration.certificate
        await w.forge("DREQ_1", REQUEST, key_of("pep1"), certificate, time=w.clock.now() - 8, number=1)
        # What a component wrote before it crashed and joined again.
        await pep.close()
        before = w.clock.now()
        await w.clock.advance(1)
        async with w.component("pep1", "ER(1)"):
            await w.settle()
            await w.forge("QPEP_1", RequiredNames(), key_of("pep1"), certificate, time=before)
            refused = {"component.copy": 1, "component.late": 1, "component.withdrawn": 1}
            assert (len(pdp.seen), pdp.counts, w.codes) == (1, refused, [])


@world
async def test_what_two_readers_of_a_topic_get_is_not_reported_and_copies_are(w: World) -> None:
    async with w.pap(*NAMES), w.component("pep1", "ER(1)") as pep, w.component("pdp1", "DR(1)") as pdp:
        topic = TopicInstance(TopicKind.DREQ)
        before = pdp._readers[topic]
        drain = before.drain

        async def ask_and_drain() -> None:
            await pep.write(TopicKind.DREQ, REQUEST)
            await w.settle()
            await drain()

        before.drain = ask_and_drain  # both read now
        hear, late = pdp._hear, []

        async def hear_late(instance: TopicInstance, reader: int, sample: Any) -> None:
            late.append((instance, reader, sample))

        pdp._hear = hear_late  # the new reader has something else to do
        await pdp.reread(TopicKind.DREQ)
        pdp._hear = hear
        assert pdp._readers[topic] is not before
        await pdp.reread(TopicKind.DREQ)  # and there is a newer one already
        for one in late:
            await pdp._hear(*one)
        await w.settle()
        (asked,) = pdp.seen
        assert (pdp.counts, w.codes) == ({"component.copy": 1}, [])
        # The same sample once more is a copy.
        await w.forge("DREQ_1", REQUEST, key_of("pep1"), pep.configuration.certificate, number=asked.number)
        assert (len(pdp.seen), w.codes) == (1, ["component.copy"])
        # When the old reader is long gone, nothing of this is remembered.
        await w.clock.advance(8)
        await pep.write(TopicKind.DREQ, REQUEST)
        await w.settle()
        assert (len(pdp.seen), pdp._overlaps) == (2, {})


@world
async def test_a_flood_of_forgeries_leaves_room_for_others(w: World) -> None:
    async with w.pap(*NAMES), w.component("pep1", "ER(1)") as pep, w.component("pdp1", "DR(1)") as pdp:
        await pep.write(TopicKind.DREQ, REQUEST)
        await w.settle()
        for number in range(600):
            await w.forge("DREQ_1", REQUEST, STRANGER, pep.configuration.certificate, number=number)
        assert 90 <= pdp.counts["component.flood"] <= 110
        assert w.codes == ["key.bad-signature", "component.flood"]
        await pep.write(TopicKind.DREQ, REQUEST)
        await w.settle()
        assert len(pdp.seen) == 2


@world
async def test_forgeries_from_the_future_are_a_flood_too(w: World) -> None:
    async with w.pap(*NAMES), w.component("pep1", "ER(1)") as pep, w.component("pdp1", "DR(1)") as pdp:
        names, time, made = RequiredNames(("account/read",)), w.clock.now() + 1e6, list[bytes]()
        verify = pdp._verifier.certificates.verify

        def counting(data: bytes, now: datetime) -> Any:
            made.append(data)
            return verify(data, now)

        pdp._verifier.certificates.verify = counting
        for number in range(600):
            forged = {"number": number, "time": time + number}
            await w.forge("QPEP_1", names, STRANGER, pep.configuration.certificate, **forged)
        assert (len(made), pdp.counts) == (500, {"component.late": 600})


def test_forgeries_that_come_again_are_refused_without_a_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification_module, "REMEMBERED", 3)
    verified: list[bytes] = []
    verify = PublicKey.verify

    def counted(key: PublicKey, message: bytes, signature: bytes) -> None:
        verified.append(signature)
        verify(key, message, signature)

    monkeypatch.setattr(PublicKey, "verify", counted)

    @world
    async def repeated(w: World) -> None:
        async with w.pap(*NAMES), w.component("pep1", "ER(1)") as pep, w.component("pdp1", "DR(1)") as pdp:
            numbers = {"number": 7, "time": w.clock.now()}
            theirs = pep.configuration.certificate
            for _ in range(600):
                await w.forge("DREQ_1", REQUEST, STRANGER, theirs, **numbers)
            assert (pdp.counts, w.codes) == ({"key.bad-signature": 600}, ["key.bad-signature"])
            assert verified.count(verified[-1]) == 1
            # What the component itself signs, with the same number and time, is not refused for it.
            await w.forge("DREQ_1", REQUEST, key_of("pep1"), theirs, **numbers)
            assert len(pdp.seen) == 1
            # No more than so many are remembered, and all are refused.
            for number in (*range(4), 0):
                await w.forge("DREQ_1", REQUEST, STRANGER, theirs, **{**numbers, "number": number})
            assert (len(pdp.seen), len(pdp._verifier._refused)) == (1, 3)
            assert pdp.counts == {"key.bad-signature": 605}
            # They are reported again, with how often they came.
            await w.clock.advance(INTERVAL)
            await w.forge("DREQ_1", REQUEST, STRANGER, theirs, **{**numbers, "time": w.clock.now()})
            assert [error.fields.get("more") for error in w.notes] == [None, 604, None]

    repeated()


def test_what_an_enforcement_point_may_have_open_can_wait() -> None:
    assert component_module.HELD_OF_ONE == PEP_QUESTIONS
    assert component_module.HELD >= 2 * PEP_QUESTIONS  # one of them does not fill it
    assert WRITER_SAMPLES >= PEP_QUESTIONS


def test_requests_of_one_component_that_wait_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(component_module, "HELD", 8)
    monkeypatch.setattr(component_module, "HELD_OF_ONE", 4)

    @world
    async def flooded(w: World) -> None:
        async with w.pap(*NAMES), w.component("pep1", "ER(1)") as pep, w.component("pdp1", "DR(1)") as pdp:
            for number in range(6):
                future = {"number": number, "configuration": 9}
                await w.forge("DREQ_1", REQUEST, key_of("pep1"), pep.configuration.certificate, **future)
            assert (len(pdp._held), w.codes, pdp.counts) == (4, ["component.flood"], {"component.flood": 2})
            # They do not wait for longer than they are valid.
            await w.clock.advance(60)
            future = {"number": 7, "configuration": 9}
            await w.forge("DREQ_1", REQUEST, key_of("pep1"), pep.configuration.certificate, **future)
            assert [one.number for one in pdp._held] == [7]

    flooded()


@world
async def test_a_forged_configuration_is_not_believed(w: World) -> None:
    pep = w.component("pep1", "ER(1)")
    joining = waited_for(pep.join())
    await w.settle()
    (asked,) = await w.fabric.state("bank-JOIN_1")
    certificate = administrator_certificate(STRANGER, "bank", "pap1")
    forged = Configuration("bank", "pep1", 1, refusal="role.denied", join=b"x")
    await w.forge("CONF_1", forged, STRANGER, certificate, id="pap1")
    await w.forge("CONF_1", forged, STRANGER, administrator_certificate(PAP_KEY, "bank", "pap1"), id="pap1")
    assert not joining.done()
    assert w.codes == ["component.certificate", "key.bad-signature"]
    assert asked.key == "bank/pep1"
    await w.clock.advance(11)
    async with w.pap(*NAMES):
        await joining
        await pep.leave()


# ----------------------------------------------------------------------------------------------------------------------
# The reconf process.


@world
async def test_a_reconfiguration_is_applied_at_its_expected_time(w: World) -> None:
    async with w.pap(*NAMES) as p, w.component("pep1", "ER(1)") as pep, w.component("pdp1", "DR(1)") as pdp:
        number = await p.reconfigure({"DR(1)": OTHER_PDP}, expected=w.clock.now() + 5)
        begun = w.clock.now()
        await w.clock.advance(4.9)
        assert (pep.number, pdp.number) == (1, 1)
        await w.clock.advance(0.2)
        await w.settle()
        assert (pep.number, pdp.number, number) == (2, 2, 2)
        assert pdp.configuration.combining == {"policy": "other"}
        assert pep.configuration.combining == {"decision": "first"}
        assert await p.base_time(2) == begun + 5
        # A newcomer begins with the newest number.
        async with w.component("pdp2", "DR(1)") as late:
            assert (late.number, late.configuration.combining) == (2, {"policy": "other"})
            sample = await pep.write(TopicKind.DREQ, REQUEST)
            await w.settle()
            assert [one.number for one in (*pdp.seen, *late.seen)] == [sample.number] * 2
    assert w.notes == []


@pytest.mark.parametrize("behind", [20.0, 3600.0])
def test_a_reconfiguration_that_a_clock_refused_is_read_when_the_clock_is_set_right(behind: float) -> None:
    @world
    async def run(w: World) -> None:
        clock = WrongClock(w.clock, 0.0)
        async with w.pap(*NAMES) as p, w.component("pdp1", "DR(1)", clock=clock) as pdp:
            clock.wrong = -behind
            await w.clock.advance(1)
            numbers = [await p.reconfigure({"DR(1)": one}) for one in (OTHER_PDP, TABLE["DR(1)"], OTHER_PDP)]
            certificate = pdp.configuration.certificate
            await w.forge("RPDP_1", BaseTime(7, 0.0), key_of("pdp1"), certificate, id="pdp1")
            await w.clock.advance(3)
            assert pdp.number == 1
            clock.wrong = 0.0
            await w.clock.advance(2)
            assert numbers == [2, 3, 4]
            assert [one.number for one in pdp.configurations] == [1, 2, 3, 4]
            await p.base_time(4)
        assert {*w.codes} == {"component.late"}

    run()


@world
async def test_what_a_pap_wrote_while_its_clock_was_ahead_is_read_before_what_it_writes_now(w: World) -> None:
    clock = WrongClock(w.clock)
    async with pap(w.fabric, administration(*NAMES), clock) as p, w.component("pdp1", "DR(1)") as pdp:
        clock.wrong = 20.0
        await p.reconfigure({"DR(1)": OTHER_PDP})
        clock.wrong = 0.0
        await p.reconfigure({"DR(1)": TABLE["DR(1)"]})
        await w.clock.advance(19)
        assert pdp.number == 1
        await w.clock.advance(3)
        assert [one.number for one in pdp.configurations] == [1, 2, 3]
        assert pdp.counts == {"component.late": 1}


@world
async def test_a_lease_from_the_future_does_not_count_when_its_writers_clock_is_right(w: World) -> None:
    clock, levels = WrongClock(w.clock), TopicLevels(lease=6)
    async with pap(w.fabric, administration(*NAMES, levels=levels), clock), w.component("pep1", "ER(1)") as pep:
        clock.wrong = 20.0
        await w.clock.advance(5)
        assert pep.counts == {"component.late": 2}
        clock.wrong = 0.0
        for _ in range(15):
            await w.clock.advance(2)
            assert w.clock.now() + 4 <= pep._lease_end <= w.clock.now() + 6
        assert pep.counts == {"component.late": 2}


@world
async def test_one_task_waits_for_the_time_of_samples_from_the_future(w: World) -> None:
    async with w.pap(*NAMES), w.component("pep1", "ER(1)") as pep, w.component("pdp1", "DR(1)") as pdp:
        certificate, number = pep.configuration.certificate, pep.next_number()
        before = len(pdp._tasks)
        for pair in range(10):
            for late in (True, False):
                number, time = number + 1, w.clock.now() + 60 * late
                names = RequiredNames((f"account/{pair}",))
                await w.forge("QPEP_1", names, key_of("pep1"), certificate, number=number, time=time)
        assert (len(pdp.seen), len(pdp._tasks), pdp.counts) == (10, before + 1, {"component.late": 10})


@world
async def test_topics_follow_a_reconfiguration(w: World) -> None:
    wider = msgspec.structs.replace(TABLE["ER(1)"], write=("APEP_1", "DREQ_2"), read=("RPEP_2", "DREP_2"))
    async with w.pap(*NAMES) as p, w.component("pep1", "ER(1)") as pep:
        await p.reconfigure({"ER(1)": wider})
        await w.clock.advance(1.1)
        await w.settle()
        assert (pep.number, pep.certificate.since) == (2, 2)
        await pep.write(TopicKind.DREQ, REQUEST, instance=2)
        await w.clock.advance(8)
        await w.settle()
        with pytest.raises(RefusedError, match=r"component\.outside-list"):
            await pep.write(TopicKind.DREQ, REQUEST, instance=1)
        # The new R* topic leads to it.
        await p.reconfigure({"ER(1)": TABLE["ER(1)"]})
        await w.clock.advance(1.1)
        await w.settle()
        assert pep.number == 3
        await pep.write(TopicKind.DREQ, REQUEST, instance=1)


@world
async def test_requests_wait_while_a_reconfiguration_is_due(w: World) -> None:
    gate = asyncio.Event()
    async with w.pap(*NAMES) as p, w.component("pep1", "ER(1)") as pep, w.component("pdp1", "DR(1)") as pdp:

        async def prepare(_configuration: Configuration) -> None:
            await gate.wait()

        pep.prepare = prepare
        pdp.prepare = prepare
        changed = {"ER(1)": msgspec.structs.replace(TABLE["ER(1)"], combining={"decision": "n:2"}), "DR(1)": OTHER_PDP}
        await p.reconfigure(changed, expected=w.clock.now() + 1)
        before = await pep.write(TopicKind.DREQ, REQUEST)
        await w.settle()
        assert [one.number for one in pdp.seen] == [before.number]
        await w.clock.advance(1.5)
        waiting = waited_for(pep.write(TopicKind.DREQ, REQUEST))
        await w.settle()
        assert not waiting.done()
        gate.set()
        after = await waiting
        await w.settle()
        assert (before.configuration, after.configuration) == (1, 2)
        assert [(one.number, one.configuration.combining) for one in pdp.seen] == [
            (before.number, {}),
            (after.number, {"policy": "other"}),
        ]


@world
async def test_requests_wait_also_after_joining_again(w: World) -> None:
    async with w.pap(*NAMES) as p:
        pep = w.component("pep1", "ER(1)")
        await pep.join()
        await pep.leave()
        await w.clock.advance(1)
        await pep.join()
        gate = asyncio.Event()

        async def prepare(_configuration: Configuration) -> None:
            await gate.wait()

        pep.prepare = prepare
        await p.reconfigure({"ER(1)": msgspec.structs.replace(TABLE["ER(1)"], combining={})})
        await w.clock.advance(2)
        waiting = waited_for(pep.write(TopicKind.DREQ, REQUEST))
        await w.settle()
        assert not waiting.done()
        gate.set()
        assert (await waiting).configuration == 2
        # Who leaves while it waits writes nothing.
        gate.clear()
        await p.reconfigure({"ER(1)": TABLE["ER(1)"]})
        await w.clock.advance(2)
        waiting = waited_for(pep.write(TopicKind.DREQ, REQUEST))
        await w.settle()
        await pep.close()
        with pytest.raises(RefusedError, match=r"component\.not-joined"):
            await waiting


@world
async def test_an_old_request_is_answered_under_the_old_configuration(w: World) -> None:
    async with w.pap(*NAMES) as p, w.component("pep1", "ER(1)") as pep, w.component("pdp1", "DR(1)") as pdp:
        early = w.clock.now()
        certificate = pep.configuration.certificate
        await p.reconfigure({"DR(1)": OTHER_PDP}, expected=early + 1)
        await w.clock.advance(1.5)
        await w.settle()
        await w.forge("DREQ_1", REQUEST, key_of("pep1"), certificate, time=early + 0.5)
        (old,) = pdp.seen
        assert (old.written_under, old.configuration.combining) == (1, {})
        # Its reply has the old number, and so has what is asked for it.
        reply = DecisionReply("bank", "pep1", old.number, QUESTION.digest, AnswerEffect.PERMIT)
        assert (await pdp.write(TopicKind.DREP, reply, under=old)).configuration == 1
        # Sent after the base time, it is not answered.
        await w.forge("DREQ_1", REQUEST, key_of("pep1"), certificate, time=early + 1.2, number=2)
        assert (len(pdp.seen), pdp.counts, w.codes) == (1, {"component.old-configuration": 1}, [])
        # After LS the old configuration is gone.
        await w.clock.advance(8)
        await w.forge("DREQ_1", REQUEST, key_of("pep1"), certificate, number=3)
        assert len(pdp.seen) == 1


@world
async def test_who_hears_of_a_reconfiguration_too_late_asks_again(w: World) -> None:
    async with w.pap(*NAMES) as p, w.component("pep1", "ER(1)") as pep:
        expected = w.clock.now() + 1
        await w.clock.advance(2)
        sample = await pep.write(TopicKind.DREQ, REQUEST)
        await p.reconfigure({"DR(1)": OTHER_PDP}, expected=expected)
        await w.settle()
        assert (pep.number, pep.again) == (2, [sample.number])


@world
async def test_who_applies_nothing_in_time_loses_its_role(w: World) -> None:
    async with w.pap(*NAMES) as p, w.component("pep1", "ER(1)") as pep, w.component("pdp1", "DR(1)") as pdp:

        async def prepare(_configuration: Configuration) -> None:
            await asyncio.Event().wait()

        pdp.prepare = prepare
        begun = w.clock.now()
        number = await p.reconfigure({"DR(1)": OTHER_PDP}, expected=begun + 1)
        await w.clock.advance(10.5)
        await w.settle()
        assert (pep.number, pdp.number, [*p.registry.members]) == (2, 1, ["pep1", "pdp1"])
        await w.clock.advance(1)
        await w.settle()
        assert [*p.registry.members] == ["pep1"]
        assert pdp.configuration is None
        assert w.codes == ["component.not-applied", "component.role-lost"]
        assert await p.base_time(number) == begun + 1
        # It joins again by itself when it can.
        del pdp.prepare
        await w.clock.advance(2)
        await w.settle()
        assert (pdp.number, [*p.registry.members]) == (2, ["pep1", "pdp1"])
        assert w.codes[2:] == ["component.rejoined"]


def denied(*_: object) -> Configuration:
    raise RefusedError("role.denied", "no rule")


@world
async def test_who_was_starved_joins_again_by_itself(w: World) -> None:
    levels = TopicLevels(lease=6)
    async with w.pap(*NAMES, levels=levels) as p, w.component("pep1", "ER(1)") as pep:
        old = pep.configuration.certificate
        # It is not heard for the lease.
        for publisher in pep._publishers.values():
            publisher.alive = asyncio.Event().wait
        await w.clock.advance(7)
        await w.settle()
        assert (pep.configuration, [*p.registry.members]) == (None, [])
        assert w.codes == ["component.silent", "component.role-lost"]
        await w.clock.advance(1)
        await w.settle()
        assert (pep.number, [*p.registry.members]) == (1, ["pep1"])
        assert w.codes[2:] == ["component.rejoined"]
        # What it wrote before it knew that is refused, but not reported.
        async with w.component("pdp1", "DR(1)") as pdp:
            await w.settle()
            await w.forge("DREQ_1", REQUEST, key_of("pep1"), old, number=1)
            assert (pdp.seen, pdp.counts, len(w.notes)) == ([], {"component.withdrawn": 1}, 3)
        await pep.write(TopicKind.DREQ, REQUEST)
        for _ in range(10):
            await w.clock.advance(2)
        assert ([*p.registry.members], len(w.notes)) == (["pep1"], 3)
        # Again so soon, it waits for longer. If the domain refuses it, that is the end.
        p.registry._admit = denied
        for publisher in pep._publishers.values():
            publisher.alive = asyncio.Event().wait
        await w.clock.advance(7)
        await w.settle()
        assert pep.configuration is None
        w.notes.clear()
        await w.clock.advance(1)
        assert w.notes == []
        await w.clock.advance(60)
        await w.settle()
        assert {*w.codes} == {"component.rejected"}


@world
async def test_who_has_crashed_is_no_member_after_the_lease(w: World) -> None:
    async with w.pap(*NAMES, levels=TopicLevels(lease=6)) as p, w.component("pdp1", "DR(1)"):
        pep = w.component("pep1", "ER(1)")
        await pep.join()
        for task in list(pep._tasks):
            task.cancel()
        for reader in pep._readers.values():
            await reader.close()
        await w.settle()
        await w.clock.advance(5)
        assert [*p.registry.members] == ["pdp1", "pep1"]
        await w.clock.advance(2)
        await w.settle()
        assert ([*p.registry.members], w.codes[:1]) == (["pdp1"], ["component.silent"])
        # Who leaves is not taken for crashed.
        w.notes.clear()
        async with w.component("pdp2", "DR(1)"):
            await w.clock.advance(20)
        await w.settle()
        assert ([*p.registry.members], w.notes) == (["pdp1"], [])
        await pep.close()


@world
async def test_whose_role_ended_otherwise_does_not_join_again(w: World) -> None:
    async with w.pap(*NAMES, levels=TopicLevels(lease=6)) as p, w.component("pep1", "ER(1)") as pep:
        await w.clock.advance(1)
        # Another process has the same id and key: they do not drive out each other in turn.
        async with w.component("pep1", "ER(1)") as other:
            for _ in range(60):
                await w.clock.advance(2)
            assert (pep.configuration, other.number) == (None, 1)
            assert w.codes == ["component.role-lost"]
            await p.change_roles([SetFact("admitted", False, admitted("pep1", "ER(1)").arguments)])
            for _ in range(60):
                await w.clock.advance(2)
            assert ({*w.codes}, [*p.registry.members]) == ({"component.role-lost"}, [])


@world
async def test_a_pap_that_was_starved_hears_first_what_was_said(w: World) -> None:
    async with w.pap(*NAMES) as p, w.component("pdp1", "DR(1)") as pdp:
        await p.reconfigure({"DR(1)": OTHER_PDP}, expected=w.clock.now() + 1)
        await w.clock.advance(0.5)
        # Its process stands still for a minute. The component has applied it meanwhile, but nobody has read that.
        p._begin, begin = (lambda _name, work: work.close()), p._begin
        write, pdp.write = pdp.write, None
        w.clock._now += 60
        pdp.write = write
        await p._act()
        assert [*p.registry.members] == ["pdp1"]
        p._begin = begin
        await w.clock.advance(2)
        await w.settle()
        assert ([*p.registry.members], pdp.number, p.registry.finished.keys()) == (["pdp1"], 2, {2})
        assert {*w.codes} <= {"component.starved"}
        assert "component.starved" in w.codes


@world
async def test_an_apply_time_before_the_expected_time_is_refused(w: World) -> None:
    async with w.pap(*NAMES) as p, w.component("pdp1", "DR(1)") as pdp:
        expected = w.clock.now() + 1
        await p.reconfigure({"DR(1)": OTHER_PDP}, expected=expected)
        await w.forge(
            "APDP_1", AppliedTime(2, expected - 0.5), key_of("pdp1"), pdp.configuration.certificate, id="pdp1"
        )
        later = round(w.clock.now() * 1e6)
        for number, time in enumerate((math.nan, math.inf, w.clock.now() + 5), later + 1):
            wrong = AppliedTime(2, time)
            await w.forge("APDP_1", wrong, key_of("pdp1"), pdp.configuration.certificate, id="pdp1", number=number)
        assert (p.counts, {*w.codes}) == ({"component.apply-time": 4}, {"component.apply-time"})
        assert p.registry.progress[2].waiting == {"pdp1"}
        await w.clock.advance(2)


@world
async def test_an_old_reconfiguration_is_refused_and_reported(w: World) -> None:
    async with w.pap(*NAMES) as p, w.component("pep1", "ER(1)") as pep:
        for _ in range(2):
            await p.reconfigure({"DR(1)": OTHER_PDP})
            await w.clock.advance(2)
        assert pep.number == 3
        old = next(one for one in await w.fabric.state("bank-RPEP_1") if b"reconf" in one.data)
        async with await w.fabric.publisher("bank-RPEP_1") as publisher:
            await publisher.publish(old.data, key=old.key)
        await w.settle()
        assert (pep.number, w.codes) == (3, ["component.copy"])
        # An administrator that wrote one with a number that is over is not followed either.
        certificate = administrator_certificate(PAP_KEY, "bank", "pap1")
        await w.forge("RPEP_1", Reconfiguration(2, w.clock.now() - 9), PAP_KEY, certificate, id="pap1")
        assert (pep.number, w.codes[1:]) == (3, ["component.reconfiguration"])


# ----------------------------------------------------------------------------------------------------------------------
# Several PAPs.


@world
async def test_a_second_pap_takes_over(w: World) -> None:
    first = w.pap(*NAMES)
    second = w.pap(*NAMES, id="pap2", key=SECOND_PAP_KEY)
    await first.join()
    async with second, w.component("pep1", "ER(1)") as pep, w.component("pdp1", "DR(1)") as pdp:
        await w.settle()
        assert (first.owns, second.owns) == (True, False)
        assert second.registry.members.keys() == first.registry.members.keys() == {"pep1", "pdp1"}
        with pytest.raises(RefusedError, match=r"fabric\.not-owner"):
            await second.reconfigure({"DR(1)": OTHER_PDP})
        # The first one is killed: its lease runs on.
        first._owned = None  # it must not give up CONF
        await first.close()
        joining = waited_for(w.component("pdp2", "DR(1)").join())
        await w.settle()
        assert not joining.done()
        await w.clock.advance(10.1)
        await joining
        assert second.owns
        number = await second.reconfigure({"DR(1)": OTHER_PDP})
        await w.clock.advance(2)
        await w.settle()
        assert (number, pep.number, pdp.number) == (2, 2, 2)


@world
async def test_a_pap_that_does_not_own_conf_rests_when_the_owner_has_done_the_work(w: World) -> None:
    async with w.pap(*NAMES), w.pap(*NAMES, id="pap2", key=SECOND_PAP_KEY) as second:
        async with w.component("pep1", "ER(1)"):
            await w.settle()
        await w.settle()
        assert second.registry.members == {}
        await w.clock.advance(11)
        await w.settle()
        assert (second.owns, second._tasks, w.clock._sleepers) == (False, set(), [])


@world
async def test_only_the_owner_of_conf_writes_reconfigurations(w: World) -> None:
    stronger = w.pap(*NAMES, id="pap2", key=SECOND_PAP_KEY, strength=1)
    async with w.pap(*NAMES) as first, stronger as second, w.component("pep1", "ER(1)") as pep:
        await w.settle()
        assert (first.owns, second.owns) == (True, False)
        await second.reconfigure({"DR(1)": OTHER_PDP})
        before = len(await w.fabric.state("bank-RPEP_1"))
        with pytest.raises(RefusedError, match=r"fabric\.not-owner"):
            await first.reconfigure({"DR(1)": TABLE["DR(1)"]})
        with pytest.raises(RefusedError, match=r"fabric\.not-owner"):
            await first.write_applied(PolicyApplied("bank", "psp1", 1, "bank-1", 1.0))
        assert (len(await w.fabric.state("bank-RPEP_1")), await w.fabric.state("bank-APOL_1")) == (before, ())
        await w.clock.advance(2)
        await w.settle()
        assert (pep.number, first.registry.table["DR(1)"]) == (2, OTHER_PDP)
        assert (first.owns, second.owns) == (False, True)


@world
async def test_a_new_owner_finishes_what_the_old_one_has_begun(w: World) -> None:
    first = w.pap(*NAMES)
    second = w.pap(*NAMES, id="pap2", key=SECOND_PAP_KEY)
    await first.join()

    async def no_announcement(_number: int) -> None:
        first._owned = None  # it is killed between CONF and R*
        await first.close()

    first._announce = no_announcement
    async with second, w.component("pep1", "ER(1)") as pep:
        await w.settle()
        await first.reconfigure({"DR(1)": OTHER_PDP}, expected=w.clock.now() + 15)
        await w.settle()
        assert (second.registry.number, pep.number) == (2, 1)
        joining = waited_for(w.component("pdp1", "DR(1)").join())
        await w.settle()
        await w.clock.advance(10.1)
        await joining
        await w.clock.advance(5)
        await w.settle()
        assert pep.number == 2


@world
async def test_a_pap_that_starts_again_knows_its_members(w: World) -> None:
    async with w.pap(*NAMES):
        pep = w.component("pep1", "ER(1)")
        await pep.join()
    async with w.pap(*NAMES) as again:
        assert [*again.registry.members] == ["pep1"]
        await again.reconfigure({"DR(1)": OTHER_PDP})
        await w.clock.advance(2)
        await w.settle()
        assert pep.number == 2
        await pep.leave()


def test_only_an_administrator_can_be_a_pap() -> None:
    with pytest.raises(RefusedError, match=r"component\.certificate"):
        World().pap(key=STRANGER)


@world
async def test_a_pap_that_starts_again_with_a_clock_that_went_back_is_heard(w: World) -> None:
    first = w.pap(*NAMES)
    await first.join()
    async with w.component("pdp1", "DR(1)") as pdp:
        await first.reconfigure({"DR(1)": OTHER_PDP})
        await w.clock.advance(1.1)
        await w.settle()
        await first.leave()
        again = pap(w.fabric, administration(*NAMES), WrongClock(w.clock, -1.5), note=w.notes.append)
        async with again:
            await again.reconfigure({"DR(1)": TABLE["DR(1)"]})
            await w.clock.advance(3)
            await w.settle()
            assert (pdp.number, w.codes) == (3, [])


@world
async def test_two_paps_with_one_id_are_reported_and_both_are_heard(w: World) -> None:
    async with w.pap(*NAMES) as first, w.component("pdp1", "DR(1)") as pdp:
        await w.clock.advance(11)
        async with pap(w.fabric, administration(*NAMES, strength=2), w.clock, note=w.notes.append) as twin:
            await twin.reconfigure({"DR(1)": OTHER_PDP})
            await w.clock.advance(2)
            await w.settle()
            assert (pdp.number, first.registry.number, w.codes) == (2, 2, ["component.id-taken"])


@world
async def test_a_pap_whose_clock_is_behind_does_nothing_until_it_is_right(w: World) -> None:
    async with w.pap(*NAMES), w.component("pdp1", "DR(1)"):
        pass
    slow = WrongClock(w.clock, -60)
    async with pap(w.fabric, administration(*NAMES, id="pap2"), slow, key=SECOND_PAP_KEY, note=w.notes.append) as late:
        joining = waited_for(w.component("pep1", "ER(1)").join())
        await w.settle()
        assert (late.owns, late.registry.members, "component.clock" in w.codes) == (False, {}, True)
        slow.wrong = 0
        await w.clock.advance(11)
        await w.settle()
        assert (late.owns, [*late.registry.members], joining.done()) == (True, ["pep1"], True)


@world
async def test_a_pap_declares_only_topics_that_are_new(w: World) -> None:
    async with w.pap(*NAMES) as p, w.component("pdp1", "DR(1)"):
        declared: list[str] = []
        declare = w.fabric.declare

        async def counting(topic: str, qos: Any) -> None:
            declared.append(topic)
            await declare(topic, qos)

        monkeypatch = pytest.MonkeyPatch()
        monkeypatch.setattr(w.fabric, "declare", counting)
        fact = admitted("pep1", "ER(1)")
        await p.change_roles([SetFact(fact.fact, True, fact.arguments)])
        await w.settle()
        assert declared == []
        await p.reconfigure({"LR(2)": msgspec.structs.replace(TABLE["LR(1)"], write=("APLP_2",))})
        await w.settle()
        assert declared == ["bank-APLP_2"]
        monkeypatch.undo()


# ----------------------------------------------------------------------------------------------------------------------
# Across domains.


PARTNER_ROLES: Final = """
domain bank;
role DR(n: integer) by bank;
role GR(n: integer);
activate GR(n) if role DR(n) by bank *;
"""


@world
async def test_a_role_in_another_domain_ends_with_the_role_that_it_rests_on(w: World) -> None:
    shop = administration(
        domain="shop",
        administrators=frozenset({STRANGER.principal}),
        roles=PARTNER_ROLES,
        table={"GR(1)": TABLE["DR(1)"]},
        founding=(),
        partners={"bank": frozenset({PAP_KEY.principal, SECOND_PAP_KEY.principal})},
    )
    async with (
        w.pap(*NAMES) as bank,
        pap(w.fabric, shop, w.clock, key=STRANGER, note=w.notes.append) as partner,
        w.component("pdp1", "DR(1)") as pdp,
    ):
        shown = (pdp.configuration.certificate,)
        guest = w.component(
            "pdp1", "DR(1)", domain="shop", role="GR(1)", certificates=shown,
            administrators=frozenset({STRANGER.principal}),
        )  # fmt: skip
        await guest.join()
        assert guest.certificate.home == "bank"
        fact = admitted("pdp1", "DR(1)")
        await bank.change_roles([SetFact(fact.fact, False, fact.arguments)])
        await w.settle()
        assert (pdp.configuration, guest.configuration, partner.registry.members) == (None, None, {})
        # The certificate is of no use any more.
        w.notes.clear()
        with pytest.raises(RefusedError) as caught:
            await guest.join()
        assert caught.value.fields["reason"] == "role.revoked"


@world
async def test_a_refused_request_to_join_leaves_nothing_in_the_role_engine(w: World) -> None:
    shop = administration(
        domain="shop",
        administrators=frozenset({STRANGER.principal}),
        roles=PARTNER_ROLES,
        table={"GR(1)": TABLE["DR(1)"], "GR(2)": TABLE["DR(1)"]},
        founding=(),
        partners={"bank": frozenset({PAP_KEY.principal, SECOND_PAP_KEY.principal})},
    )
    async with (
        w.pap(*NAMES),
        pap(w.fabric, shop, w.clock, key=STRANGER, note=w.notes.append) as partner,
        w.component("pdp1", "DR(1)") as pdp,
    ):
        shown = pdp.configuration.certificate
        changed = {"domain": "shop", "administrators": frozenset({STRANGER.principal})}
        image = partner.registry.engine.image()
        for role, certificates in (("GR(2)", (shown,)), ("GR(1)", (shown, b"junk"))):
            with pytest.raises(RefusedError, match=r"component\.rejected"):
                await w.component("pdp1", "DR(1)", role=role, certificates=certificates, **changed).join()
            await w.clock.advance(1)
            now = partner.registry.engine.image()
            assert (now.records, now.sessions, now.revoked) == (image.records, image.sessions, image.revoked)
        async with w.component("pdp1", "DR(1)", role="GR(1)", certificates=(shown,), **changed):
            assert [*partner.registry.members] == ["pdp1"]


@world
async def test_what_cannot_be_closed_keeps_nothing_else_open(world: World) -> None:
    async with world.pap(*NAMES):
        pep = world.component("pep1", "ER(1)")
        await pep.join()
        readers: list[Any] = [*pep._readers.values()]
        publishers: list[Any] = [*pep._publishers.values()]

        async def unreachable() -> None:
            raise FailedError("fabric.unreachable", "no answer")

        publishers[0].close = unreachable
        await pep.close()
        assert world.codes == ["fabric.unreachable"]
        assert all(one._closed for one in (*readers, *publishers[1:]))
        # It opens all topics again.
        await pep.join()
        assert not {*readers} & {*pep._readers.values()}
        assert publishers[0] not in pep._publishers.values()
        await pep.leave()
