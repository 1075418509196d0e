"""The job finds what the reference detector finds, in all modes and both scopes, and counts it rightly."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tests.budget import examples
from tests.moderator.kit import FORMULAS, LISTS, listing
from tests.pipeline.conflicts_kit import between, forest, look, reference, terms, told

from penstock.model.tree import TreeScope
from penstock.moderator.detection.judge import is_true
from penstock.moderator.rules.rules import Mode, PublishRule
from penstock.pipeline.conflicts.report import Pair, Witness, opened
from penstock.selector import ALWAYS, parse

MAKERS = (ALWAYS, listing(("company", "A")), listing(("company", "A"), ("licensed", True)), parse("company <> 'B'"))
_NONE = (None,) * 7
BAD_RULES: list[tuple[object, ...]] = [
    ("twice", "t0.n0", "P9", *_NONE),
    ("twice", "t0.n0", "P9", *_NONE),
    ("homeless", "nowhere", "P9", *_NONE),
    ("below-nothing", "orphan.child", "P9", *_NONE),
    ("nobody", "t0.n0", "P9", None, None, "age <= 18 AND age >= 21", *_NONE[:4]),
    ("unknown", "t0.n0", "P9", None, "colour = 'red'", *_NONE[:5]),
    ("broken", "t0.n0", "P9", None, None, "role = ", *_NONE[:4]),
]
BAD_TYPES: list[tuple[object, ...]] = [
    ("orphan", "missing", "orphan", None),
    ("orphan.child", "orphan", "orphan.child", None),
    ("a", "b", "a", None),
    ("b", "a", "b", None),
    ("c", None, "c", None),
    ("c", "t0.n0", "c", None),
]
REASONS = {
    "moderator.duplicate-id": 2,
    "moderator.unknown-type": 2,
    "moderator.contradiction": 1,
    "moderator.unknown-attribute": 1,
    "selector.syntax": 1,
    "tree.parent": 2,
    "type.cycle": 2,
    "tree.duplicate": 1,
}


#: a run takes a while, whatever the number of rules: all of these are for `make soak`
CASES = [
    (Mode.SCOPED, TreeScope.DOWNWARD),
    (Mode.LITERAL, TreeScope.UPWARD),
    (Mode.SCOPED, TreeScope.UPWARD),
    (Mode.ALGORITHM, TreeScope.DOWNWARD),
]
USUALLY = 1


@pytest.mark.parametrize(("mode", "scope"), CASES if examples(1) > 1 else CASES[:USUALLY])
@given(seed=st.integers(0, 1 << 32))
@settings(
    max_examples=examples(1),
    # A smaller seed says no more, and each try takes a while.
    phases=[Phase.generate],
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
def test_all_conflicts_are_those_of_the_reference(
    session: SparkSession, tmp_path_factory: pytest.TempPathFactory, mode: Mode, scope: TreeScope, seed: int
) -> None:
    lists = mode is Mode.ALGORITHM
    functions, makers = (LISTS, MAKERS[:3]) if lists else (FORMULAS + LISTS, MAKERS)
    chosen, rules = forest(seed, scope, functions, makers, 30)
    folder = tmp_path_factory.mktemp("conflicts")
    said = look(session, folder, chosen, rules, terms(scope, mode), bad=(BAD_RULES, BAD_TYPES))
    expected = reference(chosen, rules, mode)
    with opened(session, str(folder / "found")) as found:
        assert sorted(told(found.pairs(), mode)) == sorted(expected)
        report = found.report(top=1_000, witnesses=0)
        shown = [Pair.of(row) for row in report.causes.as_dicts() if row["other"] is not None]
        check_witnesses(shown, found.witnesses(shown), rules)
    assert {pair_of(pair) for pair in shown} <= {(pair.function, frozenset(pair[:2])) for pair in expected}
    assert said["reasons"] == REASONS
    assert said["counts"] == {
        "read": len(rules) + len(BAD_RULES),
        "rules": len(rules),
        "not_in_force": 0,
        "quarantined": len(BAD_RULES),
        "types": len(chosen.parents),
        "types_quarantined": 5,
        "conflicts": len(expected),
        "between_types": sum(pair.kind == "up" for pair in expected),
    }
    assert Counter({row[:2]: row[2] for row in report.organisations.rows}) == between(expected, rules)
    assert sum(int(str(count)) for row in report.subtrees.rows for count in row[1:]) == len(expected)


def pair_of(pair: Pair) -> tuple[str, frozenset[str]]:
    return pair.function, frozenset((pair.rule, pair.other))


def check_witnesses(pairs: list[Pair], seen: list[list[Witness]], rules: list[PublishRule]) -> None:
    """Check that whoever is named is admitted by the one rule, and not by the other."""
    by = {each.id: each for each in rules}
    assert len(pairs) == len(seen)
    for pair, people in zip(pairs, seen, strict=True):
        for witness in people:
            (other,) = {pair.rule, pair.other} - {witness.admitted_by}
            admitting, refusing = (getattr(by[each], witness.function) for each in (witness.admitted_by, other))
            assert is_true(admitting, witness.profile.values)
            assert not is_true(refusing, witness.profile.values)
    assert sum(map(bool, seen)) > len(pairs) // 2
