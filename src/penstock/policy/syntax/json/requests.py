"""Requests and responses in the JSON profile of XACML 3.0 (version 1.1).

A value without a type has the type of its JSON value: a string, a boolean, an integer or a double. An object is a path
if its type says so; other objects are kept unchanged, and equal nothing.
"""

import base64
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeAlias

from penstock.errors import LimitError, MalformedError
from penstock.policy.language.datatypes import (
    BOOLEAN,
    DOUBLE,
    INTEGER,
    STRING,
    XPATH,
    DataType,
    Value,
    XPathExpression,
    data_type,
    read_value,
)
from penstock.policy.language.requests import (
    ACTION,
    CATEGORIES,
    ENVIRONMENT,
    RESOURCE,
    SUBJECT,
    Attributes,
    Content,
    Request,
    RequestAttribute,
)
from penstock.policy.language.results import (
    OK,
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

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
_DECISIONS: Final = {
    "Permit": XacmlDecision.PERMIT,
    "Deny": XacmlDecision.DENY,
    "NotApplicable": XacmlDecision.NOT_APPLICABLE,
    "Indeterminate": XacmlDecision.INDETERMINATE_DP,
}
#: short names of categories (section 4.2.2)
_SHORT: Final = {
    "Resource": RESOURCE,
    "Action": ACTION,
    "Environment": ENVIRONMENT,
    "AccessSubject": SUBJECT,
    **{name: f"urn:oasis:names:tc:xacml:1.0:subject-category:{rest}" for name, rest in CATEGORIES.items()},
}


@dataclass(frozen=True, slots=True)
class JsonObject:
    """An object that is not a value of a known type."""

    text: str

    def __str__(self) -> str:
        return self.text


def _read_object(text: str) -> JsonObject:
    return JsonObject(text)


OBJECT: Final = DataType("urn:penstock:data-type:json", "json", _read_object)
"""The type of JSON objects that are not values of the standard; no function takes it."""


# --- reading ---------------------------------------------------------------------------------------------------------


def read_json(data: bytes, limits: PolicyLimits = POLICY_LIMITS) -> Json:
    """Read JSON according to RFC 7493: in UTF-8, without duplicate names and NaN.

    Raises `MalformedError` (`xacml.json`), `LimitError`.
    """
    if len(data) > limits.xml_bytes:
        raise LimitError("xml.limit", f"the document is longer than {limits.xml_bytes} bytes")
    try:
        text = data.decode("utf-8-sig")
        found: Json = _DECODE(text)
        if "\\u" in text:
            # Half of a surrogate pair is not a character (RFC 7493, section 2.1), and could not be written again.
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise _wrong("it is not JSON") from None
    return found


def _once(pairs: Sequence[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _wrong("an object has a name twice")
    return found


def _no_constant(word: str) -> NoReturn:
    raise ValueError(word)


#: created once, because creating a decoder takes as long as reading a request
_DECODE: Final[Callable[[str], Json]] = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant).decode


def _wrong(message: str) -> MalformedError:
    return MalformedError("xacml.json", message)


class _Object:
    """An object in which unread members are errors."""

    def __init__(self, value: Json, where: str) -> None:
        if not isinstance(value, dict):
            raise _wrong(f"{where} is not an object")
        self._left = dict(value)
        self.where = where

    def take(self, name: str, kind: type | tuple[type, ...], *, needed: bool = False) -> Any:
        if name not in self._left:
            if needed:
                raise _wrong(f"{self.where} has no `{name}`")
            return None
        value = self._left.pop(name)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise _wrong(f"`{name}` of {self.where} is of the wrong kind")
        return value

    def items(self, name: str, *, needed: bool = False) -> list[Json]:
        return [*(self.take(name, list, needed=needed) or [])]

    def value(self, name: str) -> Json:
        if name not in self._left:
            raise _wrong(f"{self.where} has no `{name}`")
        return self._left.pop(name)

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def done(self) -> None:
        if self._left:
            raise _wrong(f"{self.where} has an unknown member `{next(iter(self._left))[:80]}`")


def read_request(data: bytes, *, limits: PolicyLimits = POLICY_LIMITS) -> Request:
    """Read a request. Raises `MalformedError` (`xacml.json`, `xacml.type`, `xacml.value`), `LimitError`."""
    whole = _Object(read_json(data, limits), "the document")
    request = _Object(whole.value("Request"), "the request")
    whole.done()
    found = Request(
        tuple(_categories(request, limits)),
        bool(request.take("ReturnPolicyIdList", bool)),
        bool(request.take("CombinedDecision", bool)),
        tuple(_references(request)),
        request.take("XPathVersion", str) or "",
    )
    request.done()
    if not found.categories:
        raise _wrong("the request has no category")
    return found


def _categories(request: _Object, limits: PolicyLimits) -> Iterator[Attributes]:
    named = "Category" in request
    listed = request.items("Category")
    if named and not listed:
        raise _wrong("the request has no category")
    for one in listed:
        yield _category(_Object(one, "a category"), None, limits)
    for short, category in _SHORT.items():
        if short in request:
            value = request.value(short)
            for one in _several(value):
                yield _category(_Object(one, f"`{short}`"), category, limits)


def _category(found: _Object, category: str | None, limits: PolicyLimits) -> Attributes:
    given = found.take("CategoryId", str, needed=category is None)
    name = category or _SHORT.get(str(given), str(given))
    content = found.take("Content", str)
    attributes = tuple(_attribute(_Object(one, "an attribute")) for one in found.items("Attribute"))
    made = Attributes(name, attributes, None if content is None else _content(content, limits), found.take("Id", str))
    found.done()
    return made


def _content(text: str, limits: PolicyLimits) -> Content:
    """Read a document: plain XML, or XML in base64 (section 4.2.3); the first character shows which."""
    data = text.encode("utf-8", "surrogatepass")
    if not text.lstrip().startswith("<"):
        try:
            data = base64.b64decode("".join(text.split()), validate=True)
        except ValueError:
            data = b""
        if not data:
            raise _wrong("`Content` is neither XML nor XML in base64")
    # lxml and elementpath belong to an extra, which requests without contents do not need.
    from penstock.codec.xml_text import XmlContent, read_xml  # noqa: PLC0415

    return XmlContent(read_xml(data, limits=limits), limits)


def _attribute(found: _Object) -> RequestAttribute:
    of_type = found.take("DataType", str)
    values = _values(found.value("Value"), None if of_type is None else _type(of_type))
    name = found.take("AttributeId", str, needed=True)
    made = RequestAttribute(name, values, found.take("Issuer", str), bool(found.take("IncludeInResult", bool)))
    found.done()
    return made


def _type(name: str) -> DataType:
    return OBJECT if name == OBJECT.id else data_type(name)


def _values(value: Json, of_type: DataType | None) -> tuple[tuple[DataType, Value], ...]:
    values = _several(value)
    if any(isinstance(one, bool) for one in values) and not all(isinstance(one, bool) for one in values):
        raise _wrong("values are of different kinds")
    # Whole numbers among others are doubles too (section 3.3.1).
    broken = any(isinstance(one, float) for one in values)
    return tuple(_value(one, of_type, broken=broken) for one in values)


def _value(value: Json, of_type: DataType | None, *, broken: bool) -> tuple[DataType, Value]:
    match value:
        case dict():
            return _structured(value, of_type)
        case bool():
            found: tuple[DataType, Value] = (BOOLEAN, value)
        case int():
            found = (DOUBLE, float(value)) if broken else (INTEGER, value)
        case float():
            found = (DOUBLE, value)
        case str():
            return (STRING, value) if of_type is None else (of_type, read_value(value, of_type))
        case _:
            raise _wrong("null and lists are not values")
    if of_type is None or of_type is found[0]:
        return found
    if of_type is DOUBLE and found[0] is INTEGER:
        return DOUBLE, float(found[1])
    raise _wrong(f"a value is not a valid {of_type}")


def _structured(value: Mapping[str, Json], of_type: DataType | None) -> tuple[DataType, Value]:
    if of_type is not XPATH:
        if of_type not in (None, OBJECT):
            raise _wrong(f"an object is not a valid {of_type}")
        return OBJECT, JsonObject(json.dumps(value, sort_keys=True, separators=(",", ":")))
    path = _Object(dict(value), "a path")
    prefixes = []
    for one in path.items("Namespaces"):
        space = _Object(one, "a namespace")
        prefixes.append((space.take("Prefix", str) or "", space.take("Namespace", str, needed=True)))
        space.done()
    found = XPathExpression(
        path.take("XPath", str, needed=True),
        _SHORT.get(category := path.take("XPathCategory", str, needed=True), category),
        tuple(sorted(prefixes)),
    )
    path.done()
    return XPATH, found


def _references(request: _Object) -> Iterator[tuple[str, ...]]:
    several = request.take("MultiRequests", dict)
    if several is None:
        return
    found = _Object(several, "`MultiRequests`")
    for one in found.items("RequestReference", needed=True):
        reference = _Object(one, "a reference")
        names = reference.items("ReferenceId", needed=True)
        reference.done()
        if not all(isinstance(name, str) for name in names):
            raise _wrong("a reference must name ids")
        yield tuple(map(str, names))
    found.done()


# --- responses -------------------------------------------------------------------------------------------------------


def read_response(data: bytes, *, limits: PolicyLimits = POLICY_LIMITS) -> Response:
    """Read a response. Raises as `read_request`."""
    whole = _Object(read_json(data, limits), "the document")
    results = whole.items("Response", needed=True)
    whole.done()
    if not results:
        raise _wrong("the response has no result")
    return Response([_result(_Object(one, "a result"), limits) for one in results])


def _result(found: _Object, limits: PolicyLimits) -> Result:
    decision = found.take("Decision", str, needed=True)
    if decision not in _DECISIONS:
        raise _wrong("a result has no decision")
    status = found.take("Status", dict)
    category = found.value("Category") if "Category" in found else []
    made = Result(
        _DECISIONS[decision],
        DecisionStatus() if status is None else _status(_Object(status, "the status")),
        tuple(_duties(found, "Obligations")),
        tuple(_duties(found, "AssociatedAdvice")),
        tuple(
            _category(_Object(one, "a category"), None, limits)
            for one in (category if isinstance(category, list) else [category])
        ),
        tuple(_policies(found)),
    )
    found.done()
    return made


def _several(value: Json) -> list[Json]:
    return value if isinstance(value, list) else [value]


def _status(found: _Object) -> DecisionStatus:
    code = OK
    # Nested codes are refinements; the outer one counts.
    inner = found.take("StatusCode", dict)
    if inner is not None:
        code = _code(_Object(inner, "the status code"))
    message = found.take("StatusMessage", str) or ""
    missing = [_missing(_Object(one, "a missing attribute")) for one in found.items("StatusDetail")]
    found.done()
    return DecisionStatus(code, message, tuple(missing))


def _code(found: _Object) -> str:
    value = found.take("Value", str) or OK
    inner = found.take("StatusCode", dict)
    if inner is not None:
        _code(_Object(inner, "the status code"))
    found.done()
    return str(value)


def _missing(found: _Object) -> MissingAttribute:
    made = MissingAttribute(
        found.take("Category", str, needed=True),
        found.take("AttributeId", str, needed=True),
        data_type(found.take("DataType", str, needed=True)),
        found.take("Issuer", str),
    )
    found.done()
    return made


def _duties(result: _Object, name: str) -> Iterator[Obligation]:
    if name not in result:
        return
    listed = result.items(name)
    if not listed:
        raise _wrong(f"`{name}` is empty")
    for one in listed:
        duty = _Object(one, "an obligation")
        assigned = tuple(
            value for part in duty.items("AttributeAssignment") for value in _assigned(_Object(part, "an assignment"))
        )
        yield Obligation(duty.take("Id", str, needed=True), assigned)
        duty.done()


def _assigned(found: _Object) -> Iterator[Assigned]:
    of_type = found.take("DataType", str)
    values = _values(found.value("Value"), None if of_type is None else _type(of_type))
    name, category = found.take("AttributeId", str, needed=True), found.take("Category", str)
    issuer = found.take("Issuer", str)
    found.done()
    for kind, value in values:
        yield Assigned(name, kind, value, category, issuer)


def _policies(result: _Object) -> Iterator[PolicyId]:
    listed = result.take("PolicyIdentifierList", dict)
    if listed is None:
        return
    found = _Object(listed, "`PolicyIdentifierList`")
    for name, is_set in (("PolicyIdReference", False), ("PolicySetIdReference", True)):
        for one in found.items(name):
            policy = _Object(one, "a policy")
            yield PolicyId(policy.take("Id", str, needed=True), policy.take("Version", str) or "", is_set)
            policy.done()
    found.done()


# ----------------------------------------------------------------------------------------------------------------------
# Write requests and responses so that reading them gives the same ones.


def write_request(request: Request) -> Json:
    """Return a request as plain data; contents are XML in it."""
    found: dict[str, Json] = {"Category": [_write_category(one) for one in request.categories]}
    if request.return_policy_ids:
        found["ReturnPolicyIdList"] = True
    if request.combined_decision:
        found["CombinedDecision"] = True
    if request.xpath_version:
        found["XPathVersion"] = request.xpath_version
    if request.references:
        found["MultiRequests"] = {"RequestReference": [{"ReferenceId": [*names]} for names in request.references]}
    return {"Request": found}


def write_response(response: Response) -> Json:
    """Return a response as plain data."""
    return {"Response": [_write_result(result) for result in response.results]}


def _write_result(result: Result) -> Json:
    status: dict[str, Json] = {"StatusCode": {"Value": result.status.code}}
    if result.status.message:
        status["StatusMessage"] = result.status.message
    if result.status.missing:
        status["StatusDetail"] = [
            _some({"Category": one.category, "AttributeId": one.id, "DataType": one.of.id, "Issuer": one.issuer})
            for one in result.status.missing
        ]
    found: dict[str, Json] = {"Decision": result.decision.plain, "Status": status}
    for name, duties in (("Obligations", result.obligations), ("AssociatedAdvice", result.advice)):
        if duties:
            found[name] = [_write_duty(duty) for duty in duties]
    if result.attributes:
        found["Category"] = [_write_category(one) for one in result.attributes]
    if result.policies:
        listed: dict[str, Json] = {}
        for name, is_set in (("PolicyIdReference", False), ("PolicySetIdReference", True)):
            those: list[Json] = [
                {"Id": one.id, "Version": one.version} for one in result.policies if one.is_set is is_set
            ]
            if those:
                listed[name] = those
        found["PolicyIdentifierList"] = listed
    return found


def _write_duty(duty: Obligation) -> Json:
    assigned: list[Json] = [
        _some(
            {"AttributeId": one.id, "Category": one.category, "Issuer": one.issuer, **_write_value(one.of, one.value)}
        )
        for one in duty.assigned
    ]
    return {"Id": duty.id, **({"AttributeAssignment": assigned} if assigned else {})}


def _write_category(category: Attributes) -> Json:
    listed: list[Json] = [part for one in category.attributes for part in _write_attribute(one)]
    content = None if category.content is None else category.content.written().decode()
    return _some({"CategoryId": category.category, "Id": category.id, "Content": content, "Attribute": listed})


def _write_attribute(attribute: RequestAttribute) -> Iterator[Json]:
    """Write an attribute: one entry for each type that its values have."""
    kinds: list[DataType | None] = [*dict.fromkeys(of_type for of_type, _ in attribute.values)]
    for kind in kinds or [None]:
        values: list[Json] = [
            _write_value(of_type, value)["Value"] for of_type, value in attribute.values if of_type is kind
        ]
        entry: dict[str, Json | None] = {"AttributeId": attribute.id, "Issuer": attribute.issuer, "Value": values}
        if kind is not None:
            entry["DataType"] = kind.id
        if attribute.include_in_result:
            entry["IncludeInResult"] = True
        yield _some(entry)


def _write_value(of_type: DataType, value: Value) -> dict[str, Json]:
    written: Json
    if of_type is XPATH:
        spaces: list[Json] = [{"Prefix": prefix, "Namespace": uri} for prefix, uri in value.prefixes]
        written = {"XPath": value.path, "XPathCategory": value.category, **({"Namespaces": spaces} if spaces else {})}
    elif of_type is OBJECT:
        written = json.loads(value.text)
    elif of_type in (BOOLEAN, INTEGER) or (of_type is DOUBLE and math.isfinite(value)):
        written = value
    else:
        written = of_type.write(value)
    return {"Value": written, "DataType": of_type.id}


def _some(facts: Mapping[str, Any]) -> dict[str, Json]:
    return {name: value for name, value in facts.items() if value is not None}
