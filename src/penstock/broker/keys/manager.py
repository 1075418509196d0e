"""A key manager, or one of its replicas, decides who is in a key group and when its key changes (section 7.6).

A pure state machine. The driver passes in what arrives, and carries out the returned outputs in order:

1. All state follows from one log, in which each record has a number and refers to the one before. To change anything
   a manager proposes a record (`Append`) for the position where it believes that the log ends. The log accepts it
   there or not at all. So replicas never diverge, and one that was suspended can only read. Either way the driver then
   passes in what the log has (`take`). A manager sends messages only when its own record comes back. If another's
   record has that position, it proposes again.
2. Nobody gets a key without a right that `decide()` found (`rights`). The driver asks for it.
3. An epoch ends if a holder of its key must not have the next one (it is evicted, or its right ends), if a broker
   joins that had no right when the epoch started, by age, and by volume. It does not end if the credentials show that
   it need not: a broker that joins with an older right gets the epoch's key, and one that leaves keeps a key that it
   has a right to (section 7.6.2). Both take effect in the tree with the next epoch, together.
4. From time to time all state goes into the log as a checkpoint (`log`), and earlier records are dropped.

Seeds in the log, and keys of epochs that are over, are wrapped under a key that replicas share (`kek`).
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple, TypeAlias

from penstock.broker.evolution.policy_keeper import NO_SKEW
from penstock.broker.keys.group import Applicant, GroupState, Holder, Refreshing, Wishes
from penstock.broker.keys.log import Condensing, KeyFold, Record
from penstock.broker.keys.rights import MEMBERS, READERS, Grounds, entitlement
from penstock.broker.keys.sealing import seal_history, seal_welcome, wrap_missed, wrap_path, wrap_seed
from penstock.broker.limits import BrokerLimits
from penstock.crypto import SigningKey
from penstock.crypto.hpke import check_public
from penstock.crypto.key_tree import Rekey
from penstock.crypto.keys import RandomBytes
from penstock.crypto.wrapping import SALT_BYTES, SECRET_BYTES, Secret
from penstock.errors import LimitError, PenstockError, RefusedError
from penstock.model.instants import in_utc
from penstock.model.names import TypeKey, TypeName
from penstock.model.principals import Principal
from penstock.trust.capabilities import Right
from penstock.trust.key_statements import (
    EpochStatement,
    KeyCheckpoint,
    KeyEpoch,
    KeyGroup,
    KeyHistory,
    KeyNotice,
    KeyPathAnswer,
    KeyRecord,
    KeyRequest,
    KeyWelcome,
    KeyWish,
    split,
)
from penstock.trust.signed import SignedValue, UnverifiedValue, sign_value
from penstock.trust.validity import earliest

# ----------------------------------------------------------------------------------------------------------------------
# The outputs of a key manager, in the order in which the driver must carry them out.


Told: TypeAlias = KeyEpoch | KeyNotice
Answer: TypeAlias = KeyWelcome | KeyPathAnswer | KeyHistory


@dataclass(frozen=True, slots=True)
class Append:
    """Write a record to the log if it ends at this position. Then pass in what the log has from there on."""

    number: int
    record: SignedValue[Record]


@dataclass(frozen=True, slots=True)
class TruncateLog:
    """Drop all records of the log before a position, where a checkpoint starts."""

    number: int


@dataclass(frozen=True, slots=True)
class Tell:
    """Send a statement to all members of a group. It is not secret."""

    group: KeyGroup
    value: SignedValue[Told]


@dataclass(frozen=True, slots=True)
class Reply:
    """Send a statement to one broker."""

    broker: Principal
    value: SignedValue[Answer]


@dataclass(frozen=True, slots=True)
class Noted:
    """Report an error to operators. Everything continues."""

    reason: PenstockError


Sent: TypeAlias = Tell | Reply | Noted
Output: TypeAlias = Append | TruncateLog | Sent


# ----------------------------------------------------------------------------------------------------------------------
# A key manager's statements to brokers: signed, and sealed if they are for one of them.


class KeyAnswers:
    """Writes statements to brokers. Raises `RefusedError` (`keys.not-member`) for groups that do not exist yet."""

    def __init__(self, key: SigningKey, random: RandomBytes) -> None:
        self._key = key
        self._random = random

    def word(self, state: GroupState) -> EpochStatement:
        """Return this manager's statement about a group's epoch, whichever replica started it."""
        if state.word is None:
            raise RefusedError("keys.not-member", "this key group does not exist yet", hint="join it first")
        return replace(state.word, manager=self._key.principal)

    def welcome(self, state: GroupState, broker: Principal, holder: Holder, public: bytes) -> Reply:
        """Send a member its leaf and its path."""
        content = holder.leaf.expose() + state.place(broker)
        sealed = seal_welcome(state.group, broker, public, content, self._random)
        return Reply(broker, sign_value(KeyWelcome(self.word(state), broker, public, sealed), self._key))

    def path(self, state: GroupState, broker: Principal, holder: Holder, missed: Sequence[Secret] = ()) -> Reply:
        """Send a member its path, and the keys of previous epochs that it has missed."""
        salt, about = self._random(SALT_BYTES), (state.group, state.epoch)
        sealed = wrap_path(holder.leaf, state.place(broker), salt, *about)
        keys = wrap_missed(holder.leaf, missed, salt, *about) if missed else b""
        return Reply(broker, sign_value(KeyPathAnswer(self.word(state), broker, salt, sealed, keys), self._key))

    def history(self, state: GroupState, request: KeyRequest, first: int, keys: Sequence[Secret]) -> Reply:
        """Release the keys of consecutive epochs."""
        sealed = seal_history(state.group, request.broker, request.public, keys, self._random)
        answer = KeyHistory(self.word(state), request.broker, request.public, first, sealed)
        return Reply(request.broker, sign_value(answer, self._key))

    def epoch(self, word: EpochStatement, rekey: Rekey, most: int) -> list[Tell]:
        """Announce a new epoch to all members, with at most `most` nodes in one statement."""
        return [Tell(word.group, sign_value(part, self._key)) for part in split(word, rekey, most)]

    def notice(self, now: datetime, state: GroupState) -> Tell:
        """Remind all members of the current epoch."""
        return Tell(state.group, sign_value(KeyNotice(self.word(state), in_utc(now)), self._key))


# ----------------------------------------------------------------------------------------------------------------------
# When a key manager reminds members of a group's epoch: from time to time, and more often if they may not know it.
#
# A manager that has just started does not know which members it notified before, and brokers may not be reachable yet.
# A manager that reads another replica's new epoch in the log cannot know whether that replica crashed before it
# announced the epoch.


#: the first pause after a start is `key_retry` divided by this; each one is twice as long as the one before
_PATIENCE: Final = 16


class _Next(NamedTuple):
    due: datetime
    pause: timedelta


class KeyNotices:
    """Remembers when each group's members must be reminded of the epoch."""

    def __init__(self, limits: BrokerLimits) -> None:
        self._longest = timedelta(milliseconds=limits.key_notice)
        self._retry = timedelta(milliseconds=limits.key_retry)
        self._next: dict[KeyGroup, _Next] = {}

    def is_due(self, now: datetime, group: KeyGroup) -> bool:
        """Return whether to announce a group's epoch now, and plan the next announcement."""
        expected = self._next.get(group)
        if expected is not None and expected.due - expected.pause <= now < expected.due:
            return False
        pause = min(self._longest, self._retry / _PATIENCE if expected is None else 2 * expected.pause)
        self._next[group] = _Next(now + pause, pause)
        return True

    def told(self, now: datetime, group: KeyGroup) -> None:
        """Record that a group's new epoch is announced now."""
        self._next[group] = _Next(now + self._longest, self._longest)

    def told_by_another(self, now: datetime, group: KeyGroup) -> None:
        """Record that a replica has started an epoch, and should have announced it."""
        expected = self._next.get(group)
        if expected is not None:
            self._next[group] = expected._replace(due=min(expected.due, now + self._retry))

    def next(self, group: KeyGroup) -> datetime | None:
        """Return the time of a group's next announcement, if there was one before."""
        expected = self._next.get(group)
        return None if expected is None else expected.due


