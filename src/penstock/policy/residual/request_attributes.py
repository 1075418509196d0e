"""How selectors see the attributes of a request, each of which is a bag of values of one data type.

A name is a path in an AuthZEN request, after words that say what is asked of the bag, and its data type unless it is
`string`:

| name | value |
|---|---|
| `subject.id`, `subject.type`, `resource.id`, `resource.type`, `action.name` | the value, if there is exactly one |
| `subject.properties.role`, likewise of `resource` and `action`; `context.ip` | the value, if there is exactly one |
| `integer subject.properties.age` | the value of another data type, if there is exactly one |
| `count subject.properties.role` | how many values there are |
| `has "nurse" subject.properties.role` | whether the value, written as a JSON string, is one of them |
| `list subject.properties.role` | all values in order, as a JSON array of strings: `["nurse","clerk"]` |

`subject.properties.` is followed by the id of an attribute of XACML's access subject, and `context.` by one of the
environment; the paths of the first row are `subject-id`, `resource-id` and `action-id` of XACML 1.0, and Penstock's
attributes for the types. Strings, booleans, integers of 64 bits and doubles are values of selectors; all other values
are the texts that XACML writes. In all other cases, and for bags of more than 1,000 values, the value is NULL: a
selector over a request is TRUE only if it could see everything that it names.

`compile_request_set` turns such a selector into a function of facts; `bound_values` returns the attributes that it
binds to one value, by which sets can be found quickly.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final, TypeAlias, TypeVar

from penstock.errors import EvaluationError, MalformedError
from penstock.model.values import INTEGER_MAX, INTEGER_MIN, Scalar
from penstock.policy.language.datatypes import BOOLEAN, DOUBLE, INTEGER, STRING, TYPES, XPATH, DataType, Value
from penstock.policy.language.requests import (
    ACTION,
    ACTION_ID,
    ENVIRONMENT,
    RESOURCE,
    RESOURCE_ID,
    RESOURCE_TYPE,
    SUBJECT,
    SUBJECT_ID,
    SUBJECT_TYPE,
    Facts,
    Key,
    key_of,
)
from penstock.policy.limits import REQUEST_SET_BAG
from penstock.selector import ALWAYS, Selector, compile_selector
from penstock.selector.ast import And, AttributeReference, Compare, ComparisonOperator, Condition, Literal, Not

_PATHS: Final[Mapping[str, tuple[str, str]]] = {
    "subject.id": (SUBJECT, SUBJECT_ID),
    "subject.type": (SUBJECT, SUBJECT_TYPE),
    "resource.id": (RESOURCE, RESOURCE_ID),
    "resource.type": (RESOURCE, RESOURCE_TYPE),
    "action.name": (ACTION, ACTION_ID),
}
_NAMED: Final = {attribute: path for path, attribute in _PATHS.items()}
_PREFIXES: Final[Mapping[str, str]] = {
    SUBJECT: "subject.properties.",
    RESOURCE: "resource.properties.",
    ACTION: "action.properties.",
    ENVIRONMENT: "context.",
}
#: texts of paths are relative to a document, so that equal texts can mean different things
_TYPES: Final[Mapping[str, DataType]] = {one.name: one for one in TYPES if one is not XPATH}
_PLAIN: Final = (STRING, BOOLEAN, INTEGER, DOUBLE)


class Aspect(StrEnum):
    """What a name asks of a bag."""

    VALUE = ""
    COUNT = "count"
    HAS = "has"
    LIST = "list"


@dataclass(frozen=True, slots=True)
class RequestTerm:
    """A name in a selector over a request: an attribute, what is asked of its bag, and the text of a value."""

    key: Key
    aspect: Aspect = Aspect.VALUE
    text: str = ""

    @property
    def name(self) -> str:
        """The name. Raises `MalformedError` (`policy.request-attribute`) for attributes that have none."""
        key = self.key
        if key.category not in _PREFIXES or _TYPES.get(key.of.name) is not key.of or not key.id:
            raise _unknown(f"{key.of} {key.id}")
        words = [self.aspect.value] if self.aspect else []
        if self.aspect is Aspect.HAS:
            words.append(json.dumps(self.text, ensure_ascii=False))
        if key.of is not STRING:
            words.append(key.of.name)
        name = " ".join([*words, _NAMED.get((key.category, key.id)) or f"{_PREFIXES[key.category]}{key.id}"])
        if not name.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in name):
            raise _unknown(name)
        return name

    def value(self, bag: Sequence[Value]) -> Scalar:
        """Return the value for a request with this bag."""
        match self.aspect:
            case Aspect.COUNT:
                return len(bag)
            case Aspect.VALUE:
                return _scalar(self.key.of, bag[0]) if len(bag) == 1 else None
            case _ if len(bag) > REQUEST_SET_BAG:
                return None
            case Aspect.HAS:
                return self.text in map(self.key.of.write, bag)
            case Aspect.LIST:
                return list_text(self.key.of, bag)


def always_single(key: Key) -> bool:
    """Return whether every request in AuthZEN's form has exactly one value of an attribute."""
    return key.of is STRING and (key.category, key.id) in _NAMED


