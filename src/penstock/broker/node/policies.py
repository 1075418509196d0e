"""Policy evolution at a node: pass owners' statements to the keeper, and enforce and forward what follows.

Policy events and acknowledgements travel through a `PolicyNetwork`, which serves other brokers from here and passes
in their statements. Time-stamps go from neighbour to neighbour, signed for each; on a fabric, directly from their
signer. A `Keep` stores what must survive a restart, so a broker that starts again knows immediately what was revoked.

A change is enforced immediately and stored off the event loop. It is acknowledged, and its owner answered, when it is
safe on the disk. A broker that stamps for the owner stamps it only then. A stamp is stored with the next change, or
some seconds later: a broker that loses the last one uses an earlier one, which expires sooner. Only the first stamp
is waited for, with the acknowledgement that this broker uses stamps.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Protocol, TypeAlias, cast

from penstock.broker.core.core import Core
from penstock.broker.evolution.completeness import Completeness, Completion, granting
from penstock.broker.evolution.policy_keeper import (
    Acknowledge,
    Changed,
    Forked,
    Fresh,
    Output,
    PolicyKeeper,
    Resubscribe,
    Stale,
    StampIssuer,
    UnusableEvent,
)
from penstock.broker.evolution.statements import PolicyBook, PolicyNetwork, Statement, unwrap
from penstock.broker.node.machine import Background, Machine
from penstock.broker.routing.overlay import route_request
from penstock.codec.sexp import canonical, parse_canonical
from penstock.codec.sexp import head as sexp_head
from penstock.codec.wire import Wire
from penstock.errors import FailedError, MalformedError, PenstockError, RefusedError
from penstock.guard.agreements import AgreementReader
from penstock.model.events import TransitEvent
from penstock.model.names import TypeName
from penstock.model.principals import Principal
from penstock.trust.capabilities import Right, network_request
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import UnverifiedType
from penstock.trust.policy_events import Acknowledgement, CarriedStamp, PolicyEvent, Revoke, TimeStamp
from penstock.trust.refusals import RevokedCertificate
from penstock.trust.signed import SignedValue, UnverifiedValue, read_signed
from penstock.trust.validity import earliest

# ----------------------------------------------------------------------------------------------------------------------
# Storing what must survive a restart, off the event loop: a slow disk delays only those that need the confirmation.
#
# The background writes snapshots one after the other, so those of an owner are stored in order. Callers are notified on
# the event loop when one is safe. A snapshot is taken when its turn comes: all changes while one is being written
# become one more.


Told: TypeAlias = Callable[[PenstockError | None], None]
"""Receives None when something is safe on the disk, or the error."""


class Keep(Protocol):
    """Stores what must survive a restart: owners' policies, brokers, and issuers' validity statements."""

    def load(self) -> Iterable[bytes]:
        """Return all snapshots. Raises `FailedError`."""

    def save(self, owner: Principal, snapshot: bytes) -> None:
        """Replace an owner's snapshot; return when it is safe. Raises `FailedError`."""

    def load_brokers(self) -> bytes:
        """Return the brokers that were seen; empty if none were. Raises `FailedError`."""

    def save_brokers(self, seen: bytes) -> None:
        """Replace the brokers that were seen. Raises `FailedError`."""

    def load_statements(self) -> Iterable[bytes]:
        """Return the validity statements of all issuers. Raises `FailedError`."""

    def save_statements(self, issuer: Principal, snapshot: bytes) -> None:
        """Replace an issuer's validity statements, or remove them (empty). Raises `FailedError`."""


class Forgetful:
    """Stores nothing, for tests and for nodes without state. Saving takes no time and needs no thread."""

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

    def load_statements(self) -> Iterable[bytes]:
        """Return nothing."""
        return ()

    def save_statements(self, issuer: Principal, snapshot: bytes) -> None:
        """Do nothing."""


