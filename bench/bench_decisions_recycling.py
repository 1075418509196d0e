"""Recycled answers: how many questions they answer, how long one takes, and how much quicker that is than asking.

Hit rates are those of paper 3, section 4.4: 10,000 requests drawn with replacement from 100 subjects, 100 objects and
3 rights, over the last 500 of them. A policy has 40 roles, each with 5 % of the permissions, and a subject has 3 of
them. Each answer is compared with the policy's.

A recycled answer is timed as an enforcement point sees it: with the check of heartbeat, clock and right, and with the
record in a file. The caches are full, and each question is built just before it is asked, once.
"""

import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from random import Random
from typing import TypeAlias

from harness import Result, above, at_least, at_most, microseconds, observed
from penstock.authority.decisions.decision_point import PointDecision, PolicyDecisionPoint
from penstock.authority.decisions.enforcement_point import EnforcementPoint
from penstock.authority.decisions.messages import (
    AccessAnswer,
    AnswerEffect,
    LabelRecycling,
    PolicyRevision,
    RecyclingClass,
    RoleRecycling,
)
from penstock.authority.decisions.questions import AccessQuestion, Entity, facts_of
from penstock.authority.decisions.recycling import RecyclingRule
from penstock.authority.decisions.rights import DecisionRights
from penstock.authority.decisions.secondary_point import AnswerCache, RecycledLog, SecondaryPoint, SecondarySettings
from penstock.authority.decisions.updates import UpdateAuthor
from penstock.crypto import SigningKey
from penstock.fabric import EmbeddedFabric
from penstock.policy.engine.evaluate import evaluate
from penstock.policy.engine.lookup import Context, NoSources
from penstock.policy.language.policies import Root
from penstock.policy.language.requests import ACTION_ID, RESOURCE_ID
from penstock.policy.language.results import PolicyOutcome, XacmlDecision
from penstock.policy.residual.request_sets import AnswerSets
from penstock.policy.syntax.text.policies import read_text_policy
from penstock.simulate.experiments.role_policies import RIGHTS, RandomRolePolicy
from penstock.store.files.appended_lines import AppendedLines
from penstock.trust.capabilities import DecisionRight, decision_tag
from penstock.trust.certificates import Authorisation, issue
from penstock.trust.credentials import Credentials
from penstock.trust.signed import SignedValue

REQUESTS, LAST, ENTRIES, ASKED = 10_000, 500, 10_000, 300
POINT, OWNER, PEP = (SigningKey(bytes([number]) * 32) for number in (1, 2, 3))
NOW = datetime.now(UTC)
POLICY = PolicyRevision("bench", "1", NOW)
BY_ROLES = RoleRecycling("roles")
BY_LABELS = LabelRecycling(frozenset({"read"}), frozenset({"append"}), frozenset({"write"}))
PERMIT, DENY = AnswerEffect.PERMIT, AnswerEffect.DENY
SEEDS = (1, 2, 3)
Ask: TypeAlias = Callable[[AccessQuestion], SignedValue[AccessAnswer]]


def run() -> list[Result]:
    return [*hit_rates(), *times()]


# --- policies ---------------------------------------------------------------------------------------------------------


class RolePolicy(RandomRolePolicy):
    """Roles with random permissions, and subjects with random roles."""

    def as_policy(self) -> Root:
        """Return the same in XACML: a rule for each role and permission."""
        rules = [
            f'rule {role}{item}{right} {{ permit target clause role == "{role}" and object == "{item}" '
            f'and does == "{right}" }}'
            for (item, right), roles in self.granted.items()
            for role in sorted(roles)
        ]
        return read_text_policy(
            f'attribute role {{ category = subject id = "roles" type = string }}\n'
            f'attribute object {{ category = resource id = "{RESOURCE_ID}" type = string }}\n'
            f'attribute does {{ category = action id = "{ACTION_ID}" type = string }}\n'
            f"policy p {{ apply deny-unless-permit {' '.join(rules)} }}"
        )


class LabelPolicy:
    """Bell–LaPadula: random levels and compartments."""

    def __init__(self, seed: int, subjects: int, objects: int) -> None:
        self.chance = Random(seed)  # noqa: S311  # the same each time
        self.subjects = {f"s{number}": self._label() for number in range(subjects)}
        self.objects = {f"o{number}": self._label() for number in range(objects)}

    def _label(self) -> tuple[int, frozenset[str]]:
        return self.chance.randrange(6), frozenset(one for one in "abc" if self.chance.random() < 0.5)

    def questions(self) -> Iterator[AccessQuestion]:
        """Yield questions."""
        subjects, objects = [*self.subjects], [*self.objects]
        while True:
            subject, item = self.chance.choice(subjects), self.chance.choice(objects)
            yield AccessQuestion.of(("user", subject), self.chance.choice(RIGHTS), ("object", item))

    def effect(self, question: AccessQuestion) -> AnswerEffect:
        subject, item = self.subjects[question.subject.id], self.objects[question.resource.id]
        down = subject[0] >= item[0] and subject[1] >= item[1]
        up = item[0] >= subject[0] and item[1] >= subject[1]
        return PERMIT if {"read": down, "append": up}.get(question.action.id, down and up) else DENY


