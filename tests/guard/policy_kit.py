"""Policies over event types for tests: short texts with the attributes that they speak of, and what comes of them."""

from collections.abc import Iterable
from datetime import datetime

from tests.guard.london import BAG, NOW, TYPE, V8516, name, transit

from penstock.crypto import SigningKey
from penstock.guard import (
    CapabilityAuthority,
    Decision,
    Delivery,
    Effect,
    EventRequest,
    decide,
    environment,
)
from penstock.guard.policies import Policies, PolicyCombining, no_other_types
from penstock.model.values import Scalar
from penstock.policy.language.policies import Root
from penstock.policy.syntax.text.policies import read_text_policy
from penstock.selector import ALWAYS
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import VerifiedType

#: what policies of tests call the attributes
WORDS = {
    "who": ("subject", "urn:oasis:names:tc:xacml:1.0:subject:subject-id", "string"),
    "home": ("subject", "urn:penstock:subject:domain", "string"),
    "any_role": ("subject", "urn:penstock:subject:role", "string"),
    "role": ("subject", "urn:penstock:subject:owner-role", "string"),
    "may": ("subject", "urn:penstock:subject:right", "string"),
    "does": ("action", "urn:oasis:names:tc:xacml:1.0:action:action-id", "string"),
    "about": ("resource", "urn:oasis:names:tc:xacml:1.0:resource:resource-id", "string"),
    "owner": ("resource", "urn:penstock:type:owner", "string"),
    "type_name": ("resource", "urn:penstock:type:name", "string"),
    "type_version": ("resource", "urn:penstock:type:version", "string"),
    "above": ("resource", "urn:penstock:type:ancestor", "string"),
    "has": ("resource", "urn:penstock:type:attribute", "string"),
    "owner_home": ("resource", "urn:penstock:type:domain", "string"),
    "part": ("resource", "urn:penstock:attribute:name", "string"),
    "place": ("resource", "urn:penstock:event:location", "string"),
    "plate": ("resource", "urn:penstock:event:numberplate", "string"),
    "seen": ("resource", "urn:penstock:event:timestamp", "dateTime"),
    "hour": ("environment", "urn:penstock:environment:hour", "integer"),
    "now": ("environment", "urn:oasis:names:tc:xacml:1.0:environment:current-time", "time"),
    "stranger": ("subject", "urn:example:unheard-of", "string"),
}


def policy(*rules: str, apply: str = "deny-overrides", name: str = "plates", more: str = "") -> Root:
    """Read a policy of these rules; only the attributes that it uses are declared."""
    body = "\n".join(f"rule r{number} {{ {rule} }}" for number, rule in enumerate(rules))
    declared = "\n".join(
        f'attribute {word} {{ category = {category} id = "{id_}" type = {of_type} }}'
        for word, (category, id_, of_type) in WORDS.items()
    )
    return read_text_policy(f"namespace t {{ {declared}\npolicy {name} {{ apply {apply}\n{more}\n{body} }} }}")


def ask(  # what a decision rests on
    policies: Policies,
    who: SigningKey,
    right: Right = Right.SUBSCRIBE,
    bag: Credentials = BAG,
    type_: VerifiedType = V8516,
    *,
    now: datetime | None = NOW,
    known: Iterable[VerifiedType] = (),
) -> Decision:
    """Decide by certificates and policies."""
    certified = CapabilityAuthority(bag)
    types = tuple(known)
    authority = policies.over(certified, certified, (lambda _key, _now: types) if types else no_other_types)
    return decide(EventRequest(who.principal, right, type_, now), [authority])


def shown(
    decision: Decision, plate: str = "AE05 XYZ", location: str | None = "Victoria", now: datetime = NOW
) -> dict[str, Scalar] | None:
    """Return what somebody sees of a sighting, or None where it is not delivered."""
    if decision.effect is not Effect.PERMIT:
        return None
    delivery = Delivery(decision.restriction, TYPE, ALWAYS)
    event = delivery(transit(plate, location), environment(now))
    return None if event is None else {key: value for key, value in event.values.items() if value is not None}


def police(who: SigningKey, by: SigningKey, word: bytes = b"police") -> Credentials:
    """Return the certificates of the example, and one that gives somebody a role."""
    return BAG + Credentials.of(name(by, word, who.principal))


BOTH, RESTRICT, ALONE, EITHER = PolicyCombining
