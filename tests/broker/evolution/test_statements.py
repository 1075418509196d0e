"""Statements about policy as events, which brokers read and clients cannot name."""

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.trust.kit import NOW, key, refused, who
from tests.trust.policy_kit import BROKER, NEIGHBOUR, OTHER, OWNER, PERIOD, RIGHTS, author

from penstock.broker.evolution.statements import Statement, is_reserved, refuse_reserved, reserved_types, unwrap, wrap
from penstock.errors import PenstockError
from penstock.model.events import TransitEvent
from penstock.model.names import TypeKey
from penstock.trust.policy_events import Acknowledgement, CarriedStamp, HopStamp
from penstock.trust.policy_state import publish
from penstock.trust.signed import sign_value

POLICY = author()
EVENT = POLICY.change(NOW, publish(*RIGHTS)).unverified()
STAMP = POLICY.stamp(NOW, PERIOD)
HOP = sign_value(HopStamp(STAMP.digest, who(BROKER), who(NEIGHBOUR), NOW), key(BROKER))
ACK = sign_value(Acknowledgement(who(BROKER), who(OWNER), 1, POLICY.head, NOW), key(BROKER)).unverified()
STATEMENTS: list[tuple[Statement, str]] = [
    (EVENT, "000000000000001"),
    (CarriedStamp(STAMP.unverified()), "stamp"),
    (CarriedStamp(STAMP.unverified(), HOP.unverified()), "stamp"),
    (ACK, str(who(BROKER))),
]


@pytest.mark.parametrize(("statement", "slot"), STATEMENTS)
def test_a_statement_travels_under_its_slot(statement: Statement, slot: str) -> None:
    retained = wrap(statement)
    assert retained.slot == slot
    assert retained.event.key in reserved_types(who(OWNER))
    assert unwrap(retained.event) == unwrap(retained.event, slot) == statement
    with refused("evolution.malformed"):
        unwrap(retained.event, "another")


def test_a_statement_does_not_travel_as_what_it_is_not() -> None:
    event = wrap(EVENT).event
    (text,) = event.values.values()

    def under(key: TypeKey) -> TransitEvent:
        return TransitEvent(key, (), {f"{key}#statement": text})

    assert unwrap(under(event.key)) == EVENT
    for key_ in (*reserved_types(who(OTHER)), *reserved_types(who(OWNER))[1:], TypeKey(who(OWNER), "a.B")):
        with refused("evolution.malformed"):
            unwrap(under(key_))
    (name,) = event.values
    for values in ({}, {name: 1}, {name: text, "more": 1}, {"other": text}, {name: "x" * 10**6}, {name: "é"}):
        with refused("evolution.malformed"):
            unwrap(replace(event, values=values))
    with refused("evolution.malformed"):
        unwrap(replace(event, ancestors=(event.key,)))


@settings(max_examples=examples(100), deadline=None)
@given(st.sampled_from([wrap(statement).event for statement, _ in STATEMENTS]), st.text(max_size=40), st.integers(0))
def test_whatever_comes_raises_nothing_else(event: TransitEvent, junk: str, place: int) -> None:
    ((name, text),) = event.values.items()
    assert isinstance(text, str)
    cut = place % len(text)
    for changed in (junk, text[:cut] + junk, text[:cut] + junk + text[cut + 1 :]):
        with suppress(PenstockError):
            # What is signed is not looked at yet, so that some changes are found only when it is verified.
            assert type(unwrap(replace(event, values={name: changed}))) is type(unwrap(event))


@pytest.mark.parametrize("name", ["penstock", "penstock.policy", "penstock.anything.else"])
def test_clients_do_not_name_what_is_for_brokers(name: str) -> None:
    assert is_reserved(name)
    with refused("broker.reserved-type"):
        refuse_reserved(name)


@pytest.mark.parametrize("name", ["penstocks", "uk.penstock.policy", "Penstock.policy"])
def test_all_other_names_are_for_clients(name: str) -> None:
    refuse_reserved(name)
