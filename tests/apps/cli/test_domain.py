"""`penstock domain` as people run it, with the example of an e-bank."""

import shutil
from pathlib import Path

import pytest
from tests.apps.conftest import Shell

EBANK = Path(__file__).parents[3] / "examples" / "ebank"


@pytest.fixture
def bank(penstock: Shell) -> Path:
    """Return a copy of the example in which all components of the bank have keys."""
    shutil.copytree(EBANK, penstock.folder, dirs_exist_ok=True)
    penstock.ok("domain", "new-keys", "bank/bank.toml")
    return penstock.folder / "bank"


def test_a_plan_is_checked(penstock: Shell, bank: Path) -> None:
    ran = penstock.ok("domain", "check", "bank/bank.toml")
    assert ran.out.startswith("✓ bank/bank.toml plans a domain that can run")
    assert "ER(1), ER(2)" in ran.out
    data = penstock.ok("domain", "check", "bank/bank.toml", "-o", "json").json
    assert data["ok"] is True
    assert data["findings"] == []
    assert data["roles"]["PDP"] == ["DR(1)", "DR(2)"]


def test_problems_are_shown_with_what_to_do(penstock: Shell, bank: Path) -> None:
    plan = bank / "bank.toml"
    plan.write_text(plan.read_text().replace('attributes = ["clearance"]', 'attributes = ["clearence"]'))
    ran = penstock("domain", "check", "bank/bank.toml")
    assert (ran.status, ran.code) == (1, "plan.problems")
    assert "policy `bank.agencies` of `DR(2)` needs `subject/clearance`, and nobody provides it" in ran.out
    assert "subject/clearence" in ran.out  # did you mean
    ran = penstock("domain", "check", "bank/bank.toml", "-o", "json")
    assert ran.status == 1
    assert [one["code"] for one in ran.json["findings"]] == ["plan.attribute-missing"]


def test_the_example_can_be_checked(penstock: Shell) -> None:
    text = penstock.ok("domain", "check", "--example").out
    (penstock.folder / "bank.toml").write_text(text)
    ran = penstock("domain", "check", "bank.toml")
    assert (ran.status, ran.code) == (3, "file.missing")  # the files that it names are not there
    assert penstock("domain", "check").code == "cli.usage"


def test_keys_are_made_once(penstock: Shell, bank: Path) -> None:
    before = (bank / "names.toml").read_bytes()
    again = penstock.ok("domain", "new-keys", "bank/bank.toml", "-o", "json").json
    assert [one["new"] for one in again["keys"]] == [False] * len(again["keys"])
    (bank / "keys" / "log.key").unlink()
    assert penstock("domain", "new-keys", "bank/bank.toml").code == "petname.exists"
    assert (bank / "names.toml").read_bytes() == before
    assert (bank / "keys" / "atm.key").stat().st_mode & 0o077 == 0
