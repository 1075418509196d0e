"""`penstock proof`: one event for somebody without keys, who sees what is shown and nothing else."""

import base64
import json
from pathlib import Path

import pytest
from tests.apps.conftest import Shell

from penstock.crypto.seal_keys import KeyRing
from penstock.store.files.key_files import read_kek, read_key_ring, write_key_ring

KEYS = ("--type-file", "s.type", "--ring", "all.ring", "--kek", "ring.kek")
EVENTS = [
    {"specversion": "1.0", "source": "c", "id": f"e{n}", "type": "owner/org.Sighting", "data": {"plate": p, "id": n}}
    for n, p in ((1, "ABC123"), (2, None), (3, "XYZ789"))
]


@pytest.fixture
def shell(penstock: Shell) -> Shell:
    """Return a shell in a folder with events that a broker has sealed, with its signature and without."""
    for who in ("owner", "broker"):
        penstock.ok("key", "new", f"{who}.key", "--name", who)
    made = ("--attribute", "plate:string", "--attribute", "id:integer", "--seal", "attribute", "--out", "s.type")
    penstock.ok("type", "new", "org.Sighting", "--key", "owner.key", *made)
    penstock.ok("sealing", "new-kek", "ring.kek")
    penstock.ok("sealing", "new-ring", "all.ring", "--kek", "ring.kek", "--type-file", "s.type")
    lines = "\n".join(json.dumps({**event, "type": f"{event['type']}@0"}) for event in EVENTS)
    penstock.ok("seal", "-", *KEYS, "--key", "broker.key", "--out", "signed.sealed", stdin=lines)
    penstock.ok("seal", "-", *KEYS, "--sender", "broker", "--out", "unsigned.sealed", stdin=lines)
    return penstock


def make(shell: Shell, event: str, *shown: str) -> None:
    chosen = [word for name in shown for word in ("--show", name)]
    shell.ok("proof", "new", "signed.sealed", "--event", event, *chosen, *KEYS, "--out", "p.proof", "--overwrite")
    for file in (*Path().glob("*.sealed"), Path("all.ring"), Path("ring.kek")):
        file.rename(file.with_suffix(".away"))


def test_somebody_without_keys_sees_what_is_shown(shell: Shell) -> None:
    make(shell, "e1", "plate")
    ran = shell.ok("proof", "verify", "p.proof", "--type-file", "s.type")
    assert "✓ signed by broker" in ran.out
    assert "owner/org.Sighting" in ran.out
    assert [line.split() for line in ran.out.splitlines()[-2:]] == [["plate", "ABC123"], ["id", "(hidden)"]]
    found = shell.ok("proof", "verify", "p.proof", "-o", "json").json
    assert found["id"] == "e1"
    assert [*found["attributes"].values()] == ["ABC123"]
    # Without the type, attributes are known by their ids.
    assert [one.partition("#")[2] for one in found["hidden"]] == ["1"]
    assert b"XYZ789" not in proof_octets()


def test_a_null_is_shown_and_nothing_may_be(shell: Shell) -> None:
    make(shell, "e2", "plate", "id")
    found = shell.ok("proof", "verify", "p.proof", "--type-file", "s.type", "-o", "json").json
    assert (found["attributes"], found["hidden"]) == ({"plate": None, "id": 2}, [])


def proof_octets() -> bytes:
    return base64.b64decode(Path("p.proof").read_text().split("|")[1])


def test_a_changed_proof_is_refused(shell: Shell) -> None:
    make(shell, "e1", "plate")
    text = Path("p.proof").read_text()
    changed = base64.b64encode(proof_octets().replace(b"ABC123", b"ABC124")).decode()
    Path("p.proof").write_text(f"{text.split('|')[0]}|{changed}|)")
    for wrong in (Path("p.proof").read_text(), text.replace('"1"', '"2"'), "(event-proof)"):
        Path("p.proof").write_text(wrong)
        ran = shell("proof", "verify", "p.proof")
        assert (ran.status, ran.code, ran.out) == (1, "seal.bad-proof", "")


def test_what_cannot_be_proven_is_told(shell: Shell) -> None:
    def code(file: str, event: str, *more: str, keys: tuple[str, ...] = KEYS) -> str:
        ran = shell("proof", "new", file, "--event", event, *more, *keys)
        assert ran.out == ""
        return ran.code

    assert code("signed.sealed", "e9") == "proof.unknown-event"
    assert code("unsigned.sealed", "e1") == "seal.unsigned"
    assert code("signed.sealed", "e1", "--show", "colour") == "type.unknown-attribute"
    kek, cut = read_kek(Path("ring.kek")), KeyRing()
    for scope, epoch, key in read_key_ring(Path("all.ring"), kek).items():
        if not scope.endswith("#0"):
            cut.put(scope, epoch, key)
    write_key_ring(Path("cut.ring"), cut, kek, bytes)
    less = ("--type-file", "s.type", "--ring", "cut.ring", "--kek", "ring.kek")
    assert code("signed.sealed", "e1", "--show", "plate", keys=less) == "seal.unknown-key"
    # What he can read himself he can show.
    shell.ok("proof", "new", "signed.sealed", "--event", "e1", "--show", "id", *less)


def test_what_is_no_proof_is_met_with_what_makes_one(shell: Shell) -> None:
    ran = shell("proof", "verify", "signed.sealed")
    assert ran.code == "sexp.syntax"
    assert "penstock proof new" in ran.err