class SnapshotWriter:
    """Writes snapshots in the background by `save`. `snapshot` returns the current one of an owner or issuer.

    Without a `background`, saving takes no time.
    """

    def __init__(
        self,
        save: Callable[[Principal, bytes], None],
        snapshot: Callable[[Principal], bytes],
        background: Background | None = None,
    ) -> None:
        self._save = save
        self._background = background
        self._snapshot = snapshot
        #: the callers that wait, by owner, in the order in which owners are written
        self._waiting: dict[Principal, list[Told]] = {}
        self._writing = False
        self._planned = False
        self._idle = asyncio.Event()

    def save(self, owner: Principal, told: Told | None = None) -> None:
        """Store an owner's snapshot; the caller is notified once, when it is safe or has failed."""
        self._waiting.setdefault(owner, []).extend([] if told is None else [told])
        if self._background is None:
            self._go_on()
        elif not self._planned:
            # Requests of one turn of the loop are written together.
            self._planned = True
            asyncio.get_running_loop().call_soon(self._begin)

    def __contains__(self, owner: Principal) -> bool:
        """Return whether a snapshot waits to be written."""
        return owner in self._waiting

    def _begin(self) -> None:
        self._planned = False
        self._go_on()

    async def finish(self, patience: float) -> None:
        """Wait until everything is written, at most `patience` seconds. Raises `FailedError`."""
        try:
            async with asyncio.timeout(patience):
                while self._writing or self._waiting:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            raise FailedError(
                "file.unwritable",
                "policy or validity statements were not written to the disk in time",
                hint="check the disk; what was not acknowledged arrives again from the network",
            ) from None

    def _go_on(self) -> None:
        while self._waiting and not self._writing:
            owner = next(iter(self._waiting))
            waiting = self._waiting.pop(owner)
            self._writing = True
            self._write(owner, waiting)

    def _write(self, owner: Principal, waiting: list[Told]) -> None:
        def work() -> None:
            self._save(owner, snapshot)

        def done(error: BaseException | None) -> None:
            self._writing = False
            found = error if error is None or isinstance(error, PenstockError) else _unwritable(error)
            for told in waiting:
                told(found)
            self._go_on()
            self._idle.set()

        snapshot = self._snapshot(owner)
        if self._background is None:
            work()
            done(None)
        else:
            self._background(work, done)


def _unwritable(error: BaseException) -> FailedError:
    return FailedError("file.unwritable", f"a snapshot cannot be written to the disk: {type(error).__name__}")


# ----------------------------------------------------------------------------------------------------------------------
# The policies of a node.


_Spoken: TypeAlias = UnverifiedValue[PolicyEvent] | UnverifiedValue[Acknowledgement]


