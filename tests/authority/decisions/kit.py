"""Questions, requests and answers for tests."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Final

import pytest

from penstock.authority.decisions.coverage import Coverage
from penstock.authority.decisions.decision_point import PointDecision
from penstock.authority.decisions.messages import AccessAnswer, AccessRequest, AnswerEffect, PolicyRevision
from penstock.authority.decisions.questions import AccessQuestion
from penstock.authority.decisions.rights import DecisionRights
from penstock.crypto import SigningKey
from penstock.fabric import EmbeddedFabric, Fabric
from penstock.fabric.nats import NatsFabric
from penstock.policy.language.results import Obligation, PolicyOutcome, XacmlDecision
from penstock.testing.fabric_suite import ManualClock
from penstock.trust.capabilities import DecisionRight, decision_tag
from penstock.trust.certificates import Authorisation, Certificate, issue
from penstock.trust.credentials import Credentials

NOW: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)
PEP, PDP, OTHER, STRANGER, OWNER = (SigningKey(bytes([number]) * 32) for number in range(1, 6))
QUESTION: Final = AccessQuestion.of(("user", "alice"), "read", ("document", "report-7"))
POLICY: Final = PolicyRevision("urn:example:reports", "7a", NOW - timedelta(days=1))


def request(question: AccessQuestion = QUESTION, *, key: SigningKey = PEP, **changed: Any) -> AccessRequest:
    """Return a request, with other values where they are given."""
    values: dict[str, Any] = {"number": 1, "time": NOW, "lifespan": 5_000, **changed}
    return AccessRequest(question, key.principal, **values)


def answer(question: AccessQuestion = QUESTION, *, key: SigningKey = PDP, **changed: Any) -> AccessAnswer:
    """Return an answer, with other values where they are given."""
    values: dict[str, Any] = {
        "effect": AnswerEffect.PERMIT,
        "rests_on": (POLICY,),
        "issued": NOW,
        "until": NOW + timedelta(seconds=5),
        **changed,
    }
    return AccessAnswer(question.digest, point=key.principal, **values)


def clock_at(moment: datetime = NOW) -> ManualClock:
    """Return a clock that stands still."""
    return ManualClock(moment.timestamp())


class Policies:
    """A source of decisions for tests: an effect for each resource id, and how often it was asked."""

    def __init__(
        self,
        decisions: Mapping[str, XacmlDecision] | XacmlDecision = XacmlDecision.PERMIT,
        *policies: PolicyRevision,
        covers: Coverage = None,
        obligations: tuple[Obligation, ...] = (),
    ) -> None:
        self.decisions = decisions
        self.policies = policies or (POLICY,)
        self.covers = covers
        self.obligations = obligations
        self.asked: list[AccessQuestion] = []

    def decide(self, question: AccessQuestion, now: datetime) -> PointDecision:
        """Return the decision for the resource, NotApplicable if there is none."""
        self.asked.append(question)
        found = self.decisions
        if not isinstance(found, XacmlDecision):
            found = found.get(question.resource.id, XacmlDecision.NOT_APPLICABLE)
        return PointDecision(PolicyOutcome(found, obligations=self.obligations), self.policies)

    def coverage(self) -> Coverage:
        """Return what the test said."""
        return self.covers


def grant(key: SigningKey, *rights: DecisionRight, kind: str | None = None, name: str | None = None) -> Certificate:
    """Return a certificate of the owner for rights on decisions."""
    tag = decision_tag(OWNER.principal, kind, name, rights or (DecisionRight.DECIDE,))
    return issue(Authorisation(OWNER.principal, key.principal, tag), OWNER)


def rights_of(*certificates: Certificate) -> DecisionRights:
    """Return the rights that certificates give; without any, `PDP` and `OTHER` may decide, and `PEP` may ask."""
    usual = (grant(PDP), grant(OTHER), grant(PEP, DecisionRight.ASK))
    return DecisionRights(OWNER.principal, Credentials.of(*(certificates or usual)))


#: the same suite over each fabric
each_fabric: Final = pytest.mark.parametrize("over", ["embedded", "nats"])
_PREFIXES: Final = count()


@asynccontextmanager
async def opened_fabric(over: str, request: pytest.FixtureRequest, clock: ManualClock) -> AsyncIterator[Fabric]:
    """Open a fabric that nobody else uses."""
    if over == "embedded":
        async with EmbeddedFabric(clock=clock) as embedded:
            yield embedded
        return
    url = request.getfixturevalue("server").url
    async with await NatsFabric.connect(url, prefix=f"decisions{next(_PREFIXES)}") as fabric:
        yield fabric
