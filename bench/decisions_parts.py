"""The processes of bench_decisions: `python decisions_parts.py <role> <NATS address> …`. Each says when it is ready.

A role is `raw`, which answers NATS requests with the bytes of one signed answer, or `point`, a decision point.
"""

import asyncio
import sys
from datetime import datetime
from typing import Final

import nats
from nats.aio.msg import Msg

from penstock.apps.answer_links import AnswerLinks
from penstock.authority.decisions.coverage import Coverage, resources
from penstock.authority.decisions.decision_point import AskRate, PointDecision, PolicyDecisionPoint
from penstock.authority.decisions.messages import PolicyRevision
from penstock.authority.decisions.rights import DecisionRights
from penstock.crypto import SigningKey
from penstock.fabric.nats import NatsFabric
from penstock.policy.language.results import PolicyOutcome, XacmlDecision
from penstock.trust.capabilities import DecisionRight, decision_tag
from penstock.trust.certificates import Authorisation, issue
from penstock.trust.credentials import Credentials

OWNER, PEP, *POINTS = (SigningKey(bytes([number]) * 32) for number in range(41, 47))
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


if __name__ == "__main__":
    role, url, *numbers = sys.argv[1:]
    asyncio.run((raw if role == "raw" else point)(url, *map(int, numbers)))
