"""The decision service as a process: it listens, reads its bundle again when that changes, and stops when told."""

import asyncio
import signal
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from penstock.apps.http.bundles import Bundle, Stamp, load, stamp
from penstock.apps.http.server import Bounds, HttpService
from penstock.apps.http.service import DecisionService
from penstock.errors import FailedError, PenstockError
from penstock.fabric.tasks import keep_running

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
Notes: TypeAlias = Callable[[str], None]
"""Where a line of the log goes."""


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """Where a service listens, which bundle it serves, and after how many seconds it looks whether that changed."""

    host: str
    port: int
    bundle: Path
    watch: float
    tls: ssl.SSLContext | None = None


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return what a server needs for TLS. Raises `FailedError` (`pdp.tls`)."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # A key with a passphrase would ask at the terminal.
        context.load_cert_chain(certificate, key, password=lambda: b"")
    except (OSError, ValueError) as error:
        hint = "both are PEM, and the key has no passphrase"
        raise FailedError("pdp.tls", f"`{certificate}` and its key cannot be used", hint=hint) from error
    return context


class RunningService:
    """A service that runs."""

    def __init__(self, service: DecisionService, place: ServiceConfig, note: Notes) -> None:
        self.service = service
        self._place = place
        self._note = note
        self.http = HttpService(
            service.answer, Bounds.of_questions(service.settings.limits), "pdp.listen", service.admit
        )
        service.counting.service = self.http
        #: none at first: what was changed since the bundle was read is found by the first look
        self._seen: Stamp | None = None
        self._wake = asyncio.Event()
        self._ended = asyncio.Event()

    async def run(self, ready: Callable[[int], None]) -> None:
        """Run until a signal ends it. Raises `FailedError` (`pdp.listen`)."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._unexpected)
        await self.http.start(self._place.host, self._place.port, self._place.tls)
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._ended.set)
        loop.add_signal_handler(signal.SIGHUP, self._look_again)
        tasks = [keep_running("reading the bundle", self._watch), keep_running("writing the journal", self._sync)]
        try:
            ready(self.http.port)
            await self._ended.wait()
        finally:
            for number in (*_SIGNALS, signal.SIGHUP):
                loop.remove_signal_handler(number)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.http.stop()
            if self.service.settings.journal is not None:
                self.service.settings.journal.sync()
                self.service.settings.journal.close()

    def _look_again(self) -> None:
        self._seen = None
        self._wake.set()

    async def _watch(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._place.watch or None):
                    await self._wake.wait()
            self._wake.clear()
            await self.look()

    async def look(self) -> None:
        """Take the bundle if it has changed; where it cannot be used, the one before goes on."""
        try:
            seen = stamp(self._place.bundle)
            if seen == self._seen:
                return
            # Read beside the decisions; what is taken is whole, in one step.
            bundle = await asyncio.to_thread(self._load)
        except PenstockError as error:
            if self.service.stale is None or self.service.stale.code != error.code:
                self._note(f"the bundle cannot be used, revision {self.service.bundle.revision} goes on: {error}")
            self.service.stale = error
            self.service.counting.loads["failed"] += 1
            return
        self._seen = seen
        changed = bundle.revision != self.service.bundle.revision
        self.service.take(bundle)
        self.service.counting.loads["taken"] += 1
        if changed:
            self._note(f"revision {bundle.revision} decides")

    def _load(self) -> Bundle:
        trusted = self.service.bundle.entities.trust_properties
        return load(self._place.bundle, self.service.settings.limits, trust_properties=trusted)

    async def _sync(self) -> None:
        journal = self.service.settings.journal
        while journal is not None:
            await asyncio.sleep(1)
            try:
                journal.sync()
            except PenstockError as error:
                self.service.unrecorded = error
                self._note(str(error))

    def _unexpected(self, _loop: asyncio.AbstractEventLoop, what: dict[str, object]) -> None:
        error = what.get("exception")
        self._note(f"unexpected: {type(error).__name__ if error else what.get('message')}")
