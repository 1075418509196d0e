"""The rule base: the rules in force, the tree, and the log of rules that can be restored. It is a fold of steps.

    base = RuleBase(vocabulary)
    plan = plan_add(base, rule, note)        # changes nothing
    base.apply(plan.step)                    # applies the whole step, or nothing

The rules in force never conflict: a change that would cause a conflict is refused completely.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from types import MappingProxyType
from typing import TypeAlias

from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.tree import TypeTree
from penstock.moderator.base.tables import (
    STALE,
    Demand,
    History,
    Image,
    RuleTables,
    imposed_on,
    stale,
    stated_by,
    unfounded,
)
from penstock.moderator.detection.detector import Detector
from penstock.moderator.detection.judge import QuickJudge
from penstock.moderator.limits import MODERATOR_LIMITS, ModeratorLimits
from penstock.moderator.rules.rule_blocks import FALSE
from penstock.moderator.rules.rules import Conflict, Mode, PublishRule, Rule, RuleFunction, parts
from penstock.moderator.rules.steps import (
    NO_CHANGE,
    SEARCHING,
    Delta,
    Logged,
    LoggedAs,
    Place,
    RuleChange,
    RuleState,
    RuleStatus,
    Step,
    SubscriberRule,
)
from penstock.moderator.rules.vocabulary import Vocabulary
from penstock.selector import conjunction

Earlier: TypeAlias = Callable[[int], Sequence[Step]]
"""Loads the first steps of the log, as many as its argument says."""


def _no_steps(_count: int) -> Sequence[Step]:
    return ()


class RuleBase:
    """All stated rules, their status, and the steps that led to it."""

    def __init__(
        self, vocabulary: Vocabulary, mode: Mode = Mode.SCOPED, *, limits: ModeratorLimits = MODERATOR_LIMITS
    ) -> None:
        self.detector = Detector(vocabulary, mode, limits=limits)
        #: compares functions by their meaning, in any mode
        self.judge = QuickJudge(vocabulary, Mode.SCOPED, limits=limits)
        self._limits = limits
        self._tables = RuleTables()
        self._steps: list[Step] = []
        #: the number of steps, and the function that loads those that are not in memory
        self._taken = 0
        self._earlier: Earlier = _no_steps
        self._unsettled: set[TypeKey] = set()
        #: types that a draft has unsettled
        self._drafted: list[TypeKey] | None = None

    @classmethod
    def resume(
        cls,
        vocabulary: Vocabulary,
        mode: Mode,
        image: Image,
        earlier: Earlier,
        *,
        limits: ModeratorLimits = MODERATOR_LIMITS,
    ) -> "RuleBase":
        """Return the rule base of an image; earlier steps are loaded when one of them is undone.

        Its rules are read and compared with each other when a question concerns them. Such a question raises
        `RefusedError` (`moderator.book`) if rules cannot be read, or conflict.

        Raises what `Detector.defer` raises.
        """
        tree = TypeTree.of(image.types, vocabulary.tree.scope)
        base = cls(replace(vocabulary, tree=tree), mode, limits=limits)
        base._tables = RuleTables.of(image)
        for block in base._tables.rules.blocks():
            base.detector.defer(block.event, block.stated, base._tables.rules.form)
        base._unsettled.update(image.unsettled)
        base._taken, base._earlier = image.steps, earlier
        return base

    @property
    def mode(self) -> Mode:
        """Return the mode, which defines what counts as a conflict."""
        return self.detector.mode

    @property
    def tree(self) -> TypeTree:
        """The event types."""
        return self.detector.vocabulary.tree

    @property
    def history(self) -> History:
        """Return the log of rules that can be restored."""
        return self._tables.history

    @property
    def steps(self) -> Sequence[Step]:
        """The log, from the first step on. Raises what loading earlier steps raises."""
        missing = self._taken - len(self._steps)
        if missing:
            self._steps[:0] = self._earlier(missing)
        return self._steps

    def since(self, number: int) -> Sequence[Step]:
        """Return the steps after one. Raises as `steps` if some of them are not in memory."""
        missing = self._taken - len(self._steps)
        return self._steps[number - missing :] if number >= missing else self.steps[number:]

    def forget(self, earlier: Earlier) -> None:
        """Drop the steps from memory: they are loaded when one of them is undone."""
        self._steps.clear()
        self._earlier = earlier

    @property
    def remembered(self) -> int:
        """Return the number of steps in memory."""
        return len(self._steps)

    @property
    def next_number(self) -> int:
        """The number of the next step."""
        return self._taken + 1

    @property
    def standings(self) -> Mapping[str, RuleState]:
        """All publishers' rules that were ever stated, by their ids."""
        return MappingProxyType(self._tables.rules)

    @property
    def limited(self) -> Mapping[str, bytes]:
        """Publishers' rules whose periods can begin or end, by id, and the instant before which nothing is due."""
        return self._tables.rules.limited()

    @property
    def read(self) -> int:
        """Return how many publishers' rules were read or written: those of a snapshot are read when they are needed."""
        return self._tables.rules.read

    @property
    def wishes(self) -> Mapping[str, SubscriberRule]:
        """All subscribers' rules that were ever stated, by their ids."""
        return MappingProxyType(self._tables.wishes)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All rules in force, of publishers and of subscribers, for `Subscriptions`.

        A publisher that is away is left out of rules that have other publishers.
        """
        wanted = (wish.stated for _, wish in sorted(self._tables.wishes.items()) if wish.status is RuleStatus.IN_FORCE)
        there = (rule.without(self._tables.away) for _, rule in sorted(self.detector.rules.items()))
        return (*there, *wanted)

    @property
    def away(self) -> frozenset[Principal]:
        """The principals that have left."""
        return frozenset(self._tables.away)

    @property
    def unsettled(self) -> frozenset[TypeKey]:
        """The event types on which something has changed since the log was last searched."""
        return frozenset(self._unsettled)

    def on(self, event: TypeKey) -> tuple[PublishRule, ...]:
        """Return the rules in force on an event type, which all state the same functions."""
        return self.detector.on(event)

    def standing(self, rule_id: str) -> RuleState:
        """Return the status of a rule. Raises `MalformedError` (`moderator.unknown-rule`)."""
        found = self._tables.rules.get(rule_id)
        if found is None:
            raise MalformedError(
                "moderator.unknown-rule", f"no rule is called `{rule_id[:80]}`", hint="see which rules there are"
            )
        return found

    def stated(self, rule_id: str) -> Rule:
        """Return what a publisher or a subscriber stated. Raises `MalformedError` (`moderator.unknown-rule`)."""
        wish = self._tables.wishes.get(rule_id)
        return self.standing(rule_id).stated if wish is None else wish.stated

    def blocker(self, entry: Logged) -> str | None:
        """Return the id of a rule in force that a log entry conflicts with; the entry's own rules do not count."""
        own = {rule.id for rule in entry.rules}
        try:
            found = (self.detector.blocker(rule, own) for rule in entry.rules)
            return next((rule_id for rule_id in found if rule_id is not None), None)
        except PenstockError as error:
            if error.code == FALSE:
                raise
            # The solver may not decide it in time again; trying it will show.
            return None

    def unfounded(self, delta: Delta) -> Iterator[tuple[Demand, frozenset[str]]]:
        """Yield demands that no rule in force states after a change, with the rules that still make them.

        Only demands of removed rules, and demands that changed rules do not state, are examined.
        """
        imposed = self._tables.imposed
        if any(change.before is not None and change.after is not None for change in delta.types.values()):
            # Moved types have other neighbours than before.
            asked = frozenset(imposed)
        else:
            sides = [(change.before, change.after) for change in delta.rules.values()]
            stated = (stated_by(before.stated) for before, _ in sides if before is not None and before.form is not None)
            asked = frozenset().union(*stated, *(imposed_on(after) for _, after in sides if after is not None))
        return unfounded(asked, imposed, self._tables.rules, self.tree, self._keeps)

    def _keeps(self, standing: RuleState, demand: Demand) -> bool:
        """Return whether a rule needs a demand in order not to demand less than its publisher stated."""
        (function, part), form = demand, standing.form or standing.stated
        stated, made = ((rule.fnc_p if function is RuleFunction.P else rule.fnc_s) for rule in (standing.stated, form))
        rest = conjunction(*(other for other in parts(made) if other != part))
        return self.judge.implies(function, stated, part).holds and not self.judge.implies(function, rest, part).holds

    def step(self, number: int) -> Step:
        """Return a step of the log. Raises `MalformedError` (`moderator.unknown-step`)."""
        if not 1 <= number <= self._taken:
            raise MalformedError("moderator.unknown-step", f"there is no step {number}", hint="see the log")
        return self.steps[number - 1]

    def image(self) -> Image:
        """Return the state as an independent value."""
        return replace(self.state, rules=dict(self._tables.rules))

    @property
    def state(self) -> Image:
        """The state, to be stored immediately: its rules are the table itself, which will change."""
        return Image(
            self._tables.rules,
            dict(self.tree.parents),
            dict(self.history.entries),
            frozenset(self._tables.away),
            dict(self._tables.wishes),
            frozenset(self._unsettled),
            self._taken,
        )

    # --- changes ------------------------------------------------------------------------------------------------

    def apply(self, step: Step) -> None:
        """Apply a step.

        Raises `RefusedError` (`moderator.stale`) if it is not the next one, and what `check_away` and `change` raise.
        Then nothing is changed.
        """
        if step.number != self.next_number:
            stale("the step was planned on another state of the rule base")
        self.check_away(step.delta)
        self.change(step.delta)
        self._steps.append(step)
        self._taken += 1
        if isinstance(step.request, SEARCHING):
            self._unsettled.clear()

    @contextmanager
    def tried(self, step: Step) -> Iterator[None]:
        """Apply a step inside a `with` block, and undo it at the end.

        Raises as `apply`.
        """
        unsettled = frozenset(self._unsettled)
        self.apply(step)
        try:
            yield
        finally:
            self.change(step.delta.inverse())
            self._steps.pop()
            self._taken -= 1
            self._unsettled.clear()
            self._unsettled.update(unsettled)

    @contextmanager
    def draft(self) -> Iterator["RuleBaseDraft"]:
        """Try changes one after the other; all are undone at the end."""
        draft, outer = RuleBaseDraft(self), self._drafted
        self._drafted = []
        try:
            yield draft
        finally:
            self.change(draft.delta.inverse())
            self._unsettled.difference_update(self._drafted)
            self._drafted = outer

    def change(self, delta: Delta) -> None:
        """Change the state, completely or not at all.

        (1) Check that the old values are those of the delta. (2) Remove forms that change, (3) change the tree, and
        (4) put the new forms in force, one after the other, unless they conflict. (5) If the tree has changed, check
        all moved rules for conflicts, and subscribers' rules against the new vocabulary. (6) Write the rest.

        Raises `RefusedError`: `moderator.stale`, `moderator.in-use`, `moderator.away`, `moderator.conflict`; and what
        `Vocabulary.check` raises.
        """
        # (1) The delta was made for this state.
        self._tables.check(delta, self.tree)
        before, placed = self.tree, 0
        changes = [change for _, change in sorted(delta.rules.items())]
        # (2) Unchanged forms stay in force.
        out = [change.before.form for change in changes if change.before is not None and change.before.form is not None]
        into = [change.after.form for change in changes if change.after is not None and change.after.form is not None]
        for form in out:
            self.detector.read_about(form.event)
        for form in out:
            self.detector.remove(form.id)
        try:
            # (3) Types without rules can be removed now.
            if delta.types:
                self.detector.follow(_changed(before, delta))
            # (4) Two of the new forms can also conflict with each other.
            for form in into:
                _refuse(self.detector.add(form))
                placed += 1
            # (5) Rules that moved can conflict although they are unchanged.
            if delta.types:
                _refuse([conflict for _, found in self.detector.review() for conflict in found])
            self._check_wishes(delta)
        except PenstockError:
            for form in into[:placed]:
                self.detector.remove(form.id)
            if self.tree is not before:
                self.detector.follow(before)
            for form in out:
                self.detector.put(form)
            self._trust()
            raise
        # (6) Nothing fails from here on.
        self._tables.write(delta)
        fresh = delta.unsettling - self._unsettled
        self._unsettled |= fresh
        if self._drafted is not None:
            self._drafted += fresh

    def check_away(self, delta: Delta) -> None:
        """Check that principals that leave have no rule in force. Raises `RefusedError` (`moderator.away`)."""
        self._tables.check_away(delta)

    def _check_wishes(self, delta: Delta) -> None:
        """Check subscribers' rules again; the event type of an ended rule may be gone."""
        for change in delta.wishes.values():
            if change.after is None or change.after.status is RuleStatus.ENDED:
                continue
            if change.before is None or change.before.stated != change.after.stated:
                self.detector.vocabulary.check(change.after.stated, shown=self.judge.shows, limits=self._limits)

    def _trust(self) -> None:
        """Check rules that were restored unchecked, so that the detector can rely on the absence of conflicts."""
        for _ in self.detector.review():
            pass


