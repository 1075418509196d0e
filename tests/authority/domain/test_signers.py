"""Keys outside the process: a program signs, and nothing that it does wrong becomes a signature."""

import sys
from pathlib import Path

import pytest
from tests.authority.domain.kit import Office, memory
from tests.guard.london import CCS, MALLORY, NOW, PITO
from tests.trust.kit import refused

from penstock.authority.domain.domain_ledger import DomainLedger
from penstock.authority.domain.signers import ProgramSigner
from penstock.crypto import SigningKey

PROGRAM = """
import sys
from nacl.signing import SigningKey
sys.stdout.buffer.write(SigningKey(bytes.fromhex("{seed}")).sign(sys.stdin.buffer.read()).signature)
"""


def signer(folder: Path, key: SigningKey = PITO, code: str = "", *, patience: float = 30.0) -> ProgramSigner:
    program = folder / "sign.py"
    program.write_text(code or PROGRAM.format(seed=key.seed.hex()))
    return ProgramSigner([sys.executable, str(program)], PITO.public, patience=patience)


def test_a_domain_whose_key_is_elsewhere(tmp_path: Path) -> None:
    made = signer(tmp_path)
    ledger = memory()
    DomainLedger.create(ledger, "pito", made, NOW)
    # What the program signed is what the key would have signed.
    office = Office(ledger)
    office.issue(CCS)
    assert office.domain.verify().number == 2


@pytest.mark.parametrize(
    "code",
    [
        PROGRAM.format(seed=MALLORY.seed.hex()),
        "print('no')",
        "",
        "import sys; sys.exit(3)",
        "import sys; sys.stdout.buffer.write(bytes(64))",
    ],
)
def test_what_is_not_the_signature_is_refused(tmp_path: Path, code: str) -> None:
    with refused("signer.failed"):
        signer(tmp_path, code=code or "pass").sign(b"message")


def test_a_program_that_is_missing_or_too_slow(tmp_path: Path) -> None:
    with refused("signer.failed"):
        ProgramSigner([str(tmp_path / "none")], PITO.public).sign(b"message")
    with refused("signer.failed"):
        signer(tmp_path, code="import time; time.sleep(60)", patience=0.2).sign(b"message")


def test_no_secret_is_shown(tmp_path: Path) -> None:
    made = ProgramSigner([sys.executable, "--pin", "1234"], PITO.public)
    assert "1234" not in repr(made)
    program = tmp_path / "leak.py"
    program.write_text("import sys; print('pin 1234', file=sys.stderr); print('pin 1234'); sys.exit(1)")
    with refused("signer.failed") as caught:
        ProgramSigner([sys.executable, str(program), "1234"], PITO.public).sign(b"message")
    assert "1234" not in f"{caught.value} {caught.value.hint} {caught.value.fields}"
