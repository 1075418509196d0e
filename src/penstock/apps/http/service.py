"""The decision service without its sockets: a request of HTTP in, an answer out.

The order is the same for all questions: (1) what it is about, (2) who asks, both by the head alone (`admit`), before
anything of the body is read, (3) the kind of content, (4) the question itself, (5) the decision, under the one bundle
that was there when it began, (6) the record, and only then (7) the answer. Whatever fails before (7) ends in an answer
that permits nothing.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final, TypeAlias

from penstock.apps.http.bundles import Bundle
from penstock.apps.http.callers import Callers
from penstock.apps.http.counting import Counting
from penstock.apps.http.deciding import NOT_NOW, Deciding
from penstock.apps.http.journal import Asking, Decided, Journal
from penstock.apps.http.openapi import document
from penstock.apps.http.places import (
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
)
from penstock.apps.http.quick import QuickQuestion
from penstock.apps.http.server import Answer, Asked, Refusal, refused
from penstock.errors import MalformedError, PenstockError
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.policy import json_requests, xml_requests
from penstock.policy.json_requests import Json, read_json
from penstock.policy.json_written import write_response
from penstock.policy.results import Decision

#: XACML REST profile, section 2.2: where the decisions are
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
class Settings:
    """What a service is told when it starts."""

    url: str
    callers: Callers | None = None
    journal: Journal | None = None
    limits: Limits = DEFAULT_LIMITS
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    timer: Callable[[], float] = time.perf_counter
    #: what its decisions' ids begin with, so that no two services give the same
    prefix: str = "0"


class DecisionService:
    """See the module. `bundle` may be set to another at any time: each question takes it once."""

    def __init__(self, bundle: Bundle, settings: Settings) -> None:
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
        self.posts: dict[bytes, Callable[[Asked, str | None], Answer]] = {
            AUTHORIZE.encode(): self._authorize,
            **{ENDPOINTS[name].encode(): self._authzen(ENDPOINTS[name], decide) for name, decide in _DECIDING.items()},
            EVALUATION.encode(): self._evaluation,
        }
        self.pages: dict[bytes, Callable[[], Answer]] = {
            DISCOVERY.encode(): self._discovery,
            HOME.encode(): lambda: Answer(_HOME_PAGE, content_type=XML),
            HEALTH.encode(): self._health,
            METRICS.encode(): self.counting.page,
            OPENAPI.encode(): self._openapi,
        }

    def take(self, bundle: Bundle) -> None:
        """Decide by another bundle from the next question on."""
        self.bundle = bundle
        self.counting.revision = bundle.revision
        self.stale = None

    def admit(self, asked: Asked) -> Answer | str | None:
        """Return who sends a request, of which the body has not been read, or the answer that it gets without it."""
        # (1) what it is about
        if asked.path not in self.posts:
            return None
        if asked.method != b"POST":
            return _named(asked, refused(HTTPStatus.METHOD_NOT_ALLOWED, b"Allow: POST\r\n"))
        # (2) who asks
        callers = self.settings.callers
        if callers is None:
            return None
        caller = callers.name(asked.headers.get(b"authorization", b""))
        if caller is None:
            self.counting.refused_callers += 1
            unknown = _failed(HTTPStatus.UNAUTHORIZED, "pdp.caller", _WHO, b"WWW-Authenticate: Bearer\r\n")
            return _named(asked, unknown)
        return caller

    def answer(self, asked: Asked) -> Answer:
        """Answer a request."""
        caller = asked.caller
        if not asked.admitted:
            admitted = self.admit(asked)
            if isinstance(admitted, Answer):
                return admitted
            caller = admitted
        return _named(asked, self._routed(asked, caller))

    def _routed(self, asked: Asked, caller: str | None) -> Answer:
        post = self.posts.get(asked.path)
        if post is None:
            return self._page(asked)
        try:
            return post(asked, caller)
        except MalformedError as error:
            return _failed(HTTPStatus.BAD_REQUEST, error.code, error.message)
        except PenstockError as error:
            # What is wrong here is for the log, and not for those who ask.
            return _failed(HTTPStatus.SERVICE_UNAVAILABLE, error.code, NOT_NOW)

    def _page(self, asked: Asked) -> Answer:
        page = self.pages.get(asked.path)
        if page is None:
            return refused(HTTPStatus.NOT_FOUND)
        if asked.method not in (b"GET", b"HEAD"):
            return refused(HTTPStatus.METHOD_NOT_ALLOWED, b"Allow: GET, HEAD\r\n")
        return page()

    # --- AuthZEN ------------------------------------------------------------------------------------------------

    def _authzen(self, endpoint: str, decide: _Decide) -> Callable[[Asked, str | None], Answer]:
        def answer(asked: Asked, caller: str | None) -> Answer:
            # (3) the kind of content
            if _media_type(asked, b"content-type") != JSON:
                return _failed(HTTPStatus.BAD_REQUEST, "pdp.request", f"the content is not {JSON}")
            began, bundle = self.settings.timer(), self.bundle
            known = bundle.answers.get((endpoint, asked.body))
            body, decided = known or self._decided(endpoint, decide, bundle, asked.body)
            # (6) the record, before anybody is told
            headers = self._record(asked, caller, endpoint, (bundle, decided, began))
            # (7) the answer
            return Answer(body, content_type=JSON, headers=headers)

        return answer

    def _evaluation(self, asked: Asked, caller: str | None) -> Answer:
        """Answer one question: the usual ones here, and the others as all that AuthZEN asks."""
        settings, bundle, counting = self.settings, self.bundle, self.counting
        began, quick = settings.timer(), bundle.quick
        is_json = asked.headers.get(b"content-type") == _JSON or _media_type(asked, b"content-type") == JSON
        if quick is None or not is_json:
            return self._evaluation_at_length(asked, caller)
        found = quick.decide(asked.body, _UNASKED if bundle.timeless else settings.clock())
        if found is None:
            return self._evaluation_at_length(asked, caller)
        decision, question = found
        self._number += 1
        counting.decisions[decision] += 1
        took = settings.timer() - began
        counting.took(took)
        if settings.journal is not None:
            self._write(asked, caller, EVALUATION, (bundle, [_decided(question, decision)], took))
        headers = _NAMED % (self._prefix, self._number, bundle.octets)
        return Answer(_SAID[decision], content_type=JSON, headers=headers)

    def _decided(
        self, endpoint: str, decide: _Decide, bundle: Bundle, question: bytes
    ) -> tuple[bytes, tuple[Decided, ...]]:
        limits = self.settings.limits
        # (4) the question
        found = read_json(question, limits)
        if not isinstance(found, dict):
            raise MalformedError("pdp.request", "the question is no object")
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
        self, asked: Asked, caller: str | None, endpoint: str, what: tuple[Bundle, Sequence[Decided], float]
    ) -> bytes:
        """Count and write down what was decided, and return headers that name it. Raises `FailedError`."""
        bundle, decided, began = what
        self._number += 1
        for one in decided:
            self.counting.decisions[one.decision] += 1
        took = self.settings.timer() - began
        self.counting.took(took)
        if self.settings.journal is not None:
            self._write(asked, caller, endpoint, (bundle, decided, took))
        return _NAMED % (self._prefix, self._number, bundle.octets)

    def _write(
        self, asked: Asked, caller: str | None, endpoint: str, what: tuple[Bundle, Sequence[Decided], float]
    ) -> None:
        """Write down what was decided. Raises `FailedError`."""
        settings = self.settings
        if settings.journal is None:
            return
        bundle, decided, took = what
        request = asked.headers.get(b"x-request-id", b"").decode("latin-1") or None
        name = f"{settings.prefix}-{self._number:x}"
        micros = int(took * 1e6)
        asking = Asking(name, settings.clock(), endpoint, bundle.revision, bundle.because, micros, caller, request)
        try:
            settings.journal.write(asking, decided)
        except PenstockError as error:
            self.unrecorded = error
            raise
        self.unrecorded = None

    # --- XACML REST ---------------------------------------------------------------------------------------------

    def _authorize(self, asked: Asked, caller: str | None) -> Answer:
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
            return Answer(_ENCODE(write_response(response)).encode(), content_type=XACML_JSON, headers=headers)
        return Answer(xml_requests.write_response(response), content_type=XACML_XML, headers=headers)

    # --- pages --------------------------------------------------------------------------------------------------

    def _discovery(self) -> Answer:
        url = self.settings.url
        return _json({"policy_decision_point": url, **{name: url + path for name, path in ENDPOINTS.items()}})

    def _openapi(self) -> Answer:
        settings = self.settings
        return _json(document(settings.url, closed=settings.callers is not None, limits=settings.limits))

    def _health(self) -> Answer:
        told: dict[str, Json] = {"status": "ok", "revision": self.bundle.revision}
        if self.stale is not None:
            told |= {"status": "stale", "code": self.stale.code}
        if self.unrecorded is not None:
            told |= {"status": "failing", "code": self.unrecorded.code}
            return _json(told, HTTPStatus.SERVICE_UNAVAILABLE)
        return _json(told)


_JSON: Final = JSON.encode()
#: headers that name the decisions of a question, and by what they were made
_NAMED: Final = b"X-Decision-ID: %b-%x\r\nX-Policy-Revision: %b\r\n"
#: what time it is where nobody asks
_UNASKED: Final = datetime.min.replace(tzinfo=UTC)
_SAID: Final = {
    decision: b'{"decision":true}' if decision is Decision.PERMIT else b'{"decision":false}' for decision in Decision
}
_WHO: Final = "a token of a caller is wanted"
_DECIDING: Final[Mapping[str, _Decide]] = {
    "access_evaluations_endpoint": Deciding.evaluations,
    "search_subject_endpoint": Deciding.search_subject,
    "search_resource_endpoint": Deciding.search_resource,
    "search_action_endpoint": Deciding.search_action,
}


def _named(asked: Asked, answer: Answer) -> Answer:
    """Give an answer the id of its request, if that has one."""
    known = asked.headers.get(b"x-request-id")
    if known is None:
        return answer
    headers = b"%bX-Request-ID: %b\r\n" % (answer.headers, known)
    return Answer(answer.body, answer.status, answer.content_type, headers)


def _decided(question: QuickQuestion, decision: Decision) -> Decided:
    subject, resource = question.subject, question.resource
    return Decided(decision, (subject.type, subject.id), question.action.name, (resource.type, resource.id))


def _media_type(asked: Asked, header: bytes) -> str:
    return asked.headers.get(header, b"").partition(b";")[0].strip().lower().decode("latin-1")


def _json(told: dict[str, Json], status: HTTPStatus = HTTPStatus.OK, headers: bytes = b"") -> Answer:
    return Answer(_ENCODE(told).encode(), status, JSON, headers)


def _failed(status: HTTPStatus, code: str, message: str, headers: bytes = b"") -> Answer:
    return Refusal(code, message).answer(status, headers)
