"""Notify other domains that records have ended on which they have issued roles (paper 2, section 3.2).

A notice is a request that the domain signs, to the access control service of the other domain. It is sent immediately,
and again until the other service has answered. Which notices are open is part of the role book, so that none is lost
when a service stops, and services that share a store send a notice twice at worst: it changes nothing the second time.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from penstock.apps.acs.client import DomainClient
from penstock.apps.acs.service import DomainService
from penstock.authority.role_book import RoleBook
from penstock.errors import PenstockError
from penstock.model.principals import Principal
from penstock.roles.engine import NoticesTaken

#: records in one request; seconds between two looks for notices, at most
_BATCH: Final = 256
_LOOK: Final = 1.0


class NoticeSender:
    """Sends notices until it is cancelled. `services` are the addresses of other domains' services."""

    def __init__(
        self,
        service: DomainService,
        book: RoleBook,
        services: Mapping[Principal, str],
        note: Callable[[PenstockError], None],
    ) -> None:
        self._service = service
        self._book = book
        self._services = services
        self._note = note
        self._changed = asyncio.Event()
        #: the last problem with each domain, which is noted once
        self._problems: dict[Principal, str] = {}
        loop = asyncio.get_running_loop()

        def changed() -> None:
            # Changes are made in threads.
            loop.call_soon_threadsafe(self._changed.set)

        service.listeners.append(changed)

    async def run(self) -> None:
        """Send notices whenever there are any."""
        while True:
            self._changed.clear()
            await self.send()
            try:
                async with asyncio.timeout(_LOOK):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def send(self) -> None:
        """Send the open notices of domains whose services are known, to all domains at the same time."""
        found = await self._service.do(self._open)
        await asyncio.gather(*(self._to(domain, records) for domain, records in found.items()))

    def _open(self) -> Mapping[Principal, tuple[str, ...]]:
        notices = self._book.current(self._service.settings.clock()).notices()
        return {domain: records[:_BATCH] for domain, records in notices.items() if domain in self._services}

    async def _to(self, domain: Principal, records: tuple[str, ...]) -> None:
        signer = self._service.domain.signer
        client = DomainClient(self._services[domain], domain, signer, self._service.settings.clock, os.urandom)
        try:
            # Not under the lock of the service: two domains may notify each other at the same time.
            await asyncio.to_thread(client.call, "roles/ended", {"records": list(records)})
            await self._service.do(partial(self._confirm, domain, records))
        except PenstockError as error:
            if self._problems.get(domain) != error.code:
                self._problems[domain] = error.code
                self._note(error)
        else:
            self._problems.pop(domain, None)
            if len(records) == _BATCH:
                self._changed.set()

    def _confirm(self, domain: Principal, records: tuple[str, ...]) -> None:
        book, now = self._book, self._service.settings.clock()
        left = book.current(now).notices().get(domain, ())
        taken = tuple(one for one in records if one in left)
        if taken:
            book.change(NoticesTaken(domain, taken), book.founding.domain, now, "notified")
