"""A service and a broker: certificates are pushed, and validity statements end what is live."""

import fcntl
import json
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest
from tests.apps.conftest import Ran, Shell
from tests.apps.node_kit import (
    LONGEST,
    RIGHTS,
    TYPE,
    Running,
    ask,
    bounded,
    eventually,
    grant,
    lay_out,
    node_file,
    running,
    start,
)
from tests.authority.domain.test_signers import PROGRAM
from tests.copies import Copy

from penstock.codec.sexp import canonical
from penstock.crypto import PublicKey, SigningKey
from penstock.testing.nats import NatsServer

NATS = '[nats]\nservers = ["{url}"]\n'
DOMAIN = """\
name = "London"
key = "london.key"
listen = "127.0.0.1:0"
store = "sqlite:london.db"
names = "names.toml"
administrators = ["ops"]
types = ["types/*.type"]
{more}
"""


@contextmanager
def serving(shell: Shell, more: str, domain: str = DOMAIN) -> Iterator[str]:
    """Run `penstock acs serve`, and return its address."""
    (shell.folder / "domain.toml").write_text(domain.format(more=more))
    log = shell.folder / "acs.log"
    with log.open("w") as err:
        process = Copy(
            ["acs", "serve", "domain.toml", "-o", "json"],
            stdout=subprocess.PIPE,
            stderr=err,
            cwd=shell.folder,
            text=True,
        )
        with bounded(process):
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, log.read_text()
            yield json.loads(line)["url"]
            process.terminate()
            assert process.wait(60) == 0
    assert "unexpected" not in log.read_text()


def call(shell: Shell, url: str, *words: str, domain: str = "london") -> Ran:
    made = shell("acs", *words, "--key", "ops.key", "--domain", domain, "--service", url)
    assert made.status == 0, made
    return made


def held(broker: Running) -> int | None:
    """Return how many certificates the broker has used last."""
    lines = [line for line in broker.logged() if line["event"] == "pushed"]
    return lines[-1]["credentials"] if lines else None


@pytest.fixture
def network(penstock: Shell) -> Shell:
    lay_out(penstock)
    (penstock.folder / "certs" / "subscribe.cert").unlink()
    return penstock


def test_a_broker_uses_what_the_domain_issues(network: Shell, server: NatsServer) -> None:
    nats = NATS.format(url=server.url)
    file = node_file(network, "east", f'services = ["london"]\n{nats}')
    with running(network, file) as east, serving(network, nats) as url:
        # The certificate of the administrator is pushed too.
        eventually(lambda: held(east) == 1)
        options = ("--type", TYPE, "--count", "1", "--timeout", "60", "-o", "json")
        assert ask(network, east, "reader", "sub", *options).status == 1
        right = ("--to", "reader", "--type-file", "types/s.type", "--right", "subscribe", "--attribute", "speed")
        call(network, url, "issue", *right, "--no-expiry", "--out", "pushed.cert")
        eventually(lambda: held(east) == 2)
        with start(network, east, "reader", "sub", *options) as reader:

            def arrived() -> bool:
                assert ask(network, east, "camera", "pub", "--type", TYPE, "speed=77").status == 0
                return reader.poll() is not None

            eventually(arrived, 60.0)
            out, _ = reader.communicate(timeout=LONGEST)
            assert json.loads(out.splitlines()[0])["data"]["speed"] == 77
        call(network, url, "revoke", "pushed.cert")
        eventually(lambda: held(east) == 1)
        assert ask(network, east, "reader", "sub", *options).status == 1
        assert east.stop() == 0


def test_services_need_servers(network: Shell) -> None:
    assert network("up", "--check", node_file(network, "east", 'services = ["london"]')).code == "node.missing"


ACTIVE = ("--online", "active", "--interval", "30s")
ROLES = """\
role analyst;
fact assigned(who: principal);
activate analyst if fact assigned(principal) *;
allow analyst to subscribe self/org.london.Sighting(speed);
"""


def is_cut_off(shell: Shell, east: Running, bag: str, revoke: Callable[[], object]) -> None:
    """Check that a live subscription receives events until the revocation, and none after it."""
    shown = ("--type", TYPE, "--credential", "certs/reader.cert", "--credential", bag, "-o", "json")

    def publish(speed: int) -> None:
        assert ask(shell, east, "camera", "pub", "--type", TYPE, f"speed={speed}").status == 0

    with ExitStack() as stack:

        def begin() -> subprocess.Popen[str]:
            return stack.enter_context(start(shell, east, "reader", "sub", *shown))

        reader = begin()

        def heard() -> bool:
            nonlocal reader
            publish(50)
            if reader.poll() is not None:
                # On a busy machine, what permits it for a second ends before it has subscribed.
                assert "broker.not-permitted" in reader.communicate()[1]
                reader = begin()
            assert reader.stdout is not None
            return int.from_bytes(fcntl.ioctl(reader.stdout, termios.FIONREAD, bytes(4)), sys.byteorder) > 0

        eventually(heard)
        revoke()
        # A new subscription is refused when the broker knows of the revocation.
        one = ("--count", "1", "--timeout", "5s")
        eventually(lambda: ask(shell, east, "reader", "sub", *shown, *one).status == 1)
        publish(99)
        reader.send_signal(signal.SIGINT)
        lines, _ = reader.communicate(timeout=LONGEST)
    speeds = {
        json.loads(line)["data"]["speed"] for line in lines.splitlines() if line.startswith("{") and "data" in line
    }
    assert speeds == {50}


