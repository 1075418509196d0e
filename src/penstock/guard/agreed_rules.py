"""Turn an agreement and profiles into the branches of a principal's restriction.

To publish a type one needs the right by the rules (`penstock.moderator.detection.subscribers`). Where the type has the
attribute that says who published an event, publishing forces it, so that nobody can be taken for somebody else.

Of a type, and of each that extends it, a subscriber gets the events of those publishers who suit it both ways
(`penstock.moderator.detection.subscribers`) and may publish them. An event's type, and its publisher,
is asked of each event: by `only`, and by a `where` on the publisher's attribute, which brokers push towards publishers
and Spark makes a column of. Where a type does not have the attribute, an event's publisher is unknown: one who
does not suit all of its publishers gets nothing of it.

Rules that are over go on to restrict until the owner announces the next agreement; they give nothing any more. So
everything that is allowed holds while rules hold that give it: one of the publisher's by which it publishes the type,
one of the publisher's that the subscriber satisfies, and one of the subscriber's if it has wishes. Where nobody can
know an event's publisher, that applies to each who may publish it: it may have been published before a rule was over.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from typing import Final

from penstock.errors import MalformedError
from penstock.guard.agreements import Agreement, Described
from penstock.guard.decision import DecisionProblem, EventRequest, Ruling
from penstock.guard.restriction import Branch, When
from penstock.model.limits import CACHE_ENTRIES
from penstock.model.names import AttributeId, TypeKey
from penstock.model.principals import Principal
from penstock.model.types import EventType
from penstock.model.values import AttributeSpec, Kind
from penstock.moderator.detection.subscribers import PublishEntitlement, PublishRules, Subscriptions
from penstock.moderator.rules.rules import Rule, SubscribeRule
from penstock.selector import Selector, parse
from penstock.trust.caches import Recent
from penstock.trust.capabilities import Right
from penstock.trust.validity import ANY_TIME, Periods, Validity, both, either

#: publishers in one condition: a selector has a bound
_TOGETHER: Final = 200


@dataclass(frozen=True, slots=True)
class AgreedReading:
    """Types of which somebody gets the events of some publishers, while rules and publishers' profiles hold."""

    types: frozenset[TypeKey]
    publishers: tuple[Principal, ...]
    validity: Validity
    #: what it rests on, one at one time, another one at another perhaps
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class _Found:
    """What a principal receives of a type and its sub-types."""

    by_types: tuple[AgreedReading, ...]
    #: the same in as few parts as can be
    fewest: tuple[AgreedReading, ...]
    #: what it gets if an event's publisher is unknown
    untold: tuple[AgreedReading, ...]


