"""The access control service: answer HTTP requests about a domain, renew capabilities, and push them to brokers.

The order is the same for all requests: (1) which operation it is, (2) who calls, by the signature over the head, before
any of the body is read, (3) the body is the signed one, (4) its fields, (5) the domain authorises and applies it
on its newest state, and only then (6) the answer. Whatever fails before (6) changes nothing, or is acknowledged to
nobody. `DomainService` has no sockets; `RunningDomainService` is the process.
"""

import asyncio
import json
import signal
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from http import HTTPStatus
from typing import Final, TypeVar

import msgspec

from penstock.apps.acs.message_signatures import RequestSigner, verify_body, verify_request
from penstock.apps.acs.openapi import acs_document
from penstock.apps.acs.operations import OPERATIONS, ApiCall, ApiOperation
from penstock.apps.http.server import JSON, Bounds, HttpRequest, HttpResponse, HttpService, refused
from penstock.authority.domain.distribution import CapabilityPush, announced
from penstock.authority.domain.domain_changes import RevokeIssued
from penstock.authority.domain.domain_ledger import ANSWERED, APPLIED, DomainLedger
from penstock.authority.domain.domain_state import (
    DomainRequest,
    IssueRequest,
    Operation,
    RegisterRequest,
    RenewRequest,
    RoleRequest,
    StatementRequest,
)
from penstock.authority.domain.role_capabilities import role_capabilities
from penstock.authority.limits import AUTHORITY_LIMITS, AuthorityLimits
from penstock.authority.role_book import RoleBook
from penstock.errors import FailedError, MalformedError, PenstockError
from penstock.fabric.tasks import keep_running
from penstock.model.names import TypeName
from penstock.model.principals import Principal
from penstock.trust.capabilities import Right, network_tag
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import VerifiedType
from penstock.trust.validity import ALWAYS, OnlineTest

ADMINISTRATOR: Final = "administrator"
"""The purpose of the certificates of administrators that the domain file names."""

#: bytes of a head and of a body; milliseconds for a request, and between two; connections
_BOUNDS: Final = Bounds(8_192, 256 << 10, 10_000, 75_000, 256)
#: refusals that say nothing new: the caller sends the same request again, or it was applied
_UNSETTLED: Final = frozenset(("acs.busy", "acs.repeated", "role.repeated"))
#: seconds between looks for certificates to renew and push
_BEAT: Final = 1.0
#: how long the certificates of administrators are valid; they are renewed before they end
_ADMINISTRATION: Final = timedelta(days=7)
_OPERATIONS: Final[Mapping[bytes, ApiOperation]] = {one.path.encode(): one for one in OPERATIONS}

#: the status of a refusal, by its code; 409 for all others
_STATUS: Final = {
    **dict.fromkeys(("acs.unsigned", "acs.wrong-domain", "acs.untimely", "key.bad-signature"), HTTPStatus.UNAUTHORIZED),
    "acs.digest": HTTPStatus.UNAUTHORIZED,
    "acs.not-permitted": HTTPStatus.FORBIDDEN,
    "acs.no-authority": HTTPStatus.FORBIDDEN,
    **dict.fromkeys(("acs.unknown-member", "acs.not-issued", "acs.unknown-type", "acs.no-chain"), HTTPStatus.NOT_FOUND),
}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DomainServiceSettings:
    """What a service knows besides the domain: types, its address, its clock."""

    types: Mapping[TypeName, VerifiedType] = field(default_factory=dict)
    url: str = "http://127.0.0.1"
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    #: the domain's roles, if it has any, and how long their capabilities are valid
    roles: RoleBook | None = None
    role_lifetime: timedelta = timedelta(hours=1)
    #: tests that capabilities from roles need
    role_online: tuple[OnlineTest, ...] = ()
    #: how long a timed validity statement is valid
    statements: timedelta = timedelta(minutes=5)
    limits: AuthorityLimits = AUTHORITY_LIMITS


