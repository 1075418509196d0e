"""Log points log verified samples, lose none when they are killed, and audits of their logs are attributes again."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from tests.authority.components.kit import (
    PAP_KEY,
    TABLE,
    administration,
    key_of,
    memory_fabric,
    pap,
    recorder,
)

from penstock.authority.components.exchange.samples import (
    AttributeQuery,
    DecisionReply,
    DecisionRequest,
    InformationField,
    InformationReply,
    InformationRequest,
    RequiredNames,
    SampleRevision,
)
from penstock.authority.components.exchange.topics import ComponentKind, TopicKind
from penstock.authority.components.information.sources import EntityTable
from penstock.authority.components.points.component import ComponentSettings
from penstock.authority.components.points.log_point import AuditAttributes, LogComponent, read_audit
from penstock.authority.decisions.messages import AnswerEffect
from penstock.authority.decisions.questions import AccessQuestion, Entity
from penstock.errors import PenstockError
from penstock.policy.language.requests import SUBJECT
from penstock.testing.fabric_suite import ManualClock

ALL: Final = ("RPLP_1", "QPEP_1", "DREQ_1", "DREP_1", "QPDP_1", "IREQ_1", "IREP_1")
VALUE: Final = "4711-of-alice"
QUESTION: Final = AccessQuestion.of(("customer", "alice"), Entity("", "withdraw", {"pin": VALUE}), ("account", "a-1"))
NAMES: Final = (("atm", "ER(1)"), ("pdp", "DR(1)"), ("pip", "IR(1)"), ("log", "LR(1)"))


class World:
    """A domain with a PEP, a PDP and a PIP that a test speaks for, and a log point."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.clock = ManualClock()
        self.folder = folder
        self.notes: list[PenstockError] = []
        fabric = memory_fabric(self.clock)
        table = {**TABLE, "LR(1)": msgspec.structs.replace(TABLE["LR(1)"], read=settings.pop("read", ALL))}
        self.pap = pap(fabric, administration(*NAMES, table=table), self.clock)
        self.atm, self.pdp, self.pip = (recorder(fabric, name, role, self.clock) for name, role in NAMES[:3])
        own = ComponentSettings(
            domain="bank",
            id="log",
            kind=ComponentKind.PLP,
            role="LR(1)",
            administrators=frozenset({PAP_KEY.principal}),
        )
        self.log = LogComponent(
            fabric, key_of("log"), own, folder, clock=self.clock, note=self.notes.append, **settings
        )

    async def settle(self) -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    async def talk(self) -> None:
        """Let each component say something."""
        await self.atm.write(TopicKind.QPEP, RequiredNames(("account/withdraw",)))
        asked = await self.atm.write(TopicKind.DREQ, DecisionRequest.of(QUESTION))
        query = AttributeQuery(SUBJECT, "customer", "alice", ("pin",))
        informed = await self.pdp.write(TopicKind.IREQ, InformationRequest((query,)))
        found = InformationField(SUBJECT, "customer", "alice", "pin", VALUE, 1.0)
        await self.pip.write(TopicKind.IREP, InformationReply("bank", "pdp", informed.number, (found,)))
        rests = (SampleRevision("bank.accounts", "r1", 1_700_000_000.0),)
        digest = QUESTION.digest
        await self.pdp.write(
            TopicKind.DREP, DecisionReply("bank", "atm", asked.number, digest, AnswerEffect.DENY, rests)
        )
        await self.settle()

    def records(self) -> list[dict[str, Any]]:
        files = sorted(self.folder.glob("*.jsonl")) if self.folder.exists() else []
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def run(world: World, test: Callable[[World], Awaitable[None]]) -> None:
    async def within() -> None:
        async with world.pap:
            joins = [asyncio.ensure_future(one.join()) for one in (world.atm, world.pdp, world.pip, world.log)]
            await asyncio.gather(*joins)
            await test(world)

    asyncio.run(asyncio.wait_for(within(), 20))


