"""Requests and responses in the XML of XACML 3.0 (section 5.42 and following)."""

from dataclasses import replace
from typing import Any, Final, cast
from xml.sax.saxutils import quoteattr

from lxml import etree

from penstock.codec.xml_text import Element, XmlContent, read_xml
from penstock.errors import MalformedError
from penstock.policy.language.datatypes import XPATH, DataType, Value, XPathExpression, data_type
from penstock.policy.language.requests import Attributes, Request, RequestAttribute
from penstock.policy.language.results import (
    Assigned,
    DecisionStatus,
    MissingAttribute,
    Obligation,
    PolicyId,
    Response,
    Result,
    XacmlDecision,
)
from penstock.policy.limits import POLICY_LIMITS, PolicyLimits
from penstock.policy.syntax.xml.elements import (
    NAMESPACE,
    at,
    attribute_of,
    check_schema,
    flag,
    malformed,
    named,
    text_of,
    value_of,
)

_DECISIONS: Final = {
    "Permit": XacmlDecision.PERMIT,
    "Deny": XacmlDecision.DENY,
    "NotApplicable": XacmlDecision.NOT_APPLICABLE,
    "Indeterminate": XacmlDecision.INDETERMINATE_DP,
}


def read_request(data: bytes, *, limits: PolicyLimits = POLICY_LIMITS) -> Request:
    """Read a request. Raises `MalformedError` (`xml.*`, `xacml.element`, `xacml.type`, `xacml.value`), `LimitError`."""
    root = read_xml(data, limits=limits)
    with at(root):
        check_schema(root)
        if named(root) != "Request":
            raise malformed("the document is not a request")
        version = ""
        categories, references = [], []
        for child in root:
            with at(child):
                match named(child):
                    case "RequestDefaults":
                        version = "".join(child.itertext()).strip()
                    case "Attributes":
                        categories.append(_attributes(child, version))
                    case "MultiRequests":
                        references += [_reference(one) for one in child]
                    case _:
                        raise malformed("this element is not allowed here")
        if not categories:
            raise malformed("`Attributes` is missing")
        return Request(
            tuple(categories),
            flag(root, "ReturnPolicyIdList", default=False),
            flag(root, "CombinedDecision", default=False),
            tuple(references),
            version,
        )


def read_attributes(category: str, content: str, *, limits: PolicyLimits = POLICY_LIMITS) -> Attributes:
    """Read the content of an `Attributes` element of a category. Raises as `read_request`."""
    text = f'<Attributes xmlns="{NAMESPACE}" Category={quoteattr(category)}>{content}</Attributes>'
    root = read_xml(text.encode("utf-8", "surrogatepass"), limits=limits)
    check_schema(root)
    return _attributes(root, "")


def _attributes(element: Element, version: str) -> Attributes:
    content, attributes = None, []
    for child in element:
        with at(child):
            match named(child):
                case "Content":
                    if len(child) != 1:
                        raise malformed("it must contain exactly one element")
                    content = XmlContent(child[0])
                case "Attribute":
                    attributes.append(_attribute(child, version))
                case _:
                    raise malformed("this element is not allowed here")
    name = element.get("{http://www.w3.org/XML/1998/namespace}id")
    return Attributes(attribute_of(element, "Category"), tuple(attributes), content, name or element.get("id"))


def _attribute(element: Element, version: str) -> RequestAttribute:
    values = []
    for child in element:
        with at(child):
            if named(child) != "AttributeValue":
                raise malformed("this element is not allowed here")
            values.append(value_of(child, version))
    if not values:
        raise malformed("`AttributeValue` is missing")
    included = flag(element, "IncludeInResult", default=False)
    return RequestAttribute(attribute_of(element, "AttributeId"), tuple(values), element.get("Issuer"), included)


def _reference(element: Element) -> tuple[str, ...]:
    with at(element):
        if named(element) != "RequestReference":
            raise malformed("this element is not allowed here")
        return tuple(attribute_of(child, "ReferenceId") for child in element)


# --- responses -------------------------------------------------------------------------------------------------------


def read_response(data: bytes, *, limits: PolicyLimits = POLICY_LIMITS) -> Response:
    """Read a response. Raises as `read_request`."""
    root = read_xml(data, limits=limits)
    with at(root):
        if named(root) != "Response":
            raise malformed("the document is not a response")
        return Response([_result(child) for child in root])


def _result(element: Element) -> Result:
    with at(element):
        if named(element) != "Result":
            raise malformed("this element is not allowed here")
        found = Result(XacmlDecision.NOT_APPLICABLE)
        for child in element:
            with at(child):
                found = _part(found, child)
        return found


def _part(found: Result, child: Element) -> Result:
    match named(child):
        case "Decision":
            text = text_of(child).strip()
            if text not in _DECISIONS:
                raise malformed(f"`{text[:80]}` is not a decision")
            return replace(found, decision=_DECISIONS[text])
        case "Status":
            return replace(found, status=_status(child))
        case "Obligations":
            return replace(found, obligations=tuple(_told(one, "ObligationId") for one in child))
        case "AssociatedAdvice":
            return replace(found, advice=tuple(_told(one, "AdviceId") for one in child))
        case "Attributes":
            return replace(found, attributes=(*found.attributes, _attributes(child, "")))
        case "PolicyIdentifierList":
            return replace(found, policies=tuple(_policy_id(one) for one in child))
    raise malformed("this element is not allowed here")


