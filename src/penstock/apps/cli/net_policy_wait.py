"""Waiting until a policy event is complete: who enforces it, and who stops by himself when its time has run out."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from penstock.apps.cli import paint
from penstock.apps.cli.describe import value_text
from penstock.apps.cli.names import Names
from penstock.apps.cli.net_answers import plain, show_progress, why_waited_for
from penstock.apps.cli.net_client import until
from penstock.apps.cli.pub_progress import showing
from penstock.apps.cli.told import listed, table
from penstock.broker.client import Client
from penstock.broker.completeness import Progress
from penstock.codec.wire import Wire
from penstock.errors import FailedError, RefusedError
from penstock.model.principals import Principal

#: seconds between two questions: at first, and at most
_PAUSES: Final = (0.01, 0.2)
_DONE: Final = (Progress.ACKNOWLEDGED, Progress.RUN_OUT)


@dataclass(slots=True)
class Awaited:
    """A policy event, and how far it is with each broker that is trusted with something of its owner's."""

    owner: Principal
    number: int
    complete: datetime | None = None
    brokers: Mapping[str, Wire] = field(default_factory=dict)
    #: what the broker tells of the owner's policy
    state: Mapping[str, Wire] = field(default_factory=dict)

    def take(self, status: Mapping[str, Wire]) -> None:
        """Take what a broker says; of an event that it shows no longer, the next one says as much."""
        state = table(table(status.get("policy")).get(str(self.owner)))
        for event in map(table, listed(state.get("events"))):
            number = event.get("number")
            if isinstance(number, int) and number >= self.number:
                complete = event.get("complete")
                self.complete = complete if isinstance(complete, datetime) else None
                self.brokers, self.state = table(event.get("brokers")), state
                return

    def rows(self, names: Names) -> Iterator[tuple[str, str, str, str]]:
        """Yield a row for each broker: who it is, how far, since or until when, and why it is waited for."""
        for broker, standing in self.brokers.items():
            told = table(standing)
            progress, at = str(told.get("progress", "")), told.get("at")
            mark = "✓" if progress in _DONE else "✗"
            word = "since" if progress in _DONE else "until at the latest"
            when = f"{word} {value_text(at)}" if isinstance(at, datetime) else ""
            why = "" if progress in _DONE else why_waited_for(self.state, broker)
            yield names.show_text(broker), f"{mark} {progress}", when, why

    def text(self, names: Names) -> str:
        """Say in a few lines how far it is."""
        rows = list(self.rows(names))
        done = sum(progress.startswith("✓") for _, progress, _, _ in rows)
        lines = [f"policy event {self.number}: {done} of {len(rows)} brokers"]
        return "\n".join(lines + ["  ".join(row).rstrip() for row in rows])

    def show(self, names: Names) -> None:
        """Show it to people."""
        done = f"✓ complete since {value_text(self.complete)}" if self.complete else "✗ not complete"
        paint.line(f"policy event {self.number} {done}")
        show_progress(("broker", "progress", "when", "why"), list(self.rows(names)))

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        complete = None if self.complete is None else value_text(self.complete)
        return {"number": self.number, "complete": complete, "brokers": plain(dict(self.brokers))}

    def check(self) -> None:
        """Raise `RefusedError` (`evolution.incomplete`) where not all brokers are done."""
        if self.complete is None:
            none = not self.brokers
            raise RefusedError(
                "evolution.incomplete",
                f"policy event {self.number} is not complete",
                hint="no broker is known that may carry a type of yours: grant `route` to those that do"
                if none
                else "`penstock net show` says whom it waits for; for a broker that is gone, run `penstock net retire`",
            )


async def wait_for(awaited: Awaited, client: Client, names: Names, stop: asyncio.Event, timeout: float | None) -> None:
    """Wait until an event is complete, the time is over, or somebody wants to stop. Raises `RefusedError`."""
    with showing(lambda: awaited.text(names)), suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            await until(stop, _complete(awaited, client))


async def _complete(awaited: Awaited, client: Client) -> None:
    pause, longest = _PAUSES
    while True:
        # A broker that starts again comes back, and what it knew with it.
        with suppress(FailedError):
            awaited.take(await client.status())
        if awaited.complete is not None:
            return
        await asyncio.sleep(pause)
        pause = min(longest, 2 * pause)
