"""The local broker: what is refused, who receives what, and the limits on principals."""

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.broker.local.test_local_broker import BOTTOM, MEDIUM, PUBLISHING, TOP, given_to, node, refusals, subscribe
from tests.broker.sports import (
    AGENCY,
    NETWORK,
    NEWS,
    NOW,
    PDA,
    REPORTER,
    STRANGER,
    TENNIS,
    Node,
    definition,
    grant,
    signed,
)

from penstock.broker.limits import BrokerLimits
from penstock.broker.local.requests import Answered, Given, MissingRight, Refused
from penstock.broker.local.type_library import Library
from penstock.broker.wire.protocol import PublishMessage
from penstock.errors import LimitError, RefusedError
from penstock.guard import Effect
from penstock.model import TransitEvent, TypeKey
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials

if TYPE_CHECKING:
    from penstock.codec.wire import Wire

# Refusals, and who receives what.


def test_a_stranger_is_not_let_in() -> None:
    made = node()
    said = made.connect(STRANGER)
    assert refusals(said) == ["broker.not-permitted"]
    assert made.reports[-1].detail.missing == (MissingRight(Right.CONNECT, NETWORK),)


def test_a_refusal_says_what_was_asked_and_the_operator_knows_what_is_missing() -> None:
    made = node()
    (said,) = subscribe(made, TENNIS)
    assert isinstance(said, Refused)
    assert (said.code, said.asked.about, said.detail) == ("broker.not-permitted", TENNIS.name, None)
    assert made.reports[-1].detail.missing == (MissingRight(Right.SUBSCRIBE, TENNIS.name),)
    assert made.records[-1].effect is Effect.DENY


def test_a_client_is_told_where_the_owner_lets_it_ask() -> None:
    made = node(grant(PDA, TENNIS, Right.RESTRICTIONS))
    (said,) = subscribe(made, TENNIS)
    assert isinstance(said, Refused)
    assert said.detail is not None
    assert said.detail.missing == (MissingRight(Right.SUBSCRIBE, TENNIS.name),)


def test_restrictions_are_told_where_the_owner_lets_the_client_ask() -> None:
    limited = grant(PDA, NEWS, Right.SUBSCRIBE, attributes=["headline"])
    made = node(limited)
    subscribe(made)
    assert refusals(made.run(made.broker.restrictions(NOW, "pda", "s"))) == ["broker.not-told"]
    made.policy(*PUBLISHING, limited, grant(PDA, NEWS, Right.RESTRICTIONS, when=("hour < 10",)))
    assert refusals(made.run(made.broker.restrictions(NOW, "pda", "s"))) == ["broker.not-told"]
    made.policy(*PUBLISHING, limited, grant(PDA, NEWS, Right.RESTRICTIONS))
    (said,) = made.run(made.broker.restrictions(NOW, "pda", "s"))
    assert isinstance(said, Answered)
    ((key, granted),) = said.detail.granted
    assert key == NEWS.name.key
    assert granted["branches"][0]["attributes"] == ["headline"]  # type: ignore[index]  # plain data
    assert said.detail.missing == (MissingRight(Right.SUBSCRIBE, NEWS.name, ("location", "agency")),)


def test_every_decision_is_recorded_and_what_it_was_enforced_on() -> None:
    made = node(TOP)
    subscribe(made)
    (record,) = [r for r in made.records if r.action is Right.SUBSCRIBE and r.resource == NEWS.name]
    assert record.effect is Effect.PERMIT
    made.publish(NEWS, id="1")
    made.broker.tick(NOW)
    (enforced,) = [r for r in made.records if r.decision == record.id]
    assert enforced.counts is not None
    assert (enforced.counts.passed, enforced.counts.refused) == (1, 0)


def test_names_that_do_not_fit_are_refused() -> None:
    made = node(TOP)
    subscribe(made)
    assert refusals(subscribe(made)) == ["broker.id-taken"]
    assert refusals(subscribe(made, text="nonsense = 1", id="t")) == ["selector.unknown-attribute"]
    assert refusals(subscribe(made, definition("Chess", {}), id="t")) == ["broker.unknown-type"]
    assert refusals(made.run(made.broker.unsubscribe(NOW, "pda", "t"))) == ["broker.unknown-id"]
    assert refusals(made.run(made.broker.unadvertise(NOW, "pda", "s"))) == ["broker.unknown-id"]
    assert refusals(made.run(made.broker.restrictions(NOW, "pda", "t"))) == ["broker.unknown-id"]
    made.run(made.broker.unsubscribe(NOW, "pda", "s"))
    assert given_to(made.publish(NEWS, id="1")) == []
    with pytest.raises(RefusedError):
        made.connect(PDA)