@dataclass(slots=True)
class _Uninstalled:
    """An owner's types that could not be installed, and the policy event that is therefore not acknowledged."""

    number: int
    types: dict[TypeName, tuple[UnverifiedType, PenstockError]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Due:
    """A change to enforce, and the owner's revocations before it."""

    changed: Changed
    revoked: frozenset[str]


class NodePolicies:
    """The policies of a node. `network` creates their `PolicyNetwork`, of which they are the `PolicyBook`."""

    def __init__(
        self, core: Core, keep: Keep, network: Callable[[PolicyBook], PolicyNetwork], machine: Machine
    ) -> None:
        settings = core.settings
        self._core = core
        self._keep = keep
        self._writer = SnapshotWriter(
            keep.save,
            lambda owner: self._keeper.snapshot(core.now(), owner),
            None if isinstance(keep, Forgetful) else machine.background(),
        )
        self._network = network(self)
        self._keeper = PolicyKeeper(
            settings.key,
            core.goes_by,
            stampers=core.overlay.stampers,
            skew=settings.trust.skew,
            strict=settings.trust.strict,
            verifier=core.certificates,
            limits=settings.limits,
        )
        self._followed: dict[Principal, Completeness] = {}
        self._stale: dict[Principal, str] = {}
        self._issuer = StampIssuer(settings.key, settings.stamps, self._safe_head, settings.trust.skew)
        self._issuer_turn: datetime | None = None
        self._stamping = False
        #: owners whose heads were compared with neighbours since the start
        self._compared: set[Principal] = set()
        #: owners with changes to store that nobody waits for, and the count of ticks
        self._unsaved: set[Principal] = set()
        self._ticks = 0
        #: acknowledgements whose snapshot could not be stored: each tick tries again
        self._unsafe: dict[Principal, list[SignedValue[Acknowledgement]]] = {}
        #: by owner, the last event that is safe on the disk
        self._safe: dict[Principal, int] = {}
        #: by owner, signer and neighbour, the time of the last stamp that was sent to it
        self._handed: dict[tuple[Principal, Principal, Principal], datetime] = {}
        #: owners for which this broker does not stamp although it may, as reported to operators
        self._waited_for: set[Principal] = set()
        self._acknowledged: dict[Principal, SignedValue[Acknowledgement]] = {}
        #: changes that are being enforced, or could not be because a decision was not recorded: each tick tries again
        self._due: dict[Principal, _Due] = {}
        self._agreements = AgreementReader(core.settings.limits.cache_entries)
        #: the settings' credentials, and their issuers
        self._issued = Credentials(), frozenset[Principal]()
        self._saved_brokers: tuple[dict[Principal, Credentials], set[tuple[Principal, Principal]]] = {}, set()
        #: whether this broker has the rights of a broker, as far as it knows
        self._is_broker = True
        #: types that could not be installed, by owner
        self._uninstalled: dict[Principal, _Uninstalled] = {}
        #: by owner, its last policy event, and when each certificate was revoked by those up to it
        self._revoked: dict[Principal, tuple[int, dict[str, datetime]]] = {}

    # Running.

    def start(self) -> None:
        """Restore the stored policies, and follow the owners of all installed types. Raises what the keep raises."""
        for owner in self._owners():
            self.follow(owner)
        now = self._core.now()
        for snapshot in self._keep.load():
            # No state was lost: an owner without stored policy is new.
            self._issuer.begins = True
            self._carry_out(self._keeper.restore(now, snapshot))
        for owner in list(self._keeper.owners()):
            log = self._keeper.log(owner)
            if log:
                self._issuer.heard(owner)
                self._safe[owner] = log[-1].value.number
            for event in log:
                self._publish(event.unverified())
                self._completeness(owner).published(event)
            for signer in self._keeper.signers(owner):
                self._completeness(owner).stamps_for(signer)
            for stamp in self._keeper.kept_stamps(owner):
                self._issuer.stamped(stamp.value)
        self._restore_brokers()
        self._check_myself()

    def begin_stamps(self) -> None:
        """Sign time-stamps from now on: everything that a fabric retains has arrived."""
        self._stamping = True
        self._sign_stamps()

    async def stop(self, patience: float) -> None:
        """Store unsaved changes; report it to operators if that takes longer than `patience` seconds."""
        self._save_rest()
        try:
            await self._writer.finish(patience)
        except PenstockError as error:
            self._core.note(error)

    def follow(self, owner: Principal) -> None:
        """Follow an owner: request its statements about policy, now and in future."""
        if owner in self._followed:
            return
        self._completeness(owner)
        self._network.follow(owner)
        learned = self._network.is_compared(owner)
        self._carry_out(self._keeper.follow(self._core.now(), owner, learned=learned))

    def tick(self) -> None:
        """Process what is due, and follow new owners."""
        for owner in self._owners():
            self.follow(owner)
        self.compared()
        outputs, self._core.turn = self._keeper.tick(self._core.now())
        self._carry_out(outputs)
        for due in list(self._due.values()):
            self._enforce(due)
        for acknowledgements in list(self._unsafe.values()):
            self._unsafe.pop(acknowledgements[0].value.owner)
            for acknowledgement in acknowledgements:
                self._acknowledge(acknowledgement)
        for owner in list(self._uninstalled):
            self._install_again(owner)
        self._check_myself()
        self._look_at_brokers()
        turn = self._core.overlay.turns()
        if turn is not None and self._core.now() >= turn:
            self._core.trust_changed()
        self._sign_stamps()
        self._ticks += 1
        if self._ticks % _LAZINESS == 0:
            self._save_rest()

    def _owners(self) -> set[Principal]:
        return {key.owner for key in self._core.library} | {self._core.settings.network.owner}

    def _completeness(self, owner: Principal) -> Completeness:
        known = self._followed.get(owner)
        if known is None:
            trust = self._core.settings.trust
            known = self._followed[owner] = Completeness(owner, skew=trust.skew, limits=self._core.settings.limits)
        return known

    # Statements.

    def hand_in(self, client: Principal, signed: bytes, told: Told | None = None) -> None:
        """Process an owner's policy event or time-stamp that a client brings.

        The client is notified when a policy event is safe on the disk, or of the error. Raises `MalformedError`,
        `RefusedError`, `LimitError` (`evolution.*`).
        """
        written = parse_canonical(signed)
        now = self._core.now()
        if isinstance(written, tuple) and sexp_head(written[1:2][0] if written[1:] else b"") == TimeStamp.HEAD:
            stamp = read_signed(written, TimeStamp)
            self._let_in(client, stamp.value.owner)
            self._check_stamper(now, stamp.value)
            self._stamp(now, stamp.value.owner, CarriedStamp(stamp))
            self._network.stamped(stamp.verify())
            if told is not None:
                told(None)
        else:
            event = read_signed(written, PolicyEvent)
            self._let_in(client, event.value.owner)
            verified = event.verify()
            # Before it is enforced here, because that takes time.
            self._publish(event)
            self.take_events(now, (verified,), told)
            if client == event.value.owner:
                self._carry_out(self._keeper.learned(now, client))

    def _check_stamper(self, now: datetime, stamp: TimeStamp) -> None:
        """Refuse a client's stamp that does not count. A neighbour's is held, as credentials may arrive later."""
        if stamp.by is not None and stamp.by not in self._core.overlay.stampers(now, stamp.owner):
            raise RefusedError(
                "evolution.not-stamper",
                f"{stamp.by.short} may not sign time-stamps for {stamp.owner.short}",
                hint="let the owner grant `stamp` on all its types: `penstock cert issue --right stamp`",
            )

    def _let_in(self, client: Principal, owner: Principal) -> None:
        if owner not in self._followed and client != owner:
            raise RefusedError(
                "evolution.not-followed",
                f"this broker does not follow {owner.short}",
                hint="use a broker that serves the owner's types, or connect as the owner",
            )
        self.follow(owner)

    def heard_stamp(self, peer: Principal, data: bytes) -> None:
        """Process a time-stamp that a neighbour forwards. An invalid one is ignored and reported."""
        try:
            carried = CarriedStamp.from_sexp(parse_canonical(data))
            self._stamp(self._core.now(), peer, carried)
        except (RefusedError, MalformedError) as error:
            self._core.note(error)

    def linked(self, peer: Principal) -> None:
        """Forward the stamps of all owners over a new link."""
        for key in [key for key in self._handed if key[2] == peer]:
            del self._handed[key]
        for owner in self._keeper.owners():
            self._hand_on(owner, [peer])

    def arrived(self, now: datetime, event: TransitEvent) -> None:
        """Process a statement that arrived as an event. An invalid one is ignored and reported."""
        try:
            match unwrap(event):
                case UnverifiedValue(PolicyEvent()) as told:
                    self.take_events(now, (cast("UnverifiedValue[PolicyEvent]", told).verify(),))
                case UnverifiedValue(Acknowledgement()) as told:
                    self.take_acknowledgement(now, cast("UnverifiedValue[Acknowledgement]", told).verify())
                case CarriedStamp(stamp):
                    # It comes directly from its signer, so no neighbour has to sign it.
                    self._stamp(now, stamp.value.owner, CarriedStamp(stamp))
        except (RefusedError, MalformedError) as error:
            self._core.note(error)

    def take_events(self, now: datetime, events: Sequence[SignedValue[PolicyEvent]], told: Told | None = None) -> None:
        """Process verified events of a followed owner. The caller is notified when they are safe, or of the error."""
        owner, number = events[0].value.owner, events[-1].value.number
        outputs = self._keeper.take(now, events)
        if outputs:
            self._unsaved.add(owner)
        self._issuer.heard(owner)
        for event in events:
            self._completeness(owner).published(event)
        self._carry_out(outputs)
        if told is not None and number <= self._safe.get(owner, 0):
            told(None)
        elif told is not None or owner in self._unsaved:
            # After a restart the broker must know them, also those that it cannot enforce yet.
            self._save(owner, told)
        self._sign_stamps()

    def take_acknowledgement(self, now: datetime, acknowledgement: SignedValue[Acknowledgement]) -> None:
        """Process a verified acknowledgement, if its broker follows the owner. Others take no space."""
        value, core = acknowledgement.value, self._core
        if value.owner in self._followed and core.goes_by(now, value.owner, value.broker):
            if value.broker != core.principal:
                core.roster.heard_of(now, value.broker)
            self._followed[value.owner].acknowledged(now, acknowledgement)

    def _stamp(self, now: datetime, sender: Principal, carried: CarriedStamp) -> None:
        outputs = self._keeper.stamp(now, sender, carried)
        stamp = carried.stamp.value
        self._handed[stamp.owner, stamp.signer, sender] = stamp.time
        self._unsaved.add(stamp.owner)
        self._carry_out(outputs)
        self._hand_on(stamp.owner, self._network.neighbours())

    def rights_changed(self) -> None:
        """Consider again whose stamps count, and which brokers follow which owner."""
        self._weigh()
        self._notice_brokers()

    def _weigh(self) -> None:
        outputs = self._keeper.weigh(self._core.now())
        self._carry_out(outputs)
        for owner in list(self._keeper.owners()):
            self._hand_on(owner, self._network.neighbours())

    def _hand_on(self, owner: Principal, peers: Iterable[Principal]) -> None:
        """Forward all counting stamps for an owner to neighbours that have not got them."""
        stamps = self._keeper.stamps(owner)
        for stamp in stamps:
            self._completeness(owner).stamped(stamp)
            self._issuer.stamped(stamp.value)
        for peer in peers if stamps else ():
            for stamp in stamps:
                self._hand_on_to(peer, stamp.value)

    def _hand_on_to(self, peer: Principal, stamp: TimeStamp) -> None:
        place = stamp.owner, stamp.signer, peer
        handed = self._handed.get(place)
        if handed is None or handed < stamp.time:
            carried = self._keeper.hand_on(self._core.now(), stamp.owner, peer, stamp.signer)
            if carried is not None:
                self._handed[place] = stamp.time
                self._network.hand_on(peer, canonical(carried.to_sexp()))

    # Signing stamps.

    def _sign_stamps(self) -> None:
        """Sign the due time-stamps for all owners that let this broker do so."""
        core = self._core
        if not self._stamping:
            return
        now = core.now()
        owners = frozenset(owner for owner in self._followed if self._stamps_for(now, owner))
        signed, self._issuer_turn = self._issuer.due(now, owners)
        for stamp in signed:
            self._stamp(now, core.principal, CarriedStamp(stamp.unverified()))
            self._network.stamped(stamp)
            if stamp.value.owner not in self._safe:
                # Without it, this broker could not tell after a restart that it had started to stamp.
                self._save(stamp.value.owner)
        for owner in owners:
            if self._issuer.waits(owner) and owner not in self._waited_for:
                self._waited_for.add(owner)
                core.note(_nothing_kept(owner))
        core.turn = earliest(self._keeper.turns(), self._issuer_turn)

    def _stamps_for(self, now: datetime, owner: Principal) -> bool:
        return owner == self._core.principal or self._core.principal in self._core.overlay.stampers(now, owner)

    def counts_stamps_of(self, signer: Principal) -> bool:
        """Return whether stamps of somebody count: what it has shown is needed, also when it has gone."""
        return any(signer in self._keeper.signers(owner) for owner in self._keeper.owners())

    def _safe_head(self, owner: Principal) -> tuple[int, bytes] | None:
        """Return the head to stamp. It must be stored, or a restarted broker would stamp an earlier one."""
        if owner not in self._compared:
            if not self._network.is_compared(owner):
                # It may have missed events while it was away.
                return None
            self._compared.add(owner)
        head = self._keeper.head(owner)
        return head if head is not None and head[0] <= self._safe.get(owner, 0) else None

    # Outputs of the keeper.

    def _carry_out(self, outputs: Iterable[Output]) -> None:
        core = self._core
        # `Stale` comes first, because the other outputs may fail.
        for output in sorted(outputs, key=lambda output: not isinstance(output, Stale)):
            match output:
                case Changed(owner):
                    self._enforce(self._begun(output, self._due.get(owner)))
                case Acknowledge(acknowledgement):
                    self._acknowledge(acknowledgement)
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
                    core.note(
                        RefusedError(
                            "evolution.forked", f"{owner.short} has signed two different policies under one number"
                        )
                    )
                    for event in fork.events:
                        # Other brokers may have only one of the two.
                        self._publish(event.unverified())
                case UnusableEvent(owner, number, code, _):
                    core.note(RefusedError(code, f"policy event {number} of {owner.short} cannot be applied"))
        core.turn = earliest(self._keeper.turns(), self._issuer_turn)

    def _acknowledge(self, acknowledgement: SignedValue[Acknowledgement]) -> None:
        """Publish an acknowledgement, once the enforced policy is safe on the disk."""
        owner = acknowledgement.value.owner

        def told(error: PenstockError | None) -> None:
            if error is not None:
                self._unsafe.setdefault(owner, []).append(acknowledgement)
                return
            self._acknowledged[owner] = acknowledgement
            self._publish(acknowledgement.unverified())
            self._completeness(owner).acknowledged(self._core.now(), acknowledgement)

        self._save(owner, told)

    def _begun(self, changed: Changed, due: _Due | None) -> _Due:
        """Return the change to enforce, with the unfinished part of earlier ones."""
        if due is None:
            return _Due(changed, self._core.sources.revocations.by_owner.get(changed.owner, frozenset()))
        left = [one for one in due.changed.installed if changed.state.types.get(one.definition.name) == one]
        installed, removed = (*left, *changed.installed), (*due.changed.removed, *changed.removed)
        return _Due(replace(changed, installed=installed, removed=removed), due.revoked)

    def _enforce(self, due: _Due) -> None:
        """Enforce a policy. The change stays due until that is done. Raises what the recorder's sink raises."""
        core, changed = self._core, due.changed
        self._due[changed.owner] = due
        stampers = core.overlay.stampers(core.now(), changed.owner)
        for name in changed.removed:
            core.settle(core.local.change(core.now(), removed=[name]))
        whole = self._install(changed)
        with core.recording():
            self.settings_changed()
            self._record(changed, changed.state.revoked - due.revoked)
        self._due.pop(changed.owner, None)
        left = core.overlay.stampers(core.now(), changed.owner)
        self._completeness(changed.owner).stamps_again(left)
        self._completeness(changed.owner).stamps_no_longer(changed.number, stampers - left)
        self._carry_out(self._keeper.enforced(core.now(), changed.owner, changed.number, whole=whole))

    def _install(self, changed: Changed) -> bool:
        """Install the types of a change, and those that failed before; return whether all are installed."""
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
        """Try to install missing types again, because their parents may have arrived. Then acknowledge."""
        number = self._uninstalled[owner].number
        if self._install(Changed(owner, number, self._keeper.state(owner))):
            self._carry_out(self._keeper.enforced(self._core.now(), owner, number))

    def settings_changed(self) -> None:
        """Apply the current settings and the policies of all owners."""
        core, keeper = self._core, self._keeper
        credentials = core.settings.credentials + keeper.credentials()
        logs = ((owner, keeper.log(owner)) for owner in keeper.owners())
        revision = " ".join(f"{owner.short}#{log[-1].value.number}" for owner, log in logs if log)
        core.change_sources(
            replace(
                core.sources,
                credentials=credentials,
                revocations=keeper.revocations(),
                withdrawn=keeper.withdrawn(),
                revision=revision,
                agreements=core.settings.agreements + self._agreements.read(keeper.announced()),
                policies=core.settings.policies,
            )
        )
        self._check_myself()
        for problem in core.sources.agreements.unread.values():
            core.note(RefusedError(problem.code, problem.message))

    def _record(self, changed: Changed, revoked: frozenset[str]) -> None:
        """Record the revocations of each policy event separately."""
        for event in self._keeper.log(changed.owner):
            ids = {one for change in event.value.changes if isinstance(change, Revoke) for one in change.certificates}
            if ids & revoked:
                order = f"{changed.owner}/{event.value.number}"
                self._core.recorder.revoked(changed.owner, order, tuple(sorted(ids & revoked)), event.value.time)

    def _save(self, owner: Principal, told: Told | None = None) -> None:
        """Store an owner's snapshot. The caller is notified when it is safe; operators, if it is not."""
        log = self._keeper.log(owner)
        number = log[-1].value.number if log else 0

        def done(error: PenstockError | None) -> None:
            if error is not None:
                self._core.note(error)
                self._unsaved.add(owner)
            else:
                self._safe[owner] = max(number, self._safe.get(owner, 0))
            if told is not None:
                told(error)
            if error is None:
                self._sign_stamps()

        self._unsaved.discard(owner)
        self._writer.save(owner, done)

    def _save_rest(self) -> None:
        for owner in list(self._unsaved):
            self._save(owner)

    def _publish(self, statement: _Spoken) -> None:
        """Send a statement to all brokers that follow its owner."""
        self.follow(statement.value.owner)
        self._network.publish(statement)

    # This broker.

    @property
    def is_broker(self) -> bool:
        """Whether this broker has the rights of a broker, as far as it knows: without them it delivers nothing."""
        return self._is_broker

    def _check_myself(self) -> None:
        """Stop delivering while this broker does not have the rights of a broker."""
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
                    "this broker delivers nothing: it does not have the rights of a broker on its network",
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

    # The `PolicyBook` port.

    def owners(self) -> Iterable[Principal]:
        """Return the owners that this broker follows."""
        return tuple(self._followed)

    def carries(self, owner: Principal) -> bool:
        """Return whether this broker follows an owner: for its installed types, or to serve other brokers.

        An owner without types here must have issued a certificate in the settings that lets this broker carry its
        types, or the operator must let all brokers do so. An unknown owner takes no space.
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
        # Keep room for owners of types that are installed later.
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
        """Return whether an event of the owner would change nothing, by its number and digest."""
        return self._keeper.has(owner, number, digest)

    def events(self, owner: Principal) -> Sequence[SignedValue[PolicyEvent]]:
        """Return the owner's events from the last checkpoint on."""
        return self._keeper.log(owner)

    def fork(self, owner: Principal) -> Sequence[SignedValue[PolicyEvent]]:
        """Return the events that prove an owner's fork; none if there is no fork."""
        return self._keeper.fork(owner)

    def acknowledgements(self, owner: Principal) -> Iterable[SignedValue[Acknowledgement]]:
        """Return the last acknowledgement of each broker to an owner."""
        return self._completeness(owner).statements()

    def statements(self) -> Iterator[Statement]:
        """Yield all known statements of owners, and this broker's own acknowledgements, for other brokers."""
        for owner in self._followed:
            yield from (event.unverified() for event in self._keeper.log(owner))
            yield from (CarriedStamp(stamp.unverified()) for stamp in self._keeper.stamps(owner))
            if owner in self._acknowledged:
                yield self._acknowledged[owner].unverified()

    def acknowledged(self, owner: Principal, broker: Principal) -> datetime | None:
        """Return when the last acknowledgement of a broker to an owner was signed."""
        return self._completeness(owner).last(broker)

    def compared(self) -> None:
        """Deliver types of owners whose chains are known to their end by now."""
        for owner in self._keeper.unlearned():
            if self._network.is_compared(owner):
                self._carry_out(self._keeper.learned(self._core.now(), owner))
        self._sign_stamps()

    def revoked_at(self, revoked: RevokedCertificate) -> RevokedCertificate:
        """Return a revoked certificate with the time of the first policy event here that revokes it."""
        log = self._keeper.log(revoked.by)
        number = log[-1].value.number if log else 0
        known = self._revoked.get(revoked.by)
        if known is None or known[0] != number:
            found: dict[str, datetime] = {}
            for event in log:
                for change in event.value.changes:
                    for id_ in change.certificates if isinstance(change, Revoke) else ():
                        found.setdefault(id_, event.value.time)
            known = self._revoked[revoked.by] = number, found
        return replace(revoked, at=known[1].get(revoked.certificate))

    # Status for owners and operators.

    def told(self, owner: Principal, after: int) -> dict[str, Wire]:
        """Return an owner's policy status, and its events after a number: as many as fit into an answer."""
        log = self._keeper.log(owner)
        events: list[Wire] = []
        room = self._core.settings.limits.route_block_bytes
        for event in log:
            data = event.to_bytes() if event.value.number > after else b""
            room -= len(data)
            if events and room < 0:
                break
            events += [data] if data else []
        return {
            "number": log[-1].value.number if log else 0,
            "known": self._keeper.known(owner),
            "state": self._state_of(owner),
            "events": events,
        }

    def status(self) -> dict[str, Wire]:
        """Return the policy status here and at other brokers by owner, as plain data."""
        return {str(owner): self._status_of(owner) for owner in sorted(self._followed)}

    def completion(self, owner: Principal, number: int) -> Completion:
        """Return the progress of a policy event with all brokers that follow its owner. Raises `RefusedError`."""
        return self._completions(owner, (number,))[0]

    def _completions(self, owner: Principal, numbers: Iterable[int]) -> list[Completion]:
        core, now = self._core, self._core.now()
        self._judge(now, owner)
        trusted = core.roster.trusted(owner)
        if core.goes_by(now, owner, core.principal):
            trusted |= {core.principal}
        stampers, stopping = core.overlay.stampers(now, owner) & trusted, self._stopping(now, owner)
        return [self._completeness(owner).of(now, number, trusted, stopping, stampers) for number in numbers]

    def _stopping(self, now: datetime, owner: Principal) -> dict[Principal, datetime]:
        """Return the brokers that have lost their rights and may still deliver, and when each stops by itself.

        A broker stops when the owner's stamps have expired, or the coordinator's.
        """
        stops: dict[Principal, datetime] = {}
        stamping = [self._completeness(one) for one in {owner, self._core.settings.network.owner}]
        for broker, ended in self._core.roster.ended(owner).items():
            found = [stop for one in stamping if (stop := one.stops(broker, ended)) is not None]
            if found and now <= min(found):
                stops[broker] = min(found)
        return stops

    def _notice_brokers(self) -> None:
        """Record new brokers: their credentials arrive before a link to them is announced."""
        core, now = self._core, self._core.now()
        new = [broker for broker in core.disclosed if broker not in core.roster and core.admitted(broker)]
        for broker in new:
            core.roster.heard_of(now, broker, core.disclosed[broker])
        for owner in self._followed if new else ():
            self._judge(now, owner, new)

    def _look_at_brokers(self) -> None:
        """Record present and absent brokers, and forget those that have lost their rights and stopped."""
        core, now = self._core, self._core.now()
        router = core.router
        present = {*(core.disclosed if core.on_fabric else router.view.links)} - {core.principal}
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
        """Store the brokers that were seen, with credentials and use of stamps, if these have changed."""
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
        stamps = sorted(self._keeper.stamps(owner), key=lambda stamp: stamp.value.until)
        age = (now - stamps[-1].value.time) / timedelta(seconds=1) if stamps else None
        until = stamps[-1].value.until if stamps else None
        shown = log[-_SHOWN:]
        found = self._completions(owner, (event.value.number for event in shown))
        events: list[Wire] = [_progress_of(event, completion) for event, completion in zip(shown, found, strict=True)]
        return {
            "number": log[-1].value.number if log else 0,
            "state": self._state_of(owner),
            "stamp age": age,
            "stamp until": until,
            "stamped by": [str(stamp.value.signer) for stamp in stamps],
            "stamps here": self._stamps_for(now, owner),
            "events": events,
            "brokers": self._brokers_of(owner),
            "not installed": self._not_installed(owner),
        }

    def _brokers_of(self, owner: Principal) -> dict[str, Wire]:
        """Return the other brokers to wait for: since when, until when, and the certificates to revoke."""
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


def _progress_of(event: SignedValue[PolicyEvent], found: Completion) -> dict[str, Wire]:
    brokers: dict[str, Wire] = {str(one.broker): {"progress": str(one.progress), "at": one.at} for one in found.brokers}
    revokes = sum(len(change.certificates) for change in event.value.changes if isinstance(change, Revoke))
    return {
        "number": event.value.number,
        "time": event.value.time,
        "revokes": revokes,
        "complete": found.at,
        "brokers": brokers,
    }


def _nothing_kept(owner: Principal) -> RefusedError:
    return RefusedError(
        "evolution.nothing-kept",
        f"this broker signs no time-stamps for {owner.short}: it has run before, and may have lost the owner's policy",
        hint="let the owner sign one with `penstock net stamp --for 1m`, or wait for a neighbour that has the policy",
    )


_FRESH: Final = "fresh"
#: ticks after which stamps are stored
_LAZINESS: Final = 10
#: policy events that the status shows of each owner
_SHOWN: Final = 16
