"""What tests of conflicts on Spark share: many small rule bases that are looked at in one run, and the reference."""

import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from tests.moderator.kit import MAKERS, P1, P2, PEOPLE, rule, tree, words

from penstock.model.tree import TreeScope, TypeTree
from penstock.moderator.detection.detector import find_conflicts
from penstock.moderator.rules.rules import ConflictKind, Mode, PublishRule
from penstock.pipeline.conflicts.forms import RuleTerms
from penstock.pipeline.conflicts.input import RULES, TYPES, TableNames, rules_frame, types_frame
from penstock.pipeline.jobs.conflicts import Conflicts
from penstock.pipeline.jobs.job import run
from penstock.pipeline.outputs import Said
from penstock.selector import Selector

NAMING = TableNames(what=lambda event: event.name)


class Pair(NamedTuple):
    """A conflict as the reference and the job tell it; of rules on one type, only that they conflict."""

    rule: str
    other: str
    kind: str
    function: str
    attributes: tuple[str, ...] = ()


def forest(
    seed: int, scope: TreeScope, functions: tuple[Selector, ...], makers: tuple[Selector, ...], trees: int
) -> tuple[TypeTree, list[PublishRule]]:
    """Return trees side by side, each a rule base of its own."""
    chosen = random.Random(seed)  # noqa: S311  # nothing is kept secret by it
    parents: dict[str, str | None] = {}
    rules: list[PublishRule] = []
    for number in range(trees):
        names = [f"t{number}.n{place}" for place in range(chosen.randint(1, 9))]
        for place, name in enumerate(names):
            above = chosen.randint(-1 if place % 4 == 0 else 0, place - 1) if place else -1
            parents[name] = None if above < 0 else names[above]
        for place in range(chosen.randint(1, 10)):
            stated = chosen.choice(functions), chosen.choice(makers)
            of = chosen.choice([(P1,), (P2,), (P1, P2)])
            rules.append(rule(f"r{number}.{place}", chosen.choice(names), *stated, of=of))
    return tree(parents, scope), rules


def terms(scope: TreeScope, mode: Mode = Mode.SCOPED) -> RuleTerms:
    return RuleTerms(scope, MAKERS.attributes, PEOPLE.attributes, mode)


def reference(chosen: TypeTree, rules: list[PublishRule], mode: Mode) -> set[Pair]:
    """Return all conflicts as the reference finds them, each once."""
    vocabulary, found = words(chosen), set()
    by_tree: dict[str, list[PublishRule]] = {}
    for each in rules:
        by_tree.setdefault(each.event.name.partition(".")[0], []).append(each)
    for together in by_tree.values():
        for candidate in together:
            for conflict in find_conflicts(candidate, together, vocabulary, mode):
                function = "both" if mode is Mode.LITERAL else str(conflict.function)
                named = conflict.attributes if mode is not Mode.LITERAL else ()
                if conflict.kind is ConflictKind.UP:
                    found |= {Pair(candidate.id, other, "up", function, named) for other in conflict.rules}
                elif conflict.kind is ConflictKind.SAME:
                    found |= {Pair(candidate.id, o, "same", function) for o in conflict.rules if candidate.id < o}
    return found


def told(frame: DataFrame, mode: Mode) -> list[Pair]:
    """Return the pairs of a frame in the form of the reference."""
    return [
        Pair(row.rule, row.other, row.kind, row.function)
        if row.kind == "same" or mode is Mode.LITERAL
        else Pair(row.rule, row.other, row.kind, row.function, tuple(row.attributes))
        for row in frame.collect()
    ]


def between(pairs: Iterable[Pair], rules: list[PublishRule]) -> Counter[tuple[str, str]]:
    """Count conflicts by who states the rules."""
    by = {each.id: str(each.stated_by) for each in rules}
    found: Counter[tuple[str, str]] = Counter()
    for pair in pairs:
        one, other = sorted((by[pair.rule], by[pair.other]))
        found[one, other] += 1
    return found


def look(
    spark: SparkSession,
    folder: Path,
    chosen: TypeTree,
    rules: list[PublishRule],
    of: RuleTerms,
    *,
    bad: tuple[list[tuple[object, ...]], list[tuple[object, ...]]] = ([], []),
) -> Said:
    """Run the job; `bad` are rows of rules and of types that are none."""

    def all_rules(on: SparkSession) -> DataFrame:
        return rules_frame(on, rules, NAMING).union(on.createDataFrame(bad[0], RULES))

    def all_types(on: SparkSession) -> DataFrame:
        return types_frame(on, chosen, NAMING).union(on.createDataFrame(bad[1], TYPES))

    return run(Conflicts(all_rules, all_types, of, "test"), spark, str(folder / "found"))
