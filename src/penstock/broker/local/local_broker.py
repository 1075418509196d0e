"""The local broker: sessions, and what policy leaves of their requests (Belokosztolszki et al., sections 4 and 6 to 8).

A plain state machine between clients and the router. Whoever drives it tells it what happens and carries out what it
returns, in order (`broker.requests`). It reads no clock: `now` never goes back (where a clock
was corrected, `recheck` is called), and `tick` says when it wants to be called next, because a right begins or ends.

1. Each request is decided through the only entry point (`decisions`), and recorded there, before it takes effect.
2. The original request is kept. What it comes to is worked out from the answers (`broker.effective`): a request that is
   granted in part is limited, and refused only where nothing of it is granted.
3. When credentials, types, policy or time change, requests are worked out again, wider or narrower, and clients notice
   nothing but what they get. No event passes before that is done: where it fails, because an answer cannot be recorded,
   it is tried again with the broker's next input.
   How events pass is in `core.event_path`; it calls `catch_up` before each message of events.
4. What comes by a filter that is not the current one is asked everything again, so that an event under way when a right
   was revoked is not delivered by it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from types import MappingProxyType
from typing import TypeAlias

from penstock.broker.limits import BrokerLimits
from penstock.broker.local import requests
from penstock.broker.local.active_requests import ActiveRequests
from penstock.broker.local.decisions import AuthoritySources, Door
from penstock.broker.local.requests import (
    ClientRequest,
    Detail,
    Output,
    Verb,
    detail_of,
    not_permitted,
    require,
    unknown,
)
from penstock.broker.local.sessions import Session, SessionAdvertisement, SessionSubscription, Usages
from penstock.broker.local.type_library import Library
from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.guard import Recorder, Rules, environment
from penstock.guard.enforce import Environment
from penstock.model.events import TransitEvent
from penstock.model.names import NetworkName, TypeName
from penstock.model.principals import Principal
from penstock.model.types import EventType
from penstock.model.values import Scalar
from penstock.selector import ALWAYS, Selector
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import UnverifiedType
from penstock.trust.validity import earliest


@dataclass(frozen=True, slots=True)
class NotPublished:
    """An event of a message that may not be published: its place in the message, and why."""

    position: int
    reason: PenstockError


_Handler: TypeAlias = Callable[[Session, ClientRequest, datetime], None]


class LocalBroker:
    """See the module. The driver names sessions; within one, its client names subscriptions and advertisements.

    What a client may not is answered with `Refused`. Methods raise `RefusedError` (`broker.session`) for a session that
    there is not, or is already: the driver's mistake; and what the recorder's sink raises.
    """

    def __init__(  # noqa: PLR0913  # each argument is one part of a broker's configuration
        self,
        network: NetworkName,
        recorder: Recorder,
        library: Library,
        sources: AuthoritySources | None = None,
        *,
        rules: Rules | None = None,
        zone: tzinfo = UTC,
        limits: BrokerLimits,
    ) -> None:
        rules = rules or Rules()
        self._outputs: list[Output] = []
        self._door = Door(network, recorder, sources or AuthoritySources(), rules.environment, library.known)
        self._library = library
        self.active = ActiveRequests(self._door, library, rules, self._outputs, limits)
        self.usages = Usages(limits)
        #: owners whose policy is not known here at present: nothing of theirs passes, nor of what extends it; where it
        #: is the coordinator's, nothing at all
        self.suspended: set[Principal] = set()
        #: whether nothing at all passes: policy is being reconciled with the other brokers
        self.held = False
        #: how many events were not delivered because of these two
        self.held_back = 0
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
            usage = self.usages.connect(principal, credentials)
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
                self.usages.disconnect(principal)
            raise
        if session in self._sessions:
            self._outputs.append(requests.Accepted(session, asked))
        return self._said()

    def knows(self, session: str) -> bool:
        """Say whether a session is open."""
        return session in self._sessions

    def disconnect(self, now: datetime, session: str) -> list[Output]:
        """End a session and everything that was asked in it."""
        client = self.session(session)
        self._catch_up(now)
        if session in self._sessions:
            self._end(client)
        return self._said()

    def disclose(self, now: datetime, session: str, credentials: Credentials) -> list[Output]:
        """Take further credentials of a client: what it has asked for may become more.

        Raises `LimitError` (`broker.credentials`).
        """
        bag = self.session(session).credentials + credentials
        self.usages.check_credentials(bag)
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
            if not self.active.may_ask(client, held.asked, now):
                raise RefusedError(
                    "broker.not-told",
                    "the owner of the type does not let you ask about restrictions",
                    hint="the owner grants `restrictions` to those who may",
                )
            self._outputs.append(requests.Answered(client.id, asked, held.detail))

        return self._handle(now, session, ClientRequest(Verb.RESTRICTIONS, id=id), tell)

    def _handle(self, now: datetime, session: str, asked: ClientRequest, handler: _Handler) -> list[Output]:
        client = self.session(session)
        self._catch_up(now)
        if session in self._sessions:
            try:
                handler(client, asked, now)
            except (RefusedError, MalformedError) as error:
                told = detail_of(error) if self.active.may_ask(client, asked, now) else None
                self._refuse(session, client.principal, asked, error, told)
            self._turn = earliest(self._turn, client.until)
            self._catch_up(now)
        return self._said()

    def _keep(self, client: Session, asked: ClientRequest, now: datetime) -> None:
        if asked.id in client.held:
            raise RefusedError("broker.id-taken", "a request of this name stands already", hint="take another name")
        self.usages.check_request(client.usage, asked.verb)
        kind = SessionSubscription if asked.verb is Verb.SUBSCRIBE else SessionAdvertisement
        held = kind(self.active.ticket(), client, asked)
        self.active.work_out(held, now)
        if not held.paths():
            what = "subscribe to" if asked.verb is Verb.SUBSCRIBE else "publish"
            of = "it" if asked.about is None else f"{asked.about.owner.short}/{asked.about.name}"
            raise not_permitted(held.detail, f"{client.principal.short} may not {what} {of}")
        place = len(self._outputs)
        self.active.keep(held)
        accepted = requests.Accepted(client.id, asked, tuple(held.keys.values()))
        self._outputs[place:place] = [accepted, requests.RequestReport(client.id, client.principal, asked, held.detail)]

    def _drop(self, client: Session, asked: ClientRequest, _now: datetime) -> None:
        held = client.held.get(asked.id)
        if not isinstance(held, SessionSubscription if asked.verb is Verb.UNSUBSCRIBE else SessionAdvertisement):
            raise unknown(asked)
        self.active.drop(held)
        self._outputs.append(requests.Accepted(client.id, asked))

    # Events.

    def refuse(
        self, client: Session, advertisement: str, of_type: TypeName, refused: Iterable[NotPublished], now: datetime
    ) -> list[Output]:
        """Tell a client which events of a message were not published, with the detail where it may have that."""
        asked = ClientRequest(Verb.PUBLISH, of_type, advertisement)
        held = client.held.get(advertisement)
        told = held.detail if held is not None and self.active.may_ask(client, held.asked, now) else None
        for one in refused:
            self._refuse(client.id, client.principal, asked, one.reason, told, position=one.position)
        return self._said()

    def suspend(self, owner: Principal) -> None:
        """Deliver and take nothing of an owner's types: what its policy is now is not known here."""
        self.suspended.add(owner)

    def resume(self, owner: Principal) -> None:
        """Go on with an owner's types."""
        self.suspended.discard(owner)

    def is_suspended(self, about: EventType | TransitEvent) -> bool:
        """Say whether events of a type may not pass at present.

        Readers of a type have their right from its owner, whoever owns the sub-type of which the event is.
        """
        if self.held or not self.suspended:
            return self.held
        owners = (about.key.owner, *(ancestor.owner for ancestor in about.ancestors), self._door.network.owner)
        return not self.suspended.isdisjoint(owners)

    def hold(self, *, held: bool) -> None:
        """Deliver and take nothing of anybody, or go on."""
        self.held = held

    def wanted(self, key: str, *, wanted: bool) -> list[Output]:
        """Record that somebody, or nobody, in the network wants what was advertised under a key."""
        self.active.wanted(key, wanted=wanted)
        return self._said()

    def know(self, facts: Mapping[str, Scalar]) -> None:
        """Take in facts from outside, which dynamic conditions may speak about."""
        self._facts = MappingProxyType(dict(facts))

    def environment(self, client: Session, now: datetime) -> Environment:
        """Return what rights that depend on the moment are asked about."""
        return environment(now, rate=client.usage.rate.at(now), facts=self._facts, zone=self._zone)

    # Change and time.

    def catch_up(self, now: datetime) -> list[Output]:
        """Apply what a change or a date has made stale: events pass only after that, and after what this returns."""
        self._catch_up(now)
        return self._said() if self._outputs else []

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
            self.session(session).credentials = bag
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
        self.usages.forget(now)
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
                self.active.work_out(held, now)
            except (RefusedError, MalformedError) as error:
                # Its type is gone, or has changed so that the selector does not fit it: nothing, until it fits again.
                code = error.code
            self._outputs.append(requests.RequestReport(client.id, client.principal, held.asked, held.detail, code))
            self.active.route(held)

    def _end(self, client: Session) -> None:
        for held in list(client.held.values()):
            self.active.drop(held)
        del self._sessions[client.id]
        self.usages.disconnect(client.principal)
        self._door.write(client)

    # Words.

    def session(self, session: str) -> Session:
        """Return a session that is open. Raises `RefusedError` (`broker.session`)."""
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
