"""Run the commands of a documentation page as a reader would, in one or more terminals.

A page shows commands and their output, nothing else. What a reader does without instructions (waiting for a program to
start, a second terminal, Ctrl-C) is in comments on the lines before a block, which no reader sees:

    <!-- test: terminal broker -->      run the block's command in the terminal `broker`, which stays open, and wait
                                        until it printed what the block shows; a block without a command shows what a
                                        terminal prints later
    <!-- test: until -->                repeat the block's commands until they print what the block shows
    <!-- test: until 77 in reader -->   repeat the block's commands until the terminal `reader` printed this
    <!-- test: status 1 -->             the block's last command ends with this status
    <!-- test: interrupt broker -->     press Ctrl-C in the terminal `broker`, and wait until its command ended
    <!-- test: never M-17 in reader --> the terminal `reader` did not print this
    <!-- test: ended reader -->         wait until the command in the terminal `reader` ended
    <!-- test: signal HUP broker -->    send a signal to the command in the terminal `broker`
    <!-- test: long -->                 the rest of the page is left to `make soak`

A command that shows `✗` or `error:` at the beginning of a line ends with status 1. Output is compared line by line; `…`
stands for any text in a line, or for any lines, and a time with milliseconds for any such time. Variables that a
command exports and the folder that it changes to stay for the next commands.
"""

import re
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

#: how long a page waits for anything, in seconds
PATIENCE = 90.0
_PART = re.compile(r"^<!-- test: (?P<mark>.+?) -->$|^```console[^\n]*\n(?P<block>.*?)^```$", re.DOTALL | re.MULTILINE)
_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
_HERE_DOCUMENT = re.compile(r"<<-?\s*'?(\w+)'?")


@dataclass
class Step:
    """A command and the lines that it prints. A step without a command shows what a terminal prints later."""

    command: str
    promised: list[str]


def steps(block: str) -> list[Step]:
    """Split a block into its commands, each with its output."""
    first, *others = re.split(r"^\$ ", block, flags=re.MULTILINE)
    found = [Step("", first.splitlines())] if first.strip() else []
    for text in others:
        command, *lines = text.rstrip().splitlines()
        while command.endswith("\\"):
            command = command[:-1] + lines.pop(0).lstrip()
        if document := _HERE_DOCUMENT.search(command):
            end = lines.index(document.group(1)) + 1
            command, lines = "\n".join([command, *lines[:end]]), lines[end:]
        found.append(Step(command, lines))
    return found


def missing(promised: list[str], printed: str) -> list[str]:
    """Return the promised lines that were not printed."""
    lines = printed.splitlines()
    texts = [line for line in promised if line.strip() not in {"", "…"}]
    return [text for text in texts if not any(re.fullmatch(_pattern(text), line.rstrip()) for line in lines)]


def is_whole(promised: list[str], printed: str) -> bool:
    """Return whether the promised lines are all that was printed, in order; a line `…` stands for any lines."""
    pattern = "".join(r"(?:.*\n)*" if line.strip() == "…" else f"{_pattern(line.rstrip())}\n" for line in promised)
    return re.fullmatch(pattern, "".join(f"{line.rstrip()}\n" for line in printed.splitlines())) is not None


def _pattern(text: str) -> str:
    """Return the lines that a promised line stands for, as a regular expression."""
    times = [re.escape(part) for part in re.split(_TIME, text)]
    return _TIME.join(times).replace("…", ".*")


@dataclass
class _Terminal:
    """A program that runs beside the commands of a page, and what it printed."""

    command: str
    program: subprocess.Popen[bytes]
    output: "tempfile._TemporaryFileWrapper[bytes]"
    #: all that the page has shown of it
    shown: list[str] = field(default_factory=list)

    def printed(self) -> str:
        return Path(self.output.name).read_text(encoding="utf-8")


