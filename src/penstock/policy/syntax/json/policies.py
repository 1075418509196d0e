"""Policies in JSON, in the form that AuthzForce has for them: what they combine are rules, policies and references.

A rule beside policies becomes a policy of its own, and an algorithm for rules the one of that name for policies: the
standard keeps them apart. What that form does not have, ours has besides: `attrSelector` and constants that are paths,
`policySetRef`, the `issuer` of a policy, and `combines` where nothing else says that a policy is a set of policies.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from penstock.errors import LimitError, MalformedError
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.policy.combining.registry import policy_algorithm, rule_algorithm
from penstock.policy.language.datatypes import (
    BOOLEAN,
    STRING,
    XPATH,
    DataType,
    Function,
    Value,
    XPathExpression,
    data_type,
    read_value,
)
from penstock.policy.language.expressions import (
    Apply,
    ApplyEach,
    ApplyPath,
    ContentSelector,
    Designator,
    Expression,
    PolicyLiteral,
    Reference,
    apply,
    function_of,
)
from penstock.policy.language.policies import (
    Assignment,
    Duties,
    Duty,
    Match,
    Policy,
    PolicyReference,
    PolicySet,
    Root,
    Rule,
    RuleEffect,
    Target,
)
from penstock.policy.syntax.json.requests import Json, read_json
from penstock.policy.syntax.text.policy_writer import in_order
from penstock.policy.syntax.xml.policy_writer import function_id

_FIRST: Final = "urn:oasis:names:tc:xacml:1.0:rule-combining-algorithm:first-applicable"
_RULES, _POLICIES = ":rule-combining-algorithm:", ":policy-combining-algorithm:"
_COMMON: Final = ("id", "version", "desc", "target", "pepActionExprs")
_ATTRIBUTES: Final = ("attrDesignator", "attrSelector")
_PATHS: Final = ("namespaces", "xpathVersion")
POLICIES: Final = "policies"


def read_json_policy(data: bytes, *, limits: Limits = DEFAULT_LIMITS) -> Root:
    """Read a policy or a policy set. Raises `MalformedError` (`xacml.json` and as reading XML), `LimitError`."""
    return _Reader(limits).root(_object(read_json(data, limits), "the document", ("policy",)).get("policy"), 1)


def _wrong(message: str) -> MalformedError:
    return MalformedError("xacml.json", message)


# --- reading ---------------------------------------------------------------------------------------------------------


def _object(value: Json, what: str, known: Sequence[str]) -> Mapping[str, Json]:
    if not isinstance(value, dict):
        raise _wrong(f"{what} is no object")
    for name in value:
        if name not in known:
            raise _wrong(f"{what} has a member that nobody knows: `{name[:80]}`")
    return value


def _list(value: Json, what: str) -> list[Json]:
    if not isinstance(value, list):
        raise _wrong(f"{what} is no list")
    return [*value]


def _text(value: Json, what: str) -> str:
    if not isinstance(value, str):
        raise _wrong(f"{what} is no text")
    return value


def _maybe(found: Mapping[str, Json], name: str) -> str | None:
    return _text(found[name], f"`{name}`") if name in found else None


def _effect(value: Json) -> RuleEffect:
    if not isinstance(value, str) or value not in [*RuleEffect]:
        raise _wrong("an effect is Permit or Deny")
    return RuleEffect(value)


@dataclass(slots=True)
class _Reader:
    """Reads from the outside to the inside, and knows the variables of the policy that it is in."""

    limits: Limits
    variables: dict[str, Expression] = field(default_factory=dict)

    def _check(self, depth: int) -> None:
        if depth > self.limits.policy_depth:
            raise LimitError("xacml.limit", f"it is nested more than {self.limits.policy_depth} deep")

    def root(self, value: Json, depth: int) -> Root:
        self._check(depth)
        found = _object(value, "a policy", (*_COMMON, "vars", "combinerId", "combinerArgs", "issuer", "combines"))
        name, version = _text(found.get("id"), "`id`"), _maybe(found, "version") or "1.0"
        combining, description = _text(found.get("combinerId"), "`combinerId`"), _maybe(found, "desc") or ""
        issuer, combines = _maybe(found, "issuer"), _maybe(found, "combines")
        before, self.variables = self.variables, {}
        for one in _list(found.get("vars", []), "`vars`"):
            self._variable(one)
        arguments = [self._argument(one, depth) for one in _list(found.get("combinerArgs", []), "`combinerArgs`")]
        target, duties, variables = self._target(found), self._duties(found), MappingProxyType(self.variables)
        self.variables = before
        rules = tuple(one for one in arguments if isinstance(one, Rule))
        if combines not in (None, POLICIES):
            raise _wrong(f"`combines` is `{POLICIES}`, or is not said")
        if combines is None and len(rules) == len(arguments) and (rules or _POLICIES not in combining):
            combining = combining.replace(_POLICIES, _RULES)
            rule_algorithm(combining)
            return Policy(name, version, combining, rules, target, variables, duties, issuer, description)
        if variables:
            raise _wrong("a policy of policies has no variables")
        combining = combining.replace(_RULES, _POLICIES)
        policy_algorithm(combining)
        members = tuple(Policy(one.id, "1.0", _FIRST, (one,)) if isinstance(one, Rule) else one for one in arguments)
        return PolicySet(name, version, combining, members, target, duties, issuer, description)

    def _argument(self, value: Json, depth: int) -> Rule | Root | PolicyReference:
        found = _object(value, "what is combined", ("rule", "policy", "policyRef", "policySetRef"))
        if len(found) != 1:
            raise _wrong("what is combined is one of `rule`, `policy`, `policyRef` and `policySetRef`")
        if "rule" in found:
            return self._rule(found["rule"])
        if "policy" in found:
            return self.root(found["policy"], depth + 1)
        ((kind, inside),) = found.items()
        said = _object(inside, f"`{kind}`", ("id", "version", "earliestVersion", "latestVersion"))
        versions = [_maybe(said, name) for name in ("version", "earliestVersion", "latestVersion")]
        return PolicyReference(_text(said.get("id"), "`id`"), kind == "policySetRef", *versions)

    def _rule(self, value: Json) -> Rule:
        found = _object(value, "a rule", (*_COMMON, "effect", "condition"))
        condition = self._expression(found["condition"], 1) if "condition" in found else None
        if condition is not None and condition.gives is not BOOLEAN:
            raise MalformedError("xacml.arguments", f"a condition is true or false, and no {condition.gives}")
        name, effect = _text(found.get("id"), "`id`"), _effect(found.get("effect"))
        return Rule(name, effect, self._target(found), condition, self._duties(found), _maybe(found, "desc") or "")

    def _variable(self, value: Json) -> None:
        if not isinstance(value, dict):
            raise _wrong("a variable is an object")
        name = _text(value.get("id"), "`id`")
        if name in self.variables:
            raise MalformedError("xacml.variable", "two variables have the same name")
        self.variables[name] = self._expression({key: one for key, one in value.items() if key != "id"}, 1)

    def _target(self, found: Mapping[str, Json]) -> Target:
        return tuple(
            tuple(tuple(_match(one) for one in _some(every)) for every in _some(either))
            for either in _list(found.get("target", []), "`target`")
        )

    def _duties(self, found: Mapping[str, Json]) -> Duties:
        obligations: list[Duty] = []
        advice: list[Duty] = []
        for one in _list(found.get("pepActionExprs", []), "`pepActionExprs`"):
            said = _object(one, "an action", ("id", "appliesTo", "required", "attrAssignmentExprs"))
            listed = _list(said.get("attrAssignmentExprs", []), "`attrAssignmentExprs`")
            duty = Duty(
                _text(said.get("id"), "`id`"), _effect(said.get("appliesTo")), tuple(map(self._assigned, listed))
            )
            if not isinstance(said.get("required"), bool):
                raise _wrong("`required` is true or false")
            (obligations if said["required"] else advice).append(duty)
        return Duties(tuple(obligations), tuple(advice))

    def _assigned(self, value: Json) -> Assignment:
        said = _object(value, "an assignment", ("attrId", "category", "issuer", "expr"))
        expression = self._expression(said.get("expr"), 1)
        return Assignment(
            _text(said.get("attrId"), "`attrId`"), expression, _maybe(said, "category"), _maybe(said, "issuer")
        )

    def _expression(self, value: Json, depth: int) -> Expression:
        found = self._operand(value, depth)
        if isinstance(found, Function):
            raise _wrong("a function is no value")
        return found

    def _operand(self, value: Json, depth: int) -> Expression | Function:
        self._check(depth)
        said = _object(value, "an expression", ("const", *_ATTRIBUTES, "varRef", "func", "funcCall"))
        if len(said) != 1:
            raise _wrong("an expression is one thing")
        ((kind, inside),) = said.items()
        match kind:
            case "const":
                return _constant(inside)
            case "attrDesignator" | "attrSelector":
                return _attribute(said)
            case "varRef":
                name = _text(inside, "`varRef`")
                if name not in self.variables:
                    raise MalformedError("xacml.variable", f"no variable is called `{name[:80]}` before it is used")
                return Reference(name, self.variables[name].gives)
            case "func":
                return function_of(_text(inside, "`func`"))
        call = _object(inside, "`funcCall`", ("desc", "funcId", "argExprs"))
        arguments = [self._operand(one, depth + 1) for one in _list(call.get("argExprs", []), "`argExprs`")]
        return apply(_text(call.get("funcId"), "`funcId`"), arguments)


def _some(value: Json) -> list[Json]:
    found = _list(value, "a part of a target")
    if not found:
        raise _wrong("a part of a target is empty")
    return found


def _match(value: Json) -> Match:
    said = _object(value, "a match", ("matchFunc", "matchedValue", *_ATTRIBUTES))
    function = function_of(_text(said.get("matchFunc"), "`matchFunc`"))
    attribute = _attribute(said)
    wanted = function.takes[0]
    if (
        not isinstance(wanted, DataType)
        or not function.accepts((wanted, attribute.of))
        or function.gives is not BOOLEAN
    ):
        raise MalformedError("xacml.arguments", f"`{function.name}` does not match {attribute.of}")
    matched = said.get("matchedValue")
    if wanted is XPATH:
        return Match(function, _path(matched), wanted, attribute)
    return Match(function, read_value(_text(matched, "`matchedValue`"), wanted), wanted, attribute)


def _attribute(said: Mapping[str, Json]) -> Designator | ContentSelector:
    """Read an attribute that is looked up, under whichever of its names it stands."""
    if ("attrSelector" in said) is ("attrDesignator" in said):
        raise _wrong("an attribute is one of `attrDesignator` and `attrSelector`")
    if "attrSelector" in said:
        return _selector(said["attrSelector"])
    found = _object(
        said["attrDesignator"], "`attrDesignator`", ("category", "attrId", "dataType", "issuer", "mustBePresent")
    )
    return Designator(
        _text(found.get("category"), "`category`"),
        _text(found.get("attrId"), "`attrId`"),
        data_type(_text(found.get("dataType"), "`dataType`")),
        _maybe(found, "issuer"),
        _must(found),
    )


def _selector(value: Json) -> ContentSelector:
    known = ("category", "path", "dataType", "mustBePresent", "contextSelectorId", *_PATHS)
    said = _object(value, "`attrSelector`", known)
    return ContentSelector(
        _text(said.get("category"), "`category`"),
        _text(said.get("path"), "`path`").strip(),
        data_type(_text(said.get("dataType"), "`dataType`")),
        _must(said),
        _maybe(said, "contextSelectorId"),
        _prefixes(said),
        _maybe(said, "xpathVersion") or "",
    )


def _must(said: Mapping[str, Json]) -> bool:
    must = said.get("mustBePresent")
    if not isinstance(must, bool):
        raise _wrong("`mustBePresent` is true or false")
    return must


def _prefixes(said: Mapping[str, Json]) -> tuple[tuple[str, str], ...]:
    found = said.get("namespaces", {})
    if not isinstance(found, dict):
        raise _wrong("`namespaces` is no object")
    return tuple(sorted((prefix, _text(uri, "a namespace")) for prefix, uri in found.items()))


def _constant(value: Json) -> PolicyLiteral:
    if isinstance(value, str):
        return PolicyLiteral(value, STRING)
    if isinstance(value, dict) and value.get("dataType") in (XPATH.id, XPATH.name):
        return PolicyLiteral(_path(value), XPATH)
    said = _object(value, "`const`", ("dataType", "value"))
    of_type = data_type(_text(said.get("dataType"), "`dataType`"))
    return PolicyLiteral(read_value(_text(said.get("value"), "`value`"), of_type), of_type)


def _path(value: Json) -> Value:
    said = _object(value, "a path", ("dataType", "value", "xpathCategory", *_PATHS))
    return XPathExpression(
        _text(said.get("value"), "`value`").strip(),
        _text(said.get("xpathCategory"), "`xpathCategory`"),
        _prefixes(said),
        _maybe(said, "xpathVersion") or "",
    )


# ----------------------------------------------------------------------------------------------------------------------
# Policies written in JSON, so that they are read back as they were.


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
    value = _write_constant(match.value, XPATH) if match.of is XPATH else match.of.write(match.value)
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
        case PolicyLiteral(value, of_type):
            return {"const": _write_constant(value, of_type)}
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
        case ContentSelector():
            return {"attrSelector": _write_selector(expression)}


def _write_constant(value: Value, of_type: DataType) -> Json:
    if of_type is STRING:
        return str(value)
    said: dict[str, Json] = {"dataType": of_type.id, "value": of_type.write(value)}
    if isinstance(value, XPathExpression):
        said |= {"xpathCategory": value.category, **_write_path(value.prefixes, value.version)}
    return said


def _write_selector(selector: ContentSelector) -> Json:
    said: dict[str, Json] = {
        "category": selector.category,
        "path": selector.path,
        "dataType": selector.of.id,
        "mustBePresent": selector.must_be_present,
        **_write_path(selector.prefixes, selector.version),
    }
    return said if selector.context is None else {**said, "contextSelectorId": selector.context}


def _write_path(prefixes: Sequence[tuple[str, str]], version: str) -> dict[str, Json]:
    found: dict[str, Json] = {"namespaces": dict(prefixes)} if prefixes else {}
    return {**found, "xpathVersion": version} if version else found


def _called(name: str, first: list[Json], arguments: tuple[Expression, ...]) -> dict[str, Json]:
    return {"funcCall": {"funcId": name, "argExprs": [*first, *map(_written, arguments)]}}