def answered(
    question: AccessQuestion,
    effect: AnswerEffect,
    recycling: RecyclingClass | None = None,
    holds_for: str | None = None,
) -> SignedValue[AccessAnswer]:
    """Return an answer; signatures are verified before answers are learnt, and cost nothing here."""
    until = NOW + timedelta(hours=6)
    said = AccessAnswer(
        question.digest, effect, (POLICY,), POINT.principal, NOW, until, recycling=recycling, holds_for=holds_for
    )
    return SignedValue(said, b"", (), POINT.public, b"")


def joined(cache: AnswerCache) -> None:
    """Let a cache follow the decision point."""
    first = AccessQuestion.of(("user", "first"), "read", ("object", "first"))
    cache.learn(first, answered(first, DENY), time.time(), time.monotonic())
    beat = UpdateAuthor(POINT, NOW, [POLICY]).heartbeat(datetime.now(UTC))
    cache.take(beat, time.time(), time.monotonic())


# --- hit rates --------------------------------------------------------------------------------------------------------


def hit_rates() -> list[Result]:
    precise, roles, sets = (
        statistics.mean(hit_rate(policy, ask(policy)) for policy in map(RolePolicy, SEEDS))
        for ask in (ask_precisely, ask_by_roles, ask_for_sets)
    )
    detail = f"over the last {LAST} of {REQUESTS} requests, mean of {len(SEEDS)} policies; precise {precise:.2f}"
    return [
        at_least("hit rate of approximate recycling", roles, 0.70, detail),
        above("hit rate of sets over approximate", sets / roles, 1.0, f"sets {sets:.2f}, roles {roles:.2f}"),
        observed("hit rate of precise recycling", precise, "about a third of all questions are in the cache"),
    ]


def ask_precisely(policy: RolePolicy) -> Ask:
    return lambda question: answered(question, policy.effect(question))


def ask_by_roles(policy: RolePolicy) -> Ask:
    return lambda question: answered(question, policy.effect(question), BY_ROLES)


def ask_for_sets(policy: RolePolicy) -> Ask:
    root = policy.as_policy()
    sets = AnswerSets(root)

    def ask(question: AccessQuestion) -> SignedValue[AccessAnswer]:
        context = Context(None, NOW, NoSources(), facts_of(question))
        outcome = evaluate(root, context)
        found = sets.holds_for(context, outcome)
        effect = PERMIT if outcome.decision is XacmlDecision.PERMIT else DENY
        return answered(question, effect, holds_for=None if found is None else found.text)

    return ask


def hit_rate(policy: RolePolicy, ask: Ask) -> float:
    """Return the share of the last requests that were answered from the cache."""
    cache, hits = AnswerCache(lambda *_: True, max_age=1e6), 0
    joined(cache)
    for number, question in enumerate(islice(policy.questions(), REQUESTS)):
        found = cache.answer(question, time.time(), time.monotonic())
        if found is None:
            cache.learn(question, ask(question), time.time(), time.monotonic())
            continue
        assert found.effect is policy.effect(question)
        hits += number >= REQUESTS - LAST
    return hits / LAST


# --- times ------------------------------------------------------------------------------------------------------------


def times() -> list[Result]:
    asking = asyncio.run(asking_time())
    results = []
    for name, make in (("precise", full_precise), ("roles", full_roles), ("labels", full_labels), ("sets", full_sets)):
        with tempfile.TemporaryDirectory() as folder:
            log = RecycledLog(AppendedLines(Path(folder) / "log"), "urn:bench", "b")
            settings = SecondarySettings(max_age=1e6)
            point = SecondaryPoint(EmbeddedFabric(), PEP, lambda *_: True, log, settings)
            joined(point.cache)
            questions = make(point.cache)
            took = answer_time(point, questions)
            log.lines.close()
        detail = f"{microseconds(took)} with {len(point.cache)} entries and the record; asking {microseconds(asking)}"
        results.append(at_most(f"a recycled answer ({name}), of 5 µs", took / 5e-6, 1.0, detail))
        results.append(at_least(f"asking over a recycled answer ({name})", asking / took, 30, detail))
    return results


