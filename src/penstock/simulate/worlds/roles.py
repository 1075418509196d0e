"""Roles across two domains: who is on duty in a hospital can read in a laboratory, and gates verify that it still can.

The hospital has two services on one role book in a database. The laboratory has one, relies on records of the hospital,
and is notified of their ends until it has confirmed them. It signs heartbeats and revocations, by which gates decide.

Steps:

- `duty SERVICE PERSON yes|no`: a fact changes at the hospital.
- `work SERVICE PERSON`: a person opens a session at the hospital and activates `doctor`.
- `visit PERSON`: a person presents its role to the laboratory and activates `reader`.
- `enter GATE PERSON`: a person shows its last role of the laboratory at a gate.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from typing import Any, Final

from penstock.authority.role_book import RoleBook
from penstock.codec.sexp import canonical, parse_canonical
from penstock.crypto import SigningKey
from penstock.errors import PenstockError
from penstock.model.principals import Principal
from penstock.roles.credentials import accepted, certify, read_role_certificate
from penstock.roles.engine import (
    ActivateRole,
    CredentialRecord,
    DropCredential,
    NoticesTaken,
    OpenSession,
    RelyOnRecord,
    RoleChange,
    RoleFounding,
    RoleOutcome,
    SetFact,
)
from penstock.roles.language import CredentialKind
from penstock.simulate.scenario import SimulationStep
from penstock.simulate.simulation import Simulation
from penstock.simulate.worlds.records import STORE, opened
from penstock.simulate.worlds.world import ProcessTasks
from penstock.store.ledgers.memory import MemoryRecords
from penstock.trust.certificates import certificate_id
from penstock.trust.signed import SignedValue
from penstock.trust.statement_book import OnlineState, StatementBook
from penstock.trust.statements import (
    ActiveRevocation,
    Heartbeat,
    OnlineKind,
    OnlineTerms,
    StatementAuthor,
    ValidityClaim,
    read_validity_statement,
)

_SERVICES: Final = ("hospital1", "hospital2", "laboratory")
_GATES: Final = ("gate1", "gate2")
_PEOPLE: Final = ("ann", "bob", "cid", "dee")
_HOSPITAL: Final = """
role doctor;
fact on_duty(who: principal);
activate doctor if fact on_duty(principal) *;
"""
_LABORATORY: Final = """
domain hospital;
role doctor by hospital;
role reader; role writer;
activate reader if role doctor by hospital *;
activate writer if role reader *;
"""
#: seconds between heartbeats, and for how long each is valid
_BEAT: Final = 1.0
_PERIOD: Final = timedelta(seconds=4)


def _key(name: str) -> SigningKey:
    return SigningKey(name.encode().ljust(32, b"."))


_TERMS: Final = OnlineTerms(OnlineKind.ACTIVE, _key("laboratory").principal, pause=timedelta(seconds=4))


def _read(data: bytes) -> list[str]:
    found = parse_canonical(data)
    return [one.decode() for one in found if isinstance(one, bytes)] if isinstance(found, tuple) else []


class RolesWorld:
    """See the module. Options: `size`."""

    name = "roles"
    fault_kinds = ("partition", "loss", "duplicate", "reorder", "delay", "slow", "stop", "crash", "skew", "jump")
    #: so that one statement of several is lost, again and again
    fault_amounts: Mapping[str, tuple[float, ...]] = {"loss": (0.1, 0.3, 0.7)}
    fault_targets: Mapping[str, tuple[str, ...]] = {
        **dict.fromkeys(("loss", "partition", "stop", "crash"), (*_SERVICES, *_GATES, STORE)),
        **dict.fromkeys(("duplicate", "reorder", "delay", "slow", "skew", "jump"), (*_SERVICES, *_GATES)),
    }
    step_kinds: Mapping[str, tuple[str, ...]] = {
        "duty": ("SERVICE", "PERSON", "yes|no"),
        "work": ("SERVICE", "PERSON"),
        "visit": ("PERSON",),
        "enter": ("GATE", "PERSON"),
    }
    option_names = ()
    seconds = 60.0
    processes = (*_SERVICES, *_GATES, STORE)

    def __init__(self, options: Mapping[str, int]) -> None:
        del options
        self._records = MemoryRecords()
        self._books: dict[str, RoleBook] = {}
        self._gates: dict[str, StatementBook] = {}
        #: when a gate has heard a statement first, since it started
        self._heard: dict[tuple[str, bytes], datetime] = {}
        #: what gates have on their disks
        self._kept: dict[str, list[bytes]] = {}
        #: what the laboratory has on its disk: its statements
        self._signed: list[SignedValue[ValidityClaim]] = []
        self._authors: dict[str, StatementAuthor] = {}
        #: whether a person is on duty, as it was last noted of a service
        self._known: dict[tuple[str, str], bool] = {}
        #: the certificates of the laboratory with their records, and the last one of each person
        self._issued: dict[str, str] = {}
        self._last: dict[str, str] = {}
        self._number = 0

    def steps(self, random: Random, size: int, within: float) -> tuple[SimulationStep, ...]:
        """Draw a workload: half of it enters gates."""
        found = []
        for _ in range(size):
            at, person = round(random.uniform(0, within), 3), random.choice(_PEOPLE)
            service = random.choice(("hospital1", "hospital2"))
            kind = random.choices(("duty", "work", "visit", "enter"), (2, 2, 2, 6))[0]
            if kind == "duty":
                arguments: tuple[str, ...] = (service, person, random.choice(("yes", "yes", "no")))
            elif kind == "work":
                arguments = (service, person)
            else:
                arguments = (person,) if kind == "visit" else (random.choice(("gate1", "gate2")), person)
            found.append(SimulationStep(at, kind, arguments))
        return tuple(sorted(found, key=lambda step: step.at))

    # --- Processes -----------------------------------------------------------------------------------------------

    async def start(self, simulation: Simulation) -> None:
        """Found both role books with everybody on duty, and start all processes."""
        self._simulation = simulation
        self._tasks = ProcessTasks(simulation)
        await self.restart(STORE)
        hospital, laboratory = _key("hospital"), _key("laboratory")
        store, now = opened(self._records, simulation, "hospital1"), simulation.clock("hospital1").date()
        book = RoleBook.create(store.ledger("hospital"), RoleFounding(hospital.principal, _HOSPITAL), now, "", hospital)
        for person in _PEOPLE:
            book.change(SetFact("on_duty", True, (str(_key(person).principal),)), hospital.principal, now)
        names = (("hospital", hospital.principal),)
        founding = RoleFounding(laboratory.principal, _LABORATORY, names)
        RoleBook.create(store.ledger("laboratory"), founding, now, "", laboratory)
        for process in (*_SERVICES, *_GATES):
            await self.restart(process)
        await asyncio.sleep(2 * _BEAT)

    async def restart(self, process: str) -> None:
        """Start a process again: role books are in the database, statements of the laboratory on its disk."""
        if process == STORE:
            self._tasks.start(process, asyncio.sleep(0))
            return
        if process.startswith("gate"):
            self._heard = {(gate, data): at for (gate, data), at in self._heard.items() if gate != process}
            book = self._gates[process] = StatementBook(_key(process).principal)
            if process in self._kept:
                book.restore([parse_canonical(one) for one in self._kept[process]], self._now(process))
            self._tasks.start(process, asyncio.sleep(0))
            return
        main = self._notify if process.startswith("hospital") else self._vouch
        self._books.pop(process, None)
        self._tasks.start(process, main(process))

    def _now(self, process: str) -> Any:
        return self._simulation.clock(process).date()

    def _send(self, source: str, target: str, data: bytes, deliver: Callable[[bytes], None]) -> None:
        """Send a message; what a process cannot do with it, it drops."""

        def take(received: bytes) -> None:
            try:
                deliver(received)
            except PenstockError as error:
                self._simulation.note(target, "dropped", how=error.code)

        self._simulation.network.send(source, target, data, take)

    def _book(self, process: str) -> RoleBook:
        """Return the role book of a service, opened if it is not open. Raises as `RoleBook`."""
        found = self._books.get(process)
        if found is None:
            domain = process.rstrip("12")
            ledger = opened(self._records, self._simulation, process).ledger(domain)
            found = self._books[process] = RoleBook(ledger, _key(domain))
        return found

    def _change(self, process: str, change: RoleChange) -> RoleOutcome:
        """Change the role book of a service, and note what came of it. Raises as `RoleBook.change`."""
        book = self._book(process)
        self._number += 1
        change_name = f"c{self._number}"
        try:
            outcome = book.change(change, book.founding.domain, self._now(process), change_name)
        except PenstockError as error:
            self._simulation.note(process, "not-changed", change=change_name, how=error.code)
            raise
        self._simulation.note(process, "acknowledged", of=book.founding.domain.short, change=change_name)
        self._conditions(process, book, change)
        self._active(process, book)
        return outcome

    def _conditions(self, process: str, book: RoleBook, change: RoleChange) -> None:
        """Note the conditions that have changed: facts through any service of the hospital, credentials by a notice."""
        for person in _PEOPLE if process.startswith("hospital") else ():
            who = str(_key(person).principal)
            holds = book.engine.fact("on_duty", (who,)) is True
            if self._known.get((process, who)) is not holds:
                self._known[process, who] = holds
                self._simulation.note(process, "condition", name=f"on duty {who}", holds=holds)
        if isinstance(change, DropCredential):
            self._simulation.note(process, "condition", name=f"doctor {change.record}", holds=False)

    def _active(self, process: str, book: RoleBook) -> None:
        """Note the roles that are active, with what they rest on, followed to its end."""
        for record in [one for one in book.engine.records() if one.kind is CredentialKind.ROLE and one.session]:
            holder = str(record.principal)
            conditions = (f"on duty {holder}",) if process.startswith("hospital") else self._foreign(book, record)
            self._simulation.note(process, "role", holder=holder[:16], role=record.name, conditions=conditions)

    def _foreign(self, book: RoleBook, record: CredentialRecord) -> tuple[str, ...]:
        """Return the credentials of the hospital that a role of the laboratory rests on."""
        found: list[str] = []
        for one in record.relies_on:
            kind, issuer, name = one.key
            if kind != "credential":
                continue
            if issuer != book.founding.domain:
                found.append(f"doctor {name}")
            elif (other := book.engine.record(str(name))) is not None:
                found += self._foreign(book, other)
            else:
                found.append(f"record {name}")
        return tuple(found)

    # --- The hospital --------------------------------------------------------------------------------------------

    async def _notify(self, process: str) -> None:
        """Notify the laboratory of records that have ended, until it has confirmed them."""
        while True:
            try:
                notices = self._book(process).current(self._now(process)).notices()
            except PenstockError as error:
                self._simulation.note(process, "store-failed", how=error.code)
                self._books.pop(process, None)
            else:
                for domain, records in notices.items():
                    data = canonical(tuple(one.encode() for one in records))
                    self._send(process, "laboratory", data, self._taking_notices(process, domain))
            await asyncio.sleep(_BEAT)

    def _taking_notices(self, process: str, domain: Principal) -> Callable[[bytes], None]:
        def take(data: bytes) -> None:
            book, issuer = self._book("laboratory"), _key("hospital").principal
            records = _read(data)
            for one in records:
                if not book.engine.revoked(issuer, one):
                    self._change("laboratory", DropCredential(issuer, one))
            self._send("laboratory", process, data, confirm)

        def confirm(data: bytes) -> None:
            left = self._book(process).current(self._now(process)).notices().get(domain, ())
            if taken := tuple(one for one in _read(data) if one in left):
                self._change(process, NoticesTaken(domain, taken))

        return take

    # --- The laboratory ------------------------------------------------------------------------------------------

    async def _vouch(self, process: str) -> None:
        """Send heartbeats and the last revocation to the gates."""
        author = self._authors[process] = StatementAuthor(_key(process))
        author.resume(self._signed)
        while True:
            now = self._now(process)
            try:
                book = self._book(process)
                active = {one.id for one in book.current(now).records()}
            except PenstockError as error:
                # Without its role book it vouches for nothing.
                self._simulation.note(process, "store-failed", how=error.code)
                self._books.pop(process, None)
            else:
                self._active(process, book)
                ended = {name for name, record in self._issued.items() if record not in active}
                if not ended <= author.revoked:
                    signed = author.revoke(now, ended | author.revoked)
                    number, credentials = signed.value.number, tuple(sorted(signed.value.certificates))
                    self._simulation.note(process, "revocation", of=process, number=number, credentials=credentials)
                    self._sign(signed)
                self._sign(author.heartbeat(now, _PERIOD))
                kinds = {type(one.value): one for one in self._signed}
                for gate in ("gate1", "gate2"):
                    for kind in (ActiveRevocation, Heartbeat):
                        if kind in kinds:
                            self._send(process, gate, kinds[kind].to_bytes(), self._hearing(gate))
            await asyncio.sleep(_BEAT)

    def _sign(self, statement: SignedValue[Any]) -> None:
        self._signed = [one for one in self._signed if type(one.value) is not type(statement.value)] + [statement]

    # --- Gates ---------------------------------------------------------------------------------------------------

    def _hearing(self, gate: str) -> Callable[[bytes], None]:
        def hear(data: bytes) -> None:
            book, now = self._gates[gate], self._now(gate)
            statement = read_validity_statement(data).verify()
            value, note = statement.value, self._simulation.note
            # What has arrived, whatever the gate makes of it.
            if isinstance(value, ActiveRevocation):
                for record in sorted(value.certificates):
                    note(gate, "statement-ended", credential=record)
            elif isinstance(value, Heartbeat):
                # It counts from when the gate heard it first, if the laboratory's clock was ahead.
                until = min(value.time, self._heard.setdefault((gate, data), now)) + _PERIOD
                note(gate, "statement", of="laboratory", until=until.timestamp(), number=value.number)
            if book.take(statement, now) and isinstance(value, ActiveRevocation):
                self._kept[gate] = book.remember(value.issuer)

        return hear

    # --- Steps ---------------------------------------------------------------------------------------------------

    async def perform(self, step: SimulationStep) -> None:
        """Perform a step in the process that does it, without waiting for its end."""
        process = step.arguments[0] if step.name != "visit" else "laboratory"
        if self._simulation.runs(process):
            self._tasks.start(process, self._perform(step))

    async def _perform(self, step: SimulationStep) -> None:
        try:
            match step.name, step.arguments:
                case "duty", (service, person, value):
                    self._change(service, SetFact("on_duty", value == "yes", (str(_key(person).principal),)))
                case "work", (service, person):
                    self._work(service, person)
                case "visit", (person,):
                    self._visit(person)
                case "enter", (gate, person):
                    self._enter(gate, person)
        except PenstockError as error:
            self._simulation.note(step.arguments[0], "refused", step=step.name, how=error.code)

    def _work(self, service: str, person: str) -> None:
        session = f"{person}.{self._number}"
        self._change(service, OpenSession(session, _key(person).principal))
        self._change(service, ActivateRole(session, "doctor"))

    def _visit(self, person: str) -> None:
        """Ask the hospital for the person's role, and activate `reader` with it."""
        principal = _key(person).principal

        def rely(_: bytes) -> None:
            book = self._book("hospital1")
            active = book.current(self._now("hospital1")).active(principal)
            for record in active[-1:]:
                self._change("hospital1", RelyOnRecord(record.id, _key("laboratory").principal))
                data = certify(record, _key("hospital")).to_bytes()
                self._send("hospital1", "laboratory", data, read)

        def read(data: bytes) -> None:
            certificate = read_role_certificate(parse_canonical(data))
            self._change("laboratory", accepted(certificate, self._now("laboratory")))
            session = f"{person}.{self._number}"
            self._change("laboratory", OpenSession(session, principal))
            record = self._change("laboratory", ActivateRole(session, "reader")).record
            self._change("laboratory", ActivateRole(session, "writer"))
            if record is not None:
                name = self._last[person] = certificate_id(certify(record, _key("laboratory")).digest)
                self._issued[name] = record.id
                self._simulation.note("laboratory", "issued", credential=name)

        self._send("laboratory", "hospital1", b"visit", rely)

    def _enter(self, gate: str, person: str) -> None:
        credential, now = self._last.get(person), self._now(gate)
        if credential is None:
            return
        status = self._gates[gate].status(_TERMS, credential, now)
        if status.state is OnlineState.VALID:
            fields = {"of": "laboratory", "credential": credential}
            self._simulation.note(gate, "access", **fields, clock=now.timestamp())
        else:
            self._simulation.note(gate, "kept-out", how=status.code)

    # --- The end -------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Let all notices arrive, and note what every service has."""
        await asyncio.sleep(30)
        now = self._now("hospital1")
        for process in _SERVICES:
            book = self._book(process)
            engine = book.current(now)
            domain = book.founding.domain.short
            ledger = opened(self._records, self._simulation, process).ledger(process.rstrip("12"))
            names = tuple(change.why for change in ledger.read(1) if change.why)
            self._simulation.note(process, "holds", of=domain, changes=names)
            # When each has last looked at its clock is its own affair.
            image = replace(engine.image(), now=now)
            state = hashlib.sha256(canonical(image.to_sexp())).hexdigest()[:16]
            self._simulation.note(process, "replica", of=domain, state=state)
        self._end_conditions()

    def _end_conditions(self) -> None:
        """Note at the laboratory which records of the hospital have ended: all notices have arrived."""
        hospital, laboratory = self._book("hospital1").engine, self._book("laboratory")
        active = {one.id for one in hospital.records()}
        for record in [*laboratory.engine.records()]:
            for name in self._foreign(laboratory, record):
                if name.startswith("doctor") and name.split()[1] not in active:
                    self._simulation.note("laboratory", "condition", name=name, holds=False)
        self._active("laboratory", laboratory)
