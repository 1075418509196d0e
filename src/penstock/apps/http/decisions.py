"""Decisions of one question under one bundle, with what is recorded of them: single, several, searches, and XACML."""

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from penstock.apps.http.bundles import Bundle
from penstock.apps.http.journal import Decided
from penstock.apps.http.limits import ServiceLimits
from penstock.authority.decisions.authzen import evaluate_batch, refused, write_decision
from penstock.authority.decisions.questions import (
    AccessQuestion,
    Entity,
    facts_of,
    read_action,
    read_context,
    read_entity,
    read_question,
)
from penstock.errors import FailedError, MalformedError, PenstockError
from penstock.policy.engine.decide import decide
from penstock.policy.engine.evaluate import status_of
from penstock.policy.language.requests import Request
from penstock.policy.language.results import OK, PolicyOutcome, Response, XacmlDecision
from penstock.policy.syntax.json.requests import Json

NOT_NOW: Final = "no decision can be made now"


@dataclass(slots=True)
class Deciding:
    """One question: all its decisions use the same bundle and the same time."""

    bundle: Bundle
    now: datetime
    limits: ServiceLimits
    #: seconds, from any beginning
    timer: Callable[[], float]
    decided: list[Decided] = field(default_factory=list)
    #: whether there was no time for all
    late: bool = False
    _until: float = 0.0

    def __post_init__(self) -> None:
        self._until = self.timer() + self.limits.pdp_time / 1000

    def ask(self, question: AccessQuestion) -> PolicyOutcome:
        """Decide a question. Errors of policies are Indeterminate. Raises `MalformedError` (`pdp.request`)."""
        facts = facts_of(question, self.bundle.entities)
        try:
            outcome = self.bundle.ask(facts, self.now)
        except PenstockError as error:
            outcome = PolicyOutcome(XacmlDecision.INDETERMINATE_DP, status_of(error))
        subject, resource = question.subject, question.resource
        self.decided.append(
            Decided(
                outcome.decision,
                (subject.type, subject.id),
                question.action.id,
                (resource.type, resource.id),
                "" if outcome.status.code is OK else outcome.status.code,
            )
        )
        return outcome

    def evaluation(self, found: Mapping[str, Json]) -> dict[str, Json]:
        """Decide one question. Raises `MalformedError` (`pdp.request`)."""
        return write_decision(self.ask(read_question(found)))

    def evaluations(self, found: Mapping[str, Json]) -> dict[str, Json]:
        """Decide several. One that is malformed is refused, and the others are decided all the same.

        Raises `MalformedError` (`pdp.request`) for what is wrong with all of them, `LimitError` (`pdp.limit`).
        """
        return evaluate_batch(found, self.evaluation, self._item, self.limits.pdp_evaluations)

    def _item(self, item: Json, defaults: Mapping[str, Json]) -> dict[str, Json]:
        try:
            if not isinstance(item, dict):
                raise MalformedError("pdp.request", "an evaluation is not an object")
            self._check_time()
            return write_decision(self.ask(read_question(item, defaults)))
        except PenstockError as error:
            self.decided.append(Decided(XacmlDecision.INDETERMINATE_DP, status=error.code))
            # Callers do not see problems of the service.
            return refused(error.code, error.message if isinstance(error, MalformedError) else NOT_NOW)

    def _check_time(self) -> None:
        if self.timer() > self._until:
            self.late = True
            raise FailedError("pdp.time", "the decisions of one question took too long")

    # --- searches -----------------------------------------------------------------------------------------------

    def search_subject(self, found: Mapping[str, Json]) -> dict[str, Json]:
        """Find the subjects that may. Raises `MalformedError` (`pdp.request`, `pdp.page`), `FailedError`."""
        wanted = read_entity(found, "subject", searched=True)
        question = AccessQuestion(wanted, read_action(found), read_entity(found, "resource"), read_context(found))
        known = self.bundle.entities.subjects.get(wanted.type, {})
        candidates = (replace(question, subject=Entity(wanted.type, name, {})) for name in known)
        return self._search(found, candidates, lambda one: {"type": one.subject.type, "id": one.subject.id})

    def search_resource(self, found: Mapping[str, Json]) -> dict[str, Json]:
        """Find the resources to which a subject may. Raises as `search_subject`."""
        wanted = read_entity(found, "resource", searched=True)
        question = AccessQuestion(read_entity(found, "subject"), read_action(found), wanted, read_context(found))
        known = self.bundle.entities.resources.get(wanted.type, {})
        candidates = (replace(question, resource=Entity(wanted.type, name, {})) for name in known)
        return self._search(found, candidates, lambda one: {"type": one.resource.type, "id": one.resource.id})

    def search_action(self, found: Mapping[str, Json]) -> dict[str, Json]:
        """Find what a subject may do to a resource. Raises as `search_subject`."""
        subject, resource = read_entity(found, "subject"), read_entity(found, "resource")
        context = read_context(found)
        candidates = (
            AccessQuestion(subject, Entity("", name, {}), resource, context) for name in self.bundle.entities.actions
        )
        return self._search(found, candidates, lambda one: {"name": one.action.id})

    def _search(
        self, found: Mapping[str, Json], candidates: Iterator[AccessQuestion], write: Callable[[AccessQuestion], Json]
    ) -> dict[str, Json]:
        page = _read_page(found)
        results: list[Json] = []
        for one in candidates:
            # A partial result would be read as a complete one.
            self._check_time()
            if self.ask(one).decision is XacmlDecision.PERMIT:
                results.append(write(one))
        if page is None:
            return {"results": results}
        mark = _mark(found, self.bundle.revision)
        start = _place(page, mark)
        limit = page.get("limit")
        end = len(results) if limit is None else min(start + _limit(limit), len(results))
        chosen = results[start:end]
        token = "" if end == len(results) else base64.urlsafe_b64encode(f"{mark}.{end}".encode()).decode()
        return {"results": chosen, "page": {"next_token": token, "count": len(chosen), "total": len(results)}}

    # --- XACML --------------------------------------------------------------------------------------------------

    def xacml(self, request: Request) -> Response:
        """Decide an XACML request. Errors are Indeterminate."""
        response = decide(self.bundle.policy.evaluate, request, self.now, self.bundle.sources)
        for result in response.results:
            status = "" if result.status.code is OK else result.status.code
            self.decided.append(Decided(result.decision, status=status))
        return response


def _read_page(found: Mapping[str, Json]) -> Mapping[str, Json] | None:
    page = found.get("page")
    if page is not None and not isinstance(page, dict):
        raise MalformedError("pdp.request", "`page` is not an object")
    return page


def _limit(value: Json) -> int:
    # JSON does not tell 6.0 from 6.
    whole = type(value) is int or (isinstance(value, float) and value.is_integer())
    if not isinstance(value, int | float) or not whole or value < 1:
        raise MalformedError("pdp.request", "`limit` of a page is not a number above 0")
    return int(value)


def _mark(found: Mapping[str, Json], revision: str) -> str:
    """Return a mark that all pages of a search under one revision have in common, and no others."""
    rest = {name: value for name, value in found.items() if name != "page"}
    text = json.dumps([revision, rest], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _place(page: Mapping[str, Json], mark: str) -> int:
    token = page.get("token")
    if token is None or token == "":
        return 0
    try:
        found_mark, _, place = base64.urlsafe_b64decode(str(token)).decode().partition(".")
    except (ValueError, binascii.Error):
        found_mark, place = "", ""
    if found_mark != mark or not place.isascii() or not place.isdigit() or len(place) > 9:
        raise MalformedError("pdp.page", "this is not a page of this search", hint="begin it again without a token")
    return int(place)