# ----------------------------------------------------------------------------------------------------------------------
# The record that a key manager has proposed for the end of the log, until the log has one there.


class Proposal:
    """A proposed record. It is proposed again after `retry`, until the log has a record at its position."""

    def __init__(self, retry: timedelta) -> None:
        self._retry = retry
        self._made: tuple[datetime, Append] | None = None

    @property
    def under_way(self) -> bool:
        """Whether a record is proposed."""
        return self._made is not None

    @property
    def turn(self) -> datetime | None:
        """When to call `again` at the latest."""
        return None if self._made is None else self._made[0] + self._retry

    def make(self, now: datetime, number: int, record: SignedValue[Record]) -> Append:
        """Propose a record for a position."""
        append = Append(number, record)
        self._made = now, append
        return append

    def again(self, now: datetime) -> list[Append]:
        """Propose the record again if `retry` has passed."""
        if self._made is None or abs(now - self._made[0]) < self._retry:
            return []
        self._made = now, self._made[1]
        return [self._made[1]]

    def settle(self, record: SignedValue[Record]) -> bool:
        """Record which record the log has at the position, and return whether it is the proposed one."""
        made, self._made = self._made, None
        return made is not None and made[1].record.digest == record.digest

    def admits(self, group: KeyGroup, broker: Principal) -> bool:
        """Return whether the proposed record admits a broker to a group."""
        record = self._about(group)
        return record is not None and any(broker == who for who, _ in record.admitted)

    def removes(self, group: KeyGroup, broker: Principal) -> bool:
        """Return whether the proposed record evicts a broker from a group, or lets it go."""
        record = self._about(group)
        return record is not None and broker in (*record.evicted, *record.left)

    def _about(self, group: KeyGroup) -> KeyRecord | None:
        record = None if self._made is None else self._made[1].record.value
        return record if isinstance(record, KeyRecord) and record.word.group == group else None


