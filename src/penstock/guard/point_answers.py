"""Answers of remote decision points as a source of authority.

Whoever follows the points puts their answers here, and takes them away when they end. `rule` looks only at what is
here: a question without an answer permits nothing, and is remembered, so that it gets asked. Decision points decide
about types of named owners only, and about publishing and subscribing: a permit means the whole type.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from penstock.guard.decision import DecisionProblem, NetworkRequest, Request, Ruling
from penstock.guard.restriction import Branch, TypeScope
from penstock.model.limits import CACHE_ENTRIES
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.trust.capabilities import Right


@dataclass(frozen=True, slots=True)
class PointQuestion:
    """The question whether a principal may publish or subscribe to a type, in any of its versions."""

    principal: Principal
    action: Right
    type: TypeKey


@dataclass(frozen=True, slots=True)
class PointAnswer:
    """Whether it may, until when that holds, and by which decision points."""

    permits: bool
    until: datetime
    by: tuple[str, ...] = ()


class PointAnswers:
    """See the module, and `penstock.guard.decision.Authority`."""

    def __init__(self, owners: Collection[Principal]) -> None:
        self.owners = frozenset(owners)
        #: questions that were asked, the last ones at the end, with their answers
        self.questions: dict[PointQuestion, PointAnswer | None] = {}
        #: principals whose answers gave way to other questions: what was permitted to them is to be decided again
        self.evicted: set[Principal] = set()

    def rule(self, request: Request) -> Ruling:
        """Return a branch if a decision point permits, an error if none has an answer that is valid now."""
        if isinstance(request, NetworkRequest) or request.action not in (Right.PUBLISH, Right.SUBSCRIBE):
            return Ruling()
        name = request.type.event_type.name
        if name.owner not in self.owners:
            return Ruling()
        answer = self.answer(PointQuestion(request.principal, request.action, request.type.event_type.key))
        if answer is None or request.now is None or answer.until <= request.now:
            message = (
                f"no decision point has answered whether {request.principal.short} may {request.action} `{name.name}`"
            )
            return Ruling(problems=(DecisionProblem("pep.unknown", message),))
        if not answer.permits:
            message = f"a decision point does not permit {request.principal.short} to {request.action} `{name.name}`"
            return Ruling(refusals=(DecisionProblem("pep.denied", message),))
        types = TypeScope((str(name.owner).encode(), name.name.encode(), name.version.encode()))
        return Ruling((Branch(action=request.action, types=types, because=answer.by),))

    def answer(self, question: PointQuestion) -> PointAnswer | None:
        """Return the answer to a question, and remember the question."""
        answer = self.questions.pop(question, None)
        if len(self.questions) >= CACHE_ENTRIES:
            self._evict()
        self.questions[question] = answer
        return answer

    def _evict(self) -> None:
        """Forget the oldest question of the principal that has most of them, so that nobody displaces others."""
        [(greedy, _)] = Counter(question.principal for question in self.questions).most_common(1)
        oldest = next(question for question in self.questions if question.principal == greedy)
        if self.questions.pop(oldest) is not None:
            self.evicted.add(greedy)

    def put(self, question: PointQuestion, answer: PointAnswer | None) -> bool:
        """Use another answer to a question that was asked, or none; return whether rulings change."""
        if question not in self.questions:
            return False
        before, self.questions[question] = self.questions[question], answer
        return (None if before is None else before.permits) is not (None if answer is None else answer.permits)
