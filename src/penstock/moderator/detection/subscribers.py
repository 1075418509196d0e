"""Publisher–subscriber conflicts: do a publisher and a subscriber match (paper 1, Definition 2, III-C)?

`allow_subscription(E, P, S)` compares in both directions: P's demands on subscribers (`fnc_s`) with S's profile, and
S's demands on publishers (`fnc_p`) with P's profile. The scope of the tree determines which of their rules count:

- those on E, and on all types that a right on E reaches, because S gets these too: all of them must match;
- without a rule on E, those on types from which a right reaches E: one of them must match.

A publisher without any such rule does not publish E, and nobody can subscribe to E from it. A subscriber without any
has no demands. In the mode `literal` all rules on hierarchically related types must match, as in Definition 2.

Rules have periods. A rule in force can refuse even if its period is over: it stays in force until a step passes time. A
right exists only while a publisher's rule gives it, and one of the subscriber's if it has any; `Allowance.periods` says
when.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NoReturn

from penstock.errors import MalformedError
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.profiles import Profile
from penstock.model.tree import TreeScope
from penstock.moderator.detection.judge import is_true
from penstock.moderator.rules.rules import Mode, PublishRule, RuleFunction, SubscribeRule, parts
from penstock.moderator.rules.vocabulary import Vocabulary
from penstock.selector import Selector
from penstock.trust.validity import ALWAYS, ANY_TIME, Periods, Validity, both, either


@dataclass(frozen=True, slots=True)
class Failure:
    """A function that a profile does not satisfy, and the attributes at fault."""

    rule: str
    function: RuleFunction
    whose: Principal
    attributes: tuple[str, ...]

    def __str__(self) -> str:
        at_fault = ", ".join(f"`{name}`" for name in self.attributes)
        return f"the profile of {self.whose.short} does not satisfy {self.function} of rule `{self.rule}`: {at_fault}"


@dataclass(frozen=True, slots=True)
class Allowance:
    """Whether a subscriber receives events of a type from a publisher, when, and why not. It has no truth value."""

    event: TypeKey
    publisher: Principal
    subscriber: Principal
    failures: tuple[Failure, ...]
    #: whether the publisher has a rule by which it publishes such events
    published: bool = True
    #: when rules give the right
    periods: Periods = ()

    @property
    def allowed(self) -> bool:
        """Return whether nothing prevents it, while the rules are valid."""
        return self.published and not self.failures

    @property
    def reasons(self) -> tuple[str, ...]:
        """Return the reasons against it, in sentences."""
        if not self.published:
            return (f"{self.publisher.short} has no rule by which it publishes `{self.event.name}`",)
        return tuple(map(str, self.failures))

    def __bool__(self) -> NoReturn:
        raise TypeError("an allowance has no truth value; ask whether it is `allowed`")


@dataclass(frozen=True, slots=True)
class PairReport:
    """All pairs of an event type: which subscriber receives events from which publisher, and which does not."""

    event: TypeKey
    pairs: tuple[Allowance, ...]

    @property
    def allowed(self) -> tuple[Allowance, ...]:
        """The pairs that match."""
        return tuple(pair for pair in self.pairs if pair.allowed)

    @property
    def refused(self) -> tuple[Allowance, ...]:
        """The pairs in conflict."""
        return tuple(pair for pair in self.pairs if not pair.allowed)


@dataclass(frozen=True, slots=True)
class _Stated:
    """A function by which a principal chooses others."""

    rule: str
    event: TypeKey
    function: RuleFunction
    selector: Selector
    validity: Validity


class Subscriptions:
    """The rules and profiles of publishers and subscribers, and which of them match."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        rules: Iterable[PublishRule | SubscribeRule],
        profiles: Mapping[Principal, Profile],
        *,
        mode: Mode = Mode.SCOPED,
    ) -> None:
        self._tree = vocabulary.tree
        self._vocabulary = vocabulary
        self._profiles = profiles
        self._literal = mode is Mode.LITERAL
        self._publishers: dict[Principal, list[_Stated]] = {}
        self._subscribers: dict[Principal, list[_Stated]] = {}
        for rule in rules:
            if isinstance(rule, PublishRule):
                stated = _Stated(rule.id, rule.event, RuleFunction.S, rule.fnc_s, rule.validity)
                for publisher in rule.publishers:
                    self._publishers.setdefault(publisher, []).append(stated)
            else:
                stated = _Stated(rule.id, rule.event, RuleFunction.P, rule.fnc_p, rule.validity)
                self._subscribers.setdefault(rule.subscriber, []).append(stated)

    def allow(self, event: TypeKey, publisher: Principal, subscriber: Principal) -> Allowance:
        """Return whether a subscriber may subscribe to a publisher's events, and wants that publisher.

        Raises `MalformedError`: `moderator.unknown-type`, `moderator.unknown-profile`.
        """
        self._vocabulary.check_type(event)
        restrictions, wishes = self._publishers.get(publisher, []), self._subscribers.get(subscriber, [])
        publishing, wanting = self._giving(restrictions, event), self._giving(wishes, event)
        if not publishing:
            return Allowance(event, publisher, subscriber, (), published=False)
        failures = (
            *self._weigh(restrictions, publishing, event, subscriber),
            *self._weigh(wishes, wanting, event, publisher),
        )
        if failures:
            return Allowance(event, publisher, subscriber, failures)
        periods = self._periods(publishing, event, subscriber)
        if wanting:
            periods = both(periods, self._periods(wanting, event, publisher))
        return Allowance(event, publisher, subscriber, (), periods=periods)

    def pairs(self, event: TypeKey) -> Iterator[Allowance]:
        """Yield the answer for each publisher and each subscriber of a type. Raises as `allow`."""
        self._vocabulary.check_type(event)
        wanting = [who for who, stated in self._subscribers.items() if self._has_rule(stated, event)]
        for publisher, stated in self._publishers.items():
            if self._has_rule(stated, event):
                yield from (self.allow(event, publisher, subscriber) for subscriber in wanting)

    def report(self, event: TypeKey) -> PairReport:
        """Return the answers for all pairs of an event type. Raises as `allow`."""
        return PairReport(event, tuple(self.pairs(event)))

    def _has_rule(self, stated: list[_Stated], event: TypeKey) -> bool:
        """Return whether a principal's rules give a right on the type: a rule on it, or on a type that reaches it."""
        return any(self._gives(one, event) for one in stated)

    def _giving(self, stated: list[_Stated], event: TypeKey) -> list[_Stated]:
        """Return a principal's rules that give a right on the type."""
        return [one for one in stated if self._gives(one, event)]

    def _gives(self, one: _Stated, event: TypeKey) -> bool:
        return self._tree.related(one.event, event) if self._literal else self._tree.reaches(one.event, event)

    def _periods(self, giving: list[_Stated], event: TypeKey, whose: Principal) -> Periods:
        """Return the periods of rules that give a right on a type and that a profile satisfies."""
        # All rules on the type itself are satisfied; otherwise it would have been refused.
        if any(one.event == event and one.validity is ALWAYS for one in giving):
            return ANY_TIME
        failing = {failure.rule for failure in self._failures(giving, whose)}
        return either(one.validity for one in giving if one.rule not in failing)

    def _weigh(self, stated: list[_Stated], giving: list[_Stated], event: TypeKey, whose: Principal) -> list[Failure]:
        """Return the functions that count for a type and that a profile does not satisfy; some give a right on it."""
        if self._literal:
            return self._failures(giving, whose)
        found = self._failures((one for one in stated if self._tree.reaches(event, one.event)), whose)
        if any(one.event == event for one in giving):
            return found
        failing = self._failures(giving, whose)
        return found + failing if len(failing) == len(giving) else found

    def _failures(self, stated: Iterable[_Stated], whose: Principal) -> list[Failure]:
        profile = self._profiles.get(whose)
        if profile is None:
            raise MalformedError(
                "moderator.unknown-profile",
                f"nothing is known about {whose.short}",
                hint="give a profile, if an empty one",
            )
        return [
            Failure(one.rule, one.function, whose, attributes)
            for one in stated
            if (attributes := failing_attributes(one.selector, profile)) is not None
        ]


