"""The core of a node, which its parts share: identity, settings, rights of other brokers, the time, and `settle`."""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import chain, count
from typing import Any, Final, Protocol, TypeAlias

from penstock.broker.blinding import BlindedVault, BlindingRouter, Labels
from penstock.broker.core.admission import Admission, CredentialBudget
from penstock.broker.core.clock import Clock, Steady, SteadyClock
from penstock.broker.core.event_path import EventPath, PathPorts, WriteBudget
from penstock.broker.core.exchange import Exchange, ExchangePorts, FabricPort, Inward, Outward
from penstock.broker.core.reports import LinkReport, Refusals
from penstock.broker.core.settings import NodeSettings as NodeSettings
from penstock.broker.core.settings import TrustSettings as TrustSettings
from penstock.broker.evolution.completeness import BrokerRoster
from penstock.broker.evolution.statements import KEYS, is_reserved
from penstock.broker.local.decisions import AuthoritySources, DecisionCache
from penstock.broker.local.local_broker import LocalBroker
from penstock.broker.local.requests import Given, RequestReport, Verb, require, settled
from penstock.broker.local.type_library import Library
from penstock.broker.routing.membership import SignedProof
from penstock.broker.routing.outputs import Laid, RouterSettings, Unopened
from penstock.broker.routing.overlay import Overlay
from penstock.broker.sealing.blocks import BlockBuilder
from penstock.broker.sealing.vault import KeyVault, Nowhere, Quarantine, Signatures
from penstock.broker.wire.transports import PeerAddress as PeerAddress
from penstock.codec.sexp import SExp
from penstock.crypto.blinding import is_blinded
from penstock.crypto.seal_keys import LiveKeys
from penstock.errors import FailedError, PenstockError
from penstock.fabric.port import since_boot
from penstock.guard import NetworkRequest, Recorded, Recorder
from penstock.guard.environment import environment_schema
from penstock.model.events import TransitEvent
from penstock.model.names import TypeKey
from penstock.model.principals import KEY, Principal
from penstock.trust.caches import CertificateCache
from penstock.trust.capabilities import BROKER_RIGHTS, EVENT_TYPE, Right
from penstock.trust.certificates import Authorisation
from penstock.trust.credentials import Credentials, next_issuers, read_credentials
from penstock.trust.discovery import valid_period
from penstock.trust.event_types import VerifiedType
from penstock.trust.policy_state import Revocations
from penstock.trust.statements import VALIDITY_TOPIC
from penstock.trust.validity import OnlineTest, Validity, earliest, turning_point

# ----------------------------------------------------------------------------------------------------------------------
# Which of its credentials a broker shows: those that its own rights may depend on.
#
# A broker also uses its clients' credentials. There may be many, and nobody needs them to verify that the broker may be
# in the network and carry events. Credentials that name a blinded type are not shown either: they would reveal that the
# type exists, and who uses it.


def resting(principal: Principal, credentials: Credentials) -> Credentials:
    """Return the credentials that may be part of a chain to a principal; those that might be are included."""
    found: set[str] = set()
    wanted = {principal}
    before = -1
    while len(found) != before:
        before = len(found)
        for certificate in credentials:
            subject = certificate.statement.subject
            # A name or a quorum may include any principal.
            is_key = isinstance(subject, Principal) and subject.scheme == KEY
            if not is_key or subject in wanted:
                found.add(certificate.id)
                wanted.add(certificate.statement.issuer)
    kept = [certificate for certificate in credentials if certificate.id in found]
    return Credentials.of(*kept, quorums=credentials.quorums)


def discreet(credentials: Credentials, blinded: Collection[TypeKey]) -> Credentials:
    """Return the credentials that do not name any of the blinded types."""
    if not blinded:
        return credentials
    named = [{str(key.owner).encode(), key.name.encode()} for key in blinded]
    kept = [one for one in credentials if not any(both <= {*_atoms(one.statement.to_sexp())} for both in named)]
    return Credentials.of(*kept, quorums=credentials.quorums)


def _atoms(value: SExp) -> Iterator[bytes]:
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _atoms(part)


# ----------------------------------------------------------------------------------------------------------------------
# The core.


Reported: TypeAlias = Callable[[RequestReport | LinkReport | PenstockError], None]
_NOTHING: Final = Credentials()


