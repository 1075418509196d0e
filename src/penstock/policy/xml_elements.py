"""Elements of XACML: their names, attributes and values, and errors that say where they are."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.codec.xml_text import Element, tag_of
from penstock.errors import MalformedError
from penstock.policy.datatypes import XPATH, DataType, Value, XPathExpression, data_type, read_value

NAMESPACE: Final = "urn:oasis:names:tc:xacml:3.0:core:schema:wd-17"


def malformed(message: str) -> MalformedError:
    """Return the error of what the standard does not allow."""
    return MalformedError("xacml.element", message)


def named(element: Element) -> str:
    """Return the name of an element of XACML, or of another with its namespace."""
    namespace, name = tag_of(element)
    return name if namespace == NAMESPACE else f"{{{namespace}}}{name}"


@contextmanager
def at(element: Element) -> Iterator[None]:
    """Say in an error in which line it is, and in which element."""
    try:
        yield
    except MalformedError as error:
        if "line" in error.fields:
            raise
        name = tag_of(element)[1]
        told = type(error)(error.code, f"line {element.sourceline}, `{name}`: {error.message}", hint=error.hint)
        told.fields = {**error.fields, "line": element.sourceline, "element": name}
        raise told from None


def attribute_of(element: Element, name: str) -> str:
    """Return an attribute that must be there. Raises `MalformedError` (`xacml.element`)."""
    found = element.get(name)
    if found is None:
        raise malformed(f"it has no `{name}`")
    return str(found)


def flag(element: Element, name: str, *, default: bool | None = None) -> bool:
    """Return an attribute that is true or false. Raises `MalformedError` (`xacml.element`)."""
    text = element.get(name)
    if text is None and default is not None:
        return default
    found = {"true": True, "1": True, "false": False, "0": False}.get(str(text).strip())
    if found is None:
        raise malformed(f"`{name}` is neither true nor false")
    return found


def text_of(element: Element) -> str:
    """Return the text of an element that has no other elements in it. Raises `MalformedError` (`xacml.element`)."""
    if len(element):
        raise malformed("a value has other elements in it")
    return element.text or ""


def value_of(element: Element, version: str) -> tuple[DataType, Value]:
    """Return the value that an element holds, and its type. Raises `MalformedError`."""
    of_type = data_type(attribute_of(element, "DataType"))
    text = text_of(element)
    if of_type is XPATH:
        prefixes = tuple(sorted((prefix, uri) for prefix, uri in element.nsmap.items() if prefix))
        return of_type, XPathExpression(text.strip(), attribute_of(element, "XPathCategory"), prefixes, version)
    return of_type, read_value(text, of_type)
