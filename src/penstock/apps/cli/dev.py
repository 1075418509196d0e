"""`penstock dev`: a whole network in one process, to watch what each reader sees while rights change."""

import asyncio
import json
import shutil
import sys
import termios
import threading
import tty
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

import click

from penstock.apps.cli.shared.broker_client import talk, until
from penstock.apps.cli.shared.commands import command, option, option_class, output_option, wants_data
from penstock.apps.cli.shared.options import Duration
from penstock.apps.cli.shared.session import CommandSession, say
from penstock.apps.cli.shared.terminal import LivePart, grid_table, live
from penstock.apps.node.dev_network import DevNetwork, DevReader, ReadRight, dev_network
from penstock.broker.client.client import RightNotice
from penstock.errors import MalformedError, PenstockError, did_you_mean, printable
from penstock.model.values import Scalar
from penstock.trust.refusals import RightChange

_HELP: Final = (
    "hide READER ATTRIBUTE, show READER ATTRIBUTE, where READER [SELECTOR], revoke READER, grant READER, publish, quit"
)
_NOTES: Final = 8
#: columns of a terminal in which the whole table fits
_WIDE: Final = 76
_NORTH: Final = "region = 'north'"


@option_class
class _Dev:
    seconds: float | None = option(
        "--for",
        type=Duration(above=0),
        metavar="DURATION",
        help="Stop after this time (default: never).",
    )
    every: float = option(
        "--every",
        type=Duration(),
        default="1s",
        show_default=True,
        metavar="DURATION",
        help="Publish a reading at this interval. With 0, publish only when told to.",
    )
    output: str = output_option()


@command(
    example="""
penstock dev
penstock dev --for 5s -o json
printf 'hide billing meter\\nrevoke planner\\n' | penstock dev --for 5s
"""
)
def dev(session: CommandSession, options: _Dev) -> None:
    """Run two organisations, their brokers, a publisher and three readers, and show what each reader sees.

    On a terminal, keys change rights, and the table shows the effect. Otherwise commands come from standard input, a
    line each: `hide READER ATTRIBUTE`, `show READER ATTRIBUTE`, `where READER [SELECTOR]`, `revoke READER`, `grant
    READER`, `publish` and `quit`. Events go over TLS between real brokers on free ports of 127.0.0.1. Nothing is
    written to disk.
    """
    on_screen = sys.stdout.isatty() and not wants_data()
    view: _View = _JsonView() if wants_data() else _LiveView() if on_screen else _LineView()

    async def run(stop: asyncio.Event) -> None:
        async with dev_network(session.random, view.event, view.right) as net:
            lines: asyncio.Queue[str] = asyncio.Queue()
            with _commands(view, lines), view.showing(net):
                _schedule(lines, options.every)
                if options.seconds is not None:
                    asyncio.get_running_loop().call_later(options.seconds, stop.set)
                while (line := await until(stop, lines.get())) is not None and line != "quit":
                    await _carry_out(net, line, view)
            view.end(net)

    talk(run)


def _schedule(lines: "asyncio.Queue[str]", every: float) -> None:
    def publish() -> None:
        # Whoever changes a right is not to wait behind readings.
        if lines.empty():
            lines.put_nowait("publish")
        asyncio.get_running_loop().call_later(every, publish)

    if every:
        publish()


# ----------------------------------------------------------------------------------------------------------------------
# Commands: a line each.


async def _carry_out(net: DevNetwork, line: str, view: "_View") -> None:
    if line == "publish":
        await net.publish()
        return
    try:
        reader, right = wanted(net, line)
        seconds = await net.change(reader.name, right)
    except PenstockError as error:
        view.problem(error)
    else:
        view.changed(reader, seconds)


def wanted(net: DevNetwork, line: str) -> tuple[DevReader, ReadRight]:
    """Return the reader that a command is about, and its right afterwards. Raises `MalformedError` (`dev.command`)."""
    match line.split(maxsplit=2):
        case ["revoke", who]:
            return net.reader(who), ReadRight(())
        case ["grant", who]:
            return net.reader(who), net.reader(who).granted
        case ["where", who]:
            return net.reader(who), ReadRight(net.reader(who).granted.attributes)
        case ["where", who, selector]:
            return net.reader(who), ReadRight(net.reader(who).granted.attributes, selector)
        case [("hide" | "show") as verb, who, name]:
            reader, right = net.reader(who), net.reader(who).right
            if name not in net.type.by_name:
                hint = did_you_mean(name, net.type.by_name, f"choose: {', '.join(net.type.by_name)}")
                raise MalformedError("dev.command", f"there is no attribute `{name[:40]}`", hint=hint)
            chosen = {*right.attributes} - {name} if verb == "hide" else {*right.attributes, name}
            where = right.where if right.attributes else reader.granted.where
            return reader, ReadRight(tuple(one for one in net.type.by_name if one in chosen), where)
    raise MalformedError("dev.command", f"unknown command `{line[:40]}`", hint=_HELP)


