"""Policies in the XML of XACML 3.0 (section 5), read and checked: types of arguments, ids, variables, versions."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from lxml import etree

from penstock.codec.xml_text import Element, read_xml
from penstock.errors import LimitError, MalformedError
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.policy.combining.registry import policy_algorithm, rule_algorithm
from penstock.policy.language.datatypes import BOOLEAN, Function, data_type
from penstock.policy.language.expressions import (
    ContentSelector,
    Designator,
    Expression,
    PolicyLiteral,
    Reference,
    apply,
    function_of,
)
from penstock.policy.language.policies import (
    AllOf,
    AnyOf,
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
from penstock.policy.language.requests import ACTION, ENVIRONMENT, RESOURCE, SUBJECT
from penstock.policy.syntax.xml.elements import (
    NAMESPACE,
    at,
    attribute_of,
    check_schema,
    check_standard,
    flag,
    malformed,
    named,
    text_of,
    value_of,
)


def read_policy(data: bytes, *, limits: Limits = DEFAULT_LIMITS) -> Root:
    """Read a policy or a policy set.

    Raises `MalformedError`: `xml.malformed`, `xml.doctype`, and with the line of the element `xacml.element`,
    `xacml.type`, `xacml.value`, `xacml.function`, `xacml.arguments`, `xacml.combining`, `xacml.variable`,
    `xacml.version`; `LimitError` (`xml.limit`, `xacml.limit`).
    """
    return policy_of(read_xml(data, limits=limits), limits=limits)


def policy_of(element: Element, *, limits: Limits = DEFAULT_LIMITS) -> Root:
    """Return the policy or the policy set that an element is. Raises as `read_policy`."""
    with at(element):
        check_schema(element)
        match named(element):
            case "Policy":
                return _Reader(limits).policy(element)
            case "PolicySet":
                return _Reader(limits).policy_set(element, 1)
        raise malformed("the document is neither a policy nor a policy set")


@dataclass(slots=True)
class _Reader:
    """Reads a document from the outside to the inside, and knows the variables of the policy that it is in."""

    limits: Limits
    #: which language paths are in, by the defaults of the policy or the set around
    version: str = ""
    definitions: dict[str, Element] = field(default_factory=dict)
    variables: dict[str, Expression] = field(default_factory=dict)
    #: variables that are being read: none may need itself
    open: list[str] = field(default_factory=list)

    def policy_set(self, element: Element, depth: int) -> PolicySet:
        if depth > self.limits.policy_depth:
            raise LimitError("xacml.limit", f"policy sets are nested more than {self.limits.policy_depth} deep")
        before, self.version = self.version, self._defaults(element, "PolicySetDefaults")
        combining = attribute_of(element, "PolicyCombiningAlgId")
        policy_algorithm(combining)
        found = PolicySet(
            attribute_of(element, "PolicySetId"),
            attribute_of(element, "Version"),
            combining,
            tuple(self._members(element, depth)),
            self._target(_one(element, "Target")),
            self._duties(element),
            _issuer(element),
            _description(element),
        )
        self.version = before
        _check(element, _IN_SETS)
        return found

    def _members(self, element: Element, depth: int) -> Iterator[Policy | PolicySet | PolicyReference]:
        for child in element:
            with at(child):
                match named(child):
                    case "Policy":
                        yield self.policy(child)
                    case "PolicySet":
                        yield self.policy_set(child, depth + 1)
                    case "PolicyIdReference" | "PolicySetIdReference":
                        yield _reference(child)

    def policy(self, element: Element) -> Policy:
        before, self.version = self.version, self._defaults(element, "PolicyDefaults")
        combining = attribute_of(element, "RuleCombiningAlgId")
        rule_algorithm(combining)
        self._define(element)
        rules = [self._rule(child) for child in element if named(child) == "Rule"]
        found = Policy(
            attribute_of(element, "PolicyId"),
            attribute_of(element, "Version"),
            combining,
            tuple(rules),
            self._target(_one(element, "Target")),
            MappingProxyType(dict(self.variables)),
            self._duties(element),
            _issuer(element),
            _description(element),
        )
        self.version = before
        _check(element, _IN_POLICIES)
        return found

    def _defaults(self, element: Element, name: str) -> str:
        found = _maybe(element, name)
        version = None if found is None else _maybe(found, "XPathVersion")
        return self.version if version is None else text_of(version).strip()

    def _define(self, element: Element) -> None:
        found = [child for child in element if named(child) == "VariableDefinition"]
        names = [attribute_of(child, "VariableId") for child in found]
        if len(set(names)) != len(names):
            raise MalformedError("xacml.variable", "two variables have the same name")
        self.definitions, self.variables = dict(zip(names, found, strict=True)), {}
        for name in names:
            self._variable(name)

    def _variable(self, name: str) -> Expression:
        known = self.variables.get(name)
        if known is not None:
            return known
        if name in self.open:
            raise MalformedError("xacml.variable", f"variable `{name[:80]}` needs itself")
        if name not in self.definitions:
            raise MalformedError("xacml.variable", f"no variable is called `{name[:80]}`")
        self.open.append(name)
        definition = self.definitions[name]
        with at(definition):
            self.variables[name] = self._expression(_only(definition), 1)
        self.open.pop()
        return self.variables[name]

    def _rule(self, element: Element) -> Rule:
        with at(element):
            condition = _maybe(element, "Condition")
            found = Rule(
                attribute_of(element, "RuleId"),
                _effect(element, "Effect"),
                self._target(_maybe(element, "Target")),
                None if condition is None else self._condition(condition),
                self._duties(element),
                _description(element),
            )
            _check(element, _IN_RULES)
            return found

    def _condition(self, element: Element) -> Expression:
        with at(element):
            found = self._expression(_only(element), 1)
            if found.gives is not BOOLEAN:
                raise MalformedError("xacml.arguments", f"a condition is true or false, and no {found.gives}")
            return found

    # --- targets ------------------------------------------------------------------------------------------------

    def _target(self, element: Element | None) -> Target:
        if element is None:
            return ()
        with at(element):
            return tuple(self._any_of(child) for child in _all(element, "AnyOf"))

    def _any_of(self, element: Element) -> AnyOf:
        with at(element):
            return tuple(self._all_of(child) for child in _some(element, "AllOf"))

    def _all_of(self, element: Element) -> AllOf:
        with at(element):
            return tuple(self._match(child) for child in _some(element, "Match"))

    def _match(self, element: Element) -> Match:
        with at(element):
            function = function_of(attribute_of(element, "MatchId"))
            if len(element) != 2 or named(element[0]) != "AttributeValue":
                raise malformed("it has a value and an attribute")
            of_type, value = value_of(element[0], self.version)
            attribute = self._expression(element[1], 1)
            if not isinstance(attribute, Designator | ContentSelector):
                raise malformed("it has a value and an attribute")
            if not function.accepts((of_type, attribute.of)) or function.gives is not BOOLEAN:
                raise MalformedError(
                    "xacml.arguments", f"`{function.name}` does not match {attribute.of} with {of_type}"
                )
            return Match(function, value, of_type, attribute)

    # --- expressions --------------------------------------------------------------------------------------------

    def _expression(self, element: Element, depth: int) -> Expression:
        found = self._argument(element, depth)
        if isinstance(found, Function):
            raise malformed("a function is no value")
        return found

    def _argument(self, element: Element, depth: int) -> Expression | Function:
        if depth > self.limits.policy_depth:
            raise LimitError("xacml.limit", f"expressions are nested more than {self.limits.policy_depth} deep")
        with at(element):
            match named(element):
                case "AttributeValue":
                    of_type, value = value_of(element, self.version)
                    return PolicyLiteral(value, of_type)
                case "AttributeDesignator":
                    return _designator(element)
                case "AttributeSelector":
                    return self._selector(element)
                case "VariableReference":
                    name = attribute_of(element, "VariableId")
                    return Reference(name, self._variable(name).gives)
                case "Function":
                    return function_of(attribute_of(element, "FunctionId"))
                case "Apply":
                    children = [child for child in element if named(child) != "Description"]
                    arguments = [self._argument(child, depth + 1) for child in children]
                    return apply(attribute_of(element, "FunctionId"), arguments)
            raise malformed("it is no expression")

    def _selector(self, element: Element) -> ContentSelector:
        return ContentSelector(
            attribute_of(element, "Category"),
            attribute_of(element, "Path").strip(),
            data_type(attribute_of(element, "DataType")),
            flag(element, "MustBePresent"),
            element.get("ContextSelectorId"),
            tuple(sorted((prefix, uri) for prefix, uri in element.nsmap.items() if prefix)),
            self.version,
        )

    # --- obligations and advice ---------------------------------------------------------------------------------

    def _duties(self, element: Element) -> Duties:
        obligations = _maybe(element, "ObligationExpressions")
        advice = _maybe(element, "AdviceExpressions")
        return Duties(
            self._listed(obligations, "ObligationExpression", "ObligationId", "FulfillOn"),
            self._listed(advice, "AdviceExpression", "AdviceId", "AppliesTo"),
        )

    def _listed(self, element: Element | None, name: str, key: str, on: str) -> tuple[Duty, ...]:
        if element is None:
            return ()
        found = []
        for child in _some(element, name):
            with at(child):
                assignments = tuple(self._assignment(one) for one in _all(child, "AttributeAssignmentExpression"))
                found.append(Duty(attribute_of(child, key), _effect(child, on), assignments))
        return tuple(found)

    def _assignment(self, element: Element) -> Assignment:
        with at(element):
            expression = self._expression(_only(element), 1)
            name = attribute_of(element, "AttributeId")
            category = None if element.get("Category") is None else attribute_of(element, "Category")
            return Assignment(name, expression, category, element.get("Issuer"))


_COMMON: Final = frozenset({"Description", "PolicyIssuer", "Target", "ObligationExpressions", "AdviceExpressions"})
_IN_RULES: Final = _COMMON - {"PolicyIssuer"} | {"Condition"}
_IN_POLICIES: Final = _COMMON | {
    "PolicyDefaults", "CombinerParameters", "RuleCombinerParameters", "VariableDefinition", "Rule",
}  # fmt: skip
_IN_SETS: Final = _COMMON | {
    "PolicySetDefaults", "PolicySet", "Policy", "PolicySetIdReference", "PolicyIdReference", "CombinerParameters",
    "PolicyCombinerParameters", "PolicySetCombinerParameters",
}  # fmt: skip


def _check(element: Element, allowed: frozenset[str]) -> None:
    for child in element:
        with at(child):
            if named(child) not in allowed:
                raise malformed("there is no such element here")
            if named(child).endswith("CombinerParameters") and len(child):
                raise malformed("no combining algorithm takes parameters here, and they would not count")


def _designator(element: Element) -> Designator:
    return Designator(
        attribute_of(element, "Category"),
        attribute_of(element, "AttributeId"),
        data_type(attribute_of(element, "DataType")),
        element.get("Issuer"),
        flag(element, "MustBePresent"),
    )


def _reference(element: Element) -> PolicyReference:
    return PolicyReference(
        text_of(element).strip(),
        named(element) == "PolicySetIdReference",
        element.get("Version"),
        element.get("EarliestVersion"),
        element.get("LatestVersion"),
    )


def _effect(element: Element, name: str) -> RuleEffect:
    text = attribute_of(element, name)
    if text not in [*RuleEffect]:
        raise malformed(f"`{name}` is neither Permit nor Deny")
    return RuleEffect(text)


def _issuer(element: Element) -> str | None:
    found = _maybe(element, "PolicyIssuer")
    if found is None:
        return None
    values = [child.text or "" for child in found.iter(f"{{{NAMESPACE}}}AttributeValue")]
    return " ".join(values)


def _description(element: Element) -> str:
    found = _maybe(element, "Description")
    return "" if found is None else " ".join("".join(found.itertext()).split())


def _all(element: Element, name: str) -> list[Element]:
    for child in element:
        if named(child) not in (name, "Description"):
            with at(child):
                raise malformed("there is no such element here")
    return [child for child in element if named(child) == name]


def _some(element: Element, name: str) -> list[Element]:
    found = _all(element, name)
    if not found:
        raise malformed(f"it has no `{name}`")
    return found


def _maybe(element: Element, name: str) -> Element | None:
    found = [child for child in element if named(child) == name]
    if len(found) > 1:
        raise malformed(f"it has more than one `{name}`")
    return found[0] if found else None


def _one(element: Element, name: str) -> Element:
    found = _maybe(element, name)
    if found is None:
        raise malformed(f"it has no `{name}`")
    return found


def _only(element: Element) -> Element:
    if len(element) != 1:
        raise malformed("it has one expression in it")
    return element[0]


# ----------------------------------------------------------------------------------------------------------------------
# Policies that are not quite XACML 3.0, read as they are meant, for who wants to know what is in them.
#
# Much that is passed around as XACML 3.0 lacks what its schema wants: categories, targets, whether an attribute must be
# present, versions. What is put in their place is told, each with its line. It is a guess, so that nobody enforces such
# a policy: the decision service reads policies as they are, or not at all.


_CATEGORIES: Final = {"subject": SUBJECT, "resource": RESOURCE, "action": ACTION, "environment": ENVIRONMENT}
_BEFORE_TARGETS: Final = ("Description", "PolicyIssuer", "PolicyDefaults", "PolicySetDefaults")


@dataclass(frozen=True, slots=True)
class Repair:
    """What a document lacked, and what was put in its place."""

    line: int
    element: str
    message: str

    def __str__(self) -> str:
        return f"line {self.line}, `{self.element}`: {self.message}"


def read_leniently(data: bytes, *, limits: Limits = DEFAULT_LIMITS) -> tuple[Root, list[Repair]]:
    """Read a policy or a policy set, and say what it lacked. Raises as `read_policy` for what cannot be guessed."""
    root = read_xml(data, limits=limits)
    check_standard(root)
    repairs = [repair for element in [*root.iter()] for repair in _repaired(element)]
    return policy_of(root, limits=limits), repairs


def _repaired(element: Element) -> Iterator[Repair]:
    match named(element):
        case "Policy" | "PolicySet" as name:
            yield from _lacking(element, "Version", "1.0")
            if all(named(child) != "Target" for child in element):
                place = sum(named(child) in _BEFORE_TARGETS for child in element)
                element.insert(place, etree.Element(f"{{{NAMESPACE}}}Target"))
                yield Repair(element.sourceline, name, "it has no `Target`; taken to match everything")
        case "AttributeDesignator":
            yield from _lacking(element, "Category", _category(element.get("AttributeId") or ""))
            yield from _lacking(element, "MustBePresent", "false")
        case "AttributeSelector":
            yield from _lacking(element, "MustBePresent", "false")
        case "Attribute":
            yield from _lacking(element, "IncludeInResult", "false")


def _lacking(element: Element, name: str, meant: str | None) -> Iterator[Repair]:
    if element.get(name) is None and meant is not None:
        element.set(name, meant)
        yield Repair(element.sourceline, named(element), f"it has no `{name}`; taken to be `{meant}`")


def _category(name: str) -> str | None:
    """Return the category that the id of an attribute speaks of, as those of the standard do."""
    words = re.split(r"[:/]", name)
    return next((category for word, category in _CATEGORIES.items() if word in words), None)
