"""Read and write policies in the XML of XACML 3.0 (section 5). Reading a written policy gives the same policy."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from lxml import etree

from penstock.codec.xml_text import Element, read_xml
from penstock.errors import MalformedError
from penstock.policy.language.datatypes import STRING, XPATH, DataType, Function, Value, XPathExpression, data_type
from penstock.policy.language.functions import V1, V3
from penstock.policy.language.policies import (
    Apply,
    ApplyEach,
    ApplyPath,
    ContentSelector,
    Designator,
    Duties,
    Duty,
    Expression,
    HigherOrder,
    Policy,
    PolicyLiteral,
    PolicyReference,
    PolicySet,
    Reference,
    Root,
    Rule,
    RuleEffect,
    Target,
    function_of,
)
from penstock.policy.language.requests import ACTION, ENVIRONMENT, RESOURCE, SUBJECT, SUBJECT_ID
from penstock.policy.limits import POLICY_LIMITS, PolicyLimits
from penstock.policy.syntax.builder import (
    ApplyNode,
    AssignmentNode,
    AttributeTerm,
    Builder,
    DefinitionNode,
    DutyNode,
    MatchNode,
    Place,
    PolicyNode,
    ReferenceNode,
    RuleNode,
    TargetNode,
    Term,
    ValueNode,
    VariableNode,
    check_depth,
)
from penstock.policy.syntax.xml.elements import (
    NAMESPACE,
    URIS,
    ElementPlace,
    at,
    attribute_of,
    check_schema,
    check_standard,
    flag,
    malformed,
    named,
    path_of,
    prefixes_of,
    text_of,
    written_value,
)


def read_policy(data: bytes, *, limits: PolicyLimits = POLICY_LIMITS) -> Root:
    """Read a policy or a policy set.

    Raises `MalformedError`: `xml.malformed`, `xml.doctype`, and with the line of the element `xacml.element`,
    `xacml.type`, `xacml.value`, `xacml.function`, `xacml.arguments`, `xacml.combining`, `xacml.variable`,
    `xacml.version`; `LimitError` (`xml.limit`, `xacml.limit`).
    """
    return _read(read_xml(data, limits=limits), limits)


def _read(element: Element, limits: PolicyLimits) -> Root:
    """Return the policy or the policy set of an element. Raises as `read_policy`."""
    with at(element):
        check_schema(element)
        match named(element):
            case "Policy":
                node = _Reader(limits).policy(element)
            case "PolicySet":
                node = _Reader(limits).policy_set(element, 1)
            case _:
                raise malformed("the document is neither a policy nor a policy set")
        return Builder(limits).root(node)


@dataclass(slots=True)
class _Reader:
    """Parses elements from the outside to the inside into nodes."""

    limits: PolicyLimits
    #: the XPath version, by the defaults of the enclosing policy or policy set
    version: str = ""

    def policy_set(self, element: Element, depth: int) -> PolicyNode:
        check_depth(depth, self.limits)
        before, self.version = self.version, self._defaults(element, "PolicySetDefaults")
        found = PolicyNode(
            ElementPlace(element),
            attribute_of(element, "PolicySetId"),
            attribute_of(element, "Version"),
            attribute_of(element, "PolicyCombiningAlgId"),
            self._target(_one(element, "Target")),
            members=tuple(self._members(element, depth)),
            duties=self._duties(element),
            issuer=_issuer(element),
            description=_description(element),
        )
        self.version = before
        _check(element, _IN_SETS)
        return found

    def _members(self, element: Element, depth: int) -> Iterator[PolicyNode | ReferenceNode]:
        for child in element:
            with at(child):
                match named(child):
                    case "Policy":
                        yield self.policy(child)
                    case "PolicySet":
                        yield self.policy_set(child, depth + 1)
                    case "PolicyIdReference" | "PolicySetIdReference":
                        yield _reference(child)

    def policy(self, element: Element) -> PolicyNode:
        before, self.version = self.version, self._defaults(element, "PolicyDefaults")
        found = PolicyNode(
            ElementPlace(element),
            attribute_of(element, "PolicyId"),
            attribute_of(element, "Version"),
            attribute_of(element, "RuleCombiningAlgId"),
            self._target(_one(element, "Target")),
            tuple(self._rule(child) for child in element if named(child) == "Rule"),
            tuple(self._definition(child) for child in element if named(child) == "VariableDefinition"),
            duties=self._duties(element),
            issuer=_issuer(element),
            description=_description(element),
        )
        self.version = before
        _check(element, _IN_POLICIES)
        return found

    def _defaults(self, element: Element, name: str) -> str:
        found = _maybe(element, name)
        version = None if found is None else _maybe(found, "XPathVersion")
        return self.version if version is None else text_of(version).strip()

    def _definition(self, element: Element) -> DefinitionNode:
        with at(element):
            name = attribute_of(element, "VariableId")
            return DefinitionNode(ElementPlace(element), name, self._expression(_only(element), 1))

    def _rule(self, element: Element) -> RuleNode:
        with at(element):
            condition = _maybe(element, "Condition")
            found = RuleNode(
                ElementPlace(element),
                attribute_of(element, "RuleId"),
                _effect(element, "Effect"),
                self._target(_maybe(element, "Target")),
                None if condition is None else self._condition(condition),
                self._duties(element),
                _description(element),
            )
            _check(element, _IN_RULES)
            return found

    def _condition(self, element: Element) -> tuple[Place, Term]:
        with at(element):
            return ElementPlace(element), self._expression(_only(element), 1)

    # --- targets ------------------------------------------------------------------------------------------------

    def _target(self, element: Element | None) -> TargetNode:
        if element is None:
            return ()
        with at(element):
            return tuple(self._any_of(child) for child in _all(element, "AnyOf"))

    def _any_of(self, element: Element) -> tuple[tuple[MatchNode, ...], ...]:
        with at(element):
            return tuple(self._all_of(child) for child in _some(element, "AllOf"))

    def _all_of(self, element: Element) -> tuple[MatchNode, ...]:
        with at(element):
            return tuple(self._match(child) for child in _some(element, "Match"))

    def _match(self, element: Element) -> MatchNode:
        with at(element):
            function = attribute_of(element, "MatchId")
            if len(element) != 2 or named(element[0]) != "AttributeValue":
                raise malformed("it must have a value and an attribute")
            attribute = self._expression(element[1], 1)
            if not isinstance(attribute, AttributeTerm):
                raise malformed("it must have a value and an attribute")
            return MatchNode(ElementPlace(element), function, self._value(element[0]), attribute)

    # --- expressions --------------------------------------------------------------------------------------------

    def _expression(self, element: Element, depth: int) -> Term:
        found = self._argument(element, depth)
        if isinstance(found, Function):
            raise malformed("a function cannot be used as a value")
        return found

    def _argument(self, element: Element, depth: int) -> Term | Function:
        check_depth(depth, self.limits)
        with at(element):
            match named(element):
                case "AttributeValue":
                    return self._value(element)
                case "AttributeDesignator":
                    return _designator(element)
                case "AttributeSelector":
                    return self._selector(element)
                case "VariableReference":
                    return VariableNode(ElementPlace(element), attribute_of(element, "VariableId"))
                case "Function":
                    return function_of(attribute_of(element, "FunctionId"))
                case "Apply":
                    children = [child for child in element if named(child) != "Description"]
                    arguments = tuple(self._argument(child, depth + 1) for child in children)
                    return ApplyNode(ElementPlace(element), attribute_of(element, "FunctionId"), arguments)
            raise malformed("this element is not an expression")

    def _value(self, element: Element) -> ValueNode | PolicyLiteral:
        with at(element):
            of_type, text = written_value(element)
            if of_type is XPATH:
                return PolicyLiteral(path_of(element, self.version), XPATH)
            return ValueNode(ElementPlace(element), text, of_type)

    def _selector(self, element: Element) -> ContentSelector:
        return ContentSelector(
            attribute_of(element, "Category"),
            attribute_of(element, "Path").strip(),
            data_type(attribute_of(element, "DataType")),
            flag(element, "MustBePresent"),
            element.get("ContextSelectorId"),
            prefixes_of(element),
            self.version,
        )

    # --- obligations and advice ---------------------------------------------------------------------------------

    def _duties(self, element: Element) -> tuple[DutyNode, ...]:
        obligations = _maybe(element, "ObligationExpressions")
        advice = _maybe(element, "AdviceExpressions")
        return (
            *self._listed(obligations, "ObligationExpression", "ObligationId", "FulfillOn"),
            *self._listed(advice, "AdviceExpression", "AdviceId", "AppliesTo"),
        )

    def _listed(self, element: Element | None, name: str, key: str, on: str) -> Iterator[DutyNode]:
        for child in () if element is None else _some(element, name):
            with at(child):
                assignments = tuple(map(self._assignment, _all(child, "AttributeAssignmentExpression")))
                required = name == "ObligationExpression"
                yield DutyNode(attribute_of(child, key), _effect(child, on), required, assignments)

    def _assignment(self, element: Element) -> AssignmentNode:
        with at(element):
            expression = self._expression(_only(element), 1)
            name = attribute_of(element, "AttributeId")
            category = None if element.get("Category") is None else attribute_of(element, "Category")
            return AssignmentNode(ElementPlace(element), name, expression, category, element.get("Issuer"))


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
                raise malformed("this element is not allowed here")
            if named(child).endswith("CombinerParameters") and len(child):
                raise malformed("combining algorithms do not take parameters here")


def _designator(element: Element) -> Designator:
    return Designator(
        attribute_of(element, "Category"),
        attribute_of(element, "AttributeId"),
        data_type(attribute_of(element, "DataType")),
        element.get("Issuer"),
        flag(element, "MustBePresent"),
    )


def _reference(element: Element) -> ReferenceNode:
    return ReferenceNode(
        ElementPlace(element),
        text_of(element).strip(),
        named(element) == "PolicySetIdReference",
        element.get("Version"),
        element.get("EarliestVersion"),
        element.get("LatestVersion"),
    )


def _effect(element: Element, name: str) -> RuleEffect:
    text = attribute_of(element, name)
    if text not in [*RuleEffect]:
        raise malformed(f"`{name}` must be Permit or Deny")
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
                raise malformed("this element is not allowed here")
    return [child for child in element if named(child) == name]


def _some(element: Element, name: str) -> list[Element]:
    found = _all(element, name)
    if not found:
        raise malformed(f"`{name}` is missing")
    return found


def _maybe(element: Element, name: str) -> Element | None:
    found = [child for child in element if named(child) == name]
    if len(found) > 1:
        raise malformed(f"there is more than one `{name}`")
    return found[0] if found else None


def _one(element: Element, name: str) -> Element:
    found = _maybe(element, name)
    if found is None:
        raise malformed(f"`{name}` is missing")
    return found


def _only(element: Element) -> Element:
    if len(element) != 1:
        raise malformed("it must contain exactly one expression")
    return element[0]


# ----------------------------------------------------------------------------------------------------------------------
# Lenient reading of policies that are not quite XACML 3.0, for inspection.
#
# Many documents that claim to be XACML 3.0 lack required parts: categories, targets, `MustBePresent`, versions. Each
# replacement is reported with its line. Replacements are guesses, so such policies are never enforced: the decision
# service reads policies strictly.


_CATEGORIES: Final = {"subject": SUBJECT, "resource": RESOURCE, "action": ACTION, "environment": ENVIRONMENT}
_BEFORE_TARGETS: Final = ("Description", "PolicyIssuer", "PolicyDefaults", "PolicySetDefaults")


@dataclass(frozen=True, slots=True)
class Repair:
    """A missing part of a document, and its replacement."""

    line: int
    element: str
    message: str

    def __str__(self) -> str:
        return f"line {self.line}, `{self.element}`: {self.message}"


def read_leniently(data: bytes, *, limits: PolicyLimits = POLICY_LIMITS) -> tuple[Root, list[Repair]]:
    """Read a policy or a policy set, and report repairs. Raises as `read_policy` if it cannot be repaired."""
    root = read_xml(data, limits=limits)
    check_standard(root)
    repairs = [repair for element in [*root.iter()] for repair in _repaired(element)]
    return _read(root, limits), repairs


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
    """Return the category that an attribute's id suggests, as the standard's ids do."""
    words = re.split(r"[:/]", name)
    return next((category for word, category in _CATEGORIES.items() if word in words), None)


#: higher-order functions with ids of the first version
_FIRST: Final = (HigherOrder.ALL_OF_ANY, HigherOrder.ANY_OF_ALL, HigherOrder.ALL_OF_ALL)


def write_policy(root: Root) -> bytes:
    """Return the document of a policy or a policy set.

    Raises `MalformedError` (`xml.malformed`) if a text has characters that XML does not allow, if an id has surrounding
    white space, which XML does not keep, and if the paths of a policy have several XPath versions.
    """
    try:
        element = _root(None, root, "")
    except ValueError as error:
        raise MalformedError("xml.malformed", f"`{root.id[:120]}` cannot be written as XML: {error}") from None
    # Indentation does not change values, because they contain no elements.
    etree.indent(element)
    return etree.tostring(element, xml_declaration=True, encoding="UTF-8") + b"\n"


def function_id(expression: Apply | ApplyEach | ApplyPath) -> str:
    """Return the id of an expression's function."""
    match expression:
        case Apply(function):
            return function.id
        case ApplyEach(name):
            return f"{V1 if name in _FIRST else V3}{name}"
        case ApplyPath(name):
            return f"{V3}{name}"


