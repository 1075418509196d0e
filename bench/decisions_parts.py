"""The processes of bench_decisions: `python decisions_parts.py <role> <NATS address> …`. Each says when it is ready.

A role is `raw`, which answers NATS requests with the bytes of one signed answer, `point`, a decision point, or
`attack`, which attacks for as many seconds as a line on standard input says.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import cycle, islice
from secrets import token_bytes, token_hex
from typing import Any, Final

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from penstock.apps.answer_links import AnswerLinks
from penstock.authority.decisions.coverage import Coverage, answer_key, request_key, resources
from penstock.authority.decisions.decision_point import TOPICS, AskRate, PointDecision, PolicyDecisionPoint
from penstock.authority.decisions.message_bytes import answer_bytes, request_bytes, request_from_bytes
from penstock.authority.decisions.messages import AccessAnswer, AccessRequest, AnswerEffect, PolicyRevision
from penstock.authority.decisions.questions import AccessQuestion
from penstock.authority.decisions.rights import DecisionRights
from penstock.crypto import Signer, SigningKey
from penstock.fabric import Sample
from penstock.fabric.envelope import MICROSECONDS, WRITER_BYTES, decode, encode
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
#: seconds of hostile messages that may be sent together
_BURST: Final = 0.02
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


class NoKey:
    """Signs without a private key: with bytes that are not a signature. It costs a forger nothing."""

    def __init__(self, key: SigningKey) -> None:
        self.public, self.principal = key.public, key.principal

    def sign(self, _message: bytes) -> bytes:
        return token_bytes(SIGNATURE)


class Attacker:
    """Somebody on the same NATS server, without any right but with a key.

    The messages are made before each attack, and sent as they are: what an attacker computes is computed elsewhere.
    """

    def __init__(self, fabric: NatsFabric, client: Client) -> None:
        self._client = client
        self._subject = fabric.link.subject_of_parts
        self._writer, self._number = token_bytes(WRITER_BYTES), 0
        self._heard: list[tuple[str, bytes]] = []
        self._subscribed: list[Any] = []
        self._next = 0.0

    def prepare(self, name: str, count: int) -> list[Callable[[], Awaitable[None]]]:
        """Return so many hostile acts."""
        if name == "replays":
            return [partial(self._client.publish, *one) for one in islice(cycle(self._heard), count)]
        make = getattr(self, name.replace(" ", "_"))
        return [make() for _ in range(count)]

    def question(self) -> AccessQuestion:
        self._number += 1
        return AccessQuestion.of(("user", f"x{self._number}"), "read", ("object", "o0"))

    def message(self, topic: str, key: str, data: bytes) -> Callable[[], Awaitable[None]]:
        now = round(datetime.now(UTC).timestamp() * MICROSECONDS)
        sample = encode(Sample(data, key, {}, now, self._writer, self._number))
        return partial(self._client.publish, self._subject(topic, key), sample)

    def request(self, key: Signer) -> Callable[[], Awaitable[None]]:
        asked = self.question()
        request = AccessRequest(asked, key.principal, self._number, datetime.now(UTC), 5_000, None)
        return self.message(TOPICS.requests, request_key(asked), request_bytes(request, key))

    def junk_requests(self) -> Callable[[], Awaitable[None]]:
        return self.message(TOPICS.requests, request_key(self.question()), token_bytes(400))

    def requests_of_strangers(self) -> Callable[[], Awaitable[None]]:
        return self.request(STRANGER)

    def forged_requests(self) -> Callable[[], Awaitable[None]]:
        return self.request(NoKey(PEP))

    def junk_subscriptions(self) -> Callable[[], Awaitable[None]]:
        subject = self._subject(TOPICS.answers, token_hex(16))

        async def subscribe() -> None:
            self._subscribed.append(await self._client.subscribe(subject))
            if len(self._subscribed) % 2:
                await self._subscribed.pop().unsubscribe()

        return subscribe

    def answers_nobody_asked_for(self) -> Callable[[], Awaitable[None]]:
        asked = self.question()
        return self.message(TOPICS.answers, answer_key(asked.digest), self.answer(asked.digest, STRANGER))

    def answer(self, digest: bytes, key: Signer) -> bytes:
        now = datetime.now(UTC)
        answer = AccessAnswer(digest, AnswerEffect.DENY, (POLICY,), key.principal, now, now + timedelta(seconds=5))
        return answer_bytes(answer, key)

    async def hear(self, message: Msg) -> None:
        """Keep what can be replayed."""
        self._heard = [*self._heard[-999:], (message.subject, message.data)]

    async def answer_first(self, message: Msg) -> None:
        """Answer before a decision point can: in a stranger's name, and in the point's with a wrong signature."""
        now = asyncio.get_running_loop().time()
        if now < self._next:
            return
        self._next = max(self._next, now - _BURST) + 2 / RATE
        digest = request_from_bytes(decode(message.data).data).value.question.digest
        for key in (STRANGER, NoKey(POINTS[0])):
            await self.message(TOPICS.answers, answer_key(digest), self.answer(digest, key))()


async def attack(url: str, name: str) -> None:
    """Attack for as many seconds as a line says; say when it begins, and how many messages were sent in it."""
    client = await nats.connect(url)
    async with await NatsFabric.connect(url, prefix="decisions0") as fabric:
        await TOPICS.declare(fabric)
        attacker = Attacker(fabric, client)
        requests = [fabric.link.subject_of_parts(topic, None) for topic in (TOPICS.requests, TOPICS.to_one)]
        if name == "replays":
            for subject in requests:
                await client.subscribe(subject, cb=attacker.hear)
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            acts = [] if name == "forged answers" else attacker.prepare(name, round(float(line) * RATE))
            print("on", flush=True)
            if name == "forged answers":
                reading = [await client.subscribe(subject, cb=attacker.answer_first) for subject in requests]
                await asyncio.sleep(float(line))
                for one in reading:
                    await one.unsubscribe()
            await repeated(acts)
    await client.close()


async def repeated(acts: list[Callable[[], Awaitable[None]]]) -> None:
    """Act `RATE` times a second."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    for done, act in enumerate(acts):
        while done >= (loop.time() - began) * RATE:
            await asyncio.sleep(0.002)
        await act()


if __name__ == "__main__":
    role, url, *numbers = sys.argv[1:]
    match role:
        case "raw":
            asyncio.run(raw(url, int(numbers[0])))
        case "point":
            asyncio.run(point(url, int(numbers[0]), int(numbers[1])))
        case _:
            asyncio.run(attack(url, " ".join(numbers)))