def _status(element: Element) -> DecisionStatus:
    code, message, missing = "", "", []
    for child in element:
        match named(child):
            case "StatusCode":
                code = attribute_of(child, "Value")
            case "StatusMessage":
                message = text_of(child)
            case "StatusDetail":
                missing = [_missing(one) for one in child if named(one) == "MissingAttributeDetail"]
    return DecisionStatus(code, message, tuple(missing))


def _missing(element: Element) -> MissingAttribute:
    return MissingAttribute(
        attribute_of(element, "Category"),
        attribute_of(element, "AttributeId"),
        data_type(attribute_of(element, "DataType")),
        element.get("Issuer"),
    )


def _told(element: Element, key: str) -> Obligation:
    assigned = []
    for child in element:
        with at(child):
            of_type, value = value_of(child, "")
            name = attribute_of(child, "AttributeId")
            assigned.append(Assigned(name, of_type, value, child.get("Category"), child.get("Issuer")))
    return Obligation(attribute_of(element, key), tuple(assigned))


def _policy_id(element: Element) -> PolicyId:
    return PolicyId(text_of(element).strip(), element.get("Version") or "", named(element) == "PolicySetIdReference")


def write_response(response: Response) -> bytes:
    """Return a response as XML. Raises `MalformedError` (`xml.malformed`) for characters that XML does not allow."""
    root = etree.Element(_tag("Response"), nsmap=cast("Any", {None: NAMESPACE}))
    try:
        for result in response.results:
            _write_result(etree.SubElement(root, _tag("Result")), result)
    except ValueError:
        message = "the response has characters that cannot be written as XML"
        raise MalformedError("xml.malformed", message, hint="ask for it in JSON") from None
    etree.indent(root)
    return bytes(etree.tostring(root, xml_declaration=True, encoding="UTF-8"))


def _tag(name: str) -> str:
    return f"{{{NAMESPACE}}}{name}"


def _write_result(element: Element, result: Result) -> None:
    etree.SubElement(element, _tag("Decision")).text = result.decision.plain
    _write_status(etree.SubElement(element, _tag("Status")), result.status)
    for name, one, key, told in (
        ("Obligations", "Obligation", "ObligationId", result.obligations),
        ("AssociatedAdvice", "Advice", "AdviceId", result.advice),
    ):
        if told:
            parent = etree.SubElement(element, _tag(name))
            for duty in told:
                _write_told(etree.SubElement(parent, _tag(one), {key: duty.id}), duty)
    for attributes in result.attributes:
        _write_attributes(etree.SubElement(element, _tag("Attributes"), {"Category": attributes.category}), attributes)
    if result.policies:
        parent = etree.SubElement(element, _tag("PolicyIdentifierList"))
        for policy in result.policies:
            name = "PolicySetIdReference" if policy.is_set else "PolicyIdReference"
            etree.SubElement(parent, _tag(name), {"Version": policy.version}).text = policy.id


def _write_status(element: Element, status: DecisionStatus) -> None:
    etree.SubElement(element, _tag("StatusCode"), {"Value": status.code})
    if status.message:
        etree.SubElement(element, _tag("StatusMessage")).text = status.message
    if status.missing:
        detail = etree.SubElement(element, _tag("StatusDetail"))
        for one in status.missing:
            facts = {"Category": one.category, "AttributeId": one.id, "DataType": one.of.id}
            etree.SubElement(
                detail, _tag("MissingAttributeDetail"), _without_none(facts | {"Issuer": one.issuer or ""})
            )


def _write_told(element: Element, told: Obligation) -> None:
    for one in told.assigned:
        facts = {"AttributeId": one.id, "Category": one.category or "", "Issuer": one.issuer or ""}
        _write_value(element, "AttributeAssignment", _without_none(facts), one.of, one.value)


def _write_attributes(element: Element, attributes: Attributes) -> None:
    for attribute in attributes.attributes:
        facts = {"AttributeId": attribute.id, "Issuer": attribute.issuer or ""}
        included = {"IncludeInResult": "true" if attribute.include_in_result else "false"}
        child = etree.SubElement(element, _tag("Attribute"), _without_none(facts) | included)
        for of_type, value in attribute.values:
            _write_value(child, "AttributeValue", {}, of_type, value)


def _write_value(parent: Element, name: str, facts: dict[str, str], of_type: DataType, value: Value) -> None:
    prefixes: dict[str, str] = {}
    if of_type is XPATH and isinstance(value, XPathExpression):
        facts = facts | {"XPathCategory": value.category}
        prefixes = dict(value.prefixes)
    child = etree.SubElement(parent, _tag(name), facts | {"DataType": of_type.id}, nsmap=prefixes)
    child.text = of_type.write(value)


def _without_none(facts: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in facts.items() if value}
