"""PAPs agree whatever happens, survive what cannot be answered, and admit as many components as Table 5 has."""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.authority.components.kit import (
    PAP_KEY,
    SECOND_PAP_KEY,
    TABLE,
    Recorder,
    administration,
    admitted,
    memory_fabric,
    pap,
    recorder,
)
from tests.authority.failing import leaves_nothing
from tests.budget import examples

from penstock.authority.components.administration import registry
from penstock.authority.components.administration.administration_point import AdministrationComponent
from penstock.authority.components.administration.specification import PolicyAdministration
from penstock.authority.components.exchange.samples import PolicyText, Withdrawal
from penstock.authority.components.exchange.topics import TopicInstance
from penstock.authority.limits import CLOCK_LOOK
from penstock.errors import FailedError, LimitError, PenstockError, RefusedError
from penstock.fabric.limits import FABRIC_BYTES
from penstock.fabric.port import LEASE
from penstock.fabric.tasks import waited_for
from penstock.roles.engine import Appoint, SetFact
from penstock.testing.fabric_suite import ManualClock, WrongClock

NAMES: Final = (("pep1", "ER(1)"), ("pep2", "ER(1)"), ("pdp1", "DR(1)"), ("pdp2", "DR(1)"), ("plp1", "LR(1)"))
CHANGED: Final = msgspec.structs.replace(TABLE["DR(1)"], combining={"policy": "other"})
MOVED: Final = msgspec.structs.replace(TABLE["ER(1)"], write=("APEP_1", "DREQ_2"), read=("RPEP_1", "DREP_2"))


async def settle() -> None:
    for _ in range(40):
        await asyncio.sleep(0)


async def unreachable(*_: object, **__: object) -> None:
    raise FailedError("fabric.unreachable", "no answer")


def state_of(one: AdministrationComponent) -> dict[str, Any]:
    known = one.registry
    members = {
        name: (
            member.certificate.record,
            member.certificate.role_name,
            member.certificate.topics,
            member.certificate.since,
        )
        for name, member in known.members.items()
    }
    return {
        "number": known.number,
        "members": members,
        "table": known.table,
        "waiting": {number: progress.waiting for number, progress in known.progress.items()},
        "finished": known.finished,
        "endings": known.endings,
        "last_ended": known.last_ended,
        "last_missed": known.last_missed,
        "replaced": known.replaced,
        "keys": known.key_numbers,
        "digest": known.digest,
        "roles": sorted((one.session, one.name) for one in known.engine.records() if one.session),
    }


actions = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["join", "leave", "crash", "withdraw"]), st.sampled_from([name for name, _ in NAMES])
        ),
        st.tuples(st.just("reconfigure"), st.sampled_from(["changed", "moved", "back"])),
        st.tuples(st.just("advance"), st.sampled_from(["0.5", "3", "12"])),
        st.tuples(st.just("kill"), st.just("")),
        st.tuples(st.just("burn"), st.sampled_from(["0", "1", "2", "3", "5", "8"])),
        st.tuples(st.sampled_from(["stall", "go on"]), st.sampled_from(["pap1", "pap2"])),
    ),
    min_size=1,
    max_size=14,
)


