"""The local broker: sessions, and what policy leaves of their requests (Belokosztolszki et al., sections 4 and 6 to 8).

A plain state machine between clients and the router. Whoever drives it tells it what happens and carries out what it
returns, in order (`broker.requests`). It reads no clock: `now` never goes back (where a clock
was corrected, `recheck` is called), and `tick` says when it wants to be called next, because a right begins or ends.

1. Each request is decided through the one door (`broker.door`), and recorded there, before anything comes of it.
2. The original request is kept. What it comes to is worked out from the answers (`broker.effective`): a request that is
   granted in part is limited, and refused only where nothing of it is granted.
3. When credentials, types, policy or time change, requests are worked out anew, wider or narrower, and clients notice
   nothing but what they get. No event passes before that is done: where it fails, because an answer cannot be recorded,
   it is tried again with the next word that the broker is told.
4. What comes by a filter that is not the current one is asked everything anew, so that an event that was under way when
   a right was revoked is not delivered by it.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, tzinfo
from types import MappingProxyType
from typing import TypeAlias

from penstock.broker import requests
from penstock.broker.door import Door, Sources
from penstock.broker.library import Library
from penstock.broker.outcomes import detail_of, not_permitted, require, unknown
from penstock.broker.passing import Deliveries, Passing
from penstock.broker.requests import Asked, Detail, Output, Verb
from penstock.broker.sessions import Advertisement, Session, Subscription, Usages, earliest
from penstock.broker.standing import Standing
from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.guard import Recorder, Rules, environment
from penstock.guard.enforce import Environment
from penstock.model.events import Event
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.names import NetworkName, TypeName
from penstock.model.principals import Principal
from penstock.model.values import Scalar
from penstock.selector import ALWAYS, Selector
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import UnverifiedType

_Handler: TypeAlias = Callable[[Session, Asked, datetime], None]


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
        sources: Sources | None = None,
        *,
        rules: Rules | None = None,
        zone: tzinfo = UTC,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        rules = rules or Rules()
        self._outputs: list[Output] = []
        self._door = Door(network, recorder, sources or Sources(), rules.environment, limits, library.known)
        self._library = library
        self._standing = Standing(self._door, library, rules, self._outputs)
        self._usages = Usages(limits)
        self._passing = Passing(network.owner, self._standing, self._usages, self._environment)
        self._sessions: dict[str, Session] = {}
        self._zone = zone
        self._facts: Mapping[str, Scalar] = {}
        #: sessions that are to be worked out anew; when the broker's credentials change next, and when anybody's do
        self._stale: dict[str, None] = {}
        self._sources_turn: datetime | None = datetime.min.replace(tzinfo=UTC)
        self._turn: datetime | None = self._sources_turn

    # Sessions.

    def connect(self, now: datetime, session: str, principal: Principal, credentials: Credentials) -> list[Output]:
        """Let in a client that was authenticated, if it may connect to the network."""
        if session in self._sessions:
            raise RefusedError("broker.session", "a session of this name is open")
        self._catch_up(now)
        asked = Asked(Verb.CONNECT, self._door.network)
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
        return self._handle(now, session, Asked(Verb.SUBSCRIBE, of_type, id, selector), self._keep)

    def advertise(self, now: datetime, session: str, id: str, of_type: TypeName) -> list[Output]:  # noqa: A002  # as clients call it
        """Let a client publish events of a type; where it may not, of those sub-types of which it may."""
        return self._handle(now, session, Asked(Verb.ADVERTISE, of_type, id), self._keep)

    def unsubscribe(self, now: datetime, session: str, id: str) -> list[Output]:  # noqa: A002  # as clients call it
        """End a subscription."""
        return self._handle(now, session, Asked(Verb.UNSUBSCRIBE, id=id), self._drop)

    def unadvertise(self, now: datetime, session: str, id: str) -> list[Output]:  # noqa: A002  # as clients call it
        """End an advertisement."""
        return self._handle(now, session, Asked(Verb.UNADVERTISE, id=id), self._drop)

    def add_type(self, now: datetime, session: str, unverified: UnverifiedType) -> list[Output]:
        """Install an event type, for a client that may; what others asked for may reach further by it."""

        def install(client: Session, asked: Asked, now: datetime) -> None:
            decision = self._door.ask_network(client, Right.INSTALL, now)
            require(decision, Right.INSTALL, self._door.network)
            self._library.add(unverified, now)
            self._all_stale()
            self._outputs.append(requests.Accepted(client.id, asked))

        return self._handle(now, session, Asked(Verb.ADD_TYPE, unverified.definition.name), install)

    def remove_type(self, now: datetime, session: str, name: TypeName) -> list[Output]:
        """Remove an event type, for a client that may manage it."""

        def remove(client: Session, asked: Asked, now: datetime) -> None:
            verified = self._library.get(name, now)
            require(self._door.ask(client, Right.MANAGE, verified, now).decision, Right.MANAGE, name)
            self._library.remove(name)
            self._all_stale()
            self._outputs.append(requests.Accepted(client.id, asked))

        return self._handle(now, session, Asked(Verb.REMOVE_TYPE, name), remove)

    def restrictions(self, now: datetime, session: str, id: str) -> list[Output]:  # noqa: A002  # as clients call it
        """Tell a client how its subscription or advertisement is restricted, where the type's owner lets it ask."""

        def tell(client: Session, asked: Asked, now: datetime) -> None:
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

        return self._handle(now, session, Asked(Verb.RESTRICTIONS, id=id), tell)

    def _handle(self, now: datetime, session: str, asked: Asked, handler: _Handler) -> list[Output]:
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

    def _keep(self, client: Session, asked: Asked, now: datetime) -> None:
        if asked.id in client.held:
            raise RefusedError("broker.id-taken", "a request of this name stands already", hint="take another name")
        self._usages.check_request(client.usage, asked.verb)
        kind = Subscription if asked.verb is Verb.SUBSCRIBE else Advertisement
        held = kind(self._standing.ticket(), client, asked)
        self._standing.work_out(held, now)
        if not held.paths():
            raise not_permitted(held.detail)
        place = len(self._outputs)
        self._standing.keep(held)
        accepted = requests.Accepted(client.id, asked, tuple(held.keys.values()))
        self._outputs[place:place] = [accepted, requests.Report(client.id, client.principal, asked, held.detail)]

    def _drop(self, client: Session, asked: Asked, _now: datetime) -> None:
        held = client.held.get(asked.id)
        if not isinstance(held, Subscription if asked.verb is Verb.UNSUBSCRIBE else Advertisement):
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
        sources: Sources | None = None,
        credentials: Mapping[str, Credentials] | None = None,
        installed: Iterable[UnverifiedType] = (),
        removed: Iterable[TypeName] = (),
    ) -> list[Output]:
        """Take in what has changed: policy, what sessions disclose, types. Requests are worked out anew.

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
        """Work out anew whatever a change or a date has made stale."""
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
        """Ask everything about a session anew."""
        try:
            require(self._door.introduce(client, now), Right.CONNECT, self._door.network)
        except RefusedError as error:
            self._refuse(client.id, client.principal, Asked(Verb.CONNECT, self._door.network), error)
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
            self._outputs.append(requests.Report(client.id, client.principal, held.asked, held.detail, code))
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
        asked: Asked,
        error: PenstockError,
        told: Detail | None = None,
        *,
        position: int = 0,
    ) -> None:
        refused = requests.Refused(session, asked, error.code, error.message, told, error.hint or "", position)
        self._outputs.append(refused)
        self._outputs.append(requests.Report(session, principal, asked, detail_of(error) or Detail(), error.code))

    def _said(self) -> list[Output]:
        said = self._outputs.copy()
        self._outputs.clear()
        return said
