"""A running domain is read from CONF, and a plan is compared with it."""

import asyncio
from typing import Any

import msgspec
import pytest
from tests.authority.components.kit import STRANGER, TABLE, administration, memory_fabric, pap, recorder

from penstock.authority.components.administration.live_domain import LiveDomain, read_live_domain, role_differences
from penstock.authority.components.exchange.samples import SILENT, PolicyText, RoleConfiguration
from penstock.authority.components.exchange.topics import TopicLevels
from penstock.testing.fabric_suite import ManualClock

ROW = msgspec.structs.replace(
    TABLE["DR(1)"],
    combining={"policy": "deny-overrides"},
    priorities={"a": 1},
    policies=(PolicyText("a", "r1", 1.0, b"x"), PolicyText("b", "r1", 1.0, b"y")),
)


def changed(**fields: Any) -> RoleConfiguration:
    return msgspec.structs.replace(ROW, **fields)


def lines(before: RoleConfiguration | None, after: RoleConfiguration | None) -> list[str]:
    live = LiveDomain(1, {}, {} if before is None else {"DR(1)": before}, {})
    found = role_differences(live, {} if after is None else {"DR(1)": after})
    return [change for one in found for change in one.changes]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (ROW, []),
        (changed(policies=(PolicyText("a", "r1", 9.0, b"x"), PolicyText("b", "r1", 9.0, b"y"))), []),
        (None, ["the role ends"]),
        (changed(write=(*ROW.write, "DREP_2")), ["it can write DREP_2"]),
        (changed(read=ROW.read[:-1]), ["it can no longer read IREP_1"]),
        (changed(kind="PIP"), ["the role is one of PIPs, no longer of PDPs"]),
        (
            changed(combining={"policy": "permit-overrides"}),
            ["the combining algorithm for policy is `permit-overrides`, no longer `deny-overrides`"],
        ),
        (
            changed(priorities={"a": 1, "b": 2}),
            ["the priority of b is `2`, no longer not given"],
        ),
        (
            changed(policies=(PolicyText("a", "r2", 2.0, b"z"), PolicyText("c", "r1", 2.0, b"w"))),
            ["policy c is added", "policy b is removed", "policy a changes"],
        ),
        (changed(policies=ROW.policies[::-1]), ["the order of its policies changes"]),
    ],
)
def test_what_a_plan_changes(after: RoleConfiguration | None, expected: list[str]) -> None:
    assert lines(ROW, after) == expected


def test_a_role_that_nobody_has_taken_is_new() -> None:
    assert lines(None, ROW) == ["the role is new"]


def test_unchanged_policies_keep_their_change_time() -> None:
    later = changed(priorities={}, policies=tuple(msgspec.structs.replace(one, changed=9.0) for one in ROW.policies))
    [found] = role_differences(LiveDomain(1, {}, {"DR(1)": ROW}, {}), {"DR(1)": later})
    assert found.after is not None
    assert [one.changed for one in found.after.policies] == [1.0, 1.0]


def test_policies_of_psps_stay() -> None:
    live = LiveDomain(1, {}, {"DR(1)": ROW}, {}, specified=frozenset({"b"}))
    assert role_differences(live, {"DR(1)": changed(policies=ROW.policies[:1])}) == []
    [found] = role_differences(live, {"DR(1)": changed(policies=())})
    assert found.changes == ("policy a is removed",)


def test_a_domain_is_read_without_being_a_pap() -> None:
    async def test() -> None:
        clock = ManualClock()
        fabric = memory_fabric(clock)
        settings = administration(("atm", "ER(1)"), ("pdp", "DR(1)"))
        async with pap(fabric, settings, clock) as owner:
            atm, pdp = (recorder(fabric, name, role, clock) for name, role in (("atm", "ER(1)"), ("pdp", "DR(1)")))
            await asyncio.gather(atm.join(), pdp.join())
            live = await read_live_domain(fabric, settings, clock.now())
            assert {id_: one.role_name for id_, one in live.components.items()} == {"atm": "ER(1)", "pdp": "DR(1)"}
            assert (live.number, live.refused) == (1, 0)
            table = {name: row for name, row in TABLE.items() if name in live.roles}
            assert role_differences(live, table) == []
            other = msgspec.structs.replace(TABLE["DR(1)"], combining={"policy": "other"})
            [found] = role_differences(live, {**table, "DR(1)": other})
            assert (found.role, found.components) == ("DR(1)", ("pdp",))
            number = await owner.reconfigure({"DR(1)": other})
            live = await read_live_domain(fabric, settings, clock.now())
            assert (live.number, [*live.pending]) == (number, [number])
            assert role_differences(live, {**table, "DR(1)": other}) == []
            # What others than administrators have written does not count.
            strangers = administration(administrators=frozenset({STRANGER.principal}))
            live = await read_live_domain(fabric, strangers, clock.now())
            assert live.components == {}
            assert live.refused > 0
            await atm.close()
            await pdp.close()

    asyncio.run(asyncio.wait_for(test(), 20))


def test_a_component_that_was_killed_is_gone_after_the_lease() -> None:
    async def test() -> None:
        clock = ManualClock()
        fabric = memory_fabric(clock)
        settings = administration(("atm", "ER(1)"), levels=TopicLevels(lease=6.0))
        async with pap(fabric, settings, clock):
            atm = recorder(fabric, "atm", "ER(1)", clock)
            await atm.join()
            await atm.close()  # without a word
            await clock.advance(6.1)
            live = await read_live_domain(fabric, settings, clock.now())
            assert ([*live.components], {id_: code for id_, (code, _) in live.missed.items()}) == ([], {"atm": SILENT})
            async with recorder(fabric, "atm", "ER(1)", clock):
                live = await read_live_domain(fabric, settings, clock.now())
                assert ([*live.components], live.missed) == (["atm"], {})

    asyncio.run(asyncio.wait_for(test(), 20))
