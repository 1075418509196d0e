"""The active requests at a local broker: the effective requests, and their entries in the router.

New paths are asked for before old ones are given up, so that no event is lost in between. Each path has a key of its
own, which never comes back: so an event that was found by an older filter is known by its key.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from typing import TypeAlias

from penstock.broker.limits import BrokerLimits
from penstock.broker.local import requests
from penstock.broker.local.decisions import Door
from penstock.broker.local.effective_requests import Basis, Ruled, SubscriptionPart, offers, parts
from penstock.broker.local.requests import ClientRequest, Detail, Output, advertised, settled, subscribed
from penstock.broker.local.sessions import Held, Path, Session, SessionAdvertisement, SessionSubscription
from penstock.broker.local.type_library import Library
from penstock.errors import MalformedError
from penstock.guard import Delivery, Rules
from penstock.model.events import TransitEvent
from penstock.model.names import TypeKey, TypeName
from penstock.model.types import EventType
from penstock.trust.capabilities import Right
from penstock.trust.event_types import VerifiedType


@dataclass(frozen=True, slots=True)
class Receiver:
    """A subscription that an event is for, the part of it that the event belongs to, and what shows the event."""

    held: SessionSubscription
    part: SubscriptionPart
    view: Delivery


_Arrival: TypeAlias = tuple[tuple[str, ...], TypeKey, tuple[TypeKey, ...]]


class ActiveRequests:
    """See the module. Messages to send go to `outputs`."""

    def __init__(self, door: Door, library: Library, rules: Rules, outputs: list[Output], limits: BrokerLimits) -> None:
        self._door = door
        self._library = library
        self._rules = rules
        self._outputs = outputs
        self._limits = limits
        self._numbers = count(1)
        self._by_key: dict[str, Held] = {}
        self._by_ticket: dict[str, Held] = {}
        #: who gets events that come by the same keys and are of the same type, until a request changes
        self._receivers: dict[_Arrival, tuple[Receiver, ...]] = {}
        #: rises whenever a request may come to something else
        self.version = 0

    def ticket(self) -> str:
        """Return a number that no request has had."""
        return str(next(self._numbers))

    def keep(self, held: Held) -> None:
        """Let a request stand."""
        held.session.held[held.asked.id] = self._by_ticket[held.ticket] = held
        if isinstance(held, SessionSubscription):
            held.session.usage.subscriptions += 1
        else:
            held.session.usage.advertisements += 1
        self.route(held)

    def drop(self, held: Held) -> None:
        """Let a request stand no longer."""
        held.empty()
        if isinstance(held, SessionAdvertisement):
            held.quiet = False
        self.route(held)
        del held.session.held[held.asked.id], self._by_ticket[held.ticket]
        if isinstance(held, SessionSubscription):
            held.session.usage.subscriptions -= 1
        else:
            held.session.usage.advertisements -= 1

    def receivers(self, keys: tuple[str, ...], event: TransitEvent | EventType) -> tuple[Receiver, ...]:
        """Return who gets an event, or events of a type, by the keys that the router found, and how each sees it."""
        arrival = keys, event.key, event.ancestors
        known = self._receivers.get(arrival)
        if known is None:
            if len(self._receivers) >= self._limits.cache_entries:
                self._receivers.clear()
            known = self._receivers[arrival] = tuple(self._find_receivers(keys, event))
        return known

    def _find_receivers(self, keys: tuple[str, ...], event: TransitEvent | EventType) -> Iterator[Receiver]:
        for held in self._subscriptions(keys):
            part = held.part_of(event)
            if part is not None and self._library.is_of(event.key, part.type):
                yield Receiver(held, part, part.narrow if held.came_by(part, keys) else part.checked)

    def _subscriptions(self, keys: Iterable[str]) -> Iterator[SessionSubscription]:
        """Yield the subscriptions that the router means by keys, each once: by old keys too, by foreign ones none."""
        found: dict[str, SessionSubscription] = {}
        for key in keys:
            held = self._by_key.get(key) or self._by_ticket.get(key.partition(".")[0])
            if isinstance(held, SessionSubscription):
                found[held.ticket] = held
        return iter(found.values())

    def work_out(self, held: Held, now: datetime) -> None:
        """Decide the effective request, and record what was granted.

        Raises what makes it impossible: `RefusedError` and `MalformedError` for its type, `SelectorError`; and what the
        recorder's sink raises. It then comes to nothing.
        """
        before = (
            (held.basis, held.parts, held.detail) if isinstance(held, SessionSubscription) else (None, {}, Detail())
        )
        held.empty()
        self._changed()
        held.detail = Detail()
        client, name = held.session, held.asked.about
        if not isinstance(name, TypeName):
            raise MalformedError("argument.type", "subscriptions and advertisements are about event types")
        asked_for = self._library.get(name, now)
        event_type, schema = asked_for.event_type, self._library.schema(name.key, now)
        below = [verified for verified in self._library.below(name.key, now) if verified.event_type.key != name.key]
        if isinstance(held, SessionSubscription):
            # What does not fit is refused before anything is decided.
            held.asked.selector.check(event_type.schema)
            ruled = self._rule(client, Right.SUBSCRIBE, [asked_for, *below], now)
            basis, (last, known, detail) = Basis(event_type, schema, tuple(ruled)), before
            if last is not None and last.is_same(basis):
                # A change of policy concerns few of all that stand.
                held.parts, held.detail = last.moved(known, basis), detail
            else:
                held.parts = parts(event_type, held.asked.selector, ruled, schema, self._rules)
                held.detail = subscribed(event_type, held.parts, ruled)
            held.basis = basis
            return
        ruled = self._rule(client, Right.PUBLISH, [asked_for], now)
        found = list(offers(ruled, schema, self._rules))
        if not found:
            ruled += self._rule(client, Right.PUBLISH, below, now)
            found = list(offers(ruled, schema, self._rules))
        held.offers = {offer.type.name: offer for offer in found}
        held.detail = advertised(held.offers, ruled)

    def _rule(self, client: Session, right: Right, types: Iterable[VerifiedType], now: datetime) -> list[Ruled]:
        return [Ruled(verified, self._door.ask(client, right, verified, now)) for verified in types]

    def may_ask(self, client: Session, asked: ClientRequest, now: datetime) -> bool:
        """Say whether the owner of the type of a request lets the client ask how it is restricted."""
        if not isinstance(asked.about, TypeName) or asked.about not in self._library:
            return False
        verified = self._library.get(asked.about, now)
        return settled(self._door.ask(client, Right.RESTRICTIONS, verified, now).decision)

    def route(self, held: Held) -> None:
        """Enter the effective request in the router: the new paths first, then withdraw the old ones."""
        self._changed()
        wanted = dict.fromkeys(held.paths())
        gone = [held.keys.pop(path) for path in list(held.keys) if path not in wanted]
        for path in wanted:
            if path not in held.keys:
                key = held.keys[path] = f"{held.ticket}.{next(self._numbers)}"
                self._by_key[key] = held
                self._outputs.append(_opened(held, key, path))
        for key in gone:
            del self._by_key[key]
            self._outputs.append(
                requests.Unsubscribe(key) if isinstance(held, SessionSubscription) else requests.Unadvertise(key)
            )
        if isinstance(held, SessionAdvertisement):
            held.forget()
            held.unwanted.difference_update(gone)
            self._quench(held)

    def _changed(self) -> None:
        self._receivers.clear()
        self.version += 1

    def wanted(self, key: str, *, wanted: bool) -> None:
        """Record that somebody, or nobody, wants what is announced under a key."""
        held = self._by_key.get(key)
        if isinstance(held, SessionAdvertisement):
            (held.unwanted.discard if wanted else held.unwanted.add)(key)
            self._quench(held)

    def _quench(self, held: SessionAdvertisement) -> None:
        quiet = held.unwanted >= set(held.keys.values())
        # Nobody learns whether somebody wants what may not be published.
        if held.keys and quiet is not held.quiet:
            held.quiet = quiet
            self._outputs.append(requests.Quenched(held.session.id, held.asked.id, quiet))


def _opened(held: Held, key: str, path: Path) -> Output:
    of_type, ancestors, filter_ = path
    if isinstance(held, SessionSubscription):
        return requests.Subscribe(key, of_type, filter_, str(held.session.principal))
    return requests.Advertise(key, of_type, ancestors, filter_)