def _add(
    parent: Element | None,
    name: str,
    said: Mapping[str, str | None] = MappingProxyType({}),
    text: str | None = None,
    prefixes: Sequence[tuple[str, str]] = (),
) -> Element:
    tag = f"{{{NAMESPACE}}}{name}"
    attributes = {key: value for key, value in said.items() if value is not None}
    for key in URIS & attributes.keys():
        if attributes[key] != attributes[key].strip(" \t\r\n"):
            raise ValueError(f"`{key}` has surrounding white space")
    # lxml's stubs do not allow a namespace without a prefix.
    known: Any = dict(prefixes) if parent is not None else {None: NAMESPACE}
    element: Element = (
        etree.Element(tag, attributes, known) if parent is None else etree.SubElement(parent, tag, attributes, known)
    )
    element.text = text
    return element


def _root(parent: Element | None, root: Root, around: str) -> Element:
    kind, parts = ("PolicySet", "Policy") if isinstance(root, PolicySet) else ("Policy", "Rule")
    named = {f"{kind}Id": root.id, "Version": root.version, f"{parts}CombiningAlgId": root.combining}
    element = _add(parent, kind, named)
    if root.description:
        _add(element, "Description", text=root.description)
    _write_issuer(element, root.issuer)
    version = _version(root, around)
    if version != around:
        _add(_add(element, f"{kind}Defaults"), "XPathVersion", text=version)
    _target(_add(element, "Target"), root.target)
    if isinstance(root, PolicySet):
        for member in root.members:
            _member(element, member, version)
    else:
        for name, expression in root.variables.items():
            _expression(_add(element, "VariableDefinition", {"VariableId": name}), expression)
        for rule in root.rules:
            _rule(element, rule)
    _duties(element, root.duties)
    return element


