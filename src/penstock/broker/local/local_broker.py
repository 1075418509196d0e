"""The local broker: sessions, and their requests as policy permits them (Belokosztolszki et al., sections 4, 6 to 8).

A plain state machine between clients and the router. Whoever drives it tells it what happens and carries out what it
returns, in order (`requests`). It reads no clock: `now` never goes back (where a clock
was corrected, `recheck` is called), and `tick` says when it wants to be called next, because a right begins or ends.

1. Each request is decided through the only entry point (`decisions`), and recorded there, before it takes effect.
2. The original request is kept. The effective request is worked out from the answers (`effective_requests`): a request
   that is granted in part is limited, and refused only if nothing of it is granted.
3. When credentials, types, policy or time change, requests are worked out again, wider or narrower. A client that
   watches its rights learns when nothing of a request is permitted any more, and when something is again; how it is
   restricted, only if it may ask for that. No event passes before that is done: where it fails, because an answer
   cannot be recorded, it is tried again with the broker's next input.
   How events pass is in `core.event_path`; it calls `catch_up` before each message of events.
4. What comes by a filter that is not the current one is asked everything again, so that an event under way when a right
   was revoked is not delivered by it.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from itertools import count, islice
from types import MappingProxyType
from typing import Final, TypeAlias

from penstock.broker.limits import BrokerLimits
from penstock.broker.local import requests
from penstock.broker.local.decisions import AuthoritySources, DecisionPoint
from penstock.broker.local.effective_requests import Basis, Ruled, SubscriptionPart, offers, parts
from penstock.broker.local.requests import (
    ClientRequest,
    Detail,
    Output,
    Verb,
    advertised,
    detail_of,
    not_permitted,
    require,
    settled,
    subscribed,
    unknown,
)
from penstock.broker.local.sessions import (
    Held,
    KnownRight,
    Path,
    Session,
    SessionAdvertisement,
    SessionSubscription,
    Usage,
    Usages,
)
from penstock.broker.local.type_library import Library
from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.guard import Delivery, Recorder, Rules, environment
from penstock.guard.enforce import Environment
from penstock.model.events import Typed
from penstock.model.names import NetworkName, TypeKey, TypeName
from penstock.model.principals import Principal
from penstock.model.values import Scalar
from penstock.selector import ALWAYS, Selector
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import UnverifiedType, VerifiedType
from penstock.trust.refusals import LackedRight, RevokedCertificate, RightChange
from penstock.trust.validity import earliest

# ----------------------------------------------------------------------------------------------------------------------
# The active requests: the effective requests, and their entries in the router.
#
# New paths are asked for before old ones are given up, so that no event is lost in between. Each path has a key of its
# own, which is never used again: an event that was found by an older filter is recognised by its key.


@dataclass(frozen=True, slots=True)
class Receiver:
    """A subscription that an event is for, the part of it that the event belongs to, and what shows the event."""

    held: SessionSubscription
    part: SubscriptionPart
    view: Delivery


_Arrival: TypeAlias = tuple[tuple[str, ...], TypeKey, tuple[TypeKey, ...]]


class ActiveRequests:
    """See the module. Messages to send go to `outputs`."""

    def __init__(
        self, decisions: DecisionPoint, library: Library, rules: Rules, outputs: list[Output], limits: BrokerLimits
    ) -> None:
        self._decisions = decisions
        self._library = library
        self._rules = rules
        self._outputs = outputs
        self._limits = limits
        self._numbers = count(1)
        self._by_key: dict[str, Held] = {}
        self._by_ticket: dict[str, Held] = {}
        #: who gets events that come by the same keys and are of the same type, until a request changes
        self._receivers: dict[_Arrival, tuple[Receiver, ...]] = {}
        #: rises whenever an effective request may have changed
        self.version = 0

    def ticket(self) -> str:
        """Return a number that no request has had."""
        return str(next(self._numbers))

    def keep(self, held: Held) -> None:
        """Make a request active."""
        held.session.held[held.asked.id] = self._by_ticket[held.ticket] = held
        if isinstance(held, SessionSubscription):
            held.session.usage.subscriptions += 1
        else:
            held.session.usage.advertisements += 1
        self.route(held)

    def drop(self, held: Held) -> None:
        """End an active request."""
        held.empty()
        if isinstance(held, SessionAdvertisement):
            held.quiet = False
        self.route(held)
        del held.session.held[held.asked.id], self._by_ticket[held.ticket]
        if isinstance(held, SessionSubscription):
            held.session.usage.subscriptions -= 1
        else:
            held.session.usage.advertisements -= 1

    def receivers(self, keys: tuple[str, ...], event: Typed) -> tuple[Receiver, ...]:
        """Return who gets an event, or events of a type, by the keys that the router found, and how each sees it."""
        arrival = keys, event.key, event.ancestors
        known = self._receivers.get(arrival)
        if known is None:
            if len(self._receivers) >= self._limits.cache_entries:
                self._receivers.clear()
            known = self._receivers[arrival] = tuple(self._find_receivers(keys, event))
        return known

    def _find_receivers(self, keys: tuple[str, ...], event: Typed) -> Iterator[Receiver]:
        for held in self._subscriptions(keys):
            part = held.part_of(event)
            if part is not None and self._library.is_of(event.key, part.type):
                yield Receiver(held, part, part.narrow if held.came_by(part, keys) else part.checked)

    def _subscriptions(self, keys: Iterable[str]) -> Iterator[SessionSubscription]:
        """Yield the subscriptions that keys belong to, each once: old keys count, unknown keys do not."""
        found: dict[str, SessionSubscription] = {}
        for key in keys:
            held = self._by_key.get(key) or self._by_ticket.get(key.partition(".")[0])
            if isinstance(held, SessionSubscription):
                found[held.ticket] = held
        return iter(found.values())

    def work_out(self, held: Held, now: datetime) -> None:
        """Decide the effective request, and record what was granted.

        Raises what makes it impossible: `RefusedError` and `MalformedError` for its type, `SelectorError`; and what the
        recorder's sink raises. The effective request is empty then.
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
                # A change of policy concerns few of the active requests.
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
        return [Ruled(verified, self._decisions.ask(client, right, verified, now)) for verified in types]

    def may_ask(self, client: Session, asked: ClientRequest, now: datetime) -> bool:
        """Say whether the owner of the type of a request lets the client ask how it is restricted."""
        if not isinstance(asked.about, TypeName) or asked.about not in self._library:
            return False
        try:
            verified = self._library.get(asked.about, now)
        except (RefusedError, MalformedError):
            # Its owner's credentials have ended, and with them whatever it permits.
            return False
        return settled(self._decisions.ask(client, Right.RESTRICTIONS, verified, now).decision)

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
        """Record whether somebody subscribes to what is advertised under a key."""
        held = self._by_key.get(key)
        if isinstance(held, SessionAdvertisement):
            (held.unwanted.discard if wanted else held.unwanted.add)(key)
            self._quench(held)

    def _quench(self, held: SessionAdvertisement) -> None:
        quiet = held.unwanted >= set(held.keys.values())
        # A client does not learn whether somebody subscribes to what it may not publish.
        if held.keys and quiet is not held.quiet:
            held.quiet = quiet
            self._outputs.append(requests.Quenched(held.session.id, held.asked.id, quiet))


