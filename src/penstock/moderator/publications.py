"""Who may publish what by the rules in force (paper 1, section II).

`P.publish(e, fnc_p, fnc_s)` says two things: that P publishes `e`, and that of all publishers only those do whose
profiles satisfy `fnc_p`. So a publisher may publish events of type E if

1. it has a rule on a type A from which a right reaches E by the scope of the tree, and satisfies `fnc_p` of all rules
   on A, whoever stated them;
2. it satisfies `fnc_p` of all rules on E, and on the types that a right on E reaches.

Without conflicts all rules on a type say the same, and (2) follows from those on E. A rule on a type from which a right
reaches E binds those alone whose right comes from there: that others publish less is no conflict with it. In the mode
`literal` all rules on hierarchically related types must hold.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NoReturn

from penstock.errors import MalformedError
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.profiles import Profile
from penstock.model.tree import Scope
from penstock.moderator.allow import Allowance, Failure, failing_attributes
from penstock.moderator.conflicts import Function, Mode
from penstock.moderator.rules import PublishRule
from penstock.moderator.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Entitlement:
    """Whether a publisher may publish events of a type: by which rules of its own, why not. It has no truth value."""

    event: TypeKey
    publisher: Principal
    #: the publisher's own, from which its right comes
    rules: tuple[PublishRule, ...] = ()
    failures: tuple[Failure, ...] = ()

    @property
    def allowed(self) -> bool:
        """Whether it has a rule, and nothing is in the way."""
        return bool(self.rules) and not self.failures

    def __bool__(self) -> NoReturn:
        raise TypeError("an entitlement has no truth value; ask whether it is `allowed`")


class Publications:
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

    def allow(self, event: TypeKey, publisher: Principal) -> Entitlement:
        """Say whether somebody may publish events of a type.

        Raises `MalformedError`: `moderator.unknown-type`, `moderator.unknown-profile`.
        """
        self._vocabulary.check_type(event)
        own = [rule for rule in self._rules_giving(event) if publisher in rule.publishers]
        if not own:
            return Entitlement(event, publisher)
        granting = [rule for rule in own if not self._failures(self._on[rule.event], publisher)]
        failures = self._failures(self._rules_demanding(event), publisher)
        if not granting:
            failures += [failure for rule in own for failure in self._failures(self._on[rule.event], publisher)]
        return Entitlement(event, publisher, tuple(granting), tuple(dict.fromkeys(failures)))

    def restrict(self, pair: Allowance) -> Allowance:
        """Return the answer for a publisher and a subscriber, refused where the publisher may not publish such events.

        Raises as `allow`.
        """
        if not pair.published:
            return pair
        failures = self.allow(pair.event, pair.publisher).failures
        return replace(pair, failures=(*pair.failures, *failures), periods=()) if failures else pair

    def publishers(self, event: TypeKey) -> Iterator[Entitlement]:
        """Yield what lets each publisher publish events of a type; who has no profile may not.

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
            types = self._types(event, up=self._literal or self._tree.scope is Scope.DOWNWARD)
            found = self._giving[event] = tuple(rule for key in types for rule in self._on.get(key, ()))
        return found

    def _rules_demanding(self, event: TypeKey) -> tuple[PublishRule, ...]:
        """Return rules that say all that is demanded of who publishes a type: of those that demand the same, one."""
        found = self._demanding.get(event)
        if found is None:
            types = self._types(event, up=self._literal or self._tree.scope is Scope.UPWARD)
            rules = (rule for key in types for rule in self._on.get(key, ()))
            by_function: dict[str, PublishRule] = {}
            for rule in rules:
                by_function.setdefault(rule.fnc_p.text, rule)
            found = self._demanding[event] = tuple(by_function.values())
        return found

    def _types(self, event: TypeKey, *, up: bool) -> Iterator[TypeKey]:
        """Yield a type and those above it, or those below it; by Definition 2, both."""
        yield event
        if up:
            yield from self._tree.ancestors(event)
        if not up or self._literal:
            yield from (key for key in self._tree.subtree(event) if key != event)

    def _failures(self, rules: Iterable[PublishRule], publisher: Principal) -> list[Failure]:
        """Return what a publisher does not satisfy of what rules demand."""
        return [
            Failure(rule.id, Function.P, publisher, attributes)
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