def list_text(of_type: DataType, bag: Sequence[Value]) -> str:
    """Return the values of a bag in order, as a JSON array of strings."""
    return json.dumps([*map(of_type.write, bag)], ensure_ascii=False, separators=(",", ":"))


def _scalar(of_type: DataType, value: Value) -> Scalar:
    if of_type is INTEGER and not INTEGER_MIN <= value <= INTEGER_MAX:
        return None
    found: Scalar = value if of_type in _PLAIN else of_type.write(value)
    return found


@lru_cache(4_096)
def request_term(name: str) -> RequestTerm:
    """Read a name. Raises `MalformedError` (`policy.request-attribute`).

    >>> request_term('has "nurse" subject.properties.role').text
    'nurse'
    """
    word, _, rest = name.partition(" ")
    aspect, text = Aspect.VALUE, ""
    if word in (Aspect.COUNT, Aspect.HAS, Aspect.LIST) and rest:
        aspect = Aspect(word)
    else:
        rest = name
    if aspect is Aspect.HAS:
        text, rest = _quoted(rest, name)
    of_type = STRING
    word, _, path = rest.partition(" ")
    if word in _TYPES and word != STRING.name and path:
        of_type, rest = _TYPES[word], path
    found = RequestTerm(key_of(*_attribute(rest, name), of_type), aspect, text)
    if found.name != name:
        raise _unknown(name)
    return found


def _quoted(rest: str, name: str) -> tuple[str, str]:
    try:
        text, end = json.JSONDecoder().raw_decode(rest)
    except (ValueError, RecursionError):
        raise _unknown(name) from None
    if not isinstance(text, str) or rest[end : end + 1] != " ":
        raise _unknown(name)
    return text, rest[end + 1 :]


def _attribute(path: str, name: str) -> tuple[str, str]:
    if path in _PATHS:
        return _PATHS[path]
    for category, prefix in _PREFIXES.items():
        if path.startswith(prefix):
            return category, path.removeprefix(prefix)
    raise _unknown(name)


def _unknown(name: str) -> MalformedError:
    return MalformedError(
        "policy.request-attribute",
        f"`{name[:120]}` is not an attribute of a request that selectors can name",
        hint="write `subject.id`, `subject.properties.NAME`, `context.NAME` and so on",
    )


# ----------------------------------------------------------------------------------------------------------------------
# Sets of requests.

Belongs: TypeAlias = Callable[[Facts], bool]
"""Returns whether a request belongs to a set."""
R = TypeVar("R")
BagReader: TypeAlias = Callable[[R], Sequence[Value]]
"""Returns the bag of one attribute of a request."""