class CorePorts(FabricPort, Protocol):
    """What a core needs of the node that is built on it. While the core is built, it calls nothing here."""

    def report(self, report: RequestReport | LinkReport | PenstockError) -> None:
        """Let operators know."""

    def carry_out(self, output: Outward) -> None:
        """Carry out an output for clients or neighbours."""

    def do_due(self) -> None:
        """Do what is due (`Core.turn`), and say when something is due again."""

    def rights_changed(self) -> None:
        """Consider again what depends on rights: policy has changed, or what brokers show."""

    def remembers(self, broker: Principal) -> bool:
        """Say whether what a broker has shown still counts when it has gone: it has signed for others."""

    def check_online(self, test: OnlineTest, certificate: str, now: datetime) -> Validity:
        """Return for how long an on-line test holds. Raises `RefusedError` if it does not."""

    async def gather(self, bag: Credentials, statements: Sequence[bytes]) -> None:
        """Take the statements that a peer brings, and wait for those that its certificates need besides."""

    def reads_as_much(self, peer: Principal, of_type: TypeKey) -> bool:
        """Say whether a neighbour may read all of a type that this broker may."""

    def may_sign(self, broker: Principal, of_type: TypeKey, attributes: tuple[str, ...]) -> bool:
        """Say whether a broker may publish events of a type with these attributes."""

    def waits_for_keys(self, of_type: TypeKey) -> bool:
        """Say whether events of a type have to wait, because not all of their keys are there."""

    def take_own(self, now: datetime, event: TransitEvent) -> None:
        """Take an event for which the broker itself has subscribed: a statement about keys."""

    def wake(self, due: datetime) -> None:
        """Call `Core.flush` when gathered events are due."""

    def soon(self, work: Callable[[], None]) -> None:
        """Call something when others have had their turn."""