# BrokerLimits.


@pytest.mark.parametrize("terms", [{}, {"when": ["rate <= 2"]}], ids=["by the limit", "by a condition"])
def test_of_events_in_one_message_those_within_the_rate_are_published(terms: dict[str, Any]) -> None:
    limits = BrokerLimits(client_rate=100 if terms else 2)
    made = Node(limits=limits)
    made.policy(grant(PDA, NEWS, Right.SUBSCRIBE), grant(REPORTER, NEWS, Right.PUBLISH, **terms))
    made.connect(PDA)
    made.connect(REPORTER)
    subscribe(made)
    made.run(made.broker.advertise(NOW, "reporter", "a", NEWS.name))
    rows: list[list[Wire]] = [[str(number), NOW, "h", None, None] for number in range(4)]
    made.path.publish("reporter", PublishMessage(0, "a", NEWS.name, rows))
    (given,) = [said for said in made.told if isinstance(said, Given)]
    assert [event.id for event in given.events] == ["0", "1"]
    refused = [said for said in made.told if isinstance(said, Refused)]
    assert [(said.code, said.position) for said in refused] == [
        ("guard.not-permitted" if terms else "broker.rate", position) for position in (2, 3)
    ]


def test_limits_are_on_principals() -> None:
    limits = BrokerLimits(
        client_sessions=2, client_subscriptions=1, client_advertisements=5, client_event_bytes=100, client_rate=2
    )
    made = node(TOP, limits=limits)
    assert refusals(made.connect(PDA, "pda2")) == []
    assert refusals(made.connect(PDA, "pda3")) == ["broker.sessions"]
    assert refusals(subscribe(made)) == []
    again = made.broker.subscribe(NOW, "pda2", "t", NEWS.name)
    assert refusals(made.run(again)) == ["broker.subscriptions"]
    assert refusals(made.run(made.broker.advertise(NOW, "reporter", "x", NEWS.name))) == ["broker.advertisements"]
    assert refusals(made.publish(NEWS, headline="h" * 200)) == ["broker.event-size"]
    assert [refusals(made.publish(NEWS)) for _ in range(3)] == [[], [], ["broker.rate"]]
    made.run(made.broker.disconnect(NOW, "reporter"))
    made.connect(REPORTER)
    made.run(made.broker.advertise(NOW, "reporter", "SportsNews", NEWS.name))
    assert refusals(made.publish(NEWS)) == ["broker.rate"]
    made.now = NOW + timedelta(minutes=1)
    assert refusals(made.publish(NEWS)) == []
    made.run(made.broker.disconnect(NOW, "pda"))
    assert refusals(made.connect(PDA, "pda3")) == []


def test_a_client_discloses_only_so_many_certificates() -> None:
    made = node(limits=BrokerLimits(client_certificates=1))
    said = made.run(made.broker.connect(NOW, "pda2", PDA.principal, Credentials.of(BOTTOM, MEDIUM)))
    assert refusals(said) == ["broker.credentials"]
    made.run(made.broker.disclose(NOW, "pda", Credentials.of(BOTTOM)))
    with pytest.raises(LimitError):
        made.broker.disclose(NOW, "pda", Credentials.of(MEDIUM))


def test_a_library_serves_only_so_many_types() -> None:
    library = Library(NETWORK, limits=BrokerLimits(broker_types=1))
    library.add(signed(NEWS), NOW)
    library.add(signed(NEWS), NOW)
    with pytest.raises(LimitError):
        library.add(signed(TENNIS), NOW)
    assert len(library) == 1


def test_nothing_passes_of_an_owner_whose_policy_is_not_known_nor_of_what_extends_its_types() -> None:
    made = node(grant(PDA, NEWS, Right.SUBSCRIBE), grant(REPORTER, NEWS, Right.PUBLISH))
    subscribe(made)
    foreign = TransitEvent(TypeKey(STRANGER.principal, "Theirs"), (NEWS.name.key,), {}, "1")
    assert given_to(made.inject(foreign)) == ["1"]
    made.broker.suspend(AGENCY.principal)
    assert refusals(made.publish(NEWS)) == ["broker.policy-stale"]
    assert given_to(made.inject(replace(foreign, id="2"))) == []
    assert made.broker.held_back == 1
    made.broker.resume(AGENCY.principal)
    assert given_to(made.inject(replace(foreign, id="3"))) == ["3"]
    made.broker.suspend(STRANGER.principal)
    assert given_to(made.inject(replace(foreign, id="4"))) == []
    assert given_to(made.publish(NEWS, id="5")) == ["5"]
