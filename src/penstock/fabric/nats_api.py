"""The API of JetStream: requests and their answers, the same for the fabric and for JetStream on Spark."""

import json
from typing import Any, Final

from nats.aio.client import Client

NO_STREAM: Final = 10059
NO_MESSAGE: Final = 10037
STREAM_DIFFERS: Final = 10058
NOT_STORED: Final = 10077  # the description says why: the bounds of the stream, or its files
WRONG_LAST: Final = frozenset({10071, 10164})


class ApiError(Exception):
    """The server answered with an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        self.status = int(error.get("code", 0))
        self.number = int(error.get("err_code", 0))
        self.description = str(error.get("description", "no reason given"))
        super().__init__(self.description)


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
