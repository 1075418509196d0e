"""AuthZEN 1.0 over publish/subscribe, for points that do not speak Penstock's signed records.

docs/reference/authzen-over-pubsub.md is the binding; its sections are cited beside the checks. A request is a signed
CloudEvent whose data is an AuthZEN request, an answer one whose data is an AuthZEN response. `EventDecisionPoint`
answers, `EventEnforcementPoint` asks. Both use an `EventTransport`: any fabric (`FabricEvents`), or plain NATS messages
(`authzen_nats`).
"""

import asyncio
import hashlib
import json
import re
import secrets
from base64 import b64encode
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol, Self, TypeAlias
from urllib.parse import unquote

from penstock.authority.decisions.authzen import evaluate_batch, refused, write_decision
from penstock.authority.decisions.cloud_events import (
    JSON,
    CloudEvent,
    instant_text,
    read_event,
    read_instant,
    sign_event,
)
from penstock.authority.decisions.decision_point import AskRate, PointSender
from penstock.authority.decisions.questions import AccessQuestion, read_question
from penstock.authority.limits import EVENT_COPIES, EVENT_LIFESPAN, EVENT_QUESTIONS, EVENT_SKEW
from penstock.crypto import PublicKey, Signer
from penstock.errors import FailedError, LimitError, MalformedError, PenstockError, RefusedError
from penstock.fabric import Clock, Fabric, Publisher, Qos, RandomBytes, Sample, SystemClock, TopicSubscription
from penstock.fabric.tasks import waited_for
from penstock.policy.language.results import PolicyOutcome
from penstock.policy.syntax.json.requests import Json

_TYPE: Final = "dev.penstock.authzen.v1."
EVALUATION: Final = f"{_TYPE}evaluation"
EVALUATIONS: Final = f"{_TYPE}evaluations"
DECISION: Final = f"{_TYPE}decision"
DECISIONS: Final = f"{_TYPE}decisions"
ERROR: Final = f"{_TYPE}error"
_ANSWERS: Final = {EVALUATION: DECISION, EVALUATIONS: DECISIONS}
#: the word for a batch, where others have the type of their resource
BATCH: Final = "=batch"
_PLAIN: Final = re.compile(rb"[A-Za-z0-9_-]", re.ASCII)


@dataclass(frozen=True, slots=True)
class EventMessage:
    """An event as a transport carries it: headers and data."""

    headers: Mapping[str, str]
    data: bytes = field(repr=False)

    @classmethod
    def of(cls, event: CloudEvent) -> "EventMessage":
        """Return an event as a message."""
        return cls(event.headers, event.data)


EventReply: TypeAlias = Callable[[EventMessage], Awaitable[None]]
"""Sends an answer to whoever has sent the request. Raises `PenstockError`."""
EventHandler: TypeAlias = Callable[[EventMessage, EventReply], Awaitable[None]]
"""Receives a request."""


class EventTransport(Protocol):
    """Carries requests and answers."""

    def listen(self, heard: EventHandler) -> AbstractAsyncContextManager[None]:
        """Receive all requests while the context lasts. Raises `PenstockError`."""
        ...

    def ask(
        self, word: str, request: str, message: EventMessage
    ) -> AbstractAsyncContextManager[AsyncIterator[EventMessage]]:
        """Send a request with this word and id, and receive what comes as answers while the context lasts.

        Raises `PenstockError`.
        """
        ...


def request_word(resource_type: str) -> str:
    """Return the word by which points choose requests: a type of resources, without characters that subjects lack.

    >>> request_word("clinic.record"), request_word("café")
    ('clinic=2Erecord', 'caf=C3=A9')
    """
    raw = resource_type.encode()
    return "".join(chr(byte) if _PLAIN.match(bytes((byte,))) else f"={byte:02X}" for byte in raw) or "="


# ----------------------------------------------------------------------------------------------------------------------
# Any fabric (section 2.2).