@contextmanager
def _commands(view: "_View", lines: "asyncio.Queue[str]") -> Iterator[None]:
    """Read commands from standard input: keys from a terminal, otherwise lines."""
    loop, source = asyncio.get_running_loop(), sys.stdin
    if source is None:
        yield
        return
    if not (source.isatty() and isinstance(view, _LiveView)):

        def read() -> None:
            # The loop may be over before the lines are.
            with suppress(RuntimeError, OSError, ValueError):
                for line in source:
                    loop.call_soon_threadsafe(lines.put_nowait, line.strip())

        # A daemon: nobody waits for a line that may never come.
        threading.Thread(target=read, daemon=True).start()
        yield
        return
    number = source.fileno()
    before = termios.tcgetattr(number)

    def press() -> None:
        for key in source.buffer.read1(64).decode("ascii", "replace"):  # type: ignore[union-attr]  # a terminal
            if line := view.press(key):
                lines.put_nowait(line)

    tty.setcbreak(number, termios.TCSANOW)
    loop.add_reader(number, press)
    try:
        yield
    finally:
        loop.remove_reader(number)
        termios.tcsetattr(number, termios.TCSADRAIN, before)


# ----------------------------------------------------------------------------------------------------------------------
# Views: JSON for programs, lines for pipes, a table for terminals.


class _View(Protocol):
    """What is shown of a network."""

    def showing(self, net: DevNetwork) -> AbstractContextManager[None]:
        """Begin."""

    def event(self, reader: DevReader | None, values: Mapping[str, Scalar]) -> None:
        """Show an event that a reader has received, or that was published."""

    def changed(self, reader: DevReader, seconds: float) -> None:
        """Show a change of rights."""

    def right(self, reader: DevReader, notice: RightNotice) -> None:
        """Show what a reader's client has learnt about its right."""

    def problem(self, error: PenstockError) -> None:
        """Show what is wrong with a command."""

    def end(self, net: DevNetwork) -> None:
        """Show the totals."""


class _JsonView:
    """A line of JSON for everything that happens."""

    def showing(self, net: DevNetwork) -> AbstractContextManager[None]:
        brokers = {name: f"penstock://{_address(net, name)}" for name in net.brokers}
        readers = {reader.name: self._right(reader) for reader in net.readers.values()}
        self._say("ready", brokers=brokers, readers=readers)
        return nullcontext()

    def event(self, reader: DevReader | None, values: Mapping[str, Scalar]) -> None:
        if reader is None:
            self._say("published", values=dict(values))
        else:
            self._say("received", reader=reader.name, values=dict(values))

    def changed(self, reader: DevReader, seconds: float) -> None:
        self._say("changed", reader=reader.name, **self._right(reader), milliseconds=round(seconds * 1000, 1))

    def right(self, reader: DevReader, notice: RightNotice) -> None:
        code = None if notice.refusal is None else notice.refusal.code
        self._say("notice", reader=reader.name, change=str(notice.change), code=code)

    def problem(self, error: PenstockError) -> None:
        self._say("problem", code=error.code, message=error.message, hint=error.hint)

    def end(self, net: DevNetwork) -> None:
        received = {reader.name: reader.events for reader in net.readers.values()}
        self._say("ended", published=net.published, received=received)

    @staticmethod
    def _right(reader: DevReader) -> dict[str, object]:
        return {"attributes": list(reader.right.attributes), "where": reader.right.where}

    @staticmethod
    def _say(event: str, **more: object) -> None:
        click.echo(json.dumps({"event": event, **more}))


class _LineView:
    """A line for everything that happens."""

    def showing(self, net: DevNetwork) -> AbstractContextManager[None]:
        say(_title(net))
        for reader in net.readers.values():
            say(f"{reader.name} of {reader.organisation} may see {reader.right}")
        return nullcontext()

    def event(self, reader: DevReader | None, values: Mapping[str, Scalar]) -> None:
        name = "published" if reader is None else reader.name
        say("  ".join((f"{name:<12}", *(f"{key}={_shown(value)}" for key, value in values.items()))))

    def changed(self, reader: DevReader, seconds: float) -> None:
        say(_change(reader, seconds))

    def right(self, reader: DevReader, notice: RightNotice) -> None:
        say(_notice(reader, notice))

    def problem(self, error: PenstockError) -> None:
        say(f"{error.message}. {error.hint}")

    def end(self, net: DevNetwork) -> None:
        say(_totals(net))


