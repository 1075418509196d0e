"""Which components depend on each other (section 4.2.1 of paper 4). Everything here is pure.

A decision point depends on an information point that provides an attribute that its policies require; an enforcement
point depends on a decision point that decides about an action that it requires. Requesters publish what they require.
Repliers compare it with what they provide (`DependencyList`), and read the requests of nobody else: the key of a
request begins with its requester, so that what a replier filters out is not sent to it.

An attribute is written `subject/rank`, an action `account/deposit`: a resource type and an action, `*` for all. Special
characters are percent-encoded. What policies require and decide about follows from the policies (`PolicyNeeds`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Final, TypeAlias
from urllib.parse import quote, unquote

from penstock.authority.decisions.coverage import PLAIN_ALGORITHMS
from penstock.authority.decisions.questions import KEY_ACTION_ID, KEY_RESOURCE_TYPE, RESERVED
from penstock.authority.limits import POINT_KEYS
from penstock.errors import MalformedError, PenstockError
from penstock.policy.engine.index import necessary
from penstock.policy.engine.lookup import PolicySources, is_clock
from penstock.policy.language.policies import (
    Designator,
    Policy,
    PolicyReference,
    PolicySet,
    Root,
    Rule,
    Target,
    designators,
    versioned,
)
from penstock.policy.language.requests import ACTION, ENVIRONMENT, RESOURCE, SUBJECT, Facts, Key

Names: TypeAlias = frozenset[str]
"""Attributes, or actions on resource types, as the module says how they are written."""
Requester: TypeAlias = tuple[str, str]
"""The domain and the id of a component."""

#: the categories of attributes that information points provide, by the words for them
CATEGORIES: Final[Mapping[str, str]] = {
    "subject": SUBJECT, "resource": RESOURCE, "action": ACTION, "environment": ENVIRONMENT
}  # fmt: skip
_WORDS: Final = {category: word for word, category in CATEGORIES.items()}
_ANY: Final = "*"
#: resource types and actions for which needs are remembered
_REMEMBERED: Final = 4_096

# ----------------------------------------------------------------------------------------------------------------------
# Names, and when one set of them meets another.


def _quoted(text: str) -> str:
    return quote(text, safe=":@,")


def attribute_name(category: str, attribute: str) -> str | None:
    """Return the name of an attribute; None if no information point provides attributes of its category.

    >>> attribute_name(SUBJECT, "urn:rank/x")
    'subject/urn:rank%2Fx'
    """
    word = _WORDS.get(category)
    return None if word is None else f"{word}/{_quoted(attribute)}"


def read_attribute_name(name: str) -> tuple[str, str]:
    """Return the category and the id of an attribute. Raises `MalformedError` (`component.required`)."""
    word, _, attribute = name.partition("/")
    if word not in CATEGORIES or not attribute or _quoted(unquote(attribute)) != attribute:
        raise MalformedError(
            "component.required",
            f"`{name[:80]}` is not an attribute",
            hint="write `subject/NAME`, `resource/NAME`, `action/NAME` or `environment/NAME`",
        )
    return CATEGORIES[word], unquote(attribute)


def action_name(resource_type: str | None, action: str | None) -> str:
    """Return the name of an action on a resource type; None for all.

    >>> action_name("account", None)
    'account/*'
    """
    return "/".join(_ANY if one is None else _quoted(one) for one in (resource_type, action))


def check_action_name(name: str) -> None:
    """Check the name of an action on a resource type. Raises `MalformedError` (`component.required`)."""
    parts = name.split("/")
    if len(parts) != 2 or not all(one == _ANY or (one and _quoted(unquote(one)) == one) for one in parts):
        raise MalformedError(
            "component.required", f"`{name[:80]}` is not an action", hint="write `RESOURCE-TYPE/ACTION`, or `*` for all"
        )


def attributes_meet(required: Names, provided: Names) -> bool:
    """Return whether one of the required attributes is provided."""
    return not required.isdisjoint(provided)


def actions_meet(required: Names, provided: Names) -> bool:
    """Return whether one of the required actions is provided; `*` stands for every type, or every action."""
    if not required.isdisjoint(provided):
        return True
    wild = [one for one in provided if _ANY in one]
    return any(_meet(one, other) for one in required for other in (provided if _ANY in one else wild))


def _meet(one: str, other: str) -> bool:
    # Names come from others: whatever is in them, it is compared.
    pairs = zip(one.partition("/"), other.partition("/"), strict=True)
    return all(left == right or _ANY in (left, right) for left, right in pairs)


# ----------------------------------------------------------------------------------------------------------------------
# The filter list of a replier.


@dataclass(frozen=True, slots=True)
class FilterChange:
    """The requesters whose requests a replier reads from now on, and those whose requests it reads no more."""

    read: frozenset[Requester] = frozenset()
    drop: frozenset[Requester] = frozenset()


class DependencyList:
    """What requesters require, and which of them a replier filters out.

    `meet` compares what is required with what is provided: `attributes_meet` or `actions_meet`. A requester that is not
    known, or that left, is neither read nor filtered.
    """

    def __init__(self, provided: Names, meet: Callable[[Names, Names], bool]) -> None:
        self._provided = provided
        self.meet = meet
        self._required: dict[Requester, Names] = {}
        self._read: set[Requester] = set()

    @property
    def provided(self) -> Names:
        """What the replier provides."""
        return self._provided

    @property
    def read(self) -> frozenset[Requester]:
        """The requesters whose requests are read."""
        return frozenset(self._read)

    @property
    def filtered(self) -> frozenset[Requester]:
        """The filter list: requesters that depend on nothing that is provided here."""
        return frozenset(self._required.keys() - self._read)

    def require(self, requester: Requester, names: Names) -> FilterChange:
        """Take what a requester requires now; nothing if it leaves or its lease has run out."""
        if names:
            self._required[requester] = names
        else:
            self._required.pop(requester, None)
        if (bool(names) and self.meet(names, self._provided)) is (requester in self._read):
            return FilterChange()
        self._read ^= {requester}
        one = frozenset({requester})
        return FilterChange(read=one) if requester in self._read else FilterChange(drop=one)

    def provide(self, provided: Names) -> FilterChange:
        """Provide other attributes or actions from now on."""
        before, self._provided = self._read, provided
        self._read = {one for one, names in self._required.items() if self.meet(names, provided)}
        return FilterChange(frozenset(self._read - before), frozenset(before - self._read))


def check_levels(levels: Mapping[Requester, int], topics: Mapping[Requester, Iterable[object]]) -> None:
    """Check that components of different sensitivity levels share no topic, so that there is a barrier between them.

    Raises `MalformedError` (`component.barrier`).
    """
    first: dict[object, Requester] = {}
    for component, level in sorted(levels.items()):
        for topic in topics.get(component, ()):
            other = first.setdefault(topic, component)
            if levels[other] != level:
                raise MalformedError(
                    "component.barrier",
                    f"{'/'.join(other)} of level {levels[other]} and {'/'.join(component)} of level {level}"
                    f" share topic {topic}",
                    hint="give components of different sensitivity levels topics with different numbers",
                )


# ----------------------------------------------------------------------------------------------------------------------
# What policies require, and which actions they decide about.


@dataclass(frozen=True, slots=True)
class _Scope:
    """Resource types and actions for which a part of a policy can apply; None for all."""

    types: frozenset[str] | None = None
    actions: frozenset[str] | None = None

    def within(self, target: Target) -> "_Scope":
        """Return what is left of the scope under a target. A question has one resource type and one action."""
        needed = {attribute.key: frozenset(map(str, values)) for attribute, values in necessary(target).items()}
        return _Scope(_both(self.types, needed.get(KEY_RESOURCE_TYPE)), _both(self.actions, needed.get(KEY_ACTION_ID)))

    @property
    def empty(self) -> bool:
        return self.types == frozenset() or self.actions == frozenset()

    def has(self, of_type: str, action: str) -> bool:
        return (self.types is None or of_type in self.types) and (self.actions is None or action in self.actions)

    def names(self) -> Iterator[str]:
        if len(self.types or _ANY) * len(self.actions or _ANY) > POINT_KEYS:
            yield action_name(None, None)
            return
        for of_type, action in product(self.types or (None,), self.actions or (None,)):
            yield action_name(of_type, action)


def _both(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    return other if one is None else one if other is None else one & other


@dataclass(frozen=True, slots=True)
class QuestionNeeds:
    """What decides a question about one resource type and one action: the policies, and the attributes they can use."""

    #: positions among the policies
    policies: tuple[int, ...]
    #: the attributes that information points may provide, with their names
    attributes: tuple[tuple[str, tuple[Key, ...]], ...]

    def missing(self, facts: Facts) -> Names:
        """Return the names of the attributes that are needed, and that the facts do not have in any wanted type."""
        return frozenset(name for name, keys in self.attributes if not any(key in facts for key in keys))


class PolicyNeeds:
    """What policies can use beyond what every question says, and which actions on resource types they decide about.

    A part of a policy whose target requires another resource type or another action is not applicable, whatever its
    attributes are. So these attributes are not required for the question.
    """

    def __init__(self, policies: Sequence[Root], sources: PolicySources) -> None:
        self._sources = sources
        self._parts: list[tuple[int, _Scope, frozenset[Designator]]] = []
        scopes: list[_Scope] = []
        for place, root in enumerate(policies):
            scopes += self._walk(root, _Scope(), place, ())
        self.of = lru_cache(_REMEMBERED)(self._of)
        #: the attributes that information points may provide
        self.attributes: Names = frozenset(
            name for _, _, wanted in self._parts for one in wanted if (name := _asked_for(one)) is not None
        )
        #: the actions on resource types outside of which no policy is applicable
        self.actions: Names = frozenset(name for scope in scopes for name in scope.names())
        #: the actions that targets name
        self.named_actions: frozenset[str] = frozenset(
            name for _, scope, _ in self._parts for name in scope.actions or ()
        )

    def _of(self, of_type: str, action: str) -> QuestionNeeds:
        """Return what decides a question."""
        policies: dict[int, None] = {}
        attributes: dict[str, dict[Key, None]] = {}
        for place, scope, wanted in self._parts:
            if scope.has(of_type, action):
                policies[place] = None
                for one in wanted:
                    name = _asked_for(one)
                    if name is not None:
                        attributes.setdefault(name, {})[one.key] = None
        return QuestionNeeds(
            tuple(sorted(policies)), tuple((name, tuple(keys)) for name, keys in sorted(attributes.items()))
        )

    def _walk(self, part: Root | Rule, around: _Scope, place: int, within: tuple[str, ...]) -> list[_Scope]:
        """Note what a part of a policy needs, and return the scopes outside of which it is not applicable."""
        scope = around.within(part.target)
        if scope.empty:
            return []
        if isinstance(part, Rule):
            self._parts.append((place, scope, frozenset(designators((part.target, part.condition, part.duties)))))
            return [scope]
        variables = part.variables if isinstance(part, Policy) else {}
        self._parts.append((place, scope, frozenset(designators((part.target, variables, part.duties)))))
        found: list[_Scope] = []
        for member in part.members if isinstance(part, PolicySet) else part.rules:
            if not isinstance(member, PolicyReference):
                found += self._walk(member, scope, place, within)
                continue
            try:
                referred = self._sources.policy(member)
            except PenstockError:
                found.append(scope)  # it makes decisions Indeterminate
                continue
            if versioned(referred) in within:
                found.append(scope)
            else:
                found += self._walk(referred, scope, place, (*within, versioned(referred)))
        return found if part.combining.endswith(PLAIN_ALGORITHMS) else [scope]


def _asked_for(wanted: Designator) -> str | None:
    """Return the name under which an attribute is asked for; None if a question has it, or nobody provides it."""
    if wanted.id in RESERVED or wanted.issuer is not None or is_clock(wanted):
        return None
    return attribute_name(wanted.category, wanted.id)