def _version(root: Root, around: str) -> str:
    """Return the XPath version of the paths in the policy itself."""
    found = {*_versions(root)}
    if len(found) > 1:
        raise MalformedError("xml.malformed", f"the paths of `{root.id[:120]}` have several XPath versions")
    return found.pop() if found else around


def _versions(root: Root) -> Iterator[str]:
    parts: list[Policy | PolicySet | Rule] = [root]
    expressions: list[Expression] = []
    if isinstance(root, Policy):
        parts += root.rules
        expressions += root.variables.values()
    for part in parts:
        matches = [match for any_of in part.target for all_of in any_of for match in all_of]
        expressions += [match.attribute for match in matches]
        yield from (match.value.version for match in matches if isinstance(match.value, XPathExpression))
        for duty in (*part.duties.obligations, *part.duties.advice):
            expressions += [one.expression for one in duty.assignments]
        if isinstance(part, Rule) and part.condition is not None:
            expressions.append(part.condition)
    while expressions:
        match expressions.pop():
            case ContentSelector(version=version):
                yield version
            case PolicyLiteral(XPathExpression(version=version)):
                yield version
            case Apply(_, arguments) | ApplyEach(_, _, arguments) | ApplyPath(_, arguments):
                expressions += arguments


def _write_issuer(element: Element, issuer: str | None) -> None:
    if issuer is None:
        return
    inner = _add(element, "PolicyIssuer")
    if issuer:
        attribute = _add(inner, "Attribute", {"AttributeId": SUBJECT_ID, "IncludeInResult": "false"})
        _add(attribute, "AttributeValue", {"DataType": STRING.id}, issuer)


