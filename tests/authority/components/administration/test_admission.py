"""Strangers cannot fill JOIN and CONF for others, and topics that keep everything stay small."""

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.authority.components.administration.test_administration_point import NAMES, run, settle, state_of
from tests.authority.components.kit import (
    SECOND_PAP_KEY,
    STRANGER,
    TABLE,
    administration,
    admitted,
    key_of,
    pap,
    recorder,
)

from penstock.authority.components.administration.admission import (
    JOIN_BYTES,
    KNOWN_BURST,
    STRANGERS_BURST,
    STRANGERS_RATE,
    JoinAdmission,
)
from penstock.authority.components.administration.live_domain import read_live_domain
from penstock.authority.components.exchange.samples import ComponentSample, JoinRequest, sample_bytes, sample_key
from penstock.authority.components.exchange.topics import TopicKind, TopicLevels, qos_of
from penstock.errors import LimitError, PenstockError, RefusedError
from penstock.fabric import EmbeddedFabric
from penstock.fabric.limits import FabricLimits
from penstock.fabric.tasks import waited_for
from penstock.roles.engine import SetFact
from penstock.testing.fabric_suite import ManualClock

CHANGED = msgspec.structs.replace(TABLE["DR(1)"], combining={"policy": "other"})


def kept(fabric: EmbeddedFabric, topic: str) -> int:
    return len(fabric._topics[f"bank-{topic}"].kept)


def junk_joins(clock: ManualClock, many: int) -> Iterator[tuple[bytes, str]]:
    """Yield requests to join that a stranger signs, each under another id."""
    now = clock.now()
    for number in range(many):
        request = JoinRequest(STRANGER.public.raw, "PEP", "ER(1)")
        made = ComponentSample("bank", "JOIN_1", f"x{number}", number, now, 0, request)
        yield sample_bytes(made, b"", STRANGER), sample_key(made)


async def flood(fabric: EmbeddedFabric, clock: ManualClock, many: int) -> int:
    """Write requests to join as a stranger; return how many were taken."""
    taken = 0
    async with await fabric.publisher("bank-JOIN_1") as writer:
        for data, key in junk_joins(clock, many):
            try:
                await writer.publish(data, key=key)
                taken += 1
            except RefusedError:
                assert kept(fabric, "JOIN_1") == fabric.limits.fabric_history
    return taken


def test_strangers_share_an_allowance_and_known_principals_have_their_own() -> None:
    admission, known, other = JoinAdmission(), key_of("pep1").principal, key_of("pep2").principal
    for _ in range(int(STRANGERS_BURST)):
        admission.take(STRANGER.principal, 100.0, known=False)
    with pytest.raises(RefusedError, match=r"component\.flood"):
        admission.take(other, 100.0, known=False)
    for _ in range(int(KNOWN_BURST)):
        admission.take(known, 100.0, known=True)
    with pytest.raises(RefusedError, match=r"component\.flood"):
        admission.take(known, 100.0, known=True)
    admission.take(other, 100.0, known=True)
    for _ in range(int(STRANGERS_RATE)):
        admission.take(STRANGER.principal, 101.0, known=False)
    with pytest.raises(RefusedError, match=r"component\.flood"):
        admission.take(STRANGER.principal, 101.0, known=False)
    with pytest.raises(LimitError, match=r"component\.limit"):
        admission.check_size(bytes(JOIN_BYTES + 1))


async def _survives(fabric: EmbeddedFabric, clock: ManualClock, notes: list[PenstockError], many: int) -> None:
    """A flood before any PAP runs, and another one while it runs, keep nobody from joining for long."""
    early = recorder(fabric, "pep1", "ER(1)", clock, note=notes.append)
    await fabric.declare("bank-JOIN_1", qos_of(TopicKind.JOIN, TopicLevels()))
    assert await flood(fabric, clock, many) == min(many, fabric.limits.fabric_history)
    joining = waited_for(early.join())
    await settle()
    async with pap(fabric, administration(*NAMES, compact_after=20), clock, note=notes.append) as p:
        await flood(fabric, clock, many)
        for _ in range(30):
            await clock.advance(1)
            while len(p._readers["bank-JOIN_1"].reader) or p._lock.locked():
                await asyncio.sleep(0)
            await settle()
        assert joining.done()
        await joining
        async with recorder(fabric, "pdp1", "DR(1)", clock) as pdp:
            assert sorted(p.registry.members) == ["pdp1", "pep1"]
            await clock.advance(2)
            await settle()
            assert kept(fabric, "JOIN_1") == 0
            assert kept(fabric, "CONF_1") < 200
            assert p.counts["component.flood"] >= many - STRANGERS_BURST - 30 * STRANGERS_RATE
            assert len(p.registry.waiting) + len(p.registry._answered) < 10_100
            second = pap(fabric, administration(*NAMES, id="pap2"), clock, key=SECOND_PAP_KEY)
            async with second:
                assert state_of(second) == state_of(p)
                assert pdp.number == 1
        await early.close()


def test_a_newcomer_joins_although_strangers_have_filled_join() -> None:
    async def test(fabric: Any, clock: ManualClock, notes: list[PenstockError]) -> None:
        fabric.limits = FabricLimits(fabric_history=300)
        await _survives(fabric, clock, notes, 350)
        assert "fabric.full" in [error.code for error in notes]

    run(test)


@pytest.mark.long
def test_a_flood_of_100_000_requests_to_join_keeps_nobody_out() -> None:
    async def test(fabric: Any, clock: ManualClock, notes: list[PenstockError]) -> None:
        await _survives(fabric, clock, notes, 100_000)

    run(test, patience=600)


