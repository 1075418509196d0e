"""`penstock net stamp`: an owner says how far its policy is, and for how long that is good."""

import asyncio
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import click

from penstock.apps.cli.net.chain import OwnerSigner, OwnerSigningOptions
from penstock.apps.cli.net.signatures import Signed, author_of, catch_up, clock, holding
from penstock.apps.cli.shared.broker_client import talk
from penstock.apps.cli.shared.commands import command, option, option_class, output_option, wants_data
from penstock.apps.cli.shared.describe import value_text
from penstock.apps.cli.shared.session import say, warn
from penstock.broker.client.client import Client
from penstock.errors import FailedError, MalformedError, PenstockError, printable
from penstock.trust.limits import STAMP_PERIOD

_PERIOD: Final = re.compile(r"(\d{1,12})(ms|s|m|h|d)", re.ASCII)
_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
#: seconds until what went wrong is tried again, where stamps are not further apart
_RETRY: Final = 1.0
#: seconds within which a stamp has to be handed in: others wait for the chain meanwhile
_ANSWER: Final = (1.0, 5.0)
#: what passes: another process has the chain, an old copy of it lies there and the owner fetches the rest, or a clock
#: is being set
_PASSING: Final = frozenset(("evolution.busy", "evolution.old-chain", "evolution.backwards", "evolution.future"))


class Period(click.ParamType[int]):
    """A period such as `500ms`, `30s`, `10m`, `2h` or `1d`, in milliseconds."""

    name = "period"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read a period."""
        found = _PERIOD.fullmatch(str(value))
        milliseconds = int(found[1]) * _UNITS[found[2]] if found else 0
        if not 0 < milliseconds <= STAMP_PERIOD:
            longest = f"{STAMP_PERIOD // _UNITS['d']}d"
            self.fail(f"`{printable(str(value)[:40])}` is not a period from 1ms to {longest}, such as 30s", param, ctx)
        return milliseconds


@option_class
class _Stamp:
    period: int = option(
        "--for", type=Period(), required=True, metavar="PERIOD", help="Set how long it is valid, such as 30s."
    )
    every: int | None = option(
        "--every",
        type=Period(),
        metavar="PERIOD",
        help="Keep signing at this interval, best a third of --for (default: sign once).",
    )
    signing: OwnerSigningOptions
    output: str = output_option()


@command(
    example="""
penstock net stamp --for 30s --every 10s --broker penstock://127.0.0.1:7600 --network pito/London --key pito.key
"""
)
def stamp(options: _Stamp) -> None:
    """Sign a time-stamp, for which brokers may deliver your types; or keep signing until you stop it.

    A broker whose last stamp has expired delivers none of your types. With --every, the command reports problems and
    retries, even if the broker is gone for a while. Each stamp is a line of the log.
    """
    if options.every is not None and options.every >= options.period:
        raise MalformedError("cli.usage", "--every has to be shorter than --for", hint="a third of it is good")
    stamper = _Stamper(options.signing.signer(), options.period, as_json=wants_data())

    async def conversation(stop: asyncio.Event) -> None:
        if options.every is None:
            async with stamper.desk.call.client() as client:
                await stamper.sign(client)
        else:
            await stamper.go_on(options.every / 1_000, stop)

    talk(conversation)


@dataclass(frozen=True, slots=True)
class _Stamper:
    """Signs time-stamps and says so."""

    desk: OwnerSigner
    period: int
    as_json: bool

    async def go_on(self, every: float, stop: asyncio.Event) -> None:
        """Sign until somebody wants to stop. Raises what goes wrong at first, and what no time makes good."""
        begun = False
        while not stop.is_set():
            try:
                async with self.desk.call.client() as client:
                    while not stop.is_set():
                        await self._sign_soon(client, every)
                        begun = True
                        await _pause(every, stop)
            except PenstockError as error:
                if not begun or not (isinstance(error, FailedError) or error.code in _PASSING):
                    raise
                self._log({"code": error.code, "message": error.message}, f"not signed: {error}")
                await _pause(min(every, _RETRY), stop)

    async def _sign_soon(self, client: Client, every: float) -> None:
        least, most = _ANSWER
        try:
            async with asyncio.timeout(max(least, min(every, most))):
                await self.sign(client)
        except TimeoutError:
            raise FailedError("client.timeout", "the broker does not answer") from None

    async def sign(self, client: Client) -> None:
        """Sign one time-stamp, keep it, and hand it in; first whatever of the chain the broker lacks."""
        async with holding(self.desk.file) as held:
            done = Signed()
            await catch_up(self.desk, client, held, done)
            warn(*done.warnings)
            signed = author_of(self.desk, held.chain, held.state.stamp).stamp(clock(), self.period)
            held.note(stamp=signed)
            await client.evolve(signed.to_bytes())
        value = signed.value
        facts = {"time": value_text(value.time), "until": value_text(value.until), "number": value.number}
        again = f", handed in again: {', '.join(map(str, done.again))}" if done.again else ""
        self._log(
            {**facts, "again": done.again},
            f"{facts['time']} policy event {value.number} is the last one, good until {facts['until']}{again}",
        )

    def _log(self, data: dict[str, object], text: str) -> None:
        if self.as_json:
            click.echo(json.dumps(data))
        else:
            say(text)


async def _pause(seconds: float, stop: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
