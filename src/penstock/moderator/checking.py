"""All conflicts within a set of rules that nobody has settled yet, such as those of a file."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from penstock.errors import PenstockError
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.moderator.conflicts import Conflict, Mode, in_order
from penstock.moderator.detect import Detector
from penstock.moderator.rules import PublishRule
from penstock.moderator.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Checked:
    """A rule, what it collides with among those before it, and what is wrong with it otherwise."""

    rule: PublishRule
    conflicts: tuple[Conflict, ...] = ()
    problem: PenstockError | None = None


def check_rules(
    vocabulary: Vocabulary, mode: Mode, rules: Iterable[PublishRule], *, limits: Limits = DEFAULT_LIMITS
) -> Iterator[Checked]:
    """Yield each rule with what it collides with; of two rules that collide, the later one names the earlier.

    Rules that collide are compared with those that follow as well. Two whose periods have no instant in common do not
    collide. A rule that is wrong in itself is compared with nothing.
    """
    detector = Detector(vocabulary, mode, limits=limits)
    known: dict[str, PublishRule] = {}
    for rule in rules:
        try:
            conflicts = detector.add(rule)
            if conflicts:
                detector.put(rule)
        except PenstockError as error:
            yield Checked(rule, problem=error)
            continue
        known[rule.id] = rule
        yield Checked(rule, in_order(_at_one_time(rule, conflicts, known)))


def _at_one_time(rule: PublishRule, conflicts: Iterable[Conflict], known: dict[str, PublishRule]) -> Iterator[Conflict]:
    for conflict in conflicts:
        ids = tuple(each for each in conflict.rules if rule.validity.intersect(known[each].validity) is not None)
        if ids:
            yield conflict if ids == conflict.rules else replace(conflict, rules=ids)