def test_leases_of_a_domain_at_rest_do_not_fill_topics() -> None:
    async def test(fabric: Any, clock: ManualClock, notes: list[PenstockError]) -> None:
        chosen = administration(*NAMES, compact_after=10, levels=TopicLevels(lease=6.0))
        async with pap(fabric, chosen, clock, note=notes.append) as p, recorder(fabric, "pdp1", "DR(1)", clock) as pdp:
            for _ in range(100):
                await clock.advance(2)
            await settle()
            assert p.registry.grants >= 100
            assert all(kept(fabric, topic) < 60 for topic in ("CONF_1", "RPDP_1", "RPEP_1", "APDP_1"))
            assert (pdp._lease_end >= clock.now() + 4.0, notes) == (True, [])
            # Another PAP knows until when leases run.
            others = administration(*NAMES, id="pap2", levels=TopicLevels(lease=6.0))
            async with pap(fabric, others, clock, key=SECOND_PAP_KEY) as second:
                assert second.earliest() == p.earliest() == p.registry.lease_end

    run(test)


def test_topics_that_keep_all_stay_small_and_a_new_pap_still_catches_up() -> None:
    async def test(fabric: Any, clock: ManualClock, notes: list[PenstockError]) -> None:
        chosen = administration(*NAMES, compact_after=10, topic_secret=bytes(32))
        async with pap(fabric, chosen, clock, note=notes.append) as p, recorder(fabric, "pdp1", "DR(1)", clock) as pdp:
            largest = dict.fromkeys(("CONF_1", "RPDP_1", "APDP_1", "JOIN_1"), 0)
            for turn in range(60):
                await clock.advance(2)
                pep = recorder(fabric, "pep1", "ER(1)", clock)
                await pep.join()
                await (pep.leave() if turn % 3 else pep.close())
                if turn % 2:
                    await p.reconfigure({"DR(1)": CHANGED if turn % 4 == 1 else TABLE["DR(1)"]})
                    await clock.advance(2)
                await settle()
                largest = {topic: max(most, kept(fabric, topic)) for topic, most in largest.items()}
            assert all(most < 90 for most in largest.values()), largest
            await clock.advance(20)
            await settle()
            assert [error for error in notes if error.code != "component.not-applied"] == []
            assert pdp.number == p.registry.number
            async with pap(
                fabric, administration(*NAMES, id="pap2", topic_secret=bytes(32)), clock, key=SECOND_PAP_KEY
            ) as second:
                assert state_of(second) == state_of(p)
            live = await read_live_domain(fabric, chosen, clock.now())
            assert (live.number, [*live.components], live.refused) == (p.registry.number, ["pdp1"], 0)
            # A newcomer works with those that were there before.
            async with recorder(fabric, "pep2", "ER(1)", clock) as newcomer:
                assert newcomer.number == p.registry.number

    run(test)


def test_a_pap_that_has_lost_its_way_takes_over_the_state_of_a_checkpoint() -> None:
    async def test(fabric: Any, clock: ManualClock, notes: list[PenstockError]) -> None:
        async with (
            pap(fabric, administration(*NAMES, compact_after=0), clock) as p,
            pap(fabric, administration(*NAMES, id="pap2"), clock, key=SECOND_PAP_KEY) as second,
            recorder(fabric, "pdp1", "DR(1)", clock),
        ):
            await settle()
            second.registry.members.clear()
            second.registry.digest = b"other"
            async with recorder(fabric, "pep1", "ER(1)", clock):
                for _ in range(15):
                    await p.change_roles([SetFact("admitted", True, admitted("pep3", "ER(1)").arguments)])
                await settle()
                assert state_of(second) == state_of(p)
                assert sorted(second.registry.members) == ["pdp1", "pep1"]

    run(test)


def test_components_that_a_pap_missed_are_shown_after_a_checkpoint() -> None:
    async def test(fabric: Any, clock: ManualClock, notes: list[PenstockError]) -> None:
        chosen = administration(*NAMES, compact_after=0)
        async with pap(fabric, chosen, clock, note=notes.append) as p, recorder(fabric, "pdp1", "DR(1)", clock):
            gone = recorder(fabric, "pep1", "ER(1)", clock)
            await gone.join()
            await gone.close()
            await p.reconfigure({"DR(1)": CHANGED})
            await clock.advance(20)
            for _ in range(30):
                await p.change_roles([SetFact("admitted", True, admitted("pep9", "ER(1)").arguments)])
            live = await read_live_domain(fabric, chosen, clock.now())
            assert {name: code for name, (code, _) in live.missed.items()} == {"pep1": "component.not-applied"}

    run(test)


def test_settings_that_have_changed_count_after_a_checkpoint() -> None:
    async def test(fabric: Any, clock: ManualClock, notes: list[PenstockError]) -> None:
        first = administration(("pep1", "ER(1)"), ("pep2", "ER(1)"), compact_after=0)
        async with pap(fabric, first, clock) as p:
            peps = [recorder(fabric, name, "ER(1)", clock) for name in ("pep1", "pep2")]
            for pep in peps:
                await pep.join()
            for _ in range(12):
                await p.change_roles([SetFact("admitted", True, admitted("pep9", "ER(1)").arguments)])
        await clock.advance(1)
        # Another plan: pep2 may not any more, and pdp1 may.
        async with pap(fabric, administration(("pep1", "ER(1)"), ("pdp1", "DR(1)")), clock) as p:
            await settle()
            assert [*p.registry.members] == ["pep1"]
            assert [error.code for error in peps[1].ends] == ["component.role-lost"]
            async with recorder(fabric, "pdp1", "DR(1)", clock):
                assert sorted(p.registry.members) == ["pdp1", "pep1"]
        for pep in peps:
            await pep.close()

    run(test)
