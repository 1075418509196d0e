"""Requests: the attributes of subject, resource, action and environment (section 5.42 and following)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Lock
from typing import Any, Final, Protocol, TypeAlias
from weakref import WeakValueDictionary

from penstock.policy.language.datatypes import DataType, Value

_CATEGORY_1: Final = "urn:oasis:names:tc:xacml:1.0:subject-category:"
_CATEGORY_3: Final = "urn:oasis:names:tc:xacml:3.0:attribute-category:"
SUBJECT: Final = f"{_CATEGORY_1}access-subject"
RESOURCE: Final = f"{_CATEGORY_3}resource"
ACTION: Final = f"{_CATEGORY_3}action"
ENVIRONMENT: Final = f"{_CATEGORY_3}environment"
#: further categories of subjects, by their names in JSON
CATEGORIES: Final = {
    "RecipientSubject": "recipient-subject",
    "IntermediarySubject": "intermediary-subject",
    "Codebase": "codebase",
    "RequestingMachine": "requesting-machine",
}
SUBJECT_ID: Final = "urn:oasis:names:tc:xacml:1.0:subject:subject-id"
RESOURCE_ID: Final = "urn:oasis:names:tc:xacml:1.0:resource:resource-id"
ACTION_ID: Final = "urn:oasis:names:tc:xacml:1.0:action:action-id"
#: AuthZEN's types of subjects and resources, as attributes of XACML
SUBJECT_TYPE: Final = "urn:penstock:authzen:subject-type"
RESOURCE_TYPE: Final = "urn:penstock:authzen:resource-type"


@dataclass(frozen=True, slots=True)
class RequestAttribute:
    """An attribute of a request, with values of one type."""

    id: str
    values: tuple[tuple[DataType, Value], ...]
    issuer: str | None = None
    include_in_result: bool = False


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Key:
    """The identity of an attribute: category, id and type. There is one object for each, compared by identity."""

    category: str
    id: str
    of: DataType

    def __reduce__(self) -> "tuple[Callable[[str, str, DataType], Key], tuple[str, str, DataType]]":
        return key_of, (self.category, self.id, self.of)


#: weak references: names come with requests from anybody, and must not fill the memory
_KEYS: Final[WeakValueDictionary[tuple[str, str, DataType], Key]] = WeakValueDictionary()
_MAKING: Final = Lock()


def key_of(category: str, name: str, of_type: DataType) -> Key:
    """Return the key of an attribute."""
    wanted = (category, name, of_type)
    found = _KEYS.get(wanted)
    if found is None:
        # Policies are read while decisions are made: two threads must not create two keys of one attribute.
        with _MAKING:
            found = _KEYS.get(wanted)
            if found is None:
                found = _KEYS[wanted] = Key(category, name, of_type)
    return found


Facts: TypeAlias = Mapping[Key, tuple[Value, ...]]
"""A request for one decision in the shortest form: a bag for each attribute, regardless of issuers."""


class Content(Protocol):
    """A document into which paths look. Paths that cannot be parsed or take too long raise `EvaluationError`."""

    def select(
        self, path: str, prefixes: Sequence[tuple[str, str]], version: str, context: object | None = None
    ) -> Sequence[object]:
        """Return the nodes that a path selects, starting from `node` if it is given."""

    def text(self, node: object) -> str | None:
        """Return the text of a node; None if it has none."""

    def path(self, node: object) -> str:
        """Return a path that selects only this node."""

    def around(self, node: object) -> Iterator[object]:
        """Yield a node and its ancestors; nothing for other values."""

    def written(self) -> bytes:
        """Return the document."""


@dataclass(frozen=True)
class Attributes:
    """The attributes of one category; a repeated category makes several requests."""

    category: str
    attributes: tuple[RequestAttribute, ...] = ()
    content: Content | None = field(default=None, compare=False)
    #: the id by which a request can refer to it
    id: str | None = None

    @cached_property
    def by_id(self) -> Mapping[str, Sequence[RequestAttribute]]:
        """The attributes by their ids."""
        found: dict[str, list[RequestAttribute]] = {}
        for attribute in self.attributes:
            found.setdefault(attribute.id, []).append(attribute)
        return found

    def without(self, key: Key) -> "Attributes":
        """Return them without the values of an attribute, whoever issued them."""
        if self.category != key.category or key.id not in self.by_id:
            return self
        left = []
        for one in self.attributes:
            values = tuple(pair for pair in one.values if one.id != key.id or pair[0] is not key.of)
            left += [replace(one, values=values)] if values else []
        return replace(self, attributes=tuple(left))


@dataclass(frozen=True, slots=True)
class Request:
    """A request, or several in one: repeated categories, references, or attributes that ask for several decisions."""

    categories: tuple[Attributes, ...]
    return_policy_ids: bool = False
    combined_decision: bool = False
    #: each names the categories of one request, by their ids
    references: tuple[tuple[str, ...], ...] = ()
    xpath_version: str = ""

    def of(self, category: str) -> Iterator[Attributes]:
        """Yield the attributes of a category."""
        return (one for one in self.categories if one.category == category)

    @classmethod
    def of_facts(cls, facts: Facts) -> "Request":
        """Return facts as a request."""
        by_category: dict[str, list[RequestAttribute]] = {}
        for key, values in facts.items():
            found = RequestAttribute(key.id, tuple((key.of, value) for value in values))
            by_category.setdefault(key.category, []).append(found)
        return cls(tuple(Attributes(category, tuple(those)) for category, those in by_category.items()))

    def facts(self) -> dict[Key, tuple[Value, ...]]:
        """Return the bags of a request for one decision."""
        found: dict[Key, list[Value]] = {}
        for category in self.categories:
            for attribute in category.attributes:
                for of_type, value in attribute.values:
                    found.setdefault(key_of(category.category, attribute.id, of_type), []).append(value)
        return {key: tuple(values) for key, values in found.items()}

    def with_values(self, key: Key, values: Sequence[Value], *, added: bool = False) -> "Request":
        """Return the request with other values of an attribute, without an issuer, or with further ones."""
        categories = [*self.categories] if added else [one.without(key) for one in self.categories]
        if values and all(one.category != key.category for one in categories):
            categories.append(Attributes(key.category))
        new = (RequestAttribute(key.id, tuple((key.of, value) for value in values)),) if values else ()
        return replace(
            self,
            categories=tuple(
                replace(one, attributes=(*one.attributes, *new)) if one.category == key.category else one
                for one in categories
            ),
        )

    def alone(self, categories: Sequence[Attributes]) -> "Request":
        """Return a request for one decision, with these categories."""
        return replace(self, categories=tuple(categories), references=(), combined_decision=False)


def attribute(name: str, of_type: DataType, *values: Any, issuer: str | None = None) -> RequestAttribute:
    """Return an attribute with values of one type."""
    return RequestAttribute(name, tuple((of_type, value) for value in values), issuer)
