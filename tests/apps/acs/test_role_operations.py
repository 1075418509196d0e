"""Roles over the API: who may change what, and notices between the services of two domains."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from tests.authority.domain.kit import memory
from tests.guard.london import MALLORY, MET, NOW, PITO, SMITH, SUSPECT, V8516, numberplate

from penstock.apps.acs.client import DomainClient
from penstock.apps.acs.role_notices import NoticeSender
from penstock.apps.acs.service import DomainService, DomainServiceSettings, RunningDomainService, ServicePlace
from penstock.apps.http.server import Bounds, HttpService
from penstock.authority.domain.domain_changes import AddMember, MemberKind
from penstock.authority.domain.domain_ledger import DomainLedger
from penstock.authority.domain.domain_state import DomainRequest, RegisterRequest
from penstock.authority.role_book import RoleBook
from penstock.codec.sexp import transport
from penstock.crypto import SigningKey
from penstock.errors import FailedError, PenstockError, RefusedError
from penstock.model.principals import Principal
from penstock.roles.engine import (
    AcceptCredential,
    ActivateRole,
    Appoint,
    EndSession,
    ForeignCredential,
    OpenSession,
    RoleChange,
    RoleFounding,
    SetFact,
    WithdrawAppointment,
)
from penstock.roles.language import CredentialKind
from penstock.store.ledgers.ledgers import Ledger
from penstock.store.ledgers.memory import MemoryRecords
from penstock.trust.capabilities import Right
from penstock.trust.certificates import Authorisation, issue
from penstock.trust.credentials import Credentials

EXAMPLE = Path(__file__).parents[3] / "examples" / "roles" / "numberplate"
COURT, JUDGE = SigningKey(b"c" * 32), SigningKey(b"j" * 32)
NAMES = (("court", COURT.principal), ("pito", PITO.principal))
#: within the judge's hours
MORNING = NOW.replace(hour=9)


class Domain:
    """A domain with roles behind its service, on a port of its own."""

    def __init__(self, owner: SigningKey, name: str, clock: Callable[[], datetime] = lambda: MORNING) -> None:
        self.key = owner
        text = (EXAMPLE / f"{name}.roles").read_text()
        founding = RoleFounding(owner.principal, text, tuple(one for one in NAMES if f"domain {one[0]};" in text))
        self.ledger = Ledger(MemoryRecords(), "roles")
        self.book = RoleBook.create(self.ledger, founding, MORNING, signer=owner)
        domain = DomainLedger.create(memory(), name, owner, MORNING)
        settings = DomainServiceSettings({V8516.event_type.name: V8516}, clock=clock, roles=self.book)
        self.clock = clock
        self.service = DomainService(domain, settings)
        for member in (SMITH, JUDGE):
            added = AddMember(member.principal, MemberKind.CLIENT, f"m{member.principal.short}")
            domain.ask(DomainRequest(owner.principal, added), MORNING)
        if name == "met":
            subscribe = Authorisation(PITO.principal, owner.principal, numberplate(Right.SUBSCRIBE), propagate=True)
            received = RegisterRequest(Credentials.of(issue(subscribe, PITO)))
            domain.ask(DomainRequest(owner.principal, received), MORNING)
        self.http = _http(self.service)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Domain"]:
        http = self.http
        await http.start("127.0.0.1", 0)
        try:
            yield self
        finally:
            await http.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.port}"

    async def call(self, who: SigningKey, path: str, **fields: object) -> dict[str, object]:
        client = DomainClient(self.url, self.key.principal, who, self.clock, os.urandom)
        return await asyncio.to_thread(client.call, f"roles/{path}", fields)

    async def change(self, who: SigningKey, change: RoleChange) -> dict[str, object]:
        return await self.call(who, "change", change=transport(change.to_sexp()).decode())

    async def refused(self, who: SigningKey, path: str | RoleChange, **fields: object) -> str:
        with pytest.raises(PenstockError) as caught:
            await (self.call(who, path, **fields) if isinstance(path, str) else self.change(who, path))
        return caught.value.code

    def issued(self, holder: Principal) -> int:
        state = self.service.domain.refresh()
        current = (one.certificate for one in state.issued.values() if one.id not in state.revoked)
        return sum(one.statement.subject == holder for one in current if "role" in state.issued[one.id].purpose)


def _http(service: DomainService) -> HttpService:
    return HttpService(service.answer, Bounds(8_192, 1 << 18, 10_000, 10_000, 16), "acs.listen", service.admit)


async def track(court: Domain, met: Domain) -> str:
    """Let SMITH become a tracker by a court order, and return the order's certificate."""
    await court.change(COURT, Appoint("judgeship", JUDGE.principal, COURT.principal))
    await court.change(JUDGE, OpenSession("bench", JUDGE.principal))
    await court.change(JUDGE, ActivateRole("bench", "judge"))
    order = await court.change(JUDGE, Appoint("court_order", SMITH.principal, JUDGE.principal, ("C7", SUSPECT)))
    [record] = [order["record"]]
    assert isinstance(record, dict)
    certified = await court.call(SMITH, "certify", record=record["record"], to=str(MET.principal))
    await met.call(SMITH, "present", certificate=certified["certificate"])
    for fact, arguments in (("detective", ()), ("case_assignment", ("C7",))):
        await met.change(MET, SetFact(fact, True, (str(SMITH.principal), *arguments)))
    await met.change(SMITH, OpenSession("desk", SMITH.principal))
    await met.change(SMITH, ActivateRole("desk", "tracker", (SUSPECT,)))
    return str(certified["certificate"])


