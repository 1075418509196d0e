"""The detector for many rules: what a candidate collides with, at a cost that hardly depends on how many there are.

Only rules on the path to the root and in the subtree can collide with a candidate. The path is short (`type_depth`).
The subtree is an interval of places, and summaries of its stretches (`summaries`) pass over all that surely fits, so
that the cost is that of the conflicts that are found.

As long as nothing was put in force that collides, two things more are known, since inclusion is transitive. All rules
on one event type say the same, so a candidate that says it too collides nowhere. And where the nearest rule above fits,
those further above do; where a rule below fits, so do all below that one.

Without that knowledge the answers are the same, and take longer. Only where the solver gave up on a pair may a rule be
known to fit through another one that the reference detector has to call undecided.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from types import MappingProxyType

from penstock.errors import MalformedError
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.names import TypeKey
from penstock.model.tree import TypeTree
from penstock.moderator.collide import collide
from penstock.moderator.conflicts import Conflict, Function, Kind, Mode, in_order
from penstock.moderator.forms import Form
from penstock.moderator.judge import QuickJudge
from penstock.moderator.places import Places, above, after
from penstock.moderator.rules import PublishRule
from penstock.moderator.summaries import Summary, summarise
from penstock.moderator.summary_tree import SummaryTree
from penstock.moderator.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class _Both:
    """Summaries of both functions."""

    p: Summary
    s: Summary

    def merged(self, other: "_Both") -> "_Both":
        p, s = self.p.merged(other.p), self.s.merged(other.s)
        return self if p is self.p and s is self.s else _Both(p, s)


@dataclass(slots=True)
class _Spot:
    """An event type with rules: those that state the same functions stand together."""

    event: TypeKey
    stated: dict[tuple[str, str], dict[str, PublishRule]] = field(default_factory=dict)


class Detector:
    """The rules in force, and what a candidate collides with."""

    def __init__(self, vocabulary: Vocabulary, mode: Mode = Mode.SCOPED, *, limits: Limits = DEFAULT_LIMITS) -> None:
        self.mode = mode
        self._vocabulary = vocabulary
        self._limits = limits
        self._judge = QuickJudge(vocabulary, mode, limits=limits)
        self._summarise = summarise(vocabulary.tree.scope, mode)
        self._places = Places(vocabulary.tree)
        self._rules: dict[str, PublishRule] = {}
        self._spots: dict[bytes, _Spot] = {}
        self._index: SummaryTree[_Both] = SummaryTree()
        #: of any two rules that collide at least one is among these
        self._doubtful: dict[str, None] = {}
        #: functions that were checked
        self._passed: set[tuple[Function, str]] = set()

    @property
    def vocabulary(self) -> Vocabulary:
        """What rules may speak about."""
        return self._vocabulary

    @property
    def rules(self) -> Mapping[str, PublishRule]:
        """The rules in force, by their ids."""
        return MappingProxyType(self._rules)

    def on(self, event: TypeKey) -> tuple[PublishRule, ...]:
        """Return the rules in force on an event type, by their ids."""
        spot = self._spots.get(self._places.place(event)) if event in self._vocabulary.tree else None
        found = () if spot is None else (rule for rules in spot.stated.values() for rule in rules.values())
        return tuple(sorted(found, key=lambda rule: rule.id))

    # --- questions ----------------------------------------------------------------------------------------------

    def conflicts(self, candidate: PublishRule) -> tuple[Conflict, ...]:
        """Return all conflicts of a candidate with the rules in force; one of the same id is left out.

        Raises what `Vocabulary.check` raises, and `MalformedError` (`moderator.not-a-list`) in the mode `algorithm`.
        """
        self._check(candidate)
        return self._find(candidate)

    def review(self) -> Iterator[tuple[PublishRule, tuple[Conflict, ...]]]:
        """Yield each rule that came into force unseen, and its conflicts; those without are doubtful no longer."""
        for rule in [self._rules[rule_id] for rule_id in self._doubtful]:
            found = self._find(rule)
            if not found:
                self._doubtful.pop(rule.id, None)
            yield rule, found

    # --- changes ------------------------------------------------------------------------------------------------

    def add(self, rule: PublishRule) -> tuple[Conflict, ...]:
        """Put a rule in force unless it collides; return its conflicts.

        Raises what `conflicts` raises, and `MalformedError` (`moderator.duplicate-id`). Nothing is changed then.
        """
        self._check_new(rule)
        found = self._find(rule)
        if not found:
            self._put(rule)
        return found

    def put(self, rule: PublishRule) -> None:
        """Put a rule in force without looking for conflicts, such as one of a rule base made by others.

        Raises what `add` raises.
        """
        self._check_new(rule)
        self._put(rule)
        self._doubtful[rule.id] = None

    def remove(self, rule_id: str) -> PublishRule:
        """Take a rule out of force. Raises `MalformedError` (`moderator.unknown-rule`)."""
        rule = self._rules.get(rule_id)
        if rule is None:
            raise MalformedError("moderator.unknown-rule", f"no rule in force is called `{rule_id[:80]}`")
        place = self._places.place(rule.event)
        spot = self._spots[place]
        stated = _stated(rule)
        del self._rules[rule_id], spot.stated[stated][rule_id]
        self._doubtful.pop(rule_id, None)
        if not spot.stated[stated]:
            del spot.stated[stated]
            self._index.replace(place, self._summary(spot))
        if not spot.stated:
            del self._spots[place]
        return rule

    def follow(self, tree: TypeTree) -> None:
        """Go on with a changed tree of the same scope; rules on types that have moved are doubtful from now on.

        Raises `MalformedError` (`moderator.unknown-type`) when a rule is on a type that has gone. Nothing is changed
        then.
        """
        vocabulary = replace(self._vocabulary, tree=tree)
        for standing in self._spots.values():
            vocabulary.check_type(standing.event)
        if tree.scope is not self._vocabulary.tree.scope:
            raise MalformedError("moderator.scope", "the tree has another scope", hint="detect anew with that tree")
        self._vocabulary = vocabulary
        for place in self._places.follow(tree).values():
            spot = self._spots.pop(place, None)
            if spot is None:
                continue
            self._index.replace(place, None)
            for rule in (rule for rules in spot.stated.values() for rule in rules.values()):
                self._put(rule)
                self._doubtful[rule.id] = None

    # --- within -------------------------------------------------------------------------------------------------

    def _check(self, rule: PublishRule) -> None:
        stated = ((Function.P, rule.fnc_p.text), (Function.S, rule.fnc_s.text))
        if stated[0] in self._passed and stated[1] in self._passed:
            self._vocabulary.check_type(rule.event)
            return
        self._vocabulary.check(rule, passed=self._passed, shown=self._judge.shows, limits=self._limits)
        # In the mode `algorithm` what is no list has no form.
        self._forms(rule)
        if len(self._passed) >= self._limits.moderator_answers:
            self._passed.clear()
        self._passed.update(stated)

    def _check_new(self, rule: PublishRule) -> None:
        if rule.id in self._rules:
            raise MalformedError(
                "moderator.duplicate-id", f"a rule `{rule.id}` is in force", hint="give the new one another id"
            )
        self._check(rule)

    def _put(self, rule: PublishRule) -> None:
        place = self._places.place(rule.event)
        spot = self._spots.get(place)
        if spot is None:
            spot = self._spots[place] = _Spot(rule.event)
        self._rules[rule.id] = rule
        same = spot.stated.setdefault(_stated(rule), {})
        if not same:
            self._index.add(place, self._summary_of(rule))
        same[rule.id] = rule

    def _summary_of(self, rule: PublishRule) -> _Both:
        return _Both(*map(self._summarise, self._forms(rule)))

    def _summary(self, spot: _Spot) -> _Both | None:
        parts = [self._summary_of(next(iter(rules.values()))) for rules in spot.stated.values()]
        return reduce(_Both.merged, parts) if parts else None

    def _forms(self, rule: PublishRule) -> tuple[Form, Form]:
        forms = self._judge.forms
        return forms[Function.P].form(rule.fnc_p), forms[Function.S].form(rule.fnc_s)

    def _find(self, candidate: PublishRule) -> tuple[Conflict, ...]:
        place = self._places.place(candidate.event)
        # Definition 1 is not transitive.
        consistent = not self._doubtful and self.mode is not Mode.LITERAL
        found = self._at(place, candidate, Kind.SAME)
        if consistent and found is not None and not found:
            return ()
        conflicts = list(found or ())
        for over in above(place):
            if over not in self._spots:
                continue
            found = self._at(over, candidate, Kind.UP)
            conflicts += found or ()
            if consistent and found is not None and not found:
                break
        if self._vocabulary.tree.children[candidate.event]:
            conflicts += self._below(place, candidate, consistent=consistent)
        return in_order(conflicts) if conflicts else ()

    def _below(self, place: bytes, candidate: PublishRule, *, consistent: bool) -> Iterator[Conflict]:
        start, end = place + b"\0", after(place)
        doubtful = self._doubts(candidate)
        while (under := self._index.first(start, end, doubtful)) is not None:
            found = self._at(under, candidate, Kind.DOWN)
            yield from found or ()
            start = after(under) if consistent and found is not None and not found else under + b"\0"

    def _at(self, place: bytes, candidate: PublishRule, kind: Kind) -> list[Conflict] | None:
        """Return the conflicts with the rules at a place, or None if there are no rules."""
        spot = self._spots.get(place)
        if spot is None:
            return None
        found: list[Conflict] | None = None
        for stated in spot.stated.values():
            rules = stated
            if candidate.id in stated:
                rules = {rule_id: rule for rule_id, rule in stated.items() if rule_id != candidate.id}
            if rules:
                scope = self._vocabulary.tree.scope
                found = [*(found or ()), *collide(candidate, rules.values(), kind, scope, self._judge)]
        return found

    def _doubts(self, candidate: PublishRule) -> Callable[[_Both], bool]:
        """Return the test whether what a summary is of may collide with a candidate that stands above it."""
        p, s = self._forms(candidate)
        of_p, of_s = self._judge.side(Function.P), self._judge.side(Function.S)
        if self.mode is Mode.LITERAL:
            return lambda both: not (both.p.fits(p, of_p) or both.s.fits(s, of_s))
        return lambda both: not (both.p.fits(p, of_p) and both.s.fits(s, of_s))


def _stated(rule: PublishRule) -> tuple[str, str]:
    return (rule.fnc_p.text, rule.fnc_s.text)
