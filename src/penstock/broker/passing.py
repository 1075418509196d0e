"""What becomes of events at a local broker: what a publisher may send of them, and what each reader gets to see."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from types import MappingProxyType
from typing import Final, TypeAlias

from penstock.broker.effective import Offer
from penstock.broker.requests import Asked, Given, Publish, Verb
from penstock.broker.sessions import Advertisement, Giving, Session, Usages
from penstock.broker.standing import Standing
from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.guard.enforce import Environment
from penstock.model.events import Event, TransitEvent
from penstock.model.principals import Principal
from penstock.model.types import EventType

_UNASKED: Final[Environment] = MappingProxyType({})

Deliveries: TypeAlias = Iterable[tuple[tuple[str, ...], TransitEvent]]


@dataclass(frozen=True, slots=True)
class NotPassed:
    """An event that may not be published: the how-manieth it was, and why."""

    asked: Asked
    position: int
    reason: PenstockError


@dataclass(slots=True)
class Passing:
    """See the module. `environment` is asked only where a right depends on the moment.

    Who may connect at all is known by the word of the network's `coordinator`.
    """

    coordinator: Principal
    standing: Standing
    usages: Usages
    environment: Callable[[Session, datetime], Environment]
    #: owners whose policy is not known here at present: nothing of theirs passes, nor of what extends it; where it is
    #: the coordinator's, nothing at all
    suspended: set[Principal] = field(default_factory=set)
    #: whether nothing at all passes: policy is being reconciled with the other brokers
    held: bool = False
    #: events that were not delivered because of that
    held_back: int = 0

    def publish(
        self, client: Session, advertisement: str, events: Iterable[Event], now: datetime
    ) -> tuple[list[Publish], list[NotPassed]]:
        """Return what may be sent of events, each by itself, and what may not."""
        passed: list[Publish] = []
        refused: list[NotPassed] = []
        # Events that come together mostly are of one type.
        for event_type, run in groupby(enumerate(events), key=lambda numbered: numbered[1].type):
            asked = Asked(Verb.PUBLISH, event_type.name, advertisement)
            try:
                offer, key = self._offered(client, advertisement, event_type)
            except RefusedError as error:
                refused += [NotPassed(asked, position, error) for position, _ in run]
                continue
            transits: list[TransitEvent] = []
            for position, event in run:
                try:
                    transits.append(self._passed(client, offer, event, now))
                except (RefusedError, MalformedError) as error:
                    refused.append(NotPassed(asked, position, error))
            if transits:
                client.tally.count(offer.recorded, passed=len(transits))
                passed.append(Publish(key, tuple(transits)))
        return passed, refused

    def deliver(self, deliveries: Deliveries, now: datetime) -> list[Given]:
        """Return who gets what of events, for which the router found the keys of subscriptions."""
        given: dict[str, Giving] = {}
        for keys, event in deliveries:
            if (self.held or self.suspended) and self._is_suspended(event):
                self.held_back += 1
                continue
            for receiver in self.standing.receivers(keys, event):
                held, part = receiver.held, receiver.part
                giving = given.get(held.ticket)
                if giving is None:
                    giving = given[held.ticket] = Giving(held)
                seen = receiver.view(event, self.environment(held.session, now) if part.timely else _UNASKED)
                giving.note(part, seen)
        return [found for giving in given.values() for found in giving.finish()]

    def _offered(self, client: Session, advertisement: str, event_type: EventType) -> tuple[Offer, str]:
        held = client.held.get(advertisement)
        found = held.offer_of(event_type) if isinstance(held, Advertisement) else None
        if found is None:
            raise RefusedError("broker.not-advertised", "no advertisement lets this be published", hint="advertise it")
        if self._is_suspended(event_type):
            hint = "try again later"
            raise RefusedError("broker.policy-stale", "the policy of the type's owner is not known here", hint=hint)
        return found

    def _passed(self, client: Session, offer: Offer, event: Event, now: datetime) -> TransitEvent:
        if not event.values.keys() <= offer.names:
            raise MalformedError("event.unknown-attribute", f"`{offer.type.name.name}` has no such attribute")
        self.usages.publish(client.usage, event, now)
        surroundings = self.environment(client, now) if offer.timely else _UNASKED
        try:
            return offer.publication(event, surroundings)
        except RefusedError:
            client.tally.count(offer.recorded, refused=1)
            raise

    def _is_suspended(self, about: EventType | TransitEvent) -> bool:
        # Readers of a type have their right from its owner, whoever owns the sub-type of which the event is.
        owners = (about.key.owner, *(ancestor.owner for ancestor in about.ancestors), self.coordinator)
        return self.held or not self.suspended.isdisjoint(owners)
