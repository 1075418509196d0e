"""`penstock pub` and `penstock sub`: publish events, each confirmed by the broker, and print events as they arrive."""

import asyncio
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import BinaryIO, Final

import click

from penstock.apps.cli.shared.broker_client import (
    BrokerTypeOptions,
    Call,
    ClientOptions,
    ExplainOptions,
    talk,
    until,
)
from penstock.apps.cli.shared.commands import (
    CommandAnswer,
    argument,
    command,
    option,
    option_class,
    output_option,
    wants_data,
)
from penstock.apps.cli.shared.events import EventDraft, Rows, Unreadable, cloud_event, of_lines, of_pairs, plain, typed
from penstock.apps.cli.shared.files import STDIN
from penstock.apps.cli.shared.names import NameBook
from penstock.apps.cli.shared.options import Duration
from penstock.apps.cli.shared.session import EXPLAINED, Warned, aside, say, speak, warn
from penstock.apps.cli.shared.terminal import Shown, fact_table, grid_table, show, showing
from penstock.broker.client.client import Client, Feed, RightNotice, Subscription, TypeSource
from penstock.codec.limits import FRAME_BYTES
from penstock.codec.wire import Wire
from penstock.errors import FailedError, MalformedError, PenstockError, RefusedError, printable
from penstock.fabric.tasks import waited_for
from penstock.model.events import Event
from penstock.model.names import TypeName
from penstock.model.types import EventType
from penstock.store.files.files import unreadable
from penstock.trust.capabilities import Right
from penstock.trust.refusals import LackedRight

# ----------------------------------------------------------------------------------------------------------------------
# Lines of a file or of standard input. A line is handed on when it is there, without filling a buffer first.


_CHUNK: Final = 1 << 16
_WAITING: Final = 4


async def read_lines(source: str) -> AsyncIterator[list[bytes]]:
    """Yield the lines that have arrived since, in order.

    A thread reads them: standard input can be slow, and the connection to the broker must be kept alive. Raises
    `FailedError` (`file.unreadable`) and `MalformedError` (`pub.line`) for a line that does not end.
    """
    found: asyncio.Queue[list[bytes] | PenstockError | None] = asyncio.Queue(_WAITING)
    loop = asyncio.get_running_loop()

    def hand_on(what: list[bytes] | PenstockError | None) -> None:
        asyncio.run_coroutine_threadsafe(found.put(what), loop).result()

    def read() -> None:
        # The reader of the lines may be gone.
        with suppress(RuntimeError, CancelledError):
            try:
                with _opened(source) as stream:
                    _split(stream, hand_on)
            except (OSError, ValueError) as error:
                hand_on(unreadable(source, error))
            except MalformedError as error:
                hand_on(error)
            else:
                hand_on(None)

    # The thread is abandoned when the program ends: nothing wakes a thread that waits for a terminal.
    threading.Thread(target=read, daemon=True).start()
    while (lines := await found.get()) is not None:
        if isinstance(lines, PenstockError):
            raise lines
        yield lines


def _opened(source: str) -> BinaryIO:
    return sys.stdin.buffer if source == STDIN else open(source, "rb")  # noqa: PTH123  # for who closes it


def _split(stream: BinaryIO, hand_on: Callable[[list[bytes]], None]) -> None:
    rest = b""
    while chunk := stream.read1(_CHUNK):  # type: ignore[attr-defined]  # files and standard input are buffered readers
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > FRAME_BYTES:
            raise MalformedError("pub.line", f"a line has more than {FRAME_BYTES} bytes")
        if lines:
            hand_on(lines)
    if rest:
        hand_on([rest])


# ----------------------------------------------------------------------------------------------------------------------
# `penstock pub`: publish events, each confirmed by the broker.


#: the number of events that are sent before an answer, and of problems that are shown one by one
_WINDOW: Final = 256
_SHOWN: Final = 10
#: the number of events from which on a rate says something
_MANY: Final = 100


