"""What policies learn about events: kinds as types, nothing for nulls, and attributes under all their names."""

import math
from datetime import UTC, datetime, timedelta, timezone

import pytest
from tests.guard.london import LOCATION, NOW, PITO, PLATE, TYPE, V4799, V8516

from penstock.model.values import Kind, Scalar
from penstock.policy.engine.compiler import CompiledPolicy
from penstock.policy.language.datatypes import BOOLEAN, DATE_TIME, DOUBLE, INTEGER, STRING, read_value
from penstock.policy.language.event_attributes import (
    ATTRIBUTE_ID,
    ATTRIBUTE_NAME,
    EVENT,
    action_facts,
    data_type_of,
    environment_facts,
    event_names,
    policy_value,
    subject_facts,
    type_facts,
)
from penstock.policy.language.policies import designators
from penstock.policy.language.requests import ENVIRONMENT, RESOURCE, Facts, key_of
from penstock.policy.language.results import XacmlDecision
from penstock.policy.syntax.text.policies import read_text_policy
from penstock.trust.capabilities import Right

OLD, NEW = V4799.event_type, V8516.event_type


def test_what_is_no_number_is_found_in_bags() -> None:
    (bag,) = environment_facts({"fact": float("nan")}).values()
    assert bag == (math.nan,)


def plain(facts: Facts) -> dict[str, tuple[object, ...]]:
    return {key.id.rpartition(":")[2]: values for key, values in facts.items()}


@pytest.mark.parametrize(
    ("value", "of_type", "written"),
    [
        ("a", STRING, "a"),
        (5, INTEGER, "5"),
        (0.5, DOUBLE, "0.5"),
        (True, BOOLEAN, "true"),
        (datetime(2026, 5, 1, 12, 30, 1, 500_000, UTC), DATE_TIME, "2026-05-01T12:30:01.5Z"),
        (datetime(2026, 5, 1, 1, tzinfo=timezone(timedelta(hours=2))), DATE_TIME, "2026-04-30T23:00:00Z"),
    ],
)
def test_values_are_of_the_type_of_their_kind(value: Scalar, of_type: object, written: str) -> None:
    assert value is not None
    (found,) = environment_facts({"fact": value})
    assert found is key_of(ENVIRONMENT, "urn:penstock:environment:fact", found.of)
    assert found.of is of_type
    assert policy_value(value) == read_value(written, found.of)


def test_every_kind_has_a_type() -> None:
    assert {data_type_of(kind) for kind in Kind} == {STRING, INTEGER, DOUBLE, BOOLEAN, DATE_TIME}


def test_an_event() -> None:
    names = event_names(TYPE)
    facts = plain(names.facts({PLATE: "AE05 XYZ", LOCATION: None, "unheard-of": 5}))
    # By its name and by its id; a null is not a value.
    assert facts == {"numberplate": ("AE05 XYZ",), str(PLATE).rpartition(":")[2]: ("AE05 XYZ",)}
    # What is of another kind than the type says is not known.
    assert names.facts({PLATE: 5}) == {}


def test_an_attribute_has_all_names_that_versions_have_for_it() -> None:
    both = event_names(OLD, [NEW, OLD])
    found = both.of(OLD.by_name["license-plate"])
    assert found[key_of(RESOURCE, ATTRIBUTE_NAME, STRING)] == ("license-plate", "numberplate")
    assert found[key_of(RESOURCE, ATTRIBUTE_ID, STRING)] == (str(PLATE),)
    assert plain(both.facts({PLATE: "x"}))["numberplate"] == ("x",)
    # A name that the asked version has for something else is not that of another version.
    assert event_names(NEW, [NEW]).attributes.keys() & {"license-plate"} == set()


def test_who_what_and_which_type() -> None:
    assert plain(subject_facts(PITO.principal, domain=["a", "b"], right=[])) == {
        "subject-id": (str(PITO.principal),),
        "domain": ("a", "b"),
    }
    assert plain(action_facts(Right.SUBSCRIBE)) == {"action-id": ("subscribe",)}
    assert plain(type_facts(NEW, ["Home"])) == {
        "resource-id": (str(NEW.name),),
        "owner": (str(PITO.principal),),
        "name": ("uk.gov.pito.Numberplate",),
        "version": ("8516",),
        "domain": ("Home",),
        "attribute": ("numberplate", "timestamp", "location"),
    }


def test_policies_speak_of_them() -> None:
    root = read_text_policy(
        f'attribute seen {{ category = resource id = "{EVENT}timestamp" type = dateTime }}\n'
        'policy p { apply deny-unless-permit variable then = "2026-05-01T12:00:00Z":dateTime\n'
        "rule r { permit target clause seen == "
        '"2026-05-01T12:00:00Z":dateTime condition seen == then } }'
    )
    assert {one.id for one in designators(root)} == {f"{EVENT}timestamp"}
    names = event_names(TYPE)
    for moment, decision in ((NOW, XacmlDecision.PERMIT), (NOW + timedelta(microseconds=1), XacmlDecision.DENY)):
        facts = names.facts({TYPE.by_name["timestamp"].id: moment})
        assert CompiledPolicy(root).ask(facts, NOW).decision is decision
