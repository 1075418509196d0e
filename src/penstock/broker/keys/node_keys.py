"""A node's keys: it joins the key groups of the types that it may read, and seals and opens with their keys.

A broker asks to join the groups that its own credentials entitle it to (`rights`). The manager decides again, by its
own sources (`ManagedGroups`). Events and blocks whose keys are missing wait, within bounds.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import Final, TypeAlias, cast

from penstock.broker.core.core import Core
from penstock.broker.core.exchange import OWN
from penstock.broker.evolution.statements import KEYS
from penstock.broker.keys.group import Refreshing
from penstock.broker.keys.log import KeyLog, SealedLog, read_record
from penstock.broker.keys.manager import Append, KeyManager, Noted, Output, Reply, Sent, Tell, TruncateLog
from penstock.broker.keys.member import Ask, ForgetKey, Heard, Hold, KeyMember, KeyRefused, Opened, Resume
from penstock.broker.keys.member import Output as MemberOutput
from penstock.broker.keys.rights import Grounds, KeyClaims, KeyEvidence, KeyLook, groups_of
from penstock.broker.local.requests import Publish
from penstock.codec.sexp import head as sexp_head
from penstock.codec.sexp import parse, transport
from penstock.codec.wire import Wire
from penstock.crypto.seal_keys import LiveKeys
from penstock.crypto.wrapping import Secret
from penstock.errors import FailedError, MalformedError, PenstockError, RefusedError
from penstock.fabric.tasks import keep_running
from penstock.model.events import TransitEvent
from penstock.model.instants import in_utc
from penstock.model.names import AttributeId, TypeKey
from penstock.model.principals import Principal
from penstock.model.types import Sealing
from penstock.trust.key_statements import (
    ANSWERED,
    NO_PLACE,
    NOT_BROKER,
    NOT_MEMBER,
    KeyEpoch,
    KeyGroup,
    KeyHistory,
    KeyNotice,
    KeyPathAnswer,
    KeyRefusal,
    KeyRequest,
    KeyWelcome,
    KeyWish,
)
from penstock.trust.signed import SignedValue, UnverifiedValue, malformed, read_signed, sign_value

# ----------------------------------------------------------------------------------------------------------------------
# Statements about keys travel as events of a type that every owner has and no client may name (`penstock.keys`).
#
# They reach the brokers that follow the owner: members' requests, managers' answers, and managers' statements to all
# members. All secrets in them are wrapped for their recipients.


_UID: Final = "statement"
_KEY: Final = f"{OWN}keys "
_TOLD: Final = {kind.HEAD: kind for kind in (KeyEpoch, KeyWelcome, KeyPathAnswer, KeyHistory, KeyNotice)}

Statement: TypeAlias = KeyRequest | KeyEpoch | KeyWelcome | KeyPathAnswer | KeyHistory | KeyNotice | KeyRefusal
OnAsked: TypeAlias = Callable[[datetime, UnverifiedValue[KeyRequest]], None]
OnTold: TypeAlias = Callable[[datetime, UnverifiedValue[Heard]], None]
OnRefused: TypeAlias = Callable[[datetime, UnverifiedValue[KeyRefusal]], None]


class KeyTransport:
    """Sends and receives statements about keys. Received ones are passed on unverified; refusals are reported."""

    def __init__(self, core: Core, *, asked: OnAsked, told: OnTold, refused: OnRefused) -> None:
        self._core = core
        self._asked = asked
        self._told = told
        self._refused = refused
        self._followed: set[Principal] = set()

    def follow(self, owner: Principal) -> None:
        """Subscribe to statements about the keys of an owner's types."""
        if owner in self._followed:
            return
        self._followed.add(owner)
        core, of_type = self._core, TypeKey(owner, KEYS)
        core.settle(core.router.advertise(f"{_KEY}{owner}", of_type))
        core.settle(core.router.subscribe(f"{_KEY}{owner}", of_type))

    def unfollow(self, owner: Principal) -> None:
        """Do not subscribe to an owner's statements any more."""
        if owner in self._followed:
            self._followed.remove(owner)
            core = self._core
            core.settle(core.router.unsubscribe(f"{_KEY}{owner}"))
            core.settle(core.router.unadvertise(f"{_KEY}{owner}"))

    def publish(self, group: KeyGroup, value: SignedValue[Statement]) -> None:
        """Publish a statement about the keys of a group."""
        owner = group.type.owner
        self.follow(owner)
        text = transport(value.to_sexp()).decode("ascii")
        key = TypeKey(owner, KEYS)
        values = MappingProxyType({str(AttributeId(owner, KEYS, _UID)): text})
        event = TransitEvent(key, (), values, value.digest.hex(), self._core.now())
        self._core.settle((Publish(f"{_KEY}{owner}", (event,)),))

    def arrived(self, now: datetime, event: TransitEvent) -> None:
        """Take an event that the broker itself has subscribed to. What does not count is passed over, and noted."""
        if event.key.name != KEYS:
            # A type that says that it extends the one of statements about keys.
            return
        held = event.values.get(AttributeId(event.key.owner, KEYS, _UID))
        try:
            self._hear(now, held)
        except (RefusedError, MalformedError) as error:
            self._core.note(error)

    def _hear(self, now: datetime, held: object) -> None:
        if not isinstance(held, str) or not held.isascii():
            raise malformed("an event about keys does not have exactly one text attribute")
        written = parse(held.encode("ascii"))
        head = sexp_head(written[1]) if isinstance(written, tuple) and len(written) > 1 else None
        kind = _TOLD.get(head or b"")
        if head == KeyRefusal.HEAD:
            self._refused(now, read_signed(written, KeyRefusal))
        elif kind is None:
            self._asked(now, read_signed(written, KeyRequest))
        else:
            self._told(now, cast("UnverifiedValue[Heard]", read_signed(written, kind)))