@dataclass(slots=True)
class PublishTally:
    """The outcomes of events."""

    accepted: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    problems: list[dict[str, object]] = field(default_factory=list)
    #: the first right that was missing, and the revoked certificates that it depends on
    lacked: dict[str, object] = field(default_factory=dict)
    #: types without subscribers
    unwanted: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    @property
    def refused(self) -> int:
        """The number of events that were refused by the broker, or here because they were malformed."""
        return self.codes.total()

    @property
    def rate(self) -> int:
        """Events per second."""
        seconds = time.monotonic() - self.started
        return round((self.accepted + self.refused) / seconds) if seconds else 0

    def refuse(self, number: int, error: PenstockError) -> None:
        """Count an event that was refused."""
        self.codes[error.code] += 1
        if not self.lacked and "lacked" in error.fields:
            self.lacked = {name: error.fields.get(name) for name in ("lacked", "revoked")}
        if len(self.problems) < _SHOWN:
            self.problems.append({"event": number, "code": error.code, "message": error.message})

    def text(self) -> str:
        """Return the counts as a sentence."""
        rate = f", {self.rate:,} events/s" if self.accepted + self.refused >= _MANY else ""
        return f"{self.accepted:,} accepted, {self.refused:,} refused{rate}"

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        return {
            "accepted": self.accepted,
            "refused": self.refused,
            "codes": dict(sorted(self.codes.items())),
            "problems": self.problems,
            "unwanted": self.unwanted,
            "rate": self.rate,
        }


@option_class
class _Pub:
    pairs: tuple[str, ...] = argument(nargs=-1, metavar="[NAME=VALUE]...")
    source: str | None = option(
        "--file",
        metavar="FILE",
        help="Publish lines of JSON: CloudEvents, or objects of attributes; - reads standard input.",
    )
    wait: float = option(
        "--subscriber-timeout",
        type=Duration(),
        default="1s",
        show_default=True,
        metavar="DURATION",
        help="Wait this long for a subscriber if there is none: brokers take a moment to learn of readers elsewhere.",
    )
    of_type: BrokerTypeOptions
    client: ClientOptions
    output: str = output_option()


@command(
    example="""
penstock pub --context demo-sensor meter=M-17 region=north power=1.5
penstock pub --broker penstock://127.0.0.1:7600 --network pito/London --key camera.key \\
    --type pito/uk.gov.pito.Numberplate numberplate=ABC123 speed=31
penstock pub --broker penstock://127.0.0.1:7600 --network pito/London --key camera.key \\
    --type pito/uk.gov.pito.Numberplate --file sightings.jsonl
"""
)
def pub(options: _Pub) -> CommandAnswer:
    """Publish one event of NAME=VALUE, or many from lines of JSON, and report the result.

    The broker confirms each event, or refuses it with a code. The exit status is 1 if any event was refused. A
    CloudEvent can name its own type, `owner/name@version`; the other events are of the type given here.
    """
    if options.source is not None and options.pairs:
        raise MalformedError(
            "cli.usage", "events are given both as arguments and with --file", hint="give one of the two"
        )
    call = options.client.call(options.of_type.type_files)
    tally = PublishTally()
    error: PenstockError | None = None
    try:
        talk(lambda stop: _publish(call, options, tally, stop))
    except PenstockError as failure:
        if options.source is None:
            raise
        error = failure
    if error is None and tally.refused:
        code = tally.codes.most_common(1)[0][0]
        error = RefusedError("pub.refused", f"{tally.refused:,} refused, most of them with `{code}`")
        error.fields |= tally.lacked
    return CommandAnswer(tally.as_dict(), _shown(tally, call.names), error)


def _shown(tally: PublishTally, names: NameBook) -> Iterator[Shown]:
    yield tally.text()
    if tally.codes:
        yield grid_table(("code", "events"), [(code, f"{number:,}") for code, number in tally.codes.most_common()])
    for name in map(TypeName.parse, tally.unwanted):
        of = f"{names.show(name.owner)}/{name.name}@{name.version}"
        warn(Warned("pub.unwanted", f"nobody subscribes to events of {of} now"))
    for problem in tally.problems:
        text = speak(f"event {problem['event']}: {problem['message']} [{problem['code']}]", names.spoken())
        aside(printable(text))


async def _publish(call: Call, options: _Pub, tally: PublishTally, stop: asyncio.Event) -> None:
    async with call.client() as client:
        feeds = _Feeds(call, client, options, tally)
        if options.source is None:
            feed = await feeds.of("")
            await feed.publish(of_pairs(feed.type, options.pairs))
            tally.accepted = 1
            return
        with showing(tally.text):
            await until(stop, _send_lines(feeds, options.source, tally))


async def _send_lines(feeds: "_Feeds", source: str, tally: PublishTally) -> None:
    number = 1
    async for lines in read_lines(source):
        drafts = of_lines(lines, number)
        while batch := list(islice(drafts, _WINDOW)):
            await _send(feeds, batch, tally)
        number += len(lines)


