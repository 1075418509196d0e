"""The decision service: answer HTTP requests by the policies of a bundle.

The order is the same for all questions: (1) what it is about, (2) who asks, both by the head alone (`admit`), before
anything of the body is read, (3) the kind of content, (4) the question itself, (5) the decision, under the bundle that
was loaded when it began, (6) the record, and only then (7) the answer. Whatever fails before (7) ends in an answer that
permits nothing. `DecisionService` has no sockets; `RunningService` is the process.
"""

import asyncio
import hashlib
import hmac
import json
import signal
import ssl
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from penstock.apps.http.authzen import PlainQuestion
from penstock.apps.http.bundles import Bundle, Stamp, load, stamp
from penstock.apps.http.decisions import NOT_NOW, Deciding
from penstock.apps.http.journal import Decided, DecisionContext, Journal
from penstock.apps.http.limits import SERVICE_LIMITS, ServiceLimits
from penstock.apps.http.openapi import document
from penstock.apps.http.server import (
    AUTHORIZE,
    DISCOVERY,
    ENDPOINTS,
    HEALTH,
    HOME,
    JSON,
    METRICS,
    OPENAPI,
    XACML_JSON,
    XACML_XML,
    XML,
    Bounds,
    HttpRequest,
    HttpResponse,
    HttpService,
    Refusal,
    ServerCounts,
    refused,
)
from penstock.authority.decisions.questions import AccessQuestion
from penstock.errors import FailedError, MalformedError, PenstockError
from penstock.fabric.tasks import keep_running
from penstock.policy.language.results import PolicyOutcome, XacmlDecision
from penstock.policy.syntax.json import requests as json_requests
from penstock.policy.syntax.json.requests import Json, read_json, write_response
from penstock.policy.syntax.xml import requests as xml_requests
from penstock.store.files.files import read_file

# ----------------------------------------------------------------------------------------------------------------------
# Callers of the decision service: names and bearer tokens (RFC 6750), one pair in each line of a file.
#
# Tokens are kept as digests and compared with all of them in constant time, so the time reveals nothing.


#: characters of a token at least
_SHORTEST: Final = 16


@dataclass(frozen=True, slots=True)
class Callers:
    """Names by the digests of their tokens."""

    digests: Mapping[bytes, str] = field(repr=False)

    def name(self, authorization: bytes) -> str | None:
        """Return the caller of a token; None if it is unknown."""
        scheme, _, token = authorization.partition(b" ")
        asked = hashlib.sha256(token.strip(b" ")).digest()
        found = None
        for digest, name in self.digests.items():
            if hmac.compare_digest(digest, asked):
                found = name
        return found if scheme.lower() == b"bearer" else None


def read_callers(path: Path) -> Callers:
    """Read a file of callers. Raises `MalformedError` (`pdp.tokens`), `FailedError`, `LimitError`."""
    found: dict[bytes, str] = {}
    try:
        lines = read_file(str(path)).decode("ascii").splitlines()
    except UnicodeDecodeError:
        raise _wrong("it is not ASCII") from None
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        # An error is reported by its line alone: it may be a token.
        if len(words) != 2 or len(words[1]) < _SHORTEST:
            raise _wrong(f"line {number} is not a name and a token of {_SHORTEST} characters or more")
        digest = hashlib.sha256(words[1].encode()).digest()
        if digest in found:
            raise _wrong(f"the token of line {number} is another's too")
        found[digest] = words[0]
    if not found:
        raise _wrong("it names nobody")
    return Callers(found)


def _wrong(message: str) -> MalformedError:
    hint = "write `NAME TOKEN` in each line; `openssl rand -hex 32` makes a token"
    return MalformedError("pdp.tokens", f"the file of callers: {message}", hint=hint)


# ----------------------------------------------------------------------------------------------------------------------
# Metrics for Prometheus. Nothing here names anybody; numbers are computed when they are requested.


_SECONDS: Final = (0.000005, 0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.005, 0.025, 0.1, 1.0)