# ----------------------------------------------------------------------------------------------------------------------
# Write what a key manager wants written to its log, while everything else goes on.


Clock: TypeAlias = Callable[[], datetime]
Put: TypeAlias = Callable[[Iterable[Output]], None]
"""Receives a manager's outputs."""


async def catch_up(clock: Clock, manager: KeyManager, log: KeyLog, put: Put) -> None:
    """Pass a manager the records that it has not read; `put` receives its outputs for each.

    Raises what `take` and the log raise. The outputs for earlier records stay valid.
    """
    for record in await log.read(manager.position):
        unverified = read_record(record)
        if unverified.value.number >= manager.position:
            put(manager.take(clock(), unverified))


async def carry_out(
    clock: Clock, manager: KeyManager, log: KeyLog, outputs: Iterable[Output], send: Callable[[Sent], None]
) -> None:
    """Write the records of a manager's outputs until none is left, and send the other outputs.

    The messages that follow from a record are sent when it has come back. They do not wait for the next record, which
    may fail. Raises what `take` and the log raise.
    """
    waiting: deque[Append | TruncateLog] = deque()

    def put(outputs: Iterable[Output]) -> None:
        for output in outputs:
            if isinstance(output, Append | TruncateLog):
                waiting.append(output)
            else:
                send(output)

    put(outputs)
    while waiting:
        match waiting.popleft():
            case Append(number, record):
                # Accepted or not, the log has a record at that position now.
                await log.append(number, record.to_bytes())
                await catch_up(clock, manager, log, put)
            case TruncateLog(number) if number > manager.forgotten:
                await log.forget(number)
                manager.forgot(number)


