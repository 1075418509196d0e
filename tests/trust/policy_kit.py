"""What the tests of policy evolution share: an owner, its chain, and certificates to publish and revoke."""

from datetime import datetime, timedelta

from tests.trust.kit import NOW, grant, key, who
from tests.trust.types_kit import PITO, PLATE, define

from penstock.model.names import TypeName
from penstock.model.types import TypeDefinition
from penstock.trust.capabilities import Right, event_tag
from penstock.trust.certificates import Certificate
from penstock.trust.event_types import sign_type
from penstock.trust.policy_events import Install, Remove, Revoke
from penstock.trust.policy_state import PolicyAuthor

OWNER, OTHER, BROKER, NEIGHBOUR = PITO, 2, 7, 8
SECOND = timedelta(seconds=1)
PERIOD = 10_000


def author(number: int = OWNER) -> PolicyAuthor:
    return PolicyAuthor(key(number))


def right(subject: int, right: Right = Right.SUBSCRIBE, issuer: int = OWNER) -> Certificate:
    return grant(issuer, subject, event_tag(who(OWNER), None, None, [right]))


RIGHTS = tuple(right(subject) for subject in range(20, 26))
TYPES = (PLATE, define(called="uk.gov.pito.Camera"))


def revoke(*certificates: Certificate) -> Revoke:
    return Revoke(tuple(certificate.id for certificate in certificates))


def install(definition: TypeDefinition = PLATE, by: int = OWNER) -> Install:
    return Install(sign_type(definition, key(by)))


def remove(name: TypeName = PLATE.name) -> Remove:
    return Remove(name)


def at(seconds: float) -> datetime:
    return NOW + seconds * SECOND
