"""The e-bank of `examples/ebank`, set up for tests."""

import json
import shlex
import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from tests.apps.conftest import Shell

EBANK = Path(__file__).parents[2] / "examples" / "ebank"
WITHDRAW = ("--subject", "customer:alice", "--action", "withdraw", "--resource", "account:a-1")


def set_up(penstock: Shell) -> Path:
    """Copy the example to the folder of a shell, set it up as its README says, and return the bank's folder."""
    shutil.copytree(EBANK, penstock.folder, dirs_exist_ok=True)
    for line in _setup_lines():
        penstock.ok(*shlex.split(line)[1:])
    folder = penstock.folder / "bank"
    with closing(sqlite3.connect(folder / "staff.db")) as staff:
        staff.executescript((folder / "staff.sql").read_text())
    audited(folder)
    for file in penstock.folder.glob("*/*.toml"):
        # On a busy machine answers take longer.
        file.write_text(file.read_text().replace("lifespan = 2", "lifespan = 20"))
    return folder


def _setup_lines() -> list[str]:
    """Return the commands in the first part of the README."""
    text = (EBANK / "README.md").read_text().partition("## Run it")[0]
    return [line.strip() for line in text.splitlines() if line.startswith("    penstock ")]


def audited(folder: Path, **refusals: int) -> None:
    """Write the result of an audit."""
    entities = {f"customer:{name}": {"refusals": number} for name, number in refusals.items()}
    (folder / "refusals.json").write_text(json.dumps({"until": datetime.now(UTC).isoformat(), "entities": entities}))


def amount(number: int) -> tuple[str, ...]:
    """Return the option for the amount of a withdrawal."""
    return ("--set", f"action.amount={number}")