class KeyScribe:
    """Writes a manager's records to its log in the background, one after another.

    `send` receives messages to send, `failed` receives errors. The manager proposes unwritten records again.
    """

    def __init__(  # noqa: PLR0913  # the manager, the log, and its callbacks
        self,
        manager: KeyManager,
        log: KeyLog,
        clock: Clock,
        *,
        send: Callable[[Tell | Reply], None],
        failed: Callable[[PenstockError], None],
        period: float,
    ) -> None:
        self._manager = manager
        self._log = log
        self._clock = clock
        self._send = send
        self._failed = failed
        self._period = period
        self._waiting: list[Append | TruncateLog] = []
        self._more = asyncio.Event()
        self._wrong = ""
        self._writing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the log, and start writing.

        Raises what `take` and the log raise, and `RefusedError` (`keys.wrong-kek`).
        """
        try:
            await catch_up(self._clock, self._manager, self._log, self.put)
        except RefusedError as error:
            if error.code != "keys.unopened":
                raise
            raise RefusedError(
                "keys.wrong-kek",
                "the key log cannot be opened: it was written under another key-encryption key, or was changed",
                hint="give the key-encryption key that it was written with, or start with another log",
            ) from error
        self._writing = keep_running("writing the key log", self._write)

    async def stop(self) -> None:
        """Stop writing. A record that is being written may be in the log or not, as after a crash."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
        await self._log.close()

    def put(self, outputs: Iterable[Output]) -> None:
        """Send the messages, and queue the records for writing."""
        for output in outputs:
            if isinstance(output, Append | TruncateLog):
                self._waiting.append(output)
                self._more.set()
            else:
                self._say(output)

    def _say(self, output: Sent) -> None:
        if isinstance(output, Noted):
            self._failed(output.reason)
        else:
            self._send(output)

    async def _write(self) -> None:
        while True:
            # Other replicas write too, so the log is also read regularly if there is nothing to write.
            try:
                async with asyncio.timeout(self._period):
                    await self._more.wait()
            except TimeoutError:
                pass
            self._more.clear()
            waiting, self._waiting = self._waiting, []
            try:
                await carry_out(self._clock, self._manager, self._log, waiting, self._say)
                await catch_up(self._clock, self._manager, self._log, self.put)
                self._wrong = ""
            except PenstockError as error:
                # Report the same error once, until it works again.
                if error.code != self._wrong:
                    self._wrong = error.code
                    self._failed(error)


# ----------------------------------------------------------------------------------------------------------------------
# The key groups that a node manages: requests of brokers, policy changes, and commands of operators.


@dataclass(frozen=True, slots=True)
class Managing:
    """Settings for managing key groups: the log that replicas share, and the key-encryption key of its secrets.

    A node manages its own principal's types, and those on which owners have granted it `keys`.
    """

    log: KeyLog
    kek: Secret
    replicas: frozenset[Principal] = frozenset()
    refreshing: Refreshing | None = None


