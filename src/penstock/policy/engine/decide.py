"""Answer requests: one decision for each individual request (multiple-decision profile), or one combined decision.

Supported are repeated categories, references, a path that selects several nodes of a content
(`multiple:content-selector`), and hierarchical resources (`scope`).
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import islice, product
from typing import Final, TypeAlias

from penstock.errors import LimitError, MalformedError, PenstockError
from penstock.policy.engine.evaluate import evaluate, status_of
from penstock.policy.engine.lookup import Context, NoSources, PolicySources, levels, nodes_of
from penstock.policy.language.datatypes import XPATH, XPathExpression
from penstock.policy.language.policies import Root, check_issuers
from penstock.policy.language.requests import RESOURCE_ID, Attributes, Request, RequestAttribute
from penstock.policy.language.results import (
    PROCESSING_ERROR,
    DecisionStatus,
    PolicyOutcome,
    Response,
    Result,
    XacmlDecision,
)
from penstock.policy.limits import POLICY_REQUESTS

SCOPE: Final = "urn:oasis:names:tc:xacml:2.0:resource:scope"
#: the attribute's id in the profile, and in its drafts
MULTIPLE_SELECTORS: Final = (
    "urn:oasis:names:tc:xacml:3.0:profile:multiple:content-selector",
    "urn:oasis:names:tc:xacml:3.0:multiple:content-selector",
)
CONTENT_SELECTOR: Final = "urn:oasis:names:tc:xacml:3.0:content-selector"
#: attributes that ask for several decisions; unknown ones must not be answered as if they asked for one
_FAMILY: Final = re.compile(r"urn:oasis:names:tc:xacml:[0-9.]+:(?:(?:profile:)?multiple:.*|resource:scope)", re.DOTALL)
#: the number of levels of a hierarchy that a scope covers, from a resource down
_LEVELS: Final = {"Immediate": 1, "Children": 2, "Descendants": None}


Evaluator: TypeAlias = Callable[[Context], PolicyOutcome]
"""Evaluates a policy: `CompiledPolicy.evaluate`, or `plainly`."""


def plainly(root: Root) -> Evaluator:
    """Return the plain evaluator of a policy. Raises `MalformedError` (`xacml.issuer`)."""
    check_issuers(root)
    return partial(evaluate, root)


def decide(policy: Evaluator, request: Request, now: datetime, sources: PolicySources | None = None) -> Response:
    """Return the response to a request. Errors give Indeterminate."""
    found = sources or NoSources()
    try:
        singles = _bounded(single_requests(request, found))
        results = [_result(policy(Context(one, now, found)), one) for one in singles]
        return Response([_combined(results)] if request.combined_decision else results)
    except PenstockError as error:
        status = status_of(error)
    except Exception as error:  # noqa: BLE001  # whatever a source raises, it permits nothing
        status = DecisionStatus(PROCESSING_ERROR, f"an unexpected error: {type(error).__name__}")
    return Response([Result(XacmlDecision.INDETERMINATE_DP, status)])


def _bounded(requests: Iterator[Request]) -> list[Request]:
    """Return the individual requests. Raises `MalformedError` (`xacml.request`), `LimitError` (`xacml.limit`)."""
    most = POLICY_REQUESTS
    found = [*islice(requests, most + 1)]
    if len(found) > most:
        raise LimitError("xacml.limit", f"there are more than {most} requests in one")
    if not found:
        raise MalformedError("xacml.request", "the request asks for nothing: its path selects no node")
    return found


def _result(outcome: PolicyOutcome, request: Request) -> Result:
    wanted = tuple(
        replace(category, attributes=included, content=None)
        for category in request.categories
        if (included := tuple(one for one in category.attributes if one.include_in_result))
    )
    policies = outcome.applicable if request.return_policy_ids else ()
    return Result(outcome.decision, outcome.status, outcome.obligations, outcome.advice, wanted, policies)


def _combined(results: Sequence[Result]) -> Result:
    """Return one result for all, if they agree and none has obligations or advice (multiple profile, 3)."""
    first = results[0]
    if any(one.decision.plain != first.decision.plain for one in results) or any(
        one.obligations or one.advice for one in results
    ):
        return Result(
            XacmlDecision.INDETERMINATE_DP, DecisionStatus(PROCESSING_ERROR, "the decisions cannot be combined")
        )
    return Result(first.decision, first.status)


def single_requests(request: Request, sources: PolicySources) -> Iterator[Request]:
    """Yield the individual requests. Raises `MalformedError` (`xacml.request`), `EvaluationError`."""
    _check_family(request)
    for one in _referred(request):
        for chosen in _by_category(one):
            for scoped in _by_scope(chosen, sources):
                yield from _by_content(scoped)


def _referred(request: Request) -> Iterator[Request]:
    if not request.references:
        yield request
        return
    known = {one.id: one for one in request.categories if one.id is not None}
    for names in request.references:
        if any(name not in known for name in names):
            raise MalformedError("xacml.request", "a reference does not name attributes of the request")
        yield request.alone([known[name] for name in names])


def _by_category(request: Request) -> Iterator[Request]:
    groups: dict[str, list[Attributes]] = {}
    for one in request.categories:
        groups.setdefault(one.category, []).append(one)
    for chosen in product(*groups.values()):
        yield request.alone(chosen)


def _check_family(request: Request) -> None:
    """Check that all attributes that ask for several decisions are known, and that there is one of each."""
    for category in request.categories:
        asking = [one for one in category.attributes if _FAMILY.fullmatch(one.id)]
        for one in asking:
            if one.id not in (SCOPE, *MULTIPLE_SELECTORS):
                raise MalformedError(
                    "xacml.request", f"attribute `{one.id[:120]}` asks for decisions in an unknown way"
                )
            if len(one.values) != 1:
                raise MalformedError("xacml.request", f"attribute `{one.id[:120]}` must have exactly one value")
        if len({one.id == SCOPE for one in asking}) != len(asking):
            raise MalformedError("xacml.request", "a category asks for several decisions twice")


def _by_scope(request: Request, sources: PolicySources) -> Iterator[Request]:
    for place, category in enumerate(request.categories):
        for attribute in category.by_id.get(SCOPE, ()):
            for one in _each_resource(request, place, attribute, sources):
                yield from _by_scope(one, sources)
            return
    yield request


def _each_resource(request: Request, place: int, scope: RequestAttribute, sources: PolicySources) -> Iterator[Request]:
    """Yield a request for each resource in a part of a hierarchy, from the top down."""
    category = request.categories[place]
    named = category.by_id.get(RESOURCE_ID, ())
    reaches = str(scope.values[0][1])
    if reaches not in _LEVELS or len(named) != 1 or len(named[0].values) != 1:
        raise MalformedError("xacml.request", "a scope must be Immediate, Children or Descendants, of one resource")
    of_type, top = named[0].values[0]
    others = tuple(one for one in category.attributes if one is not scope and one is not named[0])
    for level in islice(levels([top], sources.children), _LEVELS[reaches]):
        for resource in level:
            chosen = replace(category, attributes=(replace(named[0], values=((of_type, resource),)), *others))
            yield request.alone([*request.categories[:place], chosen, *request.categories[place + 1 :]])


def _by_content(request: Request) -> Iterator[Request]:
    for place, category in enumerate(request.categories):
        for attribute in (one for name in MULTIPLE_SELECTORS for one in category.by_id.get(name, ())):
            for one in _each_node(request, place, attribute):
                yield from _by_content(one)
            return
    yield request


def _each_node(request: Request, place: int, selector: RequestAttribute) -> Iterator[Request]:
    category = request.categories[place]
    of_type, path = selector.values[0]
    if of_type is not XPATH or not isinstance(path, XPathExpression) or category.content is None:
        raise MalformedError("xacml.request", "a path that selects several resources needs a content")
    content = category.content
    for node in nodes_of(content, path):
        one = replace(path, path=content.path(node))
        there = replace(selector, id=CONTENT_SELECTOR, values=((XPATH, one),))
        others = tuple(attribute for attribute in category.attributes if attribute is not selector)
        chosen = replace(category, attributes=(*others, there))
        yield request.alone([*request.categories[:place], chosen, *request.categories[place + 1 :]])
