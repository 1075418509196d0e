"""Checks of points that claim to speak AuthZEN over publish/subscribe, Penstock's own and others.

Each check has the number of the section of docs/reference/authzen-over-pubsub.md that it checks. For a decision point
the suite is an enforcement point that also misbehaves, and for an enforcement point a decision point that does. The
decision point under test must decide by the policy of section 9.1: `read` on resources of type `conformance` is
permitted exactly if their id is `permit`.
"""

import asyncio
import hashlib
import json
import secrets
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from penstock.authority.decisions.authzen_events import (
    BATCH,
    DECISION,
    DECISIONS,
    ERROR,
    EVALUATION,
    EVALUATIONS,
    EventMessage,
    EventReply,
    EventTransport,
    request_word,
    source_of,
)
from penstock.authority.decisions.cloud_events import (
    JSON,
    CloudEvent,
    ReceivedEvent,
    instant_text,
    read_event,
    read_instant,
    sign_event,
)
from penstock.crypto import PublicKey, Signer, SigningKey
from penstock.errors import PenstockError
from penstock.fabric import Clock, RandomBytes, SystemClock
from penstock.fabric.tasks import waited_for
from penstock.policy.syntax.json.requests import Json

RESOURCE_TYPE: Final = "conformance"
#: what an enforcement point does with a question: it asks, and says what it concluded
MakeAsk: TypeAlias = Callable[[Mapping[str, Json]], Awaitable[Json]]


