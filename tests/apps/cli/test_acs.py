"""`penstock acs` and a service in this process: what the commands show, and what they say when something goes wrong."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Event, Thread

import pytest
from tests.apps.conftest import Ran, Shell

from penstock.apps.acs.client import DomainClient
from penstock.apps.acs.config import load_domain
from penstock.apps.acs.service import DomainService, DomainServiceSettings
from penstock.apps.http.server import Bounds, HttpService
from penstock.authority.domain.domain_ledger import DomainLedger
from penstock.errors import FailedError
from penstock.store.files.client_files import load_key
from penstock.store.ledgers.ledgers import Store
from penstock.store.ledgers.memory import MemoryRecords

FILE = """\
name = "grid"
key = "grid.key"
listen = "127.0.0.1:0"
store = "memory:"
names = "names.toml"
administrators = ["alice"]
types = ["reading.type"]
"""
BOUNDS = Bounds(8_192, 1 << 18, 10_000, 10_000, 16)


class Served:
    """A service, and a shell whose user is its administrator."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.loop, self.ready = asyncio.new_event_loop(), Event()
        for who in ("grid", "alice", "met"):
            shell.ok("key", "new", f"{who}.key", "--name", who)
        shell.ok(
            "type",
            "new",
            "org.grid.Reading",
            "--key",
            "grid.key",
            "--attribute",
            "power:float",
            "--out",
            "reading.type",
        )
        (shell.folder / "grid.toml").write_text(FILE)
        loaded = load_domain(str(shell.folder / "grid.toml"), datetime.now(UTC))
        ledger = Store(MemoryRecords()).ledger("domain/grid")
        domain = DomainLedger.create(ledger, "grid", load_key(shell.folder / "grid.key"), datetime.now(UTC))
        self.service = DomainService(domain, DomainServiceSettings(loaded.types))
        self.service.begin(loaded.administrators, loaded.credentials)
        self.http = HttpService(self.service.answer, BOUNDS, "acs.listen", self.service.admit)

    def __call__(self, *words: str, key: str = "alice", domain: str = "grid") -> Ran:
        url = f"http://127.0.0.1:{self.http.port}"
        return self.shell("acs", *words, "--key", f"{key}.key", "--domain", domain, "--service", url)

    def ok(self, *words: str) -> str:
        ran = self(*words)
        assert ran.status == 0, ran
        return ran.out

    def run(self) -> None:
        self.loop.run_until_complete(self.http.start("127.0.0.1", 0))
        self.ready.set()
        self.loop.run_forever()
        self.loop.run_until_complete(self.http.stop())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


@pytest.fixture
def served(penstock: Shell) -> Iterator[Served]:
    made = Served(penstock)
    thread = Thread(target=made.run)
    thread.start()
    assert made.ready.wait(60)
    yield made
    made.loop.call_soon_threadsafe(made.loop.stop)
    thread.join()


ISSUE = ("issue", "--to", "met", "--type-file", "reading.type", "--right", "subscribe", "--no-expiry")


def test_lists_say_who_may_do_what(served: Served) -> None:
    served.ok(*ISSUE, "--out", "met.cert", "--why", "contract 7")
    # The type is the domain's own.
    for name in ("org.grid.Reading", "grid/org.grid.Reading"):
        assert "met     subscribe  all attributes  without expiry  met" in served.ok("holders", name)
    mistyped = served("holders", "org.grid.Readng")
    assert (mistyped.code, "did you mean `org.grid.Reading`?" in mistyped.err) == ("acs.unknown-type", True)
    assert "subscribe on grid/org.grid.Reading" in served.ok("certs")
    assert "met: subscribe on grid/org.grid.Reading, cert:" in served.ok("log")
    assert served("revoke", "cert:").code == served("revoke", "cert:1").code == "acs.certificate"
    short = next(line for line in served.ok("certs").splitlines() if "subscribe" in line).split()[0]
    assert short.endswith("…")
    assert served.ok("revoke", short).strip() == "✓ revoked 1 certificate"
    assert served.ok("revoke", "met.cert").strip() == "nothing to change"
    assert "revoked" in served.ok("certs")
    served.ok("issue", "--to", "met", "--type", "grid/*", "--all-rights", "--no-expiry", "--out", "all.cert")
    assert "all rights on grid/*" in served.ok("certs")


def test_the_file_of_a_short_lived_certificate_revokes_its_renewals(served: Served) -> None:
    served.ok(*ISSUE, "--lifetime", "1h", "--out", "met.cert")
    assert "will be renewed" in served.ok("certs")
    clock = served.service.settings.clock
    served.service.settings = replace(served.service.settings, clock=lambda: clock() + timedelta(minutes=50))
    assert served.service.renew() == 1
    served.service.settings = replace(served.service.settings, clock=clock)
    assert "was renewed" in served.ok("certs")
    assert served.ok("revoke", "met.cert").strip() == "✓ revoked 2 certificates"


def test_refusals_say_what_to_do(served: Served) -> None:
    stranger = served("members", key="met")
    assert "penstock acs issue --to WHO --network DOMAIN/grid --right audit" in stranger.err
    other = served("members", domain="met")
    assert other.code == "acs.wrong-domain"
    assert "this service answers for grid" in other.err
    away = served.shell("acs", "members", "--key", "alice.key", "--domain", "grid", "--service", "http://127.0.0.1:1")
    assert "http://127.0.0.1:1: connection refused" in away.err


def test_a_lost_answer_is_not_taken_for_nothing(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    send, lost = DomainClient._send, list[str]()

    def losing(client: DomainClient, path: str, body: bytes, nonce: bytes) -> Mapping[str, object]:
        answer = send(client, path, body, nonce)
        if path not in lost:
            lost.append(path)
            raise FailedError("acs.unreachable", "the connection was lost")
        return answer

    monkeypatch.setattr(DomainClient, "_send", losing)
    assert "the change was made" in served.ok("add", "met", "--name", "met")
    # A read is asked again.
    assert "met" in served.ok("members")
    issued = served(*ISSUE, "--out", "met.cert")
    assert issued.code == "acs.answer"
    assert "the change was made" in issued.err
    assert served.ok("certs").count("subscribe on grid/org.grid.Reading") == 1
