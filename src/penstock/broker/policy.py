"""Policy evolution at a node: what owners say reaches its keeper, and what the keeper finds is enforced and passed on.

Policy events and acknowledgements travel through a `PolicyNetwork`, which serves to others what is kept here and brings
what they say. Time-stamps go from neighbour to neighbour, signed for each; on a fabric, straight from their owner. What
must not be forgotten is kept by a `Keep`: a broker that starts again knows immediately what was revoked.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Protocol, TypeAlias, cast

from penstock.broker.broker_roster import granting
from penstock.broker.completeness import Completeness, Completion
from penstock.broker.core import Core
from penstock.broker.evolution import (
    Acknowledge,
    Changed,
    Forked,
    Fresh,
    Output,
    PolicyKeeper,
    Resubscribe,
    Stale,
    Unusable,
)
from penstock.broker.overlay import route_request
from penstock.broker.policy_network import PolicyNetwork
from penstock.broker.policy_transport import Statement, unwrap
from penstock.codec.sexp import canonical, parse_canonical
from penstock.codec.sexp import head as sexp_head
from penstock.codec.wire import Wire
from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.guard.agreed_authority import AgreementReader
from penstock.model.events import TransitEvent
from penstock.model.names import TypeName
from penstock.model.principals import Principal
from penstock.trust.capabilities import Right, network_request
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import UnverifiedType
from penstock.trust.policy_events import PolicyEvent, Revoke
from penstock.trust.signed import SignedValue, UnverifiedValue, read_signed
from penstock.trust.stamps import Acknowledgement, CarriedStamp, TimeStamp

_Spoken: TypeAlias = UnverifiedValue[PolicyEvent] | UnverifiedValue[Acknowledgement]


class Keep(Protocol):
    """Where a node keeps what must not be forgotten about owners' policies."""

    def load(self) -> Iterable[bytes]:
        """Return all snapshots. Raises `FailedError`."""

    def save(self, owner: Principal, snapshot: bytes) -> None:
        """Put a snapshot in the place of the last one about an owner; return when it is safe. Raises `FailedError`."""

    def load_brokers(self) -> bytes:
        """Return the brokers that were seen; nothing if none were. Raises `FailedError`."""

    def save_brokers(self, seen: bytes) -> None:
        """Put the brokers that were seen in the place of those before. Raises `FailedError`."""


class Forgetful:
    """Keeps nothing: for tests, and for nodes that start from nothing."""

    def load(self) -> Iterable[bytes]:
        """Return nothing."""
        return ()

    def save(self, owner: Principal, snapshot: bytes) -> None:
        """Do nothing."""

    def load_brokers(self) -> bytes:
        """Return nothing."""
        return b""

    def save_brokers(self, seen: bytes) -> None:
        """Do nothing."""