def _opened(held: Held, key: str, path: Path) -> Output:
    of_type, ancestors, filter_ = path
    if isinstance(held, SessionSubscription):
        return requests.Subscribe(key, of_type, filter_, str(held.session.principal))
    return requests.Advertise(key, of_type, ancestors, filter_)


# ----------------------------------------------------------------------------------------------------------------------
# The broker itself.


@dataclass(frozen=True, slots=True)
class NotPublished:
    """An event of a message that may not be published: its place in the message, and why."""

    position: int
    reason: PenstockError


_Handler: TypeAlias = Callable[[Session, ClientRequest, datetime], None]


class LocalBroker:
    """See the module. The driver names sessions; within one, its client names subscriptions and advertisements.

    Forbidden requests are answered with `Refused`. Methods raise `RefusedError` (`broker.session`) for a session that
    is not open, or is open already: the driver's mistake; and what the recorder's sink raises.
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
        self._decisions = DecisionPoint(
            network, recorder, sources or AuthoritySources(), rules.environment, library.known
        )
        self._library = library
        self.active = ActiveRequests(self._decisions, library, rules, self._outputs, limits)
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
        """Admit an authenticated client if it may connect to the network."""
        if session in self._sessions:
            raise RefusedError("broker.session", "a session of this name is open")
        self._catch_up(now)
        asked = ClientRequest(Verb.CONNECT, self._decisions.network)
        try:
            usage = self.usages.connect(principal, credentials)
        except MalformedError as error:
            self._refuse(Session(session, principal, credentials, Usage()), asked, error)
            return self._take_outputs()
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
        return self._take_outputs()

    def knows(self, session: str) -> bool:
        """Say whether a session is open."""
        return session in self._sessions

    def principals(self) -> frozenset[Principal]:
        """Return who has a session."""
        return frozenset(client.principal for client in self._sessions.values())

    def shown(self) -> Iterator[Credentials]:
        """Yield the credentials of each session."""
        return (client.credentials for client in self._sessions.values())

    def disconnect(self, now: datetime, session: str) -> list[Output]:
        """End a session and everything that was asked in it."""
        client = self.session(session)
        self._catch_up(now)
        if session in self._sessions:
            self._end(client)
        return self._take_outputs()

    def disclose(self, now: datetime, session: str, credentials: Credentials) -> list[Output]:
        """Take further credentials of a client: its effective requests may grow.

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
        """Subscribe a client to the events of a type and its sub-types that match its selector, as far as it may."""
        return self._handle(now, session, ClientRequest(Verb.SUBSCRIBE, of_type, id, selector), self._keep)

    def advertise(self, now: datetime, session: str, id: str, of_type: TypeName) -> list[Output]:  # noqa: A002  # as clients call it
        """Let a client publish events of a type, or else of those sub-types that it may publish."""
        return self._handle(now, session, ClientRequest(Verb.ADVERTISE, of_type, id), self._keep)

    def unsubscribe(self, now: datetime, session: str, id: str) -> list[Output]:  # noqa: A002  # as clients call it
        """End a subscription."""
        return self._handle(now, session, ClientRequest(Verb.UNSUBSCRIBE, id=id), self._drop)

    def unadvertise(self, now: datetime, session: str, id: str) -> list[Output]:  # noqa: A002  # as clients call it
        """End an advertisement."""
        return self._handle(now, session, ClientRequest(Verb.UNADVERTISE, id=id), self._drop)

    def add_type(self, now: datetime, session: str, unverified: UnverifiedType) -> list[Output]:
        """Install an event type, for a client that may; effective requests of others may grow by it."""

        def install(client: Session, asked: ClientRequest, now: datetime) -> None:
            decision = self._decisions.ask_network(client, Right.INSTALL, now)
            require(decision, client.principal, Right.INSTALL, self._decisions.network)
            self._library.add(unverified, now)
            self._all_stale()
            self._outputs.append(requests.Accepted(client.id, asked))

        return self._handle(now, session, ClientRequest(Verb.ADD_TYPE, unverified.definition.name), install)

    def remove_type(self, now: datetime, session: str, name: TypeName) -> list[Output]:
        """Remove an event type, for a client that may manage it."""

        def remove(client: Session, asked: ClientRequest, now: datetime) -> None:
            verified = self._library.get(name, now)
            decision = self._decisions.ask(client, Right.MANAGE, verified, now).decision
            require(decision, client.principal, Right.MANAGE, name)
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
                raise _lacked(client, Right.RESTRICTIONS, held.asked).refuse("broker.not-told")
            self._outputs.append(requests.Answered(client.id, asked, held.detail))

        return self._handle(now, session, ClientRequest(Verb.RESTRICTIONS, id=id), tell)

    def rights(self, now: datetime, session: str, name: TypeName) -> frozenset[Right]:
        """Return which of publishing and subscribing a client may do with a type: what it would learn if it tried.

        Raises `RefusedError` (`broker.session`).
        """
        client = self.session(session)
        verbs = {Right.PUBLISH: Verb.ADVERTISE, Right.SUBSCRIBE: Verb.SUBSCRIBE}
        found = frozenset(right for right, verb in verbs.items() if self._may(client, ClientRequest(verb, name), now))
        self._turn = earliest(self._turn, client.until)
        return found

    def _may(self, client: Session, asked: ClientRequest, now: datetime) -> bool:
        kind = SessionSubscription if asked.verb is Verb.SUBSCRIBE else SessionAdvertisement
        held = kind(self.active.ticket(), client, asked)
        try:
            self.active.work_out(held, now)
        except (RefusedError, MalformedError):
            return False
        return bool([*held.paths()])

    def watch_rights(self, now: datetime, session: str) -> list[Output]:
        """Tell a client from now on when the right to one of its requests changes, and now about those without one."""

        def watch(client: Session, asked: ClientRequest, now: datetime) -> None:
            known, client.watches = client.watches, True
            self._outputs.append(requests.Accepted(client.id, asked))
            # One that asks again and again is not told everything each time.
            for held in () if known else client.held.values():
                held.told = KnownRight(permitted=held.permitted())
                self._tell_right(held, now)

        return self._handle(now, session, ClientRequest(Verb.WATCH_RIGHTS), watch)

    def _handle(self, now: datetime, session: str, asked: ClientRequest, handler: _Handler) -> list[Output]:
        client = self.session(session)
        self._catch_up(now)
        if session in self._sessions:
            try:
                handler(client, asked, now)
            except (RefusedError, MalformedError) as error:
                detail = detail_of(error) if self.active.may_ask(client, asked, now) else None
                self._refuse(client, asked, error, detail)
            self._turn = earliest(self._turn, client.until)
            self._catch_up(now)
        return self._take_outputs()

    def _keep(self, client: Session, asked: ClientRequest, now: datetime) -> None:
        if asked.id in client.held:
            raise RefusedError("broker.id-taken", "a request with this id is active already", hint="use another id")
        self.usages.check_request(client.usage, asked.verb)
        kind = SessionSubscription if asked.verb is Verb.SUBSCRIBE else SessionAdvertisement
        held = kind(self.active.ticket(), client, asked)
        self.active.work_out(held, now)
        if not held.paths():
            raise _nothing_permitted(held)
        held.told = KnownRight(permitted=held.permitted()) if client.watches else None
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
        detail = held.detail if held is not None and self.active.may_ask(client, held.asked, now) else None
        for one in refused:
            self._refuse(client, asked, one.reason, detail, position=one.position)
        return self._take_outputs()

    def suspend(self, owner: Principal) -> None:
        """Deliver and take nothing of an owner's types: what its policy is now is not known here."""
        self.suspended.add(owner)

    def resume(self, owner: Principal) -> None:
        """Go on with an owner's types."""
        self.suspended.discard(owner)

    def is_suspended(self, about: Typed) -> bool:
        """Say whether events of a type may not pass at present.

        Readers of a type have their right from its owner, whoever owns the sub-type of which the event is.
        """
        if self.held or not self.suspended:
            return self.held
        owners = (about.key.owner, *(ancestor.owner for ancestor in about.ancestors), self._decisions.network.owner)
        return not self.suspended.isdisjoint(owners)

    def hold(self, *, held: bool) -> None:
        """Deliver and take nothing of anybody, or go on."""
        self.held = held

    def wanted(self, key: str, *, wanted: bool) -> list[Output]:
        """Record whether somebody in the network subscribes to what is advertised under a key."""
        self.active.wanted(key, wanted=wanted)
        return self._take_outputs()

    def know(self, facts: Mapping[str, Scalar]) -> None:
        """Record facts from outside, which dynamic conditions can refer to."""
        self._facts = MappingProxyType(dict(facts))

    def environment(self, client: Session, now: datetime) -> Environment:
        """Return what rights that depend on the moment are asked about."""
        return environment(now, rate=client.usage.rate.at(now), facts=self._facts, zone=self._zone)

    # Change and time.

    def catch_up(self, now: datetime) -> list[Output]:
        """Apply what a change or a date has made stale: events pass only after that, and after what this returns."""
        self._catch_up(now)
        return self._take_outputs() if self._outputs else []

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
            self._decisions.sources, self._sources_turn = sources, sources.turns(now)
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
        return self._take_outputs()

    def reconsider(self, now: datetime, principals: Collection[Principal]) -> list[Output]:
        """Work out again what these principals asked for: their roles have changed. Others are not affected."""
        affected = frozenset(principals)
        self._stale.update(dict.fromkeys(c.id for c in self._sessions.values() if c.principal in affected))
        self._catch_up(now)
        return self._take_outputs()

    def tick(self, now: datetime) -> tuple[list[Output], datetime | None]:
        """Drop what has ended, record what was counted, and return when to call again at the latest."""
        self._catch_up(now)
        for client in self._sessions.values():
            self._decisions.write(client)
        self.usages.forget(now)
        return self._take_outputs(), self._turn

    def shows(self, certificates: frozenset[str]) -> frozenset[str]:
        """Return which of these certificates sessions show."""
        return frozenset(one.id for bag in self.shown() for one in bag if one.id in certificates)

    def retest(self, now: datetime, certificates: frozenset[str]) -> list[Output]:
        """Work out again the requests of sessions that show these certificates: on-line tests have other results."""
        for client in self._sessions.values():
            if any(one.id in certificates for one in client.credentials):
                self._stale[client.id] = None
        self._catch_up(now)
        return self._take_outputs()

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
                self._sources_turn = self._decisions.sources.turns(now)
                self._all_stale()
            due = (c.id for c in self._sessions.values() if c.until is not None and now >= c.until)
            self._stale.update(dict.fromkeys(due))
            self._next_turn()
        if self._stale:
            waiting = dict(self._stale)
            try:
                with self._decisions.recorder.together():
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
        network = self._decisions.network
        try:
            require(self._decisions.introduce(client, now), client.principal, Right.CONNECT, network)
        except RefusedError as error:
            self._refuse(client, ClientRequest(Verb.CONNECT, network), error)
            self._end(client)
            self._outputs.append(requests.Closed(client.id, error.code))
            return
        for held in client.held.values():
            try:
                self.active.work_out(held, now)
                held.problem = None
            except (RefusedError, MalformedError) as error:
                # Its type is gone, or has changed so that the selector does not fit it: nothing, until it fits again.
                held.problem = error.with_traceback(None)
            code = "" if held.problem is None else held.problem.code
            self._outputs.append(requests.RequestReport(client.id, client.principal, held.asked, held.detail, code))
            self.active.route(held)
            self._tell_right(held, now)

    def _tell_right(self, held: Held, now: datetime) -> None:
        """Tell a client that watches its rights how the right to a request differs from the one that it knows.

        That nothing of it is permitted, and that something is again, the client would learn if it asked once more. It
        learns how it is restricted only where the owner of the type lets it ask.
        """
        client, known = held.session, held.told
        if known is None:
            return
        problem = held.problem or (None if held.paths() else _nothing_permitted(held))
        held.told = KnownRight(permitted=held.permitted()) if problem is None else KnownRight(problem.code)
        if held.told == known:
            return
        detail = held.detail if self.active.may_ask(client, held.asked, now) else None
        if problem is not None:
            refused = self._refusal(client, held.asked, problem)
            change = requests.RightChanged(client.id, held.asked, RightChange.WITHDRAWN, refused, detail)
        elif known.code:
            change = requests.RightChanged(client.id, held.asked, RightChange.RESTORED, detail=detail)
        elif detail is None:
            return
        else:
            change = requests.RightChanged(client.id, held.asked, RightChange.RESTRICTED, detail=detail)
        self._outputs.append(change)

    def _end(self, client: Session) -> None:
        for held in list(client.held.values()):
            self.active.drop(held)
        del self._sessions[client.id]
        self.usages.disconnect(client.principal)
        self._decisions.write(client)

    # Words.

    def session(self, session: str) -> Session:
        """Return a session that is open. Raises `RefusedError` (`broker.session`)."""
        client = self._sessions.get(session)
        if client is None:
            raise RefusedError("broker.session", "no session of this name is open")
        return client

    def revoked(self, client: Session, lacked: LackedRight | None = None) -> tuple[RevokedCertificate, ...]:
        """Return which certificates of a client are revoked: all, or those that a missing right depends on.

        These are the certificates that it showed, and those that others gave to the broker for it.
        """
        sources = self._decisions.sources
        given = (one for one in (*sources.credentials, *sources.withdrawn) if one.statement.subject == client.principal)
        shown = {certificate.id: certificate.statement for certificate in (*client.credentials, *given)}
        found = (
            (id_, owner)
            for owner, gone in sources.revocations.by_owner.items()
            for id_ in sorted(gone.intersection(shown))
            if lacked is None or (owner in (lacked.about.owner, shown[id_].issuer) and lacked.depends_on(shown[id_]))
        )
        return tuple(RevokedCertificate(id_, owner) for id_, owner in islice(found, _REVOKED))

    def _refuse(
        self,
        client: Session,
        asked: ClientRequest,
        error: PenstockError,
        detail: Detail | None = None,
        *,
        position: int = 0,
    ) -> None:
        self._outputs.append(self._refusal(client, asked, error, detail, position))
        self._outputs.append(
            requests.RequestReport(client.id, client.principal, asked, detail_of(error) or Detail(), error.code)
        )

    def _refusal(
        self,
        client: Session,
        asked: ClientRequest,
        error: PenstockError,
        detail: Detail | None = None,
        position: int = 0,
    ) -> requests.Refused:
        lacked = error.fields.get("lacked")
        missing = lacked if isinstance(lacked, LackedRight) and lacked.who == client.principal else None
        if missing is not None and missing not in client.revoked:
            client.revoked[missing] = self.revoked(client, missing)
        revoked = () if missing is None else client.revoked[missing]
        return requests.Refused(
            client.id, asked, error.code, error.message, detail, error.hint, position, missing, revoked
        )

    def _take_outputs(self) -> list[Output]:
        outputs = self._outputs.copy()
        self._outputs.clear()
        return outputs


#: revoked certificates in an answer to a client
_REVOKED: Final = 256


def _nothing_permitted(held: Held) -> RefusedError:
    right = Right.SUBSCRIBE if isinstance(held, SessionSubscription) else Right.PUBLISH
    return not_permitted(_lacked(held.session, right, held.asked), held.detail)


def _lacked(client: Session, right: Right, asked: ClientRequest) -> LackedRight:
    """Return the right that a client lacks for a request about a type. Raises `MalformedError` (`argument.type`)."""
    if asked.about is None:
        raise MalformedError("argument.type", "the request is not about an event type")
    return LackedRight(client.principal, right, asked.about)