@asynccontextmanager
async def domains() -> AsyncIterator[tuple[Domain, Domain]]:
    async with Domain(COURT, "court").listening() as court, Domain(MET, "met").listening() as met:
        yield court, met


def test_a_capability_follows_before_the_change_is_acknowledged() -> None:
    async def run() -> None:
        async with domains() as (court, met):
            await track(court, met)
            assert met.issued(SMITH.principal) == 1
            await met.change(MET, SetFact("detective", False, (str(SMITH.principal),)))
            assert met.issued(SMITH.principal) == 0
            assert not met.service.role_problems

    asyncio.run(run())


def test_a_withdrawal_ends_a_role_in_the_other_domain() -> None:
    async def run() -> None:
        async with domains() as (court, met):
            certificate = await track(court, met)
            problems: list[PenstockError] = []
            sender = NoticeSender(court.service, court.book, {MET.principal: met.url}, problems.append)
            await sender.send()
            assert await met.refused(COURT, "ended", records=[]) == "acs.fields"
            sending = asyncio.create_task(sender.run())
            await court.change(JUDGE, WithdrawAppointment("3", JUDGE.principal))
            async with asyncio.timeout(10):
                while met.issued(SMITH.principal) or court.book.engine.notices():
                    await asyncio.sleep(0.005)
            sending.cancel()
            assert not problems
            # The certificate is signed and not expired. It is refused all the same, and another notice changes nothing.
            assert await met.refused(SMITH, "present", certificate=certificate) == "role.revoked"
            before = met.ledger.head()
            assert await met.call(COURT, "ended", records=["3"]) == {"records": 0}
            assert met.ledger.head() == before

    asyncio.run(run())


def test_a_notice_waits_until_the_other_service_is_there_and_survives_a_restart() -> None:
    async def run() -> None:
        async with domains() as (court, met):
            await track(court, met)
            await court.change(JUDGE, WithdrawAppointment("3", JUDGE.principal))
            problems: list[PenstockError] = []
            nobody = NoticeSender(court.service, court.book, {MET.principal: "http://127.0.0.1:1"}, problems.append)
            await nobody.send()
            await nobody.send()
            assert [(type(one), one.code) for one in problems] == [(FailedError, "acs.unreachable")]
            # Another service of the court reads the store.
            again = RoleBook(court.ledger, COURT)
            assert again.engine.notices() == {MET.principal: ("3",)}
            court.service.settings = replace(court.service.settings, roles=again)
            await NoticeSender(court.service, again, {MET.principal: met.url}, problems.append).send()
            assert len(problems) == 1
            assert met.issued(SMITH.principal) == 0
            assert RoleBook(court.ledger).engine.notices() == {}

    asyncio.run(run())


