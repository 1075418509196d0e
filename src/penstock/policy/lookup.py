"""Where values come from: the request, its contents, the clock, and what is asked of others (section 7.3, 10.2.5)."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Final, Protocol

from penstock.errors import EvaluationError, MalformedError
from penstock.policy.datatypes import DATE, DATE_TIME, TIME, XPATH, DataType, Value, XPathExpression, read_value
from penstock.policy.expressions import Designator, Selector
from penstock.policy.policies import PolicyReference, Root
from penstock.policy.requests import ENVIRONMENT, Content, Facts, Request
from penstock.policy.results import Missing
from penstock.policy.signatures import failed
from penstock.policy.times import Date, DateTime, Time, days_of

_ENVIRONMENT_ID: Final = "urn:oasis:names:tc:xacml:1.0:environment:"
_NOW: Final = {
    f"{_ENVIRONMENT_ID}current-time": TIME,
    f"{_ENVIRONMENT_ID}current-date": DATE,
    f"{_ENVIRONMENT_ID}current-dateTime": DATE_TIME,
}


class Sources(Protocol):
    """What a policy may need besides the request: other policies, and attributes that the request does not have."""

    def policy(self, reference: PolicyReference) -> Root:
        """Return the newest policy that a reference means. Raises `RefusedError` or `MalformedError`."""

    def attribute(self, wanted: Designator, request: Request, /) -> Sequence[Value]:
        """Return values of an attribute that the request does not have. Raises `EvaluationError`."""

    def children(self, resource: Value, /) -> Sequence[Value]:
        """Return the resources right below one, where resources are a hierarchy. Raises `EvaluationError`."""


class Context:
    """One request, seen by a policy: what was looked up once stays the same until it is decided."""

    __slots__ = ("_found", "_request", "facts", "memory", "names", "now", "sources")

    def __init__(self, request: Request | None, now: datetime, sources: Sources, facts: Facts | None = None) -> None:
        self._request = request
        self.now = now
        self.sources = sources
        self.facts: Facts = facts or {} if request is None else request.facts()
        #: whether it is wanted which policies were applicable
        self.names = request is not None and request.return_policy_ids
        #: what compiled policies have worked out already
        self.memory: dict[object, Value] = {}
        self._found: dict[Designator | Selector, tuple[Value, ...]] = {}

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
            missing = Missing(wanted.category, wanted.id, wanted.of, wanted.issuer)
            raise EvaluationError("xacml.missing", f"attribute `{wanted.id[:120]}` is not there", missing=missing)
        return found

    def bag(self, wanted: Designator) -> tuple[Value, ...]:
        """Return the bag of an attribute, which may be empty. Raises `EvaluationError`."""
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
        if wanted.category == ENVIRONMENT and _NOW.get(wanted.id) is wanted.of and wanted.issuer is None:
            return (_clock(self.now, wanted.of),)
        return self.sources.attribute(wanted, self.request)

    # --- contents -----------------------------------------------------------------------------------------------

    def selected(self, wanted: Selector) -> tuple[Value, ...]:
        """Return the bag of what a path finds (section 7.3.7). Raises `EvaluationError` (`xacml.missing` too)."""
        found = self._found.get(wanted)
        if found is None:
            found = self._found[wanted] = self._select(wanted)
        if wanted.must_be_present and not found:
            missing = Missing(wanted.category, wanted.path, wanted.of)
            raise EvaluationError("xacml.missing", f"path `{wanted.path[:120]}` finds nothing", missing=missing)
        return found

    def _select(self, wanted: Selector) -> tuple[Value, ...]:
        content = self._content(wanted.category)
        if content is None:
            return ()
        start = None if wanted.context is None else self._start(content, wanted)
        nodes = content.select(wanted.path, wanted.prefixes, wanted.version, start)
        return tuple(_read(content, node, wanted.of) for node in nodes)

    def _start(self, content: Content, wanted: Selector) -> object:
        paths = self._in_request(Designator(wanted.category, wanted.context or "", XPATH))
        if len(paths) != 1:
            raise failed("there is not one path to where another begins")
        nodes = content.select(paths[0].path, paths[0].prefixes, paths[0].version)
        if len(nodes) != 1:
            raise failed("a path to where another begins does not find one node")
        return nodes[0]

    def paths(self, name: str, arguments: Sequence[XPathExpression]) -> Value:
        """Count the nodes that a path finds, or compare those of two (A.3.15). Raises `EvaluationError`."""
        found = [self._nodes(argument) for argument in arguments]
        if name == "xpath-node-count":
            return len(found[0][1])
        (content, first), (other, second) = found
        if content is None or content is not other:
            return False
        if name == "xpath-node-equal":
            return any(content.path(one) == content.path(two) for one in first for two in second)
        return any(content.below(two, one) for one in first for two in second)

    def _nodes(self, path: XPathExpression) -> tuple[Content | None, Sequence[object]]:
        content = self._content(path.category)
        return content, () if content is None else content.select(path.path, path.prefixes, path.version)

    def _content(self, category: str) -> Content | None:
        return next((one.content for one in self.request.of(category) if one.content is not None), None)


def _read(content: Content, node: object, of_type: DataType) -> Value:
    text = content.text(node)
    if text is None:
        raise failed("a path finds nodes that are no values")
    try:
        return read_value(text, of_type)
    except MalformedError as error:
        raise failed(error.message) from None


def _clock(now: datetime, of_type: DataType) -> Value:
    days = days_of(now.year, now.month, now.day)
    seconds = Decimal(now.hour * 3600 + now.minute * 60 + now.second) + Decimal(now.microsecond) / 1_000_000
    offset = now.utcoffset()
    zone = 0 if offset is None else int(offset.total_seconds() // 60)
    if of_type is TIME:
        return Time(0, seconds, zone)
    return Date(days, Decimal(0), zone) if of_type is DATE else DateTime(days, seconds, zone)


class NoSources:
    """Nothing but the request."""

    def policy(self, reference: PolicyReference) -> Root:
        """Find no policy. Raises `EvaluationError` (`xacml.unknown`)."""
        raise EvaluationError("xacml.unknown", f"policy `{reference.id[:120]}` is not known")

    def attribute(self, _wanted: Designator, _request: Request, /) -> Sequence[Value]:
        """Find no attribute."""
        return ()

    def children(self, _resource: Value, /) -> Sequence[Value]:
        """Find nothing below. Raises `EvaluationError` (`xacml.hierarchy`)."""
        raise EvaluationError("xacml.hierarchy", "resources are no hierarchy here")
