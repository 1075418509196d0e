"""Policies that are not quite XACML 3.0, read as they are meant, for who wants to know what is in them.

Much that is passed around as XACML 3.0 lacks what its schema wants: categories, targets, whether an attribute must be
present, versions. What is put in their place is told, each with its line. It is a guess, so that nobody enforces such a
policy: the decision service reads policies as they are, or not at all.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lxml import etree

from penstock.codec.xml_text import Element, read_xml
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.policy.policies import Root
from penstock.policy.requests import ACTION, ENVIRONMENT, RESOURCE, SUBJECT
from penstock.policy.xml_elements import NAMESPACE, check_standard, named
from penstock.policy.xml_policies import policy_of

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