def answer_time(point: SecondaryPoint, questions: Sequence[AccessQuestion]) -> float:
    """Return the median time of an answer; the question was built just before, and is new to the point."""
    clock = time.perf_counter_ns
    samples, nothing = [], []
    gc.collect()
    gc.disable()
    try:
        for question in questions:
            asked = new(question)
            assert asked.text
            began = clock()
            point.answer(asked)
            samples.append(clock() - began)
            began = clock()
            nothing.append(clock() - began)
    finally:
        gc.enable()
    return (statistics.median(samples) - statistics.median(nothing)) / 1e9


def learn(cache: AnswerCache, signed: SignedValue[AccessAnswer], question: AccessQuestion) -> None:
    assert cache.learn(question, signed, time.time(), time.monotonic()).kept


def new(question: AccessQuestion) -> AccessQuestion:
    return AccessQuestion(question.subject, question.action, question.resource, question.context)


def hits(cache: AnswerCache, questions: Iterator[AccessQuestion], *, precise: bool = False) -> list[AccessQuestion]:
    """Return questions that the cache can answer, each once."""
    found: dict[str, AccessQuestion] = {}
    for question in islice(questions, 60_000):
        known = cache.answer(question, time.time(), time.monotonic())
        if known is not None and (known.rule is RecyclingRule.PRECISE) is precise:
            found[question.text] = new(question)
        if len(found) >= ENTRIES:
            break
    return [*found.values()]


def full_precise(cache: AnswerCache) -> list[AccessQuestion]:
    policy = RolePolicy(1)
    for question in policy.questions():
        if len(cache) >= ENTRIES - 1:
            break
        if cache.answer(question, time.time(), time.monotonic()) is None:
            learn(cache, answered(question, policy.effect(question)), question)
    return hits(cache, policy.questions(), precise=True)


def full_roles(cache: AnswerCache) -> list[AccessQuestion]:
    policy = RolePolicy(1)
    seen = set()
    for question in policy.questions():
        if len(cache) >= ENTRIES - 1:
            break
        if question.text not in seen:
            seen.add(question.text)
            learn(cache, answered(question, policy.effect(question), BY_ROLES), question)
    return hits(cache, policy.questions())


def full_labels(cache: AnswerCache) -> list[AccessQuestion]:
    policy = LabelPolicy(1, 400, 800)
    for question in islice(policy.questions(), 120_000):
        if len(cache) >= ENTRIES - 1:
            break
        if cache.answer(question, time.time(), time.monotonic()) is None:
            learn(cache, answered(question, policy.effect(question), BY_LABELS), question)
    return hits(cache, policy.questions())


def full_sets(cache: AnswerCache) -> list[AccessQuestion]:
    chance = Random(1)  # noqa: S311  # the same each time
    for number in range(ENTRIES - 1):
        subject = Entity("user", "first", {"roles": ["nurse", "clerk"]})
        question = AccessQuestion.of(subject, RIGHTS[number % 3], ("object", f"o{number // 3}"))
        text = (
            f"\"resource.id\" = 'o{number // 3}' AND \"action.name\" = '{RIGHTS[number % 3]}' AND "
            '"has ""nurse"" subject.properties.roles"'
        )
        learn(cache, answered(question, PERMIT, holds_for=text), question)

    def questions() -> Iterator[AccessQuestion]:
        while True:
            number = chance.randrange(ENTRIES - 1)
            subject = Entity("user", f"s{chance.randrange(100)}", {"roles": ["nurse", f"r{chance.randrange(40)}"]})
            yield AccessQuestion.of(subject, RIGHTS[number % 3], ("object", f"o{number // 3}"))

    return hits(cache, questions())


class _Always:
    def decide(self, _question: AccessQuestion, _now: datetime) -> PointDecision:
        return PointDecision(PolicyOutcome(XacmlDecision.PERMIT), (POLICY,))

    def coverage(self) -> None:
        return None


async def asking_time() -> float:
    """Return the median time of a question over an embedded fabric to a point that needs no time to decide."""
    grants = [
        issue(Authorisation(OWNER.principal, key.principal, decision_tag(OWNER.principal, rights=[right])), OWNER)
        for key, right in ((POINT, DecisionRight.DECIDE), (PEP, DecisionRight.ASK))
    ]
    rights = DecisionRights(OWNER.principal, Credentials.of(*grants))
    samples = []
    async with (
        EmbeddedFabric() as fabric,
        PolicyDecisionPoint(fabric, POINT, _Always(), rights=rights),
        EnforcementPoint(fabric, PEP, rights) as point,
    ):
        for number in range(ASKED):
            question = AccessQuestion.of(("user", "alice"), "read", ("object", f"o{number}"))
            began = time.perf_counter()
            await point.ask(question)
            samples.append(time.perf_counter() - began)
    return statistics.median(samples)