class Counting(Collector):
    """The counters of one service."""

    def __init__(self) -> None:
        self.decisions = dict.fromkeys(XacmlDecision, 0)
        self.loads: Counter[str] = Counter()
        self.refused_callers = 0
        self.revision = ""
        #: of the server that asks this service
        self.server = ServerCounts()
        self._took = [0] * (len(_SECONDS) + 1)
        self._sum = 0.0
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(self)

    def took(self, seconds: float) -> None:
        """Count how long the decisions of a question took."""
        self._took[bisect_left(_SECONDS, seconds)] += 1
        self._sum += seconds

    def page(self) -> HttpResponse:
        """Return the metrics in Prometheus' own text format."""
        return HttpResponse(generate_latest(self._registry), content_type=CONTENT_TYPE_PLAIN_0_0_4)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        decisions = CounterMetricFamily("penstock_pdp_decisions", "Decisions.", labels=("decision",))
        for decision, number in self.decisions.items():
            decisions.add_metric((decision.value,), number)
        yield decisions
        loads = CounterMetricFamily("penstock_pdp_loads", "Bundles that were read, or were not.", labels=("result",))
        for result, number in self.loads.items():
            loads.add_metric((result,), number)
        yield loads
        yield CounterMetricFamily("penstock_pdp_unauthorized", "Questions of unknown callers.", self.refused_callers)
        info = GaugeMetricFamily("penstock_pdp_revision", "The revision that decides.", labels=("revision",))
        info.add_metric((self.revision,), 1)
        yield info
        yield self._times()
        yield from _of_server(self.server)

    def _times(self) -> Metric:
        total, buckets = 0, []
        for bound, number in zip((*map(str, _SECONDS), "+Inf"), self._took, strict=True):
            total += number
            buckets.append((bound, total))
        words = "How long the decisions of a question took."
        return HistogramMetricFamily("penstock_pdp_seconds", words, buckets=buckets, sum_value=self._sum)


def _of_server(counts: ServerCounts) -> Iterator[Metric]:
    answers = CounterMetricFamily("penstock_pdp_answers", "Answers by their status.", labels=("status",))
    for status, number in counts.answers.items():
        answers.add_metric((str(int(status)),), number)
    yield answers
    yield CounterMetricFamily("penstock_pdp_connections_refused", "Connections beyond the bound.", counts.turned_away)
    yield CounterMetricFamily("penstock_pdp_timeouts", "Connections that were too slow.", counts.timed_out)
    yield GaugeMetricFamily("penstock_pdp_connections", "Connections.", counts.connections)


# ----------------------------------------------------------------------------------------------------------------------
# The service: an HTTP request in, a response out.


#: XACML REST profile, section 2.2: the link to the decisions
_HOME_PAGE: Final = (
    '<?xml version="1.0"?>\n<resources xmlns="http://ietf.org/ns/home-documents" '
    'xmlns:atom="http://www.w3.org/2005/Atom">\n'
    '  <resource rel="http://docs.oasis-open.org/ns/xacml/relation/pdp">'
    f'<atom:link href="{AUTHORIZE}"/></resource>\n</resources>\n'
).encode()
EVALUATION: Final = ENDPOINTS["access_evaluation_endpoint"]
_ENCODE: Final = json.JSONEncoder(separators=(",", ":")).encode
_Decide: TypeAlias = Callable[[Deciding, dict[str, Json]], dict[str, Json]]


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """The settings of a service when it starts."""

    url: str
    callers: Callers | None = None
    journal: Journal | None = None
    limits: ServiceLimits = SERVICE_LIMITS
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    timer: Callable[[], float] = time.perf_counter
    #: the prefix of its decisions' ids, so that no two services use the same ids
    prefix: str = "0"


