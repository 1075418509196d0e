"""Questions, requests and answers for tests."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from penstock.authority.decisions.messages import AccessAnswer, AccessRequest, AnswerEffect, PolicyRevision
from penstock.authority.decisions.questions import AccessQuestion
from penstock.crypto import SigningKey

NOW: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)
PEP, PDP, OTHER, STRANGER = (SigningKey(bytes([number]) * 32) for number in range(1, 5))
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