class DomainService:
    """Answers requests about one domain. See the module."""

    def __init__(self, domain: DomainLedger, settings: DomainServiceSettings) -> None:
        self.domain = domain
        self.settings = settings
        self._principal = domain.state.begun()
        self._alone = asyncio.Lock()
        #: called after each change, in any thread
        self.listeners: list[Callable[[], None]] = []
        #: privileges of active roles that cannot be capabilities
        self.role_problems: tuple[PenstockError, ...] = ()

    async def do(self, work: Callable[[], T]) -> T:
        """Run a call that waits for a store or a signer in a thread, one at a time."""
        async with self._alone:
            return await asyncio.to_thread(work)

    # --- requests -------------------------------------------------------------------------------------------------

    def admit(self, asked: HttpRequest) -> HttpResponse | str | None:
        """Identify the caller by the head of a request, or answer without its body."""
        # (1) What it is about.
        if asked.path in (b"/health", b"/openapi.json"):
            return None if asked.method in (b"GET", b"HEAD") else _not_so(b"GET, HEAD")
        if asked.path not in _OPERATIONS:
            return refused(HTTPStatus.NOT_FOUND)
        if asked.method != b"POST":
            return _not_so(b"POST")
        if asked.headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != JSON.encode():
            return _failed(MalformedError("acs.fields", "the content is not application/json"))
        # (2) Who calls.
        try:
            return str(self._caller(asked).principal)
        except PenstockError as error:
            return _failed(error)

    def _caller(self, asked: HttpRequest) -> RequestSigner:
        age = timedelta(seconds=self.settings.limits.domain_request_age)
        path, method = asked.path.decode("latin-1"), asked.method.decode("latin-1")
        return verify_request(method, path, asked.headers, self._principal, now=self.settings.clock(), age=age)

    def answer(self, asked: HttpRequest) -> HttpResponse | Awaitable[HttpResponse]:
        """Answer a request that was admitted."""
        if asked.path == b"/openapi.json":
            return _json(acs_document(self.settings.url))
        return self._health() if asked.path == b"/health" else self._answer(asked)

    async def _health(self) -> HttpResponse:
        try:
            state = await self.do(self.domain.refresh)
        except PenstockError as error:
            return _failed(error)
        return _json({"status": "ok", "domain": str(self._principal), "name": state.name})

    async def _answer(self, asked: HttpRequest) -> HttpResponse:
        operation = _OPERATIONS[asked.path]
        try:
            signer = self._caller(asked)
            # (3) The body is the signed one.
            verify_body(asked.headers, asked.body)
            # (4) Its fields.
            fields = _read(operation, asked.body)
            settings, who = self.settings, signer.principal
            call = ApiCall(self.domain, settings.types, who, signer.nonce, settings.clock(), settings.roles)
            # (5) The domain decides.
            data = await self.do(lambda: self._once(operation, call, fields))
            if operation.changes:
                self._tell()
        except PenstockError as error:
            return _failed(error)
        # (6) The answer.
        return _json(data)

    def _once(self, operation: ApiOperation, call: ApiCall, fields: msgspec.Struct) -> dict[str, object]:
        """Answer a request, unless a service of this domain has done so, and store its outcome for all of them.

        The ledger remembers changes by itself, but not requests that had nothing to change or were refused.
        """
        domain = self.domain
        domain.check_new(call.caller, call.nonce)
        try:
            data = self._run(operation, call, fields)
        except PenstockError as error:
            # After a failure it is unknown whether it was applied: the caller sends the same request again.
            if not isinstance(error, FailedError) and error.code not in _UNSETTLED:
                domain.settle(call.caller, call.nonce, ANSWERED, call.now)
            raise
        domain.settle(call.caller, call.nonce, APPLIED if operation.changes else ANSWERED, call.now)
        return data

    def _run(self, operation: ApiOperation, call: ApiCall, fields: msgspec.Struct) -> dict[str, object]:
        data = operation.run(call, fields)
        if operation.path.startswith("/v1/roles/"):
            try:
                self.follow_roles()
            except PenstockError as error:
                # The change is stored; the service tries this again by itself.
                self.role_problems = (error,)
        return data

    def _tell(self) -> None:
        for listener in self.listeners:
            listener()

    # --- by itself ------------------------------------------------------------------------------------------------

    def begin(self, administrators: tuple[Principal, ...], credentials: Credentials) -> None:
        """Issue the certificates of administrators, revoke those of others, and register received certificates.

        Raises as `DomainLedger.ask`.
        """
        now = self.settings.clock()
        state = self.domain.refresh()
        if len(credentials):
            self._ask(RegisterRequest(credentials), now, "named in the domain file")
        appointed = [
            one for one in state.issued.values() if one.purpose == ADMINISTRATOR and one.id not in state.revoked
        ]
        gone = tuple(one.id for one in appointed if one.certificate.statement.subject not in administrators)
        if gone:
            self._ask(RevokeIssued(gone), now, "no longer named in the domain file")
        have = {one.certificate.statement.subject for one in appointed}
        tag = network_tag(self._principal, state.name, [Right.ADMINISTER, Right.AUDIT, Right.CONNECT])
        for administrator in administrators:
            if administrator not in have:
                asked = IssueRequest(administrator, tag, ALWAYS, lifetime=_ADMINISTRATION, purpose=ADMINISTRATOR)
                self._ask(asked, now, "named in the domain file")

    def renew(self) -> int:
        """Renew the certificates whose time has come, and return how many there were. Raises as `DomainLedger.ask`."""
        now = self.settings.clock()
        if not any(self.domain.refresh().due(now)):
            return 0
        return len(self._ask(RenewRequest(), now, "renewed"))

    def follow_roles(self) -> int:
        """Issue and revoke capabilities as active roles say, and return how many changes that took.

        Raises as `role_capabilities` and `DomainLedger.ask`.
        """
        settings = self.settings
        if settings.roles is None:
            return 0
        now = settings.clock()
        found = role_capabilities(settings.roles.current(now), settings.types)
        self.role_problems = found.problems
        changes = self._ask(RoleRequest(found.capabilities, settings.role_lifetime, settings.role_online), now, "roles")
        if changes:
            self._tell()
        return len(changes)

    def state_validity(self) -> int:
        """Sign the validity statements that are due, and return how many. Raises as `DomainLedger.ask`."""
        if not self.domain.refresh().tests():
            return 0
        return len(self._ask(StatementRequest(self.settings.statements), self.settings.clock(), "validity"))

    def _ask(self, operation: Operation, now: datetime, why: str) -> tuple[object, ...]:
        return self.domain.ask(DomainRequest(self._principal, operation, why), now)