def compile_request_set(selector: Selector) -> Belongs:
    """Return a function that says whether a request belongs to the set: whether the selector is TRUE for it.

    Raises `MalformedError` (`policy.request-attribute`) for a name that is not an attribute of a request.
    """

    def bag_of(key: Key) -> BagReader[Facts]:
        return lambda facts: facts.get(key, ())

    return compile_set_over(selector, bag_of, bag_of)


def compile_set_over(
    selector: Selector, bag_of: Callable[[Key], BagReader[R]], texts_of: Callable[[Key], BagReader[R]]
) -> Callable[[R], bool]:
    """Return a function as `compile_request_set` does, for requests that are not `Facts`: the caller reads their bags.

    Bags are tuples. `texts_of` is for attributes that are strings, where only texts are looked for: its bags can also
    contain other values. Conjunctions of simple conditions, as `holds_for` writes them, take less than a microsecond.
    """
    terms = {name: request_term(name) for name in selector.attributes}

    def test_of(part: Condition) -> Callable[[R], bool] | None:
        """Return a quick test with the meaning of a simple condition; None for others."""
        match part:
            case Compare(ComparisonOperator.EQ, AttributeReference(name), Literal(str() as value)):
                term = terms[name]
                if term.aspect is Aspect.VALUE and term.key.of is STRING:
                    return _equal(bag_of(term.key), (value,))
            case AttributeReference(name) if terms[name].aspect is Aspect.HAS and terms[name].key.of is STRING:
                return _having(texts_of(terms[name].key), terms[name].text)
            case Not(AttributeReference(name)) if terms[name].aspect is Aspect.HAS and terms[name].key.of is STRING:
                return _lacking(texts_of(terms[name].key), terms[name].text)
            case Compare(ComparisonOperator.EQ, AttributeReference(name), Literal(int() as value)):
                if terms[name].aspect is Aspect.COUNT and value == 0:
                    return _equal(bag_of(terms[name].key), ())
        return None

    tests = [test_of(part) for part in _parts(selector.root)]
    quick = [test for test in tests if test is not None]
    if len(quick) == len(tests):
        return _all_of(quick)
    matches = compile_selector(selector)
    read = [(name, term, bag_of(term.key)) for name, term in terms.items()]

    def belongs(request: R) -> bool:
        try:
            return matches({name: term.value(bag(request)) for name, term, bag in read}) is True
        except EvaluationError:
            return False

    return belongs


def bound_values(selector: Selector) -> dict[Key, Value]:
    """Return the attributes of which every request in the set has exactly one value, and always the same.

    Only strings count. Raises `MalformedError` (`policy.request-attribute`).

    >>> from penstock.selector import parse
    >>> [*bound_values(parse("\\"resource.id\\" = 'r7' AND \\"integer context.level\\" > 3")).values()]
    ['r7']
    """
    found: dict[Key, Value] = {}
    for part in _parts(selector.root):
        match part:
            case Compare(ComparisonOperator.EQ, AttributeReference(name), Literal(str() as value)):
                term = request_term(name)
                if term.aspect is Aspect.VALUE and term.key.of is STRING:
                    found[term.key] = value
    return found


def _parts(root: Condition) -> Iterator[Condition]:
    if isinstance(root, And):
        yield from root.operands
    elif root != ALWAYS.root:
        yield root


def _equal(bag: BagReader[R], wanted: tuple[Value, ...]) -> Callable[[R], bool]:
    return lambda request: bag(request) == wanted


def _having(bag: BagReader[R], text: str) -> Callable[[R], bool]:
    return lambda request: text in (found := bag(request)) and len(found) <= REQUEST_SET_BAG


def _lacking(bag: BagReader[R], text: str) -> Callable[[R], bool]:
    return lambda request: text not in (found := bag(request)) and len(found) <= REQUEST_SET_BAG


def _all_of(tests: list[Callable[[R], bool]]) -> Callable[[R], bool]:
    if len(tests) == 1:
        return tests[0]

    def belongs(request: R) -> bool:
        for test in tests:  # noqa: SIM110  # a generator would take longer
            if not test(request):
                return False
        return True

    return belongs