class DecisionService:
    """See the module. `bundle` may be set to another at any time: each question takes it once."""

    def __init__(self, bundle: Bundle, settings: ServiceSettings) -> None:
        self.bundle = bundle
        self.settings = settings
        self.counting = Counting()
        self.counting.revision = bundle.revision
        #: why a newer bundle could not be taken, and why decisions cannot be recorded
        self.stale: PenstockError | None = None
        self.unrecorded: PenstockError | None = None
        self._number = 0
        self._prefix = settings.prefix.encode()
        self._evaluation_at_length = self._authzen(EVALUATION, Deciding.evaluation)
        self.posts: dict[bytes, Callable[[HttpRequest, str | None], HttpResponse]] = {
            AUTHORIZE.encode(): self._authorize,
            **{ENDPOINTS[name].encode(): self._authzen(ENDPOINTS[name], decide) for name, decide in _DECIDING.items()},
            EVALUATION.encode(): self._evaluation,
        }
        self.pages: dict[bytes, Callable[[], HttpResponse]] = {
            DISCOVERY.encode(): self._discovery,
            HOME.encode(): lambda: HttpResponse(_HOME_PAGE, content_type=XML),
            HEALTH.encode(): self._health,
            METRICS.encode(): self.counting.page,
            OPENAPI.encode(): self._openapi,
        }

    def take(self, bundle: Bundle) -> None:
        """Decide by another bundle from the next question on."""
        self.bundle = bundle
        self.counting.revision = bundle.revision
        self.stale = None

    def decide(self, bundle: Bundle, question: AccessQuestion, caller: str | None = None) -> PolicyOutcome:
        """Decide a question that did not come over HTTP, and record it. Raises `FailedError`, `MalformedError`."""
        deciding, began = self._deciding(bundle), self.settings.timer()
        outcome = deciding.ask(question)
        self._record(_NO_REQUEST, caller, FABRIC, (bundle, deciding.decided, began))
        return outcome

    def admit(self, asked: HttpRequest) -> HttpResponse | str | None:
        """Return the caller of a request whose body has not been read, or an immediate answer."""
        # (1) its subject
        if asked.path not in self.posts:
            return None
        if asked.method != b"POST":
            return _named(asked, refused(HTTPStatus.METHOD_NOT_ALLOWED, b"Allow: POST\r\n"))
        # (2) its caller
        callers = self.settings.callers
        if callers is None:
            return None
        caller = callers.name(asked.headers.get(b"authorization", b""))
        if caller is None:
            self.counting.refused_callers += 1
            unknown = _failed(HTTPStatus.UNAUTHORIZED, "pdp.caller", _WHO, b"WWW-Authenticate: Bearer\r\n")
            return _named(asked, unknown)
        return caller

    def answer(self, asked: HttpRequest) -> HttpResponse:
        """Answer a request."""
        caller = asked.caller
        if not asked.admitted:
            admitted = self.admit(asked)
            if isinstance(admitted, HttpResponse):
                return admitted
            caller = admitted
        return _named(asked, self._routed(asked, caller))

    def _routed(self, asked: HttpRequest, caller: str | None) -> HttpResponse:
        post = self.posts.get(asked.path)
        if post is None:
            return self._page(asked)
        try:
            return post(asked, caller)
        except MalformedError as error:
            return _failed(HTTPStatus.BAD_REQUEST, error.code, error.message)
        except PenstockError as error:
            # The problem goes to the log, and not to the caller.
            return _failed(HTTPStatus.SERVICE_UNAVAILABLE, error.code, NOT_NOW)

    def _page(self, asked: HttpRequest) -> HttpResponse:
        page = self.pages.get(asked.path)
        if page is None:
            return refused(HTTPStatus.NOT_FOUND)
        if asked.method not in (b"GET", b"HEAD"):
            return refused(HTTPStatus.METHOD_NOT_ALLOWED, b"Allow: GET, HEAD\r\n")
        return page()

    # --- AuthZEN ------------------------------------------------------------------------------------------------

    def _authzen(self, endpoint: str, decide: _Decide) -> Callable[[HttpRequest, str | None], HttpResponse]:
        def answer(asked: HttpRequest, caller: str | None) -> HttpResponse:
            # (3) the kind of content
            if _media_type(asked, b"content-type") != JSON:
                return _failed(HTTPStatus.BAD_REQUEST, "pdp.request", f"the content is not {JSON}")
            began, bundle = self.settings.timer(), self.bundle
            known = bundle.answers.get((endpoint, asked.body))
            body, decided = known or self._decided(endpoint, decide, bundle, asked.body)
            # (6) the record, before the response
            headers = self._record(asked, caller, endpoint, (bundle, decided, began))
            # (7) the answer
            return HttpResponse(body, content_type=JSON, headers=headers)

        return answer

    def _evaluation(self, asked: HttpRequest, caller: str | None) -> HttpResponse:
        """Answer one question: the usual ones here, and the others as all that AuthZEN asks."""
        settings, bundle, counting = self.settings, self.bundle, self.counting
        began, answer = settings.timer(), bundle.answer
        is_json = asked.headers.get(b"content-type") == _JSON or _media_type(asked, b"content-type") == JSON
        if answer is None or not is_json:
            return self._evaluation_at_length(asked, caller)
        found = answer(asked.body, _UNASKED if bundle.timeless else settings.clock())
        if found is None:
            return self._evaluation_at_length(asked, caller)
        decision, question = found
        self._number += 1
        counting.decisions[decision] += 1
        took = settings.timer() - began
        counting.took(took)
        if settings.journal is not None:
            self._write(asked, caller, EVALUATION, (bundle, [_decided(question, decision)], took))
        headers = _NAMED % (self._prefix, self._number, bundle.header)
        return HttpResponse(_SAID[decision], content_type=JSON, headers=headers)

    def _decided(
        self, endpoint: str, decide: _Decide, bundle: Bundle, question: bytes
    ) -> tuple[bytes, tuple[Decided, ...]]:
        limits = self.settings.limits
        # (4) the question
        found = read_json(question, limits)
        if not isinstance(found, dict):
            raise MalformedError("pdp.request", "the question is not an object")
        # (5) the decision
        deciding = self._deciding(bundle)
        body = _ENCODE(decide(deciding, found)).encode()
        answer = body, tuple(deciding.decided)
        if bundle.timeless and len(question) + len(body) <= limits.pdp_kept_bytes and not deciding.late:
            if len(bundle.answers) >= limits.pdp_kept:
                bundle.answers.clear()
            bundle.answers[endpoint, question] = answer
        return answer

    def _deciding(self, bundle: Bundle) -> Deciding:
        settings = self.settings
        return Deciding(bundle, settings.clock(), settings.limits, settings.timer)

    def _record(
        self, asked: HttpRequest, caller: str | None, endpoint: str, what: tuple[Bundle, Sequence[Decided], float]
    ) -> bytes:
        """Count and record decisions, and return the headers that name them. Raises `FailedError`."""
        bundle, decided, began = what
        self._number += 1
        for one in decided:
            self.counting.decisions[one.decision] += 1
        took = self.settings.timer() - began
        self.counting.took(took)
        if self.settings.journal is not None:
            self._write(asked, caller, endpoint, (bundle, decided, took))
        return _NAMED % (self._prefix, self._number, bundle.header)

    def _write(
        self, asked: HttpRequest, caller: str | None, endpoint: str, what: tuple[Bundle, Sequence[Decided], float]
    ) -> None:
        """Record decisions. Raises `FailedError`."""
        settings = self.settings
        if settings.journal is None:
            return
        bundle, decided, took = what
        request = asked.headers.get(b"x-request-id", b"").decode("latin-1") or None
        name = f"{settings.prefix}-{self._number:x}"
        micros = int(took * 1e6)
        asking = DecisionContext(
            name, settings.clock(), endpoint, bundle.revision, bundle.because, micros, caller, request
        )
        try:
            settings.journal.record(asking, decided)
        except PenstockError as error:
            self.unrecorded = error
            raise
        self.unrecorded = None

    # --- XACML REST ---------------------------------------------------------------------------------------------

    def _authorize(self, asked: HttpRequest, caller: str | None) -> HttpResponse:
        kind = _media_type(asked, b"content-type")
        as_json = kind in (JSON, XACML_JSON)
        if not as_json and kind not in (XACML_XML, XML, "text/xml"):
            message = f"the content is neither {XACML_XML} nor {XACML_JSON}"
            return _failed(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "pdp.request", message)
        read = json_requests.read_request if as_json else xml_requests.read_request
        request = read(asked.body, limits=self.settings.limits)
        began, bundle = self.settings.timer(), self.bundle
        deciding = self._deciding(bundle)
        response = deciding.xacml(request)
        headers = self._record(asked, caller, AUTHORIZE, (bundle, deciding.decided, began))
        accepted = asked.headers.get(b"accept", b"").lower()
        # REST profile, section 2.2.2: the answer is as is wanted, or else as the question.
        if b"json" in accepted or (as_json and b"xml" not in accepted):
            return HttpResponse(_ENCODE(write_response(response)).encode(), content_type=XACML_JSON, headers=headers)
        return HttpResponse(xml_requests.write_response(response), content_type=XACML_XML, headers=headers)

    # --- pages --------------------------------------------------------------------------------------------------

    def _discovery(self) -> HttpResponse:
        url = self.settings.url
        return _json({"policy_decision_point": url, **{name: url + path for name, path in ENDPOINTS.items()}})

    def _openapi(self) -> HttpResponse:
        settings = self.settings
        return _json(document(settings.url, closed=settings.callers is not None, limits=settings.limits))

    def _health(self) -> HttpResponse:
        data: dict[str, Json] = {"status": "ok", "revision": self.bundle.revision}
        if self.stale is not None:
            data |= {"status": "stale", "code": self.stale.code}
        if self.unrecorded is not None:
            data |= {"status": "failing", "code": self.unrecorded.code}
            return _json(data, HTTPStatus.SERVICE_UNAVAILABLE)
        return _json(data)


