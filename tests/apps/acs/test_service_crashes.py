"""kill -9 of `penstock acs serve` while many change its domain over HTTP.

Callers add, remove and look at members, issue and revoke. When a service is killed, they repeat the same request at
another one, or at the same one after its restart. Afterwards every acknowledged change is there, no change is half
done, the hash chain verifies, and the history of the contended members is linearizable.
"""

import json
import random
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from tests.apps.acs.kit import ADMIN as MANAGER
from tests.apps.acs.kit import Desk
from tests.authority.domain.linearizable import ADD, LOOK, REMOVE, Call, linearizable, step
from tests.copies import Copy

from penstock.apps.acs.client import DomainClient
from penstock.authority.domain.domain_changes import AddMember, DomainChange, RecordIssued, RemoveMember, RevokeIssued
from penstock.authority.domain.domain_ledger import DomainLedger, ledger_name
from penstock.codec.sexp import canonical, transport
from penstock.crypto import SigningKey
from penstock.crypto.keys import private_key_to_sexp
from penstock.errors import FailedError, RefusedError
from penstock.model.principals import Principal
from penstock.store.ledgers.ledgers import EMPTY
from penstock.store.ledgers.urls import open_store
from penstock.testing.postgres import PostgresServer
from penstock.trust.capabilities import Right, event_tag
from penstock.trust.tags import to_sexp

DOMAIN, ADMIN = SigningKey(bytes(31) + b"\1"), SigningKey(bytes(31) + b"\2")
TAG = transport(to_sexp(event_tag(DOMAIN.principal, "a.T", None, [Right.SUBSCRIBE]))).decode()
#: members that all callers add, remove and look at
SHARED = tuple(str(SigningKey(bytes(30) + bytes((9, number))).principal) for number in range(3))
CALLERS = 6
#: seconds that anything may take
LONGEST = 120.0
FILE = """\
name = "crash"
key = "domain.key"
listen = "127.0.0.1:0"
store = "{store}"
administrators = ["{admin}"]
"""
#: requests that the state of the domain does not allow
NOT_SO = ("acs.member-exists", "acs.unknown-member")


def _nonce(number: int) -> bytes:
    return b"a nonce" + number.to_bytes(11)