def _read(operation: ApiOperation, body: bytes) -> msgspec.Struct:
    try:
        return msgspec.json.decode(body, type=operation.fields)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # msgspec quotes field names and places, never values.
        raise MalformedError("acs.fields", f"the body is not what the operation reads: {str(error)[:200]}") from None


def _json(data: Mapping[str, object], status: HTTPStatus = HTTPStatus.OK) -> HttpResponse:
    return HttpResponse(json.dumps(data, separators=(",", ":")).encode(), status, JSON)


def _failed(error: PenstockError) -> HttpResponse:
    if isinstance(error, MalformedError):
        status = HTTPStatus.BAD_REQUEST
    elif isinstance(error, FailedError):
        status = HTTPStatus.SERVICE_UNAVAILABLE
    else:
        status = _STATUS.get(error.code, HTTPStatus.CONFLICT)
    data = {"code": error.code, "message": error.message} | ({"hint": error.hint} if error.hint else {})
    return _json({"error": data}, status)


def _not_so(allowed: bytes) -> HttpResponse:
    return refused(HTTPStatus.METHOD_NOT_ALLOWED, b"Allow: %b\r\n" % allowed)


# ----------------------------------------------------------------------------------------------------------------------
# The service as a process.

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class ServicePlace:
    """Where a service listens."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None


class RunningDomainService:
    """A service that runs until a signal ends it."""

    def __init__(
        self,
        service: DomainService,
        place: ServicePlace,
        note: Callable[[str], None],
        push: CapabilityPush | None = None,
    ) -> None:
        self.service = service
        self._place = place
        self._note = note
        self._push = push
        self.http = HttpService(service.answer, _BOUNDS, "acs.listen", service.admit)
        self._ended = asyncio.Event()
        #: what was wrong with roles when they were last followed
        self._problems: list[str] = []

    async def run(self, ready: Callable[[int], None]) -> None:
        """Run until a signal ends it. Raises `FailedError` (`acs.listen`)."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._unexpected)
        await self.http.start(self._place.host, self._place.port, self._place.tls)
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._ended.set)
        tasks = [keep_running("renewing capabilities", self._beat)]
        if self._push is not None:
            # Beside the renewals: for a token, many signatures take minutes.
            tasks.append(keep_running("pushing capabilities", partial(self._push_changes, self._push)))
        try:
            ready(self.http.port)
            await self._ended.wait()
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.http.stop()

    async def _beat(self) -> None:
        while True:
            try:
                renewed = await self.service.do(self.service.renew)
                await self.service.do(self.service.follow_roles)
                self._note_role_problems()
                await self.service.do(self.service.state_validity)
                if renewed:
                    self._note(f"renewed {renewed} certificates")
            except PenstockError as error:
                self._note(str(error))
            await asyncio.sleep(_BEAT)

    async def _push_changes(self, push: CapabilityPush) -> None:
        service = self.service
        while True:
            try:
                # Under the lock of the service, because other threads change the state.
                await push.send(await service.do(lambda: announced(service.domain.state)))
            except PenstockError as error:
                self._note(str(error))
            await asyncio.sleep(_BEAT)

    def _note_role_problems(self) -> None:
        """Note privileges that cannot be capabilities, each once."""
        problems = [str(error) for error in self.service.role_problems]
        for line in problems:
            if line not in self._problems:
                self._note(line)
        self._problems = problems

    def _unexpected(self, _loop: asyncio.AbstractEventLoop, what: dict[str, object]) -> None:
        error = what.get("exception")
        self._note(f"unexpected: {type(error).__name__ if error else what.get('message')}")
