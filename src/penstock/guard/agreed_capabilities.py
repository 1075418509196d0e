"""Express agreed rules as certificates, for domains that use certificates.

Certificates never allow more than the rules. They may allow less: a right to subscribe to a type includes the events of
all types that extend it, and a certificate cannot leave some of them out. If a subscriber may not have a publisher's
events of a sub-type, the publisher is left out of the type as well, and the loss is reported (`short`). A right to a
type always includes its sub-types. The same is true for time: a certificate ends with the first rule that it depends on
for some sub-type. A type that extends one of the tree and was not agreed on is included with its parent, because
certificates do not know the tree.

Certificates express the rules at the time of issue. `renewal` says which to issue and to revoke after the rules or
profiles have changed.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from penstock.errors import MalformedError
from penstock.guard.agreements import AgreedRules, publisher_conditions
from penstock.model.names import AttributeId, TypeKey
from penstock.model.principals import Principal
from penstock.model.types import EventType
from penstock.selector import parse
from penstock.trust.capabilities import BoundSelector, Right, event_tag
from penstock.trust.certificates import Authorisation, Certificate
from penstock.trust.tags import Tag
from penstock.trust.validity import ANY_TIME, Periods, Validity, both, either


@dataclass(frozen=True, slots=True, order=True)
class Short:
    """Rights that the rules give a subscriber, and its certificates do not, or for a shorter time."""

    event: TypeKey
    publisher: Principal
    subscriber: Principal


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Certificates to issue, and the rights that they cannot express."""

    statements: tuple[Authorisation, ...]
    short: tuple[Short, ...] = ()


@dataclass(frozen=True, slots=True)
class Renewal:
    """Changes of certificates that a change of rules requires."""

    issue: tuple[Authorisation, ...] = ()
    revoke: tuple[Certificate, ...] = ()
    keep: tuple[Certificate, ...] = ()


def capabilities(rules: AgreedRules, types: Iterable[EventType]) -> Capabilities:
    """Return certificates that express the agreed rules about some of the owner's types, for all known principals.

    Raises `MalformedError` (`agreement.publisher-attribute`).
    """
    return _Compiler(rules).compile({event_type.key: event_type for event_type in types})


def renewal(wanted: Iterable[Authorisation], issued: Iterable[Certificate]) -> Renewal:
    """Return which certificates to issue and to revoke so that exactly the wanted ones are valid.

    `issued` must contain only certificates that were issued for the agreement: those that are not wanted are revoked.
    """
    left = dict.fromkeys(wanted)
    keep: list[Certificate] = []
    revoke: list[Certificate] = []
    for certificate in issued:
        statement = certificate.statement
        if isinstance(statement, Authorisation) and statement in left:
            del left[statement]
            keep.append(certificate)
        else:
            revoke.append(certificate)
    return Renewal(tuple(left), tuple(revoke), tuple(keep))


class _Compiler:
    """Collects certificates, type by type."""

    def __init__(self, rules: AgreedRules) -> None:
        self._rules = rules
        self._agreement = rules.agreement
        self._short: set[Short] = set()
        self._from: dict[tuple[TypeKey, Principal], Mapping[Principal, Periods]] = {}

    def compile(self, types: Mapping[TypeKey, EventType]) -> Capabilities:
        tree = self._agreement.vocabulary.tree
        made: dict[Authorisation, None] = {}
        for key in sorted(tree.parents):
            event_type = types.get(key)
            if event_type is not None and key.owner == self._agreement.owner:
                attribute = self._rules.publisher_attribute(event_type)
                made.update(dict.fromkeys(self._publishing(key, attribute)))
                made.update(dict.fromkeys(self._subscribing(key, attribute)))
        return Capabilities(tuple(made), tuple(sorted(self._short)))

    def _publishing(self, key: TypeKey, attribute: AttributeId | None) -> Iterator[Authorisation]:
        for entitlement in self._rules.entitled(key):
            who = entitlement.publisher
            forced = {} if attribute is None else {attribute: str(who)}
            tag = event_tag(key.owner, key.name, None, [Right.PUBLISH], forced=forced)
            known = self._rules.validity_of(who)
            for rule in entitlement.rules:
                validity = rule.validity.intersect(known)
                if validity is not None:
                    yield self._statement(who, tag, validity)

    def _subscribing(self, key: TypeKey, attribute: AttributeId | None) -> Iterator[Authorisation]:
        for who in self._rules.known:
            sources = self._sources(key, who)
            sayable = (self._whole if attribute is None else self._sayable)(key, who)
            self._short |= {Short(key, of, who) for of, periods in sources.items() if sayable.get(of) != periods}
            by_validity: dict[Validity, list[Principal]] = {}
            for publisher, periods in sorted(sayable.items()):
                for validity in both(periods, (self._rules.validity_of(who),)):
                    by_validity.setdefault(validity, []).append(publisher)
            for validity, publishers in by_validity.items():
                yield from (self._statement(who, tag, validity) for tag in self._tags(key, attribute, publishers))

    def _tags(self, key: TypeKey, attribute: AttributeId | None, publishers: list[Principal]) -> Iterator[Tag]:
        if attribute is None:
            yield event_tag(key.owner, key.name, None, [Right.SUBSCRIBE])
            return
        for condition in publisher_conditions(publishers):
            where = BoundSelector(parse(condition), {"publisher": attribute})
            yield event_tag(key.owner, key.name, None, [Right.SUBSCRIBE], where=[where])

    def _statement(self, who: Principal, tag: Tag, validity: Validity) -> Authorisation:
        return Authorisation(
            self._agreement.owner, who, tag, validity=validity, comment=f"agreement {self._agreement.name}"
        )

    def _sources(self, key: TypeKey, who: Principal) -> Mapping[Principal, Periods]:
        """Return the publishers whose events of a type a subscriber may have, and when."""
        found = self._from.get((key, who))
        if found is None:
            try:
                readings = self._rules.readings(key, who)
            except MalformedError:
                # Nothing is known of it that fits a subscriber.
                readings = ()
            collected: dict[Principal, list[Validity]] = {}
            for reading in readings:
                for publisher in reading.publishers if key in reading.types else ():
                    collected.setdefault(publisher, []).append(reading.validity)
            found = {publisher: either(validities) for publisher, validities in collected.items()}
            self._from[key, who] = found
        return found

    def _sayable(self, key: TypeKey, who: Principal) -> Mapping[Principal, Periods]:
        """Return the publishers of `_sources` whose events of all sub-types the subscriber may have too, and when."""
        found = dict(self._sources(key, who))
        for below in self._agreement.vocabulary.tree.subtree(key):
            for entitlement in self._rules.entitled(below):
                if entitlement.publisher in found:
                    also = self._sources(below, who).get(entitlement.publisher, ())
                    found[entitlement.publisher] = both(found[entitlement.publisher], also)
        return {publisher: periods for publisher, periods in found.items() if periods}

    def _whole(self, key: TypeKey, who: Principal) -> Mapping[Principal, Periods]:
        """Return the publishers of `_sources`, and when the subscriber may have all events of all sub-types."""
        periods = ANY_TIME
        for below in self._agreement.vocabulary.tree.subtree(key):
            for entitlement in self._rules.entitled(below):
                periods = both(periods, self._sources(below, who).get(entitlement.publisher, ()))
        return dict.fromkeys(self._sources(key, who), periods) if periods else {}