# ----------------------------------------------------------------------------------------------------------------------
# Requests to a key manager: each is signed, recent, and used once.
#
# The time of each broker's last request is remembered, and an older request is a replay. A manager that has just
# started remembers nothing. A replayed request must not remove a broker from a group, so requests to leave count only
# if they were made since the start. All other requests give a broker nothing that it has no right to.


_Asker: TypeAlias = tuple[Principal, KeyGroup]


class KeyRequests:
    """Verifies requests, and remembers the last one of each broker."""

    def __init__(self, skew: timedelta, limits: BrokerLimits) -> None:
        self._window = timedelta(milliseconds=limits.key_request) + skew
        self._begun: datetime | None = None
        self._last: dict[_Asker, datetime] = {}

    def begin(self, now: datetime) -> None:
        """Record when the manager has started, at the first call; later if its clock was ahead then."""
        self._begun = min(self._begun or in_utc(now), in_utc(now))

    def check(self, now: datetime, unverified: UnverifiedValue[KeyRequest], wish: KeyWish) -> KeyRequest:
        """Return a request if it is signed, of the right kind, recent, and not a replay.

        Raises `RefusedError`: `keys.wrong-request`, `keys.old-request`, `keys.weak-key`, and what signatures raise.
        """
        request = unverified.verify().value
        if request.wish is not wish:
            raise RefusedError("keys.wrong-request", f"a request to {request.wish}, not to {wish}")
        started = self._begun if wish is KeyWish.LEAVE else None
        last = self._last.get((request.broker, request.group), started)
        if last is not None and last > in_utc(now) + self._window:
            # It was accepted while this clock was ahead.
            last = started
        if abs(in_utc(now) - request.time) > self._window or (last is not None and request.time <= last):
            raise RefusedError(
                "keys.old-request", "a request is too old, or a replay", hint="set the clocks, and sign a new request"
            )
        if request.public:
            # Before anything is recorded, so that every record in the log can be answered.
            check_public(request.public)
        return request

    def remember(self, request: KeyRequest) -> None:
        """Remember a request of an entitled broker. Others could fill the memory."""
        self._last[request.broker, request.group] = request.time


# ----------------------------------------------------------------------------------------------------------------------
# The manager itself.


Serves: TypeAlias = Callable[[TypeKey], Collection[TypeName]]
"""Returns the versions of a type whose keys this manager manages; none for other types."""


