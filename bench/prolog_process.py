"""SWI-Prolog as another process, which is told what to do term by term."""

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.simulate.experiments.rule_worlds import RuleCandidate

PROGRAMS = Path(__file__).resolve().parent / "prolog"


def found() -> bool:
    """Return whether there is a SWI-Prolog on this machine."""
    return shutil.which("swipl") is not None


class Prolog:
    """A program that runs, over a balanced tree of so many types."""

    def __init__(self, program: str, folder: Path) -> None:
        self._file = folder / f"{program}.terms"
        command = ["swipl", "-q", "-O", "-g", "main", "-t", "halt", str(PROGRAMS / f"{program}.pl")]
        self._process = subprocess.Popen(  # noqa: S603  # our own program
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.stdin.close()  # type: ignore[union-attr]  # a pipe
        self._process.wait(timeout=60)

    def tree(self, types: int) -> None:
        self._ask(f"tree({types})")

    def fill(self, candidates: Iterable[RuleCandidate]) -> None:
        """Put rules in force that are known not to conflict, instead of those that are."""
        self._ask("fill", candidates)

    def add(self, candidates: Iterable[RuleCandidate]) -> tuple[float, int]:
        """Return the seconds it takes to add rules one by one, and how many are in force then."""
        seconds, in_force = self._ask("add", candidates)[0].split()
        return float(seconds), int(in_force)

    def tell(self, candidates: Iterable[RuleCandidate]) -> list[str]:
        """Return what candidates conflict with: id, kind, rule, and how many attributes are missing and extra."""
        return self._ask("tell", candidates)[:-1]

    def _ask(self, command: str, candidates: Iterable[RuleCandidate] | None = None) -> list[str]:
        if candidates is not None:
            self._file.write_text("\n".join(candidate.term() for candidate in candidates) + "\n")
            command = f"{command}('{self._file}')"
        self._process.stdin.write(f"{command}.\n")  # type: ignore[union-attr]  # a pipe
        lines: list[str] = []
        while not lines or not (lines[-1] == "done" or _is_measure(lines[-1])):
            line = self._process.stdout.readline()  # type: ignore[union-attr]  # a pipe
            if not line:
                raise RuntimeError("the Prolog program has ended")
            lines.append(line.strip())
        return lines


def _is_measure(line: str) -> bool:
    return len(line.split()) == 2  # seconds and rules
