"""A domain whose key is in a PKCS#11 token: SoftHSM from Debian's packages, which are fetched for the test."""

import base64
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.apps.acs.test_push import cut_off_by_outside_signer
from tests.apps.conftest import Shell
from tests.apps.node_kit import lay_out
from tests.authority.domain.kit import NAME, memory
from tests.guard.london import NOW, SMITH, numberplate
from tests.trust.kit import refused

from penstock.authority.domain.domain_changes import AddMember, MemberKind
from penstock.authority.domain.domain_ledger import DomainLedger
from penstock.authority.domain.domain_state import DomainRequest, IssueRequest
from penstock.authority.domain.signers import ProgramSigner
from penstock.codec.sexp import parse
from penstock.crypto import PublicKey, read_key
from penstock.testing.nats import NatsServer
from penstock.trust.capabilities import Right, event_tag
from penstock.trust.validity import ALWAYS

PACKAGES = ("softhsm2", "libsofthsm2", "softhsm2-common", "opensc", "opensc-pkcs11")
PIN = "271828"


@dataclass(frozen=True)
class Token:
    """A token in software with one key."""

    module: Path
    public: PublicKey


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Token:
    """Fetch SoftHSM, and make a token with an Ed25519 key in it."""
    if shutil.which("apt-get") is None:
        pytest.skip("Debian's packages can be fetched on Debian only")
    fetched = subprocess.run(["apt-get", "download", *PACKAGES], cwd=tmp_path, capture_output=True, check=False)
    if fetched.returncode:
        pytest.skip("Debian's packages cannot be fetched here")
    root = tmp_path / "root"
    for package in tmp_path.glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(package), str(root)], check=True)
    module = root / "usr/lib/softhsm/libsofthsm2.so"
    (tmp_path / "tokens").mkdir()
    (tmp_path / "softhsm2.conf").write_text(f"directories.tokendir = {tmp_path}/tokens\nobjectstore.backend = file\n")
    monkeypatch.setenv("SOFTHSM2_CONF", str(tmp_path / "softhsm2.conf"))
    libraries = [str(found.parent) for found in root.rglob("libopensc.so.*")]
    monkeypatch.setenv("LD_LIBRARY_PATH", os.pathsep.join(libraries))
    run(
        root / "usr/bin/softhsm2-util",
        "--init-token",
        "--free",
        "--label",
        "acs",
        "--pin",
        PIN,
        "--so-pin",
        PIN,
        "--module",
        str(module),
    )
    tool = (root / "usr/bin/pkcs11-tool", "--module", str(module), "--token-label", "acs", "--login", "--pin", PIN)
    run(*tool, "--keypairgen", "--key-type", "EC:edwards25519", "--id", "01", "--label", "domain")
    pem = run(*tool, "--read-object", "--type", "pubkey", "--id", "01").decode().split("-----")[2]
    return Token(module, PublicKey(base64.b64decode(pem)[-32:]))


def run(program: Path, *words: str) -> bytes:
    return subprocess.run([str(program), *words], capture_output=True, check=True).stdout


def command(token: Token, key: str = "domain") -> list[str]:
    return [sys.executable, "-m", "penstock.apps.acs.pkcs11_signer", str(token.module), "acs", key]


def signer(token: Token, key: str = "domain") -> ProgramSigner:
    return ProgramSigner(command(token, key), token.public)


@pytest.mark.long
def test_the_key_of_a_domain_stays_in_its_token(token: Token, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_PIN", PIN)
    made = signer(token)
    # Long messages too: a change contains certificates.
    for size in (0, 1, 1_024, 1_025, 100_000):
        made.sign(bytes(size))
    domain = DomainLedger.create(memory(), NAME, made, NOW)
    me = made.principal
    domain.ask(DomainRequest(me, AddMember(SMITH.principal, MemberKind.CLIENT, "smith")), NOW)
    domain.ask(
        DomainRequest(me, IssueRequest(SMITH.principal, event_tag(me, "a.T", None, [Right.SUBSCRIBE]), ALWAYS)), NOW
    )
    assert len(domain.state.credentials) == 2
    domain.verify()
    with refused("acs.no-authority"):
        domain.ask(DomainRequest(me, IssueRequest(SMITH.principal, numberplate(Right.SUBSCRIBE), ALWAYS)), NOW)
    with refused("signer.failed"):
        signer(token, "another").sign(b"message")
    shown = subprocess.run([*command(token), "--public"], stdout=subprocess.PIPE, check=True).stdout
    assert read_key(parse(shown.strip())) == token.public
    for words, said in (([*command(token, "another")], b"there is no such key"), (command(token)[:3], b"usage: ")):
        failed = subprocess.run([*words, "--public"], capture_output=True, check=False)
        assert failed.returncode
        assert said in failed.stderr
    monkeypatch.setenv("PENSTOCK_PIN", "0000")
    with refused("signer.failed"):
        made.sign(b"message")


@pytest.mark.long
def test_a_service_pushes_with_the_key_in_its_token(
    token: Token, penstock: Shell, server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_PIN", PIN)
    lay_out(penstock)
    (penstock.folder / "certs" / "subscribe.cert").unlink()
    cut_off_by_outside_signer(penstock, token.public, command(token), server)
