"""Counterfactuals are as small as trying all changes shows, and each of them gives another decision."""

from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.policy.analysis.test_questions import TRIED, Several, Simple
from tests.policy.kit import NOW

from penstock.policy.analysis.counterfactuals import (
    MOST_CHANGED,
    CounterfactualFinder,
    CounterfactualSearch,
    RequestChange,
    ValueRange,
)
from penstock.policy.engine.evaluate import evaluate
from penstock.policy.engine.lookup import Context, NoSources
from penstock.policy.language.datatypes import INTEGER, STRING, DataType
from penstock.policy.language.policies import Root
from penstock.policy.language.requests import ENVIRONMENT, SUBJECT, Key, Request, key_of
from penstock.policy.language.results import XacmlDecision
from penstock.policy.syntax.forms import read_root
from penstock.selector.analysis import AnalysisVerdict
from penstock.selector.limits import SELECTOR_LIMITS, SelectorLimits

PERMIT = frozenset({XacmlDecision.PERMIT})
NOT_PERMIT = frozenset({XacmlDecision.DENY, XacmlDecision.NOT_APPLICABLE})


def decided(root: Root, request: Request) -> XacmlDecision:
    return evaluate(root, Context(request, NOW, NoSources())).decision


def found(root: Root, request: Request, limits: SelectorLimits = SELECTOR_LIMITS) -> CounterfactualSearch:
    wanted = NOT_PERMIT if decided(root, request) is XacmlDecision.PERMIT else PERMIT
    finder = CounterfactualFinder(
        root, lambda context: evaluate(root, context), Context(request, NOW, NoSources()), limits
    )
    return finder.find(wanted)


def bags(of_type: DataType) -> Iterator[tuple[Any, ...]]:
    yield ()
    yield from ((one,) for one in TRIED[of_type])
    yield from combinations(TRIED[of_type], 2)


def fewest(root: Root, request: Request, keys: list[Key]) -> int | None:
    """Return the smallest number of attributes whose change gives another decision, by trying all."""
    wanted = NOT_PERMIT if decided(root, request) is XacmlDecision.PERMIT else PERMIT
    for size in range(1, len(keys) + 1):
        for some in combinations(keys, size):
            for values in product(*(bags(key.of) for key in some)):
                changed = request
                for key, those in zip(some, values, strict=True):
                    changed = changed.with_values(key, those)
                if decided(root, changed) in wanted:
                    return size
    return None


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 1 << 40))
def test_they_are_the_smallest(seed: int) -> None:
    maker = Simple(seed)
    root = maker.root()
    facts = maker.random.choice([*maker.requests()])
    request = Request.of_facts({key: values for key, values in facts.items() if values})
    search = found(root, request)
    expected = fewest(root, request, [key_of(*one) for one in maker.attributes])
    assert search.certain
    assert expected is None or {len(one.changes) for one in search.found} == {expected}
    assert search.found or search.verdict is AnalysisVerdict.NO
    check_all(root, request, search)


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 1 << 40))
def test_none_is_overlooked_with_several_values_and_with_what_is_not_understood(seed: int) -> None:
    maker = Several(seed)
    root = maker.root()
    (facts,) = maker.some_requests(1)
    request = Request.of_facts({key: values for key, values in facts.items() if values})
    search = found(root, request)
    check_all(root, request, search)
    if search.certain:
        expected = fewest(root, request, [key_of(*one) for one in maker.attributes])
        # Values can also be added to those of the request, which is not tried here.
        sizes = {len(one.changes) for one in search.found}
        assert expected is None or (sizes and max(sizes) <= expected)


def check_all(root: Root, request: Request, search: CounterfactualSearch) -> None:
    """Check that each counterfactual has its decision, with all values that suit, and that all change others."""
    before = decided(root, request)
    permitted = before is XacmlDecision.PERMIT
    for one in search.found:
        assert decided(root, one.applied(request)) is one.decision
        assert (one.decision is XacmlDecision.PERMIT) is not permitted
        suiting = [[value for value in TRIED[change.key.of] if change.suits(value)] for change in one.changes]
        if all(suiting):
            for values in product(*suiting):
                changed = request
                for change, value in zip(one.changes, values, strict=True):
                    changed = changed.with_values(change.key, [value])
                assert decided(root, changed) is one.decision
    sets = [frozenset(change.key for change in one.changes) for one in search.found]
    assert len({*sets}) == len(sets)


POLICY = """\
attribute role { category = subject id = "role" type = string }
attribute user { category = subject id = "user" type = string }
attribute hour { category = environment id = "hour" type = integer }
attribute owner { category = resource id = "owner" type = string }
attribute now { category = environment id = "urn:oasis:names:tc:xacml:1.0:environment:current-time" type = time }
policy records {
    apply %s
    %s
}
"""
HOUR = key_of(ENVIRONMENT, "hour", INTEGER)
ROLE = key_of(SUBJECT, "role", STRING)


def texts(rules: str, facts: dict[Key, tuple[Any, ...]], combining: str = "deny-overrides") -> set[str]:
    root = read_root((POLICY % (combining, rules)).encode())
    search = found(root, Request.of_facts(facts))
    assert search.certain
    return {
        " and ".join(change.text(change.key.id.rpartition(":")[2]) for change in one.changes) for one in search.found
    }


