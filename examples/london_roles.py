"""The roles of the London example: Detective Smith tracks one numberplate while three conditions are true.

The policies are those of `examples/roles/numberplate` (the dissertation's section 6.1.1). The court order is an
appointment from the court's domain; detective status and case assignment are facts of the Met. Both domains keep their
roles in a store of their own and run an access control service. The Met's issues a capability while the role is active,
and the court's notifies the Met's when an order ends. Everything began some days ago, so that Spark judges past
sightings by the roles of their time.
"""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import penstock
from london_cast import (
    CASE,
    COURT,
    JUDGE,
    MET,
    NETWORK,
    NOW,
    PITO,
    PLATE_TYPE,
    SMITH,
    SUSPECT,
    Issued,
)
from london_network import Company
from penstock.apps.acs.client import DomainClient
from penstock.apps.acs.operations import credentials_of
from penstock.authority.role_book import RoleBook
from penstock.codec.sexp import transport
from penstock.crypto import SigningKey
from penstock.errors import RefusedError
from penstock.guard.roles import RoleAuthority, RoleHistory
from penstock.roles.credentials import accepted, certify
from penstock.roles.engine import (
    ActivateRole,
    Appoint,
    OpenSession,
    RelyOnRecord,
    RoleChange,
    RoleFounding,
    SetFact,
    WithdrawAppointment,
)
from penstock.store.ledgers.urls import open_store
from penstock.trust import Credentials

POLICIES = Path(__file__).parent / "roles" / "numberplate"
#: in the judge's hours
BEGAN = (NOW - timedelta(days=3)).replace(hour=9, minute=0, second=0)
DETECTIVE = (str(SMITH.principal),)
TRACKER = ActivateRole("desk", "tracker", (SUSPECT,))
_SERVICE = """\
name = "{name}"
key = "{slug}.key"
listen = "127.0.0.1:0"
store = "sqlite:{slug}.db"
names = "names.toml"
roles = "roles"
{more}
"""
_MET = """\
types = ["types/"]
credentials = ["met.certs"]
broker = "{broker}"
network = "PITO/{network}"
"""


@dataclass(frozen=True)
class Condition:
    """What the role relies on: how it is withdrawn, where, and how it is restored, if it can be."""

    name: str
    withdraw: RoleChange
    restore: RoleChange | None = None
    by: SigningKey = MET


@dataclass(frozen=True)
class Roles:
    """What was written: the roles at all times, for Spark, and the conditions that can be withdrawn."""

    authority: RoleAuthority
    conditions: tuple[Condition, ...]


def write_roles(folder: Path) -> Roles:
    """Write both role books: the judge issues the court order, and Detective Smith becomes a tracker by it."""
    others = (("court", COURT.principal), ("pito", PITO.principal))
    with open_store(f"sqlite:{folder / 'court.db'}", create=True) as store:
        founding = RoleFounding(COURT.principal, (POLICIES / "court.roles").read_text(encoding="utf-8"))
        court = RoleBook.create(store.ledger("roles"), founding, BEGAN, signer=COURT)
        court.change(Appoint("judgeship", JUDGE.principal, COURT.principal), COURT.principal, BEGAN)
        court.change(OpenSession("bench", JUDGE.principal), JUDGE.principal, BEGAN)
        court.change(ActivateRole("bench", "judge"), JUDGE.principal, BEGAN)
        ends = BEGAN + timedelta(days=30)
        order = Appoint("court_order", SMITH.principal, JUDGE.principal, (CASE, SUSPECT), ends)
        record = court.change(order, JUDGE.principal, BEGAN).record
        assert record is not None  # noqa: S101  # an appointment has one
        court.change(RelyOnRecord(record.id, MET.principal), COURT.principal, BEGAN)
    certificate = certify(record, COURT).value
    case = SetFact("case_assignment", True, (*DETECTIVE, CASE))
    status = SetFact("detective", True, DETECTIVE)
    with open_store(f"sqlite:{folder / 'met.db'}", create=True) as store:
        founding = RoleFounding(MET.principal, (POLICIES / "met.roles").read_text(encoding="utf-8"), others)
        met = RoleBook.create(store.ledger("roles"), founding, BEGAN, signer=MET)
        met.change(accepted(certificate, BEGAN), MET.principal, BEGAN)
        met.change_all([status, case], MET.principal, BEGAN)
        met.change(OpenSession("desk", SMITH.principal), SMITH.principal, BEGAN)
        met.change(TRACKER, SMITH.principal, BEGAN)
        history = RoleHistory(founding.engine(), met.changes())
    history.advance(NOW)
    withdrawals = (
        Condition("the case assignment", SetFact("case_assignment", False, (*DETECTIVE, CASE)), case),
        Condition("detective status", SetFact("detective", False, DETECTIVE), status),
        Condition("the court order", WithdrawAppointment(record.id, COURT.principal), by=COURT),
    )
    return Roles(RoleAuthority(history, frozenset({PITO.principal})), withdrawals)