class FragilePap(AdministrationComponent):
    """A PAP that can be killed between any two of its writes, and that can be slow to read."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        #: how many writes it lives for
        self.fuse: float = math.inf
        self.reads = asyncio.Event()
        self.reads.set()

    def _burn(self) -> None:
        self.fuse -= 1
        if self.fuse < 0:
            raise RefusedError("fabric.closed", "killed")

    async def _guarded(self, *args: Any) -> None:
        await self.reads.wait()
        await super()._guarded(*args)

    async def _commit(self, content: Any) -> None:
        self._burn()
        await super()._commit(content)

    async def _write(self, *args: Any) -> None:
        self._burn()
        await super()._write(*args)

    async def _discard(self, *args: Any) -> None:
        self._burn()
        await super()._discard(*args)


class Crowd:
    """A domain with two PAPs, of which the one that owns CONF may be killed and started again."""

    def __init__(self, **changed: Any) -> None:
        self.changed = changed
        self.clock = ManualClock()
        self.fabric = memory_fabric(self.clock)
        self.notes: list[PenstockError] = []
        self.paps: dict[str, FragilePap] = {}
        self.components: dict[str, Recorder] = {}
        self.joining: dict[str, asyncio.Future[None]] = {}

    async def start(self, name: str) -> None:
        key = {"pap1": PAP_KEY, "pap2": SECOND_PAP_KEY}[name]
        chosen = administration(*NAMES, id=name, **self.changed)
        self.paps[name] = FragilePap(self.fabric, key, chosen, clock=self.clock, note=self.notes.append)
        await self.paps[name].join()

    async def act(self, what: str, detail: str) -> None:
        match what:
            case "join" if detail not in self.components:
                self.components[detail] = recorder(
                    self.fabric, detail, dict(NAMES)[detail], self.clock, note=self.notes.append
                )
                self.joining[detail] = waited_for(self.components[detail].join())
            case "leave" | "crash" if detail in self.components:
                self.joining.pop(detail).cancel()
                component = self.components.pop(detail)
                await (component.leave() if what == "leave" else component.close())
            case "withdraw" | "reconfigure":
                await self._administer(what, detail)
            case "advance":
                await self.clock.advance(float(detail))
            case "kill":
                await self.kill(next((name for name, one in self.paps.items() if one.owns), "pap1"))
            case "burn":
                for one in self.paps.values():
                    one.fuse = float(detail) if one.owns else one.fuse
            case "stall":
                self.paps[detail].reads.clear()
            case "go on":
                self.paps[detail].reads.set()
        await settle()
        for name in [name for name, one in self.paps.items() if one.fuse < 0]:
            await self.kill(name)

    async def kill(self, name: str) -> None:
        """Kill a PAP, and start it again."""
        killed = self.paps.pop(name)
        killed._owned = None  # its claim stays until the lease is over
        await killed.close()
        await settle()
        await self.start(name)
        await settle()

    async def _administer(self, what: str, detail: str) -> None:
        rows = {"changed": {"DR(1)": CHANGED}, "moved": {"ER(1)": MOVED}, "back": {"ER(1)": TABLE["ER(1)"]}}
        for one in self.paps.values():
            with suppress(RefusedError):  # another one owns CONF, or a killed one still does
                if what == "withdraw":
                    fact = admitted(detail, dict(NAMES)[detail])
                    await one.change_roles([SetFact(fact.fact, False, fact.arguments)])
                else:
                    await one.reconfigure(rows[detail])
                break

    async def close(self) -> None:
        for joining in self.joining.values():
            joining.cancel()
        await asyncio.gather(*self.joining.values(), return_exceptions=True)
        for component in self.components.values():
            await component.close()
        for one in self.paps.values():
            await one.close()
        await self.fabric.close()


@settings(max_examples=examples(40))
@given(actions, st.sampled_from([-100, 0, 1_000]), st.booleans())
def test_paps_agree(steps: list[tuple[str, str]], compact_after: int, sealed: bool) -> None:
    """Whatever is killed in the middle of a join, a change of keys, a reconfiguration or a checkpoint."""

    async def whole() -> None:
        crowd = Crowd(compact_after=compact_after, topic_secret=bytes(32) if sealed else b"", rekey_within=5.0)
        await crowd.start("pap1")
        await crowd.start("pap2")
        try:
            for what, detail in steps:
                await crowd.act(what, detail)
            for one in crowd.paps.values():
                one.fuse = math.inf
                one.reads.set()
            for _ in range(12):  # leases and patience end
                await crowd.clock.advance(6)
                await settle()
            first, second = map(state_of, crowd.paps.values())
            assert first == second
            # A third one that only reads agrees too.
            await crowd.paps["pap2"].close()
            await crowd.start("pap2")
            assert state_of(crowd.paps["pap2"]) == first
            # Whoever is a member is in the number of the domain; whoever is not knows it, or has crashed.
            for name, component in crowd.components.items():
                assert (component.number == first["number"]) is (name in first["members"]), name
            # No join is left that nobody has answered.
            assert all(joining.done() for joining in crowd.joining.values())
        finally:
            await crowd.close()

    asyncio.run(whole())


def run(test: Any, patience: float = 60) -> None:
    async def whole() -> None:
        clock, notes = ManualClock(), list[PenstockError]()
        async with asyncio.timeout(patience), memory_fabric(clock) as fabric:
            await test(fabric, clock, notes)

    asyncio.run(whole())


def test_a_configuration_that_no_fabric_carries_is_refused_and_others_join() -> None:
    large = PolicyText("large", "1", 1.0, bytes(600_000))
    table = {**TABLE, "DR(1)": msgspec.structs.replace(TABLE["DR(1)"], policies=(large,))}

    async def test(fabric: Any, clock: ManualClock, notes: list[PenstockError]) -> None:
        async with pap(fabric, administration(*NAMES, table=table), clock, note=notes.append) as p:
            with pytest.raises(RefusedError) as caught:
                await recorder(fabric, "pdp1", "DR(1)", clock).join()
            assert caught.value.fields["reason"] == "component.limit"
            async with recorder(fabric, "pep1", "ER(1)", clock):
                assert [*p.registry.members] == ["pep1"]

    run(test)


def test_a_reconfiguration_that_no_fabric_carries_is_refused_before_anything_happens() -> None:
    large = PolicyText("large", "1", 1.0, bytes(600_000))

    async def test(fabric: Any, clock: ManualClock, notes: list[PenstockError]) -> None:
        async with pap(fabric, administration(*NAMES), clock, note=notes.append) as p:
            with pytest.raises(LimitError, match=r"component\.limit"):
                await p.reconfigure({"DR(1)": msgspec.structs.replace(TABLE["DR(1)"], policies=(large,))})
            assert (p.registry.number, p.registry.table["DR(1)"]) == (1, TABLE["DR(1)"])

    run(test)


def _members(one: AdministrationComponent, like: str, many: int) -> None:
    """Let a domain have many more members, which are like one of them."""
    member = one.registry.members[like]
    for number in range(many):
        certificate = replace(member.certificate, id=f"ghost{number}", record=f"ghost{number}.1")
        one.registry.members[certificate.id] = replace(member, certificate=certificate)


def _many_members(many: int) -> None:
    async def test(fabric: Any, clock: ManualClock, notes: list[PenstockError]) -> None:
        chosen = administration(*NAMES, topic_secret=bytes(32))
        async with pap(fabric, chosen, clock, note=notes.append) as p, recorder(fabric, "pdp1", "DR(1)", clock) as pdp:
            _members(p, "pdp1", many)
            # New topics-lists, hence new certificates and new topic keys for all.
            await p.reconfigure({"DR(1)": msgspec.structs.replace(TABLE["DR(1)"], write=("APDP_1", "DREP_1"))})
            samples = await fabric.state("bank-RPDP_1")
            assert len(samples) > many * 1_000 / FABRIC_BYTES
            await clock.advance(1.1)
            await settle()
            assert pdp.certificate is not None
            assert pdp._keys is not None
            assert (pdp.number, pdp.certificate.since, pdp._keys.number) == (2, 2, 2)

    run(test, patience=300)


def test_a_reconfiguration_for_many_members_is_announced_in_parts() -> None:
    _many_members(1_500)


@pytest.mark.long
def test_a_topic_can_have_5000_members() -> None:
    _many_members(5_000)


def test_what_would_be_too_many_members_are_refused_before_anything_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_RECONFIGURATION_BYTES", registry.SAMPLE_BYTES)

    async def test(fabric: Any, clock: ManualClock, notes: list[PenstockError]) -> None:
        chosen = administration(*NAMES, topic_secret=bytes(32))
        async with pap(fabric, chosen, clock, note=notes.append) as p, recorder(fabric, "pdp1", "DR(1)", clock):
            _members(p, "pdp1", 900)
            with pytest.raises(RefusedError) as caught:
                await recorder(fabric, "pdp2", "DR(1)", clock).join()
            assert caught.value.fields["reason"] == "component.limit"
            with pytest.raises(LimitError, match=r"component\.limit"):
                await p.reconfigure({"DR(1)": msgspec.structs.replace(TABLE["DR(1)"], write=("APDP_1",))})
            assert (p.registry.number, p.registry.progress) == (1, {})

    run(test)


def test_what_was_written_to_conf_without_an_answer_is_followed_by_its_writer_too() -> None:
    async def test(fabric: Any, clock: ManualClock, notes: list[PenstockError]) -> None:
        chosen = administration(*NAMES)
        owner = pap(fabric, replace(chosen, strength=10), clock, note=notes.append)
        standby = pap(fabric, replace(chosen, id="pap2"), clock, key=SECOND_PAP_KEY)
        async with owner, standby, recorder(fabric, "pep1", "ER(1)", clock) as pep:
            publisher: Any = owner._owned
            publish, lost = publisher.publish, list[tuple[bytes, str]]()

            async def publish_late(data: bytes, *, key: str) -> None:
                # The first one is under way for so long that the second one comes right after it.
                lost.append((data, key))
                if len(lost) == 1:
                    raise FailedError("fabric.unreachable", "no answer")
                publisher.publish = publish
                for one, its_key in lost:
                    await publish(one, key=its_key)

            publisher.publish = publish_late
            with pytest.raises(FailedError, match=r"fabric\.unreachable"):
                await owner.reconfigure({"DR(1)": CHANGED})
            await owner.change_roles([admitted("pdp1", "DR(1)")])
            await clock.advance(2)
            await settle()
            assert state_of(standby) == state_of(owner)
            assert (owner.owns, owner.registry.number, pep.number) == (True, 2, 2)

    run(test)


def test_what_was_not_written_to_conf_is_written_when_the_fabric_is_back() -> None:
    async def test(fabric: Any, clock: ManualClock, notes: list[PenstockError]) -> None:
        pep = recorder(fabric, "pep1", "ER(1)", clock)
        async with pap(fabric, administration(*NAMES), clock, note=notes.append) as owner:
            await pep.join()
            publisher: Any = owner._owned
            publish = publisher.publish

            publisher.publish = unreachable
            await pep.leave()
            await settle()
            publisher.publish = publish
            assert ([one.code for one in notes], [*owner.registry.members]) == (["fabric.unreachable"], ["pep1"])
            await clock.advance(LEASE + 0.1)
            await settle()
            assert ([*owner.registry.members], owner.owns) == ([], True)

    run(test)


@pytest.mark.parametrize("failing", ["_write", "_follow_table"])
def test_a_reconfiguration_that_could_not_be_announced_is_announced_later(failing: str) -> None:
    async def test(fabric: Any, clock: ManualClock, notes: list[PenstockError]) -> None:
        pdp = recorder(fabric, "pdp1", "DR(1)", clock)
        async with pap(fabric, administration(*NAMES), clock, note=notes.append) as owner:
            await pdp.join()
            before = getattr(owner, failing)

            setattr(owner, failing, unreachable)
            with pytest.raises(FailedError):
                await owner.reconfigure({"DR(1)": CHANGED})
            await settle()
            await clock.advance(CLOCK_LOOK + 0.1)
            await settle()
            setattr(owner, failing, before)
            for _ in range(4):
                await clock.advance(CLOCK_LOOK + 0.1)
                await settle()
            assert (pdp.number, [*owner.registry.members]) == (owner.registry.number, ["pdp1"])
            assert {one.code for one in notes} == {"fabric.unreachable"}
            assert pdp.configurations[-1].combining == CHANGED.combining

    run(test)


def test_nobody_is_late_for_a_reconfiguration_that_was_not_announced_yet() -> None:
    async def test(fabric: Any, clock: ManualClock, notes: list[PenstockError]) -> None:
        pdp = recorder(fabric, "pdp1", "DR(1)", clock)
        async with pap(fabric, administration(*NAMES), clock, note=notes.append) as owner:
            await pdp.join()
            write = owner._write

            vars(owner)["_write"] = unreachable
            with pytest.raises(FailedError):
                await owner.reconfigure({"DR(1)": CHANGED})
            for _ in range(200):
                await settle()
                await clock.advance(1)
            vars(owner)["_write"] = write
            for _ in range(4):
                await settle()
                await clock.advance(1)
            await settle()
            assert (pdp.number, [*owner.registry.members], pdp.ends) == (owner.registry.number, ["pdp1"], [])

    run(test)


@pytest.mark.parametrize("error", [FailedError("fabric.unreachable", "no answer"), RefusedError("fabric.full", "full")])
def test_what_follows_from_conf_is_written_when_the_fabric_is_back(error: PenstockError) -> None:
    async def test(fabric: Any, clock: ManualClock, notes: list[PenstockError]) -> None:
        pep, pdp = recorder(fabric, "pep1", "ER(1)", clock), recorder(fabric, "pdp1", "DR(1)", clock)
        async with pap(fabric, administration(*NAMES), clock, note=notes.append) as owner:
            await pep.join()
            await pdp.join()
            write, failed = owner._write, list[TopicInstance]()

            async def once_unreachable(instance: TopicInstance, content: Any) -> None:
                if isinstance(content, Withdrawal) and instance not in failed:
                    failed.append(instance)
                    raise error
                await write(instance, content)

            vars(owner)["_write"] = once_unreachable
            await pdp.leave()
            for _ in range(6):
                await settle()
                await clock.advance(1)
            await settle()
            assert len(failed) == len(owner.registry.reconfiguration_topics()) > 1
            assert (owner._owed, [*owner.registry.members]) == ([], ["pep1"])
            assert "pdp1" in pep._verifier._ended

    run(test)


def test_a_pap_that_could_not_do_all_that_a_new_owner_does_does_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(fabric: Any, clock: ManualClock, notes: list[PenstockError]) -> None:
        state, asked = fabric.state, list[str]()

        async def once_unreachable(topic: str, key: str | None = None) -> Any:
            asked.append(topic)
            if "JOIN" in topic and asked.count(topic) == 1:
                raise FailedError("fabric.unreachable", "no answer")
            return await state(topic, key)

        monkeypatch.setattr(fabric, "state", once_unreachable)
        pep = recorder(fabric, "pep1", "ER(1)", clock)
        async with pap(fabric, administration(*NAMES), clock, note=notes.append):
            joining = waited_for(pep.join())
            await settle()
            assert ([one.code for one in notes], pep.joined) == (["fabric.unreachable"], False)
            await clock.advance(CLOCK_LOOK + 0.1)
            await joining
            assert len([topic for topic in asked if "JOIN" in topic]) == 2

    run(test)


def test_a_pap_that_is_closed_begins_nothing() -> None:
    async def test(fabric: Any, clock: ManualClock, notes: list[PenstockError]) -> None:
        owner = pap(fabric, administration(*NAMES), clock, note=notes.append)
        await owner.join()
        await owner.close()
        owner._begin("anything", asyncio.sleep(0))
        owner._schedule()
        await owner._act()
        assert ({*owner._tasks}, owner._timer, owner.owns) == (set(), None, False)
        # It can join again, and reads all topics then.
        async with owner:
            pep = recorder(fabric, "pep1", "ER(1)", clock)
            await pep.join()
            await pep.leave()
            await settle()
            assert [*owner.registry.members] == []

    run(test)


def test_a_pap_whose_clock_is_set_right_does_not_sleep_until_the_time_that_it_was_behind() -> None:
    async def test(fabric: Any, clock: ManualClock, notes: list[PenstockError]) -> None:
        behind = WrongClock(clock)
        chosen = administration(*NAMES)
        standby = pap(fabric, replace(chosen, id="pap2", strength=5), behind, key=SECOND_PAP_KEY, note=notes.append)
        async with pap(fabric, replace(chosen, strength=10), clock) as owner, standby:
            behind.wrong = -3_600.0
            async with recorder(fabric, "pep1", "ER(1)", clock), recorder(fabric, "pdp1", "DR(1)", clock):
                assert "component.clock" in [error.code for error in notes]
                await clock.advance(10)
                # What it does not follow it does not know.
                assert [*owner.registry.members] == ["pep1", "pdp1"]
                assert [*standby.registry.members] == []
                behind.wrong = 0.0
                await clock.advance(CLOCK_LOOK + 0.1)
                await settle()
                assert state_of(standby) == state_of(owner)

    run(test)


def test_a_pap_that_another_one_is_still_ahead_of_waits_before_it_reads_again() -> None:
    async def test(fabric: Any, clock: ManualClock, notes: list[PenstockError]) -> None:
        behind = WrongClock(clock)
        chosen = administration(*NAMES)
        standby = pap(fabric, replace(chosen, id="pap2", strength=5), behind, key=SECOND_PAP_KEY, note=notes.append)
        async with pap(fabric, replace(chosen, strength=10), clock) as owner, standby:
            behind.wrong = -60.0
            read: list[str] = []
            state = fabric.state

            async def counting(topic: str) -> Any:
                if topic == "bank-CONF_1":
                    read.append(topic)
                return await state(topic)

            fabric.state = counting
            async with recorder(fabric, "pep1", "ER(1)", clock):
                await clock.advance(20)
                await settle()
                async with recorder(fabric, "pdp1", "DR(1)", clock):
                    # The first of what was written has its time now, the rest has not.
                    await clock.advance(50)
                    await settle()
                    assert ([*standby.registry.members], [*owner.registry.members]) == (["pep1"], ["pep1", "pdp1"])
                    assert len(read) <= 3
                    await clock.advance(20)
                    await settle()
                    assert state_of(standby) == state_of(owner)
                    assert len(read) <= 4

    run(test)


def test_a_pap_that_may_not_do_what_is_due_tries_again_after_a_pause() -> None:
    async def test(fabric: Any, clock: ManualClock, notes: list[PenstockError]) -> None:
        wrong = WrongClock(clock)
        chosen = administration(*NAMES)
        standby = pap(fabric, replace(chosen, id="pap2", strength=5), wrong, key=SECOND_PAP_KEY, note=notes.append)
        claims: list[str] = []
        publisher = fabric.publisher

        async def counting(topic: str, **chosen: Any) -> Any:
            if chosen.get("strength") == 5 and topic == "bank-CONF_1":
                claims.append(topic)
            return await publisher(topic, **chosen)

        fabric.publisher = counting
        async with pap(fabric, replace(chosen, strength=10), clock) as owner, standby:
            gone = recorder(fabric, "pep1", "ER(1)", clock)
            await gone.join()
            await gone.close()
            # By its clock the patience with the component is over; the other one owns CONF, and waits.
            wrong.wrong = 600.0
            await owner.reconfigure({"DR(1)": CHANGED})
            await settle()
            for _ in range(5):
                await clock.advance(CLOCK_LOOK)
                await settle()
            assert (owner.owns, len(claims)) == (True, 1)
            await clock.advance(LEASE)
            await settle()
            assert 2 <= len(claims) <= 4

    run(test)


@pytest.mark.parametrize(("before", "after"), [(0.0, 600.0), (-600.0, 0.0)], ids=["wrong", "right"])
def test_a_pap_whose_clock_is_set_forward_waits_as_long_for_components(before: float, after: float) -> None:
    """Its clock is wrong from then on, or was wrong before: then the expected time is in ten minutes by that clock."""

    async def test(fabric: Any, clock: ManualClock, notes: list[PenstockError]) -> None:
        wrong = WrongClock(clock)
        async with pap(fabric, administration(*NAMES), wrong, note=notes.append) as owner:
            gone = recorder(fabric, "pep1", "ER(1)", clock)
            await gone.join()
            await gone.close()
            patience = owner.settings.patience
            wrong.wrong = before
            await owner.reconfigure({"DR(1)": CHANGED}, expected=clock.now() + 1)
            await clock.advance(CLOCK_LOOK)
            wrong.wrong = after
            # A PAP looks at its clock as often as that.
            await clock.advance(CLOCK_LOOK)
            await settle()
            await clock.advance(patience - 2 * CLOCK_LOOK)
            await settle()
            assert ([*owner.registry.members], [error.code for error in notes]) == (["pep1"], [])
            await clock.advance(1 + 2 * CLOCK_LOOK)
            await settle()
            assert ([*owner.registry.members], [error.code for error in notes]) == ([], ["component.not-applied"])

    run(test)


def test_a_role_that_ends_while_another_one_is_withdrawn_ends_in_time() -> None:
    async def test(fabric: Any, clock: ManualClock, notes: list[PenstockError]) -> None:
        peps = [recorder(fabric, name, "ER(1)", clock) for name in ("pep1", "pep2")]
        owner = min(PAP_KEY.principal, SECOND_PAP_KEY.principal)
        rules = """
            role ER(n: integer);
            appointment enforcer(n: integer);
            activate ER(n) if appointment enforcer(n) *;
        """
        ends = [datetime.fromtimestamp(clock.now() + seconds, UTC) for seconds in (60, 60.2)]
        founding = tuple(
            Appoint("enforcer", pep._key.principal, owner, (1,), end) for pep, end in zip(peps, ends, strict=True)
        )
        async with pap(fabric, administration(roles=rules, founding=founding), clock, note=notes.append) as p:
            for pep in peps:
                await pep.join()
            assert [*p.registry.members] == ["pep1", "pep2"]
            publisher: Any = p._owned
            publish = publisher.publish

            async def slowly(data: bytes, *, key: str) -> None:
                await clock.sleep(0.5)
                await publish(data, key=key)

            publisher.publish = slowly
            await clock.advance(61.5)
            await settle()
            assert [*p.registry.members] == []
            assert [[error.code for error in pep.ends] for pep in peps] == [["component.role-lost"]] * 2

    run(test)


def test_the_clock_is_looked_at_although_something_else_is_due_before(caplog: pytest.LogCaptureFixture) -> None:
    async def test(fabric: Any, clock: ManualClock, notes: list[PenstockError]) -> None:
        wrong = WrongClock(clock)
        pep, owner = recorder(fabric, "pep1", "ER(1)", clock), min(PAP_KEY.principal, SECOND_PAP_KEY.principal)
        until = datetime.fromtimestamp(clock.now() + 5, UTC)
        rules = """
            role ER(n: integer);
            fact admitted(who: principal, role: string, n: integer);
            appointment enforcer(n: integer);
            activate ER(n) if appointment enforcer(n) *;
            role DR(n: integer);
            activate DR(n) if fact admitted(principal, 'DR', n) *;
        """
        founding = (
            Appoint("enforcer", pep._key.principal, owner, (1,), until),
            *(admitted(name, role) for name, role in NAMES if role == "DR(1)"),
        )
        async with pap(fabric, administration(roles=rules, founding=founding), wrong, note=notes.append) as p:
            await pep.join()
            gone = recorder(fabric, "pdp1", "DR(1)", clock)
            await gone.join()
            await gone.close()
            await p.reconfigure({"DR(1)": CHANGED}, expected=clock.now() + 1)
            await clock.advance(CLOCK_LOOK)
            wrong.wrong = 300.0
            await clock.advance(p.settings.patience - CLOCK_LOOK)
            await settle()
            assert ([*p.registry.members], [one.code for one in notes]) == (["pdp1"], [])

    run(test)
    # Nor does the component fail whose certificate has ended when it leaves its topics from before.
    assert caplog.messages == []


def test_a_role_ends_when_its_time_is_over() -> None:
    async def test(fabric: Any, clock: ManualClock, notes: list[PenstockError]) -> None:
        pep = recorder(fabric, "pep1", "ER(1)", clock)
        until = datetime.fromtimestamp(clock.now() + 60, UTC)
        owner = min(PAP_KEY.principal, SECOND_PAP_KEY.principal)
        rules = """
            role ER(n: integer);
            appointment enforcer(n: integer);
            activate ER(n) if appointment enforcer(n) *;
        """
        chosen = administration(roles=rules, founding=(Appoint("enforcer", pep._key.principal, owner, (1,), until),))
        async with pap(fabric, chosen, clock, note=notes.append) as p:
            await pep.join()
            assert pep.certificate is not None
            assert pep.certificate.validity.ends == until
            await clock.advance(59)
            assert [*p.registry.members] == ["pep1"]
            await clock.advance(2)
            await settle()
            assert [*p.registry.members] == []
            assert [error.code for error in pep.ends] == ["component.role-lost"]

    run(test)


@pytest.mark.long
@pytest.mark.parametrize("secret", [b"", bytes(32)], ids=["signed", "sealed"])
def test_the_components_of_table_5_join_one_domain(secret: bytes) -> None:
    kinds = (("pep", "ER(1)", 478), ("pdp", "DR(1)", 285), ("pip", "IR(1)", 187), ("plp", "LR(1)", 93))
    names = [(f"{kind}{number}", role) for kind, role, many in kinds for number in range(many)]

    async def test(fabric: Any, clock: ManualClock, notes: list[PenstockError]) -> None:
        chosen = administration(*names, ("leaver", "ER(1)"), topic_secret=secret)
        async with pap(fabric, chosen, clock, note=notes.append) as p:
            components = [recorder(fabric, name, role, clock) for name, role in names]
            leaver = recorder(fabric, "leaver", "ER(1)", clock)
            strangers = [recorder(fabric, f"stranger{number}", "DR(1)", clock) for number in range(2)]
            results = await asyncio.gather(
                *(one.join() for one in (*components, leaver, *strangers)), return_exceptions=True
            )
            assert [str(one) for one in results if one is not None] == [str(one) for one in results[-2:]]
            assert [error.code for error in notes] == ["component.rejected"] * 2
            await leaver.leave()
            await settle()
            assert len(p.registry.members) == 1_043
            number = await p.reconfigure({"DR(1)": CHANGED})
            await clock.advance(1.1)
            await p.base_time(number)
            assert {one.number for one in components} == {2}
            assert {one._keys is not None for one in components} == {bool(secret)}
            for one in components:
                await one.close()

    run(test, patience=600)


@pytest.mark.parametrize(("make", "calls"), [(pap, 31), (partial(PolicyAdministration, rules={}), 33)])
def test_a_pap_that_cannot_join_leaves_nothing_open(make: Callable[..., AdministrationComponent], calls: int) -> None:
    """What it had begun to read would go on administering beside the PAP that is started in its place."""
    begun = partial(leaves_nothing, lambda fabric: make(fabric, key=PAP_KEY, settings=administration()))
    assert asyncio.run(begun()) == calls