def failing_attributes(function: Selector, profile: Profile) -> tuple[str, ...] | None:
    """Return the attributes in which a profile fails a function; None if it satisfies it.

    They are those of the parts that are not TRUE: what is null or has no value does not satisfy anything.
    """
    failing = [part for part in parts(function) if not is_true(part, profile.values)]
    if not failing:
        return None
    return tuple(sorted(frozenset().union(*(part.attributes for part in failing))))


# ----------------------------------------------------------------------------------------------------------------------
# Who may publish what by the rules in force (paper 1, section II).
#
# `P.publish(e, fnc_p, fnc_s)` says two things: that P publishes `e`, and that of all publishers only those do whose
# profiles satisfy `fnc_p`. So a publisher may publish events of type E if
#
# 1. it has a rule on a type A from which a right reaches E by the scope of the tree, and satisfies `fnc_p` of all rules
#    on A, whoever stated them;
# 2. it satisfies `fnc_p` of all rules on E, and on the types that a right on E reaches.
#
# Without conflicts all rules on a type say the same, and (2) follows from those on E. A rule on a type from which a
# right reaches E binds those alone whose right comes from there: that others publish less does not conflict with it. In
# the mode `literal` all rules on hierarchically related types must hold.


@dataclass(frozen=True, slots=True)
class PublishEntitlement:
    """Whether a publisher may publish events of a type, by which of its rules, and why not. It has no truth value."""

    event: TypeKey
    publisher: Principal
    #: the publisher's own rules that give the right
    rules: tuple[PublishRule, ...] = ()
    failures: tuple[Failure, ...] = ()

    @property
    def allowed(self) -> bool:
        """Return whether a rule gives the right and nothing prevents it."""
        return bool(self.rules) and not self.failures

    def __bool__(self) -> NoReturn:
        raise TypeError("an entitlement has no truth value; ask whether it is `allowed`")