class ManagedGroups:
    """The key groups that a node manages. `evidence` has the credentials of key holders."""

    def __init__(
        self, core: Core, claims: KeyClaims, transport: KeyTransport, evidence: KeyEvidence, managing: Managing
    ) -> None:
        self._core = core
        self._claims = claims
        self._transport = transport
        self._evidence = evidence
        settings = core.settings
        self.manager = KeyManager(
            settings.key,
            managing.kek,
            claims.served,
            settings.random,
            replicas=managing.replicas,
            refreshing=managing.refreshing,
            skew=settings.trust.skew,
            limits=settings.limits,
        )
        self._scribe = KeyScribe(
            self.manager,
            SealedLog(managing.log, managing.kek, settings.random),
            core.now,
            send=self._send,
            failed=core.note,
            period=settings.limits.key_follow / 1000,
        )

    async def start(self) -> None:
        """Read the log. Raises what the log raises."""
        await self._scribe.start()

    async def stop(self) -> None:
        """Stop writing to the log."""
        await self._scribe.stop()

    def tick(self, now: datetime) -> None:
        """Process what is due."""
        if self._evidence.due:
            self.review(now, None)
        elif lapsed := self.manager.lapsed(now):
            # They may have other rights, which count from now on.
            self.review(now, lapsed)
        self.tell(self.manager.tick(now)[0])

    def tell(self, outputs: Iterable[Output]) -> None:
        """Carry out the manager's outputs, in order."""
        self._scribe.put(outputs)

    def _send(self, output: Tell | Reply) -> None:
        group = output.group if isinstance(output, Tell) else output.value.value.word.group
        self._transport.publish(group, output.value)

    # Policy and operators.

    def review(self, now: datetime, news: frozenset[Principal] | None) -> None:
        """Decide again about all holders of managed keys, or only about those with new credentials (`news`)."""
        news = None if self._evidence.due else news
        holders = {group: self.manager.holders(group) for group in self.manager.groups()}
        everybody = frozenset().union(*holders.values())
        self._evidence.look(everybody)
        spared = self._evidence.unseen(everybody) | (frozenset() if news is None else everybody - news)
        look = KeyLook(self._claims)
        for group in holders:
            self.tell(self.manager.review(now, group, partial(self._grounds, look, group), spared))

    def _grounds(self, look: KeyLook, group: KeyGroup, broker: Principal) -> Grounds:
        return look.grounds(group, broker, self._evidence.of(broker))

    def groups(self) -> list[KeyGroup]:
        """Return the groups that exist."""
        served = (group for group in self.manager.groups() if self._claims.served(group.type))
        return sorted(served, key=lambda group: group.scope)

    def rotate(self, group: KeyGroup) -> None:
        """Start an epoch."""
        self.tell(self.manager.rotate(self._core.now(), group))

    def evict(self, group: KeyGroup, broker: Principal) -> None:
        """Evict a broker."""
        self.tell(self.manager.evict(self._core.now(), group, broker))

    def forget(self, before: datetime) -> None:
        """Forget epochs that ended before a time, with a checkpoint that leaves them out."""
        self.tell(self.manager.condense(self._core.now(), in_utc(before)))

    def status(self) -> dict[str, Wire]:
        """Return the number of holders of each group, as plain data."""
        return {group.scope: len(self.manager.holders(group)) for group in self.manager.groups()}

    # Requests of brokers.

    def asked(self, now: datetime, request: UnverifiedValue[KeyRequest]) -> None:
        """Answer a request for keys that are managed here. Raises what the manager raises, also after a refusal."""
        value = request.value
        if not self._claims.served(value.group.type):
            return
        try:
            self.tell(self._answer(now, request))
        except PenstockError as error:
            # A replica that is behind does not know who is a member.
            answered = error.code in ANSWERED.get(value.wish, ())
            if answered and (value.wish is not KeyWish.PATH or self.manager.was_evicted(value)):
                self._refuse(now, request, error.code)
            raise

    def _answer(self, now: datetime, request: UnverifiedValue[KeyRequest]) -> list[Output]:
        manager, value = self.manager, request.value
        match value.wish:
            case KeyWish.JOIN:
                said = manager.join(now, request, self._claims.joining(value.broker, value.group))
                self._evidence.joined(value.broker)
                return said
            case KeyWish.LEAVE:
                return manager.leave(now, request)
            case KeyWish.PATH:
                return manager.path(now, request)
            case KeyWish.REFRESH:
                return manager.refresh(now, request)
            case KeyWish.HISTORY:
                rights = manager.history_rights(now, value)
                grounds = self._claims.decided(value.broker, value.group, rights, value.credentials)
                return manager.history(now, request, grounds)

    def _refuse(self, now: datetime, request: UnverifiedValue[KeyRequest], code: str) -> None:
        """Send a broker the reason why its request was refused."""
        value, me = request.value, self._core.principal
        about = value.public or request.digest
        refusal = KeyRefusal(me, value.group, value.broker, about, code, in_utc(now))
        self._transport.publish(value.group, sign_value(refusal, self._core.settings.key))


# ----------------------------------------------------------------------------------------------------------------------
# Whether events of a type can be sealed now, by the keys that a broker holds; and reports of events that wait.
#
# Each block asks this, so the answer is remembered for as long as it is certain.


#: managers' refusals to a broker that asks to join, and what to do about them
_REFUSALS: Final = {
    NO_PLACE: ("the key group is full", "let the type's owner evict brokers that no longer need the key"),
    NOT_MEMBER: ("this broker was evicted", "run `penstock sealing join` to ask for its keys again"),
    NOT_BROKER: ("this broker may not carry the type", "let the type's owner grant it `route`"),
}


