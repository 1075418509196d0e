"""The reference detector: a candidate against every rule, one after the other, as paper 1 has it in Algorithm 1.

It is short, so that one can see that it is right, and slow; `detector` gives the same answers.
"""

from collections.abc import Iterable
from dataclasses import replace

from penstock.model.names import TypeKey
from penstock.model.tree import TypeTree
from penstock.moderator.detection.judge import PlainJudge, collide
from penstock.moderator.limits import MODERATOR_LIMITS, ModeratorLimits
from penstock.moderator.rules.conflicts import Conflict, ConflictKind, Mode, RuleFunction, in_order
from penstock.moderator.rules.rules import PublishRule
from penstock.moderator.rules.vocabulary import Vocabulary


def find_conflicts(
    candidate: PublishRule,
    rules: Iterable[PublishRule],
    vocabulary: Vocabulary,
    mode: Mode = Mode.SCOPED,
    *,
    limits: ModeratorLimits = MODERATOR_LIMITS,
) -> tuple[Conflict, ...]:
    """Return all conflicts of a candidate with rules in force; the candidate itself, if it is there, is left out.

    Raises `MalformedError` (`moderator.not-a-list`) in the mode `algorithm`.
    """
    judge = PlainJudge(vocabulary, mode, limits=limits)
    found: dict[tuple[TypeKey, str, str, RuleFunction], Conflict] = {}
    for rule in rules:
        kind = relation(vocabulary.tree, candidate.event, rule.event)
        if kind is None or rule.id == candidate.id:
            continue
        for conflict in collide(candidate, [rule], kind, vocabulary.tree.scope, judge):
            stated = (rule.event, rule.fnc_p.text, rule.fnc_s.text, conflict.function)
            others = found[stated].rules if stated in found else ()
            found[stated] = replace(conflict, rules=tuple(sorted((*others, rule.id))))
    return in_order(found.values())


def relation(tree: TypeTree, event: TypeKey, other: TypeKey) -> ConflictKind | None:
    """Return the relation of `other` to `event` in the tree; None if they are not related."""
    if event == other:
        return ConflictKind.SAME
    if tree.is_sub(event, other):
        return ConflictKind.UP
    return ConflictKind.DOWN if tree.is_sub(other, event) else None
