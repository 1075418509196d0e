"""What changes from one bundle to the next is announced, so that caches keep the rest."""

import json
from typing import Any

import pytest

from penstock.apps.http.bundles import Bundle, build
from penstock.apps.http.decision_source import BundleSource, PointSettings
from penstock.apps.http.service import DecisionService, ServiceSettings
from penstock.authority.decisions.messages import LabelRecycling, RecyclingClass, RoleRecycling
from penstock.authority.decisions.updates import EVERYTHING, PolicyChange, ResourceChange, RolePermissionChange

POLICY = """
attribute role { category = subject id = "role" type = string }
attribute kind { category = resource id = "urn:penstock:authzen:resource-type" type = string }
attribute object { category = resource id = "urn:oasis:names:tc:xacml:1.0:resource:resource-id" type = string }
attribute does { category = action id = "urn:oasis:names:tc:xacml:1.0:action:action-id" type = string }
policy records { apply deny-unless-permit
  rule a { permit target clause role == "doctor" and does == "read" and kind == "record" and object == "7" }
  rule b { permit target clause role == "doctor" and does == "read" and kind == "record" and object == "8" }
}"""
ENTITIES: dict[str, Any] = {
    "subjects": [{"type": "user", "id": "alice", "properties": {"ward": "a"}}],
    "resources": [
        {"type": "record", "id": "7", "properties": {"ward": "a"}},
        {"type": "record", "id": "8", "properties": {"ward": "b"}},
    ],
}
ROLES = RoleRecycling("role")
LABELS = LabelRecycling(frozenset({"read"}), frozenset({"append"}), frozenset({"write"}))


def bundle(policy: str = POLICY, entities: Any = ENTITIES) -> Bundle:
    return build({"root.policy": policy.encode(), "entities.json": json.dumps(entities).encode()})


def changes(
    newer: Bundle, declared: RecyclingClass | None = None, older: Bundle | None = None
) -> tuple[PolicyChange, ...]:
    service, settings = DecisionService(newer, ServiceSettings("http://test")), PointSettings(recycling=declared)
    return BundleSource(service, newer, settings).changes_since(BundleSource(service, older or bundle(), settings))


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (None, ResourceChange("record", "8", exact=True)),
        (LABELS, ResourceChange("record", "8", exact=True)),
        (ROLES, RolePermissionChange("doctor", "read", "record", "8")),
    ],
)
def test_a_rule_that_is_gone_is_announced_with_its_resource_or_its_permission(
    declared: RecyclingClass | None, expected: PolicyChange
) -> None:
    less = "\n".join(line for line in POLICY.splitlines() if "rule b" not in line)
    assert changes(bundle(less), declared) == (expected,)
    assert changes(bundle(f"// the same\n{POLICY}"), declared) == ()


def test_resources_with_other_properties_are_announced() -> None:
    def known(*resources: dict[str, Any], **more: object) -> Bundle:
        return bundle(entities={**ENTITIES, "resources": [*resources], **more})

    seven, eight = ENTITIES["resources"]
    moved = {**seven, "properties": {"ward": "c"}}
    assert changes(known(moved, eight)) == (ResourceChange("record", "7", exact=True),)
    nine = {**seven, "id": "9"}
    assert changes(known(seven, eight, nine)) == (ResourceChange("record", "9", exact=True),)
    # True is not 1, although Python says so.
    one, true = ({**seven, "properties": {"ward": value}} for value in (1, True))
    assert changes(known(true, eight), older=known(one, eight)) == (ResourceChange("record", "7", exact=True),)
    # A name that is new for one resource is not taken from questions about the others of its type any more.
    assert changes(known({**seven, "properties": {"ward": "a", "floor": 1}}, eight)) == (ResourceChange("record"),)
    # Subjects ask about all resources.
    assert changes(known(seven, eight, subjects=[])) == EVERYTHING
    assert changes(known({**seven, "id": "x" * 2_000}, seven, eight)) == EVERYTHING
