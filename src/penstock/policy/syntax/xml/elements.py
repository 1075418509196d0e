"""XACML elements: their names, attributes and values, and errors with line and element."""

import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from penstock.codec.xml_text import Element, tag_of
from penstock.errors import MalformedError
from penstock.policy.language.datatypes import XPATH, DataType, Value, XPathExpression, data_type, read_value
from penstock.policy.syntax.builder import at as located_at
from penstock.policy.syntax.builder import placed

NAMESPACE: Final = "urn:oasis:names:tc:xacml:3.0:core:schema:wd-17"
#: which XML attributes the elements of policies and requests can have, by the schema of the standard
_ATTRIBUTES: Final = {
    "Policy": ("PolicyId", "Version", "RuleCombiningAlgId", "MaxDelegationDepth"),
    "PolicySet": ("PolicySetId", "Version", "PolicyCombiningAlgId", "MaxDelegationDepth"),
    "PolicyIdReference": ("Version", "EarliestVersion", "LatestVersion"),
    "PolicySetIdReference": ("Version", "EarliestVersion", "LatestVersion"),
    "Rule": ("RuleId", "Effect"),
    "Match": ("MatchId",),
    "Apply": ("FunctionId",),
    "Function": ("FunctionId",),
    "VariableDefinition": ("VariableId",),
    "VariableReference": ("VariableId",),
    "AttributeValue": ("DataType", "XPathCategory"),
    # `SubjectCategory` is from XACML 2.0; if both are present they must be equal.
    "AttributeDesignator": ("Category", "AttributeId", "DataType", "Issuer", "MustBePresent", "SubjectCategory"),
    "AttributeSelector": ("Category", "Path", "DataType", "MustBePresent", "ContextSelectorId"),
    "ObligationExpression": ("ObligationId", "FulfillOn"),
    "AdviceExpression": ("AdviceId", "AppliesTo"),
    "AttributeAssignmentExpression": ("AttributeId", "Category", "Issuer"),
    "CombinerParameter": ("ParameterName",),
    "RuleCombinerParameters": ("RuleIdRef",),
    "PolicyCombinerParameters": ("PolicyIdRef",),
    "PolicySetCombinerParameters": ("PolicySetIdRef",),
    "Request": ("ReturnPolicyIdList", "CombinedDecision"),
    "Attributes": ("Category", "id"),
    "Attribute": ("AttributeId", "Issuer", "IncludeInResult"),
    "AttributesReference": ("ReferenceId",),
}
#: attributes that are URIs: surrounding white space is ignored (XML Schema 2, section 4.3.6)
URIS: Final = frozenset(
    {
        "PolicyId", "PolicySetId", "RuleCombiningAlgId", "PolicyCombiningAlgId", "MatchId", "FunctionId", "DataType",
        "Category", "XPathCategory", "AttributeId", "ObligationId", "AdviceId",
    }
)  # fmt: skip
#: elements that contain text
_TEXTS: Final = frozenset(
    {"AttributeValue", "Description", "PolicyIdReference", "PolicySetIdReference", "XPathVersion", "Content"}
)
#: elements that contain one kind of element, and are used for nothing else
_ONLY: Final = {
    "PolicyDefaults": "XPathVersion",
    "PolicySetDefaults": "XPathVersion",
    "RequestDefaults": "XPathVersion",
    "MultiRequests": "RequestReference",
    "RequestReference": "AttributesReference",
}


def malformed(message: str) -> MalformedError:
    """Return the error for something that the standard does not allow."""
    return MalformedError("xacml.element", message)


def named(element: Element) -> str:
    """Return the name of an element; elements that are not XACML's keep their namespace."""
    namespace, name = tag_of(element)
    return name if namespace == NAMESPACE else f"{{{namespace}}}{name}"


@dataclass(frozen=True, slots=True)
class ElementPlace:
    """An element as the place of an error."""

    element: Element

    def located(self, error: MalformedError) -> MalformedError:
        """Return an error with the line and the element; the same error if it has a line already."""
        if "line" in error.fields:
            return error
        line, name = self.element.sourceline, tag_of(self.element)[1]
        return placed(error, f"line {line}, `{name}`", line=line, element=name)