class Services:
    """Services of one domain, and the answers that its callers received."""

    def __init__(self, folder: Path, store: str, instances: int) -> None:
        self.folder, self.store = folder, store
        self.processes: list[subprocess.Popen[str] | None] = [None] * instances
        self.urls: list[str | None] = [None] * instances
        self.told: dict[int, dict[str, Any]] = {}
        self.histories: dict[str, list[Call]] = defaultdict(list)
        self.over, self.go = Event(), Event()
        self.known = EMPTY
        self._random = random.Random(22)  # noqa: S311  # the same points in each run
        # Several threads take from it, which a generator refuses.
        self._nonces = map(_nonce, count())
        (folder / "domain.key").write_bytes(canonical(private_key_to_sexp(DOMAIN)))
        (folder / "domain.toml").write_text(FILE.format(store=store, admin=ADMIN.principal))

    @contextmanager
    def running(self, callers: int = CALLERS) -> Iterator[None]:
        """Run the services and callers; at the end all services are killed."""
        pool = ThreadPoolExecutor(CALLERS)
        try:
            for index in range(len(self.processes)):
                self.start(index)
            self.go.set()
            calling = [pool.submit(self._be_caller, number) for number in range(callers)]
            yield
            self.over.set()
            for caller in calling:
                caller.result(LONGEST)
        finally:
            self.over.set()
            self.go.set()
            self.urls = [None] * len(self.urls)
            for process in self.processes:
                if process is not None:
                    process.kill()
                    process.communicate()
            pool.shutdown()
        assert "Traceback" not in self._log
        assert "unexpected" not in self._log

    @property
    def _log(self) -> str:
        return (self.folder / "acs.log").read_text()

    def start(self, index: int) -> None:
        with (self.folder / "acs.log").open("a") as log:
            words = ("acs", "serve", "domain.toml", "-o", "json")
            process = Copy[str](words, stdout=subprocess.PIPE, stderr=log, cwd=self.folder, text=True)
        self.processes[index] = process
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, self._log
        self.urls[index] = json.loads(line)["url"]

    def kill_often(self, points: list[int]) -> None:
        """Kill a service whenever so many changes were acknowledged, start it again, and check everything."""
        for turn, point in enumerate(points):
            self.wait(point)
            time.sleep(self._random.uniform(0, 0.03))
            index = turn % len(self.processes)
            process = self.processes[index]
            assert process is not None
            assert process.poll() is None
            self.urls[index] = None
            process.kill()
            process.communicate()
            self.start(index)
            # Callers begin nothing new meanwhile; what they began is repeated and answered.
            self.go.clear()
            assert self.verify(index) >= point
            self.go.set()

    def wait(self, acknowledged: int) -> None:
        deadline = time.monotonic() + LONGEST
        while len(self.told) < acknowledged:
            assert time.monotonic() < deadline, "the services are too slow, or failed"
            assert not self.over.is_set(), "a caller has failed"
            time.sleep(0.002)

    # --- what callers do ------------------------------------------------------------------------------------------

    def _be_caller(self, number: int) -> None:
        try:
            chance = random.Random(number)  # noqa: S311  # as above
            for turn in count():
                if self.over.is_set():
                    return
                member = str(SigningKey(bytes((7, number)) + turn.to_bytes(8) + bytes(22)).principal)
                self._change("members/add", number, principal=member, name=f"{number}-{turn}")
                self._share(chance, number)
                issued = self._change("certificates/issue", number, to=member, tag=TAG)
                self._share(chance, number)
                if turn % 3 == 0 or not issued:
                    self._change("members/remove", number, principal=member)
                else:
                    self._change("certificates/revoke", number, certificates=[issued[0]["id"]])
        finally:
            self.over.set()

    def _share(self, chance: random.Random, number: int) -> None:
        """Add, remove or look at a member at which others do the same, and note what was answered when."""
        member, what = chance.choice(SHARED), chance.choice((ADD, REMOVE, LOOK))
        begin = time.monotonic()
        if what == LOOK:
            found = self._call("members/list", number)["members"]
            answer = any(one["principal"] == member for one in found)
        else:
            fields = {"name": member[-8:]} if what == ADD else {}
            answer = self._change(f"members/{what}", number, principal=member, **fields) is not None
        self.histories[member].append(Call(begin, time.monotonic(), what, answer))

    def _change(self, path: str, turn: int, **fields: object) -> list[dict[str, Any]] | None:
        """Make a change, and return what was recorded, if it is known; None if it was refused."""
        try:
            changes = self._call(path, turn, **fields)["changes"]
        except RefusedError as error:
            if error.code in NOT_SO:
                return None
            raise
        assert not any(one["number"] in self.told for one in changes), "two were given one number"
        self.told |= {one["number"]: one for one in changes}
        return list(changes)

    def _call(self, path: str, turn: int, **fields: object) -> Any:
        """Call a service until one answers: always with the same nonce, so that a change is made once."""
        self.go.wait(LONGEST)
        nonces, deadline = [next(self._nonces)], time.monotonic() + LONGEST
        for attempt in count(turn):
            url = self.urls[attempt % len(self.urls)]
            if url is not None:
                client = DomainClient(url, DOMAIN.principal, ADMIN, _now, lambda _size: nonces[-1])
                try:
                    return client.call(path, fields)
                except FailedError:
                    assert time.monotonic() < deadline, "no service answers"
                except RefusedError as error:
                    if error.code == "acs.repeated":
                        # The answer was lost, and the change is made.
                        return {"changes": []}
                    if error.code not in ("acs.busy", "acs.answered"):
                        raise
                    # It has changed nothing, and an answer may have been lost.
                    nonces.append(next(self._nonces))
            elif self.over.is_set() and not any(self.urls):
                break
            time.sleep(0.005)
        raise AssertionError("no service is left")

    # --- what must hold -------------------------------------------------------------------------------------------

    def verify(self, index: int = 0) -> int:
        """Check all that must hold after a crash, by the store and by a service; return how many changes there are."""
        told = dict(self.told)
        with open_store(self.store) as store:
            domain = DomainLedger(store.ledger(ledger_name("crash")), DOMAIN)
            # Nothing that was there the last time was replaced.
            self.known = domain.verify(self.known)
            log = {one.number: one.change for one in domain.log()}
        check_whole(log)
        listed: dict[int, dict[str, Any]] = {}
        while not told.keys() <= listed.keys():
            found = self._call_at(index, "changes", after=len(listed), most=1000)["changes"]
            assert found, "an acknowledged change is missing"
            listed |= {one["number"]: one for one in found}
        assert {number: listed[number] for number in told} == told
        return len(log)

    def _call_at(self, index: int, path: str, **fields: object) -> Any:
        client = DomainClient(self.urls[index] or "", DOMAIN.principal, ADMIN, _now, lambda _size: next(self._nonces))
        return client.call(path, fields)

    def code(self, index: int, path: str, fields: dict[str, object]) -> str:
        """Send a request, always with the same nonce, to one service, and return the code of a refusal."""
        nonce = path.encode().ljust(18, b"-")
        try:
            DomainClient(self.urls[index] or "", DOMAIN.principal, ADMIN, _now, lambda _size: nonce).call(path, fields)
        except RefusedError as error:
            return error.code
        return ""