def test_all_six_topics_are_logged_without_values(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await world.talk()
        found = {one["data"]["kind"]: one["data"] for one in world.records()}
        assert found.keys() == {"QPEP", "DREQ", "DREP", "IREQ", "IREP"}
        asked = found["DREQ"]
        assert (asked["subject"], asked["action"]) == ({"type": "customer", "id": "alice"}, "withdraw")
        assert (asked["writer"], asked["role"], asked["home"]) == ("atm", "ER(1)", "bank")
        said = found["DREP"]
        assert (said["requester"], said["request"], said["effect"]) == ("atm", asked["number"], "Deny")
        assert said["rests"] == [{"id": "bank.accounts", "revision": "r1", "changed": "2023-11-14T22:13:20+00:00"}]
        assert found["IREP"]["names"] == ["pin"]
        whole = "".join(file.read_text() for file in tmp_path.rglob("*.jsonl"))
        assert VALUE not in whole

    run(World(tmp_path), test)


def test_a_log_point_logs_only_what_its_role_reads(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await world.talk()
        assert [one["data"]["kind"] for one in world.records()] == ["DREP"]

    run(World(tmp_path, read=("RPLP_1", "DREP_1")), test)


def test_a_killed_log_point_has_written_what_it_had_handled(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await world.talk()
        logged = world.log.logged
        # Nothing was closed and no second has passed, as when the process is killed.
        assert len(world.records()) == logged > 0
        await world.clock.advance(2)
        await world.log.leave()
        assert world.notes == []

    run(World(tmp_path), test)


def test_a_long_file_is_followed_by_another(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await world.talk()
        await world.clock.advance(1)
        await world.talk()
        files = sorted(tmp_path.glob("log-*.jsonl"))
        assert len(files) == 2
        assert files[0].stat().st_mode & 0o077 == 0
        assert len(world.records()) == world.log.logged

    run(World(tmp_path, file_bytes=2_000), test)


def test_a_log_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a file, not a folder")

    async def test(world: World) -> None:
        await world.talk()
        assert world.log.logged == 0
        assert {error.code for error in world.notes} == {"log.write"}
        assert world.log.counts["log.write"] > 0

    run(World(tmp_path / "log"), test)


TABLE_OF_REFUSALS: Final = EntityTable("subject", "customer", {"refusals": "refusals"})
QUERY: Final = AttributeQuery(SUBJECT, "customer", "alice", ("refusals",))


def audit_file(folder: Path, now: float, **entities: int) -> Path:
    found = {f"customer:{name}": {"refusals": number} for name, number in entities.items()}
    path = folder / "refusals.json"
    path.write_text(json.dumps({"until": datetime.fromtimestamp(now, UTC).isoformat(), "entities": found}))
    return path


def test_the_result_of_an_audit_is_an_attribute(tmp_path: Path) -> None:
    clock = ManualClock()
    source = AuditAttributes(audit_file(tmp_path, clock.now(), alice=3), TABLE_OF_REFUSALS, clock, max_age=60)

    async def test() -> None:
        found = await source.read(QUERY)
        assert (found["refusals"].value, found["refusals"].changed) == (3, clock.now())
        bob = await source.read(msgspec.structs.replace(QUERY, id="bob"))
        assert bob["refusals"].value == 0  # he was never refused
        assert await source.read(msgspec.structs.replace(QUERY, type="clerk")) == {}
        await clock.advance(30)
        audit_file(tmp_path, clock.now(), alice=4)
        assert (await source.read(QUERY))["refusals"].value == 4
        await clock.advance(61)
        with pytest.raises(PenstockError) as raised:
            await source.read(QUERY)
        assert raised.value.code == "component.audit-old"

    asyncio.run(test())


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"until": 1, "entities": {}}', b'{"until": "2026-05-01T12:00Z"}',
                                  b'{"until": "2026-05-01T12:00Z", "entities": {"a": 1}}'])  # fmt: skip
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(PenstockError) as raised:
        read_audit(data)
    assert raised.value.code == "component.source"
