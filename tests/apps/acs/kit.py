"""What the tests of the service share: a domain in memory behind the service, and signed requests to it."""

import asyncio
import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from tests.authority.domain.kit import NAME, memory
from tests.guard.london import MANAGER, NOW, PITO, V4799, V8516

from penstock.apps.acs.message_signatures import sign_request
from penstock.apps.acs.service import DomainService, DomainServiceSettings
from penstock.apps.http.server import HttpRequest, HttpResponse
from penstock.authority.domain.domain_ledger import DomainLedger
from penstock.authority.role_book import RoleBook
from penstock.crypto import SigningKey
from penstock.roles.engine import RoleFounding
from penstock.store.ledgers.ledgers import Ledger
from penstock.store.ledgers.memory import MemoryRecords
from penstock.trust.credentials import Credentials

ADMIN = MANAGER
TYPES = {one.event_type.name: one for one in (V4799, V8516)}
COURT = SigningKey(b"c" * 32)
ROLES = RoleFounding(
    PITO.principal,
    "domain court; appointment badge; appointment badge by court; fact open: boolean;",
    (("court", COURT.principal),),
)
_NONCES = (b"nonce" + number.to_bytes(13) for number in count(1))


class Desk:
    """A service whose clock the test moves. Its administrator is MANAGER."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        self.now = NOW
        self.ledger = memory() if ledger is None else ledger
        self.domain = DomainLedger.create(self.ledger, NAME, PITO, NOW)
        self.book = RoleBook.create(Ledger(MemoryRecords(), "roles"), ROLES, NOW, signer=PITO)
        settings = DomainServiceSettings(TYPES, clock=lambda: self.now, roles=self.book)
        self.service = DomainService(self.domain, settings)
        self.service.begin((ADMIN.principal,), Credentials())

    def request(
        self,
        key: SigningKey,
        path: str,
        fields: Mapping[str, object] | bytes,
        *,
        nonce: bytes | None = None,
        when: datetime | None = None,
    ) -> HttpRequest:
        body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
        signed = sign_request(
            "POST",
            f"/v1/{path}",
            body,
            PITO.principal,
            key,
            now=when or self.now,
            nonce=nonce or next(_NONCES),
        )
        headers = {b"content-type": b"application/json"}
        headers |= {name.lower().encode(): value.encode() for name, value in signed.items()}
        return HttpRequest(b"POST", f"/v1/{path}".encode(), headers, body)

    def send(self, request: HttpRequest) -> HttpResponse:
        """Send a request as the server does: by its head first."""
        admitted = self.service.admit(HttpRequest(request.method, request.path, request.headers))
        if isinstance(admitted, HttpResponse):
            return admitted
        answer = self.service.answer(request)
        if isinstance(answer, HttpResponse):
            return answer

        async def wait() -> HttpResponse:
            return await answer

        return asyncio.run(wait())

    def call(self, key: SigningKey, path: str, **fields: object) -> Any:
        """Call an operation that works."""
        answer = self.send(self.request(key, path, fields))
        assert answer.status == 200, answer.body
        return json.loads(answer.body)

    def refused(self, key: SigningKey, path: str, **fields: object) -> tuple[int, str]:
        """Call an operation that does not work; return the status and the code."""
        return code_of(self.send(self.request(key, path, fields)))

    def later(self, **time: float) -> None:
        self.now += timedelta(**time)


def code_of(answer: HttpResponse) -> tuple[int, str]:
    return answer.status.value, json.loads(answer.body)["error"]["code"]