class Offices:
    """The access control services of the Met and the court, and those who call them."""

    def __init__(self, company: Company, issued: Issued) -> None:
        self._company = company
        self._issued = issued
        self._urls: dict[SigningKey, str] = {}
        #: what Detective Smith shows to her broker
        self.shown = issued.of(SMITH)

    async def start(self) -> None:
        """Start the Met's service, then the court's, which notifies it. Detective Smith gets what her role permits."""
        met = _MET.format(broker=self._company.urls["Met Broker"], network=NETWORK.name)
        text = _SERVICE.format(name="Metropolitan Police", slug="met", more=met)
        self._urls[MET] = await self._company.start_service("met", text)
        court = f'[notify]\nMet = "{self._urls[MET]}"'
        text = _SERVICE.format(name="Crown Court", slug="court", more=court)
        self._urls[COURT] = await self._company.start_service("court", text)
        member = {"principal": str(SMITH.principal), "name": "Detective Smith"}
        await self._call(MET, MET, "members/add", member)
        await self.fetch()

    async def fetch(self) -> None:
        """Have Detective Smith fetch her capability, and write it into the file that she shows."""
        while (found := await self._complete()) is None:
            # The service has just started.
            await asyncio.sleep(0.05)
        self.shown = self._issued.of(SMITH) + found
        (self._company.folder / "detective-smith.certs").write_bytes(self.shown.to_bytes())

    async def _complete(self) -> Credentials | None:
        wanted = {"right": "subscribe", "type": f"{PITO.principal}/{PLATE_TYPE}"}
        try:
            return credentials_of(await self._call(SMITH, MET, "complete", wanted))
        except RefusedError as error:
            if error.code == "acs.no-chain":
                return None
            raise

    async def withdraw(self, condition: Condition) -> None:
        """Withdraw a condition where it was stated."""
        await self._change(condition.by, condition.by, condition.withdraw)

    async def restore(self, condition: Condition) -> None:
        """Restore a condition. Detective Smith activates her role again, and fetches a new capability."""
        assert condition.restore is not None  # noqa: S101  # not asked for the last one
        await self._change(condition.by, condition.by, condition.restore)
        await self._change(SMITH, MET, TRACKER)
        await self.fetch()

    async def is_refused(self) -> bool:
        """Return whether Detective Smith's broker refuses what it permitted before."""
        url = self._company.urls["Met Broker"]
        try:
            async with penstock.connect(url, key=SMITH, network=NETWORK, credentials=self.shown) as client:
                # For no event at all: only the answer counts.
                await client.subscribe(f"{PITO.principal}/{PLATE_TYPE}@7f3a", "numberplate = 'nobody'")
        except RefusedError:
            return True
        return False

    async def _change(self, caller: SigningKey, domain: SigningKey, change: RoleChange) -> None:
        await self._call(caller, domain, "roles/change", {"change": transport(change.to_sexp()).decode()})

    async def _call(
        self, caller: SigningKey, domain: SigningKey, path: str, fields: Mapping[str, object]
    ) -> dict[str, object]:
        client = DomainClient(self._urls[domain], domain.principal, caller, _now, os.urandom)
        return await asyncio.to_thread(client.call, path, fields)


def _now() -> datetime:
    return datetime.now(UTC)
