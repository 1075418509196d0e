"""Policies written in the XML of XACML 3.0, so that they are read back as they were."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from lxml import etree

from penstock.codec.xml_text import Element
from penstock.errors import MalformedError
from penstock.policy.language.datatypes import STRING, DataType, Function, Value, XPathExpression
from penstock.policy.language.expressions import (
    Apply,
    ApplyEach,
    ApplyPath,
    ContentSelector,
    Designator,
    Expression,
    HigherOrder,
    PolicyLiteral,
    Reference,
)
from penstock.policy.language.functions import V1, V3
from penstock.policy.language.policies import Duties, Duty, Policy, PolicyReference, PolicySet, Root, Rule, Target
from penstock.policy.language.requests import SUBJECT_ID
from penstock.policy.syntax.xml.elements import NAMESPACE, URIS

#: functions that take functions, and have kept the ids of the first version
_FIRST: Final = (HigherOrder.ALL_OF_ANY, HigherOrder.ANY_OF_ALL, HigherOrder.ALL_OF_ALL)


def write_policy(root: Root) -> bytes:
    """Return the document of a policy or a policy set.

    Raises `MalformedError` (`xml.malformed`) where a text has characters that XML has not, where an id has white space
    around it, which XML does not keep, and where paths of one policy are of several versions, which XACML cannot say.
    """
    try:
        element = _root(None, root, "")
    except ValueError as error:
        raise MalformedError("xml.malformed", f"`{root.id[:120]}` cannot be written as XML: {error}") from None
    # What is laid out in lines gets no space into values: those have no elements in them.
    etree.indent(element)
    return etree.tostring(element, xml_declaration=True, encoding="UTF-8") + b"\n"


def function_id(expression: Apply | ApplyEach | ApplyPath) -> str:
    """Return the id of the function that an expression applies."""
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
            raise ValueError(f"`{key}` has white space around it")
    # The stubs of lxml do not know that a namespace may have no prefix.
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
    _issuer(element, root.issuer)
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
    """Return the language of the paths that stand in a policy itself."""
    found = {*_versions(root)}
    if len(found) > 1:
        raise MalformedError("xml.malformed", f"the paths of `{root.id[:120]}` are of several versions")
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


def _issuer(element: Element, issuer: str | None) -> None:
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
