"""Arguments of a wrong type are refused immediately, and never turn into an answer."""

from collections.abc import Callable

import pytest
from tests.guard.london import BILLING, NETWORK, NOW, TO_CCS, TYPE, V8516, ask

from penstock.errors import MalformedError
from penstock.guard import Delivery, EventRequest, NetworkRequest, Publication
from penstock.trust import Credentials, Right, event_tag

ALLOWED = ask(BILLING, Right.SUBSCRIBE)
WRONG: dict[str, Callable[[], object]] = {
    "a key for a principal": lambda: EventRequest(BILLING, Right.SUBSCRIBE, V8516, NOW),  # type: ignore[arg-type]  # the fault
    "a word for a right": lambda: EventRequest(BILLING.principal, "subscribe", V8516, NOW),  # type: ignore[arg-type]  # the fault
    "a type that was not verified": lambda: EventRequest(BILLING.principal, Right.SUBSCRIBE, TYPE, NOW),  # type: ignore[arg-type]  # the fault
    "a text for a time": lambda: NetworkRequest(BILLING.principal, Right.CONNECT, NETWORK, "now"),  # type: ignore[arg-type]  # the fault
    "a decision for a restriction": lambda: Delivery(ALLOWED, TYPE),  # type: ignore[arg-type]  # the fault
    "a decision to publish by": lambda: Publication(ALLOWED, TYPE),  # type: ignore[arg-type]  # the fault
    "a text for a selector": lambda: Delivery(ALLOWED.require(), TYPE, "speed > 3"),  # type: ignore[arg-type]  # the fault
    "names for attributes": lambda: event_tag(attributes=["numberplate"]),  # type: ignore[list-item]  # the fault
    "a list of certificates": lambda: Credentials.of([TO_CCS]),  # type: ignore[arg-type]  # the fault
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_arguments_are_refused(what: str) -> None:
    with pytest.raises(MalformedError) as refused:
        WRONG[what]()
    assert refused.value.code == "argument.type"


def test_a_time_without_a_zone_is_refused_at_once() -> None:
    with pytest.raises(MalformedError) as refused:
        EventRequest(BILLING.principal, Right.SUBSCRIBE, V8516, NOW.replace(tzinfo=None))
    assert refused.value.code == "value.zone"