class FabricEvents:
    """Requests and answers on two topics of a fabric: requests by their word, answers by the id of their request."""

    REQUESTS: Final = "authzen-requests"
    ANSWERS: Final = "authzen-answers"

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._writers: dict[str, Publisher] = {}

    async def _topic(self, topic: str) -> None:
        # Copies of a key must not push each other out: many points can ask about one type, and answer one request.
        await self._fabric.declare(topic, Qos(history=1_000))

    async def _writer(self, topic: str) -> Publisher:
        if topic not in self._writers:
            await self._topic(topic)
            self._writers[topic] = await self._fabric.publisher(topic)
        return self._writers[topic]

    @asynccontextmanager
    async def listen(self, heard: EventHandler) -> AsyncIterator[None]:
        """Receive all requests while the context lasts."""
        await self._topic(self.REQUESTS)
        writer = await self._writer(self.ANSWERS)

        async def hear(sample: Sample) -> None:
            async def reply(answer: EventMessage) -> None:
                key = _answers_to(unquote(sample.headers.get("ce-id", "")))
                await writer.publish(answer.data, key=key, headers=answer.headers)

            await heard(EventMessage(sample.headers, sample.data), reply)

        async with await self._fabric.subscribe(self.REQUESTS, callback=hear):
            yield

    @asynccontextmanager
    async def ask(self, word: str, request: str, message: EventMessage) -> AsyncIterator[AsyncIterator[EventMessage]]:
        """Send a request, and receive its answers while the context lasts."""
        await self._topic(self.ANSWERS)
        writer = await self._writer(self.REQUESTS)
        async with await self._fabric.subscribe(self.ANSWERS, keys=[_answers_to(request)]) as answers:
            await writer.publish(message.data, key=word, headers=message.headers)
            yield self._messages(answers)

    async def _messages(self, answers: TopicSubscription) -> AsyncIterator[EventMessage]:
        async for sample in answers:
            yield EventMessage(sample.headers, sample.data)


def _answers_to(request: str) -> str:
    """Return the key of the answers to a request with this id."""
    return hashlib.sha256(request.encode()).hexdigest()


# ----------------------------------------------------------------------------------------------------------------------
# The decision point.


Decide: TypeAlias = Callable[[AccessQuestion, datetime], PolicyOutcome]
"""Decides a question. Raises `PenstockError`."""


