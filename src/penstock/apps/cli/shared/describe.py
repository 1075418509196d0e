"""Certificates, rights and types as plain data for programs, and as text for people."""

from collections.abc import Mapping
from datetime import datetime

from penstock.apps.cli.shared.names import NameBook
from penstock.codec.wire import Wire
from penstock.errors import MalformedError
from penstock.model.names import AttributeId, TypeName
from penstock.model.principals import Principal
from penstock.model.types import AttributeDefinition, EventType
from penstock.model.values import AttributeSpec, Enumerated, Ranged, Value
from penstock.trust.capabilities import describe_tag
from penstock.trust.certificates import Authorisation, Name, Statement, Subject
from penstock.trust.event_types import UnverifiedType
from penstock.trust.explain import describe_subject
from penstock.trust.tags import Tag
from penstock.trust.validity import Validity

# ----------------------------------------------------------------------------------------------------------------------
# Answers of a broker can have any form. They are shown as far as they have the expected one.


def table(value: Wire) -> Mapping[str, Wire]:
    """Return a table, or an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def listed(value: Wire) -> list[Wire]:
    """Return a list, or an empty one for any other value."""
    return value if isinstance(value, list) else []


# ----------------------------------------------------------------------------------------------------------------------
# Certificates, rights and types.


Facts = list[tuple[str, str]]
"""The rows of a table for people: a heading and its value."""


_NETWORK_PLACES = ("owner", "name", "rights")
_TYPE_PLACES = ("owner", "name", "version", "rights", "attributes", "where", "when")
_PLACES = {"network": _NETWORK_PLACES, "event-type": _TYPE_PLACES, "decision": ("owner", "type", "id", "rights")}


def counted(number: int, thing: str) -> str:
    """Return a number and a noun, in the plural if needed.

    >>> counted(1, "reader"), counted(2_000, "reader"), counted(2, "delivery")
    ('1 reader', '2,000 readers', '2 deliveries')
    """
    if number == 1:
        return f"1 {thing}"
    return f"{number:,} {thing.removesuffix('y')}ies" if thing.endswith("ry") else f"{number:,} {thing}s"


def statement_data(statement: Statement) -> dict[str, object]:
    """Return the content of a certificate, for programs."""
    data: dict[str, object] = {
        "kind": "authorisation" if isinstance(statement, Authorisation) else "name",
        "issuer": str(statement.issuer),
        "subject": subject_data(statement.subject),
    }
    if isinstance(statement, Authorisation):
        data |= {"propagate": statement.propagate, "grants": tag_data(statement.tag)}
    else:
        data["name"] = statement.name.decode(errors="backslashreplace")
    data |= validity_data(statement.validity)
    if statement.comment:
        data["comment"] = statement.comment
    return data


def subject_data(subject: Subject) -> dict[str, object]:
    """Return a subject, for programs."""
    if isinstance(subject, Principal):
        return {"principal": str(subject)}
    if isinstance(subject, Name):
        return {
            "principal": str(subject.principal),
            "names": [name.decode(errors="backslashreplace") for name in subject.names],
        }
    return {
        "principal": str(subject.principal),
        "threshold": subject.k,
        "members": [subject_data(member) for member in subject.subjects],
    }


def tag_data(tag: Tag) -> dict[str, object]:
    """Return a right, for programs. It has every field, and one that is not restricted is `*`."""
    return _every_place(describe_tag(tag))


def _every_place(data: dict[str, object]) -> dict[str, object]:
    if "resource" not in data:
        return data
    places = _PLACES[str(data["resource"])]
    return {"resource": data["resource"], **dict.fromkeys(places, "*"), **data}


def validity_data(validity: Validity) -> dict[str, object]:
    """Return a validity, for programs; a missing date is null."""
    data: dict[str, object] = {"not_before": _iso(validity.starts), "not_after": _iso(validity.ends)}
    if validity.online:
        data["online"] = [test.kind for test in validity.online]
    return data


def type_data(unverified: UnverifiedType) -> dict[str, object]:
    """Return a type definition, for programs."""
    definition = unverified.definition
    return {
        **name_data(definition.name),
        "previous": definition.previous,
        "sealing": str(definition.sealing),
        "blinded": definition.blinded,
        "signed": definition.signed,
        "extends": None if definition.extends is None else name_data(definition.extends),
        "signer": str(unverified.key.principal),
        "attributes": [attribute_data(attribute) for attribute in definition.attributes],
        "credentials": [certificate.id for certificate in unverified.credentials.certificates],
    }


def name_data(name: TypeName) -> dict[str, object]:
    """Return the name tuple of a type, for programs."""
    return {"owner": str(name.owner), "name": name.name, "version": name.version}


def attribute_data(attribute: AttributeDefinition) -> dict[str, object]:
    """Return an attribute, for programs."""
    return {"name": attribute.name, "uid": attribute.uid, "kind": str(attribute.spec.kind), **_domain(attribute.spec)}


def _domain(spec: AttributeSpec) -> dict[str, object]:
    match spec.domain:
        case Enumerated(values):
            return {"one_of": sorted(map(value_text, values))}
        case Ranged(low, high):
            return {"range": [value_text(low), value_text(high)]}
    return {}


def spec_text(spec: AttributeSpec) -> str:
    """Return a kind and its domain as text."""
    match spec.domain:
        case Enumerated(values):
            return f"{spec.kind}, one of {', '.join(sorted(map(value_text, values)))}"
        case Ranged(low, high):
            return f"{spec.kind}, {value_text(low)} to {value_text(high)}"
    return str(spec.kind)


def value_text(value: Value) -> str:
    """Return a value as text."""
    if isinstance(value, bool):
        return str(value).lower()
    return _iso(value) or "" if isinstance(value, datetime) else str(value)


def _iso(instant: datetime | None) -> str | None:
    return None if instant is None else instant.isoformat().replace("+00:00", "Z")


def validity_text(validity: Validity) -> str:
    """Return a validity as text."""
    begin, end = _day(validity.starts), _day(validity.ends)
    period = {
        (False, False): "without expiry",
        (True, False): f"from {begin}",
        (False, True): f"until {end}",
        (True, True): f"{begin} to {end}",
    }[bool(begin), bool(end)]
    tests = ", ".join(test.kind for test in validity.online)
    return f"{period}, if the on-line test holds: {tests}" if tests else period


def date_problem(code: str, validity: Validity) -> str:
    """Return a sentence that a validity is over or has not begun, for codes that mean this; else an empty text."""
    match code:
        case "cert.expired":
            return f"expired on {_day(validity.ends)}"
        case "cert.not-yet-valid":
            return f"valid only from {_day(validity.starts)}"
    return ""


def instant_text(instant: datetime) -> str:
    """Return an instant in UTC as people write it; a whole day without the time.

    >>> instant_text(datetime.fromisoformat("2026-05-01T00:00Z"))
    '2026-05-01 UTC'
    """
    return f"{instant:%Y-%m-%d %H:%M:%S}".removesuffix(" 00:00:00") + " UTC"


def _day(instant: datetime | None) -> str:
    return "" if instant is None else instant_text(instant)


class Wording:
    """Words for people: petnames for principals, and names for the attributes of types that are known.

    The types must be verified: an attribute's name then comes from the owner of the type that defines it. If versions
    have different names for an attribute, the first of them counts.
    """

    def __init__(self, names: NameBook, *types: EventType) -> None:
        self.names = names
        self._attributes: dict[str, str] = {}
        for event_type in types:
            for one in event_type.attributes:
                self._attributes.setdefault(one.id, one.name)

    def who(self, principal: Principal) -> str:
        """Name a principal."""
        return self.names.show(principal)

    def subject(self, subject: Subject) -> str:
        """Name a subject."""
        return describe_subject(subject, self.names.petnames)

    def attribute(self, attribute: AttributeId) -> str:
        """Name an attribute."""
        return self._attribute(str(attribute.owner), attribute.type_name, attribute.uid)

    def statement(self, statement: Statement) -> Facts:
        """Return the content of a certificate as rows."""
        facts: Facts = [("issuer", self.who(statement.issuer))]
        if isinstance(statement, Authorisation):
            facts.append(("subject", self.subject(statement.subject)))
            facts += self.tag(statement.tag)
            facts.append(("may pass on", "yes" if statement.propagate else "no"))
        else:
            facts.append(("name", repr(statement.name.decode(errors="backslashreplace"))))
            facts.append(("means", self.subject(statement.subject)))
        facts.append(("valid", validity_text(statement.validity)))
        if statement.comment:
            facts.append(("comment", statement.comment))
        return facts

    def tag(self, tag: Tag) -> Facts:
        """Return a right as rows."""
        data = _every_place(describe_tag(tag, self._attribute))
        if "resource" not in data:
            return [("tag", _flat(data["tag"]))]
        kind = {"network": "network", "decision": "decisions"}.get(str(data["resource"]), "type")
        if kind == "decisions":
            resource = f"{self._owner(data['owner'])}/{_flat(data['type'])}:{_flat(data['id'])}"
            return [(kind, resource), ("rights", _flat(data["rights"]))]
        name = f"{self._owner(data['owner'])}/{_flat(data['name'])}"
        if data.get("version", "*") != "*":
            name += f"@{_flat(data['version'])}"
        facts: Facts = [(kind, name), ("rights", _flat(data["rights"]))]
        facts += [
            (place, _flat(data[place])) for place in ("attributes", "where", "when") if data.get(place, "*") != "*"
        ]
        return facts

    def line(self, statement: Statement) -> str:
        """Return the content of a certificate in one line."""
        who, subject = self.who(statement.issuer), self.subject(statement.subject)
        if not isinstance(statement, Authorisation):
            return f"{who} names {statement.name.decode(errors='backslashreplace')!r}: {subject}"
        facts = dict(self.tag(statement.tag))
        if "tag" in facts:
            return f"{who} → {subject}: {facts['tag']}"
        what = facts.get("type") or facts.get("network") or f"decisions about {facts['decisions']}"
        rights = "every right" if facts["rights"] == "*" else facts["rights"]
        limits = [f"{place} {facts[place]}" for place in ("attributes", "where", "when") if place in facts]
        return f"{who} → {subject}: {rights} on {what}{''.join(f', {limit}' for limit in limits)}"

    def _owner(self, written: object) -> str:
        if not isinstance(written, str) or not written.startswith(("ed25519:", "threshold:")):
            return _flat(written)
        try:
            return self.who(Principal.parse(written))
        except MalformedError:
            return written

    def _attribute(self, owner: str, type_name: str, uid: str) -> str:
        return self._attributes.get(f"{owner}/{type_name}#{uid}", f"{type_name}#{uid}")


def _flat(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(_flat(part) for part in value)
    return str(value)
