"""The facts of a domain's role policy, from the sources that its domain file names."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Self

from penstock.apps.acs.config import HELP, FactFile, LoadedDomain
from penstock.apps.acs.service import DomainService
from penstock.authority.facts import EventSource, FactFeed, HttpRows, SqlRows, TableSource
from penstock.authority.role_book import RoleBook
from penstock.broker.client.client import connect
from penstock.errors import MalformedError, PenstockError, did_you_mean
from penstock.fabric import SystemClock
from penstock.fabric.tasks import keep_running
from penstock.roles.engine import SetFact
from penstock.roles.language import FactDeclaration
from penstock.store.files.client_files import load_key
from penstock.store.files.files import read_file
from penstock.store.files.name_book import NameBook

_TOKEN_BYTES: Final = 16_384


class DomainFacts:
    """Reads the sources while it is entered. Each change is stored, and capabilities follow immediately."""

    def __init__(
        self, loaded: LoadedDomain, book: RoleBook, service: DomainService, note: Callable[[str], None]
    ) -> None:
        """Prepare the sources. Raises `MalformedError` (`acs.file-fact`, `fact.*`), and what reading files raises."""
        self._loaded = loaded
        self._book = book
        self._service = service
        self._write = note
        self._tasks: list[asyncio.Task[None]] = []
        #: what was wrong with a source, which is noted once
        self._problems: dict[str, str] = {}
        self._feed = FactFeed(SystemClock(), self._apply, book.engine.facts, self._note)
        declared = book.engine.policy.facts()
        for name, file in loaded.file.facts.items():
            if name not in declared:
                hint = did_you_mean(name, declared) or HELP
                raise MalformedError("acs.file-fact", f"the role policy has no fact `{name}`", hint=hint)
            self._feed.watch(_source(declared[name], file, loaded))

    async def __aenter__(self) -> Self:
        await self._feed.start()
        for name, file in self._loaded.file.facts.items():
            if file.events:
                self._tasks.append(keep_running(f"events of fact {name}", partial(self._follow, name, file)))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._feed.close()

    async def _follow(self, name: str, file: FactFile) -> None:
        """Take events. Whatever fails is tried again, and the facts end when they are too old."""
        loaded = self._loaded
        client = connect(
            file.broker,
            key=load_key(Path(loaded.path).parent / file.key),
            network=file.network,
            credentials=loaded.feeds[name],
            names=NameBook.of({written: principal for principal, written in loaded.names.items()}),
            patience=file.timeout,
        )
        async with client:
            async for event in client.subscribe(file.events):
                self._feed.take(name, event.values)
                self._problems.pop(name, None)

    async def _apply(self, changes: Sequence[SetFact]) -> None:
        await self._service.do(partial(self._store, changes))

    def _store(self, changes: Sequence[SetFact]) -> None:
        domain = self._book.founding.domain
        self._book.change_all(changes, domain, self._service.settings.clock(), "facts")
        for name in {one.fact for one in changes if one.value is not None}:
            self._problems.pop(name, None)
        try:
            self._service.follow_roles()
        except PenstockError as error:
            # The facts are stored; the service tries this again by itself.
            self._write(str(error))

    def _note(self, fact: str, error: PenstockError) -> None:
        line = f"fact {fact}: {error}"
        if self._problems.get(fact) != line:
            self._problems[fact] = line
            self._write(line)


def _source(declared: FactDeclaration, file: FactFile, loaded: LoadedDomain) -> TableSource | EventSource:
    if file.events:
        return EventSource(fact=declared, arguments=file.arguments, value=file.value or None, max_age=file.max_age)
    if file.sql:
        return _table(declared, file, SqlRows(loaded.located(file.sql), file.query, timeout=file.timeout))
    token = (
        read_file(str(Path(loaded.path).parent / file.token_file), _TOKEN_BYTES).decode().strip()
        if file.token_file
        else ""
    )
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return _table(declared, file, HttpRows(file.url, headers=headers, timeout=file.timeout))


def _table(declared: FactDeclaration, file: FactFile, read: SqlRows | HttpRows) -> TableSource:
    return TableSource(fact=declared, read=read, every=file.every, max_age=file.max_age, timeout=file.timeout)