class KeyReadiness:
    """Says whether events can be sealed now. `members` are the groups that the broker is in or wants to join."""

    def __init__(self, core: Core, members: Mapping[KeyGroup, KeyMember]) -> None:
        self._core = core
        self._members = members
        #: until when events of a type can be sealed if no statement about keys arrives; and the library's version
        self._until: dict[TypeKey, datetime] = {}
        self._library = -1
        #: groups without a key to seal under, and since when; None after it was reported
        self._waiting: dict[KeyGroup, datetime | None] = {}
        #: the code of the managers' refusal
        self._refused: dict[KeyGroup, str] = {}

    def forget(self) -> None:
        """Drop remembered answers: a statement about keys has arrived."""
        self._until.clear()

    def hold(self, group: KeyGroup) -> None:
        """Record that a group has no key to seal under. It is reported if it lasts."""
        self._waiting[group] = self._core.now()

    def resume(self, group: KeyGroup) -> None:
        """Record that a group has a key to seal under."""
        self._waiting.pop(group, None)
        self._refused.pop(group, None)

    def refused(self, group: KeyGroup, code: str) -> None:
        """Record why a manager refuses the key. It is reported if it lasts."""
        if self._refused.get(group) != code:
            self._refused[group] = code
            self._waiting[group] = self._core.now()

    def holds(self, of_type: TypeKey) -> bool:
        """Return whether events of a type must wait, because the type is sealed and a key is missing."""
        core = self._core
        if self._library != core.library.changes:
            self._library = core.library.changes
            self.forget()
        known = self._until.get(of_type)
        if known is not None and core.latest <= known:
            return False
        if core.library.sealing(of_type) is Sealing.NONE:
            return False
        until = self._sealable_until(core.now(), of_type)
        if until is None or not core.labels.trees(of_type):
            return True
        self._until[of_type] = until
        return False

    def _sealable_until(self, now: datetime, of_type: TypeKey) -> datetime | None:
        """Return until when all keys of a type are current; None if one is missing or too old."""
        ends = [member.seals_until for group, member in self._members.items() if group.type == of_type]
        if not ends:
            # This broker has no right to the keys as far as it knows. That may change.
            self._waiting.setdefault(KeyGroup(of_type), now)
        until = min([end for end in ends if end is not None], default=now)
        return None if not ends or None in ends or now > until else until

    def tick(self, now: datetime) -> None:
        """Report once that publications wait for a key that does not come."""
        pause = timedelta(milliseconds=self._core.settings.limits.key_retry)
        for group, since in self._waiting.items():
            if since is not None and now >= since + pause:
                self._waiting[group] = None
                self._core.note(self._reason(group))

    def _reason(self, group: KeyGroup) -> PenstockError:
        if group not in self._members:
            return _not_entitled(group)
        code = self._refused.get(group)
        return _no_manager(group) if code is None else _refusal(group, code)


def _no_manager(group: KeyGroup) -> FailedError:
    return FailedError(
        "keys.no-manager",
        f"publications wait: this broker has no current key of `{group.scope}`",
        hint="check that a key manager runs and is reachable",
    )


def _refusal(group: KeyGroup, code: str) -> RefusedError:
    why, hint = _REFUSALS[code]
    return RefusedError(code, f"publications wait for the key of `{group.scope}`: {why}", hint=hint)


def _not_entitled(group: KeyGroup) -> RefusedError:
    return RefusedError(
        "keys.not-entitled",
        f"publications wait: this broker's certificates give it no right to the keys of `{group.type.name}`",
        hint="grant it `publish` or `subscribe` on the type and its attributes, without conditions",
    )


# ----------------------------------------------------------------------------------------------------------------------
# All keys of a node.


_AGAIN: Final = timedelta(minutes=1)
Released: TypeAlias = SignedValue[KeyHistory] | SignedValue[KeyRefusal]
OnReleased: TypeAlias = Callable[[Released], None]


