"""Connecting to a NATS server and asking its JetStream API, the same for the fabric and for JetStream on Spark."""

import asyncio
import json
import ssl
from contextlib import suppress
from typing import Any, Final

from nats.aio.client import Client
from nats.errors import Error, InvalidUserCredentialsError

from penstock.fabric.nats_login import HandshakeError, NotInstalledError, UnreadableError

NO_STREAM: Final = 10059
NO_MESSAGE: Final = 10037
STREAM_DIFFERS: Final = 10058
NOT_STORED: Final = 10077  # the description says why: the bounds of the stream, or its files
#: what may pass when the connection or the server comes back
TRANSIENT: Final = (OSError, TimeoutError, Error)
_CLOSING: Final = 1.0  # seconds
WRONG_LAST: Final = frozenset({10071, 10164})


class ApiError(Exception):
    """The server answered with an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        self.answer = error
        self.status = int(error.get("code", 0))
        self.number = int(error.get("err_code", 0))
        self.description = str(error.get("description", "no reason given"))
        super().__init__(self.description)


async def log_in(client: Client, arguments: dict[str, Any], *, timeout: float, **options: Any) -> None:
    """Connect a client with the arguments of `NatsLogin`.

    Raises `LoginError`, and as nats-py where the server does not answer or refuses.
    """
    try:
        await asyncio.wait_for(
            client.connect(**arguments, connect_timeout=max(1, round(timeout)), **options),
            timeout * (len(arguments["servers"]) + 1),
        )
    except ssl.SSLError as error:
        raise HandshakeError(error.reason or "the handshake failed") from error
    except ImportError as error:
        raise NotInstalledError("nkeys") from error
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise UnreadableError("credentials or nkey") from error
    except (ValueError, InvalidUserCredentialsError) as error:
        raise UnreadableError("credentials or nkey") from error


async def shut(client: Client) -> None:
    """Close a connection, in bounded time."""
    # nats-py asserts that it ever began to connect, and after a TLS handshake that failed it waits for an end that
    # never comes.
    with suppress(*TRANSIENT, AssertionError):
        await asyncio.wait_for(client.close(), _CLOSING)
    await asyncio.sleep(0)  # the loop closes the socket in its next round


async def ask(client: Client, subject: str, body: object = None, *, timeout: float) -> dict[str, Any]:
    """Ask the API, by the whole subject, and return its answer. Raises `ApiError`, and as nats-py."""
    data = b"" if body is None else json.dumps(body).encode()
    return _answer((await client.request(subject, data, timeout=timeout)).data)


async def store(
    client: Client, subject: str, value: bytes, *, timeout: float, headers: dict[str, str] | None = None
) -> dict[str, Any]:
    """Store a message and return the server's acknowledgement. Raises `ApiError`, and as nats-py."""
    return _answer((await client.request(subject, value, timeout=timeout, headers=headers)).data)


async def compare_and_set(client: Client, subject: str, value: bytes, revision: int, *, timeout: float) -> bool:
    """Store a value if the last one on its subject has this sequence; say whether it was. Raises as `store`."""
    try:
        headers = {"Nats-Expected-Last-Subject-Sequence": str(revision)}
        await store(client, subject, value, timeout=timeout, headers=headers)
    except ApiError as error:
        if error.number in WRONG_LAST:
            return False
        raise
    return True


def _answer(data: bytes) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(data)
    if "error" in decoded:
        raise ApiError(decoded["error"])
    return decoded