@pytest.mark.parametrize("online", [ACTIVE, ("--online", "one-time", "--recheck", "1s")], ids=["active", "one-time"])
def test_a_revocation_cuts_a_live_subscription(network: Shell, online: tuple[str, ...]) -> None:
    with running(network, node_file(network, "east")) as east:
        domain = f'broker = "{east.url}"\nnetwork = "london/London"'
        with serving(network, domain) as url:
            right = ("--to", "reader", "--type-file", "types/s.type", "--right", "subscribe", *online, "--no-expiry")
            call(network, url, "issue", *right, "--out", "reader.live")
            one = ("--type", TYPE, "--credential", "certs/reader.cert", "--credential", "reader.live", "--count", "1")
            # Statements are on their way at first.
            eventually(lambda: ask(network, east, "reader", "sub", *one, "--timeout", "2s").status != 1)
            is_cut_off(network, east, "reader.live", lambda: call(network, url, "revoke", "reader.live"))
        assert east.stop() == 0


@pytest.mark.long
def test_a_live_subscription_goes_on_with_the_renewals_of_its_certificate(network: Shell) -> None:
    with running(network, node_file(network, "east")) as east:
        domain = f'broker = "{east.url}"\nnetwork = "london/London"'
        with serving(network, domain) as url:
            right = ("--to", "reader", "--type-file", "types/s.type", "--right", "subscribe", *ACTIVE, "--no-expiry")
            call(network, url, "issue", *right, "--lifetime", "30s", "--out", "reader.live")
            began = time.monotonic()
            shown = ("--type", TYPE, "--credential", "certs/reader.cert", "--credential", "reader.live", "-o", "json")
            eventually(
                lambda: ask(network, east, "reader", "sub", *shown, "--count", "1", "--timeout", "2s").status != 1
            )
            with start(network, east, "reader", "sub", *shown, "--count", "1") as reader:
                # The certificate that the reader has shown ends after 30 seconds.
                time.sleep(max(0.0, began + 50 - time.monotonic()))
                assert reader.poll() is None, reader.communicate()
                assert ask(network, east, "camera", "pub", "--type", TYPE, "speed=77").status == 0
                out, _ = reader.communicate(timeout=60)
                assert json.loads(out.splitlines()[0])["data"]["speed"] == 77
            # The file has the first certificate, and the renewals are revoked with it.
            call(network, url, "revoke", "reader.live")
            eventually(
                lambda: ask(network, east, "reader", "sub", *shown, "--count", "1", "--timeout", "2s").status == 1
            )
        assert east.stop() == 0


def cut_off_by_outside_signer(shell: Shell, public: PublicKey, command: Sequence[str], nats: NatsServer) -> None:
    """Let a domain whose key a program holds pass on a right, push it to a broker, and revoke it there."""
    who, servers = str(public.principal), NATS.format(url=nats.url)
    (shell.folder / "met.pub").write_bytes(canonical(public.to_sexp()))
    grant(shell, "met.cert", who, "--network", "london/London", "--right", "connect")
    passed_on = ("--type-file", "types/s.type", *RIGHTS, "--propagate", "--no-expiry")
    shell.ok("cert", "issue", "--key", "london.key", "--to", who, *passed_on, "--out", "passed-on.cert")
    file = node_file(shell, "east", f'services = ["{who}"]\n{servers}')
    with running(shell, file) as east:
        more = (
            f"signer = {json.dumps([*command])}\n"
            'credentials = ["passed-on.cert", "certs/met.cert"]\n'
            f'broker = "{east.url}"\nnetwork = "london/London"\n{servers}'
        )
        with serving(shell, more, DOMAIN.replace("London", "met").replace("london.key", "met.pub")) as url:
            right = ("--to", "reader", "--type-file", "types/s.type", "--right", "subscribe", *ACTIVE, "--no-expiry")
            call(shell, url, "issue", *right, "--out", "reader.live", domain=who)
            # The two that the domain was given, the administrator's, and the reader's.
            eventually(lambda: held(east) == 4, 60.0)
            one = ("--type", TYPE, "--credential", "certs/reader.cert", "--count", "1", "--timeout", "2s")
            eventually(lambda: ask(shell, east, "reader", "sub", *one).status != 1, 60.0)
            is_cut_off(shell, east, "certs/reader.cert", lambda: call(shell, url, "revoke", "reader.live", domain=who))
        assert east.stop() == 0


@pytest.mark.long
def test_a_service_whose_key_a_program_holds(network: Shell, server: NatsServer) -> None:
    key = SigningKey(bytes(31) + b"\5")
    (network.folder / "sign.py").write_text(PROGRAM.format(seed=key.seed.hex()))
    program = (sys.executable, "-I", str(network.folder / "sign.py"))
    cut_off_by_outside_signer(network, key.public, program, server)


def test_a_live_subscription_ends_with_its_role(network: Shell) -> None:
    (network.folder / "london.roles").write_text(ROLES)
    store = ("--store", f"sqlite:{network.folder}/london.db")
    network.ok("store", "migrate", store[1])
    network.ok("role", "init", "london.roles", "--domain", "london", *store)
    with running(network, node_file(network, "east")) as east:
        domain = f'roles = "roles"\nbroker = "{east.url}"\nnetwork = "london/London"'
        with serving(network, domain) as url:
            network.ok("role", "fact", "assigned", "reader", *store)
            network.ok("role", "activate", "analyst", "--as", "reader", *store)
            wanted = ("acs", "complete", "subscribe", "--type", TYPE, "--for", "reader", "--out", "live.bag")
            caller = ("--key", "ops.key", "--domain", "london", "--service", url)
            eventually(lambda: network(*wanted, *caller).status == 0)
            end = ("role", "fact", "assigned", "reader", "--set", "false", *store)
            is_cut_off(network, east, "live.bag", lambda: network.ok(*end))
        assert east.stop() == 0
