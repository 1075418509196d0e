"""Policies in JSON, in the form that AuthzForce has for them: what they combine are rules, policies and references.

A rule beside policies becomes a policy of its own, and an algorithm for rules the one of that name for policies: the
standard keeps them apart. Not in this form: paths, references to policy sets, issuers of policies.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from penstock.errors import LimitError, MalformedError
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.policy.combining import policy_algorithm, rule_algorithm
from penstock.policy.datatypes import BOOLEAN, STRING, XPATH, DataType, data_type, read_value
from penstock.policy.expressions import (
    Apply,
    ApplyEach,
    ApplyPath,
    Designator,
    Expression,
    Literal,
    Reference,
    Selector,
    apply,
    function_of,
)
from penstock.policy.json_requests import Json, read_json
from penstock.policy.policies import (
    Assignment,
    Duties,
    Duty,
    Effect,
    Match,
    Policy,
    PolicyReference,
    PolicySet,
    Root,
    Rule,
    Target,
)
from penstock.policy.signatures import Function
from penstock.policy.text_written import in_order
from penstock.policy.xml_written import function_id

_FIRST: Final = "urn:oasis:names:tc:xacml:1.0:rule-combining-algorithm:first-applicable"
_RULES, _POLICIES = ":rule-combining-algorithm:", ":policy-combining-algorithm:"
_COMMON: Final = ("id", "version", "desc", "target", "pepActionExprs")


def read_json_policy(data: bytes, *, limits: Limits = DEFAULT_LIMITS) -> Root:
    """Read a policy or a policy set. Raises `MalformedError` (`xacml.json` and as reading XML), `LimitError`."""
    return _Reader(limits).root(_object(read_json(data, limits), "the document", ("policy",)).get("policy"), 1)


def write_json_policy(root: Root) -> bytes:
    """Return the document of a policy. Raises `MalformedError` (`xacml.json`) for what this form does not have."""
    return json.dumps({"policy": _root(root)}, indent=2, ensure_ascii=False).encode() + b"\n"


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


def _effect(value: Json) -> Effect:
    if not isinstance(value, str) or value not in [*Effect]:
        raise _wrong("an effect is Permit or Deny")
    return Effect(value)


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
        found = _object(value, "a policy", (*_COMMON, "vars", "combinerId", "combinerArgs"))
        name, version = _text(found.get("id"), "`id`"), _maybe(found, "version") or "1.0"
        combining, description = _text(found.get("combinerId"), "`combinerId`"), _maybe(found, "desc") or ""
        before, self.variables = self.variables, {}
        for one in _list(found.get("vars", []), "`vars`"):
            self._variable(one)
        arguments = [self._argument(one, depth) for one in _list(found.get("combinerArgs", []), "`combinerArgs`")]
        target, duties, variables = self._target(found), self._duties(found), MappingProxyType(self.variables)
        self.variables = before
        rules = tuple(one for one in arguments if isinstance(one, Rule))
        if len(rules) == len(arguments) and (rules or _POLICIES not in combining):
            combining = combining.replace(_POLICIES, _RULES)
            rule_algorithm(combining)
            return Policy(name, version, combining, rules, target, variables, duties, None, description)
        if variables:
            raise _wrong("a policy of policies has no variables")
        combining = combining.replace(_RULES, _POLICIES)
        policy_algorithm(combining)
        members = tuple(Policy(one.id, "1.0", _FIRST, (one,)) if isinstance(one, Rule) else one for one in arguments)
        return PolicySet(name, version, combining, members, target, duties, None, description)

    def _argument(self, value: Json, depth: int) -> Rule | Root | PolicyReference:
        found = _object(value, "what is combined", ("rule", "policy", "policyRef"))
        if len(found) != 1:
            raise _wrong("what is combined is one of `rule`, `policy` and `policyRef`")
        if "rule" in found:
            return self._rule(found["rule"])
        if "policy" in found:
            return self.root(found["policy"], depth + 1)
        said = _object(found["policyRef"], "`policyRef`", ("id", "version", "earliestVersion", "latestVersion"))
        versions = [_maybe(said, name) for name in ("version", "earliestVersion", "latestVersion")]
        return PolicyReference(_text(said.get("id"), "`id`"), False, *versions)  # three follow it

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
        said = _object(value, "an expression", ("const", "attrDesignator", "varRef", "func", "funcCall"))
        if len(said) != 1:
            raise _wrong("an expression is one thing")
        ((kind, inside),) = said.items()
        match kind:
            case "const":
                return _constant(inside)
            case "attrDesignator":
                return _designator(inside)
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
    said = _object(value, "a match", ("matchFunc", "matchedValue", "attrDesignator"))
    function = function_of(_text(said.get("matchFunc"), "`matchFunc`"))
    attribute = _designator(said.get("attrDesignator"))
    wanted = function.takes[0]
    if (
        not isinstance(wanted, DataType)
        or not function.accepts((wanted, attribute.of))
        or function.gives is not BOOLEAN
    ):
        raise MalformedError("xacml.arguments", f"`{function.name}` does not match {attribute.of}")
    text = _text(said.get("matchedValue"), "`matchedValue`")
    return Match(function, read_value(text, wanted), wanted, attribute)


def _designator(value: Json) -> Designator:
    said = _object(value, "`attrDesignator`", ("category", "attrId", "dataType", "issuer", "mustBePresent"))
    must = said.get("mustBePresent")
    if not isinstance(must, bool):
        raise _wrong("`mustBePresent` is true or false")
    category, name = _text(said.get("category"), "`category`"), _text(said.get("attrId"), "`attrId`")
    return Designator(
        category, name, data_type(_text(said.get("dataType"), "`dataType`")), _maybe(said, "issuer"), must
    )


def _constant(value: Json) -> Literal:
    if isinstance(value, str):
        return Literal(value, STRING)
    said = _object(value, "`const`", ("dataType", "value"))
    of_type = data_type(_text(said.get("dataType"), "`dataType`"))
    if of_type is XPATH:
        raise _wrong("there are no paths in this form")
    return Literal(read_value(_text(said.get("value"), "`value`"), of_type), of_type)


# --- writing ---------------------------------------------------------------------------------------------------------


def _root(root: Root) -> dict[str, Json]:
    if root.issuer is not None:
        raise _wrong(f"`{root.id[:120]}` has an issuer, which this form does not have")
    found: dict[str, Json] = {"id": root.id, "version": root.version, **_common(root), "combinerId": root.combining}
    arguments: list[Json] = []
    if isinstance(root, Policy):
        names = in_order(root.variables)
        found |= {"vars": [{"id": name, **_written(root.variables[name])} for name in names]} if names else {}
        arguments += [{"rule": _rule(rule)} for rule in root.rules]
    else:
        arguments += [
            {"policyRef": _reference(one)} if isinstance(one, PolicyReference) else {"policy": _root(one)}
            for one in root.members
        ]
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


def _reference(one: PolicyReference) -> dict[str, Json]:
    if one.to_set:
        raise _wrong(f"`{one.id[:120]}` is a policy set, to which this form does not refer")
    said = {"id": one.id, "version": one.version, "earliestVersion": one.earliest, "latestVersion": one.latest}
    return {key: value for key, value in said.items() if value is not None}


def _matched(match: Match) -> Json:
    if match.of is XPATH:
        raise _wrong("there are no paths in this form")
    value = match.of.write(match.value)
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
        case Literal(value, of_type) if of_type is not XPATH:
            return {"const": value if of_type is STRING else {"dataType": of_type.id, "value": of_type.write(value)}}
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
        case Literal() | Selector():
            raise _wrong("there are no paths in this form")


def _called(name: str, first: list[Json], arguments: tuple[Expression, ...]) -> dict[str, Json]:
    return {"funcCall": {"funcId": name, "argExprs": [*first, *map(_written, arguments)]}}
