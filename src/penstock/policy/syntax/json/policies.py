"""Read and write policies in AuthzForce's JSON form: they combine rules, policies and references.

The standard separates rules from policies: a rule next to policies becomes a policy of its own, and an algorithm for
rules the one of the same name for policies. Additions to that form are `attrSelector` and constants that are paths,
`policySetRef`, the `issuer` of a policy, and `combines` if nothing else shows that a policy is a policy set.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import MalformedError
from penstock.policy.combining import RULE_COMBINING
from penstock.policy.language.datatypes import STRING, XPATH, DataType, Function, Value, XPathExpression, data_type
from penstock.policy.language.policies import (
    Apply,
    ApplyEach,
    ApplyPath,
    ContentSelector,
    Designator,
    Duty,
    Expression,
    Match,
    Policy,
    PolicyLiteral,
    PolicyReference,
    Reference,
    Root,
    Rule,
    RuleEffect,
    function_of,
)
from penstock.policy.limits import POLICY_LIMITS, PolicyLimits
from penstock.policy.syntax.builder import (
    ApplyNode,
    AssignmentNode,
    AttributeTerm,
    Builder,
    DefinitionNode,
    DutyNode,
    MatchNode,
    PolicyNode,
    ReferenceNode,
    RuleNode,
    TargetNode,
    Term,
    ValueNode,
    VariableNode,
    at,
    check_depth,
    placed,
)
from penstock.policy.syntax.json.requests import Json, read_json
from penstock.policy.syntax.text.policy_writer import in_order
from penstock.policy.syntax.xml.policies import function_id

_FIRST: Final = RULE_COMBINING["first-applicable"]
_RULES, _POLICIES = ":rule-combining-algorithm:", ":policy-combining-algorithm:"
_COMMON: Final = ("id", "version", "desc", "target", "pepActionExprs")
_ATTRIBUTES: Final = ("attrDesignator", "attrSelector")
_PATHS: Final = ("namespaces", "xpathVersion")
POLICIES: Final = "policies"


def read_json_policy(data: bytes, *, limits: PolicyLimits = POLICY_LIMITS) -> Root:
    """Read a policy or a policy set.

    Raises `MalformedError` (`xacml.json` and as reading XML), with the path of the error; `LimitError`.
    """
    document = _Part("", read_json(data, limits)).object("the document", ("policy",))
    return Builder(limits).root(_Reader(limits).root(document.at("policy"), 1))


# --- reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Part:
    """A value within a document, and the path to it."""

    path: str
    value: Json

    def located(self, error: MalformedError) -> MalformedError:
        """Return an error with this path; the same error if it has a path already."""
        if "path" in error.fields or not self.path:
            return error
        return placed(error, f"`{self.path}`", path=self.path)

    def wrong(self, message: str) -> MalformedError:
        return self.located(MalformedError("xacml.json", message))

    def object(self, what: str, known: Sequence[str]) -> "_Object":
        if not isinstance(self.value, dict):
            raise self.wrong(f"{what} is not an object")
        for name in self.value:
            if name not in known:
                raise self.wrong(f"{what} has a member that nobody knows: `{name[:80]}`")
        return _Object(self.path, self.value)

    def list(self, what: str) -> "list[_Part]":
        if not isinstance(self.value, list):
            raise self.wrong(f"{what} is not a list")
        return [_Part(f"{self.path}[{place}]", one) for place, one in enumerate(self.value)]

    def text(self, what: str) -> str:
        if not isinstance(self.value, str):
            raise self.wrong(f"{what} is not text")
        return self.value

    def effect(self) -> RuleEffect:
        if not isinstance(self.value, str) or self.value not in [*RuleEffect]:
            raise self.wrong("an effect is Permit or Deny")
        return RuleEffect(self.value)

    def data_type(self) -> DataType:
        name = self.text("`dataType`")
        with at(self):
            return data_type(name)


@dataclass(frozen=True, slots=True)
class _Object(_Part):
    """An object in which unknown members are errors."""

    value: dict[str, Json]

    def __contains__(self, name: str) -> bool:
        return name in self.value

    def at(self, name: str) -> _Part:
        """Return a member; null if it is missing."""
        return _Part(f"{self.path}.{name}" if self.path else name, self.value.get(name))

    def said(self, name: str) -> str:
        return self.at(name).text(f"`{name}`")

    def maybe(self, name: str) -> str | None:
        return self.said(name) if name in self else None

    def listed(self, name: str) -> list[_Part]:
        return self.at(name).list(f"`{name}`") if name in self else []

    def flag(self, name: str) -> bool:
        found = self.value.get(name)
        if not isinstance(found, bool):
            raise self.wrong(f"`{name}` is true or false")
        return found


@dataclass(slots=True)
class _Reader:
    """Parses a document from the outside to the inside into nodes."""

    limits: PolicyLimits
    #: variables of the enclosing policy that are already defined
    variables: set[str] = field(default_factory=set)

    def root(self, part: _Part, depth: int) -> PolicyNode:
        check_depth(depth, self.limits)
        found = part.object("a policy", (*_COMMON, "vars", "combinerId", "combinerArgs", "issuer", "combines"))
        combining, combines = found.said("combinerId"), found.maybe("combines")
        before, self.variables = self.variables, set()
        definitions = tuple(map(self._definition, found.listed("vars")))
        arguments = [self._argument(one, depth) for one in found.listed("combinerArgs")]
        target, duties = _target(found), self._duties(found)
        self.variables = before
        rules = tuple(one for one in arguments if isinstance(one, RuleNode))
        if combines not in (None, POLICIES):
            raise found.wrong(f"`combines` is `{POLICIES}`, or is not said")
        plain = combines is None and len(rules) == len(arguments) and (rules or _POLICIES not in combining)
        if not plain and definitions:
            raise found.wrong("a policy of policies has no variables")
        return PolicyNode(
            found,
            found.said("id"),
            found.maybe("version") or "1.0",
            combining.replace(_POLICIES, _RULES) if plain else combining.replace(_RULES, _POLICIES),
            target,
            rules if plain else (),
            definitions,
            None if plain else tuple(map(_as_member, arguments)),
            duties,
            found.maybe("issuer"),
            found.maybe("desc") or "",
        )

    def _argument(self, part: _Part, depth: int) -> RuleNode | PolicyNode | ReferenceNode:
        found = part.object("what is combined", ("rule", "policy", "policyRef", "policySetRef"))
        if len(found.value) != 1:
            raise part.wrong("what is combined is one of `rule`, `policy`, `policyRef` and `policySetRef`")
        (kind,) = found.value
        inside = found.at(kind)
        if kind == "rule":
            return self._rule(inside)
        if kind == "policy":
            return self.root(inside, depth + 1)
        said = inside.object(f"`{kind}`", ("id", "version", "earliestVersion", "latestVersion"))
        versions = [said.maybe(name) for name in ("version", "earliestVersion", "latestVersion")]
        return ReferenceNode(said, said.said("id"), kind == "policySetRef", *versions)

    def _rule(self, part: _Part) -> RuleNode:
        found = part.object("a rule", (*_COMMON, "effect", "condition"))
        where = found.at("condition")
        condition = (where, self._expression(where, 1)) if "condition" in found else None
        name, effect = found.said("id"), found.at("effect").effect()
        return RuleNode(found, name, effect, _target(found), condition, self._duties(found), found.maybe("desc") or "")

    def _definition(self, part: _Part) -> DefinitionNode:
        if not isinstance(part.value, dict):
            raise part.wrong("a variable is an object")
        name = _Object(part.path, part.value).said("id")
        rest = {key: one for key, one in part.value.items() if key != "id"}
        found = DefinitionNode(part, name, self._expression(_Part(part.path, rest), 1))
        self.variables.add(name)
        return found

    def _duties(self, found: _Object) -> tuple[DutyNode, ...]:
        duties = []
        for one in found.listed("pepActionExprs"):
            said = one.object("an action", ("id", "appliesTo", "required", "attrAssignmentExprs"))
            assignments = tuple(map(self._assignment, said.listed("attrAssignmentExprs")))
            duties.append(DutyNode(said.said("id"), said.at("appliesTo").effect(), said.flag("required"), assignments))
        return tuple(duties)

    def _assignment(self, part: _Part) -> AssignmentNode:
        said = part.object("an assignment", ("attrId", "category", "issuer", "expr"))
        expression = self._expression(said.at("expr"), 1)
        return AssignmentNode(said, said.said("attrId"), expression, said.maybe("category"), said.maybe("issuer"))

    def _expression(self, part: _Part, depth: int) -> Term:
        found = self._operand(part, depth)
        if isinstance(found, Function):
            raise part.wrong("a function is not a value")
        return found

    def _operand(self, part: _Part, depth: int) -> Term | Function:
        check_depth(depth, self.limits)
        said = part.object("an expression", ("const", *_ATTRIBUTES, "varRef", "func", "funcCall"))
        if len(said.value) != 1:
            raise part.wrong("an expression is one thing")
        (kind,) = said.value
        inside = said.at(kind)
        match kind:
            case "const":
                return _constant(inside)
            case "attrDesignator" | "attrSelector":
                return _attribute(said)
            case "varRef":
                name = inside.text("`varRef`")
                if name not in self.variables:
                    message = f"no variable is called `{name[:80]}` before it is used"
                    raise inside.located(MalformedError("xacml.variable", message))
                return VariableNode(inside, name)
            case "func":
                name = inside.text("`func`")
                with at(inside):
                    return function_of(name)
        call = inside.object("`funcCall`", ("desc", "funcId", "argExprs"))
        arguments = tuple(self._operand(one, depth + 1) for one in call.listed("argExprs"))
        return ApplyNode(call, call.said("funcId"), arguments)


def _as_member(node: RuleNode | PolicyNode | ReferenceNode) -> PolicyNode | ReferenceNode:
    return PolicyNode(node.at, node.id, "1.0", _FIRST, rules=(node,)) if isinstance(node, RuleNode) else node


def _target(found: _Object) -> TargetNode:
    return tuple(
        tuple(tuple(map(_match, _some(every))) for every in _some(either)) for either in found.listed("target")
    )


def _some(part: _Part) -> list[_Part]:
    found = part.list("a part of a target")
    if not found:
        raise part.wrong("a part of a target is empty")
    return found


def _match(part: _Part) -> MatchNode:
    said = part.object("a match", ("matchFunc", "matchedValue", *_ATTRIBUTES))
    name, attribute, matched = said.said("matchFunc"), _attribute(said), said.at("matchedValue")
    with at(said):
        # The function determines the type of the value.
        of_type = function_of(name).kind_at(0)
        if not isinstance(of_type, DataType):
            raise MalformedError("xacml.arguments", f"`{name[:120]}` does not match {attribute.of}")
    if of_type is XPATH:
        return MatchNode(said, name, PolicyLiteral(_path(matched), XPATH), attribute)
    return MatchNode(said, name, ValueNode(matched, matched.text("`matchedValue`"), of_type), attribute)


def _attribute(said: _Object) -> AttributeTerm:
    """Read an attribute designator or selector."""
    if ("attrSelector" in said) is ("attrDesignator" in said):
        raise said.wrong("an attribute is one of `attrDesignator` and `attrSelector`")
    if "attrSelector" in said:
        return _selector(said.at("attrSelector"))
    known = ("category", "attrId", "dataType", "issuer", "mustBePresent")
    found = said.at("attrDesignator").object("`attrDesignator`", known)
    return Designator(
        found.said("category"),
        found.said("attrId"),
        found.at("dataType").data_type(),
        found.maybe("issuer"),
        found.flag("mustBePresent"),
    )


def _selector(part: _Part) -> ContentSelector:
    known = ("category", "path", "dataType", "mustBePresent", "contextSelectorId", *_PATHS)
    said = part.object("`attrSelector`", known)
    return ContentSelector(
        said.said("category"),
        said.said("path").strip(),
        said.at("dataType").data_type(),
        said.flag("mustBePresent"),
        said.maybe("contextSelectorId"),
        _prefixes(said),
        said.maybe("xpathVersion") or "",
    )


def _prefixes(said: _Object) -> tuple[tuple[str, str], ...]:
    found = said.value.get("namespaces", {})
    if not isinstance(found, dict):
        raise said.wrong("`namespaces` is not an object")
    named = _Object(said.at("namespaces").path, found)
    return tuple(sorted((prefix, named.at(prefix).text("a namespace")) for prefix in found))


def _constant(part: _Part) -> ValueNode | PolicyLiteral:
    value = part.value
    if isinstance(value, str):
        return PolicyLiteral(value, STRING)
    if isinstance(value, dict) and value.get("dataType") in (XPATH.id, XPATH.name):
        return PolicyLiteral(_path(part), XPATH)
    said = part.object("`const`", ("dataType", "value"))
    return ValueNode(said, said.said("value"), said.at("dataType").data_type())


def _path(part: _Part) -> XPathExpression:
    said = part.object("a path", ("dataType", "value", "xpathCategory", *_PATHS))
    return XPathExpression(
        said.said("value").strip(), said.said("xpathCategory"), _prefixes(said), said.maybe("xpathVersion") or ""
    )


# ----------------------------------------------------------------------------------------------------------------------
# Write policies so that reading them gives the same policies.


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