@dataclass(slots=True)
class _LiveView:
    """A table that changes, and keys that change rights."""

    published: Mapping[str, Scalar] = field(default_factory=dict)
    notes: deque[str] = field(default_factory=lambda: deque(maxlen=_NOTES))
    net: DevNetwork | None = None
    chosen: int = 2

    def showing(self, net: DevNetwork) -> AbstractContextManager[None]:
        self.net = net
        return live(lambda: self.parts(net))

    def parts(self, net: DevNetwork) -> Iterator[LivePart]:
        """Yield what the screen shows."""
        names = list(net.type.by_name)
        yield _title(net)
        yield ""
        rows = [("", "meter", "grid", "publishes all", str(net.published), *self._cells(names, self.published))]
        for number, reader in enumerate(net.readers.values()):
            mark = "▶" if number == self.chosen else ""
            cells = self._cells(names, reader.last or {})
            rows.append((mark, reader.name, reader.organisation, f"sees {reader.right}", str(reader.events), *cells))
        toggles = "  ".join(f"{number} {name}" for number, name in enumerate(names, 1))
        keys = ("Keys: tab next reader", toggles, "n north only", "r revoke   g grant   q quit")
        if shutil.get_terminal_size().columns >= _WIDE:
            yield grid_table(("", "who", "of", "right", "events", *names), rows)
            yield ""
            yield "   ".join(keys)
        else:
            yield grid_table(("who", "events", *names), [(f"{row[0] or ' '}{row[1]}", *row[4:]) for row in rows])
            yield from (f"{who} of {organisation} {right}" for _, who, organisation, right, *_ in rows)
            yield ""
            yield from keys
        yield from self.notes

    @staticmethod
    def _cells(names: list[str], values: Mapping[str, Scalar]) -> list[str]:
        return [_shown(values.get(name)) if values else "" for name in names]

    def press(self, key: str) -> str:
        """Return the command that a key stands for, if any."""
        if self.net is None:
            return ""
        readers, names = list(self.net.readers.values()), list(self.net.type.by_name)
        reader = readers[self.chosen]
        if key == "\t":
            self.chosen = (self.chosen + 1) % len(readers)
        if key in "123456789"[: len(names)]:
            name = names[int(key) - 1]
            return f"{'hide' if name in reader.right.attributes else 'show'} {reader.name} {name}"
        if key == "n":
            return f"where {reader.name} {'' if reader.right.where else _NORTH}".strip()
        return {"r": f"revoke {reader.name}", "g": f"grant {reader.name}", "q": "quit"}.get(key, "")

    def event(self, reader: DevReader | None, values: Mapping[str, Scalar]) -> None:
        if reader is None:
            self.published = values

    def changed(self, reader: DevReader, seconds: float) -> None:
        self.notes.append(_change(reader, seconds))

    def right(self, reader: DevReader, notice: RightNotice) -> None:
        self.notes.append(_notice(reader, notice))

    def problem(self, error: PenstockError) -> None:
        self.notes.append(f"✗ {error.message}. {error.hint}")

    def end(self, net: DevNetwork) -> None:
        say(_totals(net))


def _title(net: DevNetwork) -> str:
    places = " and ".join(f"{name} at {_address(net, name)}" for name in net.brokers)
    return f"Two organisations, each with a broker over TLS: {places}"


def _address(net: DevNetwork, organisation: str) -> str:
    node = net.brokers[organisation]
    return f"{node.settings.host}:{node.port}"


def _change(reader: DevReader, seconds: float) -> str:
    if not seconds:
        return f"{reader.name} sees {reader.right} already"
    return f"✓ {reader.name} now sees {reader.right}: enforced by both brokers after {seconds * 1000:.0f} ms"


def _notice(reader: DevReader, notice: RightNotice) -> str:
    learnt = {
        RightChange.WITHDRAWN: "its subscription may receive nothing any more, and waits",
        RightChange.RESTRICTED: "its subscription is restricted in another way",
        RightChange.RESTORED: "its subscription may receive events again",
    }
    return f"{reader.name} learns from its broker: {learnt[notice.change]}"


def _totals(net: DevNetwork) -> str:
    received = ", ".join(f"{reader.name} received {reader.events}" for reader in net.readers.values())
    return f"{net.published} published; {received}"


def _shown(value: Scalar | None) -> str:
    return "-" if value is None else printable(str(value))