@dataclass(slots=True)
class _Uninstalled:
    """Types of an owner that could not be installed, and the policy event that is not acknowledged for that reason."""

    number: int
    types: dict[TypeName, tuple[UnverifiedType, PenstockError]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Due:
    """A change that is to be enforced, and what its owner had revoked before."""

    changed: Changed
    revoked: frozenset[str]


class Policies:
    """See the module."""

    def __init__(self, core: Core, keep: Keep, network: PolicyNetwork) -> None:
        settings = core.settings
        self._core = core
        self._keep = keep
        self._network = network
        self._keeper = PolicyKeeper(
            settings.key,
            core.goes_by,
            skew=settings.trust.skew,
            strict=settings.trust.strict,
            verifier=core.certificates,
            limits=settings.limits,
        )
        self._followed: dict[Principal, Completeness] = {}
        self._stale: dict[Principal, str] = {}
        self._stamped: dict[Principal, SignedValue[TimeStamp]] = {}
        self._acknowledged: dict[Principal, SignedValue[Acknowledgement]] = {}
        #: when each neighbour's last stamp of an owner was signed
        self._handed: dict[tuple[Principal, Principal], datetime] = {}
        #: what is being enforced, or could not be because an answer was not recorded: each tick tries again
        self._due: dict[Principal, _Due] = {}
        self._agreements = AgreementReader()
        #: the settings' credentials, and who has issued them
        self._issued = Credentials(), frozenset[Principal]()
        self._saved_brokers: tuple[dict[Principal, Credentials], set[tuple[Principal, Principal]]] = {}, set()
        #: whether this broker has the rights of one, as far as it knows
        self._is_broker = True
        #: types that could not be installed, by owner: why, and up to which policy event
        self._uninstalled: dict[Principal, _Uninstalled] = {}
        network.attach(self)
        core.on_turn = self.tick
        core.rights_changed.append(self._notice_brokers)
        self._types_changed, core.library.changed = core.library.changed, self._look_again

    # Running.

    def start(self) -> None:
        """Take up what was kept, and follow the owners of all types that are here. Raises what the keep raises."""
        for owner in self._owners():
            self.follow(owner)
        for snapshot in self._keep.load():
            self._carry_out(self._keeper.restore(self._core.now(), snapshot))
        for owner in list(self._keeper.owners()):
            for event in self._keeper.log(owner):
                self._publish(event.unverified())
                self._completeness(owner).published(event)
        self._restore_brokers()
        self._check_myself()

    def follow(self, owner: Principal) -> None:
        """Ask for what an owner says about policy, now and from now on."""
        if owner in self._followed:
            return
        self._completeness(owner)
        self._network.follow(owner)
        learned = self._network.is_compared(owner)
        self._carry_out(self._keeper.follow(self._core.now(), owner, learned=learned))

    def tick(self) -> None:
        """Notice what has not come, and owners that are new here."""
        for owner in self._owners():
            self.follow(owner)
        self.compared()
        outputs, self._core.turn = self._keeper.tick(self._core.now())
        self._carry_out(outputs)
        for due in list(self._due.values()):
            self._enforce(due)
        for owner in list(self._uninstalled):
            self._install_again(owner)
        self._check_myself()
        self._look_at_brokers()
        turn = self._core.overlay.turns()
        if turn is not None and self._core.now() >= turn:
            self._core.trust_changed()

    def _look_again(self) -> None:
        """See before anything else whether a type that has come has an owner who is new here."""
        self._types_changed()
        self._core.turn = self._core.now()

    def _owners(self) -> set[Principal]:
        return {key.owner for key in self._core.library} | {self._core.settings.network.owner}

    def _completeness(self, owner: Principal) -> Completeness:
        known = self._followed.get(owner)
        if known is None:
            trust = self._core.settings.trust
            known = self._followed[owner] = Completeness(owner, skew=trust.skew, limits=self._core.settings.limits)
        return known

    # What comes.

    def hand_in(self, client: Principal, signed: bytes) -> None:
        """Take what an owner has signed from whoever brings it: a policy event, or a time-stamp.

        Raises `MalformedError`, `RefusedError`, `LimitError` (`evolution.*`).
        """
        written = parse_canonical(signed, limits=self._core.settings.limits)
        now = self._core.now()
        if isinstance(written, tuple) and sexp_head(written[1:2][0] if written[1:] else b"") == TimeStamp.HEAD:
            stamp = read_signed(written, TimeStamp)
            self._let_in(client, stamp.value.owner)
            self._stamp(now, stamp.value.owner, CarriedStamp(stamp))
            self._network.stamped(stamp.verify())
        else:
            event = read_signed(written, PolicyEvent)
            self._let_in(client, event.value.owner)
            verified = event.verify()
            # Before it is enforced here, since that takes time.
            self._publish(event)
            self.take_events(now, (verified,))
            if client == event.value.owner:
                self._carry_out(self._keeper.learned(now, client))

    def _let_in(self, client: Principal, owner: Principal) -> None:
        if owner not in self._followed and client != owner:
            raise RefusedError(
                "evolution.not-followed",
                f"this broker serves nothing of {owner.short}",
                hint="hand it to a broker that does, or connect as the owner",
            )
        self.follow(owner)

    def heard_stamp(self, peer: Principal, octets: bytes) -> None:
        """Take a time-stamp that a neighbour hands on. One that does not count is passed over, and noted."""
        try:
            carried = CarriedStamp.from_sexp(parse_canonical(octets, limits=self._core.settings.limits))
            self._stamp(self._core.now(), peer, carried)
        except (RefusedError, MalformedError) as error:
            self._core.note(error)

    def linked(self, peer: Principal) -> None:
        """Hand on the stamps of all owners to a neighbour to whom there is a new link."""
        for owner in self._stamped:
            self._handed.pop((owner, peer), None)
            self._hand_on_to(peer, owner)

    def arrived(self, now: datetime, event: TransitEvent) -> None:
        """Take a statement that came as an event. One that does not count is passed over, and noted."""
        try:
            match unwrap(event):
                case UnverifiedValue(PolicyEvent()) as told:
                    self.take_events(now, (cast("UnverifiedValue[PolicyEvent]", told).verify(),))
                case UnverifiedValue(Acknowledgement()) as told:
                    self.take_acknowledgement(now, cast("UnverifiedValue[Acknowledgement]", told).verify())
                case CarriedStamp(stamp):
                    # Nobody stands between its owner and this broker who would have to sign for it.
                    self._stamp(now, stamp.value.owner, CarriedStamp(stamp))
        except (RefusedError, MalformedError) as error:
            self._core.note(error)

    def take_events(self, now: datetime, events: Sequence[SignedValue[PolicyEvent]]) -> None:
        """Take in verified events of one owner that is followed. Raises `FailedError` if they cannot be kept."""
        owner = events[0].value.owner
        outputs = self._keeper.take(now, events)
        if outputs:
            # Before anything comes of it, and before anybody is told: a broker that starts again knows as much.
            self._save(owner)
        for event in events:
            self._completeness(owner).published(event)
        self._carry_out(outputs)

    def take_acknowledgement(self, now: datetime, acknowledgement: SignedValue[Acknowledgement]) -> None:
        """Take in a verified acknowledgement of a broker that goes by what its owner says; no other takes space."""
        value, core = acknowledgement.value, self._core
        if value.owner in self._followed and core.goes_by(now, value.owner, value.broker):
            if value.broker != core.principal:
                core.roster.heard_of(now, value.broker)
            self._followed[value.owner].acknowledged(now, acknowledgement)

    def _stamp(self, now: datetime, sender: Principal, carried: CarriedStamp) -> None:
        outputs = self._keeper.stamp(now, sender, carried)
        stamp = carried.stamp.verify()
        owner = stamp.value.owner
        self._completeness(owner).stamped(stamp)
        self._save(owner)
        self._carry_out(outputs)
        known = self._stamped.get(owner)
        if known is None or known.value.time < stamp.value.time:
            self._stamped[owner] = stamp
            for peer in self._network.neighbours():
                if peer != sender:
                    self._hand_on_to(peer, owner)

    def _hand_on_to(self, peer: Principal, owner: Principal) -> None:
        stamp = self._stamped[owner]
        handed = self._handed.get((owner, peer))
        if handed is None or handed < stamp.value.time:
            carried = self._keeper.hand_on(self._core.now(), owner, peer)
            if carried is not None:
                self._handed[owner, peer] = stamp.value.time
                self._network.hand_on(peer, canonical(carried.to_sexp()))

    # What follows.

    def _carry_out(self, outputs: Iterable[Output]) -> None:
        core = self._core
        # Who is to stop stops first: what comes before that may fail.
        for output in sorted(outputs, key=lambda output: not isinstance(output, Stale)):
            match output:
                case Changed(owner):
                    self._enforce(self._begun(output, self._due.get(owner)))
                case Acknowledge(acknowledgement):
                    self._acknowledged[acknowledgement.value.owner] = acknowledgement
                    self._publish(acknowledgement.unverified())
                    self._completeness(acknowledgement.value.owner).acknowledged(core.now(), acknowledgement)
                case Stale(owner, reason):
                    self._stale[owner] = str(reason)
                    core.local.suspend(owner)
                case Fresh(owner):
                    self._stale.pop(owner, None)
                    self._resume(owner)
                case Resubscribe(owner):
                    self.follow(owner)
                    self._network.ask_again(owner)
                case Forked(owner, fork):
                    core.note(RefusedError("evolution.forked", f"{owner.short} has signed two policies at once"))
                    for event in fork.events:
                        # Others may have only one of the two.
                        self._publish(event.unverified())
                case Unusable(owner, number, code, _):
                    core.note(RefusedError(code, f"policy event {number} of {owner.short} cannot be applied"))
        core.turn = self._keeper.turns()

    def _begun(self, changed: Changed, due: _Due | None) -> _Due:
        """Return what is to be enforced: the change, and what has been left of earlier ones."""
        if due is None:
            return _Due(changed, self._core.sources.revocations.by_owner.get(changed.owner, frozenset()))
        left = [one for one in due.changed.installed if changed.state.types.get(one.definition.name) == one]
        installed, removed = (*left, *changed.installed), (*due.changed.removed, *changed.removed)
        return _Due(replace(changed, installed=installed, removed=removed), due.revoked)

    def _enforce(self, due: _Due) -> None:
        """Go by another policy: due until it is done. Raises what the recorder's sink raises."""
        core, changed = self._core, due.changed
        self._due[changed.owner] = due
        for name in changed.removed:
            core.settle(core.local.change(core.now(), removed=[name]))
        whole = self._install(changed)
        self.settings_changed()
        self._record(changed, changed.state.revoked - due.revoked)
        self._due.pop(changed.owner, None)
        self._carry_out(self._keeper.enforced(core.now(), changed.owner, changed.number, whole=whole))

    def _install(self, changed: Changed) -> bool:
        """Install the types of a change, and those that could not be installed before; say whether all are."""
        known = changed.state.types
        before = self._uninstalled.pop(changed.owner, _Uninstalled(0)).types
        left = _Uninstalled(changed.number)
        wanted = [one for one, _ in before.values() if known.get(one.definition.name) == one]
        for definition in dict.fromkeys((*wanted, *changed.installed)):
            name = definition.definition.name
            try:
                self._core.settle(self._core.local.change(self._core.now(), installed=[definition]))
            except PenstockError as error:
                left.types[name] = definition, error
                if name not in before or before[name][1].code != error.code:
                    self._core.note(error)
        if left.types:
            self._uninstalled[changed.owner] = left
        return not left.types

    def _install_again(self, owner: Principal) -> None:
        """Install what could not be installed: what a type extends may have come. Then all can be acknowledged."""
        number = self._uninstalled[owner].number
        if self._install(Changed(owner, number, self._keeper.state(owner))):
            self._carry_out(self._keeper.enforced(self._core.now(), owner, number))

    def settings_changed(self) -> None:
        """Go by what the settings say now, and all owners."""
        core, keeper = self._core, self._keeper
        credentials = core.settings.credentials + keeper.credentials()
        logs = ((owner, keeper.log(owner)) for owner in keeper.owners())
        revision = " ".join(f"{owner.short}#{log[-1].value.number}" for owner, log in logs if log)
        core.change_sources(
            replace(
                core.sources,
                credentials=credentials,
                revocations=keeper.revocations(),
                revision=revision,
                agreements=core.settings.agreements + self._agreements.read(keeper.announced()),
                policies=core.settings.policies,
            )
        )
        self._check_myself()
        for problem in core.sources.agreements.unread.values():
            core.note(RefusedError(problem.code, problem.message))

    def _record(self, changed: Changed, revoked: frozenset[str]) -> None:
        """Write down what was revoked; each event that did so by itself."""
        for event in self._keeper.log(changed.owner):
            ids = {one for change in event.value.changes if isinstance(change, Revoke) for one in change.certificates}
            if ids & revoked:
                order = f"{changed.owner}/{event.value.number}"
                self._core.recorder.revoked(changed.owner, order, tuple(sorted(ids & revoked)), event.value.time)

    def _save(self, owner: Principal) -> None:
        self._keep.save(owner, self._keeper.snapshot(self._core.now(), owner))

    def _publish(self, statement: _Spoken) -> None:
        """Send a statement to all brokers that follow its owner."""
        self.follow(statement.value.owner)
        self._network.publish(statement)

    # This broker.

    @property
    def is_broker(self) -> bool:
        """Whether this broker has the rights of one, as far as it knows: without them it delivers nothing."""
        return self._is_broker

    def _check_myself(self) -> None:
        """Deliver nothing while this broker may not be one: its right was revoked, or is over."""
        core, coordinator = self._core, self._core.settings.network.owner
        before, self._is_broker = self._is_broker, core.admitted(core.principal)
        if self._is_broker:
            if not before:
                self._resume(coordinator)
        elif before:
            core.local.suspend(coordinator)
            core.note(
                RefusedError(
                    "node.not-broker",
                    "this broker does not have the rights of a broker on its network: it delivers nothing",
                    hint="let the coordinator issue a certificate with `connect` and `broker`, or stop this broker",
                )
            )

    def _resume(self, owner: Principal) -> None:
        if owner not in self._stale and (self._is_broker or owner != self._core.settings.network.owner):
            self._core.local.resume(owner)

    def _state_of(self, owner: Principal) -> str:
        if not self._is_broker and owner == self._core.settings.network.owner:
            return "not-broker"
        return "unreconciled" if self._core.local.held else self._stale.get(owner, _FRESH)

    # What the network serves.

    def owners(self) -> Iterable[Principal]:
        """Return the owners whose policy is kept here."""
        return tuple(self._followed)

    def carries(self, owner: Principal) -> bool:
        """Say whether an owner's policy is kept here: for types that are here, or to be served to other brokers.

        An owner without types here is known by a certificate in the settings that lets this broker carry its types, or
        because the operator lets all brokers do so. An unknown owner takes no space.
        """
        if owner in self._followed:
            return self._keeper.follows(owner)
        core, limits = self._core, self._core.settings.limits
        credentials = core.settings.credentials
        if self._issued[0] is not credentials:
            self._issued = credentials, frozenset(one.statement.issuer for one in credentials)
        named = owner in self._issued[1]
        if not named and not core.settings.trust.unsafe_open.covers(owner):
            return False
        # Owners of types that come later must find room.
        if len(self._followed) >= limits.policy_owners // 2 or not core.goes_by(core.now(), owner, core.principal):
            return False
        self.follow(owner)
        return True

    def top(self, owner: Principal) -> SignedValue[PolicyEvent] | None:
        """Return the owner's event with the highest number that is known."""
        return self._keeper.top(owner)

    def applied(self, owner: Principal) -> int:
        """Return the number of the owner's last event that was applied."""
        log = self._keeper.log(owner)
        return log[-1].value.number if log else 0

    def has(self, owner: Principal, number: int, digest: bytes) -> bool:
        """Say whether an event of the owner would change nothing, by its number and digest."""
        return self._keeper.has(owner, number, digest)

    def events(self, owner: Principal) -> Sequence[SignedValue[PolicyEvent]]:
        """Return the owner's events from the last checkpoint on."""
        return self._keeper.log(owner)

    def fork(self, owner: Principal) -> Sequence[SignedValue[PolicyEvent]]:
        """Return the events that show that an owner has forked its policy; none if it has not."""
        return self._keeper.fork(owner)

    def acknowledgements(self, owner: Principal) -> Iterable[SignedValue[Acknowledgement]]:
        """Return the last acknowledgement of each broker to an owner."""
        return self._completeness(owner).statements()

    def statements(self) -> Iterator[Statement]:
        """Yield what this broker knows of all owners' policies, and has acknowledged: for others who lack it."""
        for owner in self._followed:
            yield from (event.unverified() for event in self._keeper.log(owner))
            if owner in self._stamped:
                yield CarriedStamp(self._stamped[owner].unverified())
            if owner in self._acknowledged:
                yield self._acknowledged[owner].unverified()

    def acknowledged(self, owner: Principal, broker: Principal) -> datetime | None:
        """Return when the last acknowledgement of a broker to an owner was signed."""
        return self._completeness(owner).last(broker)

    def compared(self) -> None:
        """Deliver types of owners of whom it is known by now how far their chains go."""
        for owner in self._keeper.unlearned():
            if self._network.is_compared(owner):
                self._carry_out(self._keeper.learned(self._core.now(), owner))

    # What owners and operators look at.

    def told(self, owner: Principal, after: int) -> dict[str, Wire]:
        """Return how far an owner's policy is here, and its events after a number: as many as fit into an answer."""
        log = self._keeper.log(owner)
        events: list[Wire] = []
        room = self._core.settings.limits.route_block_bytes
        for event in log:
            octets = event.to_bytes() if event.value.number > after else b""
            room -= len(octets)
            if events and room < 0:
                break
            events += [octets] if octets else []
        return {
            "number": log[-1].value.number if log else 0,
            "known": self._keeper.known(owner),
            "state": self._state_of(owner),
            "events": events,
        }

    def status(self) -> dict[str, Wire]:
        """Return, by owner, how far the policy is here and with whom, as plain data."""
        return {str(owner): self._status_of(owner) for owner in sorted(self._followed)}

    def completion(self, owner: Principal, number: int) -> Completion:
        """Say how far a policy event is with all brokers that go by what its owner says. Raises `RefusedError`."""
        core, now = self._core, self._core.now()
        self._judge(now, owner)
        trusted = core.roster.trusted(owner)
        if core.goes_by(now, owner, core.principal):
            trusted |= {core.principal}
        return self._completeness(owner).of(now, number, trusted, self._stopping(now, owner))

    def _stopping(self, now: datetime, owner: Principal) -> dict[Principal, datetime]:
        """Return the brokers that are trusted no longer and may still deliver, and when each has stopped by itself.

        It stops where the owner's stamps are over, and where the coordinator's are.
        """
        stops: dict[Principal, datetime] = {}
        stamping = [self._completeness(one) for one in {owner, self._core.settings.network.owner}]
        for broker, ended in self._core.roster.ended(owner).items():
            found = [stop for one in stamping if (stop := one.stops(broker, ended)) is not None]
            if found and now <= min(found):
                stops[broker] = min(found)
        return stops

    def _notice_brokers(self) -> None:
        """Record brokers that are new: they show something before a link to them is announced."""
        core, now = self._core, self._core.now()
        new = [broker for broker in core.disclosed if broker not in core.roster and core.admitted(broker)]
        for broker in new:
            core.roster.heard_of(now, broker, core.disclosed[broker])
        for owner in self._followed if new else ():
            self._judge(now, owner, new)

    def _look_at_brokers(self) -> None:
        """Record who is in the network and who is away, and forget those whose rights are over and who have stopped."""
        core, now = self._core, self._core.now()
        router = core.router
        present = {*(core.disclosed if router.on_fabric else router.view.links)} - {core.principal}
        for broker in filter(core.admitted, present):
            core.roster.saw(now, broker, core.disclosed.get(broker, Credentials()))
        core.roster.gone(now, present)
        for owner in self._followed:
            self._judge(now, owner)
        coordinator = core.settings.network.owner
        stopping = {broker for owner in self._followed for broker in self._stopping(now, owner)}
        for broker in core.roster.ended(coordinator).keys() - stopping:
            core.roster.forget(broker)
            for known in self._followed.values():
                known.forget(broker)
        self._save_brokers()

    def _restore_brokers(self) -> None:
        core, now = self._core, self._core.now()
        kept = self._keep.load_brokers()
        for said in core.roster.restore(now, kept, core.read_bag) if kept else ():
            self._completeness(said.value.owner).acknowledged(now, said)

    def _save_brokers(self) -> None:
        """Write down who was seen, if that has changed: who they are, what they show, whether they go by stamps."""
        roster, followed = self._core.roster, self._followed
        stopping = {(owner, one) for owner in followed for one in roster if followed[owner].goes_by_stamps(one)}
        facts = {one: roster.credentials(one) for one in roster}, stopping
        if facts != self._saved_brokers:
            said = (one for known in followed.values() for one in known.statements())
            self._keep.save_brokers(roster.to_bytes(one for one in said if one.value.broker in roster))
            self._saved_brokers = facts

    def _judge(self, now: datetime, owner: Principal, brokers: Iterable[Principal] | None = None) -> None:
        self._core.roster.judge(now, owner, lambda broker: self._core.goes_by(now, owner, broker), brokers)

    def _status_of(self, owner: Principal) -> dict[str, Wire]:
        now, log = self._core.now(), self._keeper.log(owner)
        stamp = self._stamped.get(owner)
        age = None if stamp is None else (now - stamp.value.time) / timedelta(seconds=1)
        until = None if stamp is None else stamp.value.until
        events: list[Wire] = [self._progress_of(owner, event) for event in log[-_SHOWN:]]
        return {
            "number": log[-1].value.number if log else 0,
            "state": self._state_of(owner),
            "stamp age": age,
            "stamp until": until,
            "events": events,
            "brokers": self._brokers_of(owner),
            "not installed": self._not_installed(owner),
        }

    def _brokers_of(self, owner: Principal) -> dict[str, Wire]:
        """Return the other brokers that are waited for: why, until when at the latest, and how to end it."""
        core, known = self._core, self._completeness(owner)
        waited = {*core.roster.trusted(owner), *self._stopping(core.now(), owner)}
        shown = [certificate for broker in waited for certificate in core.roster.credentials(broker)]
        network = core.settings.network
        request = network_request(network, Right.BROKER) if owner == network.owner else route_request(owner)
        grants = granting((*core.sources.credentials, *shown), waited, request)
        found: dict[str, Wire] = {}
        for broker in sorted(waited):
            seen = core.roster.get(broker)
            if seen is not None:
                found[str(broker)] = {
                    "since": seen.since,
                    "away": seen.away,
                    "rights end": seen.trusted.get(owner) or core.rights_end(broker),
                    "stamped": known.goes_by_stamps(broker),
                    "certificates": [*grants[broker]],
                }
        return found

    def _not_installed(self, owner: Principal) -> dict[str, Wire]:
        left = self._uninstalled.get(owner, _Uninstalled(0)).types
        return {f"{name.name}@{name.version}": f"{error.message} [{error.code}]" for name, (_, error) in left.items()}

    def _progress_of(self, owner: Principal, event: SignedValue[PolicyEvent]) -> dict[str, Wire]:
        found = self.completion(owner, event.value.number)
        brokers: dict[str, Wire] = {
            str(one.broker): {"progress": str(one.progress), "at": one.at} for one in found.brokers
        }
        revokes = sum(len(change.certificates) for change in event.value.changes if isinstance(change, Revoke))
        return {
            "number": event.value.number,
            "time": event.value.time,
            "revokes": revokes,
            "complete": found.at,
            "brokers": brokers,
        }


_FRESH: Final = "fresh"
#: policy events that the status shows of each owner
_SHOWN: Final = 16