@pytest.mark.parametrize(
    ("rules", "facts", "expected"),
    [
        ('rule r { permit target clause role == "doctor" }', {ROLE: ("nurse",)}, {'role = "doctor"'}),
        ('rule r { permit target clause role == "doctor" or role == "chief" }', {}, {'role = "chief" or "doctor"'}),
        ("rule r { permit condition hour >= 8 and hour <= 17 }", {HOUR: (20,)}, {"hour between 8 and 17"}),
        ("rule r { permit condition hour >= 8 and hour < 17 }", {HOUR: (20,)}, {"hour >= 8 and hour < 17"}),
        ("rule r { permit condition hour < 8 or hour > 17 }", {HOUR: (9,)}, {"hour < 8 or hour > 17"}),
        ("rule r { permit condition hour != 5 }", {HOUR: (5,)}, {"hour other than 5"}),
        ('rule r { permit target clause role == "a" }', {ROLE: ("a",)}, {'role other than "a"'}),
        ("rule r { permit condition string-bag-size(role) == 0 }", {ROLE: ("a",)}, {"no role"}),
        ('rule r { permit condition "a" in role and "b" in role }', {ROLE: ("a",)}, {'"b" added to role'}),
        ('rule r { permit condition "a" in role and "b" in role }', {ROLE: ()}, {'role = "a" and "b"'}),
        ('rule r { permit target clause now > "18:00:00Z":time }', {}, {"current-time > 18:00:00Z"}),
        ("rule r { permit condition owner == user }", {key_of(SUBJECT, "user", STRING): ("ann",)}, {'owner = "ann"'}),
        (
            'rule r { permit target clause role == "doctor" condition hour > 7 }',
            {HOUR: (3,)},
            {'role = "doctor" and hour > 7'},
        ),
        (
            " ".join(f'rule r{one} {{ permit target clause role == "{one}" }}' for one in "abcdef"),
            {},
            {'role = "a", "b", "c" or "d" or 2 others'},
        ),
        ("rule r { deny }", {ROLE: ("a",)}, set()),
    ],
)
def test_in_words(rules: str, facts: dict[Key, tuple[Any, ...]], expected: set[str]) -> None:
    assert texts(rules, facts) == expected


def test_several_are_found() -> None:
    rules = 'rule r { permit target clause role == "doctor" } rule s { permit condition hour < 8 }'
    assert texts(rules, {HOUR: (9,), ROLE: ("nurse",)}, "permit-overrides") == {'role = "doctor"', "hour < 8"}


def test_larger_ones_are_not_shown() -> None:
    rules = 'rule r { permit target clause role == "doctor" } rule s { permit condition hour < 8 and owner == "x" }'
    assert texts(rules, {HOUR: (9,)}, "permit-overrides") == {'role = "doctor"'}


def test_more_attributes_than_can_be_searched() -> None:
    names = [f"a{number}" for number in range(MOST_CHANGED + 2)]
    declared = "".join(f'attribute {one} {{ category = subject id = "{one}" type = string }}\n' for one in names)
    clauses = " ".join(f'clause {one} == "x"' for one in names)
    text = f"{declared}policy p {{ apply deny-overrides rule r {{ permit target {clauses} }} }}"
    root = read_root(text.encode())
    search = found(root, Request(()))
    assert (search.verdict, search.most, search.certain) == (AnalysisVerdict.NO, MOST_CHANGED, True)
    nearly = Request.of_facts({key_of(SUBJECT, one, STRING): ("x",) for one in names[2:]})
    assert len(found(root, nearly).found[0].changes) == 2


def test_what_is_not_understood_is_tried() -> None:
    rules = 'rule r { permit condition string-starts-with("doc", role) }'
    root = read_root((POLICY % ("deny-overrides", rules)).encode())
    search = found(root, Request.of_facts({ROLE: ("nurse",)}))
    # Others would do too, and are not listed.
    assert [one.changes[0].text("role") for one in search.found] == ['role = "doc"']
    assert not search.certain
    rules = 'rule r { permit condition string-regexp-match("^x{9}$", role) }'
    root = read_root((POLICY % ("deny-overrides", rules)).encode())
    search = found(root, Request.of_facts({ROLE: ("nurse",)}))
    assert search.verdict is AnalysisVerdict.UNKNOWN
    assert search.unknown == ("function `string-regexp-match` of rule `r` of policy `records`",)
    rules += ' rule s { permit target clause role == "chief" }'
    root = read_root((POLICY % ("permit-overrides", rules)).encode())
    search = found(root, Request.of_facts({ROLE: ("nurse",)}))
    assert [one.changes[0].text("role") for one in search.found] == ['role = "chief"']


def test_the_solver_has_limits() -> None:
    root = read_root((POLICY % ("deny-overrides", "rule r { permit condition hour > 8 }")).encode())
    search = found(root, Request.of_facts({HOUR: (3,)}), SelectorLimits(solver_effort=1))
    assert (search.verdict, search.found, search.certain) == (AnalysisVerdict.UNKNOWN, (), False)
    assert search.reason
    many = Request.of_facts({HOUR: tuple(range(100))})
    assert found(root, many).verdict is AnalysisVerdict.UNKNOWN


def test_ranges() -> None:
    assert [value in ValueRange(2, 4, with_high=False) for value in (1, 2, 3, 4)] == [False, True, True, False]
    assert 7 in ValueRange()
    change = RequestChange(HOUR, (), (1,), ranges=(ValueRange(None, 4),), excluded=(2,))
    assert [change.suits(value) for value in (1, 2, 5)] == [True, False, False]