class EventDecisionPoint:
    """Answers requests. `senders` are the keys that may ask.

    For each request, in this order (section 5): (1) it is an event; (2) a sender has signed it; (3) it has not ended,
    and does not last too long; (4) it is not a copy, and the sender has not asked too often. Otherwise there is no
    answer, and only a count. (5) Then it is decided, or answered with an error.

    `unsafe_unsigned` answers requests without a signature too, whoever sent them.
    """

    def __init__(  # noqa: PLR0913  # named settings, each with a default
        self,
        transport: EventTransport,
        key: Signer,
        decide: Decide,
        *,
        senders: Collection[PublicKey],
        clock: Clock | None = None,
        lifetime: float = 5.0,
        rate: AskRate = AskRate(),  # noqa: B008  # a constant
        random: RandomBytes = secrets.token_bytes,
        unsafe_unsigned: bool = False,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._transport = transport
        self._key = key
        self._decide = decide
        self._senders = frozenset(senders)
        self._clock = clock or SystemClock()
        self._lifetime = timedelta(seconds=lifetime)
        self._random = random
        self._unsigned = unsafe_unsigned
        self._rate = rate
        #: by the key that signed; all requests without a signature together
        self._sent: dict[PublicKey | None, PointSender] = {}
        self._listening: AbstractAsyncContextManager[None] | None = None

    async def __aenter__(self) -> Self:
        self._listening = self._transport.listen(self.hear)
        await self._listening.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._listening is not None:
            await self._listening.__aexit__(None, None, None)

    async def hear(self, message: EventMessage, reply: EventReply) -> None:
        """Answer a message, if it is a request that deserves an answer."""
        now = datetime.fromtimestamp(self._clock.now(), UTC)
        request = self._accept(message, now)
        if request is not None:
            self.counts["answers"] += 1
            answer = sign_event(self.answer(request, now), self._key)
            try:
                await reply(EventMessage.of(answer))
            except PenstockError:
                self.counts["unsent"] += 1

    def _accept(self, message: EventMessage, now: datetime) -> CloudEvent | None:
        sender: PublicKey | None = None
        try:
            received = read_event(message.headers, message.data)  # (1)
            try:
                request, sender = received.verify(lambda key: key in self._senders)  # (2)
            except RefusedError as error:
                if error.code != "authzen.unsigned" or not self._unsigned:
                    raise
                request = received.unverified()
            until = read_instant(request.extensions.get("expirytime", ""))  # (3)
        except PenstockError as error:
            self.counts[error.code] += 1
            return None
        if until <= now or request.time > now + timedelta(seconds=EVENT_SKEW):
            self.counts["late"] += 1
            return None
        if until > request.time + timedelta(seconds=EVENT_LIFESPAN):
            self.counts["lasting"] += 1
            return None
        return request if self._is_new(sender, request, until) else None  # (4)

    def _is_new(self, key: PublicKey | None, request: CloudEvent, until: datetime) -> bool:
        """Return whether a request is not a copy, and its sender may ask so often.

        Copies are those of the same key: nobody can keep others' requests from being answered by using their ids.
        """
        now = self._clock.now()
        sender = self._sent.setdefault(key, PointSender(self._rate.burst, now, OrderedDict()))
        sender.forget(now)
        name = f"{request.source}\0{request.id}".encode()
        if name in sender.seen:
            self.counts["copies"] += 1
            return False
        if not sender.charge(self._rate, now):
            self.counts["limited"] += 1
            return False
        if len(sender.seen) >= EVENT_COPIES:
            sender.seen.popitem(last=False)
        sender.seen[name] = until.timestamp()
        return True

    def answer(self, request: CloudEvent, now: datetime) -> CloudEvent:
        """Return the answer to a request, without a signature."""
        kind, body = self._body(request, now)
        digest = b64encode(hashlib.sha256(request.data).digest()).decode()
        until = now + self._lifetime + timedelta(seconds=1)
        return CloudEvent(
            self._random(16).hex(),
            source_of(self._key),
            kind,
            now,
            json.dumps(body, separators=(",", ":")).encode(),
            request.subject,
            JSON,
            {"causationid": request.id, "requestdigest": digest, "expirytime": instant_text(until)},
        )

    def _body(self, request: CloudEvent, now: datetime) -> tuple[str, dict[str, Json]]:
        """Return the type and the data of an answer (section 4, 6 and 7)."""
        if request.type not in _ANSWERS:
            return ERROR, _error(404, "authzen.type", f"there are no answers to events of type `{request.type[:120]}`")
        try:
            found = _read_object(request)

            def evaluation(one: Mapping[str, Json]) -> dict[str, Json]:
                return write_decision(self._decide(read_question(one), now))

            def item(one: Json, defaults: Mapping[str, Json]) -> dict[str, Json]:
                if not isinstance(one, dict):
                    return refused("pdp.request", "an evaluation is not an object")
                try:
                    return write_decision(self._decide(read_question(one, defaults), now))
                except MalformedError as error:
                    return refused(error.code, error.message)
                except PenstockError as error:
                    return refused(error.code, "no decision can be made now")

            if request.type == EVALUATION:
                return DECISION, evaluation(found)
            return DECISIONS, evaluate_batch(found, evaluation, item, EVENT_QUESTIONS)
        except (MalformedError, LimitError) as error:
            return ERROR, _error(400, error.code, error.message)
        except PenstockError as error:
            # Askers do not see problems of the point.
            return ERROR, _error(500, error.code, "no decision can be made now")


def source_of(key: Signer) -> str:
    """Return the `source` of a point's events: its principal as a URI."""
    return f"urn:penstock:{key.principal}"


def _error(status: int, code: str, message: str) -> dict[str, Json]:
    return {"status": status, "error": {"code": code, "message": message}}


def _read_object(event: CloudEvent) -> dict[str, Json]:
    if event.datacontenttype != JSON:
        raise MalformedError("pdp.request", f"`datacontenttype` is not `{JSON}`")
    try:
        found = json.loads(event.data, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise MalformedError("pdp.request", "the data is not a JSON object")
    return found


def _once(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a member is there twice")
    return found


# ----------------------------------------------------------------------------------------------------------------------
# The enforcement point.


@dataclass(frozen=True, slots=True)
class AuthzenDecision:
    """A decision: false unless a trusted point permits. `refused` says why there was no decision."""

    decision: bool
    context: Mapping[str, Json] = field(default_factory=dict)
    refused: str | None = None


class EventEnforcementPoint:
    """Asks decision points. `points` are the keys whose answers count; the first such answer is taken."""

    def __init__(  # noqa: PLR0913  # named settings, each with a default
        self,
        transport: EventTransport,
        key: Signer,
        *,
        points: Collection[PublicKey],
        clock: Clock | None = None,
        timeout: float = 2.0,
        random: RandomBytes = secrets.token_bytes,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._transport = transport
        self._key = key
        self._points = frozenset(points)
        self._clock = clock or SystemClock()
        self._timeout = timeout
        self._random = random

    async def evaluate(self, request: Mapping[str, Json]) -> AuthzenDecision:
        """Ask for one decision. Raises `MalformedError` (`pdp.request`) for what is not a question."""
        word = request_word(read_question(request).resource.type)
        answer = await self._ask(EVALUATION, word, request)
        return answer if isinstance(answer, AuthzenDecision) else _decision(dict(answer))

    async def evaluate_all(self, request: Mapping[str, Json]) -> list[AuthzenDecision]:
        """Ask for several decisions; the answer can end early if the request says so. Raises as `evaluate`."""
        items = request.get("evaluations")
        if not isinstance(items, list) or not 0 < len(items) <= EVENT_QUESTIONS:
            raise MalformedError("pdp.request", f"`evaluations` is not a list of 1 to {EVENT_QUESTIONS}")
        answer = await self._ask(EVALUATIONS, BATCH, request)
        if isinstance(answer, AuthzenDecision):
            return [answer] * len(items)
        found = answer.get("evaluations")
        decided = [_decision(one) for one in found] if isinstance(found, list) else []
        return decided[: len(items)] + [AuthzenDecision(False, refused="authzen.ended")] * (len(items) - len(decided))

    async def _ask(self, kind: str, word: str, request: Mapping[str, Json]) -> Mapping[str, Json] | AuthzenDecision:
        """Return the data of the first answer that counts, or the refusal if there is none in time (section 4.2)."""
        now = datetime.fromtimestamp(self._clock.now(), UTC)
        until = now + timedelta(seconds=self._timeout + 1)
        try:
            data = json.dumps(request, separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError):
            raise MalformedError("pdp.request", "the request is not JSON") from None
        event = CloudEvent(
            self._random(16).hex(),
            source_of(self._key),
            kind,
            now,
            data,
            word,
            JSON,
            {"expirytime": instant_text(until)},
        )
        sent = sign_event(event, self._key)
        try:
            async with self._transport.ask(word, sent.id, EventMessage.of(sent)) as answers:
                return await self._first(answers, event)
        except FailedError as error:
            return AuthzenDecision(False, refused=error.code)

    async def _first(
        self, answers: AsyncIterator[EventMessage], request: CloudEvent
    ) -> Mapping[str, Json] | AuthzenDecision:
        late = waited_for(self._clock.sleep(self._timeout))
        try:
            while True:
                coming = waited_for(_next(answers))
                await asyncio.wait((late, coming), return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    coming.cancel()
                    with suppress(asyncio.CancelledError):
                        await coming
                    return AuthzenDecision(False, refused="authzen.no-answer")
                message = coming.result()
                if message is None:
                    return AuthzenDecision(False, refused="authzen.no-answer")
                found = self._take(message, request)
                if found is not None:
                    return found
        finally:
            late.cancel()
            await asyncio.gather(late, return_exceptions=True)

    def _take(self, message: EventMessage, request: CloudEvent) -> Mapping[str, Json] | AuthzenDecision | None:
        """Return the data of an answer to this request, a refusal, or None for what does not count."""
        try:
            answer, _ = read_event(message.headers, message.data).verify(lambda key: key in self._points)
            until = read_instant(answer.extensions.get("expirytime", ""))
            body = _read_object(answer)
        except PenstockError as error:
            self.counts[error.code] += 1
            return None
        digest = b64encode(hashlib.sha256(request.data).digest()).decode()
        told = answer.extensions
        if (told.get("causationid"), told.get("requestdigest")) != (request.id, digest):
            self.counts["others"] += 1
            return None
        if until <= datetime.fromtimestamp(self._clock.now(), UTC):
            self.counts["late"] += 1
            return None
        if answer.type == ERROR:
            return AuthzenDecision(False, {"error": body.get("error")}, "authzen.refused")
        if answer.type != _ANSWERS[request.type]:
            self.counts["others"] += 1
            return None
        return body


async def _next(answers: AsyncIterator[EventMessage]) -> EventMessage | None:
    return await anext(answers, None)


def _decision(found: Json) -> AuthzenDecision:
    """Return the decision in an answer: only `true` permits."""
    if not isinstance(found, dict):
        return AuthzenDecision(False, refused="authzen.answer")
    context = found.get("context")
    refusal = None if isinstance(found.get("decision"), bool) else "authzen.answer"
    return AuthzenDecision(found.get("decision") is True, context if isinstance(context, dict) else {}, refusal)