async def _send(feeds: "_Feeds", batch: Sequence[tuple[int, EventDraft | Unreadable]], tally: PublishTally) -> None:
    """Publish events together, each with its own answer. Raises errors that do not concern a single event."""
    sent = await asyncio.gather(*(feeds.publish(draft) for _, draft in batch), return_exceptions=True)
    for (number, _), answer in zip(batch, sent, strict=True):
        if answer is None:
            tally.accepted += 1
        elif isinstance(answer, RefusedError | MalformedError):
            tally.refuse(number, answer)
        else:
            raise answer


class _Feeds:
    """The advertisements of one run: one for each type, made at its first event."""

    def __init__(self, call: Call, client: Client, options: _Pub, tally: PublishTally) -> None:
        self._call = call
        self._client = client
        self._options = options
        self._tally = tally
        self._feeds: dict[str, asyncio.Future[Feed]] = {}
        self._news = asyncio.Event()
        client.on_quench(lambda _feed, _quiet: self._news.set())

    async def of(self, name: str) -> Feed:
        """Return the feed of a type. Raises as `Client.advertise`."""
        if name not in self._feeds:
            source = self._call.type(name or self._options.of_type.type_name)
            self._feeds[name] = waited_for(self._advertise(source))
        return await self._feeds[name]

    async def _advertise(self, source: TypeSource) -> Feed:
        """Advertise, and wait until subscriptions at other brokers are known."""
        feed = await self._client.advertise(source)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._options.wait):
                while feed.quiet:
                    self._news.clear()
                    await self._news.wait()
        if feed.quiet:
            self._tally.unwanted.append(str(feed.type.name))
        return feed

    async def publish(self, draft: EventDraft | Unreadable) -> None:
        """Publish an event, and wait until the broker has accepted it. Raises the reason if it is refused."""
        if isinstance(draft, Unreadable):
            raise draft.error
        feed = await self.of(draft.type)
        await feed.publish(Event.of(feed.type, typed(feed.type, draft.values), id=draft.id, time=draft.time))


# ----------------------------------------------------------------------------------------------------------------------
# `penstock sub`: subscribe, and print events as they arrive.


_FEW = "is anybody publishing what `--where` wants, and if it is sealed, does the broker have the keys? or wait longer"


@option_class
class _Sub:
    selector: str = option(
        "--where", default="", metavar="SELECTOR", help="Receive only events that match this selector (default: all)."
    )
    count: int | None = option(
        "--count", type=click.IntRange(1), metavar="NUMBER", help="Stop after this many events (default: never)."
    )
    timeout: float | None = option(
        "--timeout",
        type=Duration(),
        metavar="DURATION",
        help="Stop if no event arrives for this long (default: never).",
    )
    ask: bool = option(
        "--restrictions",
        is_flag=True,
        help="Show first how the subscription is restricted, if the type's owner lets you ask.",
    )
    of_type: BrokerTypeOptions
    client: ClientOptions
    output: str = output_option()


@command(
    example="""
penstock sub --context demo-reader --where "power > 1"
penstock sub --broker penstock://127.0.0.1:7600 --network pito/London --key reader.key \\
    --type pito/uk.gov.pito.Numberplate --where "speed > 50"
penstock sub --broker penstock://127.0.0.1:7600 --network pito/London --key reader.key \\
    --type pito/uk.gov.pito.Numberplate --count 10 --timeout 60 -o json
"""
)
def sub(options: _Sub) -> None:
    """Subscribe to a type and its sub-types, and print the events that you may see until you stop it.

    With -o json each event is a line, a CloudEvent that `penstock pub` accepts. Attributes that you may not see are
    null. If your right is withdrawn, or the connection is lost, a line on standard error says so, and the command goes
    on when the right is granted again or the broker is back.
    The exit status is 3 if --timeout ends the command before --count events have arrived.
    """
    call = options.client.call(options.of_type.type_files)
    explained: ExplainOptions = click.get_current_context().meta[EXPLAINED]
    printer = _Printer(call, explained, as_json=wants_data())
    source = call.type(options.of_type.type_name)

    async def subscribe(stop: asyncio.Event) -> int:
        async with call.client() as client:
            client.watch_connection(printer.connection)
            await client.watch_rights(printer.right)
            held = await client.subscribe(source, options.selector)
            aside(printable(f"subscribed to {held.type.name.name}@{held.type.name.version}"))
            if options.ask:
                found = await held.restrictions()
                printer.restrictions(found)
                if found.get("missing"):
                    lacked = LackedRight(client.principal, Right.SUBSCRIBE, held.type.name)
                    aside(printable(f"hint: {lacked.hint(explained.command(lacked))}"))
            return await _print(held, printer, options.count, options.timeout, stop)

    found = talk(subscribe)
    if options.count is not None and found < options.count and options.timeout is not None:
        raise FailedError("sub.timeout", f"{found} of {options.count} events arrived in time", hint=_FEW)


