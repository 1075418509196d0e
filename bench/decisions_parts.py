"""The processes of bench_decisions: `python decisions_parts.py <role> <NATS address> …`. Each says when it is ready.

A role is `raw`, which answers NATS requests with the bytes of one signed answer, `point`, a decision point, or
`attack`, which begins and ends as lines `on` and `off` on standard input say.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from secrets import token_bytes, token_hex
from typing import Final

import nats
from nats.aio.msg import Msg

from penstock.apps.answer_links import AnswerLinks
from penstock.authority.decisions.coverage import Coverage, answer_key, request_key, resources
from penstock.authority.decisions.decision_point import TOPICS, AskRate, PointDecision, PolicyDecisionPoint
from penstock.authority.decisions.message_bytes import answer_bytes, request_bytes
from penstock.authority.decisions.messages import (
    AccessAnswer,
    AccessRequest,
    AnswerEffect,
    PolicyRevision,
    read_request,
)
from penstock.authority.decisions.questions import AccessQuestion
from penstock.authority.decisions.rights import DecisionRights
from penstock.crypto import SigningKey
from penstock.fabric import Fabric, Publisher, Sample, TopicSubscription
from penstock.fabric.nats import NatsFabric
from penstock.policy.language.results import PolicyOutcome, XacmlDecision
from penstock.trust.capabilities import DecisionRight, decision_tag
from penstock.trust.certificates import Authorisation, issue
from penstock.trust.credentials import Credentials

OWNER, PEP, *POINTS = (SigningKey(bytes([number]) * 32) for number in range(41, 47))
STRANGER = SigningKey(bytes([99]) * 32)
ATTACKS: Final = (
    "junk requests",
    "requests of strangers",
    "forged requests",
    "replays",
    "junk subscriptions",
    "answers nobody asked for",
    "forged answers",
)
#: hostile messages a second
RATE: Final = 500
SUBJECT: Final = "raw.decisions"
SIGNATURE: Final = 64
POLICY: Final = PolicyRevision("bench", "1", datetime.fromisoformat("2026-01-01T00:00:00+00:00"))


def rights() -> DecisionRights:
    """Every point may decide, and the enforcement point may ask."""
    grants = [(point, DecisionRight.DECIDE) for point in POINTS] + [(PEP, DecisionRight.ASK)]
    certificates = [
        issue(Authorisation(OWNER.principal, key.principal, decision_tag(OWNER.principal, rights=[right])), OWNER)
        for key, right in grants
    ]
    return DecisionRights(OWNER.principal, Credentials.of(*certificates))


class Permits:
    """Policies that permit everything about `objects` objects; 0 means all."""

    def __init__(self, objects: int) -> None:
        self._objects = objects

    def decide(self, _question: object, _now: datetime) -> PointDecision:
        return PointDecision(PolicyOutcome(XacmlDecision.PERMIT), (POLICY,))

    def coverage(self) -> Coverage:
        return resources(*(("object", f"o{number}") for number in range(self._objects))) if self._objects else None


async def raw(url: str, size: int) -> None:
    """Verify each request, and answer with so many bytes, signed."""
    client = await nats.connect(url)
    body = bytes(size - SIGNATURE)

    async def answer(message: Msg) -> None:
        PEP.public.verify(message.data[SIGNATURE:], message.data[:SIGNATURE])
        await message.respond(POINTS[0].sign(body) + body)

    await client.subscribe(SUBJECT, cb=answer)
    await client.flush()
    await ready()


async def point(url: str, number: int, objects: int) -> None:
    """Run a decision point on the fabric and over links."""
    key = POINTS[number]
    async with (
        await NatsFabric.connect(url, prefix=f"decisions{objects}") as fabric,
        AnswerLinks(key, OWNER.principal, "127.0.0.1") as links,
        PolicyDecisionPoint(
            fabric, key, Permits(objects), rights=rights(), links=links, rate=AskRate(100_000, 100_000)
        ),
    ):
        await ready(links.address)


async def ready(*words: str) -> None:
    """Say so, and go on until standard input ends."""
    print("ready", *words, flush=True)
    await asyncio.to_thread(sys.stdin.read)


# --- attacks ----------------------------------------------------------------------------------------------------------


class Attacker:
    """Somebody on the same NATS server, without any right but with a key."""

    def __init__(self, fabric: Fabric, requests: Publisher, answers: Publisher) -> None:
        self._fabric, self._requests, self._answers = fabric, requests, answers
        self._heard: list[tuple[str, bytes]] = []
        self._number = 0

    def question(self) -> AccessQuestion:
        self._number += 1
        return AccessQuestion.of(("user", f"x{self._number}"), "read", ("object", "o0"))

    def request(self, key: SigningKey) -> tuple[str, bytes]:
        asked = self.question()
        request = AccessRequest(asked, key.principal, self._number, datetime.now(UTC), 2_000, None)
        return request_key(asked), request_bytes(request, key)

    async def junk_requests(self) -> None:
        await self._requests.publish(token_bytes(400), key=request_key(self.question()))

    async def requests_of_strangers(self) -> None:
        key, data = self.request(STRANGER)
        await self._requests.publish(data, key=key)

    async def forged_requests(self) -> None:
        key, data = self.request(PEP)
        await self._requests.publish(spoilt(data), key=key)

    async def junk_subscriptions(self) -> None:
        reading = await self._fabric.subscribe(TOPICS.answers, keys=[token_hex(16)])
        if self._number % 2:
            await reading.close()
        self._number += 1

    async def answers_nobody_asked_for(self) -> None:
        await self._answers.publish(self.answer(self.question()), key=answer_key(self.question().digest))

    def answer(self, asked: AccessQuestion) -> bytes:
        now = datetime.now(UTC)
        answer = AccessAnswer(
            asked.digest, AnswerEffect.DENY, (POLICY,), STRANGER.principal, now, now + timedelta(seconds=5)
        )
        return answer_bytes(answer, STRANGER)

    async def hear(self, sample: Sample) -> None:
        """Keep what can be replayed."""
        self._heard = [*self._heard[-999:], (sample.key, sample.data)]

    async def replays(self) -> None:
        if self._heard:
            self._number += 1
            key, data = self._heard[self._number % len(self._heard)]
            await self._requests.publish(data, key=key)

    async def answer_first(self, sample: Sample) -> None:
        """Answer before a decision point can: in a stranger's name, and in the point's with a wrong signature."""
        asked = read_request(sample.data).value.question
        key, now = answer_key(asked.digest), datetime.now(UTC)
        deny = AccessAnswer(
            asked.digest, AnswerEffect.DENY, (POLICY,), POINTS[0].principal, now, now + timedelta(seconds=5)
        )
        forged = answer_bytes(deny, POINTS[0])
        await self._answers.publish(self.answer(asked), key=key)
        await self._answers.publish(spoilt(forged), key=key)


def spoilt(data: bytes) -> bytes:
    """Return a signed message with another signature."""
    return data[:-10] + bytes([data[-10] ^ 1]) + data[-9:]


async def attack(url: str, name: str) -> None:
    """Attack while the last line was `on`."""
    os.nice(19)  # what an attacker computes costs nobody else's machine
    async with await NatsFabric.connect(url, prefix="decisions0") as fabric:
        await TOPICS.declare(fabric)
        writers = [await fabric.publisher(topic) for topic in (TOPICS.requests, TOPICS.answers)]
        attacker = Attacker(fabric, *writers)
        if name == "replays":
            await fabric.subscribe(TOPICS.requests, callback=attacker.hear)
        print("ready", flush=True)
        running: list[asyncio.Future[None] | TopicSubscription] = []
        while line := await asyncio.to_thread(sys.stdin.readline):
            for one in running:
                await (one.close() if isinstance(one, TopicSubscription) else cancelled(one))
            running.clear()
            if line.strip() == "on" and name == "forged answers":
                running.append(await fabric.subscribe(TOPICS.requests, callback=attacker.answer_first))
            elif line.strip() == "on":
                running.append(asyncio.ensure_future(repeated(getattr(attacker, name.replace(" ", "_")))))
            print(line.strip(), flush=True)


async def cancelled(task: "asyncio.Future[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def repeated(act: Callable[[], Awaitable[None]]) -> None:
    """Act `RATE` times a second."""
    loop = asyncio.get_running_loop()
    began, done = loop.time(), 0
    while True:
        while done < (loop.time() - began) * RATE:
            await act()
            done += 1
        await asyncio.sleep(0.002)


if __name__ == "__main__":
    role, url, *numbers = sys.argv[1:]
    match role:
        case "raw":
            asyncio.run(raw(url, int(numbers[0])))
        case "point":
            asyncio.run(point(url, int(numbers[0]), int(numbers[1])))
        case _:
            asyncio.run(attack(url, " ".join(numbers)))