class KeyManager:
    """A key manager. Records of `replicas` count besides its own. `now` must never go back."""

    def __init__(  # noqa: PLR0913  # each argument is one part of a manager's configuration
        self,
        key: SigningKey,
        kek: Secret,
        serves: Serves,
        random: RandomBytes,
        *,
        replicas: Collection[Principal] = (),
        refreshing: Refreshing | None = None,
        skew: timedelta = NO_SKEW,
        limits: BrokerLimits,
    ) -> None:
        self._key = key
        self._kek = kek
        self._serves = serves
        self._random = random
        self._refreshing = refreshing or Refreshing.by(limits)
        self._skew = skew
        self._limits = limits
        self._wishes: dict[KeyGroup, Wishes] = {}
        self._blocks: dict[KeyGroup, int] = {}
        self._notices = KeyNotices(limits)
        self._requests = KeyRequests(skew, limits)
        self._answers = KeyAnswers(key, random)
        self._fold = KeyFold(kek, frozenset((*replicas, key.principal)), random, limits)
        self._proposal = Proposal(timedelta(milliseconds=limits.key_retry))
        self._condensing = Condensing(kek, random, limits)

    # Requests of brokers.

    def join(self, now: datetime, unverified: UnverifiedValue[KeyRequest], grounds: Grounds) -> list[Output]:
        """Process a request to join or to renew a right, with the decisions about the broker.

        Raises `RefusedError`: `keys.not-entitled`, `keys.not-managed`, `keys.not-member` while an operator's eviction
        of the broker waits, and what any request raises (`keys.old-request`, `keys.wrong-request`,
        `evolution.wrong-key`, `key.bad-signature`); and `LimitError` (`keys.members`).
        """
        request = self._requests.check(now, unverified, KeyWish.JOIN)
        served = self._served(request.group)
        right = entitlement(grounds, request.broker, request.group, served, now)
        state = self._state(request.group)
        wishes = self._wish(request.group)
        wishes.check_room(state, request.broker, self._limits.key_members)
        self._requests.remember(request)
        if request.broker in wishes.ordered:
            # Its right may have changed since the operator's command, which does not undo it.
            raise RefusedError(
                "keys.not-member",
                f"an operator evicts {request.broker.short} from this key group",
                hint="join it again afterwards",
            )
        applicant = Applicant(right, request.public)
        member = state.members.get(request.broker)
        if request.group.labels:
            wishes.evict.discard(request.broker)
        wishes.leave.discard(request.broker)
        # A broker that is about to be evicted, or to leave, is admitted again afterwards.
        goes = request.broker in wishes.evict or self._proposal.removes(request.group, request.broker)
        if member is not None and member.until == right.until and not goes:
            return [self._answers.welcome(state, request.broker, member, applicant.public)]
        wishes.admit[request.broker] = applicant
        wishes.expire(state, now)
        return self._propose(now)

    def leave(self, now: datetime, unverified: UnverifiedValue[KeyRequest]) -> list[Output]:
        """Process a request to leave. Raises `RefusedError`, as any request does, and `keys.not-member`."""
        request = self._requests.check(now, unverified, KeyWish.LEAVE)
        self._member(request)
        wishes = self._wish(request.group)
        wishes.admit.pop(request.broker, None)
        wishes.leave.add(request.broker)
        return self._propose(now)

    def path(self, now: datetime, unverified: UnverifiedValue[KeyRequest]) -> list[Output]:
        """Send a member that has missed something its path, and the keys of epochs that it has missed.

        Raises `RefusedError`, as `leave` does.
        """
        request = self._requests.check(now, unverified, KeyWish.PATH)
        state, holder = self._member(request)
        missed = self._fold.missed(state, holder, request.first)
        return [self._answers.path(state, request.broker, holder, missed)]

    def was_evicted(self, request: KeyRequest) -> bool:
        """Return whether a broker was evicted for good, and has not heard of a later epoch than this manager.

        A broker that was admitted again has: its admission started one, which a replica that is behind has not read.
        """
        state, wishes = self._state(request.group), self._wishes.get(request.group)
        waits = wishes is not None and request.broker in wishes.admit
        return request.broker in state.evicted and not waits and state.epoch >= request.last

    def refresh(self, now: datetime, unverified: UnverifiedValue[KeyRequest]) -> list[Output]:
        """Process a member's request for a new epoch, because it has sealed as much as one key allows.

        Raises `RefusedError`, as `leave` does, and `keys.too-soon`, so that no member can keep a group busy.
        """
        request = self._requests.check(now, unverified, KeyWish.REFRESH)
        state, _ = self._member(request)
        if now < self._answers.word(state).begun + timedelta(milliseconds=self._limits.key_refresh):
            raise RefusedError("keys.too-soon", "the epoch has just started", hint="continue with its key")
        return self.rotate(now, request.group)

    def history(self, now: datetime, unverified: UnverifiedValue[KeyRequest], grounds: Grounds) -> list[Output]:
        """Release keys of past epochs to a principal that has one of `history_rights`.

        Raises `RefusedError`, as `join` does, and `keys.no-history` if none of the epochs is over and kept.
        """
        request = self._requests.check(now, unverified, KeyWish.HISTORY)
        rights = self.history_rights(now, request)
        entitlement(grounds, request.broker, request.group, self._served(request.group), now, rights=rights)
        self._requests.remember(request)
        state = self._state(request.group)
        return [self._answers.history(state, request, *self._fold.released(state, request.first, request.last))]

    def history_rights(self, now: datetime, request: KeyRequest) -> frozenset[Right]:
        """Return the rights that release the requested keys: `history`, except for labels that are still in use.

        Every member of the group may have those, also one that joined after they changed.
        """
        state = self._state(request.group)
        in_use = request.first == request.last == state.epoch - 1 and self._refreshing.overlaps(state, now)
        return MEMBERS if in_use and request.broker in state.members else READERS

    # Operators, policy and time.

    def evict(self, now: datetime, group: KeyGroup, broker: Principal) -> list[Output]:
        """Evict a broker, whatever its right. Does nothing if it does not hold the key."""
        wishes = self._wish(group)
        wishes.admit.pop(broker, None)
        if broker in self._state(group).holders() or self._proposal.admits(group, broker):
            wishes.evict.add(broker)
            wishes.ordered.add(broker)
        return self._propose(now)

    def review(
        self,
        now: datetime,
        group: KeyGroup,
        grounds: Callable[[Principal], Grounds],
        spared: Collection[Principal] = (),
    ) -> list[Output]:
        """Apply a policy change: `grounds` returns the decisions about each broker that has or awaits the key.

        Members without a right are evicted, all in one step. Brokers in `spared` are not reviewed. A manager that does
        not serve the group, say because it has lost its own right, decides nothing: others may.
        """
        served = self._serves(group.type)
        if not served:
            return []
        state, wishes = self._state(group), self._wish(group)
        for broker in sorted(self.holders(group) - frozenset(spared)):
            try:
                right = entitlement(grounds(broker), broker, group, served, now)
            except RefusedError:
                right = None
            wishes.review(state, broker, right)
            if right is None and self._proposal.admits(group, broker):
                wishes.evict.add(broker)
        wishes.expire(state, now)
        return self._propose(now)

    def rotate(self, now: datetime, group: KeyGroup) -> list[Output]:
        """Start an epoch, for an operator."""
        self._wish(group).refresh = True
        return self._propose(now)

    def sealed(self, now: datetime, group: KeyGroup, blocks: int) -> list[Output]:
        """Count blocks that were sealed under the epoch's key, and start an epoch if there are enough."""
        self._blocks[group] = self._blocks.get(group, 0) + blocks
        return self.rotate(now, group) if self._blocks[group] >= self._refreshing.blocks else []

    def condense(self, now: datetime, since: datetime | None = None) -> list[Output]:
        """Write a checkpoint without the keys of epochs that ended before `since`.

        Raises `LimitError` (`keys.checkpoint`).
        """
        self._condensing.want(since)
        return self._propose(now)

    def forgot(self, number: int) -> None:
        """Record that the log has dropped all records before a position."""
        self._condensing.forgotten = max(number, self._condensing.forgotten)

    @property
    def forgotten(self) -> int:
        """The position before which the log keeps nothing, as far as is known."""
        return self._condensing.forgotten

    def has_forgotten(self, before: datetime, place: int) -> bool:
        """Return whether the log has forgotten the epochs that ended before a time.

        It has if a checkpoint at or after `place` leaves them out, and the records before it were dropped.
        """
        begins = self._fold.checkpoint
        return self._condensing.has_left_out(before) and begins >= place and self.forgotten >= begins

    def holders(self, group: KeyGroup) -> frozenset[Principal]:
        """Return all brokers that hold the key or are about to: a policy change reviews each of them."""
        return frozenset((*self._state(group).holders(), *self._wish(group).admit))

    def lapsed(self, now: datetime) -> frozenset[Principal]:
        """Return the brokers whose right to a group has ended by its date, and about which nothing is decided yet."""
        found: set[Principal] = set()
        for group, state in self._fold.groups.items():
            wishes = self._wish(group)
            over = [who for who, holder in state.holders().items() if holder.expired(now) and not wishes.has(who)]
            # As in `review`. Asked only then: it takes decisions.
            if over and self._serves(group.type):
                found.update(over)
        return frozenset(found)

    def word(self, group: KeyGroup) -> EpochStatement | None:
        """Return the last statement about a group's epoch, if the group exists."""
        return self._state(group).word

    def relabels(self, now: datetime, group: KeyGroup) -> bool:
        """Return whether the labels are changing, so that the next change has to wait."""
        return self._refreshing.overlaps(self._state(group), now)

    def groups(self) -> Iterator[KeyGroup]:
        """Yield the groups that exist."""
        return iter(self._fold.groups)

    def tick(self, now: datetime) -> tuple[list[Output], datetime | None]:
        """Process what is due; return the outputs, and when to call again at the latest."""
        self._requests.begin(now)
        said: list[Output] = []
        for group, state in self._fold.groups.items():
            if state.word is None:
                continue
            self._age(now, state, state.word)
            if self._notices.is_due(now, group):
                said.append(self._answers.notice(now, state))
        said += self._proposal.again(now)
        if self.forgotten < self._fold.checkpoint:
            # Also for a replica that crashed before it could truncate the log, or this one before its restart.
            said.append(TruncateLog(self._fold.checkpoint))
        self._condensing.look(self._fold)
        return [*said, *self._go_on(now)], self.turns()

    def _age(self, now: datetime, state: GroupState, word: EpochStatement) -> None:
        """Evict the brokers whose right has ended, and end an epoch that is old."""
        refresh = now >= word.begun + timedelta(milliseconds=self._refreshing.of(state.group).period)
        # This manager's clock was ahead then, and is right again: members refuse an epoch from the future.
        refresh |= word.manager == self._key.principal and word.begun > now + self._skew
        ended = any(holder.expired(now) for holder in state.holders().values())
        # As in `lapsed`.
        if (refresh or ended) and self._serves(state.group.type):
            wishes = self._wish(state.group)
            wishes.refresh |= refresh
            wishes.expire(state, now)

    def turns(self) -> datetime | None:
        """Return when to call `tick` at the latest."""
        turn = self._proposal.turn
        for group, state in self._fold.groups.items():
            if state.word is None:
                continue
            turn = earliest(turn, state.word.begun + timedelta(milliseconds=self._refreshing.of(group).period))
            turn = earliest(turn, self._refreshing.resumes(state, self._wish(group)))
            turn = earliest(turn, self._notices.next(group))
            for holder in state.holders().values():
                if holder.until is not None:
                    turn = earliest(turn, holder.until + datetime.resolution)
        return turn

    # The log.

    @property
    def position(self) -> int:
        """How many records were read: the position of the next one."""
        return self._fold.number

    def take(self, now: datetime, unverified: UnverifiedValue[Record]) -> list[Output]:
        """Process the next record of the log, its own or another's; at the start, from the first one on.

        If records were dropped, the first one starts a checkpoint. A record that does not follow
        (`GroupState.check`) is skipped by every replica. Raises `RefusedError` (`keys.log`) for a record that is not
        the next one or not a replica's, and what signatures and unwrapping raise. Then nothing has changed.
        """
        signed = unverified.verify()
        record, taken = signed.value, self._fold.take(signed)
        mine = self._proposal.settle(signed)
        if isinstance(record, KeyCheckpoint):
            self._condensing.take(now, mine=mine, whole=taken.whole)
            said: list[Output] = [TruncateLog(record.first)] if mine and taken.whole else []
        else:
            self._condensing.broken()
            skipped = taken.skipped
            said = [Noted(skipped)] if skipped else self._recorded(now, record, taken.rekey, mine=mine)
        return [*said, *self._go_on(now)]

    def _recorded(self, now: datetime, record: KeyRecord, rekey: Rekey | None, *, mine: bool) -> list[Output]:
        said: list[Output] = []
        state = self._state(record.word.group)
        if rekey is not None:
            self._blocks.pop(state.group, None)
        if rekey is not None and mine:
            self._notices.told(now, state.group)
            said += self._answers.epoch(record.word, rekey, self._limits.key_nodes)
        elif rekey is not None:
            self._notices.told_by_another(now, state.group)
        # A broker that asked here is answered here, whichever replica recorded it.
        for broker, applicant in self._wish(state.group).settle(state, record):
            if applicant.public:
                said.append(self._answers.welcome(state, broker, state.members[broker], applicant.public))
        return said

    # Proposing.

    def _go_on(self, now: datetime) -> list[Output]:
        """Propose the next record. A checkpoint that is too large blocks nothing else."""
        try:
            return self._propose(now)
        except LimitError as error:
            return [Noted(error), *self._propose(now)]

    def _propose(self, now: datetime) -> list[Output]:
        """Propose the next record unless one is under way. A checkpoint comes first: its parts must be consecutive."""
        if self._proposal.under_way or self._condensing.waits(now):
            return []
        if self._condensing.wanted and self._fold.groups:
            part = self._condensing.next(in_utc(now), self._fold, self._key.principal)
            return [self._proposal.make(now, self._fold.number, sign_value(part, self._key))]
        for group, wishes in self._wishes.items():
            state = self._state(group)
            wishes.fit(state, self._limits.key_members, now)
            due = self._refreshing.due(state, wishes, now)
            if due:
                record = self._record(in_utc(now), state, due)
                # A record that would be skipped must not be written: it would be proposed again and again.
                state.check(record)
                # Groups take turns.
                self._wishes[group] = self._wishes.pop(group)
                return [self._proposal.make(now, self._fold.number, sign_value(record, self._key))]
        return []

    def _record(self, now: datetime, state: GroupState, wishes: Wishes) -> KeyRecord:
        word = state.word
        refresh = word is None or wishes.need_epoch(state, word.begun - self._skew)
        if refresh:
            lasts = self._refreshing.of(state.group)
            word = EpochStatement(self._key.principal, state.group, state.epoch + 1, now, lasts.longest, lasts.blocks)
        else:
            word = self._answers.word(state)
        salt, seed = self._random(SALT_BYTES), Secret(self._random(SECRET_BYTES))
        sealed = wrap_seed(self._kek, seed, salt, state.group, self._fold.number)
        # What does not fit into one record waits for the next.
        changes = wishes.changes(self._limits.key_changes)
        return KeyRecord(word, self._fold.number, self._fold.head, now, refresh, salt, sealed, *changes)

    def _member(self, request: KeyRequest) -> tuple[GroupState, Holder]:
        state = self._state(request.group)
        holder = state.members.get(request.broker)
        if holder is None:
            raise RefusedError(
                "keys.not-member", f"{request.broker.short} is not a member of this key group", hint="join it first"
            )
        self._requests.remember(request)
        return state, holder

    def _served(self, group: KeyGroup) -> Collection[TypeName]:
        served = self._serves(group.type)
        if not served:
            raise RefusedError("keys.not-managed", f"this broker does not manage the keys of `{group.type.name}`")
        return served

    def _state(self, group: KeyGroup) -> GroupState:
        return self._fold.state(group)

    def _wish(self, group: KeyGroup) -> Wishes:
        return self._wishes.setdefault(group, Wishes())