async def _print(
    held: Subscription, printer: "_Printer", count: int | None, timeout: float | None, stop: asyncio.Event
) -> int:
    found = 0
    printer.heading(held.type)
    async for event in _events(held, timeout, stop):
        printer.event(event)
        found += 1
        if found == count:
            break
    return found


async def _events(held: Subscription, timeout: float | None, stop: asyncio.Event) -> AsyncIterator[Event]:
    """Yield events until none arrives for some time, or the command is stopped."""
    while not stop.is_set():
        try:
            async with asyncio.timeout(timeout):
                event = await until(stop, anext(held))
        except (TimeoutError, StopAsyncIteration):
            return
        if event is not None:
            yield event


class _Printer:
    """Print events: aligned for people, a line of JSON each for programs."""

    def __init__(self, call: Call, explained: ExplainOptions, *, as_json: bool) -> None:
        self._call = call
        self._explained = explained
        self._json = as_json
        self._rows: Rows | None = None

    def restrictions(self, found: Mapping[str, Wire]) -> None:
        """Print how a subscription is restricted."""
        if self._json:
            click.echo(json.dumps({"restrictions": found}, default=plain))
            return
        decoded = json.loads(json.dumps(found, default=plain))
        rows = [
            ("granted", f"{key}: {json.dumps(given, ensure_ascii=False)}") for key, given in decoded.get("granted", ())
        ]
        for right, about, attributes in decoded.get("missing", ()):
            rows.append(("missing", f"{right} on {about}" + (f": {', '.join(attributes)}" if attributes else "")))
        show([fact_table(rows)])

    def heading(self, event_type: EventType) -> None:
        """Print the names of the attributes above the events."""
        if not self._json:
            self._rows = Rows(event_type)
            say(self._rows.heading())

    def event(self, event: Event) -> None:
        """Print an event immediately."""
        if self._rows is None:
            click.echo(cloud_event(event, str(self._call.network)))
        else:
            say(self._rows.row(event))

    def connection(self, lost: PenstockError | None) -> None:
        """Print on standard error that the connection was lost, or made again: a line, or with -o json an object."""
        now = datetime.now(UTC)
        if self._json:
            told = {"up": lost is None, "time": now, "error": None if lost is None else lost.as_dict()}
            aside(json.dumps({"connection": told}, default=plain))
        elif lost is None:
            aside(f"✓ {_moment(now)} connected to the broker again; events published in between are lost")
        else:
            aside(f"✗ {_moment(now)} the connection to the broker was lost ({lost.code}); trying again")

    def right(self, notice: RightNotice) -> None:
        """Print a change of the right to the subscription on standard error: a line, or with -o json an object."""
        now, refusal = datetime.now(UTC), notice.refusal
        if refusal is not None:
            self._explained.complete(refusal)
        if self._json:
            told = {"change": str(notice.change), "time": now, "type": str(notice.request.type.name)}
            more = {"error": None if refusal is None else refusal.as_dict(), "detail": notice.detail}
            aside(json.dumps({"right": told | more}, default=plain))
            return
        mark = "✓" if refusal is None else "✗"
        why = "" if refusal is None or not refusal.hint else f": {refusal.hint}"
        shown = "" if notice.detail is None or refusal is not None else f": {_granted(notice.detail)}"
        text = f"{mark} {_moment(now)} {notice}{why}{shown}"
        aside(printable(speak(text, self._call.names.spoken())))


def _moment(now: datetime) -> str:
    return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _granted(detail: Mapping[str, Wire]) -> str:
    """Return what a subscription shows, in short."""
    found: list[str] = []
    for _, restriction in json.loads(json.dumps(detail, default=plain)).get("granted", ()):
        for branch in restriction["branches"]:
            names = branch["attributes"]
            where = f" where {branch['where']}" if "where" in branch else ""
            found.append(f"{'all attributes' if names == '*' else ', '.join(names)}{where}")
    return "it shows " + "; ".join(dict.fromkeys(found))
