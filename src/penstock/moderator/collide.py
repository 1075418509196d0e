"""One candidate and one function in force: do they collide?"""

from collections.abc import Collection

from penstock.model.names import TypeKey
from penstock.model.tree import Scope
from penstock.moderator.conflicts import Conflict, Function, Kind, Mode, Party, demands
from penstock.moderator.judge import HOLDS, Implication, Judge
from penstock.moderator.rules import PublishRule


def collide(
    candidate: PublishRule, rules: Collection[PublishRule], kind: Kind, scope: Scope, judge: Judge
) -> tuple[Conflict, ...]:
    """Compare a candidate with rules on one event type that state the same functions, one rule at least.

    Raises `MalformedError` (`moderator.not-a-list`) in the mode `algorithm`.
    """
    stated = next(iter(rules))
    if candidate.fnc_p.text == stated.fnc_p.text and candidate.fnc_s.text == stated.fnc_s.text:
        return ()
    wanted = demands(kind, scope, judge.mode)
    answers: list[tuple[Function, Implication, Implication]] = []
    for function, mine, theirs in (
        (Function.P, candidate.fnc_p, stated.fnc_p),
        (Function.S, candidate.fnc_s, stated.fnc_s),
    ):
        onward = judge.implies(function, mine, theirs) if wanted.candidate_implies else HOLDS
        back = judge.implies(function, theirs, mine) if wanted.rule_implies else HOLDS
        if not (onward.holds and back.holds):
            answers.append((function, onward, back))
    if judge.mode is Mode.LITERAL:
        # Definition 1: two publishers, and both a publisher and a subscriber that satisfy one function and not both.
        rules = [rule for rule in rules if _of_two(candidate, rule)] if len(answers) == len(Function) else []
    if not answers or not rules:
        return ()
    ids = tuple(sorted(rule.id for rule in rules))
    return tuple(_conflict(stated.event, ids, kind, *answer) for answer in answers)


def _of_two(candidate: PublishRule, rule: PublishRule) -> bool:
    """Say whether there are publishers P1 of the one and P2 of the other with P1 ≠ P2, as Definition 1 has it."""
    return len({*candidate.publishers, *rule.publishers}) > 1


def _conflict(  # noqa: PLR0913, PLR0917  # what a conflict says, once for each
    event: TypeKey, ids: tuple[str, ...], kind: Kind, function: Function, onward: Implication, back: Implication
) -> Conflict:
    """Say what the candidate's function does not imply (`onward`), and what the rules' does not (`back`)."""
    witness, admitted_by = onward.witness, Party.CANDIDATE
    if witness is None:
        witness, admitted_by = back.witness, Party.RULE
    return Conflict(
        event,
        ids,
        kind,
        function,
        onward.missing,
        back.missing,
        witness,
        admitted_by if witness is not None else None,
        certain=any(answer.certain and not answer.holds for answer in (onward, back)),
    )