def _member(element: Element, member: Policy | PolicySet | PolicyReference, version: str) -> None:
    if isinstance(member, PolicyReference):
        name = "PolicySetIdReference" if member.to_set else "PolicyIdReference"
        wanted = {"Version": member.version, "EarliestVersion": member.earliest, "LatestVersion": member.latest}
        _add(element, name, wanted, member.id)
    else:
        _root(element, member, version)


def _rule(parent: Element, rule: Rule) -> None:
    element = _add(parent, "Rule", {"RuleId": rule.id, "Effect": rule.effect.value})
    if rule.description:
        _add(element, "Description", text=rule.description)
    if rule.target:
        _target(_add(element, "Target"), rule.target)
    if rule.condition is not None:
        _expression(_add(element, "Condition"), rule.condition)
    _duties(element, rule.duties)


def _target(element: Element, target: Target) -> None:
    for any_of in target:
        either = _add(element, "AnyOf")
        for all_of in any_of:
            every = _add(either, "AllOf")
            for match in all_of:
                inner = _add(every, "Match", {"MatchId": match.function.id})
                _value(inner, match.value, match.of)
                _expression(inner, match.attribute)


def _duties(element: Element, duties: Duties) -> None:
    if duties.obligations:
        _listed(_add(element, "ObligationExpressions"), duties.obligations, "Obligation", "FulfillOn")
    if duties.advice:
        _listed(_add(element, "AdviceExpressions"), duties.advice, "Advice", "AppliesTo")


