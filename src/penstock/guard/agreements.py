"""Agreements: the rules in force of a consistent rule base, as the owner of the event types announces them.

    (agreement (owner <principal>) (name <name>) (mode <mode>) (rights both | alone)
               (publisher-attribute <name>) (described-by <principal> …)
               (scope …) (types …) (publishers …) (subscribers …) (rules <rule> …))

The rules are those of `penstock.moderator.rules.rules`. The moderator has verified that they have no conflicts, and
enforcement does not look for conflicts again. A profile is accepted if the owner, or a principal that the owner names,
has signed it.

An agreement applies only to types of its owner. With `both`, certificates and the agreement must permit a request. With
`alone`, the agreement decides, and no certificates are needed for these types.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import reduce
from operator import and_
from types import MappingProxyType
from typing import Annotated, ClassVar, Final

from penstock.codec.sexp import Named, SExp
from penstock.crypto import digest
from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.guard.decision import Authority, DecisionProblem, EventRequest, Request, Ruling
from penstock.guard.restriction import Branch, When
from penstock.model.limits import CACHE_ENTRIES
from penstock.model.names import AttributeId, TypeKey, check_attribute_name
from penstock.model.principals import Principal
from penstock.model.profiles import Profile
from penstock.model.types import EventType
from penstock.model.values import AttributeSpec, Kind
from penstock.moderator.detection.subscribers import PublishEntitlement, PublishRules, Subscriptions
from penstock.moderator.rules.rules import Mode, PublishRule, Rule, SubscribeRule
from penstock.moderator.rules.vocabulary import Vocabulary, VocabularyField
from penstock.selector import Selector, parse
from penstock.trust.caches import Recent
from penstock.trust.capabilities import Right
from penstock.trust.policy_events import check_agreement_name
from penstock.trust.profiles import ProfileClaim
from penstock.trust.signed import Claim, SignedValue, read_signed
from penstock.trust.validity import ALWAYS, ANY_TIME, Periods, Validity, both, either

PUBLISHER: Final = "publisher"
"""The default name of the attribute that contains an event's publisher."""


class AgreementMode(StrEnum):
    """How an agreement combines with certificates: both must permit, or the agreement alone decides."""

    BOTH = "both"
    ALONE = "alone"


@dataclass(frozen=True, slots=True)
class Agreement(Claim):
    """Rules without conflicts about an owner's types, and how to enforce them.

    Raises `MalformedError`: `agreement.duplicate-rule`, `agreement.no-types`, `evolution.malformed` for an invalid
    name, and as `Vocabulary.check` for a rule.
    """

    HEAD: ClassVar = b"agreement"
    ORDER: ClassVar = (
        "owner",
        "name",
        "mode",
        "combining",
        "publisher_attribute",
        "described_by",
        "vocabulary",
        "rules",
    )
    SIGNER: ClassVar = "owner"
    owner: Principal
    name: str
    vocabulary: VocabularyField = field(repr=False)
    rules: tuple[Rule, ...] = field(repr=False)
    mode: Mode = Mode.SCOPED
    combining: Annotated[AgreementMode, Named(b"rights")] = AgreementMode.BOTH
    #: the attribute that contains an event's publisher, which brokers set
    publisher_attribute: str = PUBLISHER
    #: the principals that may sign profiles, besides the owner
    described_by: tuple[Principal, ...] = ()

    def __post_init__(self) -> None:
        check_agreement_name(self.name)
        check_attribute_name(self.publisher_attribute)
        if len({rule.id for rule in self.rules}) != len(self.rules):
            raise MalformedError("agreement.duplicate-rule", "two rules of an agreement have the same id")
        if not any(key.owner == self.owner for key in self.vocabulary.tree.parents):
            raise MalformedError(
                "agreement.no-types",
                "the agreement's tree contains no type of its owner",
                hint="let the owner of the tree's types announce it",
            )
        for rule in self.rules:
            # Whether anybody satisfies a function was found out when the rule came into force.
            self.vocabulary.check(rule, shown=lambda _function, _selector: True)
        object.__setattr__(self, "rules", tuple(sorted(self.rules, key=lambda rule: rule.id)))
        object.__setattr__(self, "described_by", tuple(sorted(set(self.described_by))))

    @property
    def publish_rules(self) -> tuple[PublishRule, ...]:
        """Return the publishers' rules."""
        return tuple(rule for rule in self.rules if isinstance(rule, PublishRule))

    def concerns(self, event_type: EventType) -> bool:
        """Return whether the agreement applies to a type: one of the owner's in the tree, or extending one in it."""
        tree = self.vocabulary.tree
        return event_type.key.owner == self.owner and any(
            key in tree for key in (event_type.key, *event_type.ancestors)
        )

    def believes(self, claim: ProfileClaim) -> bool:
        """Return whether the signer of a profile is authorised."""
        return claim.said_by == self.owner or claim.said_by in self.described_by


