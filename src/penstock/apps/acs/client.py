"""Call the admin API of a domain's access control service, with a caller's key."""

import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final
from urllib.parse import urlsplit

from penstock.apps.acs.message_signatures import NONCE_BYTES, sign_request
from penstock.crypto import Signer
from penstock.errors import FailedError, MalformedError, PenstockError, RefusedError
from penstock.model.principals import Principal

#: seconds to wait for an answer, and bytes of one
_PATIENCE: Final = 30.0
_LONGEST: Final = 64 << 20
#: how often a change is sent whose answer was lost: it is applied once
_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True)
class DomainClient:
    """A caller of one service. `now` and `random` are those of the caller."""

    url: str
    domain: Principal
    key: Signer = field(repr=False)
    now: Callable[[], datetime]
    random: Callable[[int], bytes] = field(repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    def call(self, path: str, fields: Mapping[str, object]) -> dict[str, object]:
        """Call an operation, such as `members/add`, and return its answer.

        Raises the service's error with its code; `FailedError` (`acs.unreachable`, `acs.answer`) if there is no answer
        or one that cannot be read; `MalformedError` (`acs.url`).
        """
        body = json.dumps({key: value for key, value in fields.items() if value is not None}).encode()
        nonce = self.random(NONCE_BYTES)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._send(f"/v1/{path}", body, nonce)
            except FailedError:
                # The change may have been applied: the same nonce, so that it is applied once.
                if attempt == _ATTEMPTS:
                    raise
            except RefusedError as error:
                if attempt > 1 and error.code in ("acs.repeated", "role.repeated"):
                    return {"changes": [], "repeated": True}
                if attempt in (1, _ATTEMPTS) or error.code != "acs.answered":
                    raise
                # It was a read, or was refused, and the answer was lost.
                nonce = self.random(NONCE_BYTES)
        raise AssertionError("unreachable")

    def _send(self, path: str, body: bytes, nonce: bytes) -> dict[str, object]:
        headers = sign_request("POST", path, body, self.domain, self.key, now=self.now(), nonce=nonce)
        connection = self._connection()
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json", **headers})
            answer = connection.getresponse()
            data = answer.read(_LONGEST)
        except (OSError, HTTPException) as error:
            raise FailedError(
                "acs.unreachable",
                f"cannot reach the service at {self.url}: {_reason(error)}",
                hint="check --service, and that `penstock acs serve` runs",
            ) from None
        finally:
            connection.close()
        return _read(answer.status, data)

    def _connection(self) -> HTTPConnection:
        try:
            place = urlsplit(self.url)
            scheme, host, port = place.scheme, place.hostname, place.port
        except ValueError:
            scheme, host, port = "", None, None
        if host is None or scheme not in ("http", "https"):
            raise MalformedError(
                "acs.url", f"`{self.url[:80]}` is not the address of a service", hint="http://HOST:PORT"
            )
        if scheme == "http":
            return HTTPConnection(host, port, timeout=_PATIENCE)
        return HTTPSConnection(host, port, timeout=_PATIENCE, context=self.tls or ssl.create_default_context())


def _reason(error: OSError | HTTPException) -> str:
    return str(getattr(error, "strerror", None) or type(error).__name__).lower()


def _read(status: int, data: bytes) -> dict[str, object]:
    try:
        answer = json.loads(data)
        if status == 200 and isinstance(answer, dict):
            return answer
        raise _error(status, answer["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise FailedError(
            "acs.answer", f"the service has answered with status {status}, and no readable answer"
        ) from None


def _error(status: int, error: Mapping[str, object]) -> PenstockError:
    kind = MalformedError if status in (400, 413, 431) else FailedError if status >= 500 else RefusedError
    return kind(str(error["code"]), str(error["message"]), hint=str(error.get("hint", "")))
