"""`penstock sub`: subscribe, and print events as they come."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping

import click

from penstock.apps.cli.shared.broker_client import (
    BrokerTypeOptions,
    ClientOptions,
    talk,
    until,
)
from penstock.apps.cli.shared.commands import command, option, option_class, output_option, wants_data
from penstock.apps.cli.shared.events import Rows, cloud_event, plain
from penstock.apps.cli.shared.session import say
from penstock.apps.cli.shared.terminal import fact_table, show
from penstock.broker.client.client import Subscription
from penstock.codec.wire import Wire
from penstock.errors import FailedError, printable
from penstock.model.events import Event
from penstock.model.names import NetworkName
from penstock.model.types import EventType

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
        type=click.FloatRange(0),
        metavar="SECONDS",
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
penstock sub --broker penstock://127.0.0.1:7600 --network pito/London --key reader.key \\
    --type pito/uk.gov.pito.Numberplate --where "speed > 50"
penstock sub --broker penstock://127.0.0.1:7600 --network pito/London --key reader.key \\
    --type pito/uk.gov.pito.Numberplate --count 10 --timeout 60 -o json
"""
)
def sub(options: _Sub) -> None:
    """Subscribe to a type and its sub-types, and print the events that you may see until you stop it.

    With -o json each event is a line, a CloudEvent that `penstock pub` accepts. Attributes that you may not see are
    null. The exit status is 3 if --timeout ends the command before --count events have arrived.
    """
    call = options.client.call(options.of_type.type_files)
    printer = _Printer(call.network, as_json=wants_data())
    source = call.type(options.of_type.type_name)

    async def subscribe(stop: asyncio.Event) -> int:
        async with call.client() as client:
            held = await client.subscribe(source, options.selector)
            click.echo(printable(f"subscribed to {held.type.name.name}@{held.type.name.version}"), err=True)
            if options.ask:
                printer.restrictions(await held.restrictions())
            return await _print(held, printer, options.count, options.timeout, stop)

    found = talk(subscribe)
    if options.count is not None and found < options.count and options.timeout is not None:
        raise FailedError("sub.timeout", f"{found} of {options.count} events have come in time", hint=_FEW)


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
    """Yield events until none has come for some time, or somebody wants to stop."""
    while not stop.is_set():
        try:
            async with asyncio.timeout(timeout):
                event = await until(stop, anext(held))
        except (TimeoutError, StopAsyncIteration):
            return
        if event is not None:
            yield event


class _Printer:
    """Prints events: aligned for people, a line of JSON each for programs."""

    def __init__(self, network: NetworkName, *, as_json: bool) -> None:
        self._network = network
        self._json = as_json
        self._rows: Rows | None = None

    def restrictions(self, found: Mapping[str, Wire]) -> None:
        """Print how a subscription is restricted."""
        if self._json:
            click.echo(json.dumps({"restrictions": found}, default=plain))
            return
        told = json.loads(json.dumps(found, default=plain))
        rows = [
            ("granted", f"{key}: {json.dumps(given, ensure_ascii=False)}") for key, given in told.get("granted", ())
        ]
        for right, about, attributes in told.get("missing", ()):
            rows.append(("missing", f"{right} on {about}" + (f": {', '.join(attributes)}" if attributes else "")))
        show([fact_table(rows)])

    def heading(self, event_type: EventType) -> None:
        """Print the names of the attributes above what follows."""
        if not self._json:
            self._rows = Rows(event_type)
            say(self._rows.heading())

    def event(self, event: Event) -> None:
        """Print an event immediately: somebody may be waiting for it."""
        if self._rows is None:
            click.echo(cloud_event(event, str(self._network)))
        else:
            say(self._rows.row(event))
