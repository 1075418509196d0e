"""Refusals for lack of rights name who, which right and which type, and the command in their hint explains them."""

import asyncio
import re
import shlex
import socket
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.apps.conftest import Ran, Shell
from tests.apps.node_kit import TYPE, Running, ask, grant, lay_out, node_file, running

from penstock.broker.client.client import Client, connect
from penstock.errors import PenstockError, RefusedError
from penstock.guard import CapabilityAuthority, EventRequest, decide
from penstock.guard.decision import Decision, DecisionProblem, Effect
from penstock.model.names import NetworkName, TypeName
from penstock.model.types import TypeDefinition
from penstock.store.files.client_files import load_credentials, load_key, load_type
from penstock.trust.capabilities import Right
from penstock.trust.event_types import sign_type, verify_type
from penstock.trust.refusals import LackedRight

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "errors.md"
COMMAND = re.compile(r"`(penstock explain [^`]+)`")


def codes_of_rights() -> set[str]:
    """Return the codes that the page of errors lists as refusals for lack of rights."""
    section = PAGE.read_text().partition("## Refusals for lack of rights")[2].partition("\n## ")[0]
    return set(re.findall(r"^- `([a-z.-]+)`", section, re.MULTILINE))


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Return a shell in a folder with a network in it."""
    shell = Shell(tmp_path_factory.mktemp("network"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(shell.folder)
        patch.delenv("PENSTOCK_NAMES", raising=False)
        patch.setenv("XDG_CONFIG_HOME", str(shell.folder / "config"))
        lay_out(shell)
        for number, who in enumerate(("stranger", "slow"), 71):
            # The network is made once for all modules, so this shell would draw the bytes of its keys again.
            made = shell("key", "new", f"{who}.key", "--name", who, random=bytes([number]).__mul__)
            assert made.status == 0, made.err
        grant(shell, "slow.cert", "slow", "--network", "london/London", "--right", "connect")
        few = ("--type-file", "types/s.type", "--right", "publish", "--where", "speed < 30")
        grant(shell, "few.cert", "slow", *few)
        yield shell


@pytest.fixture(scope="module")
def broker(network: Shell) -> Iterator[Running]:
    """Run one broker."""
    with running(network, node_file(network)) as found:
        yield found


def explains(shell: Shell, error: str, hint: str, sentence: str, code: str) -> None:
    """Check the parts of a refusal, and that the command in its hint explains it."""
    assert sentence in error
    assert f"[{code}]" in error
    [command] = COMMAND.findall(hint)
    ran = shell(*shlex.split(command)[1:])
    assert ran.status == 1, ran.err
    # `explain` does not repeat the owner of the type.
    assert f"✗ {sentence.replace('london/', '')}" in ran.out


def lines(ran: Ran) -> tuple[str, str]:
    """Return the error and the hint that a command has printed."""
    found = {line.partition(": ")[0]: line for line in ran.err.splitlines()}
    return found["error"], found["hint"]


CLI: dict[str, tuple[str, str, tuple[str, ...], str]] = {
    "connecting": (
        "broker.not-permitted",
        "stranger",
        ("sub", "--timeout", "9s", "--type", TYPE),
        "stranger may not connect to London",
    ),
    "subscribing": (
        "broker.not-permitted",
        "camera",
        ("sub", "--timeout", "9s", "--type", TYPE),
        "camera may not subscribe to london/org.london.Sighting@0",
    ),
    "a type file": (
        "broker.not-permitted",
        "camera",
        ("sub", "--type-file", "types/s.type"),
        "camera may not subscribe to london/org.london.Sighting@0",
    ),
    "publishing": (
        "broker.not-permitted",
        "reader",
        ("pub", "--type", TYPE, "speed=1"),
        "reader may not publish london/org.london.Sighting@0",
    ),
    "an event": (
        "guard.not-permitted",
        "slow",
        ("pub", "--type-file", "types/s.type", "--wait", "0", "speed=31", "--credential", "certs/few.cert"),
        "slow may not publish london/org.london.Sighting@0",
    ),
}


@pytest.mark.parametrize("case", CLI)
def test_the_command_line(network: Shell, broker: Running, case: str) -> None:
    code, who, (noun, *words), sentence = CLI[case]
    ran = ask(network, broker, who, noun, *words)
    assert (ran.status, ran.code) == (1, code)
    error, hint = lines(ran)
    assert f"--key {who}.key" in hint
    if case == "an event":
        # The right exists, and the command shows its condition.
        [command] = COMMAND.findall(hint)
        found = network.ok(*shlex.split(command)[1:]).out
        assert sentence in error
        assert "speed < 30" in found
    else:
        explains(network, error, hint, sentence.replace("connect to London", "connect to london/London"), code)


def test_lines_of_events(network: Shell, broker: Running) -> None:
    ran = ask(network, broker, "reader", "pub", "--type", TYPE, "--file", "-", "--wait", "0", stdin='{"speed": 1}\n')
    assert ran.code == "pub.refused"
    assert "event 1: reader may not publish london/org.london.Sighting@0 [broker.not-permitted]" in ran.err
    assert COMMAND.findall(lines(ran)[1])


def test_restrictions(network: Shell, broker: Running) -> None:
    grant(network, "deaf.cert", "slow", "--type-file", "types/s.type", "--right", "subscribe", "--attribute", "speed")
    words = ("sub", "--timeout", "9s", "--type", TYPE, "--restrictions", "--credential", "certs/deaf.cert")
    ran = ask(network, broker, "slow", *words)
    error, hint = lines(ran)
    sentence = "slow may not ask about restrictions on london/org.london.Sighting@0"
    explains(network, error, hint, sentence, "broker.not-told")


def test_a_context(network: Shell, broker: Running) -> None:
    network.ok(
        *("context", "add", "camera", "--broker", broker.url, "--network", "london/London", "--key", "camera.key"),
        *("--type-file", "types/s.type"),
    )
    ran = network("sub", "--timeout", "9s")
    error, hint = lines(ran)
    assert "`penstock explain --context camera --right subscribe`" in hint
    explains(network, error, hint, "camera may not subscribe to london/org.london.Sighting@0", "broker.not-permitted")
    # The broker has read the camera's certificates from its own files.
    without = network("explain", "--context", "camera", "--right", "publish")
    assert (without.status, f"{broker.url} permits it by certificates that it has" in without.out) == (0, True)
    # As data the hint is the same.
    ran = network("sub", "--timeout", "9s", "--context", "camera", "-o", "json")
    assert "`penstock explain --context camera --right subscribe`" in ran.err
    network.ok("context", "remove", "camera")


async def _subscribe(client: Client, name: TypeName) -> object:
    return await client.subscribe(name)


PROGRAMS: dict[Right, tuple[str, Callable[[Client, TypeName], Awaitable[object]]]] = {
    Right.SUBSCRIBE: ("subscribe to", _subscribe),
    Right.INSTALL: ("install types on", lambda client, _: client.add_type(load_type("other.type"))),
    Right.MANAGE: ("manage", lambda client, name: client.remove_type(name)),
}


@pytest.mark.parametrize("right", PROGRAMS)
def test_a_program(network: Shell, broker: Running, right: Right) -> None:
    words, work = PROGRAMS[right]
    network.ok("type", "new", "org.london.Other", "--key", "london.key", "--out", "other.type", "--overwrite")

    async def fails() -> RefusedError:
        key, place = load_key("camera.key"), NetworkName(load_key("london.key").principal, "London")
        async with connect(broker.url, key=key, network=place) as client:
            with pytest.raises(RefusedError) as caught:
                await work(client, load_type("types/s.type").definition.name)
            return caught.value

    error = asyncio.run(fails())
    assert f"may not {words} " in error.message
    _is_explained(network, error, "broker.not-permitted")


# ----------------------------------------------------------------------------------------------------------------------
# Refusals of the library, without a broker.


def library_refusals(shell: Shell) -> dict[str, Callable[[], object]]:
    """Return what raises each code."""
    owner, stranger = load_key("london.key"), load_key("stranger.key")
    place = NetworkName(owner.principal, "London")
    verified = verify_type(load_type("types/s.type"), shell.now)
    request = EventRequest(stranger.principal, Right.SUBSCRIBE, verified, shell.now)
    name = verified.event_type.name
    below = TypeDefinition(TypeName(stranger.principal, "org.stranger.Sighting"), (), extends=name)
    own = TypeDefinition(TypeName(stranger.principal, "org.stranger.Own"), ())

    def undecided() -> object:
        problem = DecisionProblem("cert.expired", "it has expired")
        return Decision(Effect.INDETERMINATE, errors=(problem,), request=request).require()

    def known(wanted: TypeName) -> object:
        return load_type("types/s.type") if wanted == name else None

    return {
        "guard.denied": lambda: decide(request, [CapabilityAuthority(load_credentials())]).require(),
        "guard.indeterminate": undecided,
        "type.forged": lambda: verify_type(sign_type(TypeDefinition(name, ()), stranger), shell.now),
        "type.not-installable": lambda: verify_type(sign_type(own, stranger), shell.now, network=place),
        "type.extends-foreign": lambda: verify_type(sign_type(below, stranger), shell.now, types=known),  # type: ignore[arg-type]  # a source of one type
    }


LIBRARY = ("guard.denied", "guard.indeterminate", "type.forged", "type.not-installable", "type.extends-foreign")


@pytest.mark.parametrize("code", LIBRARY)
def test_the_library(network: Shell, code: str) -> None:
    with pytest.raises(RefusedError) as caught:
        library_refusals(network)[code]()
    _is_explained(network, caught.value, code)


def _is_explained(shell: Shell, error: PenstockError, code: str) -> None:
    lacked = error.fields["lacked"]
    assert isinstance(lacked, LackedRight)
    assert (error.code, error.message.startswith(str(lacked))) == (code, True)
    [command] = COMMAND.findall(error.hint)
    ran = shell(*shlex.split(command)[1:])
    assert (ran.status, ran.out.startswith("✗ ")) == (1, True), ran.err


#: codes whose refusals are tested where they are made
ELSEWHERE = {"broker.not-advertised", "keys.not-manager", "keys.not-entitled", "keys.not-broker", "type.over-reach"}


def test_every_code_is_tried() -> None:
    tried = {code for code, *_ in CLI.values()} | {"broker.not-told"} | set(LIBRARY) | ELSEWHERE
    assert codes_of_rights() == tried


# ----------------------------------------------------------------------------------------------------------------------
# Revoked certificates.


def test_a_revoked_certificate(penstock: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    penstock.now = datetime.now(UTC).replace(microsecond=0)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(penstock.folder / "config"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    penstock.ok("init", "demo", "--listen", f"127.0.0.1:{port}")
    file, explain = "demo/certs/reader-subscribe.cert", ("explain", "--context", "demo-reader", "--right", "subscribe")
    found = penstock.ok(*explain)
    assert "revocations were not checked: " in found.out
    with running(penstock, "demo/broker.toml"):
        assert "revocations" not in penstock.ok(*explain).out
        # Somebody who can change nothing by it cannot revoke it.
        ran = penstock("net", "revoke", file, "--context", "demo-reader")
        assert (ran.code, "reader may not revoke acme → reader" in ran.err) == ("cert.not-yours", True)
        penstock.ok("net", "revoke", file, "--context", "demo-owner", "--wait")
        # The refusal says it, and so does the command in its hint.
        ran = penstock("sub", "--context", "demo-reader", "--timeout", "9s")
        error, hint = lines(ran)
        assert "reader may not subscribe to acme/" in error
        assert re.search(r"hint: certificate cert:\w+… was revoked at [0-9: -]+ UTC by acme; run `", hint)
        [command] = COMMAND.findall(hint)
        assert shlex.split(command)[1:] == list(explain)
        ran = penstock(*explain)
        assert (ran.status, ran.code) == (1, "cert.revoked")
        assert re.search(r"✗ revoked at [0-9: -]+ UTC by acme: acme → reader", ran.out)
        assert f"hint: ask acme to give the right back: run `penstock cert renew {file} --key " in ran.err
        assert penstock(*explain, "-o", "json").json["revocations"]["checked"] is True
        # It was valid before.
        penstock.ok(*explain, "--at", f"{penstock.now - timedelta(hours=1):%Y-%m-%dT%H:%MZ}")
        assert "✗" in penstock.ok("cert", "list", file).out
        [listed] = penstock.ok("cert", "list", file, "-o", "json").json["certificates"]
        assert (listed["expiry"], listed["code"]) == ("revoked", "cert.revoked")
    # Without the broker, the owner's chain says it.
    renew = ("cert", "renew", file, "--key", "demo/keys/acme.key")
    ran = penstock(*renew)
    assert (ran.status, ran.code) == (1, "cert.revoked")
    again = "penstock cert renew demo/certs/reader-subscribe.cert --key demo/keys/acme.key --grant-again"
    publish = "penstock net publish demo/certs/reader-subscribe.cert --context demo-owner --wait"
    assert f"hint: to give the right back, run `{again}`, and then `{publish}`" in ran.err
    # The clock stands still here: the same lifetime would be the same certificate.
    end = f"{penstock.now + timedelta(days=365):%Y-%m-%dT%H:%M:%SZ}"
    ran = penstock(*renew, "--grant-again", "--not-after", end)
    assert (ran.code, "choose another lifetime" in ran.err) == ("cert.revoked", True)
    assert f"now if you run `{publish}`" in penstock.ok(*renew, "--grant-again").out
    penstock.ok(*renew, "--days", "30")
    penstock.ok(*renew, "--days", "31")


def test_a_certificate_that_its_owner_published(penstock: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    penstock.now = datetime.now(UTC).replace(microsecond=0)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(penstock.folder / "config"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    penstock.ok("init", "demo", "--listen", f"127.0.0.1:{port}")
    explain, url = ("explain", "--context", "demo-reader", "--right", "subscribe"), f"penstock://127.0.0.1:{port}"
    to = ("--to", "reader", "--names", "demo/names.toml", "--type-file", "demo/types/reading.type")
    grant = ("--key", "demo/keys/acme.key", "--right", "subscribe", "--attribute", "power", "--out", "power.cert")
    penstock.ok("cert", "issue", *to, *grant)
    owner = ("--context", "demo-owner", "--wait")
    with running(penstock, "demo/broker.toml"):
        assert "attributes power" in " ".join(penstock.ok("net", "publish", "power.cert", *owner).out.split())
        penstock.ok("net", "revoke", "demo/certs/reader-subscribe.cert", *owner)
        # The broker permits it, by a certificate that the reader does not have.
        ran = penstock.ok(*explain)
        assert "✓ reader may subscribe to example.Reading@0" in ran.out
        assert f"✓ {url} permits it" in ran.out
        assert penstock.ok(*explain, "-o", "json").json["answers"][-1]["broker"] == url
        # It is not asked about others, or other times, and that is said.
        ran = penstock("explain", "--principal", "reader", "--context", "demo-owner", "--right", "subscribe")
        assert (ran.status, "not known here: " in ran.out, "run this as reader" in ran.out) == (1, True, True)
        assert penstock(*explain, "--at", "2124-01-01").status == 1
        ran = penstock("explain", "--context", "demo-reader", "--right", "publish")
        assert f"{url} does not permit it either" in ran.out
        assert re.search(
            "hint: ask acme to run `penstock cert issue --key demo/keys/acme.key --to reader --type ", ran.err
        )
        listed = penstock.ok("explain", "--context", "demo-owner").out
        assert "✓ acme may route example.Reading@0, as its owner\n✓" in listed
        listed = penstock.ok("explain", "--context", "demo-reader").out
        assert "✓ reader may connect to demo" in listed
        assert "✓ reader may subscribe to example.Reading@0" in listed
        assert re.search(r"✗ reader does not have these rights: .*publish.*; add --right to see why", listed)
        # The last revocation is named.
        penstock.ok("net", "revoke", "power.cert", *owner)
        [certificate] = penstock.ok("cert", "show", "power.cert", "-o", "json").json["certificates"]
        short = certificate["id"][:17]
        hint = lines(penstock("sub", "--context", "demo-reader", "--timeout", "9s"))[1]
        assert hint.startswith(f"hint: certificate {short}… was revoked at ")
        assert hint.count("was revoked") == 1
        ran = penstock(*explain)
        assert (ran.status, ran.code) == (1, "cert.revoked")
        was_revoked = rf"certificate {short}… was revoked at [0-9: -]+ UTC by acme"
        assert re.search(f"✗ {was_revoked}; only the broker has it", ran.out)
        assert re.search(was_revoked, lines(ran)[0])
        assert "run `penstock cert renew FILE.cert --key demo/keys/acme.key --grant-again`, and then" in ran.err
        # With the certificate at hand its content is shown, and not that of the first one.
        ran = penstock(*explain, "--credential", "power.cert", "--credential", "demo/certs/reader-connect.cert")
        assert re.search(r"✗ revoked at [0-9: -]+ UTC by acme: .* attributes power", ran.out)
        both = [word for one in ("power", "demo/certs/reader-subscribe") for word in ("--credential", f"{one}.cert")]
        ran = penstock(*explain, *both)
        assert re.search(r"✗ revoked at [0-9: -]+ UTC by acme: .* attributes power", ran.out)
        # Whoever follows the advice has given the right back.
        publish = ("net", "publish", "power.cert", *owner)
        ran = penstock(*publish)
        assert (ran.code, "run `penstock cert renew power.cert" in ran.err) == ("evolution.revoked", True)
        renew = ("cert", "renew", "power.cert", "--key", "demo/keys/acme.key", "--grant-again", "--days", "9")
        renewed = penstock.ok(*renew, "--out", "again.cert").out
        [command] = re.findall(r"`penstock ([^`]+)`", renewed)
        penstock.ok(*shlex.split(command))
        assert f"✓ {url} permits it" in penstock.ok(*explain).out
        # What a value can be is said too.
        event = ("pub", "--context", "demo-sensor", "meter=M-1", "power=1", "region=east")
        assert "hint: `region` is string, one of north, south" in penstock(*event).err
        # The network of the certificates decides which broker is asked, and not the context in use.
        penstock.ok("init", "other")
        assert penstock.ok("context", "show", "-o", "json").json["name"] == "other-reader"
        for path in ("power.cert", "demo/certs"):
            ran = penstock.ok("cert", "list", path)
            assert ("✗" in ran.out, "revocation unknown" in ran.out, ran.err) == (True, False, ""), path
        assert "by acme" in penstock.ok("cert", "list", "demo/certs/reader-subscribe.cert").out
        assert penstock("cert", "renew", "power.cert", "--key", "demo/keys/acme.key").code == "cert.revoked"
        ran = penstock.ok("cert", "list", "other/certs/sensor-connect.cert")
        assert "revocation unknown" in " ".join(ran.out.split())
        assert "warning: penstock://127.0.0.1" in ran.err
        listed = penstock.ok("cert", "list", "other", "power.cert", "-o", "json").json["certificates"]
        assert {one["file"].partition("/")[0]: one["checked"] for one in listed} == {"other": False, "power.cert": True}
        ran = penstock.ok("cert", "list", "power.cert", "--context", "other-reader")
        assert "revocation unknown" in " ".join(ran.out.split())