def question(resource: str) -> dict[str, Json]:
    """Return a question of the suite; `permit` is permitted, and everything else is denied."""
    return {
        "subject": {"type": "user", "id": "conformance"},
        "action": {"name": "read"},
        "resource": {"type": RESOURCE_TYPE, "id": resource},
    }


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A check: its name, the section of the binding, and what went wrong."""

    check: str
    section: str
    title: str
    problem: str | None

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        found = {"check": self.check, "section": self.section, "title": self.title, "passed": self.problem is None}
        return found if self.problem is None else {**found, "problem": self.problem}


class ProblemError(Exception):
    """A check has failed."""


def _need(truth: object, problem: str) -> None:
    if not truth:
        raise ProblemError(problem)


@dataclass(slots=True)
class _Suite:
    """What both suites share: a key, time, and events."""

    transport: EventTransport
    key: Signer
    #: the key of the point under test
    peer: PublicKey
    clock: Clock = field(default_factory=SystemClock)
    #: seconds to wait for what should come, and for what should not
    patience: float = 5.0
    silence: float = 1.0
    random: RandomBytes = secrets.token_bytes

    def now(self) -> datetime:
        """Return the time."""
        return datetime.fromtimestamp(self.clock.now(), UTC)

    def stranger(self) -> SigningKey:
        """Return a key that nobody trusts."""
        return SigningKey(self.random(32))

    def from_peer(self, received: ReceivedEvent) -> CloudEvent:
        """Return the verified event of the point under test."""
        try:
            found, _ = received.verify(lambda key: key == self.peer)
        except PenstockError as error:
            raise ProblemError(f"its event does not count: {error.message} [{error.code}]") from None
        return found

    async def run(self, checks: Sequence[tuple[str, str, str, Callable[[], Awaitable[None]]]]) -> list[CheckResult]:
        """Run all checks, in order."""
        results = []
        for name, section, title, check in checks:
            try:
                await check()
                problem = None
            except ProblemError as error:
                problem = str(error)
            except PenstockError as error:
                problem = f"{error.message} [{error.code}]"
            results.append(CheckResult(name, section, title, problem))
        return results


# ----------------------------------------------------------------------------------------------------------------------
# Decision points.


@dataclass(slots=True)
class DecisionPointSuite(_Suite):
    """Checks a decision point."""

    async def results(self) -> list[CheckResult]:
        """Run all checks."""
        return await self.run(
            [
                ("D1", "4.1", "permits with `decision` true", self._permits),
                ("D2", "4.1", "denies with `decision` false", self._denies),
                ("D3", "3.2", "answers are CloudEvents of the right type", self._is_event),
                ("D4", "5.1", "answers are signed, with all that correlates them", self._is_signed),
                ("D5", "4.2", "answers name their request and its digest", self._is_correlated),
                ("D6", "8.2", "answers say until when they may be used", self._ends),
                ("D7", "6.1", "decides a batch in order, with common members", self._batch),
                ("D8", "6.2", "a batch ends at the first deny, if it says so", self._batch_ends),
                ("D9", "6.3", "a malformed question of a batch is denied alone", self._batch_item),
                ("D10", "7.1", "malformed data is answered with an error", self._malformed),
                ("D11", "7.1", "another type of event is answered with an error", self._other_type),
                ("D12", "5.2", "no answer to a request without a signature", self._unsigned),
                ("D13", "5.2", "no answer to the key of a stranger", self._untrusted),
                ("D14", "5.2", "no answer to a request that was changed", self._changed),
                ("D15", "8.1", "no answer to a request that has ended", self._ended),
                ("D16", "8.1", "no answer to a request without an end, or with a late one", self._endless),
                ("D17", "8.3", "no second answer to a copy", self._copy),
            ]
        )

    def request(self, data: Json, kind: str = EVALUATION, *, lasts: float = 30.0) -> CloudEvent:
        """Return a request without a signature."""
        now = self.now()
        word = BATCH if kind == EVALUATIONS else request_word(RESOURCE_TYPE)
        until = instant_text(now + timedelta(seconds=lasts))
        written = json.dumps(data).encode()
        source = source_of(self.key)
        return CloudEvent(self.random(16).hex(), source, kind, now, written, word, JSON, {"expirytime": until})

    async def answers(self, event: CloudEvent, *, most: int, seconds: float) -> list[EventMessage]:
        """Send an event, and return what comes as answers."""
        found: list[EventMessage] = []
        word = event.subject or ""
        async with self.transport.ask(word, event.id, EventMessage.of(event)) as answers:
            await _collect(answers, found, most, self.clock.sleep(seconds))
        return found

    async def ask(self, event: CloudEvent) -> CloudEvent:
        """Sign an event, and return the verified answer."""
        found = await self.answers(sign_event(event, self.key), most=1, seconds=self.patience)
        _need(found, "there was no answer")
        return self.from_peer(read_event(found[0].headers, found[0].data))

    async def _body(self, data: Json, kind: str = EVALUATION, expected: str = DECISION) -> Mapping[str, Json]:
        answer = await self.ask(self.request(data, kind))
        _need(answer.type == expected, f"`type` is `{answer.type}`, not `{expected}`")
        return _object(answer.data)

    async def _silent(self, event: CloudEvent) -> None:
        found = await self.answers(event, most=1, seconds=self.silence)
        _need(not found, "there was an answer")

    async def _permits(self) -> None:
        found = await self._body(question("permit"))
        _need(found.get("decision") is True, f"`decision` is {json.dumps(found.get('decision'))}")

    async def _denies(self) -> None:
        found = await self._body(question("deny"))
        _need(found.get("decision") is False, f"`decision` is {json.dumps(found.get('decision'))}")

    async def _is_event(self) -> None:
        answers = [await self.ask(self.request(question("permit"))) for _ in range(2)]
        for answer in answers:
            _need(answer.type == DECISION, f"`type` is `{answer.type}`, not `{DECISION}`")
            _need(answer.datacontenttype == JSON, f"`datacontenttype` is not `{JSON}`")
            _need(abs(answer.time - self.now()) < timedelta(seconds=60), "`time` is not the current time")
        _need(answers[0].id != answers[1].id, "two answers have the same `id`")

    async def _is_signed(self) -> None:
        answer = await self.ask(self.request(question("permit")))
        for name in ("causationid", "requestdigest", "expirytime"):
            _need(name in answer.extensions, f"the signature does not cover `{name}`")

    async def _is_correlated(self) -> None:
        request = self.request(question("permit"))
        answer = await self.ask(request)
        digest = b64encode(hashlib.sha256(request.data).digest()).decode()
        _need(answer.extensions.get("causationid") == request.id, "`causationid` is not the `id` of the request")
        _need(answer.extensions.get("requestdigest") == digest, "`requestdigest` is not the digest of the data")

    async def _ends(self) -> None:
        answer = await self.ask(self.request(question("permit")))
        until = read_instant(answer.extensions.get("expirytime", ""))
        _need(until > self.now(), "the answer has ended already")

    def _many(self, *resources: str, **more: Json) -> dict[str, Json]:
        common = question("permit")
        del common["resource"]
        items: list[Json] = [{"resource": question(one)["resource"]} for one in resources]
        return {**common, "evaluations": items, **more}

    async def _decisions(self, data: Json) -> list[Json]:
        found = (await self._body(data, EVALUATIONS, DECISIONS)).get("evaluations")
        _need(isinstance(found, list), "there are no `evaluations`")
        decisions = [one.get("decision") if isinstance(one, dict) else None for one in found]  # type: ignore[union-attr]
        _need(all(isinstance(one, bool) for one in decisions), "a `decision` is not a boolean")
        return decisions

    async def _batch(self) -> None:
        found = await self._decisions(self._many("permit", "deny", "permit"))
        _need(found == [True, False, True], f"the decisions are {json.dumps(found)}")

    async def _batch_ends(self) -> None:
        options: Json = {"evaluations_semantic": "deny_on_first_deny"}
        found = await self._decisions(self._many("permit", "deny", "permit", options=options))
        _need(found == [True, False], f"the decisions are {json.dumps(found)}")

    async def _batch_item(self) -> None:
        data = self._many("permit", "permit")
        data["evaluations"] = [{"resource": {"type": RESOURCE_TYPE}}, {"resource": question("permit")["resource"]}]
        found = await self._decisions(data)
        _need(found == [False, True], f"the decisions are {json.dumps(found)}")

    async def _error(self, event: CloudEvent, statuses: Sequence[int]) -> None:
        answer = await self.ask(event)
        _need(answer.type == ERROR, f"`type` is `{answer.type}`, not `{ERROR}`")
        found = _object(answer.data)
        _need(found.get("status") in statuses, f"`status` is {json.dumps(found.get('status'))}")
        error = found.get("error")
        _need(isinstance(error, dict) and isinstance(error.get("code"), str), "`error` has no `code`")

    async def _malformed(self) -> None:
        await self._error(self.request({"subject": "nobody"}), [400])
        await self._error(replace(self.request({}), data=b"{"), [400])

    async def _other_type(self) -> None:
        await self._error(self.request(question("permit"), f"{EVALUATION}.unknown"), [400, 404])

    async def _unsigned(self) -> None:
        await self._silent(self.request(question("permit")))

    async def _untrusted(self) -> None:
        await self._silent(sign_event(self.request(question("permit")), self.stranger()))

    async def _changed(self) -> None:
        signed = sign_event(self.request(question("deny")), self.key)
        await self._silent(replace(signed, data=json.dumps(question("permit")).encode()))
        later = instant_text(self.now() + timedelta(seconds=60))
        await self._silent(replace(signed, extensions={**signed.extensions, "expirytime": later}))

    async def _ended(self) -> None:
        await self._silent(sign_event(self.request(question("permit"), lasts=-5), self.key))

    async def _endless(self) -> None:
        await self._silent(sign_event(self.request(question("permit"), lasts=86_400), self.key))
        await self._silent(sign_event(replace(self.request(question("permit")), extensions={}), self.key))

    async def _copy(self) -> None:
        signed = sign_event(self.request(question("permit")), self.key)
        _need(await self.answers(signed, most=1, seconds=self.patience), "there was no answer")
        await self._silent(signed)


# ----------------------------------------------------------------------------------------------------------------------
# Enforcement points.


Answering: TypeAlias = Callable[[ReceivedEvent, EventReply], Awaitable[None]]


@dataclass(slots=True)
class EnforcementPointSuite(_Suite):
    """Checks an enforcement point, which `make_ask` lets ask."""

    make_ask: MakeAsk = field(kw_only=True)
    _heard: list[ReceivedEvent] = field(default_factory=list)

    async def results(self) -> list[CheckResult]:
        """Run all checks."""
        return await self.run(
            [
                ("E1", "3.1", "requests are CloudEvents of the right type", self._is_event),
                ("E2", "5.1", "requests are signed, with the time at which they end", self._is_signed),
                ("E3", "4.1", "the data is the question", self._is_question),
                ("E4", "4.1", "`decision` true permits", self._permits),
                ("E5", "4.1", "`decision` false denies", self._denies),
                ("E6", "4.1", "`decision` that is not a boolean denies", self._not_boolean),
                ("E7", "5.3", "an answer without a signature does not count", self._unsigned),
                ("E8", "5.3", "the answer of a stranger does not count", self._untrusted),
                ("E9", "5.3", "an answer that was changed does not count", self._changed),
                ("E10", "4.2", "an answer to another request does not count", self._other_request),
                ("E11", "4.2", "an answer to other data does not count", self._other_data),
                ("E12", "8.2", "an answer that has ended does not count", self._ended),
                ("E13", "5.3", "the right answer counts after wrong ones", self._right_one_last),
                ("E14", "7.2", "an error denies", self._error),
                ("E15", "8.4", "no answer denies", self._nothing),
            ]
        )

    def answer(self, request: ReceivedEvent, data: Json, kind: str = DECISION, **changed: str) -> CloudEvent:
        """Return an answer to a request without a signature; `changed` are extension attributes."""
        now = self.now()
        digest = b64encode(hashlib.sha256(request.data).digest()).decode()
        until = instant_text(now + timedelta(seconds=30))
        told = {"causationid": request.attributes["id"], "requestdigest": digest, "expirytime": until, **changed}
        written = json.dumps(data).encode()
        return CloudEvent(self.random(16).hex(), source_of(self.key), kind, now, written, None, JSON, told)

    async def concludes(self, *events: Callable[[ReceivedEvent], CloudEvent], resource: str = "permit") -> bool:
        """Let the point ask, answer with these events, and return whether it permits."""

        async def hear(message: EventMessage, reply: EventReply) -> None:
            try:
                request = read_event(message.headers, message.data)
            except PenstockError:
                return
            self._heard.append(request)
            for event in events:
                await reply(EventMessage.of(event(request)))

        self._heard.clear()
        async with self.transport.listen(hear):
            found = await self.make_ask(question(resource))
        decision = found.get("decision") if isinstance(found, dict) else None
        _need(isinstance(decision, bool), "the test driver did not return a `decision`")
        return decision is True

    def _signed(self, data: Json, kind: str = DECISION, **changed: str) -> Callable[[ReceivedEvent], CloudEvent]:
        return lambda request: sign_event(self.answer(request, data, kind, **changed), self.key)

    async def _must(self, *events: Callable[[ReceivedEvent], CloudEvent], permit: bool) -> None:
        found = await self.concludes(*events)
        _need(found is permit, "it permitted" if found else "it denied")

    async def _request(self) -> ReceivedEvent:
        await self.concludes(self._signed({"decision": True}))
        _need(self._heard, "there was no request")
        return self._heard[0]

    async def _is_event(self) -> None:
        first, second = await self._request(), await self._request()
        for name, expected in (("type", EVALUATION), ("datacontenttype", JSON), ("subject", RESOURCE_TYPE)):
            _need(first.attributes.get(name) == expected, f"`{name}` is not `{expected}`")
        _need(first.attributes["id"] != second.attributes["id"], "two requests have the same `id`")

    async def _is_signed(self) -> None:
        event = self.from_peer(await self._request())
        until = read_instant(event.extensions.get("expirytime", ""))
        _need(self.now() < until <= event.time + timedelta(seconds=300), "it lasts for more than 300 seconds")

    async def _is_question(self) -> None:
        found = _object((await self._request()).data)
        for name, expected in question("permit").items():
            _need(found.get(name) == expected, f"`{name}` is not that of the question")

    async def _permits(self) -> None:
        await self._must(self._signed({"decision": True}), permit=True)

    async def _denies(self) -> None:
        await self._must(self._signed({"decision": False}), permit=False)

    async def _not_boolean(self) -> None:
        for decision in ("true", 1, None):
            await self._must(self._signed({"decision": decision}), permit=False)

    async def _unsigned(self) -> None:
        await self._must(lambda request: self.answer(request, {"decision": True}), permit=False)

    async def _untrusted(self) -> None:
        key = self.stranger()
        await self._must(lambda request: sign_event(self.answer(request, {"decision": True}), key), permit=False)

    async def _changed(self) -> None:
        signed = self._signed({"decision": False})
        await self._must(lambda request: replace(signed(request), data=b'{"decision": true}'), permit=False)

    async def _other_request(self) -> None:
        await self._must(self._signed({"decision": True}, causationid=self.random(16).hex()), permit=False)

    async def _other_data(self) -> None:
        digest = b64encode(self.random(32)).decode()
        await self._must(self._signed({"decision": True}, requestdigest=digest), permit=False)

    async def _ended(self) -> None:
        past = instant_text(self.now() - timedelta(seconds=5))
        await self._must(self._signed({"decision": True}, expirytime=past), permit=False)

    async def _right_one_last(self) -> None:
        def unsigned(request: ReceivedEvent) -> CloudEvent:
            return self.answer(request, {"decision": False})

        await self._must(unsigned, self._signed({"decision": True}), permit=True)

    async def _error(self) -> None:
        error: Json = {"code": "conformance", "message": "an error"}
        await self._must(self._signed({"status": 500, "error": error, "decision": True}, ERROR), permit=False)

    async def _nothing(self) -> None:
        await self._must(permit=False)


async def _collect(
    answers: AsyncIterator[EventMessage], found: list[EventMessage], most: int, sleep: Awaitable[None]
) -> None:
    async def take() -> None:
        async for answer in answers:
            found.append(answer)
            if len(found) >= most:
                return

    tasks = [waited_for(take()), waited_for(sleep)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _object(data: bytes) -> Mapping[str, Json]:
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ProblemError("the data is not a JSON object")
    return found
