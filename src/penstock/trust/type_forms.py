"""The written form of definitions of event types, which is what is signed:

    (event-type-definition (name <owner> <name> <version>) (extends <owner> <name> <version>) (previous <version>)
                           (seal event | attribute) (blinded) (signed)
                           (attributes (attribute <name> <uid> <kind> <domain>) …)
                           (credentials …))

Nothing of what is read has been verified.
"""

from typing import Final

from penstock.codec.sexp import SExp, text
from penstock.codec.sexp import field as sexp_field
from penstock.codec.values import spec_from_sexp, spec_to_sexp
from penstock.errors import MalformedError
from penstock.model.limits import Limits
from penstock.model.names import TypeName
from penstock.model.principals import Principal
from penstock.model.types import AttributeDefinition, Sealing, TypeDefinition
from penstock.trust.credentials import Credentials, UnverifiedCredentials, collect_credentials

_HEAD: Final = b"event-type-definition"
_FIELDS: Final = frozenset(
    {b"name", b"extends", b"previous", b"seal", b"blinded", b"signed", b"attributes", b"credentials"}
)


def definition_to_sexp(definition: TypeDefinition, credentials: Credentials) -> SExp:
    """Return what is signed."""
    parts: list[SExp] = [(b"name", *_name_parts(definition.name))]
    if definition.extends is not None:
        parts.append((b"extends", *_name_parts(definition.extends)))
    if definition.previous is not None:
        parts.append((b"previous", definition.previous.encode()))
    if definition.sealing is not Sealing.NONE:
        parts.append((b"seal", definition.sealing.encode()))
    if definition.blinded:
        parts.append((b"blinded",))
    if definition.signed:
        parts.append((b"signed",))
    attributes = tuple(
        (b"attribute", a.name.encode(), a.uid.encode(), *spec_to_sexp(a.spec)) for a in definition.attributes
    )
    parts.append((b"attributes", *attributes))
    if len(credentials) or credentials.quorums:
        sequence = credentials.to_sexp()
        parts.append((b"credentials", *sequence[1:]) if isinstance(sequence, tuple) else sequence)
    return (_HEAD, *parts)


def _name_parts(name: TypeName) -> tuple[bytes, bytes, bytes]:
    return str(name.owner).encode(), name.name.encode(), name.version.encode()


def read_definition(body: SExp, limits: Limits) -> tuple[TypeDefinition, UnverifiedCredentials]:
    """Read a definition, and the credentials in it.

    Raises `MalformedError` (`type.malformed` and what the parts raise) and `LimitError`.
    """
    if not isinstance(body, tuple) or not body or body[0] != _HEAD:
        raise MalformedError(
            "type.malformed", "not an event type definition", hint="expected `(event-type-definition …)`"
        )
    for part in body[1:]:
        if not isinstance(part, tuple) or not part or part[0] not in _FIELDS:
            raise MalformedError("type.malformed", "an event type definition has a field that is not known")
    name = sexp_field(body, b"name")
    attributes = sexp_field(body, b"attributes")
    if name is None or attributes is None:
        raise MalformedError("type.malformed", "an event type definition lacks its name or its attributes")
    extends = sexp_field(body, b"extends")
    previous = sexp_field(body, b"previous")
    if previous is not None and len(previous) != 2:
        raise MalformedError("type.malformed", "`previous` names one version")
    definition = TypeDefinition(
        _read_name(name[1:]),
        tuple(_read_attribute(attribute) for attribute in attributes[1:]),
        None if extends is None else _read_name(extends[1:]),
        None if previous is None else text(previous[1]),
        _read_sealing(sexp_field(body, b"seal")),
        _read_flag(sexp_field(body, b"blinded")),
        _read_flag(sexp_field(body, b"signed")),
    )
    credentials = sexp_field(body, b"credentials")
    bag = collect_credentials(credentials[1:], limits=limits) if credentials else UnverifiedCredentials()
    return definition, bag


def _read_name(parts: tuple[SExp, ...]) -> TypeName:
    if len(parts) != 3:
        raise MalformedError("type.malformed", "a type name is owner, name and version")
    return TypeName(Principal.parse(text(parts[0])), text(parts[1]), text(parts[2]))


def _read_sealing(part: tuple[SExp, ...] | None) -> Sealing:
    match part:
        case None:
            return Sealing.NONE
        case (b"seal", (b"event" | b"attribute") as level):
            return Sealing(level.decode())
    raise MalformedError("type.malformed", "a type is sealed by `event` or by `attribute`")


def _read_flag(part: tuple[SExp, ...] | None) -> bool:
    if part is not None and len(part) != 1:
        raise MalformedError("type.malformed", "a field that says yes has nothing in it")
    return part is not None


def _read_attribute(value: SExp) -> AttributeDefinition:
    match value:
        case (b"attribute", bytes(name), bytes(uid), *spec):
            return AttributeDefinition(text(name), text(uid), spec_from_sexp(tuple(spec)))
    raise MalformedError("type.malformed", "not an attribute", hint="expected `(attribute <name> <uid> <kind>)`")