@dataclass(frozen=True, slots=True)
class Described:
    """A principal's profile, its roles, and its validity."""

    profile: Profile
    publisher: bool
    subscriber: bool
    validity: Validity = ALWAYS


def described(agreement: Agreement, claims: Iterable[SignedValue[ProfileClaim]]) -> Mapping[Principal, Described]:
    """Return the profiles that an agreement accepts.

    Claims by an unauthorised signer, or that do not fit the declared attributes, are ignored: if
    nothing is known, nothing is allowed. If there are several claims about one principal, the last one is used.
    """
    found: dict[Principal, Described] = {}
    for claim in claims:
        if agreement.believes(claim.value):
            found.pop(claim.value.of, None)
            fitted = fit(agreement.vocabulary, claim.value)
            if fitted is not None:
                found[claim.value.of] = fitted
    return MappingProxyType(found)


def fit(vocabulary: Vocabulary, claim: ProfileClaim) -> Described | None:
    """Return a claim's profile, or None if it does not fit the declared attributes.

    If a principal is described both as publisher and as subscriber, attributes that both have must have the same value.
    """
    publisher, subscriber = claim.publisher, claim.subscriber
    if publisher is not None and subscriber is not None:
        shared = vocabulary.publishers.attributes.keys() & vocabulary.subscribers.attributes.keys()
        if any(publisher.get(name) != subscriber.get(name) for name in shared):
            return None
    try:
        vocabulary.publishers.profile(publisher or {})
        vocabulary.subscribers.profile(subscriber or {})
    except MalformedError:
        return None
    profile = Profile(MappingProxyType({**(publisher or {}), **(subscriber or {})}))
    return Described(profile, publisher is not None, subscriber is not None, claim.validity)


# ----------------------------------------------------------------------------------------------------------------------
# Turn an agreement and profiles into the branches of a principal's restriction.
#
# Publishing a type needs an entitlement by the rules (`penstock.moderator.detection.subscribers`). If the type has the
# publisher attribute, publishing forces its value, so that no publisher can pretend to be another one.
#
# For a type and each type that extends it, a subscriber receives the events of the publishers that may publish them and
# whose rules, like its own, permit it (`penstock.moderator.detection.subscribers`). Type and publisher are checked for
# each event: by `only`, and by a `where` on the publisher attribute, which brokers push towards publishers and Spark
# turns into a column. If a type does not have the attribute, an event's publisher is unknown: a subscriber then
# receives events only if the rules permit it all of the type's publishers.
#
# Expired rules still restrict until the owner announces the next agreement, but they grant nothing. So a permission is
# valid while the rules that grant it are valid: a publisher's rule by which it publishes the type, a publisher's rule
# that the subscriber satisfies, and one of the subscriber's own rules if it has any. If an event's publisher is
# unknown, this must be true for each possible publisher, because the event may have been published before a rule
# expired.

#: publishers in one condition: selectors are bounded
_TOGETHER: Final = 200


@dataclass(frozen=True, slots=True)
class AgreedReading:
    """The types and publishers whose events a subscriber receives, while rules and publishers' profiles are valid."""

    types: frozenset[TypeKey]
    publishers: tuple[Principal, ...]
    validity: Validity
    #: the rules that it depends on, possibly at different times
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class _Found:
    """What a principal receives of a type and its sub-types."""

    by_types: tuple[AgreedReading, ...]
    #: the same in as few parts as possible
    fewest: tuple[AgreedReading, ...]
    #: what it receives if an event's publisher is unknown
    untold: tuple[AgreedReading, ...]


