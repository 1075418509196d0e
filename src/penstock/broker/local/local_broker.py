"""The local broker: sessions, and what policy leaves of their requests (Belokosztolszki et al., sections 4 and 6 to 8).

A plain state machine between clients and the router. Whoever drives it tells it what happens and carries out what it
returns, in order (`broker.requests`). It reads no clock: `now` never goes back (where a clock
was corrected, `recheck` is called), and `tick` says when it wants to be called next, because a right begins or ends.

1. Each request is decided through the one door (`broker.door`), and recorded there, before anything comes of it.
2. The original request is kept. What it comes to is worked out from the answers (`broker.effective`): a request that is
   granted in part is limited, and refused only where nothing of it is granted.
3. When credentials, types, policy or time change, requests are worked out again, wider or narrower, and clients notice
   nothing but what they get. No event passes before that is done: where it fails, because an answer cannot be recorded,
   it is tried again with the next word that the broker is told.
4. What comes by a filter that is not the current one is asked everything again, so that an event under way when a right
   was revoked is not delivered by it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from itertools import groupby
from types import MappingProxyType
from typing import Final, TypeAlias

from penstock.broker.local import requests
from penstock.broker.local.active_requests import ActiveRequests
from penstock.broker.local.decisions import AuthoritySources, Door
from penstock.broker.local.effective_requests import Offer
from penstock.broker.local.requests import (
    ClientRequest,
    Detail,
    Given,
    Output,
    Publish,
    Verb,
    detail_of,
    not_permitted,
    require,
    unknown,
)
from penstock.broker.local.sessions import Giving, Session, SessionAdvertisement, SessionSubscription, Usages
from penstock.broker.local.type_library import Library
from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.guard import Recorder, Rules, environment
from penstock.guard.enforce import Environment
from penstock.model.events import Event, TransitEvent
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.names import NetworkName, TypeName
from penstock.model.principals import Principal
from penstock.model.types import EventType
from penstock.model.values import Scalar
from penstock.selector import ALWAYS, Selector
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import UnverifiedType
from penstock.trust.validity import earliest

# ----------------------------------------------------------------------------------------------------------------------
# What becomes of events at a local broker: what a publisher may send of them, and what each reader gets to see.


_UNASKED: Final[Environment] = MappingProxyType({})

Deliveries: TypeAlias = Iterable[tuple[tuple[str, ...], TransitEvent]]


@dataclass(frozen=True, slots=True)
class NotPassed:
    """An event that may not be published: the how-manieth it was, and why."""

    asked: ClientRequest
    position: int
    reason: PenstockError


@dataclass(slots=True)
class Passing:
    """See the module. `environment` is asked only where a right depends on the moment.

    Who may connect at all is known by the word of the network's `coordinator`.
    """

    coordinator: Principal
    standing: ActiveRequests
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
            asked = ClientRequest(Verb.PUBLISH, event_type.name, advertisement)
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
        found = held.offer_of(event_type) if isinstance(held, SessionAdvertisement) else None
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


# ----------------------------------------------------------------------------------------------------------------------
# The local broker: sessions, and what policy leaves of their requests (Belokosztolszki et al., sections 4 and 6 to 8).


_Handler: TypeAlias = Callable[[Session, ClientRequest, datetime], None]


class LocalBroker:
    """See the module. The driver names sessions; within one, its client names subscriptions and advertisements.

    What a client may not is answered with `Refused`. Methods raise `RefusedError` (`broker.session`) for a session that
    there is not, or is already: the driver's mistake; and what the recorder's sink raises.
    """

    def __init__(  # noqa: PLR0913  # each argument is one of the things that a broker goes by
        self,
        network: NetworkName,
        recorder: Recorder,
        library: Library,
        sources: AuthoritySources | None = None,
        *,
        rules: Rules | None = None,
        zone: tzinfo = UTC,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        rules = rules or Rules()
        self._outputs: list[Output] = []
        self._door = Door(network, recorder, sources or AuthoritySources(), rules.environment, limits, library.known)
        self._library = library
        self._standing = ActiveRequests(self._door, library, rules, self._outputs)
        self._usages = Usages(limits)
        self._passing = Passing(network.owner, self._standing, self._usages, self._environment)
        self._sessions: dict[str, Session] = {}
        self._zone = zone
        self._facts: Mapping[str, Scalar] = {}
        #: sessions that are to be worked out again; when the broker's credentials change next, and when anybody's do
        self._stale: dict[str, None] = {}
        self._sources_turn: datetime | None = datetime.min.replace(tzinfo=UTC)
        self._turn: datetime | None = self._sources_turn

    # Sessions.

    def connect(self, now: datetime, session: str, principal: Principal, credentials: Credentials) -> list[Output]:
        """Let in a client that was authenticated, if it may connect to the network."""
        if session in self._sessions:
            raise RefusedError("broker.session", "a session of this name is open")
        self._catch_up(now)
        asked = ClientRequest(Verb.CONNECT, self._door.network)
        try:
            usage = self._usages.connect(principal, credentials)
        except MalformedError as error:
            self._refuse(session, principal, asked, error)
            return self._said()
        self._sessions[session] = Session(session, principal, credentials, usage)
        self._stale[session] = None
        try:
            self._catch_up(now)
        except BaseException:
            # Nobody is let in by a decision that was not recorded.
            if self._sessions.pop(session, None):
                self._usages.disconnect(principal)
            raise
        if session in self._sessions:
            self._outputs.append(requests.Accepted(session, asked))
        return self._said()

    def knows(self, session: str) -> bool:
        """Say whether a session is open."""
        return session in self._sessions

    def disconnect(self, now: datetime, session: str) -> list[Output]:
        """End a session and everything that was asked in it."""
        client = self._session(session)
        self._catch_up(now)
        if session in self._sessions:
            self._end(client)
        return self._said()

    def disclose(self, now: datetime, session: str, credentials: Credentials) -> list[Output]:
        """Take further credentials of a client: what it has asked for may become more.

        Raises `LimitError` (`broker.credentials`).
        """
        bag = self._session(session).credentials + credentials
        self._usages.check_credentials(bag)
        return self.change(now, credentials={session: bag})

    # Requests of clients.

    def subscribe(
        self,
        now: datetime,
        session: str,
        id: str,  # noqa: A002  # the client's name for it
        of_type: TypeName,
        selector: Selector = ALWAYS,
    ) -> list[Output]:
        """Let a client have the events of a type, and its sub-types, that its selector wants: as far as it may."""
        return self._handle(now, session, ClientRequest(Verb.SUBSCRIBE, of_type, id, selector), self._keep)

    def advertise(self, now: datetime, session: str, id: str, of_type: TypeName) -> list[Output]:  # noqa: A002  # as clients call it
        """Let a client publish events of a type; where it may not, of those sub-types of which it may."""
        return self._handle(now, session, ClientRequest(Verb.ADVERTISE, of_type, id), self._keep)

    def unsubscribe(self, now: datetime, session: str, id: str) -> list[Output]:  # noqa: A002  # as clients call it
        """End a subscription."""
        return self._handle(now, session, ClientRequest(Verb.UNSUBSCRIBE, id=id), self._drop)

    def unadvertise(self, now: datetime, session: str, id: str) -> list[Output]:  # noqa: A002  # as clients call it
        """End an advertisement."""
        return self._handle(now, session, ClientRequest(Verb.UNADVERTISE, id=id), self._drop)

    def add_type(self, now: datetime, session: str, unverified: UnverifiedType) -> list[Output]:
        """Install an event type, for a client that may; what others asked for may reach further by it."""

        def install(client: Session, asked: ClientRequest, now: datetime) -> None:
            decision = self._door.ask_network(client, Right.INSTALL, now)
            require(decision, Right.INSTALL, self._door.network)
            self._library.add(unverified, now)
            self._all_stale()
            self._outputs.append(requests.Accepted(client.id, asked))

        return self._handle(now, session, ClientRequest(Verb.ADD_TYPE, unverified.definition.name), install)

    def remove_type(self, now: datetime, session: str, name: TypeName) -> list[Output]:
        """Remove an event type, for a client that may manage it."""

        def remove(client: Session, asked: ClientRequest, now: datetime) -> None:
            verified = self._library.get(name, now)
            require(self._door.ask(client, Right.MANAGE, verified, now).decision, Right.MANAGE, name)
            self._library.remove(name)
            self._all_stale()
            self._outputs.append(requests.Accepted(client.id, asked))

        return self._handle(now, session, ClientRequest(Verb.REMOVE_TYPE, name), remove)

    def restrictions(self, now: datetime, session: str, id: str) -> list[Output]:  # noqa: A002  # as clients call it
        """Tell a client how its subscription or advertisement is restricted, where the type's owner lets it ask."""

        def tell(client: Session, asked: ClientRequest, now: datetime) -> None:
            held = client.held.get(id)
            if held is None:
                raise unknown(asked)
            if not self._standing.may_ask(client, held.asked, now):
                raise RefusedError(
                    "broker.not-told",
                    "the owner of the type does not let you ask about restrictions",
                    hint="the owner grants `restrictions` to those who may",
                )
            self._outputs.append(requests.Answered(client.id, asked, held.detail))

        return self._handle(now, session, ClientRequest(Verb.RESTRICTIONS, id=id), tell)

    def _handle(self, now: datetime, session: str, asked: ClientRequest, handler: _Handler) -> list[Output]:
        client = self._session(session)
        self._catch_up(now)
        if session in self._sessions:
            try:
                handler(client, asked, now)
            except (RefusedError, MalformedError) as error:
                told = detail_of(error) if self._standing.may_ask(client, asked, now) else None
                self._refuse(session, client.principal, asked, error, told)
            self._turn = earliest(self._turn, client.until)
            self._catch_up(now)
        return self._said()

    def _keep(self, client: Session, asked: ClientRequest, now: datetime) -> None:
        if asked.id in client.held:
            raise RefusedError("broker.id-taken", "a request of this name stands already", hint="take another name")
        self._usages.check_request(client.usage, asked.verb)
        kind = SessionSubscription if asked.verb is Verb.SUBSCRIBE else SessionAdvertisement
        held = kind(self._standing.ticket(), client, asked)
        self._standing.work_out(held, now)
        if not held.paths():
            raise not_permitted(held.detail)
        place = len(self._outputs)
        self._standing.keep(held)
        accepted = requests.Accepted(client.id, asked, tuple(held.keys.values()))
        self._outputs[place:place] = [accepted, requests.RequestReport(client.id, client.principal, asked, held.detail)]

    def _drop(self, client: Session, asked: ClientRequest, _now: datetime) -> None:
        held = client.held.get(asked.id)
        if not isinstance(held, SessionSubscription if asked.verb is Verb.UNSUBSCRIBE else SessionAdvertisement):
            raise unknown(asked)
        self._standing.drop(held)
        self._outputs.append(requests.Accepted(client.id, asked))

    # Events.

    def publish(self, now: datetime, session: str, advertisement: str, events: Iterable[Event]) -> list[Output]:
        """Send events as far as the advertisement that was accepted allows it: each by itself."""
        client = self._session(session)
        self._catch_up(now)
        passed, refused = self._passing.publish(client, advertisement, events, now)
        self._outputs.extend(passed)
        if refused:
            held = client.held.get(advertisement)
            told = held.detail if held is not None and self._standing.may_ask(client, held.asked, now) else None
            for one in refused:
                self._refuse(session, client.principal, one.asked, one.reason, told, position=one.position)
        return self._said()

    def deliver(self, now: datetime, deliveries: Deliveries) -> list[Output]:
        """Give events to those who may have them; the router found the keys of subscriptions for each."""
        self._catch_up(now)
        self._outputs.extend(self._passing.deliver(deliveries, now))
        return self._said()

    @property
    def held_back(self) -> int:
        """How many events were not delivered because the policy of an owner was not known."""
        return self._passing.held_back

    def suspend(self, owner: Principal) -> None:
        """Deliver and take nothing of an owner's types: what its policy is now is not known here."""
        self._passing.suspended.add(owner)

    def resume(self, owner: Principal) -> None:
        """Go on with an owner's types."""
        self._passing.suspended.discard(owner)

    @property
    def held(self) -> bool:
        """Whether nothing passes until policy is reconciled with the other brokers."""
        return self._passing.held

    def hold(self, *, held: bool) -> None:
        """Deliver and take nothing of anybody, or go on."""
        self._passing.held = held

    def wanted(self, key: str, *, wanted: bool) -> list[Output]:
        """Take note that somebody, or nobody, in the network wants what was advertised under a key."""
        self._standing.wanted(key, wanted=wanted)
        return self._said()

    def know(self, facts: Mapping[str, Scalar]) -> None:
        """Take in facts from outside, which dynamic conditions may speak about."""
        self._facts = MappingProxyType(dict(facts))

    def _environment(self, client: Session, now: datetime) -> Environment:
        return environment(now, rate=client.usage.rate.at(now), facts=self._facts, zone=self._zone)

    # Change and time.

    def change(
        self,
        now: datetime,
        *,
        sources: AuthoritySources | None = None,
        credentials: Mapping[str, Credentials] | None = None,
        installed: Iterable[UnverifiedType] = (),
        removed: Iterable[TypeName] = (),
    ) -> list[Output]:
        """Take in what has changed: policy, what sessions disclose, types. Requests are worked out again.

        Raises what verifying a type raises; what comes before that type is then taken in.
        """
        if sources is not None:
            self._door.sources, self._sources_turn = sources, sources.turns(now)
            self._all_stale()
        for session, bag in (credentials or {}).items():
            self._session(session).credentials = bag
            self._stale[session] = None
        for name in removed:
            self._library.remove(name)
            self._all_stale()
        for unverified in installed:
            self._library.add(unverified, now)
            self._all_stale()
        self._catch_up(now)
        return self._said()

    def tick(self, now: datetime) -> tuple[list[Output], datetime | None]:
        """Let go of what has ended, record what was counted, and say when to call again at the latest."""
        self._catch_up(now)
        for client in self._sessions.values():
            self._door.write(client)
        self._usages.forget(now)
        return self._said(), self._turn

    def recheck(self) -> None:
        """Have everything worked out again before anything passes.

        The clock was corrected and `now` is earlier, or what was decided could not be recorded.
        """
        self._sources_turn = self._turn = datetime.min.replace(tzinfo=UTC)
        self._all_stale()

    def _all_stale(self) -> None:
        self._stale.update(dict.fromkeys(self._sessions))

    def _catch_up(self, now: datetime) -> None:
        """Work out again whatever a change or a date has made stale."""
        if self._turn is not None and now >= self._turn:
            if self._sources_turn is not None and now >= self._sources_turn:
                self._sources_turn = self._door.sources.turns(now)
                self._all_stale()
            due = (c.id for c in self._sessions.values() if c.until is not None and now >= c.until)
            self._stale.update(dict.fromkeys(due))
            self._next_turn()
        if self._stale:
            waiting = dict(self._stale)
            try:
                with self._door.recorder.together():
                    while self._stale:
                        session = next(iter(self._stale))
                        if session in self._sessions:
                            self._renew(self._sessions[session], now)
                        del self._stale[session]
            except PenstockError:
                # What fails stays stale: no event passes before everything is worked out, and recorded.
                self._stale = {**waiting, **self._stale}
                raise
            self._next_turn()

    def _next_turn(self) -> None:
        self._turn = self._sources_turn
        for client in self._sessions.values():
            self._turn = earliest(self._turn, client.until)

    def _renew(self, client: Session, now: datetime) -> None:
        """Ask everything about a session again."""
        try:
            require(self._door.introduce(client, now), Right.CONNECT, self._door.network)
        except RefusedError as error:
            self._refuse(client.id, client.principal, ClientRequest(Verb.CONNECT, self._door.network), error)
            self._end(client)
            self._outputs.append(requests.Closed(client.id, error.code))
            return
        for held in client.held.values():
            code = ""
            try:
                self._standing.work_out(held, now)
            except (RefusedError, MalformedError) as error:
                # Its type is gone, or has changed so that the selector does not fit it: nothing, until it fits again.
                code = error.code
            self._outputs.append(requests.RequestReport(client.id, client.principal, held.asked, held.detail, code))
            self._standing.route(held)

    def _end(self, client: Session) -> None:
        for held in list(client.held.values()):
            self._standing.drop(held)
        del self._sessions[client.id]
        self._usages.disconnect(client.principal)
        self._door.write(client)

    # Words.

    def _session(self, session: str) -> Session:
        client = self._sessions.get(session)
        if client is None:
            raise RefusedError("broker.session", "no session of this name is open")
        return client

    def _refuse(  # noqa: PLR0913  # what a refusal says
        self,
        session: str,
        principal: Principal,
        asked: ClientRequest,
        error: PenstockError,
        told: Detail | None = None,
        *,
        position: int = 0,
    ) -> None:
        refused = requests.Refused(session, asked, error.code, error.message, told, error.hint or "", position)
        self._outputs.append(refused)
        self._outputs.append(
            requests.RequestReport(session, principal, asked, detail_of(error) or Detail(), error.code)
        )

    def _said(self) -> list[Output]:
        said = self._outputs.copy()
        self._outputs.clear()
        return said