_JSON: Final = JSON.encode()
#: headers that name the decisions of a question, and the revision that made them
#: the name of questions over a fabric in the decision log
FABRIC: Final = "fabric"
_NO_REQUEST: Final = HttpRequest(b"", b"", {})
_NAMED: Final = b"X-Decision-ID: %b-%x\r\nX-Policy-Revision: %b\r\n"
#: the time for policies that do not use it
_UNASKED: Final = datetime.min.replace(tzinfo=UTC)
_SAID: Final = {
    decision: b'{"decision":true}' if decision is XacmlDecision.PERMIT else b'{"decision":false}'
    for decision in XacmlDecision
}
_WHO: Final = "a token of a caller is wanted"
_DECIDING: Final[Mapping[str, _Decide]] = {
    "access_evaluations_endpoint": Deciding.evaluations,
    "search_subject_endpoint": Deciding.search_subject,
    "search_resource_endpoint": Deciding.search_resource,
    "search_action_endpoint": Deciding.search_action,
}


def _named(asked: HttpRequest, answer: HttpResponse) -> HttpResponse:
    """Give an answer the id of its request, if that has one."""
    known = asked.headers.get(b"x-request-id")
    if known is None:
        return answer
    headers = b"%bX-Request-ID: %b\r\n" % (answer.headers, known)
    return HttpResponse(answer.body, answer.status, answer.content_type, headers)


