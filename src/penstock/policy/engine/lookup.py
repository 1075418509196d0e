"""Where values and policies come from: the request, its contents, the clock, and other sources (section 7.3, 10.2.5).

`Repository` finds policies by id and version; a policy that cannot be read affects nothing but itself. If resources are
a hierarchy, it also knows the ancestors of each resource.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from itertools import chain, islice
from types import MappingProxyType
from typing import Final, Protocol

from penstock.errors import EvaluationError, MalformedError, PenstockError
from penstock.policy.language.datatypes import (
    DATE,
    DATE_TIME,
    TIME,
    XPATH,
    DataType,
    Value,
    XPathExpression,
    failed,
    read_value,
)
from penstock.policy.language.policies import (
    ContentSelector,
    Designator,
    Policy,
    PolicyReference,
    PolicySet,
    Root,
    check_issuers,
    inner_policies,
    version_key,
)
from penstock.policy.language.requests import ENVIRONMENT, RESOURCE, RESOURCE_ID, Content, Facts, Request, key_of
from penstock.policy.language.results import MissingAttribute, PolicyOutcome, XacmlDecision
from penstock.policy.language.times import Date, DateTime, Time, parts_of
from penstock.policy.limits import POLICY_NESTED, POLICY_RESOURCES

_ENVIRONMENT_ID: Final = "urn:oasis:names:tc:xacml:1.0:environment:"
_NOW: Final = {
    f"{_ENVIRONMENT_ID}current-time": TIME,
    f"{_ENVIRONMENT_ID}current-date": DATE,
    f"{_ENVIRONMENT_ID}current-dateTime": DATE_TIME,
}


#: attributes of a resource that give its position in a hierarchy
PARENT: Final = "urn:oasis:names:tc:xacml:2.0:resource:resource-parent"
ANCESTOR: Final = "urn:oasis:names:tc:xacml:2.0:resource:resource-ancestor"
ANCESTOR_OR_SELF: Final = "urn:oasis:names:tc:xacml:2.0:resource:resource-ancestor-or-self"
ABOVE: Final = (PARENT, ANCESTOR, ANCESTOR_OR_SELF)


class PolicySources(Protocol):
    """External sources of a policy: other policies, and attributes that the request does not have."""

    def policy(self, reference: PolicyReference) -> Root:
        """Return the newest policy that matches a reference. Raises `RefusedError` or `MalformedError`."""

    def attribute(self, wanted: Designator, request: Request, /) -> Sequence[Value]:
        """Return values of an attribute that the request does not have. Raises `EvaluationError`."""

    def children(self, resource: Value, /) -> Sequence[Value]:
        """Return the resources directly below one, if resources form a hierarchy. Raises `EvaluationError`."""

    def parents(self, resource: Value, /) -> Sequence[Value] | None:
        """Return the resources directly above one; None if resources do not form a hierarchy.

        Raises `EvaluationError`.
        """


class _Asked:
    """The number of requests that one request has caused."""

    def __init__(self) -> None:
        self._count = 0

    def add(self) -> None:
        """Count one more. Raises `EvaluationError` if there are too many."""
        self._count += 1
        self.check()

    def check(self) -> None:
        """Check that there are not too many. Raises `EvaluationError`."""
        if self._count > POLICY_NESTED:
            raise failed("one request causes too many others")


class Context:
    """One request during its evaluation: values that were looked up stay the same until it is decided."""

    __slots__ = ("_found", "_nested", "_request", "facts", "memory", "names", "now", "policy", "sources")

    def __init__(
        self, request: Request | None, now: datetime, sources: PolicySources, facts: Facts | None = None
    ) -> None:
        self._request = request
        self.now = now
        self.sources = sources
        self.facts: Facts = facts or {} if request is None else request.facts()
        #: whether the names of applicable policies are wanted
        self.names = request is not None and request.return_policy_ids
        #: values that compiled policies have computed
        self.memory: dict[object, Value] = {}
        #: evaluates the whole policy; set by the first policy that is evaluated
        self.policy: Callable[[Context], PolicyOutcome] | None = None
        #: the number of requests that the first one has caused
        self._nested: _Asked | None = None
        self._found: dict[Designator | ContentSelector, tuple[Value, ...]] = {}

    @property
    def request(self) -> Request:
        """The request."""
        if self._request is None:
            self._request = Request.of_facts(self.facts)
        return self._request

    def designated(self, wanted: Designator) -> tuple[Value, ...]:
        """Return the bag of an attribute (section 7.3.5). Raises `EvaluationError` (`xacml.missing`)."""
        found = self.bag(wanted)
        if wanted.must_be_present and not found:
            missing = MissingAttribute(wanted.category, wanted.id, wanted.of, wanted.issuer)
            raise EvaluationError("xacml.missing", f"attribute `{wanted.id[:120]}` is not there", missing=missing)
        return found

    def bag(self, wanted: Designator) -> tuple[Value, ...]:
        """Return the bag of an attribute; it can be empty. Raises `EvaluationError`."""
        found = self._found.get(wanted)
        if found is None:
            found = self._found[wanted] = tuple(self._in_request(wanted) or self._elsewhere(wanted))
        return found

    def _in_request(self, wanted: Designator) -> Sequence[Value]:
        if wanted.issuer is None:
            return self.facts.get(wanted.key, ())
        return [
            value
            for category in self.request.of(wanted.category)
            for attribute in category.by_id.get(wanted.id, ())
            if attribute.issuer == wanted.issuer
            for of_type, value in attribute.values
            if of_type is wanted.of
        ]

    def _elsewhere(self, wanted: Designator) -> Sequence[Value]:
        if is_clock(wanted):
            return (_clock(self.now, wanted.of),)
        found = self.sources.attribute(wanted, self.request)
        if not found and wanted.category == RESOURCE and wanted.issuer is None and wanted.id in ABOVE:
            return self._above(wanted)
        return found

    def _above(self, wanted: Designator) -> Sequence[Value]:
        """Return the resources above the requested one (hierarchical resource profile, 3)."""
        own = self.facts.get(key_of(RESOURCE, RESOURCE_ID, wanted.of), ())
        if any(self.sources.parents(one) is None for one in own):
            return ()
        above = levels(own, lambda resource: self.sources.parents(resource) or ())
        itself = next(above)
        found = [*next(above, ())] if wanted.id == PARENT else [one for level in above for one in level]
        return [*itself, *found] if wanted.id == ANCESTOR_OR_SELF else found

    # --- other requests -----------------------------------------------------------------------------------------

    def permitted(self, category: str, content: str) -> bool:
        """Return whether a request that differs from this one in a category is permitted (A.3.16).

        All requests that one request causes are counted together; if there are too many, none is answered. Raises
        `EvaluationError`.
        """
        # lxml takes a while, and nearly all policies ask no such thing.
        from penstock.policy.syntax.xml.requests import read_attributes  # noqa: PLC0415

        if self.policy is None:
            raise failed("there is no policy to ask")
        counted = self._nested = self._nested or _Asked()
        counted.add()
        try:
            others = [one for one in self.request.categories if one.category != category]
            asked = Context(self.request.alone([*others, read_attributes(category, content)]), self.now, self.sources)
            asked.policy, asked._nested = self.policy, counted
            permitted = self.policy(asked).decision is XacmlDecision.PERMIT
        except RecursionError:
            raise failed("requests that cause others are nested too deeply") from None
        except MalformedError as error:
            raise EvaluationError("xacml.value", error.message) from None
        except PenstockError as error:
            raise failed(error.message) from None
        counted.check()
        return permitted

    # --- contents -----------------------------------------------------------------------------------------------

    def selected(self, wanted: ContentSelector) -> tuple[Value, ...]:
        """Return the bag that a path selects (section 7.3.7). Raises `EvaluationError` (`xacml.missing` too)."""
        found = self._found.get(wanted)
        if found is None:
            found = self._found[wanted] = self._select(wanted)
        if wanted.must_be_present and not found:
            missing = MissingAttribute(wanted.category, wanted.path, wanted.of)
            raise EvaluationError("xacml.missing", f"path `{wanted.path[:120]}` finds nothing", missing=missing)
        return found

    def _select(self, wanted: ContentSelector) -> tuple[Value, ...]:
        content = self._content(wanted.category)
        if content is None:
            return ()
        start = None if wanted.context is None else self._start(content, wanted)
        nodes = nodes_of(content, wanted, start)
        return tuple(_read(content, node, wanted.of) for node in nodes)

    def _start(self, content: Content, wanted: ContentSelector) -> object:
        """Return the node at which a path begins (section 7.3.7, step 3)."""
        paths = self._in_request(Designator(wanted.category, wanted.context or "", XPATH))
        if len(paths) != 1 or paths[0].category != wanted.category:
            raise _syntax(f"there is not one path `{(wanted.context or '')[:120]}` in the category of the selector")
        nodes = nodes_of(content, paths[0])
        if len(nodes) != 1:
            raise _syntax(f"path `{paths[0].path[:120]}`, where another begins, finds {len(nodes)} nodes, and not one")
        return nodes[0]

    def paths(self, name: str, arguments: Sequence[XPathExpression]) -> Value:
        """Count the nodes that a path finds, or compare those of two (A.3.15). Raises `EvaluationError`."""
        found = [self._nodes(argument) for argument in arguments]
        if name == "xpath-node-count":
            return len(found[0][1])
        (content, first), (other, second) = found
        if content is None or content is not other:
            return False
        chosen = {id(one) for one in first}
        levels = 1 if name == "xpath-node-equal" else None
        return any(id(one) in chosen for two in second for one in islice(content.around(two), levels))

    def _nodes(self, path: XPathExpression) -> tuple[Content | None, Sequence[object]]:
        content = self._content(path.category)
        return content, () if content is None else nodes_of(content, path)

    def _content(self, category: str) -> Content | None:
        return next((one.content for one in self.request.of(category) if one.content is not None), None)


def nodes_of(
    content: Content, path: "XPathExpression | ContentSelector", start: object | None = None
) -> Sequence[object]:
    """Return the nodes that a path selects (section 7.3.7, step 4). Raises `EvaluationError`.

    A path whose result is a number, a text or a boolean is a syntax error: otherwise `false` would count as a node.
    """
    found = content.select(path.path, path.prefixes, path.version, start)
    if any(next(iter(content.around(one)), None) is None for one in found):
        raise _syntax(f"path `{path.path[:120]}` does not find nodes")
    return found


def _syntax(message: str) -> EvaluationError:
    return EvaluationError("xacml.value", message)


def is_clock(wanted: Designator) -> bool:
    """Return whether an attribute is the current time or date, which is known even if the request lacks it."""
    return wanted.category == ENVIRONMENT and _NOW.get(wanted.id) is wanted.of and wanted.issuer is None


def _read(content: Content, node: object, of_type: DataType) -> Value:
    text = content.text(node)
    if text is None:
        raise failed("a path selects nodes that are not values")
    try:
        return read_value(text, of_type)
    except MalformedError as error:
        raise failed(error.message) from None


def _clock(now: datetime, of_type: DataType) -> Value:
    days, seconds = parts_of(now)
    offset = now.utcoffset()
    zone = 0 if offset is None else int(offset.total_seconds() // 60)
    if of_type is TIME:
        return Time(0, seconds, zone)
    return Date(days, Decimal(0), zone) if of_type is DATE else DateTime(days, seconds, zone)


def levels(resources: Sequence[Value], following: Callable[[Value], Sequence[Value]]) -> Iterator[Sequence[Value]]:
    """Yield resources level by level, each once.

    Raises `EvaluationError` (`xacml.processing`) if there are too many, and what `following` raises.
    """
    level = [*dict.fromkeys(resources)]
    seen = {*level}
    yield level
    while level:
        level = [*dict.fromkeys(one for resource in level for one in following(resource) if one not in seen)]
        seen.update(level)
        if len(seen) > POLICY_RESOURCES:
            raise failed("a hierarchy has too many resources")
        if level:
            yield level


class NoSources:
    """Nothing but the request."""

    def policy(self, reference: PolicyReference) -> Root:
        """Raise `EvaluationError` (`xacml.unknown`): there are no policies."""
        raise EvaluationError("xacml.unknown", f"policy `{reference.id[:120]}` is not known")

    def attribute(self, _wanted: Designator, _request: Request, /) -> Sequence[Value]:
        """Return no values."""
        return ()

    def children(self, _resource: Value, /) -> Sequence[Value]:
        """Raise `EvaluationError` (`xacml.hierarchy`): there is no hierarchy."""
        raise EvaluationError("xacml.hierarchy", "resources do not form a hierarchy here")

    def parents(self, _resource: Value, /) -> Sequence[Value] | None:
        """Return None: there is no hierarchy."""
        return None


def check_policies(roots: Sequence[Root], referred: Sequence[Root] = ()) -> None:
    """Check that policies have different ids, and that all references can be resolved.

    `roots` decide, and `referred` can be referred to. Raises `MalformedError`: `xacml.duplicate` for two policies, or
    two policy sets, with the same id and version, nested or not; `xacml.unknown` for a dangling reference;
    `xacml.cycle` for a policy set that contains itself.
    """
    seen: set[tuple[str, str, bool]] = set()
    for one in chain.from_iterable(map(inner_policies, (*roots, *referred))):
        name = (one.id, one.version, isinstance(one, PolicySet))
        if name in seen:
            raise MalformedError(
                "xacml.duplicate",
                f"two policies have the id `{one.id[:120]}` and the version {one.version}",
                hint="give one of them another id or version; refer to a policy instead of repeating it",
            )
        seen.add(name)
    known, done = Repository(referred), set[int]()
    for root in (*roots, *referred):
        _check_references(root, known, (), done)


def _check_references(root: Root, known: "Repository", around: tuple[PolicySet, ...], done: set[int]) -> None:
    """Check the references of a policy, recursively; each policy once."""
    if isinstance(root, Policy) or id(root) in done:
        return
    around = (*around, root)
    for member in root.members:
        found = _referred(member, known, around) if isinstance(member, PolicyReference) else member
        if any(found is one for one in around):
            path = " > ".join(f"`{one.id[:60]}`" for one in (*around, found))
            message = f"a policy set is within itself: {path}"
            raise MalformedError("xacml.cycle", message, hint="take one of the references out")
        _check_references(found, known, around, done)
    done.add(id(root))


def _referred(reference: PolicyReference, known: "Repository", around: tuple[PolicySet, ...]) -> Root:
    try:
        return known.policy(reference)
    except EvaluationError as error:
        # A reference to the deciding policy is a cycle too, although it cannot be resolved.
        for one in around:
            if reference.to_set and reference.id == one.id and reference.suits(one.version):
                return one
        message = f"policy set `{around[-1].id[:120]}` refers to what is not there: {error.message}"
        hint = "add the policy that it refers to, or correct its id and versions"
        raise MalformedError("xacml.unknown", message, hint=hint) from None


class Repository(NoSources):
    """Policies that others can refer to, except policies nested in a policy set; and the hierarchy of resources.

    >>> Repository(above={"docs/a": ["docs"], "docs/b": ["docs"]}).children("docs")
    ['docs/a', 'docs/b']
    """

    def __init__(
        self, policies: Iterable[Root] = (), above: Mapping[Value, Sequence[Value]] = MappingProxyType({})
    ) -> None:
        self._above = above
        self._below: dict[Value, list[Value]] = {}
        for resource, parents in above.items():
            for parent in parents:
                self._below.setdefault(parent, []).append(resource)
        self._known: dict[tuple[str, bool], list[Root]] = {}
        for one in policies:
            self._known.setdefault((one.id, isinstance(one, PolicySet)), []).append(one)
        self._checked: set[int] = set()

    def policy(self, reference: PolicyReference) -> Root:
        """Return the newest policy that matches a reference.

        Raises `EvaluationError` (`xacml.unknown`), `MalformedError` (`xacml.issuer`).
        """
        known = self._known.get((reference.id, reference.to_set), ())
        suitable = [one for one in known if reference.suits(one.version)]
        if not suitable:
            raise EvaluationError("xacml.unknown", f"policy `{reference.id[:120]}` is not known")
        found = max(suitable, key=lambda one: version_key(one.version))
        if id(found) not in self._checked:
            check_issuers(found)
            self._checked.add(id(found))
        return found

    def children(self, resource: Value, /) -> Sequence[Value]:
        """Return the resources directly below one. Raises `EvaluationError` (`xacml.hierarchy`)."""
        return self._below.get(resource, ()) if self._above else super().children(resource)

    def parents(self, resource: Value, /) -> Sequence[Value] | None:
        """Return the resources directly above one; None if resources do not form a hierarchy."""
        return self._above.get(resource, ()) if self._above else None
