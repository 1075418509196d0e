"""Recycling over data that others made: permissions of real organisations, and the policies of the XACML suites."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.authority.decisions.recycling_worlds import DENY, NOW, PERMIT, POLICY, START, answer, update

from penstock.authority.decisions.messages import AnswerEffect, RoleRecycling
from penstock.authority.decisions.questions import (
    KEY_ACTION_ID,
    KEY_RESOURCE_ID,
    KEY_RESOURCE_TYPE,
    KEY_SUBJECT_ID,
    KEY_SUBJECT_TYPE,
    AccessQuestion,
    Entity,
    facts_of,
)
from penstock.authority.decisions.recycling import Recycler, RecyclingRule
from penstock.authority.decisions.updates import RolePermissionChange
from penstock.errors import PenstockError
from penstock.policy.engine.evaluate import evaluate
from penstock.policy.engine.lookup import Context, NoSources
from penstock.policy.language.datatypes import BOOLEAN, DOUBLE, INTEGER, STRING
from penstock.policy.language.policies import Root
from penstock.policy.language.requests import ACTION, ENVIRONMENT, RESOURCE, SUBJECT, Facts
from penstock.policy.language.results import PolicyOutcome, XacmlDecision
from penstock.policy.residual.request_sets import AnswerSets
from penstock.policy.syntax.xml.policies import read_policy
from penstock.policy.syntax.xml.requests import read_request

# --- role-mining ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "steps"), [("domino", 1_500), ("hc", 1_500), ("apj", 1_500), ("fire1", 1_500)])
def test_permissions_of_real_organisations(suites: Path, name: str, steps: int) -> None:
    """A real user is a role here, with the permissions that the user has, and subjects have some of these roles."""
    chance = Random(name)  # noqa: S311  # the same each time
    rows = [line.split() for line in (suites / "role-mining" / f"{name}.txt").read_text().splitlines() if line.strip()]
    permissions = sorted({row[1] for row in rows})[:20]
    granted = {(user, permission) for user, permission, *_ in rows if permission in permissions}
    roles = sorted({user for user, _ in granted})[:40]
    subjects = [chance.sample(roles, chance.randint(1, 5)) for _ in range(60)]
    recycler, number, inferred = Recycler(), 0, 0
    recycler.follow({POLICY: "0"})
    for _ in range(steps):
        if chance.random() < 0.01:
            pair = (chance.choice(roles), chance.choice(permissions))
            granted ^= {pair}
            number += 1
            change = RolePermissionChange(pair[0], "use", "permission", pair[1], pair in granted)
            assert not recycler.change(update(number, [change])).lost
        subject, permission = chance.randrange(len(subjects)), chance.choice(permissions)
        listed: list[Any] = [*subjects[subject]]
        question = AccessQuestion.of(
            Entity("user", f"u{subject}", {"roles": listed}), "use", ("permission", permission)
        )
        effect = PERMIT if any((role, permission) in granted for role in subjects[subject]) else DENY
        found = recycler.answer(question, NOW)
        if found is None:
            said = answer(question, effect, RoleRecycling("roles"), revision=str(number))
            assert recycler.learn(question, said, NOW).kept
        else:
            assert found.effect is effect
            inferred += found.rule is not RecyclingRule.PRECISE
    assert inferred > steps / 10


# --- XACML ------------------------------------------------------------------------------------------------------------

_OF_JSON = {STRING, BOOLEAN, INTEGER, DOUBLE}
_IDENTITY = {KEY_SUBJECT_ID, KEY_SUBJECT_TYPE, KEY_RESOURCE_ID, KEY_RESOURCE_TYPE, KEY_ACTION_ID}


def question_of(facts: Facts) -> AccessQuestion | None:
    """Return the question with these facts, as far as AuthZEN can ask it."""
    properties: dict[str, dict[str, Any]] = {category: {} for category in (SUBJECT, RESOURCE, ACTION, ENVIRONMENT)}
    for key, bag in facts.items():
        if key in _IDENTITY or key.of not in _OF_JSON or key.category not in properties:
            continue
        known = properties[key.category].get(key.id, [])
        properties[key.category][key.id] = [*known, *bag]
    names = [facts.get(key, ("x",)) for key in (KEY_SUBJECT_ID, KEY_RESOURCE_ID, KEY_ACTION_ID)]
    if any(len(bag) != 1 for bag in names):
        return None
    (subject,), (item,), (action,) = names
    question = AccessQuestion(
        Entity("user", str(subject), properties[SUBJECT]),
        Entity("", str(action), properties[ACTION]),
        Entity("thing", str(item), properties[RESOURCE]),
        properties[ENVIRONMENT],
    )
    # JSON has no infinite numbers: then this raises.
    return question if question.text else None


def cases(folder: Path) -> Iterator[tuple[Root, AccessQuestion]]:
    for path in sorted(folder.glob("*Request.xml")):
        try:
            root = read_policy(path.with_name(path.name.replace("Request", "Policy")).read_bytes())
            question = question_of(read_request(path.read_bytes()).facts())
        except (PenstockError, OSError):
            # Some are wrong on purpose, and some cases have several policies.
            continue
        if question is not None:
            yield root, question


def varied(chance: Random, question: AccessQuestion, others: list[AccessQuestion]) -> AccessQuestion:
    """Return the question with some parts of another one, or with values left out and repeated."""
    other = chance.choice(others)
    parts = [
        (one if chance.random() < 0.7 else two) for one, two in zip(parts_of(question), parts_of(other), strict=True)
    ]
    subject, action, resource, context = parts
    if chance.random() < 0.4 and isinstance(subject, Entity) and subject.properties:
        changed: dict[str, Any] = dict(subject.properties)
        name = chance.choice(sorted(changed))
        bag = changed[name] if isinstance(changed[name], list) else [changed[name]]
        changed[name] = chance.choice([bag[:-1], [*bag, *bag], [*bag, "other"], []])
        subject = Entity(subject.type, subject.id, changed)
    return AccessQuestion(subject, action, resource, context)


def parts_of(question: AccessQuestion) -> tuple[Any, ...]:
    return question.subject, question.action, question.resource, question.context


def evaluated(root: Root, question: AccessQuestion) -> tuple[Context, PolicyOutcome]:
    context = Context(None, START, NoSources(), facts_of(question))
    return context, evaluate(root, context)


def test_policies_of_the_xacml_suite(suites: Path) -> None:
    chance = Random(3)  # noqa: S311  # the same each time
    found = [*cases(suites / "xacml-3.0")]
    others = [question for _, question in found]
    seen: Counter[str] = Counter()
    for root, first in found:
        recycler, sets = Recycler(), AnswerSets(root)
        recycler.follow({POLICY: "0"})
        for number in range(12):
            question = varied(chance, first, others) if number else first
            context, outcome = evaluated(root, question)
            effect = AnswerEffect.of(outcome.decision)
            recycled = recycler.answer(question, NOW)
            if recycled is not None:
                assert recycled.effect is effect
                assert not outcome.obligations
                seen[f"{effect} recycled by {recycled.rule}"] += 1
                continue
            if outcome.decision not in (XacmlDecision.PERMIT, XacmlDecision.DENY) or outcome.obligations:
                continue
            held = sets.holds_for(context, outcome)
            said = answer(question, effect, holds_for=None if held is None else held.text)
            assert recycler.learn(question, said, NOW).kept
    assert seen["Permit recycled by set"] > 100
    assert seen["Deny recycled by set"] > 10