def _now() -> datetime:
    return datetime.now(UTC)


def check_whole(log: dict[int, DomainChange]) -> None:
    """Check that no request is there by half: members and their certificates come and go together."""
    held: dict[Principal, set[str]] = defaultdict(set)
    for number, change in sorted(log.items()):
        following = log.get(number + 1)
        match change.change:
            case AddMember(principal, _, _):
                assert following is not None
                assert isinstance(following.change, RecordIssued)
                [certificate] = following.change.certificate.verify().certificates
                assert certificate.statement.subject == principal
            case RecordIssued(bag):
                [certificate] = bag.verify().certificates
                assert isinstance(certificate.statement.subject, Principal)
                held[certificate.statement.subject].add(certificate.id)
            case RemoveMember(principal):
                assert following is not None
                assert isinstance(following.change, RevokeIssued)
                assert set(following.change.certificates) == held[principal]
            case RevokeIssued(ids):
                for certificates in held.values():
                    certificates -= set(ids)


def killed(services: Services, kills: int, changes: int) -> None:
    """Kill services at so many random points of so many changes."""
    points = sorted(random.Random(kills).sample(range(2, changes), kills))  # noqa: S311  # the same in each run
    with services.running():
        services.kill_often(points)
        services.wait(changes)
        assert services.verify() >= changes
    for calls in services.histories.values():
        assert linearizable(calls, False, step)


def test_the_checker_finds_a_service_that_answers_from_an_old_state(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Desk()
    two = Desk(one.ledger)
    for planted in (False, True):
        if planted:
            monkeypatch.setattr(two.domain, "refresh", lambda: two.domain.state)
        calls: list[Call] = []
        for moment, (desk, what) in enumerate(((one, ADD), (two, LOOK), (one, REMOVE), (two, LOOK))):
            if what == LOOK:
                answer = len(desk.call(MANAGER, "members/list")["members"]) == 1
            else:
                fields = {"principal": SHARED[0]} | ({"name": "shared"} if what == ADD else {})
                answer = len(desk.call(MANAGER, f"members/{what}", **fields)["changes"]) == 2
            calls.append(Call(moment, moment + 0.5, what, answer))
        assert linearizable(calls, False, step) is not planted


def test_a_service_on_sqlite(tmp_path: Path) -> None:
    killed(Services(tmp_path, f"sqlite:{tmp_path}/acs.db", 1), 3, 40)


def test_a_request_to_one_service_cannot_be_replayed_at_another(postgres: PostgresServer, tmp_path: Path) -> None:
    services = Services(tmp_path, postgres.url(postgres.new_database()), 2)
    captured: dict[str, dict[str, object]] = {
        "members/list": {},
        "members/remove": {"principal": SHARED[0]},
        "certificates/issue": {"to": SHARED[0], "tag": TAG},
    }
    with services.running(callers=0):
        assert [services.code(0, *one) for one in captured.items()] == ["", "acs.unknown-member", ""]
        # What was refused would be possible now.
        assert services.code(1, "members/add", {"principal": SHARED[0], "name": "shared"}) == ""
        for index in (1, 0):
            codes = [services.code(index, *one) for one in captured.items()]
            assert codes == ["acs.answered", "acs.answered", "acs.repeated"]


def test_two_services_on_one_postgresql(postgres: PostgresServer, tmp_path: Path) -> None:
    killed(Services(tmp_path, postgres.url(postgres.new_database()), 2), 2, 30)


@pytest.mark.long
def test_fifty_kills_on_sqlite(tmp_path: Path) -> None:
    killed(Services(tmp_path, f"sqlite:{tmp_path}/acs.db", 1), 50, 1_000)


@pytest.mark.long
def test_fifty_kills_of_two_services_on_one_postgresql(postgres: PostgresServer, tmp_path: Path) -> None:
    killed(Services(tmp_path, postgres.url(postgres.new_database()), 2), 50, 1_000)