class Keys:
    """The keys of a node: its memberships in key groups, and the groups that it manages."""

    def __init__(self, core: Core, ring: LiveKeys, managing: Managing | None = None) -> None:
        self._core = core
        self._claims = KeyClaims(core)
        self._ring = ring
        self._members: dict[KeyGroup, KeyMember] = {}
        self.readiness = KeyReadiness(core, self._members)
        self._transport = KeyTransport(core, asked=self._asked, told=self._told, refused=self._refused)
        #: groups that this broker has no right to join, and when to decide about that again
        self._declined: dict[KeyGroup, datetime] = {}
        #: groups of labels whose old key was requested, and when
        self._sought: dict[KeyGroup, datetime] = {}
        #: clients that wait for keys of old epochs, by the key that these are sealed to
        self.fetching: dict[bytes, OnReleased] = {}
        #: how many of their requests are about the types of each owner
        self._forwarded: Counter[Principal] = Counter()
        self._evidence = KeyEvidence(core)
        self._started = False
        self._managed: ManagedGroups | None = None
        if managing is not None:
            self._managed = ManagedGroups(core, self._claims, self._transport, self._evidence, managing)

    # Running.

    async def start(self) -> None:
        """Read the log if this node manages groups, and join groups. Raises what the log raises."""
        if self._managed is not None:
            await self._managed.start()
        self._evidence.begin()
        self.tick()
        self._started = True

    async def stop(self) -> None:
        """Stop writing to the log."""
        if self._managed is not None:
            await self._managed.stop()

    def tick(self) -> None:
        """Join new groups, repeat requests, and forget old keys."""
        now = self._core.now()
        for verified in self._claims.sealed():
            self._transport.follow(verified.event_type.key.owner)
            for group in groups_of(verified):
                self._join(now, group)
        ended = [group for group, one in self._members.items() if one.until is not None and now > one.until]
        if ended:
            self._review_own(now, ended)
        missed = self._ring.missed()
        for group, member in list(self._members.items()):
            if group.scope in missed:
                self._carry_out(member.wanted(now, missed[group.scope]))
            self._carry_out(member.tick(now)[0])
        self._count(now)
        self.readiness.tick(now)
        if self._managed is not None:
            self._managed.tick(now)
        self._relabel(now)

    def _count(self, now: datetime) -> None:
        """Report how many blocks were sealed here: enough of them end an epoch."""
        sealed, self._core.vault.sealed = self._core.vault.sealed, Counter()
        for of_type, blocks in sealed.items():
            # Once for all groups of a type, because it takes a decision.
            managed = self._managed if self._managed is not None and self._claims.served(of_type) else None
            for group, member in list(self._members.items()):
                if group.type != of_type or group.labels:
                    continue
                if managed is not None:
                    managed.tell(managed.manager.sealed(now, group, blocks))
                else:
                    self._carry_out(member.sealed(now, blocks))

    def rights_changed(self) -> None:
        """Decide again about all brokers: evict those without a right, and join groups that are permitted now."""
        if not self._started:
            return
        now, news = self._core.now(), self._evidence.news()
        if self._managed is not None:
            self._managed.review(now, news)
        if news is None:
            self._declined.clear()
            self._review_own(now, list(self._members))
        self.tick()

    def _review_own(self, now: datetime, groups: Iterable[KeyGroup]) -> None:
        """Leave the groups that this broker has no right to any more, and renew a right that ends at another time.

        The manager renews it by itself, but may hear of it too late. If it has evicted the broker, that lasts as long
        as the right that the broker had then, whatever other rights it gets meanwhile.
        """
        look, lost = KeyLook(self._claims), []
        for group in groups:
            right = self._claims.right(self._core.principal, group, look)
            if right is None:
                lost.append(group)
            elif right.until != (member := self._members[group]).until:
                if not member.evicted:
                    self._carry_out(member.renew(now, right.until))
                elif member.until is not None and now > member.until:
                    self._carry_out(member.join(now, right.until))
        if lost:
            self._leave(now, lost)

    def _leave(self, now: datetime, lost: Sequence[KeyGroup]) -> None:
        core = self._core
        # While the labels' types are still known.
        types = {group.type for group in lost if group.attribute is None}
        core.settle(core.router.give_up(lambda tree: (core.labels.type_of(tree) or tree) in types))
        for group in lost:
            self._carry_out(self._members.pop(group).leave(now))
            self._ring.leave(group.scope)
        # Blocks no longer wait for the key of an attribute that may not be read any more.
        core.settle(core.router.keys_changed())

    # Groups and rights.

    def reads_as_much(self, peer: Principal, of_type: TypeKey) -> bool:
        """Return whether a neighbour may hold all keys of a type that this broker has."""
        held, look = [group for group in self._members if group.type == of_type], KeyLook(self._claims)
        return bool(held) and all(self._claims.may_hold(peer, group, look) for group in held)

    def may_publish(self, broker: Principal, of_type: TypeKey, attributes: Iterable[str]) -> bool:
        """Return whether a broker may publish, and therefore sign, all events of a type with these attributes."""
        return self._claims.may_publish(broker, of_type, attributes)

    def _join(self, now: datetime, group: KeyGroup) -> None:
        declined = self._declined.get(group)
        if group in self._members or (declined is not None and declined - _AGAIN <= now < declined):
            return
        right = self._claims.right(self._core.principal, group)
        if right is None:
            # Decided again when policy changes, and regularly, because rights may start at a date.
            self._declined[group] = now + _AGAIN
            return
        settings = self._core.settings
        member = self._members[group] = KeyMember(
            settings.key, group, self._claims.manages, settings.random, skew=settings.trust.skew, limits=settings.limits
        )
        if not group.labels:
            self._ring.expect(group.scope)
        self._carry_out(member.join(now, right.until))

    # Statements about keys.

    def arrived(self, now: datetime, event: TransitEvent) -> None:
        """Take a statement about keys. One that does not count is passed over, and noted."""
        self._transport.arrived(now, event)

    def _told(self, now: datetime, told: UnverifiedValue[Heard]) -> None:
        value = told.value
        if isinstance(value, KeyHistory):
            self._released(now, value.word.group, value.word.manager, read_signed(told.to_sexp(), KeyHistory))
        if isinstance(value, KeyWelcome | KeyPathAnswer | KeyHistory) and value.broker != self._core.principal:
            return
        member = self._members.get(value.word.group)
        if member is not None:
            # Also if the statement turns out to be invalid.
            self.readiness.forget()
            self._carry_out(member.receive(now, told))

    def _refused(self, now: datetime, refusal: UnverifiedValue[KeyRefusal]) -> None:
        self._released(now, refusal.value.group, refusal.value.manager, refusal)
        member = self._members.get(refusal.value.group)
        if member is not None:
            self._carry_out(member.refused(now, refusal))

    def _released(
        self,
        now: datetime,
        group: KeyGroup,
        manager: Principal,
        answer: UnverifiedValue[KeyHistory] | UnverifiedValue[KeyRefusal],
    ) -> None:
        """Pass a manager's answer to the client that has asked through this broker."""
        if answer.value.public in self.fetching and self._claims.manages(now, group.type, manager):
            found = answer.verify()
            self.fetching.pop(found.value.public)(found)

    def _asked(self, now: datetime, request: UnverifiedValue[KeyRequest]) -> None:
        if self._managed is not None:
            self._managed.asked(now, request)

    def _carry_out(self, outputs: Iterable[MemberOutput]) -> None:
        self.readiness.forget()
        changed = False
        for output in outputs:
            match output:
                case Ask(request):
                    self._transport.publish(request.value.group, request)
                case Opened(KeyGroup(labels=True) as group, epoch, key, begun=begun):
                    self._core.labels.put(group.type, epoch, key, begun)
                    changed = True
                case ForgetKey(KeyGroup(labels=True) as group, epoch):
                    self._core.labels.drop(group.type, epoch)
                case Opened(group, epoch, key, live=True):
                    self._ring.begin(group.scope, epoch, key)
                    changed = True
                case Opened():
                    # For reading logs elsewhere: blocks that arrive here are not that old.
                    pass
                case ForgetKey(group, epoch):
                    self._ring.close(group.scope, epoch)
                case Hold(group):
                    self.readiness.hold(group)
                case Resume(group):
                    self.readiness.resume(group)
                    changed = True
                case KeyRefused(group, code):
                    self.readiness.refused(group, code)
        # Answers may have been remembered in between.
        self.readiness.forget()
        self._core.relabel()
        if changed:
            self._core.settle(self._core.router.keys_changed())
            self._core.release()

    def _relabel(self, now: datetime) -> None:
        """Use the current labels, and ask for the old ones that others still use."""
        core = self._core
        core.labels.tick()
        core.relabel()
        pause = timedelta(milliseconds=core.settings.limits.key_retry)
        for group, member in list(self._members.items()):
            missing = core.labels.missing(group.type) if group.labels else None
            if missing is not None and abs(now - self._sought.get(group, now - pause)) >= pause:
                self._sought[group] = now
                self._carry_out(member.history(now, missing, missing))

    # For requests of operators and clients (`client_requests`).

    @property
    def manager(self) -> KeyManager:
        """The key manager of this node. Raises `RefusedError` (`keys.not-managed`)."""
        return self._managing.manager

    @property
    def _managing(self) -> ManagedGroups:
        if self._managed is None:
            raise RefusedError("keys.not-managed", "this broker manages no keys", hint="ask a broker that does")
        return self._managed

    @property
    def claims(self) -> KeyClaims:
        """The decisions about keys."""
        return self._claims

    @property
    def members(self) -> Mapping[KeyGroup, KeyMember]:
        """The groups that this broker is in or wants to join."""
        return MappingProxyType(self._members)

    def managed(self) -> list[KeyGroup]:
        """Return the managed groups that exist."""
        return [] if self._managed is None else self._managed.groups()

    def join_now(self) -> None:
        """Request all missing keys immediately."""
        self._declined.clear()
        now, look = self._core.now(), KeyLook(self._claims)
        for group, member in self._members.items():
            right = None if member.seals(now) else self._claims.right(self._core.principal, group, look)
            if right is not None:
                self._carry_out(member.join(now, right.until))
        self.tick()

    def rotate(self, group: KeyGroup) -> None:
        """Start an epoch. Raises `RefusedError` (`keys.not-managed`)."""
        self._managing.rotate(group)

    def evict(self, group: KeyGroup, broker: Principal) -> None:
        """Evict a broker. Raises `RefusedError` (`keys.not-managed`)."""
        self._managing.evict(group, broker)

    def forget(self, before: datetime) -> None:
        """Forget epochs that ended before a time. Raises as `rotate`."""
        self._managing.forget(before)

    def forward(self, request: SignedValue[KeyRequest]) -> None:
        """Send a client's request to the managers. When it is over, `forwarded` is called."""
        self._forwarded[request.value.group.type.owner] += 1
        self._transport.publish(request.value.group, request)

    def forwarded(self, group: KeyGroup) -> None:
        """Unfollow the type's owner if no other request is about its types, and none of them is known here."""
        owner = group.type.owner
        self._forwarded[owner] -= 1
        if self._forwarded[owner]:
            return
        del self._forwarded[owner]
        if not any(verified.event_type.key.owner == owner for verified in self._claims.sealed()):
            self._transport.unfollow(owner)

    def status(self) -> dict[str, Wire]:
        """Return the held keys, and the number of holders of each managed group, as plain data."""
        held: dict[str, Wire] = {
            group.scope: {"epoch": member.epoch, "seals": member.seals(self._core.now())}
            for group, member in sorted(self._members.items(), key=lambda item: item[0].scope)
        }
        return {"held": held, "managed": {} if self._managed is None else self._managed.status()}
