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
from dataclasses import dataclass
from typing import NoReturn

from penstock.errors import MalformedError
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.profiles import Profile
from penstock.model.tree import Scope
from penstock.moderator.allow import Failure, failing_attributes
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
        self._of: dict[Principal, list[PublishRule]] = {}
        for rule in rules:
            self._on.setdefault(rule.event, []).append(rule)
            for publisher in rule.publishers:
                self._of.setdefault(publisher, []).append(rule)
        self._answers: dict[tuple[str, Principal], tuple[str, ...] | None] = {}

    def allow(self, event: TypeKey, publisher: Principal) -> Entitlement:
        """Say whether somebody may publish events of a type.

        Raises `MalformedError`: `moderator.unknown-type`, `moderator.unknown-profile`.
        """
        self._vocabulary.check_type(event)
        own = [rule for rule in self._of.get(publisher, ()) if self._gives(rule.event, event)]
        if not own:
            return Entitlement(event, publisher)
        failures = [failure for key in self._bound_by(event) for failure in self._failures(key, publisher)]
        granting = [rule for rule in own if not self._failures(rule.event, publisher)]
        if not granting:
            failures += [failure for rule in own for failure in self._failures(rule.event, publisher)]
        return Entitlement(event, publisher, tuple(granting), tuple(dict.fromkeys(failures)))

    def publishers(self, event: TypeKey) -> Iterator[Entitlement]:
        """Yield what lets each publisher publish events of a type; who has no profile may not.

        Raises `MalformedError` (`moderator.unknown-type`).
        """
        self._vocabulary.check_type(event)
        for publisher in self._of:
            if publisher in self._profiles:
                found = self.allow(event, publisher)
                if found.allowed:
                    yield found

    def _gives(self, granted: TypeKey, asked: TypeKey) -> bool:
        return self._tree.related(granted, asked) if self._literal else self._tree.reaches(granted, asked)

    def _bound_by(self, event: TypeKey) -> Iterator[TypeKey]:
        """Yield the types whose rules must hold for who publishes a type."""
        yield event
        if self._literal or self._tree.scope is Scope.UPWARD:
            yield from self._tree.ancestors(event)
        if self._literal or self._tree.scope is Scope.DOWNWARD:
            yield from (key for key in self._tree.subtree(event) if key != event)

    def _failures(self, event: TypeKey, publisher: Principal) -> list[Failure]:
        """Return what a publisher does not satisfy of the rules on one type."""
        return [
            Failure(rule.id, Function.P, publisher, attributes)
            for rule in self._on.get(event, ())
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