def _listed(parent: Element, duties: tuple[Duty, ...], kind: str, on: str) -> None:
    for duty in duties:
        named = {f"{kind}Id": duty.id, on: duty.on.value}
        element = _add(parent, f"{kind}Expression", named)
        for one in duty.assignments:
            said = {"AttributeId": one.id, "Category": one.category, "Issuer": one.issuer}
            _expression(_add(element, "AttributeAssignmentExpression", said), one.expression)


def _expression(parent: Element, expression: Expression) -> None:
    match expression:
        case PolicyLiteral(value, of_type):
            _value(parent, value, of_type)
        case Reference(name):
            _add(parent, "VariableReference", {"VariableId": name})
        case Designator() | ContentSelector():
            _attribute(parent, expression)
        case Apply(_, arguments) | ApplyPath(_, arguments):
            _applied(parent, function_id(expression), None, arguments)
        case ApplyEach(_, function, arguments):
            _applied(parent, function_id(expression), function, arguments)


def _applied(parent: Element, name: str, function: Function | None, arguments: tuple[Expression, ...]) -> None:
    element = _add(parent, "Apply", {"FunctionId": name})
    if function is not None:
        _add(element, "Function", {"FunctionId": function.id})
    for argument in arguments:
        _expression(element, argument)


def _attribute(parent: Element, attribute: Designator | ContentSelector) -> None:
    must = "true" if attribute.must_be_present else "false"
    said: dict[str, str | None] = {
        "Category": attribute.category, "DataType": attribute.of.id, "MustBePresent": must,
    }  # fmt: skip
    if isinstance(attribute, Designator):
        _add(parent, "AttributeDesignator", {**said, "AttributeId": attribute.id, "Issuer": attribute.issuer})
        return
    said |= {"Path": attribute.path, "ContextSelectorId": attribute.context}
    _add(parent, "AttributeSelector", said, prefixes=attribute.prefixes)


def _value(parent: Element, value: Value, of_type: DataType) -> None:
    if isinstance(value, XPathExpression):
        said = {"DataType": of_type.id, "XPathCategory": value.category}
        _add(parent, "AttributeValue", said, value.path, value.prefixes)
        return
    _add(parent, "AttributeValue", {"DataType": of_type.id}, of_type.write(value))