class PublishRules:
    """The publish rules in force, the profiles of publishers, and who may publish what."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        rules: Iterable[PublishRule],
        profiles: Mapping[Principal, Profile],
        *,
        mode: Mode = Mode.SCOPED,
    ) -> None:
        self._vocabulary = vocabulary
        self._tree = vocabulary.tree
        self._profiles = profiles
        self._literal = mode is Mode.LITERAL
        self._on: dict[TypeKey, list[PublishRule]] = {}
        for rule in rules:
            self._on.setdefault(rule.event, []).append(rule)
        self._giving: dict[TypeKey, tuple[PublishRule, ...]] = {}
        self._demanding: dict[TypeKey, tuple[PublishRule, ...]] = {}
        self._answers: dict[tuple[str, Principal], tuple[str, ...] | None] = {}

    def allow(self, event: TypeKey, publisher: Principal) -> PublishEntitlement:
        """Return whether a principal may publish events of a type.

        Raises `MalformedError`: `moderator.unknown-type`, `moderator.unknown-profile`.
        """
        self._vocabulary.check_type(event)
        own = [rule for rule in self._rules_giving(event) if publisher in rule.publishers]
        if not own:
            return PublishEntitlement(event, publisher)
        granting = [rule for rule in own if not self._failures(self._on[rule.event], publisher)]
        failures = self._failures(self._rules_demanding(event), publisher)
        if not granting:
            failures += [failure for rule in own for failure in self._failures(self._on[rule.event], publisher)]
        return PublishEntitlement(event, publisher, tuple(granting), tuple(dict.fromkeys(failures)))

    def restrict(self, pair: Allowance) -> Allowance:
        """Return an answer for a publisher and a subscriber, refused if the publisher may not publish such events.

        Raises as `allow`.
        """
        if not pair.published:
            return pair
        failures = self.allow(pair.event, pair.publisher).failures
        return replace(pair, failures=(*pair.failures, *failures), periods=()) if failures else pair

    def publishers(self, event: TypeKey) -> Iterator[PublishEntitlement]:
        """Yield each publisher's entitlement to publish events of a type; publishers need a profile.

        Raises `MalformedError` (`moderator.unknown-type`).
        """
        self._vocabulary.check_type(event)
        for publisher in dict.fromkeys(who for rule in self._rules_giving(event) for who in rule.publishers):
            if publisher in self._profiles:
                found = self.allow(event, publisher)
                if found.allowed:
                    yield found

    def _rules_giving(self, event: TypeKey) -> tuple[PublishRule, ...]:
        """Return the rules from which a right on a type comes."""
        found = self._giving.get(event)
        if found is None:
            types = self._types(event, up=self._literal or self._tree.scope is TreeScope.DOWNWARD)
            found = self._giving[event] = tuple(rule for key in types for rule in self._on.get(key, ()))
        return found

    def _rules_demanding(self, event: TypeKey) -> tuple[PublishRule, ...]:
        """Return rules with all demands on publishers of a type: one rule for each distinct demand."""
        found = self._demanding.get(event)
        if found is None:
            types = self._types(event, up=self._literal or self._tree.scope is TreeScope.UPWARD)
            rules = (rule for key in types for rule in self._on.get(key, ()))
            by_function: dict[str, PublishRule] = {}
            for rule in rules:
                by_function.setdefault(rule.fnc_p.text, rule)
            found = self._demanding[event] = tuple(by_function.values())
        return found

    def _types(self, event: TypeKey, *, up: bool) -> Iterator[TypeKey]:
        """Yield a type and the types above it, or those below it; by Definition 2, both."""
        yield event
        if up:
            yield from self._tree.ancestors(event)
        if not up or self._literal:
            yield from (key for key in self._tree.subtree(event) if key != event)

    def _failures(self, rules: Iterable[PublishRule], publisher: Principal) -> list[Failure]:
        """Return the demands of rules that a publisher does not satisfy."""
        return [
            Failure(rule.id, RuleFunction.P, publisher, attributes)
            for rule in rules
            if (attributes := self._failing(rule, publisher)) is not None
        ]

    def _failing(self, rule: PublishRule, publisher: Principal) -> tuple[str, ...] | None:
        profile = self._profiles.get(publisher)
        if profile is None:
            raise MalformedError(
                "moderator.unknown-profile",
                f"nothing is known about {publisher.short}",
                hint="give a profile, if an empty one",
            )
        asked = rule.fnc_p.text, publisher
        if asked not in self._answers:
            self._answers[asked] = failing_attributes(rule.fnc_p, profile)
        return self._answers[asked]
