"""One candidate and one function in force: do they collide?"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from penstock.model.names import TypeKey
from penstock.model.profiles import Profile
from penstock.model.tree import Scope
from penstock.moderator.conflicts import Conflict, Function, Kind, Mode, Party, demands
from penstock.moderator.judge import HOLDS, Implication, Judge
from penstock.moderator.rules import PublishRule
from penstock.selector import Selector


@dataclass(frozen=True, slots=True)
class Difference:
    """A function in which a candidate and rules collide, as `Conflict` has it."""

    function: Function
    missing: tuple[Selector, ...]
    extra: tuple[Selector, ...]
    witness: Profile | None
    admitted_by: Party | None
    certain: bool


def collide(
    candidate: PublishRule, rules: Collection[PublishRule], kind: Kind, scope: Scope, judge: Judge
) -> tuple[Conflict, ...]:
    """Compare a candidate with rules on one event type that state the same functions, one rule at least.

    Raises `MalformedError` (`moderator.not-a-list`) in the mode `algorithm`.
    """
    stated = next(iter(rules))
    found = differences(candidate, stated, kind, scope, judge)
    if not found:
        return ()
    ids = (rule.id for rule in rules if judge.mode is not Mode.LITERAL or of_two(candidate, rule))
    return tuple(conflicts_with(stated.event, tuple(sorted(ids)), kind, found))


def differences(
    candidate: PublishRule, stated: PublishRule, kind: Kind, scope: Scope, judge: Judge
) -> tuple[Difference, ...]:
    """Compare the functions of a candidate with those of a rule in force. Raises as `collide`."""
    if candidate.fnc_p.text == stated.fnc_p.text and candidate.fnc_s.text == stated.fnc_s.text:
        return ()
    wanted = demands(kind, scope, judge.mode)
    found: list[Difference] = []
    for function, mine, theirs in (
        (Function.P, candidate.fnc_p, stated.fnc_p),
        (Function.S, candidate.fnc_s, stated.fnc_s),
    ):
        onward = judge.implies(function, mine, theirs) if wanted.candidate_implies else HOLDS
        back = judge.implies(function, theirs, mine) if wanted.rule_implies else HOLDS
        if not (onward.holds and back.holds):
            found.append(_difference(function, onward, back))
    # Definition 1: both a publisher and a subscriber that satisfy one function and not both.
    return () if judge.mode is Mode.LITERAL and len(found) < len(Function) else tuple(found)


def conflicts_with(event: TypeKey, ids: tuple[str, ...], kind: Kind, found: Iterable[Difference]) -> list[Conflict]:
    """Return the conflicts with the rules of these ids, sorted; none where there are no rules."""
    if not ids:
        return []
    return [
        Conflict(event, ids, kind, f.function, f.missing, f.extra, f.witness, f.admitted_by, f.certain) for f in found
    ]


def of_two(candidate: PublishRule, rule: PublishRule) -> bool:
    """Say whether there are publishers P1 of the one and P2 of the other with P1 ≠ P2, as Definition 1 has it."""
    return len({*candidate.publishers, *rule.publishers}) > 1


def _difference(function: Function, onward: Implication, back: Implication) -> Difference:
    """Say what the candidate's function does not imply (`onward`), and what the rules' does not (`back`)."""
    witness, admitted_by = onward.witness, Party.CANDIDATE
    if witness is None:
        witness, admitted_by = back.witness, Party.RULE
    return Difference(
        function,
        onward.missing,
        back.missing,
        witness,
        admitted_by if witness is not None else None,
        certain=any(answer.certain and not answer.holds for answer in (onward, back)),
    )
