"""Processes that take part in a measurement: each is a program that reads line by line what to do."""

import subprocess
from collections.abc import Sequence
from contextlib import ExitStack

from penstock.errors import FailedError


class ProcessPart:
    """A process: it reads words from standard input and answers on standard output, line by line."""

    def __init__(self, stack: ExitStack, command: Sequence[str]) -> None:
        process = stack.enter_context(
            subprocess.Popen(  # noqa: S603  # our own program
                [*command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
            )
        )
        if process.stdin is None or process.stdout is None:
            raise FailedError("experiment.ended", "a process of the experiment has no pipes")
        self._process, self._words, self._answers = process, process.stdin, process.stdout
        stack.callback(self._end)

    def _end(self) -> None:
        self._words.close()
        self._process.terminate()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def say(self, *words: object) -> None:
        """Send words to the process."""
        self._words.write(" ".join(map(str, words)) + "\n")
        self._words.flush()

    def hear(self) -> str:
        """Return the next line of the process. Raises `FailedError` (`experiment.ended`)."""
        line = self._answers.readline().strip()
        if not line:
            raise FailedError(
                "experiment.ended", "a process of the experiment has ended", hint="its errors are on standard error"
            )
        return line


class EventWay:
    """A way from a publisher to a subscriber."""

    def __init__(self, publisher: ProcessPart, subscriber: ProcessPart) -> None:
        self._publisher, self._subscriber = publisher, subscriber
        publisher.hear()
        subscriber.hear()

    def carry(self, events: int, *words: object) -> float:
        """Carry events, and return how many there were in a second."""
        self._subscriber.say(events, *words)
        self._publisher.say(events, *words)
        return (events - 1) / float(self._subscriber.hear())
