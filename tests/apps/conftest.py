"""What the tests of the command line share: a folder to work in, a clock that stands still, and a way to run it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.apps.cli.main import cli
from penstock.apps.cli.shared.session import CommandSession

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Ran:
    """What a command said, and how it ended."""

    status: int
    out: str
    err: str
    raw: bytes

    @property
    def json(self) -> Any:
        assert self.out, self.err
        return json.loads(self.out)

    @property
    def code(self) -> str:
        """The code of the error: the last thing in brackets on the line that begins with `error:`."""
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        return lines[-1].rpartition("[")[2].rstrip("]") if lines else ""


class Shell:
    """Runs commands in this process, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = NOW
        self._drawn = 0

    def at(self, folder: Path) -> "Shell":
        """Return a shell for a copy of this one's folder, which draws other bytes than were drawn so far."""
        copied = Shell(folder)
        copied._drawn = self._drawn
        return copied

    def random(self, size: int) -> bytes:
        """Draw bytes that are different each time and the same in each run."""
        self._drawn += 1
        return self._drawn.to_bytes(4, "big").rjust(size, b"\x07")[-size:]

    def __call__(
        self, *arguments: str, stdin: bytes | str | None = None, random: Callable[[int], bytes] | None = None
    ) -> Ran:
        session = CommandSession(now=self.now, random=random or self.random)
        result = CliRunner().invoke(cli, list(arguments), input=stdin, obj=session, prog_name="penstock")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert "Traceback" not in result.stderr
        return Ran(result.exit_code, result.stdout, result.stderr, result.stdout_bytes)

    def ok(self, *arguments: str, stdin: bytes | str | None = None) -> Ran:
        """Run a command that must succeed."""
        ran = self(*arguments, stdin=stdin)
        assert ran.status == 0, ran.err
        return ran


@pytest.fixture
def penstock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Return a shell in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PENSTOCK_NAMES", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))
    return Shell(tmp_path)