class AgreedRules:
    """See the module. `profiles` has everybody who is known; of others nothing is allowed."""

    def __init__(
        self, agreement: Agreement, profiles: Mapping[Principal, Described], entries: int = CACHE_ENTRIES
    ) -> None:
        self.agreement = agreement
        self._described = profiles
        words, mode = agreement.vocabulary, agreement.mode
        publishers = {who: one.profile for who, one in profiles.items() if one.publisher}
        everybody = {who: one.profile for who, one in profiles.items()}
        self._publications = PublishRules(words, agreement.publish_rules, publishers, mode=mode)
        self._subscriptions = Subscriptions(words, agreement.rules, everybody, mode=mode)
        self._wishes: dict[Principal, list[SubscribeRule]] = {}
        for rule in agreement.rules:
            if isinstance(rule, SubscribeRule):
                self._wishes.setdefault(rule.subscriber, []).append(rule)
        self._entitled: dict[TypeKey, tuple[PublishEntitlement, ...]] = {}
        self._readings: Recent[object, _Found] = Recent(entries)

    # Subscriber, type, publisher.

    @property
    def publishers(self) -> tuple[Principal, ...]:
        """All who have rules by which they publish something."""
        return tuple(dict.fromkeys(who for rule in self.agreement.publish_rules for who in rule.publishers))

    @property
    def known(self) -> tuple[Principal, ...]:
        """All principals with a profile."""
        return tuple(self._described)

    def validities(self) -> Iterator[Validity]:
        """Yield while rules and profiles hold."""
        yield from (rule.validity for rule in self.agreement.rules)
        yield from (one.validity for one in self._described.values())

    def validity_of(self, who: Principal) -> Validity:
        """Return the validity of a principal's profile. Raises `KeyError` if it is not `known`."""
        return self._described[who].validity

    def entitled(self, event: TypeKey) -> tuple[PublishEntitlement, ...]:
        """Return each publisher's entitlement to publish a type. Raises `MalformedError` for unknown types."""
        found = self._entitled.get(event)
        if found is None:
            found = self._entitled[event] = tuple(self._publications.publishers(event))
        return found

    def may_publish(self, event: TypeKey, publisher: Principal, now: datetime | None = None) -> bool:
        """Say whether somebody who is known may publish events of a type, now or at any time.

        Raises `MalformedError` (`moderator.*`).
        """
        found = self._publications.allow(event, publisher)
        return found.allowed and _in(self._able(found), now)

    def may_receive(
        self, event: TypeKey, publisher: Principal, subscriber: Principal, now: datetime | None = None
    ) -> bool:
        """Say whether a subscriber gets what a publisher may publish of a type. Raises as `may_publish`.

        It is the plain form of `readings`, which tests are held against.
        """
        validity = self._known(subscriber, publisher=False).validity
        found = self._publications.allow(event, publisher)
        return found.allowed and _in(both(self._suited(found, subscriber), (validity,)), now)

    def readings(self, event: TypeKey, subscriber: Principal) -> tuple[AgreedReading, ...]:
        """Return what a subscriber receives of a type and its sub-types: types with the same publishers together.

        Raises `MalformedError` (`moderator.unknown-type`, `moderator.unknown-profile`).
        """
        return self._found(event, subscriber).by_types

    def _able(self, found: PublishEntitlement) -> Periods:
        """Return when a principal may publish what it is entitled to."""
        known = self._described[found.publisher].validity
        return both(either(rule.validity for rule in found.rules), (known,))

    def _suited(self, found: PublishEntitlement, subscriber: Principal) -> Periods:
        """Return when a subscriber receives a publisher's events, as long as its own profile is valid."""
        allowance = self._subscriptions.allow(found.event, found.publisher, subscriber)
        return both(self._able(found), allowance.periods) if allowance.allowed else ()

    def _found(self, event: TypeKey, subscriber: Principal) -> _Found:
        known = self._known(subscriber, publisher=False)
        wishes = tuple(rule.id for rule in self._wishes.get(subscriber, ()))
        # Those with the same profile and the same wishes get the same.
        values = sorted(known.profile.values.items(), key=lambda pair: pair[0])
        asked = event, wishes, tuple(values), tuple(type(value) for _, value in values)
        found = self._readings.get(asked)
        if found is None:
            found = self._read(event, subscriber)
            self._readings.put(asked, found)
        return found

    def _read(self, event: TypeKey, subscriber: Principal) -> _Found:
        self.agreement.vocabulary.check_type(event)
        told: dict[tuple[tuple[Principal, ...], Validity], list[TypeKey]] = {}
        untold: dict[tuple[tuple[Principal, ...], Validity], list[TypeKey]] = {}
        for key in self.agreement.vocabulary.tree.subtree(event):
            suited = {one.publisher: self._suited(one, subscriber) for one in self.entitled(key)}
            by_validity: dict[Validity, list[Principal]] = {}
            for publisher, periods in sorted(suited.items()):
                for validity in periods:
                    by_validity.setdefault(validity, []).append(publisher)
            for validity, publishers in by_validity.items():
                told.setdefault((tuple(publishers), validity), []).append(key)
            for validity in reduce(both, suited.values(), ANY_TIME) if suited else ():
                untold.setdefault((tuple(sorted(suited)), validity), []).append(key)
        by_types, without = (
            tuple(
                AgreedReading(
                    frozenset(keys), publishers, validity, self._rules_for(keys, publishers, subscriber, validity)
                )
                for (publishers, validity), keys in grouped.items()
            )
            for grouped in (told, untold)
        )
        by_publishers = tuple(self._turned(by_types, subscriber))
        return _Found(by_types, min(by_types, by_publishers, key=len), without)

    def _turned(self, readings: Iterable[AgreedReading], subscriber: Principal) -> Iterator[AgreedReading]:
        """Yield the same by publishers that have the same types."""
        types: dict[tuple[Principal, Validity], set[TypeKey]] = {}
        for reading in readings:
            for publisher in reading.publishers:
                types.setdefault((publisher, reading.validity), set()).update(reading.types)
        grouped: dict[tuple[frozenset[TypeKey], Validity], list[Principal]] = {}
        for (publisher, validity), keys in types.items():
            grouped.setdefault((frozenset(keys), validity), []).append(publisher)
        for (some, validity), publishers in grouped.items():
            yield AgreedReading(
                some, tuple(publishers), validity, self._rules_for(some, publishers, subscriber, validity)
            )

    def _rules_for(
        self, keys: Iterable[TypeKey], publishers: Iterable[Principal], subscriber: Principal, validity: Validity
    ) -> tuple[Rule, ...]:
        """Return the rules because of which a subscriber receives events of some types from some publishers in a
        period.
        """
        wanted, about = set(publishers), sorted(keys)
        rules: dict[Rule, None] = dict.fromkeys(
            rule
            for key in about
            for entitlement in self.entitled(key)
            if entitlement.publisher in wanted
            for rule in entitlement.rules
        )
        wishes = dict.fromkeys(rule for rule in self._wishes.get(subscriber, ()) if self._about(rule, about))
        return tuple(rule for rule in (*rules, *wishes) if rule.validity.intersect(validity) is not None)

    def _about(self, rule: SubscribeRule, keys: Iterable[TypeKey]) -> bool:
        return any(self.agreement.vocabulary.tree.related(rule.event, key) for key in keys)

    def _known(self, who: Principal, *, publisher: bool) -> Described:
        known = self._described.get(who)
        if known is None or not (known.publisher if publisher else known.subscriber):
            raise MalformedError(
                "moderator.unknown-profile",
                f"nothing is known about {who.short}, or nothing that fits",
                hint="whoever describes publishers and subscribers here signs a profile",
            )
        return known

    # As branches.

    def rule(self, request: EventRequest) -> Ruling:
        """Return the agreed rules' ruling on a request to publish or to subscribe.

        Raises `MalformedError`: `moderator.unknown-type`, `moderator.unknown-profile`, `agreement.publisher-attribute`.
        """
        event_type = request.type.event_type
        self.agreement.vocabulary.check_type(event_type.key)
        publishing = request.action is Right.PUBLISH
        known = self._known(request.principal, publisher=publishing)
        attribute = self.publisher_attribute(event_type)
        made = (self._to_publish if publishing else self._to_subscribe)(request, known, attribute)
        branches = tuple(b for b in made if request.now is None or b.when.validity.contains(request.now))
        return Ruling(branches, refusals=() if branches else (self._refusal(request),))

    def _refusal(self, request: EventRequest) -> DecisionProblem:
        """Explain why nothing is permitted, for the owner and operators, naming rules."""
        reason = next(self._reasons(request), "it is not valid now")
        message = f"agreed rules do not let {request.principal.short} {request.action}: {reason}"
        return DecisionProblem("agreement.not-allowed", message, self.agreement.name)

    def _reasons(self, request: EventRequest) -> Iterator[str]:
        event, who = request.type.event_type.key, request.principal
        if request.action is Right.PUBLISH:
            found = self._publications.allow(event, who)
            if not found.rules and not found.failures:
                yield f"{who.short} has no rule by which it publishes `{event.name}`"
            yield from map(str, found.failures)
            return
        able = [entitlement.publisher for entitlement in self.entitled(event)]
        if not able:
            yield f"nobody may publish `{event.name}`"
        for publisher in able:
            yield from self._subscriptions.allow(event, publisher, who).reasons

    def publisher_attribute(self, event_type: EventType) -> AttributeId | None:
        """Return which attribute of a type says who published an event.

        Raises `MalformedError` (`agreement.publisher-attribute`) for one that cannot say it.
        """
        name = self.agreement.publisher_attribute
        found = event_type.by_name.get(name)
        if found is not None and found.spec != AttributeSpec(Kind.STRING):
            raise MalformedError(
                "agreement.publisher-attribute",
                f"`{name}` of `{event_type.name.name}` is to say who published an event, and holds no text",
                hint="let the agreement name another attribute",
            )
        return None if found is None else found.id

    def _to_publish(self, request: EventRequest, known: Described, attribute: AttributeId | None) -> Iterator[Branch]:
        found = self._publications.allow(request.type.event_type.key, request.principal)
        forced = () if attribute is None else ((attribute, str(request.principal)),)
        for rule in found.rules if found.allowed else ():
            when = When(rule.validity).intersect(When(known.validity))
            if when is not None:
                yield Branch(action=Right.PUBLISH, forced=forced, when=when, because=_because((rule,), request.now))

    def _to_subscribe(self, request: EventRequest, known: Described, attribute: AttributeId | None) -> Iterator[Branch]:
        found = self._found(request.type.event_type.key, request.principal)
        for reading in found.untold if attribute is None else found.fewest:
            when = When(reading.validity).intersect(When(known.validity))
            if when is None:
                continue
            branch = Branch(
                action=Right.SUBSCRIBE, only=reading.types, when=when, because=_because(reading.rules, request.now)
            )
            if attribute is None:
                yield branch
            else:
                yield from (replace(branch, where=where) for where in by_publishers(attribute, reading.publishers))


def by_publishers(attribute: str, publishers: Iterable[Principal]) -> Iterator[Selector]:
    """Yield conditions that hold for the events of some publishers: as many as do not fit into one."""
    for condition in publisher_conditions(publishers):
        yield parse(condition).rename({"publisher": attribute})


def publisher_conditions(publishers: Iterable[Principal]) -> Iterator[str]:
    """Yield the texts of such conditions, on `publisher`."""
    # What principals are written with needs no quoting.
    written = [f"'{who}'" for who in sorted(publishers)]
    for start in range(0, len(written), _TOGETHER):
        yield f"publisher IN ({', '.join(written[start : start + _TOGETHER])})"


def _in(periods: Periods, now: datetime | None) -> bool:
    return any(now is None or validity.contains(now) for validity in periods)


def _because(rules: Iterable[Rule], now: datetime | None) -> tuple[str, ...]:
    return tuple(f"rule:{rule.id}" for rule in rules if now is None or rule.validity.contains(now))