def _decided(question: PlainQuestion, decision: XacmlDecision) -> Decided:
    subject, resource = question.subject, question.resource
    return Decided(decision, (subject.type, subject.id), question.action.name, (resource.type, resource.id))


def _media_type(asked: HttpRequest, header: bytes) -> str:
    return asked.headers.get(header, b"").partition(b";")[0].strip().lower().decode("latin-1")


def _json(data: dict[str, Json], status: HTTPStatus = HTTPStatus.OK, headers: bytes = b"") -> HttpResponse:
    return HttpResponse(_ENCODE(data).encode(), status, JSON, headers)


def _failed(status: HTTPStatus, code: str, message: str, headers: bytes = b"") -> HttpResponse:
    return Refusal(code, message).answer(status, headers)


# ----------------------------------------------------------------------------------------------------------------------
# The decision service as a process: listen, reload the bundle when it changes, and stop on a signal.


_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
#: seconds until a revision that could not be announced is announced again
_AGAIN: Final = 2.0
Notes: TypeAlias = Callable[[str], None]
"""Writes a line of the log."""


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """Where a service listens, which bundle it serves, and after how many seconds it looks whether that changed."""

    host: str
    port: int
    bundle: Path
    watch: float
    tls: ssl.SSLContext | None = None


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return the TLS context of a server. Raises `FailedError` (`pdp.tls`)."""
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
    """A service that runs. `changed` is called with each bundle that is another revision, again if it fails."""

    def __init__(
        self,
        service: DecisionService,
        place: ServiceConfig,
        note: Notes,
        changed: Callable[[Bundle], Awaitable[None]] | None = None,
    ) -> None:
        self.service = service
        self._place = place
        self._note = note
        self._changed = changed
        self.http = HttpService(
            service.answer,
            Bounds.of_questions(service.settings.limits),
            "pdp.listen",
            service.admit,
            service.counting.server,
        )
        #: the revision that was announced last; empty while it is not known whether another one was
        self._announced = service.bundle.revision
        self._said = ""
        #: none at first, so that the first check finds a change since the bundle was read
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
            watch = self._place.watch or None
            try:
                async with asyncio.timeout(watch if self._is_announced() else min(watch or _AGAIN, _AGAIN)):
                    await self._wake.wait()
            except TimeoutError:
                await self._announce()
                if watch is None:
                    continue
            self._wake.clear()
            await self.look()

    def _is_announced(self) -> bool:
        return self.service.bundle.revision == self._announced

    async def look(self) -> None:
        """Reload the bundle if it has changed; if it cannot be used, the previous one stays active."""
        try:
            seen = stamp(self._place.bundle)
            if seen == self._seen:
                return
            # Read in another thread; the new bundle replaces the old one in one step.
            bundle = await asyncio.to_thread(self._load)
        except PenstockError as error:
            if self.service.stale is None or self.service.stale.code != error.code:
                self._note(f"the bundle cannot be used, revision {self.service.bundle.revision} goes on: {error}")
            self.service.stale = error
            self.service.counting.loads["failed"] += 1
            return
        self._seen = seen
        self.service.take(bundle)
        self.service.counting.loads["taken"] += 1
        await self._announce()

    async def _announce(self) -> None:
        bundle = self.service.bundle
        if self._is_announced():
            return
        if self._changed is not None:
            # If this fails, part of it may have been done.
            self._announced = ""
            try:
                await self._changed(bundle)
            except PenstockError as error:
                words = f"revision {bundle.revision} decides, but could not be announced, which is tried again: {error}"
                if words != self._said:
                    self._note(words)
                self._said = words
                return
        self._announced = bundle.revision
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
