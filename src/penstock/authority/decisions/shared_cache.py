"""A shared cache in the event service: it subscribes to requests and answers like a decision point (paper 3, 3.4.1).

It answers a question that somebody asked before with the decision point's own answer and signature, while the answer
lasts, no update has affected it, and the point's heartbeats go on. So an enforcement point believes it exactly as it
believes the point, and a cache that lies is not believed. It learns from the topics of requests and answers, and sees
nothing of answers that go straight back. Requests have to pass the same checks as at a decision point: form, time,
right to ask, copies, signature and rate.
"""

from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from penstock.authority.decisions.coverage import Coverage
from penstock.authority.decisions.decision_point import TOPICS, DecisionTopics, PointDecision, PolicyDecisionPoint
from penstock.authority.decisions.messages import AccessAnswer, AccessRequest, read_answer
from penstock.authority.decisions.questions import AccessQuestion
from penstock.authority.decisions.recycling import RecyclingRule
from penstock.authority.decisions.rights import DecisionRights
from penstock.authority.decisions.secondary_point import SecondarySettings, UpdatedCache
from penstock.crypto import Signer
from penstock.errors import PenstockError, RefusedError
from penstock.fabric import Fabric, Sample, TopicSubscription
from penstock.fabric.port import close_all

#: answers to one request that are verified
_TRIED: Final = 16


class _Nothing:
    """The policies of a point without any."""

    def decide(self, _question: AccessQuestion, _now: datetime) -> PointDecision:
        raise RefusedError("pdp.failed", "a cache does not decide")

    def coverage(self) -> Coverage:
        return None


@dataclass(slots=True)
class _Asked:
    """A question that was asked, and how many answers to it were verified since."""

    question: AccessQuestion
    tried: int = 0


class SharedCache(PolicyDecisionPoint):
    """See the module. `key` signs what the cache reports about updates, and no answers."""

    def __init__(
        self,
        fabric: Fabric,
        key: Signer,
        rights: DecisionRights,
        *,
        topics: DecisionTopics = TOPICS,
        settings: SecondarySettings | None = None,
    ) -> None:
        self._settings = settings or SecondarySettings()
        super().__init__(
            fabric,
            key,
            _Nothing(),
            rights=rights,
            topics=topics,
            clock=self._settings.clock,
            note=self._settings.note,
        )
        self._names = None  # it answers with answers of all points
        self._all_rights = rights
        self._answer_fabric = fabric
        self.updated = UpdatedCache(fabric, key, rights.may_decide, self._settings)
        #: questions by their digests, those that were asked last are last
        self._asked: OrderedDict[bytes, _Asked] = OrderedDict()
        #: the cached answers, and their bytes with the signature
        self._kept: dict[bytes, tuple[AccessAnswer, bytes]] = {}
        self._learning: TopicSubscription | None = None

    async def _open(self) -> None:
        await self.updated.__aenter__()
        await super()._open()
        self._learning = await self._answer_fabric.subscribe(self._topics.answers, callback=self._hear_answer)

    async def close(self) -> None:
        """Stop answering."""
        await close_all((self._learning,), self._settings.note)
        await super().close()
        await self.updated.__aexit__()

    def _answer(self, request: AccessRequest) -> bytes | None:
        question = request.question
        self._asked[question.digest] = _Asked(question)
        self._asked.move_to_end(question.digest)
        if len(self._asked) > self._settings.limits.recycling_entries:
            self._asked.popitem(last=False)
        found = self.updated.find(question)
        # An answer by inference would need this cache's own signature, which nobody believes.
        if found is None or found.rule is not RecyclingRule.PRECISE:
            self.counts["misses"] += 1
            return None
        (known,) = found.premises
        kept = self._kept.get(question.digest)
        if kept is None or kept[0] is not known.answer:
            self.counts["misses"] += 1
            return None
        self.counts["hits"] += 1
        return kept[1]

    async def _hear_answer(self, sample: Sample) -> None:
        self._learn(sample.data)

    def _learn(self, data: bytes) -> None:
        """Keep an answer to a question that was asked, from a point that may decide, if it can be used again."""
        try:
            found = read_answer(data)
        except PenstockError:
            self.counts["malformed-answers"] += 1
            return
        answer = found.value
        asked, kept = self._asked.get(answer.question), self._kept.get(answer.question)
        if asked is None or (kept is not None and kept[1] == data) or asked.tried >= _TRIED:
            self.counts["unwanted"] += 1
            return
        now = datetime.fromtimestamp(self._settings.clock.now(), UTC)
        if not self._all_rights.may_decide(answer.point, asked.question.resource, now):
            self.counts["unauthorized-answers"] += 1
            return
        asked.tried += 1
        try:
            signed = found.verify()
        except RefusedError:
            self.counts["forged-answers"] += 1
            return
        if self.updated.learn(asked.question, signed).kept:
            self._kept[answer.question] = (answer, data)
            if len(self._kept) > 2 * len(self.updated.cache) + 64:
                present = {one.answer.question for one in self.updated.cache.cached()}
                self._kept = {digest: kept for digest, kept in self._kept.items() if digest in present}
