"""Policies written in JSON, so that they are read back as they were."""

import json
from collections.abc import Sequence

from penstock.policy.datatypes import STRING, XPATH, DataType, Value, XPathExpression
from penstock.policy.expressions import (
    Apply,
    ApplyEach,
    ApplyPath,
    Designator,
    Expression,
    Literal,
    Reference,
    Selector,
)
from penstock.policy.json_policies import POLICIES
from penstock.policy.json_requests import Json
from penstock.policy.policies import Duty, Match, Policy, PolicyReference, Root, Rule
from penstock.policy.text_written import in_order
from penstock.policy.xml_written import function_id


def write_json_policy(root: Root) -> bytes:
    """Return the document of a policy or a policy set."""
    return json.dumps({"policy": _root(root)}, indent=2, ensure_ascii=False).encode() + b"\n"


def _root(root: Root) -> dict[str, Json]:
    found: dict[str, Json] = {"id": root.id, "version": root.version, **_common(root), "combinerId": root.combining}
    if root.issuer is not None:
        found["issuer"] = root.issuer
    arguments: list[Json] = []
    if isinstance(root, Policy):
        names = in_order(root.variables)
        found |= {"vars": [{"id": name, **_written(root.variables[name])} for name in names]} if names else {}
        arguments += [{"rule": _rule(rule)} for rule in root.rules]
    else:
        arguments += map(_member, root.members)
        if not arguments:
            found["combines"] = POLICIES
    return {**found, "combinerArgs": arguments}


def _common(part: Root | Rule) -> dict[str, Json]:
    found: dict[str, Json] = {"desc": part.description} if part.description else {}
    if part.target:
        found["target"] = [[[_matched(one) for one in every] for every in either] for either in part.target]
    duties: list[Json] = [_duty(one, required=True) for one in part.duties.obligations]
    duties += [_duty(one, required=False) for one in part.duties.advice]
    return {**found, "pepActionExprs": duties} if duties else found


def _rule(rule: Rule) -> dict[str, Json]:
    condition: dict[str, Json] = {} if rule.condition is None else {"condition": _written(rule.condition)}
    return {"id": rule.id, "effect": rule.effect.value, **_common(rule), **condition}


def _member(one: Root | PolicyReference) -> Json:
    if not isinstance(one, PolicyReference):
        return {"policy": _root(one)}
    said = {"id": one.id, "version": one.version, "earliestVersion": one.earliest, "latestVersion": one.latest}
    found: Json = {key: value for key, value in said.items() if value is not None}
    return {"policySetRef" if one.to_set else "policyRef": found}


def _matched(match: Match) -> Json:
    value = _constant(match.value, XPATH) if match.of is XPATH else match.of.write(match.value)
    return {"matchFunc": match.function.id, "matchedValue": value, **_written(match.attribute)}


def _duty(duty: Duty, *, required: bool) -> Json:
    said: list[Json] = []
    for one in duty.assignments:
        about: dict[str, Json] = {"attrId": one.id, "expr": _written(one.expression)}
        about |= {} if one.category is None else {"category": one.category}
        said.append(about | ({} if one.issuer is None else {"issuer": one.issuer}))
    return {"id": duty.id, "appliesTo": duty.on.value, "required": required, "attrAssignmentExprs": said}


def _written(expression: Expression) -> dict[str, Json]:
    match expression:
        case Literal(value, of_type):
            return {"const": _constant(value, of_type)}
        case Designator(category, name, of_type, issuer, must):
            said: dict[str, Json] = {
                "category": category,
                "attrId": name,
                "dataType": of_type.id,
                "mustBePresent": must,
            }
            return {"attrDesignator": said if issuer is None else {**said, "issuer": issuer}}
        case Reference(name):
            return {"varRef": name}
        case Apply(_, arguments) | ApplyPath(_, arguments):
            return _called(function_id(expression), [], arguments)
        case ApplyEach(_, function, arguments):
            return _called(function_id(expression), [{"func": function.id}], arguments)
        case Selector():
            return {"attrSelector": _selector(expression)}


def _constant(value: Value, of_type: DataType) -> Json:
    if of_type is STRING:
        return str(value)
    said: dict[str, Json] = {"dataType": of_type.id, "value": of_type.write(value)}
    if isinstance(value, XPathExpression):
        said |= {"xpathCategory": value.category, **_path(value.prefixes, value.version)}
    return said


def _selector(selector: Selector) -> Json:
    said: dict[str, Json] = {
        "category": selector.category,
        "path": selector.path,
        "dataType": selector.of.id,
        "mustBePresent": selector.must_be_present,
        **_path(selector.prefixes, selector.version),
    }
    return said if selector.context is None else {**said, "contextSelectorId": selector.context}


def _path(prefixes: Sequence[tuple[str, str]], version: str) -> dict[str, Json]:
    found: dict[str, Json] = {"namespaces": dict(prefixes)} if prefixes else {}
    return {**found, "xpathVersion": version} if version else found


def _called(name: str, first: list[Json], arguments: tuple[Expression, ...]) -> dict[str, Json]:
    return {"funcCall": {"funcId": name, "argExprs": [*first, *map(_written, arguments)]}}