@dataclass
class Session:
    """One reader's terminals on one page. On a `whole` page no line of the output is left out."""

    folder: Path
    environment: dict[str, str]
    whole: bool = False
    _terminals: dict[str, _Terminal] = field(default_factory=dict)

    def follow(self, page: str) -> None:
        """Do what a page shows, from top to bottom. Raise AssertionError where it turns out otherwise."""
        marks: dict[str, str] = {}
        try:
            for part in _PART.finditer(page):
                word, _, rest = (part["mark"] or "").partition(" ")
                if part["block"] is not None:
                    self._block(steps(part["block"]), marks)
                    marks = {}
                elif word == "long":
                    pass  # for whoever chose the page
                elif word in {"terminal", "until", "status"}:
                    marks[word] = rest
                elif word == "never":
                    text, _, name = rest.rpartition(" in ")
                    assert text not in self._terminals[name].printed(), f"terminal {name} shows {text}"
                elif word == "ended":
                    self._ended(rest)
                elif word == "interrupt":
                    self._signal(signal.SIGINT, rest)
                    self._ended(rest)
                elif word == "signal":
                    name, terminal = rest.split()
                    self._signal(signal.Signals[f"SIG{name}"], terminal)
                else:
                    raise AssertionError(f"unknown mark: {part['mark']}")
            assert not marks, "marks without a block"
        finally:
            self._close()

    def _block(self, block: list[Step], marks: dict[str, str]) -> None:
        if "terminal" in marks:
            *before, last = block
            self._run(before, {})
            self._in_terminal(marks["terminal"], last)
            return
        deadline = time.monotonic() + (PATIENCE if "until" in marks else 0)
        while True:
            try:
                self._run(block, marks)
                text, _, name = marks.get("until", "").rpartition(" in ")
                assert not name or text in self._terminals[name].printed(), f"terminal {name} does not show {text}"
            except AssertionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                return

    def _run(self, block: list[Step], marks: dict[str, str]) -> None:
        """Run commands one after the other; each must end and print as shown."""
        for step in block:
            refused = any(line.startswith(("✗", "error:")) for line in step.promised)
            expected = int(marks["status"]) if "status" in marks and step is block[-1] else int(refused)
            # Not a pipe: a command that goes on in the background would keep it open.
            with tempfile.NamedTemporaryFile() as exported:
                done = subprocess.run(
                    ["/bin/sh", "-c", f"{step.command}\n__=$?; env -0 > {exported.name}; exit $__"],
                    cwd=self.folder,
                    env=self.environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    check=False,
                )
                kept = dict(pair.split("=", 1) for pair in exported.read().decode().split("\0") if pair)
            printed = done.stdout.decode()
            assert done.returncode == expected, f"{step.command}\nended with {done.returncode}:\n{printed}"
            lost = missing(step.promised, printed)
            assert not lost, f"{step.command}\ndid not print {lost} but:\n{printed}"
            whole = not self.whole or is_whole(step.promised, printed)
            assert whole, f"{step.command}\nprinted more, or in another order:\n{printed}"
            self.folder = Path(kept.get("PWD", self.folder))
            self.environment = {**kept, "OLDPWD": ""}

    def _in_terminal(self, name: str, step: Step) -> None:
        if step.command:
            assert name not in self._terminals, f"a command runs in terminal {name} already"
            output = tempfile.NamedTemporaryFile()  # noqa: SIM115  # it is closed with the terminal
            program = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {step.command}"],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._terminals[name] = _Terminal(step.command, program, output)
        terminal = self._terminals[name]
        terminal.shown += step.promised
        deadline = time.monotonic() + PATIENCE
        while lost := self._lost(terminal, step):
            late = time.monotonic() > deadline or terminal.program.poll() not in {None, 0}
            assert not late, f"{terminal.command}\ndid not print {lost} but:\n{terminal.printed()}"
            time.sleep(0.02)

    def _lost(self, terminal: _Terminal, step: Step) -> list[str]:
        printed = terminal.printed()
        # Several programs can print into a terminal, in any order, if it goes on with `…`.
        if self.whole and step.promised[-1].strip() != "…":
            return [] if is_whole(terminal.shown, printed) else terminal.shown
        return missing(step.promised, printed)

    def _signal(self, number: signal.Signals, name: str) -> None:
        self._terminals[name].program.send_signal(number)

    def _ended(self, name: str) -> None:
        """Wait until the command in a terminal ended; the terminal can be used again."""
        terminal = self._terminals.pop(name)
        with terminal.output:
            try:
                terminal.program.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                terminal.program.kill()
                raise AssertionError(f"{terminal.command}\ndid not end:\n{terminal.printed()}") from None

    def _close(self) -> None:
        """Close the terminals that are still open, as a reader does at the end."""
        for terminal in self._terminals.values():
            if terminal.program.poll() is None:
                terminal.program.send_signal(signal.SIGINT)
        for terminal in self._terminals.values():
            with terminal.output:
                try:
                    terminal.program.wait(PATIENCE)
                except subprocess.TimeoutExpired:
                    terminal.program.kill()
                    terminal.program.wait()