def test_a_notice_before_the_certificate_counts() -> None:
    async def run() -> None:
        async with domains() as (court, met):
            await met.call(COURT, "ended", records=["3"])
            with pytest.raises(PenstockError) as caught:
                await track(court, met)
            assert caught.value.code == "role.revoked"

    asyncio.run(run())


def test_nobody_acts_for_others() -> None:
    async def run() -> None:
        async with domains() as (court, met):
            await track(court, met)
            smith, judge = SMITH.principal, JUDGE.principal
            for who, change, code in (
                (MALLORY, OpenSession("s", MALLORY.principal), "acs.not-permitted"),
                (SMITH, OpenSession("s", judge), "acs.not-permitted"),
                (JUDGE, ActivateRole("desk", "tracker", (SUSPECT,)), "acs.not-permitted"),
                (JUDGE, EndSession("desk"), "acs.not-permitted"),
                (SMITH, SetFact("detective", True, (str(judge),)), "acs.not-permitted"),
                (COURT, SetFact("detective", False, (str(smith),)), "acs.not-permitted"),
            ):
                assert await met.refused(who, change) == code
            foreign = ForeignCredential(
                COURT.principal, "9", CredentialKind.APPOINTMENT, "court_order", smith, ("C7", SUSPECT)
            )
            assert await met.refused(MET, AcceptCredential(foreign)) == "acs.not-permitted"
            assert await court.refused(SMITH, Appoint("judgeship", smith, smith)) == "role.not-appointer"
            assert await court.refused(COURT, Appoint("judgeship", smith, judge)) == "acs.not-permitted"
            # Only domains that the policy names say what has ended, each about its own records.
            assert await met.refused(SMITH, "ended", records=["3"]) == "acs.not-permitted"
            assert await met.refused(MET, "ended", records=["3"]) == "acs.not-permitted"
            assert await met.call(PITO, "ended", records=["3"]) == {"records": 1}
            assert met.issued(smith) == 1
            assert await court.refused(MALLORY, "certify", record="3", to=str(PITO.principal)) == "acs.not-permitted"
            assert await court.refused(COURT, "certify", record="99", to=str(PITO.principal)) == "role.no-record"
            bare = DomainService(met.service.domain, DomainServiceSettings(clock=lambda: MORNING))
            met.service.settings = bare.settings
            assert await met.refused(COURT, "ended", records=["3"]) == "acs.no-roles"

    asyncio.run(run())


def test_a_request_is_applied_once_by_all_services() -> None:
    async def run() -> None:
        async with domains() as (court, _met):
            change = transport(Appoint("judgeship", JUDGE.principal, COURT.principal).to_sexp()).decode()
            client = DomainClient(court.url, COURT.principal, COURT, lambda: MORNING, lambda size: b"n" * size)
            await asyncio.to_thread(client.call, "roles/change", {"change": change})
            # A second service on the same store has not seen the request; the ledger has.
            court.service = DomainService(court.service.domain, court.service.settings)
            court.http = _http(court.service)
            async with court.listening():
                with pytest.raises(PenstockError) as caught:
                    await asyncio.to_thread(replace(client, url=court.url).call, "roles/change", {"change": change})
            assert caught.value.code == "acs.repeated"
            assert len([*RoleBook(court.ledger).engine.records()]) == 1

    asyncio.run(run())


def test_privileges_that_cannot_be_capabilities_are_noted_once() -> None:
    lines: list[str] = []
    met = Domain(MET, "met")
    running = RunningDomainService(met.service, ServicePlace("127.0.0.1", 0), lines.append)
    for problems in ((), ("a",), ("a",), ("a", "b"), (), ("a",)):
        met.service.role_problems = tuple(RefusedError("acs.role-predicate", one) for one in problems)
        running._note_role_problems()
    assert [line[0] for line in lines] == ["a", "b", "a"]