class Core:
    """See the module. With `on_fabric`, a fabric is between brokers in the place of links."""

    def __init__(  # noqa: PLR0913  # what the parts share, one after the other
        self,
        settings: NodeSettings,
        recorder: Recorder,
        clock: Clock,
        ports: CorePorts,
        *,
        steady: Steady = since_boot,
        on_fabric: bool = False,
        quarantine: Quarantine | None = None,
    ) -> None:
        self.settings = settings
        self._ports = ports
        self._fabric: FabricPort | None = ports if on_fabric else None
        self.principal = settings.key.principal
        #: counters by name; refused sealed blocks by error code; where refused blocks are kept
        self.counts, self.unopened = Counter[str](), Counter[str]()
        self.quarantine: Quarantine = quarantine or Nowhere()
        self._shown: tuple[tuple[Credentials, int] | None, bytes] = None, b""
        self._showing: bytes | None = None
        self.certificates = CertificateCache(settings.limits.cache_entries)
        self._admission = Admission(self.certificates, settings.limits)
        self._trusted: tuple[Credentials, frozenset[Principal]] | None = None
        self.library = Library(
            settings.network,
            self._types_changed,
            online=ports.check_online,
            certificates=self.certificates,
            limits=settings.limits,
        )
        self.refusals = Refusals(recorder.sink, self.counts, settings.limits)
        self.recorder = recorder = replace(recorder, sink=self.refusals)
        self._clock = SteadyClock(clock, steady)
        #: the time that `now` last returned
        self.latest = self._clock()
        self._corrections = 0
        self._handlers: dict[type, Callable[[Any], None]] = {
            RequestReport: self._report,
            Unopened: self._unopened,
            Laid: self._laid,
            Given: self._give,
        }
        #: what to call when paths are laid, by token
        self._laying: dict[str, Callable[[], None]] = {}
        self._tokens = count(1)
        #: when `CorePorts.do_due` is to be called
        self.turn: datetime | None = None
        #: what may wait for the fabric, if there is one
        self.outbox = WriteBudget(settings.limits.network_outbox) if on_fabric else None
        self.sources = AuthoritySources(
            settings.credentials,
            online=ports.check_online,
            agreements=settings.agreements,
            policies=settings.policies,
            others=settings.others,
        )
        local = LocalBroker(
            settings.network,
            recorder,
            self.library,
            self.sources,
            rules=settings.rules,
            zone=settings.zone,
            limits=settings.limits,
        )
        # Each start needs a higher number. If the clock was set back, neighbours ask for a higher one.
        incarnation = int(self.latest.timestamp() * 1000)
        proof = SignedProof(settings.key, settings.network, settings.limits)
        self.overlay = Overlay(
            unsafe_open=settings.trust.unsafe_open, online=ports.check_online, limits=settings.limits
        )
        self.overlay.change(settings.credentials, Revocations())
        self.ring = LiveKeys()
        self.vault = KeyVault(
            self.ring,
            self.principal,
            self.library.protection,
            self._reads_as_much,
            # Whoever brings events has asked for the time just before.
            clock=lambda: self.latest,
            began=lambda: self._clock.began,
            random=settings.random,
            settings=settings.seals,
            signatures=Signatures(settings.key, self._may_sign),
            skew=settings.trust.skew,
            limits=settings.limits,
        )
        self.labels = Labels(self.library, self.now, settings.limits)
        #: the same vault, with blinded names for other brokers
        self.sealing = BlindedVault(self.vault, self.labels)
        routing = RouterSettings(
            proof=proof,
            may_route=self.may_route,
            admitted=self.admitted,
            may_pass=self.may_pass,
            vault=self.sealing,
            on_fabric=on_fabric,
            limits=settings.limits,
        )
        #: the other brokers that were seen, also those that are not connected now
        self.roster = BrokerRoster(settings.limits)
        #: the credentials that other brokers have shown, neighbours or not
        self.disclosed: dict[Principal, Credentials] = {}
        self._answers = DecisionCache(settings.limits)
        #: what rights on the network depend on: by the sources, and by each bag of credentials; when they end
        self._facts_by: AuthoritySources | None = None
        self._facts: tuple[object, ...] = ()
        self._bag_facts: dict[int, tuple[object, ...]] = {}
        self._ends: dict[Principal, tuple[tuple[object, ...], datetime | None]] = {}
        self._router = BlindingRouter(self.principal, incarnation, routing, self.labels)
        of_path = PathPorts(begin=self.begin, settle=self.settle, outbox=self.outbox, counts=self.counts)
        self.path = EventPath(local, self.library, self._router, of_path, settings.limits)
        gathering = BlockBuilder(settings.sealing, settings.limits, ports.waits_for_keys)
        inner = ExchangePorts(sealable=self.vault.check, take_own=ports.take_own, fabric=self._fabric)
        self.exchange = Exchange(local, self._router, self.path, gathering, inner)
        self._resealing = False
        self._due: datetime | None = None
        self._wanted: deque[Iterable[Inward]] = deque()
        self._settling = False

    @property
    def local(self) -> LocalBroker:
        """The local broker."""
        return self.exchange.local

    @property
    def on_fabric(self) -> bool:
        """Whether a fabric is between brokers, instead of links."""
        return self._fabric is not None

    @property
    def router(self) -> BlindingRouter:
        """The router."""
        return self._router

    def now(self) -> datetime:
        """Return the time. It goes back only if a clock that was ahead was corrected (`clock`)."""
        now = self._clock()
        if self._clock.corrections != self._corrections:
            self._corrected(now)
        self.latest = max(self.latest, now)
        return self.latest

    def _corrected(self, now: datetime) -> None:
        """Decide everything again that depends on dates, before anything else is done."""
        back = int((self.latest - now).total_seconds())
        self._corrections = self._clock.corrections
        self.latest = self.turn = now
        self._answers.forget()
        self.overlay.recheck()
        self.local.recheck()
        self._ports.soon(self.trust_changed)
        self._ports.soon(self.release)
        self.note(
            FailedError(
                "clock.corrected",
                f"the clock of this machine was ahead and was set back by {back} seconds",
                hint="rights that had expired by the wrong date are valid again; find out what set the clock",
            )
        )

    def _types_changed(self) -> None:
        """Let policies look for new owners before anything else is done, and a fabric read other topics."""
        self.turn = self.now()
        if self._fabric is not None:
            self._fabric.interests_changed()

    def begin(self) -> datetime:
        """Do what is due, and return the time. Call this before anything that depends on the time."""
        now = self.now()
        if self.turn is not None and now >= self.turn:
            self._ports.do_due()
        return now

    def shown(self) -> bytes:
        """Return the credentials that the broker shows to everybody, as bytes."""
        known = self.settings.credentials, self.library.revision
        if self._shown[0] != known:
            kept = discreet(resting(self.principal, self.settings.credentials), self.library.blinded)
            self._shown = known, kept.to_bytes()
        return self._shown[1]

    def show(self) -> None:
        """Send the credentials that the broker shows to the other brokers, if they have changed."""
        shown = self.shown()
        if shown != self._showing:
            self._showing = shown
            self.settle(self.router.disclose(shown))

    def settle(self, outputs: Iterable[Inward]) -> None:
        """Carry out outputs of the local broker and the router.

        Outputs that arise meanwhile are carried out afterwards, because neighbours count what they receive. An output
        that fails does not stop the others. Raises the first error of these outputs; operators see all other errors.
        """
        self._wanted.append(outputs)
        if self._settling:
            return
        self._settling = True
        failed: PenstockError | None = None
        try:
            while self._wanted:
                wanted = self._wanted.popleft()
                for error in self._carry_out(wanted):
                    if wanted is not outputs or failed is not None:
                        self.note(error)
                    else:
                        failed = error
        finally:
            self._settling = False
            self._rouse()
        if failed is not None:
            raise failed

    def _carry_out(self, outputs: Iterable[Inward]) -> list[PenstockError]:
        # Opening a sealed block takes time: rights may have ended since its message arrived.
        outward, failed = self.exchange.settle(self.now(), outputs)
        errors = [] if failed is None else [failed]
        for output in outward:
            try:
                handler = self._handlers.get(type(output), self._ports.carry_out)
                handler(output)
            except PenstockError as error:
                errors.append(error)
        return errors

    def _rouse(self) -> None:
        """Schedule the next flush of gathered events, and the next round of sealing filters again."""
        if self.router.resealing and not self._resealing:
            self._resealing = True
            self._ports.soon(self._reseal)
        due = self.exchange.due
        if due is not None and due != self._due:
            self._due = due
            self._ports.wake(due)

    def _reseal(self) -> None:
        self._resealing = False
        try:
            self.settle(self.router.reseal())
        except PenstockError as error:
            self.note(error)

    def confirm(self, keys: Iterable[str], then: Callable[[], None], now: float) -> None:
        """Call `then` when the paths of keys are confirmed, or after a timeout; `now` is the router's time."""
        token = str(next(self._tokens))
        self._laying[token] = then
        self.settle(self.router.confirm(token, keys, now))

    def _give(self, given: Given) -> None:
        self.path.write(given)

    def _laid(self, laid: Laid) -> None:
        if not laid.complete:
            self.counts["unconfirmed"] += 1
            self.note(
                FailedError(
                    "route.unconfirmed",
                    "the path of a client's subscription or advertisement was not confirmed in time",
                    hint="a broker on the way does not answer: look at the links and at the load of the brokers",
                )
            )
        self._laying.pop(laid.token)()

    def flush(self) -> None:
        """Seal and send the gathered events that are due."""
        self._due = None
        self._send(self.exchange.flush(self.now()))

    def release(self) -> None:
        """Seal and send all gathered events that can be sealed: keys have arrived, or the broker stops."""
        self.now()
        self._send(self.exchange.released())

    def _send(self, gathered_events: Iterable[Inward]) -> None:
        for gathered in gathered_events:
            try:
                self.settle((gathered,))
            except PenstockError as error:
                # The other blocks are independent of it.
                self.note(error)
        # Timers are not exact: this may have been called too early.
        self._rouse()

    def note(self, report: RequestReport | PenstockError) -> None:
        """Let operators know."""
        self.counts["refused" if report.code else "accepted"] += 1
        self._ports.report(report)

    def report(self, report: LinkReport) -> None:
        """Report to operators that a link to another broker was lost or is back."""
        self._ports.report(report)

    def note_stranger(self, report: RequestReport | PenstockError) -> None:
        """Report to operators that somebody was not let in, unless there were too many such reports."""
        if self.refusals.report(report.code):
            self.note(report)

    def _report(self, report: RequestReport) -> None:
        if report.code and report.asked.verb is Verb.CONNECT:
            self.note_stranger(report)
        else:
            self.note(report)

    def _unopened(self, unopened: Unopened) -> None:
        """Put a refused sealed block into quarantine, and report it to operators."""
        self.unopened[unopened.reason.code] += 1
        self.note(unopened.reason)
        if unopened.block:
            try:
                self.quarantine.keep(self.latest, unopened.reason.code, unopened.peer, unopened.block)
            except PenstockError as error:
                self.note(error)

    async def read_hello(self, principal: Principal, shown: bytes, statements: Sequence[bytes] = ()) -> Credentials:
        """Return the credentials in a hello, verified as far as they can matter.

        `statements` are validity statements that the peer brings. Raises as `Admission.hello`.
        """
        return await self._admission.hello(principal, shown, self._asked(principal, statements))

    async def read_relayed(self, peer: Principal, broker: Principal, shown: bytes) -> Credentials:
        """Return a broker's credentials that a neighbour has passed on, verified. Raises as `Admission.relayed`."""
        return await self._admission.relayed(peer, shown, self._asked(broker))

    async def read_disclosed(self, principal: Principal, shown: bytes) -> Credentials:
        """Return the credentials that a member discloses, verified. Raises as `Admission.disclosed`."""
        return await self._admission.disclosed(principal, shown)

    def _asked(self, principal: Principal, statements: Sequence[bytes] = ()) -> CredentialBudget:
        async def connects(bag: Credentials) -> bool:
            await self._ports.gather(bag, statements)
            return settled(self._consider(principal, Right.CONNECT, bag).decision)

        return CredentialBudget(self._trusted_principals, connects)

    def _trusted_principals(self) -> frozenset[Principal]:
        """Return whose certificates can matter: the coordinator, and everybody that our credentials let delegate."""
        known = self.sources.credentials
        if self._trusted is None or self._trusted[0] is not known:
            named = {one for certificate in known for one in next_issuers(certificate.statement)}
            self._trusted = known, frozenset({self.settings.network.owner, *named, *known.thresholds()})
        return self._trusted[1]

    def read_bag(self, disclosed: bytes) -> Credentials:
        """Return credentials that a peer sent, verified. Raises `MalformedError` and `RefusedError` (`trust.*`)."""
        if not disclosed:
            return _NOTHING
        return read_credentials(disclosed).verify(self.certificates)

    def require_broker(self, principal: Principal, bag: Credentials) -> None:
        """Check that somebody may be a broker of the network. Raises `RefusedError` (`broker.not-permitted`)."""
        for right in BROKER_RIGHTS:
            found = self._consider(principal, right, bag)
            self.recorder.write(found.record)
            require(found.decision, principal, right, self.settings.network)

    def _consider(self, principal: Principal, right: Right, bag: Credentials) -> Recorded:
        request = NetworkRequest(principal, right, self.settings.network, self.now())
        authorities = self.sources.authorities(bag, environment_schema())
        return self.recorder.consider(request, authorities, self.sources.revision)

    # Other brokers.

    def disclose(self, broker: Principal, bag: Credentials | None) -> None:
        """Use the credentials that a broker shows; None forgets them."""
        if bag is None:
            self.disclosed.pop(broker, None)
            if not self._ports.remembers(broker):
                self.overlay.leave(broker)
        elif self.disclosed.get(broker) == bag:
            return
        else:
            self.disclosed[broker] = bag
            self.overlay.disclose(broker, bag)
        self.trust_changed()

    def change_sources(self, sources: AuthoritySources) -> None:
        """Use another policy from now on, and decide everything again. Raises what recording raises."""
        self.sources = sources
        self.overlay.change(sources.credentials, sources.revocations)
        with self.recording():
            self.settle(self.local.change(self.now(), sources=sources))
            self.trust_changed()

    def roles_changed(self, principals: frozenset[Principal]) -> None:
        """Decide again what these principals asked for: their roles have changed. Raises what recording raises."""
        self._answers.forget()
        self._ends.clear()
        with self.recording():
            self.settle(self.local.reconsider(self.now(), principals))
            if not principals.isdisjoint(self.disclosed):
                self.trust_changed()

    def online_changed(self, certificates: frozenset[str] | None) -> None:
        """Decide again what depends on these certificates, or on any (None): their on-line tests have other results.

        If only clients show them, these clients are decided about again, and nobody else. Raises what recording raises.
        """
        away = map(self.roster.credentials, self.roster)
        bags = (self.sources.credentials, self.sources.successors, *self.disclosed.values(), *away)
        if (
            certificates is not None
            and not any(one.id in certificates for bag in bags for one in bag)
            and certificates.isdisjoint(self.library.certificates())
            and certificates <= self.local.shows(certificates)
        ):
            with self.recording():
                self.settle(self.local.retest(self.now(), certificates))
            return
        self.library.recheck()
        # Another object, because answers are cached for as long as the sources are the same.
        self.change_sources(replace(self.sources, online=partial(self._ports.check_online)))

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Write all decisions that are made within to the disk together, at the end.

        Raises what writing raises. The decisions do not count then: they are made again before any event passes.
        """
        try:
            with self.recorder.together():
                yield
        except PenstockError:
            self._answers.forget()
            self.local.recheck()
            raise

    def relabel(self) -> None:
        """Route clients' requests under the current labels, and stop showing credentials that name blinded types."""
        before = self.router.labelled
        self.settle(self.router.labels_changed())
        if before != self.router.labelled:
            if self._fabric is not None:
                self._fabric.interests_changed()
            self.show()

    def trust_changed(self) -> None:
        """Decide again who is in the network, and who may carry which type."""
        self.settle(self.router.trust_changed())
        self._ports.rights_changed()

    def may_route(self, of_type: TypeKey, broker: Principal) -> bool:
        """Say whether a broker may carry a type."""
        if is_blinded(of_type):
            # All brokers must agree, and most do not know the type: every broker of the network may carry it.
            return self.is_broker(broker)
        if is_reserved(of_type.name):
            # Policy is not sent as events between neighbours: they would keep it and pass it on unverified.
            if of_type.name == VALIDITY_TOPIC:
                return self.is_broker(broker)
            return of_type.name == KEYS and self.goes_by(self.latest, of_type.owner, broker)
        return self.is_broker(broker) and self.overlay.may_route(self.latest, of_type, broker)

    def may_pass(self, of_type: TypeKey, peer: Principal) -> bool:
        """Say whether a type may go to a neighbour and come from it: both brokers may carry it.

        It is asked for every event, so that the answer is cached until what it depends on changes.
        """
        bag, now = self.disclosed.get(peer, _NOTHING), self.latest
        facts = self._network_facts(bag)
        known = self._answers.known((of_type, peer), (self.overlay.version, facts), now)
        if known is not None:
            return known
        answer = self.admitted(peer) and self.may_route(of_type, self.principal) and self.may_route(of_type, peer)
        if is_blinded(of_type) or is_reserved(of_type.name):
            # These depend on more.
            return answer
        by, until = (self.overlay.version, facts), earliest(self._until(now, bag), self.overlay.turns())
        return self._answers.keep((of_type, peer), by, until, answer=answer)

    def goes_by(self, now: datetime, owner: Principal, broker: Principal) -> bool:
        """Say whether a broker follows an owner's policy, because it may carry one of the owner's types.

        All brokers follow the coordinator, who says who is in the network. A broker that is not connected is judged by
        the credentials that it showed last.
        """
        coordinates = owner == self.settings.network.owner
        if self.is_broker(broker) and (coordinates or self.overlay.trusts(now, owner, broker)):
            return True
        shown = self.roster.credentials(broker)
        if not len(shown) or broker in self.disclosed:
            return False
        about, by = (owner, broker), (self.sources, shown)
        known = self._answers.known(about, by, now)
        if known is None:
            known = self.is_broker(broker, shown) and (coordinates or self.overlay.trusts(now, owner, broker, shown))
            self._answers.keep(about, by, self._until(now, shown), answer=known)
        return known

    def is_broker(self, broker: Principal, shown: Credentials = _NOTHING) -> bool:
        """Say whether a principal is a broker of the network, by what it shows now or by what it has `shown` before."""
        if broker == self.principal or self.admitted(broker):
            return True
        answers = (self._consider(broker, right, shown) for right in BROKER_RIGHTS)
        return bool(len(shown)) and all(settled(found.decision) for found in answers)

    def _reads_as_much(self, peer: Principal, of_type: TypeKey) -> bool:
        bag, library = self.disclosed.get(peer, _NOTHING), self.library
        by = self.sources, bag, library.changes, self.ring.version
        about, now = (peer, of_type), self.latest
        known = self._answers.known(about, by, now)
        if known is not None:
            return known
        until = self._until(now, bag, *library.below(of_type, now))
        return self._answers.keep(about, by, until, answer=self._ports.reads_as_much(peer, of_type))

    def _may_sign(self, broker: Principal, of_type: TypeKey, attributes: tuple[str, ...]) -> bool:
        bag, library = self.disclosed.get(broker, _NOTHING), self.library
        by, now = (self.sources, bag, library.changes), self.latest
        about = broker, of_type, attributes
        known = self._answers.known(about, by, now)
        if known is not None:
            return known
        until = self._until(now, bag, *library.below(of_type, now))
        answer = self.is_broker(broker) and self._ports.may_sign(*about)
        return self._answers.keep(about, by, until, answer=answer)

    def admitted(self, broker: Principal) -> bool:
        """Say whether another principal may be a broker of the network, by the credentials that it shows.

        The answer is cached until these credentials, policy or a date change.
        """
        bag = self.disclosed.get(broker, _NOTHING)
        by, now = self._network_facts(bag), self.latest
        known = self._answers.known(broker, by, now)
        if known is not None:
            return known
        answer = all(self._has(broker, right, bag) for right in BROKER_RIGHTS)
        return self._answers.keep(broker, by, self._until(now, bag), answer=answer)

    def _network_facts(self, bag: Credentials) -> tuple[object, ...]:
        """Return what rights on the network depend on besides dates; most policy changes do not affect it."""
        sources, owner = self.sources, self.settings.network.owner
        if self._facts_by is not sources:
            known_to_all = sources.credentials + sources.successors
            kept = frozenset(_about_network(sources.revocations.strike(known_to_all, owner)))
            facts = kept, sources.credentials.quorums, sources.others, sources.online, sources.revocations.ended
            self._facts = self._facts if facts == self._facts else facts
            self._facts_by, self._bag_facts = sources, {}
        known = self._bag_facts.get(id(bag))
        if known is None:
            if len(self._bag_facts) >= self.settings.limits.cache_entries:
                self._bag_facts.clear()
            # The value refers to the bag, so that no other bag gets the same id.
            known = self._bag_facts[id(bag)] = self._facts, bag, sources.revocations.strike(bag, owner)
        return known

    def rights_end(self, broker: Principal) -> datetime | None:
        """Return when a broker's rights on the network end at the latest; None if they do not expire."""
        bag = self.disclosed.get(broker, self.roster.credentials(broker))
        by = self._network_facts(bag)
        known = self._ends.get(broker)
        if known is None or known[0] != by or (known[1] is not None and known[1] < self.latest):
            if len(self._ends) >= self.settings.limits.cache_entries:
                self._ends.clear()
            known = self._ends[broker] = by, self._find_end(broker, bag)
        return known[1]

    def _find_end(self, broker: Principal, bag: Credentials) -> datetime | None:
        ends: list[datetime] = []
        for right in BROKER_RIGHTS:
            branches = self._consider(broker, right, bag).decision.restriction.branches
            last = [branch.when.validity.ends for branch in branches]
            known = [end for end in last if end is not None]
            if known and len(known) == len(last):
                ends.append(max(known))
        return min(ends, default=None)

    def _until(self, now: datetime, bag: Credentials, *types: VerifiedType) -> datetime | None:
        """Return the first date at which answers about a broker may change."""
        sources = self.sources
        certificates = (*sources.credentials, *sources.successors, *bag)
        shown = (valid_period(one, self.latest, sources.online) for one in certificates)
        return turning_point(chain(shown, (one.validity for one in types)), now)

    def _has(self, broker: Principal, right: Right, bag: Credentials) -> bool:
        found = self._consider(broker, right, bag)
        permitted = settled(found.decision)
        if broker != self.principal and (permitted or broker in self.disclosed):
            # A broker that has not shown credentials has not asked: nothing is refused. Nor has this broker.
            self.recorder.write(found.record)
        return permitted


def _about_network(credentials: Credentials) -> Iterator[str]:
    """Yield the certificates that can matter for a right on a network: all except rights on event types."""
    for certificate in credentials:
        statement = certificate.statement
        tag = statement.tag if isinstance(statement, Authorisation) else None
        if not isinstance(tag, tuple) or tag[0] != EVENT_TYPE:
            yield certificate.id
