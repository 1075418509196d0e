"""Requests and responses written in the JSON profile of XACML 3.0; what is written is read back as it was."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from penstock.policy.datatypes import BOOLEAN, DOUBLE, INTEGER, XPATH, DataType, Value
from penstock.policy.json_requests import OBJECT, Json
from penstock.policy.requests import Attribute, Attributes, Request
from penstock.policy.results import Response, Result, Told


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


def _write_duty(duty: Told) -> Json:
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


def _write_attribute(attribute: Attribute) -> Iterator[Json]:
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
