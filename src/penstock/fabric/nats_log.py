"""A log as a JetStream stream: a record is stored only if the stream is as long as its writer expects.

    stream PREFIX-log-NAME     subject PREFIX.log.NAME, in files; nothing expires, and a full stream refuses records

The record after n others has the sequence n + 1. `forget` purges records; their sequences are not used again. If the
stream disappears while a log is open, the log does not create it again: its records are lost, and an operator must
decide what to do. The servers are trusted to give all clients the same answers. Servers that do not can make replicas
disagree: the replicas stop then, but the encrypted contents of records stay secret.
"""

from collections.abc import Sequence
from typing import Final, Self

from nats.aio.client import Client

from penstock.errors import FailedError, MalformedError, PenstockError, RefusedError
from penstock.fabric.nats_api import (
    NO_MESSAGE,
    NO_STREAM,
    WRONG_LAST,
    AnswerError,
    ApiError,
    ask,
    payload,
    store,
    text,
    whole,
)
from penstock.fabric.nats_link import NatsLink, checked
from penstock.fabric.nats_login import NatsLogin

_EXPECTED: Final = "Nats-Expected-Last-Sequence"


class NatsLog:
    """See the module; `await NatsLog.open(login, name)` opens it."""

    def __init__(self, link: NatsLink, name: str) -> None:
        self._link = link
        self._stream = f"{link.prefix}-log-{name}"
        self._subject = f"{link.prefix}.log.{name}"
        self._created = ""  # when the stream was created

    @classmethod
    async def open(  # noqa: PLR0913  # named settings, each with a default
        cls,
        login: NatsLogin | str,
        name: str,
        *,
        prefix: str = "penstock",
        copies: int = 1,
        timeout: float = 2.0,
        patience: float = 10.0,
    ) -> Self:
        """Open a log. If its stream does not exist, create it with this number of copies.

        Raises `MalformedError` (`fabric.bad-name`, `fabric.bad-address`), `FailedError` (`keys.log-stream`), and as
        `NatsLink.client`.
        """
        if not (name.isascii() and name.isalnum() and prefix.isascii() and prefix.isalnum()):
            raise MalformedError("fabric.bad-name", "the names of a log and of its prefix must be letters and digits")
        link = NatsLink(checked(login), prefix=prefix, domain="", timeout=timeout, patience=patience)
        log = cls(link, name)
        try:
            await log._make(copies)
        except ApiError as error:
            await link.close()
            raise _failed(error) from error
        except BaseException:
            await link.close()
            raise
        return log

    async def append(self, number: int, record: bytes) -> bool:
        """Write a record and return True if `number` records were written before; otherwise return False.

        If a response is lost, the record is sent again, and the result is False although it was stored: read the log.
        """
        link, headers = self._link, {_EXPECTED: str(number)}
        try:
            await link.call(
                lambda client: store(
                    client, self._subject, record, stream=self._stream, timeout=link.timeout, headers=headers
                )
            )
        except ApiError as error:
            if error.number in WRONG_LAST:
                await self._check(0)
                return False
            raise _failed(error) from error
        return True

    async def read(self, number: int) -> Sequence[bytes]:
        """Return the records after the first `number`, as far as they were not forgotten."""
        found: list[bytes] = []
        place = number + 1
        while (message := await self._get(place)) is not None:
            record, sequence = message
            place = sequence + 1
            found.append(record)
        if not found:
            await self._check(number)
        return found

    async def forget(self, number: int) -> None:
        """Delete the first `number` records."""
        try:
            await self._link.ask(f"STREAM.PURGE.{self._stream}", {"seq": number + 1})
        except ApiError as error:
            raise _failed(error) from error

    async def close(self) -> None:
        """Close the connection."""
        await self._link.close()

    async def _make(self, copies: int) -> None:
        config = {
            "name": self._stream,
            "subjects": [self._subject],
            "storage": "file",
            "num_replicas": copies,
            "discard": "new",
            "deny_delete": True,
        }
        made = await self._link.ask(f"STREAM.CREATE.{self._stream}", config)
        try:
            self._created = text(made, "created")
        except AnswerError as error:
            raise self._link.unreachable(error) from error

    async def _check(self, number: int) -> None:
        """Check that the stream is the one that was opened, and that it has at least `number` records.

        Raises `FailedError` (`keys.log-lost`).
        """
        link = self._link

        async def look(client: Client) -> bool:
            info = await ask(client, f"{link.api}.STREAM.INFO.{self._stream}", timeout=link.timeout)
            return text(info, "created") == self._created and whole(info, "state", "last_seq") >= number

        try:
            same = await link.call(look)
        except ApiError as error:
            raise _failed(error) from error
        if not same:
            raise _lost()

    async def _get(self, sequence: int) -> tuple[bytes, int] | None:
        """Return the first message with this sequence or a later one, and its sequence."""
        link, body = self._link, {"seq": sequence, "next_by_subj": self._subject}

        async def read(client: Client) -> tuple[bytes, int]:
            answer = await ask(client, f"{link.api}.STREAM.MSG.GET.{self._stream}", body, timeout=link.timeout)
            record, found = payload(answer)
            if found < sequence:
                raise AnswerError("a record before the requested one")
            return record, found

        try:
            return await link.call(read)
        except ApiError as error:
            if error.number == NO_MESSAGE:
                return None
            raise _failed(error) from error


def _lost() -> FailedError:
    return FailedError(
        "keys.log-lost",
        "the stream of the key log is gone, or another one has its name",
        hint="restore the servers' data from a backup and start the key managers again; what is sealed stays sealed",
    )


def _failed(error: ApiError) -> PenstockError:
    if error.number == NO_STREAM:
        return _lost()
    if error.status == 403:
        return RefusedError("fabric.unauthorized", "the servers do not permit writing the key log")
    return FailedError(
        "keys.log-stream",
        f"the stream of the key log cannot be used: {error.description}",
        hint="check that it is the right server, has storage left, and that there are as many servers as copies",
    )