def at(element: Element) -> AbstractContextManager[None]:
    """Add the line and the element to errors."""
    return located_at(ElementPlace(element))


def check_standard(root: Element) -> None:
    """Check that a document is not of another version of the standard. Raises `MalformedError` (`xacml.older`)."""
    namespace, _ = tag_of(root)
    found = re.match(r"urn:oasis:names:tc:xacml:([0-9]\.[0-9]):", namespace)
    if found is None or namespace == NAMESPACE:
        return
    version = f"a draft of XACML {found[1]}" if found[1] == "3.0" else f"XACML {found[1]}"
    raise MalformedError(
        "xacml.older",
        f"the document is in {version} (`{namespace[:120]}`), and only XACML 3.0 is read (`{NAMESPACE}`)",
        hint="write it in XACML 3.0; docs/reference/policy-language.md has a table of what becomes what",
        version=found[1],
    )


def check_schema(root: Element) -> None:
    """Check that a policy or request contains nothing that would be ignored.

    Raises `MalformedError` (`xacml.element`) for XML attributes that the standard does not have, and for text between
    elements: a misspelt `Issuer`, or a target in words, would match more than intended.
    """
    check_standard(root)
    left = [root]
    while left:
        element = left.pop()
        name = named(element)
        # XML in a value is refused where the value is read, and a content can be anything.
        inside = [] if name in _TEXTS else [*element]
        with at(element):
            for attribute in element.attrib:
                if not attribute.startswith("{") and attribute not in _ATTRIBUTES.get(name, ()):
                    raise malformed(f"attribute `{attribute[:80]}` is not allowed here")
            if element.get("SubjectCategory", element.get("Category")) != element.get("Category"):
                raise malformed("`SubjectCategory` is not the same as `Category`")
            texts = [] if name in _TEXTS else [element.text, *(child.tail for child in inside)]
            stray = " ".join(text.strip() for text in texts if text and text.strip())
            if stray:
                raise malformed(f"there is text where elements are expected: `{stray[:80]}`")
            if name in _ONLY and any(named(child) != _ONLY[name] for child in inside):
                raise malformed(f"only `{_ONLY[name]}` is allowed here")
        left += inside


def attribute_of(element: Element, name: str) -> str:
    """Return a required attribute. Raises `MalformedError` (`xacml.element`)."""
    found = element.get(name)
    if found is None:
        raise malformed(f"`{name}` is missing")
    return str(found).strip(" \t\r\n") if name in URIS else str(found)


def flag(element: Element, name: str, *, default: bool | None = None) -> bool:
    """Return an attribute that is true or false. Raises `MalformedError` (`xacml.element`)."""
    text = element.get(name)
    if text is None and default is not None:
        return default
    found = {"true": True, "1": True, "false": False, "0": False}.get(str(text).strip())
    if found is None:
        raise malformed(f"`{name}` must be true or false")
    return found


def text_of(element: Element) -> str:
    """Return the text of an element that has no other elements in it. Raises `MalformedError` (`xacml.element`)."""
    if len(element):
        raise malformed("a value must not contain elements")
    return element.text or ""


def prefixes_of(element: Element) -> tuple[tuple[str, str], ...]:
    """Return the namespaces of an element, by prefix."""
    return tuple(sorted((prefix, uri) for prefix, uri in element.nsmap.items() if prefix))


def written_value(element: Element) -> tuple[DataType, str]:
    """Return the type of a value, and its text. Raises `MalformedError`."""
    return data_type(attribute_of(element, "DataType")), text_of(element)


def path_of(element: Element, version: str) -> XPathExpression:
    """Return the path in an element. Raises `MalformedError` (`xacml.element`)."""
    path, category = text_of(element).strip(), attribute_of(element, "XPathCategory")
    return XPathExpression(path, category, prefixes_of(element), version)


def value_of(element: Element, version: str) -> tuple[DataType, Value]:
    """Return the value in an element, and its type. Raises `MalformedError`."""
    of_type, text = written_value(element)
    return of_type, path_of(element, version) if of_type is XPATH else read_value(text, of_type)
