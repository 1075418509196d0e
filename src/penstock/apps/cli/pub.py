"""`penstock pub`: publish events, each confirmed by the broker."""

import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import BinaryIO, Final

import click

from penstock.apps.cli.shared.broker_client import (
    BrokerTypeOptions,
    Call,
    ClientOptions,
    talk,
    until,
)
from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.events import EventDraft, Unreadable, of_lines, of_pairs, typed
from penstock.apps.cli.shared.files import STDIN
from penstock.apps.cli.shared.names import NameBook
from penstock.apps.cli.shared.session import Warned, warn
from penstock.apps.cli.shared.terminal import Shown, grid_table, showing
from penstock.broker.client.client import Client, Feed, TypeSource
from penstock.codec.limits import FRAME_BYTES
from penstock.errors import MalformedError, PenstockError, RefusedError, printable
from penstock.fabric.tasks import waited_for
from penstock.model.events import Event
from penstock.model.names import TypeName
from penstock.store.files.files import unreadable

# ----------------------------------------------------------------------------------------------------------------------
# Lines of a file or of standard input as they come: what is there is handed on, and no buffer is filled first.


_CHUNK: Final = 1 << 16
_WAITING: Final = 4


async def read_lines(source: str) -> AsyncIterator[list[bytes]]:
    """Yield the lines that have come since, in order.

    A thread reads them: standard input may take its time, and the connection to the broker has to be kept. Raises
    `FailedError` (`file.unreadable`) and `MalformedError` (`pub.line`) for a line that does not end.
    """
    found: asyncio.Queue[list[bytes] | PenstockError | None] = asyncio.Queue(_WAITING)
    loop = asyncio.get_running_loop()

    def hand_on(what: list[bytes] | PenstockError | None) -> None:
        asyncio.run_coroutine_threadsafe(found.put(what), loop).result()

    def read() -> None:
        # Whoever took the lines may have left.
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

    # It is left behind when the program ends: nothing wakes a thread that waits for a terminal.
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


#: events under way at a time, and problems that are shown one by one
_WINDOW: Final = 256
_SHOWN: Final = 10


@dataclass(slots=True)
class PublishTally:
    """What became of events."""

    accepted: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    problems: list[dict[str, object]] = field(default_factory=list)
    #: types that nobody wanted
    unwanted: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    @property
    def refused(self) -> int:
        """How many were refused, by the broker or here because they were malformed."""
        return self.codes.total()

    @property
    def rate(self) -> int:
        """Events a second."""
        seconds = time.monotonic() - self.started
        return round((self.accepted + self.refused) / seconds) if seconds else 0

    def refuse(self, number: int, error: PenstockError) -> None:
        """Count an event that was refused."""
        self.codes[error.code] += 1
        if len(self.problems) < _SHOWN:
            self.problems.append({"event": number, "code": error.code, "message": error.message})

    def text(self) -> str:
        """Return it in words."""
        return f"{self.accepted:,} accepted, {self.refused:,} refused, {self.rate:,} events/s"

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
        "--wait",
        type=click.FloatRange(0),
        default=1.0,
        show_default=True,
        metavar="SECONDS",
        help="Wait this long for a subscriber if there is none: brokers take a moment to learn of readers elsewhere.",
    )
    of_type: BrokerTypeOptions
    client: ClientOptions
    output: str = output_option()


@command(
    example="""
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
        raise MalformedError("cli.usage", "events come from arguments or from --file", hint="give one of the two")
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
        error = RefusedError("pub.refused", f"{tally.refused:,} refused, most of them by `{code}`")
    return CommandAnswer(tally.as_dict(), _shown(tally, call.names), error)


def _shown(tally: PublishTally, names: NameBook) -> Iterator[Shown]:
    yield tally.text()
    if tally.codes:
        yield grid_table(("code", "events"), [(code, f"{number:,}") for code, number in tally.codes.most_common()])
    for name in map(TypeName.parse, tally.unwanted):
        of = f"{names.show(name.owner)}/{name.name}@{name.version}"
        warn(Warned("pub.unwanted", f"nobody wants events of {of} now"))
    for problem in tally.problems:
        click.echo(printable(f"event {problem['event']}: {problem['message']} [{problem['code']}]"), err=True)


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
    """Publish events together, each with an answer of its own. Raises errors that do not concern a single event."""
    sent = await asyncio.gather(*(feeds.publish(draft) for _, draft in batch), return_exceptions=True)
    for (number, _), answer in zip(batch, sent, strict=True):
        if answer is None:
            tally.accepted += 1
        elif isinstance(answer, RefusedError | MalformedError):
            tally.refuse(number, answer)
        else:
            raise answer


class _Feeds:
    """The advertisements of one run: one for each type, made when its first event comes."""

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
        """Advertise, and give subscriptions at other brokers the time to be heard of."""
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
        """Publish an event, and wait until the broker has taken it. Raises what it is refused for."""
        if isinstance(draft, Unreadable):
            raise draft.error
        feed = await self.of(draft.type)
        await feed.publish(Event.of(feed.type, typed(feed.type, draft.values), id=draft.id, time=draft.time))
