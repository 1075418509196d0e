"""What the tests of event types share: definitions, rights to manage them, and a registry."""

from datetime import datetime

from tests.trust.kit import NOW, grant, key, who

from penstock.model.names import NetworkName, TypeName
from penstock.model.principals import Principal
from penstock.model.types import AttributeDefinition, TypeDefinition
from penstock.model.values import AttributeSpec, Kind, Ranged
from penstock.trust.capabilities import Right, event_tag
from penstock.trust.certificates import Certificate, Threshold
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import UnverifiedType, VerifiedType, sign_type, verify_type
from penstock.trust.validity import ALWAYS, Validity

PITO, MANAGER, CLERK, OTHER = 1, 2, 3, 4
TEXT, NUMBER = AttributeSpec(Kind.STRING), AttributeSpec(Kind.INTEGER, Ranged(0, 9))
NETWORK = NetworkName(who(PITO), "UK Police Network")


def define(
    owner: int | Principal = PITO, called: str = "uk.gov.pito.Numberplate", extends: TypeName | None = None
) -> TypeDefinition:
    by = who(owner) if isinstance(owner, int) else owner
    attributes = (
        AttributeDefinition("numberplate" if extends is None else "colour", "0", TEXT),
        AttributeDefinition("lane" if extends is None else "wheels", "1", NUMBER),
    )
    return TypeDefinition(TypeName(by, called), attributes, extends)


PLATE = define()


def may(
    manager: int, *rights: Right, owner: int = PITO, called: str | None = None, validity: Validity = ALWAYS
) -> Certificate:
    return grant(owner, manager, event_tag(who(owner), called, None, rights), validity=validity)


class Registry(dict[TypeName, UnverifiedType]):
    """Where definitions are found by name."""

    def sign(
        self,
        definition: TypeDefinition,
        by: int = PITO,
        *certificates: Certificate,
        quorums: tuple[Threshold, ...] = (),
    ) -> UnverifiedType:
        signed = sign_type(definition, key(by), Credentials.of(*certificates, quorums=quorums))
        self[definition.name] = signed
        return signed

    def verify(self, signed: UnverifiedType, now: datetime = NOW, network: NetworkName | None = None) -> VerifiedType:
        return verify_type(signed, now, types=self.get, network=network)
