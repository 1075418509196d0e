"""Whatever is asked for, in whatever order: nothing in force conflicts, what was undone is as before, nothing waits."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.moderator.kit import OWNER, P1, P2, P3, event, listing, tree, words

from penstock.errors import PenstockError
from penstock.model.names import TypeKey
from penstock.model.tree import TreeScope
from penstock.moderator.base.base import RuleBase
from penstock.moderator.base.records import from_record, to_record
from penstock.moderator.detection.detector import find_conflicts
from penstock.moderator.rules.rules import Mode, PublishRule, RuleFunction, SubscribeRule, parts
from penstock.moderator.rules.steps import (
    SEARCHING,
    Add,
    AddType,
    Leave,
    Logged,
    MoveType,
    Note,
    Pass,
    RemoveType,
    RenameType,
    Request,
    Resolve,
    Return,
    RuleStatus,
    StateSubscriberRule,
    Strategy,
    Undo,
    WithdrawRule,
)
from penstock.moderator.settlement.addition import Customs
from penstock.moderator.settlement.lifetimes import candidates, restore
from penstock.moderator.settlement.proposals import HEURISTICS, function_of, implies
from penstock.moderator.settlement.undo import plan, plan_request, plan_undo
from penstock.selector import ALWAYS, conjunction, parse
from penstock.trust.validity import Validity

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PARENTS: dict[str, str | None] = {"X": None, "A": "X", "B": "X", "AA": "A"}
EVENTS = [event(name) for name in PARENTS]
NEW = event("N")
FUNCTIONS = (
    ALWAYS,
    listing(("role", "engineer")),
    listing(("role", "worker")),
    listing(("company", "A")),
    listing(("role", "engineer"), ("company", "A")),
    listing(("machine", "M")),
)
FORMULAS = (*FUNCTIONS, parse("role IN ('engineer', 'worker')"), parse("role = 'engineer' OR company = 'A'"))
WHO = (P1, P2, P3)

numbers = st.integers(0, 6)


@st.composite
def stated(draw: st.DrawFn, events: Sequence[TypeKey] = EVENTS) -> Add:
    number = draw(numbers)
    by = WHO[number % len(WHO)]
    others = st.lists(st.sampled_from(WHO), min_size=1, unique=True).map(tuple)
    of = draw(st.one_of(st.just((by,)), st.just((by,)), others))
    begin, end = draw(st.sampled_from([(None, None)] * 4 + [(None, 1), (1, None), (1, 2)]))
    period = Validity.between(*(None if days is None else NOW + timedelta(days) for days in (begin, end)))
    fnc_p = draw(st.sampled_from((ALWAYS, ALWAYS, ALWAYS, listing(("company", "A")))))
    fnc_s = draw(st.sampled_from(FORMULAS))
    return Add(PublishRule(f"r{number}", draw(st.sampled_from(events)), of, by, fnc_p, fnc_s, period))


@st.composite
def wished(draw: st.DrawFn, events: Sequence[TypeKey]) -> StateSubscriberRule:
    number, of = draw(numbers), draw(st.sampled_from(WHO))
    end = draw(st.sampled_from((None, None, NOW + timedelta(2))))
    rule_ = SubscribeRule(f"s{number}", draw(st.sampled_from(events)), of, WHO[number % len(WHO)])
    return StateSubscriberRule(replace(rule_, validity=Validity.between(None, end)))


def requests(base: RuleBase) -> st.SearchStrategy[Request]:
    """Ask for what may be possible, and often is not."""
    types = [*base.tree.parents]
    known, consents = st.sampled_from(types), st.sampled_from([frozenset(WHO), frozenset()])
    wanted: list[tuple[int, st.SearchStrategy[Request]]] = [(5, stated(types))]
    if rejected := [rule_id for rule_id, each in base.standings.items() if each.status is RuleStatus.REJECTED]:
        wanted += [(6, st.builds(Resolve, st.sampled_from(rejected), st.sampled_from([*Strategy]), consents))]
    wanted += [(1, wished(types))]
    if base.standings:
        wanted += [(3, st.builds(WithdrawRule, st.sampled_from([*base.standings, *base.wishes])))]
        wanted += [(1, st.builds(Leave, st.sampled_from(WHO))), (1, st.just(Pass()))]
    if base.away:
        wanted += [(3, st.builds(Return, st.sampled_from(sorted(base.away))))]
    if base.steps:
        wanted += [(2, st.builds(Undo, st.integers(1, len(base.steps)), st.booleans()))]
    if len(types) > 2:
        settled = st.builds(MoveType, known, known, st.sampled_from([*Strategy]), consents)
        wanted += [(1, st.builds(MoveType, known, known)), (2, settled), (1, st.builds(RemoveType, known))]
    wanted += [(1, st.one_of(st.builds(AddType, st.just(NEW), known), st.builds(RenameType, known, st.just(NEW))))]
    weighted = [kind for weight, kind in wanted for _ in range(weight)]
    return st.integers(0, len(weighted) - 1).flatmap(weighted.__getitem__)


def speaker(base: RuleBase, request: Request, *, other: int = 0) -> Note:
    """Let each request be made by whoever may: of several, by one or the other."""
    days = len(base.steps) // 4
    match request:
        case Add(rule) | StateSubscriberRule(rule):
            who = rule.stated_by
        case WithdrawRule(rule_id) if rule_id in base.wishes:
            who = base.wishes[rule_id].stated.stated_by
        case WithdrawRule(rule_id) if rule_id in base.standings:
            stated = base.standings[rule_id].stated
            who = (stated.stated_by, *stated.publishers)[other % (1 + len(stated.publishers))]
        case _:
            who = OWNER
    return Note(who, NOW + timedelta(days=days))


def check(base: RuleBase, request: Request, now: datetime) -> None:
    rules = list(base.detector.rules.values())
    vocabulary = base.detector.vocabulary
    assert not any(find_conflicts(rule, rules, vocabulary, base.mode) for rule in rules)
    assert {rule_id: each.form for rule_id, each in base.standings.items() if each.form} == base.detector.rules
    open_before = {*base.history.open}
    fits = fitting(base, now)
    if isinstance(request, SEARCHING):
        assert not fits
    assert open_before.issuperset(entry.place for entry in fits), "what is kept out does not fit"
    assert not any(base.away & rule.speakers for rule in base.rules), "who is away has no rule in force"
    assert all(rule.publishers == base.standings[rule.id].stated.publishers for rule in rules)
    assert not [*untraced(base)], "a rule in force states every demand"


def untraced(base: RuleBase) -> Iterator[tuple[str, str]]:
    """Yield the demands in force that neither their own publisher nor any other rule in force states."""
    stated = [each.stated for each in base.standings.values() if each.form is not None]
    for rule in base.detector.rules.values():
        for function in RuleFunction:
            own = function_of(base.standings[rule.id].stated, function)
            known = {part for other in stated for part in parts(function_of(other, function))}
            for part in parts(function_of(rule, function)):
                if part not in known and not base.judge.implies(function, own, part).holds:
                    yield rule.id, part.text


def fitting(base: RuleBase, now: datetime) -> list[Logged]:
    found: list[Logged] = []
    for entry in candidates(base, now):
        with base.draft() as draft:
            if restore(draft, entry):
                found.append(entry)
    return found


@given(
    st.data(),
    st.sampled_from([*TreeScope]),
    st.sampled_from([Mode.SCOPED, Mode.SCOPED, Mode.ALGORITHM, Mode.LITERAL]),
    st.sampled_from([*HEURISTICS.values()]),
    st.sampled_from([None, *Strategy]),
)
@settings(max_examples=examples(50), deadline=None)
def test_whatever_is_asked_for(
    data: st.DataObject, scope: TreeScope, mode: Mode, heuristic: object, strategy: Strategy | None
) -> None:
    base = RuleBase(words(tree(PARENTS, scope)), mode)
    customs = Customs(strategy, heuristic)  # type: ignore[arg-type]  # of HEURISTICS
    for _ in range(data.draw(st.integers(5, 16))):
        request = data.draw(requests(base))
        note = speaker(base, request, other=data.draw(st.integers(0, 3)) if isinstance(request, WithdrawRule) else 0)
        before = base.image()
        try:
            planned = (
                plan_undo(base, request, note, customs)
                if isinstance(request, Undo)
                else plan(base, request, note, customs)
            )
        except PenstockError:
            assert base.image() == before
            continue
        assert base.image() == before, "planning changes nothing"
        if isinstance(request, SEARCHING):
            base.history.release_all()
            assert plan(base, request, note, customs).step == planned.step, "all of the log comes to the same"
        base.apply(planned.step)
        check(base, request, note.when)
        after = base.image()

        undoing = plan_undo(base, Undo(planned.step.number), note, customs).step.delta
        base.change(undoing)
        assert base.image() == before, "undo after do is identity"
        base.change(planned.step.delta)
        assert base.image() == after
    again = RuleBase(words(tree(PARENTS, scope)), mode)
    for step in base.steps:
        again.apply(from_record(step.number, step.note, to_record(step)))
    assert again.image() == base.image(), "the state is a fold of the steps, as they are kept"


@given(st.lists(stated(), min_size=1, max_size=8), st.sampled_from([*TreeScope]), st.sampled_from([None, Strategy.ADD]))
@settings(max_examples=examples(30), deadline=None)
def test_nothing_in_force_admits_whom_its_publisher_did_not(
    asked: Sequence[Add], scope: TreeScope, strategy: Strategy | None
) -> None:
    base = RuleBase(words(tree(PARENTS, scope)))
    customs = Customs(strategy)
    for request in asked:
        try:
            base.apply(plan(base, request, speaker(base, request), customs).step)
        except PenstockError:
            continue
    for rule_id in [*base.detector.rules][::2]:
        base.apply(plan(base, WithdrawRule(rule_id), speaker(base, WithdrawRule(rule_id)), customs).step)
    for standing in base.standings.values():
        if standing.form is not None:
            assert implies(base, standing.form, standing.stated)
        else:
            assert standing.status is not RuleStatus.IN_FORCE


DEMANDS = (
    parse("role = 'engineer'"),
    parse("company = 'A'"),
    parse("machine = 'M'"),
    parse("age >= 18"),
    parse("age >= 21"),
    parse("age <= 65"),
    parse("badge = 'b'"),
)


@pytest.mark.parametrize("mode", [Mode.SCOPED, Mode.ALGORITHM, Mode.LITERAL])
@pytest.mark.parametrize("scope", [*TreeScope])
def test_no_restriction_outlives_everyone_who_asked_for_it(scope: TreeScope, mode: Mode) -> None:
    """Let rules take on what others demand, and let those go, in every way in which rules go."""
    for seed in range(examples(40)):
        chance = Random(seed)  # noqa: S311  # which lives are tried is not secret
        life(chance, RuleBase(words(tree(PARENTS, scope)), mode), Customs(Strategy.ADD))


def life(chance: Random, base: RuleBase, customs: Customs) -> None:
    for number in range(chance.randint(3, 8)):
        by, end = chance.choice(WHO), chance.choice((None, None, NOW + timedelta(2)))
        fnc_s = conjunction(*chance.sample(DEMANDS, chance.choice((1, 1, 2))))
        rule_ = PublishRule(f"r{number}", chance.choice(EVENTS), (by,), by, ALWAYS, fnc_s, Validity.between(None, end))
        base.apply(plan(base, Add(rule_), Note(by, NOW), customs).step)
        assert not [*untraced(base)]
    for _ in range(chance.randint(2, 8)):
        types, withdrawn = [*base.tree.parents], WithdrawRule(chance.choice([*base.standings]))
        others = (
            Leave(chance.choice(WHO)),
            Return(chance.choice(WHO)),
            Pass(),
            MoveType(chance.choice(types), chance.choice(types)),
            RemoveType(chance.choice(types)),
            Undo(chance.randint(1, len(base.steps)), chance.choice((True, False))),
        )
        request: Request = chance.choice((withdrawn, withdrawn, withdrawn, *others))
        note = replace(speaker(base, request), when=NOW + timedelta(chance.randint(0, 3)))
        try:
            base.apply(plan_request(base, request, note, customs).step)
        except PenstockError:
            continue
        assert not [*untraced(base)], request