class AgreedRules:
    """An agreement with the profiles of all known principals. Other principals are allowed nothing."""

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
        """All publishers that have a rule."""
        return tuple(dict.fromkeys(who for rule in self.agreement.publish_rules for who in rule.publishers))

    @property
    def known(self) -> tuple[Principal, ...]:
        """All principals with a profile."""
        return tuple(self._described)

    def validities(self) -> Iterator[Validity]:
        """Yield the validities of rules and profiles."""
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
        """Return whether a known principal may publish events of a type: at `now`, or at any time without it.

        Raises `MalformedError` (`moderator.*`).
        """
        found = self._publications.allow(event, publisher)
        return found.allowed and _in(self._able(found), now)

    def may_receive(
        self, event: TypeKey, publisher: Principal, subscriber: Principal, now: datetime | None = None
    ) -> bool:
        """Return whether a subscriber receives a publisher's events of a type. Raises as `may_publish`.

        Tests compare `readings` with this plain form.
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
                f"there is no valid profile of {who.short}",
                hint="let the owner, or a principal that the agreement names, sign one",
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
                yield f"{who.short} has no rule to publish `{event.name}`"
            yield from map(str, found.failures)
            return
        able = [entitlement.publisher for entitlement in self.entitled(event)]
        if not able:
            yield f"nobody may publish `{event.name}`"
        for publisher in able:
            yield from self._subscriptions.allow(event, publisher, who).reasons

    def publisher_attribute(self, event_type: EventType) -> AttributeId | None:
        """Return the attribute of a type that contains the publisher, or None.

        Raises `MalformedError` (`agreement.publisher-attribute`) if it is not a plain string.
        """
        name = self.agreement.publisher_attribute
        found = event_type.by_name.get(name)
        if found is not None and found.spec != AttributeSpec(Kind.STRING):
            raise MalformedError(
                "agreement.publisher-attribute",
                f"`{name}` of `{event_type.name.name}` must contain the publisher, and is not a string",
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
    # The characters of a written principal need no quoting.
    written = [f"'{who}'" for who in sorted(publishers)]
    for start in range(0, len(written), _TOGETHER):
        yield f"publisher IN ({', '.join(written[start : start + _TOGETHER])})"


def _in(periods: Periods, now: datetime | None) -> bool:
    return any(now is None or validity.contains(now) for validity in periods)


def _because(rules: Iterable[Rule], now: datetime | None) -> tuple[str, ...]:
    return tuple(f"rule:{rule.id}" for rule in rules if now is None or rule.validity.contains(now))


# ----------------------------------------------------------------------------------------------------------------------
# Rules agreed through the moderator as a source of authority, and how it is combined with the others.
#
# For types that an agreement concerns, the agreement must permit publishing and subscribing: together with certificates
# (`AgreementMode.BOTH`), or by itself (`AgreementMode.ALONE`). Other rights and other types are not affected. It fails
# closed: a principal without a profile, a sub-type that was not agreed on, an agreement that cannot be read, or two
# agreements that do not overlap grant nothing.
#
# Brokers that carry, seal and open events for others need no profiles. Their rights come from certificates alone.

_RIGHTS: Final = frozenset({Right.PUBLISH, Right.SUBSCRIBE})


@dataclass(frozen=True, slots=True)
class Agreements:
    """All known agreements."""

    rules: tuple[AgreedRules, ...] = ()
    #: owners with an agreement that could not be parsed: nothing of theirs is permitted until that is settled
    unread: Mapping[Principal, DecisionProblem] = field(default_factory=lambda: MappingProxyType({}))
    #: identifies the agreements in logs
    revision: str = ""

    def __add__(self, other: "Agreements") -> "Agreements":
        """Return the agreements of both. If several concern a type, all of them must permit."""
        unread = MappingProxyType({**self.unread, **other.unread})
        revision = " ".join(one for one in (self.revision, other.revision) if one)
        return Agreements((*self.rules, *other.rules), unread, revision)

    def about(self, event_type: EventType) -> tuple[AgreedRules, ...]:
        """Return the agreed rules about a type. Raises `RefusedError` with the reason if they could not be parsed."""
        problem = self.unread.get(event_type.name.owner)
        if problem is not None:
            raise RefusedError(problem.code, problem.message)
        return tuple(rules for rules in self.rules if rules.agreement.concerns(event_type))

    def validities(self) -> Iterator[Validity]:
        """Yield the validities of the rules and profiles that rights depend on."""
        for rules in self.rules:
            yield from rules.validities()

    def over(self, authority: Authority) -> Authority:
        """Return a source of authority that is restricted by the agreed rules."""
        return Agreed(authority, self) if self.rules or self.unread else authority


NO_AGREEMENTS: Final = Agreements()


@dataclass(frozen=True, slots=True)
class Agreed:
    """A source of authority, restricted by agreed rules. See the module."""

    authority: Authority
    agreements: Agreements

    def rule(self, request: Request) -> Ruling:
        """Return the ruling. Raises errors of the source and of `AgreedRules.rule`."""
        if not isinstance(request, EventRequest) or request.action not in _RIGHTS:
            return self.authority.rule(request)
        found = self.agreements.about(request.type.event_type)
        if not found:
            return self.authority.rule(request)
        rulings = [rules.rule(request) for rules in found]
        if any(rules.agreement.combining is AgreementMode.BOTH for rules in found):
            rulings.insert(0, self.authority.rule(request))
        return reduce(and_, rulings[1:], Ruling() | rulings[0])


class AgreementReader:
    """Reads the agreements and profiles that owners announce, each only once while it stays the same."""

    def __init__(self, entries: int = CACHE_ENTRIES) -> None:
        self._entries = entries
        self._agreements: dict[bytes, Agreement] = {}
        self._rules: dict[tuple[bytes, ...], AgreedRules] = {}

    def read(self, announced: Iterable["Announced"]) -> Agreements:
        """Return everything that owners have announced; nothing of an owner with something that cannot be parsed."""
        agreements, rules = self._agreements, self._rules
        self._agreements, self._rules = {}, {}
        found: list[AgreedRules] = []
        unread: dict[Principal, DecisionProblem] = {}
        for one in announced:
            claims = tuple(one.profiles.values())
            for name, signed in one.agreements.items():
                key = digest(signed)
                about = (key, *(claim.digest for claim in claims))
                try:
                    agreement = agreements.get(key) or read_agreement(signed, one.owner)
                    kept = rules.get(about) or AgreedRules(agreement, described(agreement, claims), self._entries)
                except PenstockError as error:
                    message = f"the agreement `{name}` of {one.owner.short} cannot be read: {error.message}"
                    unread[one.owner] = DecisionProblem(error.code, message)
                    continue
                self._agreements[key], self._rules[about] = agreement, kept
                found.append(kept)
        return Agreements(tuple(found), MappingProxyType(unread), _revision(self._rules, unread))


def agreed_on(
    agreements: Iterable[Agreement], claims: Sequence[SignedValue[ProfileClaim]], entries: int = CACHE_ENTRIES
) -> Agreements:
    """Return agreements that were read and verified, each with the profiles that it accepts."""
    found: dict[tuple[bytes, ...], AgreedRules] = {}
    said = sorted(claim.digest for claim in claims)
    for agreement in agreements:
        about = (digest(agreement.to_sexp()), *said)
        found[about] = AgreedRules(agreement, described(agreement, claims), entries)
    return Agreements(tuple(found.values()), revision=_revision(found, ()))


def _revision(keys: Iterable[tuple[bytes, ...]], unread: Iterable[Principal]) -> str:
    parts: tuple[SExp, ...] = (*sorted(keys), *(str(owner).encode() for owner in sorted(unread)))
    return f"agreed:{digest(parts).hex()[:16]}" if parts else ""


@dataclass(frozen=True, slots=True)
class Announced:
    """The announcements of one owner: signed agreements, and verified profiles."""

    owner: Principal
    agreements: Mapping[str, SExp] = field(repr=False)
    profiles: Mapping[Principal, SignedValue[ProfileClaim]] = field(repr=False)


def read_agreement(signed: SExp, owner: Principal | None = None) -> Agreement:
    """Read and verify an agreement, as that of an owner if one is given.

    Raises `MalformedError` (`evolution.malformed`, and as its parts), `RefusedError`
    (`evolution.wrong-key`, `evolution.signature-mismatch`, `evolution.foreign-agreement`, `key.bad-signature`).
    """
    agreement = read_signed(signed, Agreement).verify().value
    if owner is not None and agreement.owner != owner:
        raise RefusedError("evolution.foreign-agreement", "the agreement is about another owner's types")
    return agreement