class RuleBaseDraft:
    """Temporary changes, and their sum."""

    def __init__(self, base: RuleBase) -> None:
        self.base = base
        self.delta = NO_CHANGE

    def change(self, delta: Delta) -> None:
        """Change the state temporarily. Raises what `RuleBase.change` raises; then nothing is changed."""
        self.base.change(delta)
        self.delta = self.delta.then(delta)

    def wish(self, wishes: Mapping[str, SubscriberRule]) -> None:
        """Change the status of subscribers' rules. Raises as `change`."""
        known = self.base.wishes
        self.change(
            Delta(
                wishes={
                    rule_id: RuleChange(known.get(rule_id), wish)
                    for rule_id, wish in wishes.items()
                    if known.get(rule_id) != wish
                }
            )
        )

    def stand(self, standings: Mapping[str, RuleState]) -> None:
        """Change the status of rules. Raises as `change`."""
        known = self.base.standings
        self.change(
            Delta(
                rules={
                    rule_id: RuleChange(known.get(rule_id), standing)
                    for rule_id, standing in standings.items()
                    if known.get(rule_id) != standing
                }
            )
        )

    def fits(self, standings: Mapping[str, RuleState]) -> bool:
        """Change the status of rules if they fit; return whether they do."""
        try:
            self.stand(standings)
        except PenstockError as error:
            # A form that nobody satisfies, or that was not decided in time, does not fit.
            if error.code in (STALE, FALSE):
                raise
            return False
        return True

    def log(self, kind: LoggedAs, rules: tuple[PublishRule, ...]) -> None:
        """Push an entry on the stack, and remove an equal one."""
        if not rules:
            return
        entry = Logged(self._free_place(), kind, rules)
        same = self.base.history.same(entry)
        if same is not None:
            self.drop(same)
        self.change(Delta(log={entry.place: RuleChange(None, entry)}))
        blocker = self.base.blocker(entry)
        if blocker is not None:
            self.base.history.keep_out(entry, frozenset({blocker}))

    def _free_place(self) -> Place:
        # A step that replays others has the log entries of all of them.
        step = self.base.next_number
        return next((step, index) for index in count() if (step, index) not in self.base.history.entries)

    def drop(self, entry: Logged) -> None:
        """Remove an entry from the stack."""
        self.change(Delta(log={entry.place: RuleChange(entry, None)}))


def _refuse(conflicts: Sequence[Conflict]) -> None:
    if conflicts:
        raise RefusedError(
            "moderator.conflict",
            f"rules in force would conflict on `{conflicts[0].event.name}`",
            hint="see what is proposed to resolve it",
            conflicts=tuple(conflicts),
        )


def _changed(tree: TypeTree, delta: Delta) -> TypeTree:
    parents = dict(tree.parents)
    for event, change in delta.types.items():
        if change.after is None:
            del parents[event]
        else:
            parents[event] = change.after.parent
    return TypeTree.of(parents, tree.scope)
