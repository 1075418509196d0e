"""A key manager, or one of its replicas: who is in a key group, and when its key changes (section 7.6).

A plain state machine. Whoever drives it tells it what comes, and carries out what it returns, in order:

1. All state is a fold of one log, in which each record has a number and follows the one before. To change anything a
   manager proposes a record (`Append`) for the place where, as far as it knows, the log ends. The log takes it there or
   not at all: so replicas never split, and one that was asleep can do nothing but read. Either way the driver then
   hands over what the log has (`take`). Only when its own record comes back does a manager tell anybody; when another's
   comes in that place it proposes anew.
2. Nobody gets a key but by a right that `decide()` found (`key_rights`), asked by the driver.
3. An epoch ends when somebody who holds its key must not have the next (eviction, or the end of a right), when somebody
   joins who had no right when it began, by age and by volume. It does not end where the credentials show that it need
   not: who joins with a right that is older than the epoch gets its key, and who leaves keeps a key that it has a right
   to (section 7.6.2). Both take effect in the tree with the next epoch, all at once.

Seeds in the log, and keys of epochs that are over, are wrapped under a key that replicas share (`kek`).
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

from penstock.broker.evolution import NO_SKEW
from penstock.broker.key_group import GroupState, Holder
from penstock.broker.key_rights import READERS, Grounds, entitlement
from penstock.broker.key_sealing import (
    open_over,
    open_seed,
    seal_history,
    seal_welcome,
    wrap_over,
    wrap_path,
    wrap_seed,
)
from penstock.broker.key_wishes import Applicant, Wishes
from penstock.broker.sessions import earliest
from penstock.crypto import SigningKey
from penstock.crypto.keyfile import RandomBytes
from penstock.crypto.wrapping import SALT_BYTES, SECRET_BYTES, Secret
from penstock.errors import RefusedError
from penstock.model.instants import in_utc
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.names import TypeKey, TypeName
from penstock.model.principals import Principal
from penstock.trust.key_messages import (
    KeyEpoch,
    KeyGroup,
    KeyHistory,
    KeyNotice,
    KeyPathAnswer,
    KeyRecord,
    KeyRequest,
    KeyWelcome,
    Wish,
    Word,
    split,
)
from penstock.trust.policy_events import BEGINNING
from penstock.trust.signed import SignedValue, UnverifiedValue, sign_value

Told: TypeAlias = KeyEpoch | KeyNotice
Answer: TypeAlias = KeyWelcome | KeyPathAnswer | KeyHistory
Serves: TypeAlias = Callable[[TypeKey], Collection[TypeName]]
"""Says which versions of a type are served whose key groups are managed here; none for other types."""


@dataclass(frozen=True, slots=True)
class Append:
    """To be written to the log at a place, if it ends there. What the log has from there on is then to be taken."""

    number: int
    record: SignedValue[KeyRecord]


@dataclass(frozen=True, slots=True)
class Tell:
    """To be sent to all members of a group. Anybody may hear it."""

    group: KeyGroup
    value: SignedValue[Told]


@dataclass(frozen=True, slots=True)
class Reply:
    """To be sent to one broker."""

    broker: Principal
    value: SignedValue[Answer]


Output: TypeAlias = Append | Tell | Reply


@dataclass(frozen=True, slots=True)
class Refreshing:
    """When an epoch ends by itself, in milliseconds and blocks, and after which time nobody may seal under its key."""

    period: int = DEFAULT_LIMITS.key_epoch
    blocks: int = DEFAULT_LIMITS.key_blocks
    longest: int = DEFAULT_LIMITS.key_longest


class KeyManager:
    """See the module. `replicas` are those whose records count besides its own. `now` never goes back."""

    def __init__(  # noqa: PLR0913  # each argument is one of the things that a manager goes by
        self,
        key: SigningKey,
        kek: Secret,
        serves: Serves,
        random: RandomBytes,
        *,
        replicas: Collection[Principal] = (),
        refreshing: Refreshing | None = None,
        skew: timedelta = NO_SKEW,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self._key = key
        self._kek = kek
        self._serves = serves
        self._random = random
        self._replicas = frozenset((*replicas, key.principal))
        self._refreshing = refreshing or Refreshing(limits.key_epoch, limits.key_blocks, limits.key_longest)
        self._skew = skew
        self._limits = limits
        self._groups: dict[KeyGroup, GroupState] = {}
        self._wishes: dict[KeyGroup, Wishes] = {}
        self._blocks: dict[KeyGroup, int] = {}
        self._noticed: dict[KeyGroup, datetime] = {}
        #: the last request of each broker: an older one is a copy
        self._asked: dict[tuple[Principal, KeyGroup], datetime] = {}
        #: keys of epochs that are over, wrapped
        self._over: dict[tuple[bytes, int], tuple[bytes, bytes]] = {}
        self._number = 0
        self._head = BEGINNING
        self._proposed: tuple[datetime, SignedValue[KeyRecord]] | None = None

    # What brokers ask.

    def join(self, now: datetime, unverified: UnverifiedValue[KeyRequest], grounds: Grounds) -> list[Output]:
        """Take in a request to join, or to have a right renewed, with what was decided about the broker.

        Raises `RefusedError`: `keys.not-entitled`, `keys.not-managed`, and what any request raises (`keys.old-request`,
        `keys.wrong-request`, `evolution.wrong-key`, `key.bad-signature`).
        """
        request = self._check(now, unverified, Wish.JOIN)
        served = self._served(request.group)
        right = entitlement(grounds, request.broker, request.group, served, now)
        self._asked[request.broker, request.group] = request.time
        state = self._state(request.group)
        applicant = Applicant(right, request.public)
        member = state.members.get(request.broker)
        if member is not None and member.until == right.until:
            return [self._welcome(state, request.broker, member, applicant.public)]
        wishes = self._wish(request.group)
        wishes.admit[request.broker] = applicant
        wishes.leave.discard(request.broker)
        return self._propose(now)

    def leave(self, now: datetime, unverified: UnverifiedValue[KeyRequest]) -> list[Output]:
        """Take in a request to leave. Raises `RefusedError`, as any request does, and `keys.not-member`."""
        request = self._check(now, unverified, Wish.LEAVE)
        self._member(request)
        self._wish(request.group).leave.add(request.broker)
        return self._propose(now)

    def path(self, now: datetime, unverified: UnverifiedValue[KeyRequest]) -> list[Output]:
        """Tell a member that has missed something where it is. Raises `RefusedError`, as `leave` does."""
        request = self._check(now, unverified, Wish.PATH)
        state, holder = self._member(request)
        salt = self._random(SALT_BYTES)
        sealed = wrap_path(holder.leaf, state.place(request.broker), salt, state.group, state.epoch)
        answer = KeyPathAnswer(self._word(state), request.broker, salt, sealed)
        return [Reply(request.broker, sign_value(answer, self._key))]

    def refresh(self, now: datetime, unverified: UnverifiedValue[KeyRequest]) -> list[Output]:
        """Take in a member's word that it has sealed as much as it may under one key.

        Raises `RefusedError`, as `leave` does, and `keys.too-soon`: nobody can keep a group busy.
        """
        request = self._check(now, unverified, Wish.REFRESH)
        state, _ = self._member(request)
        if now < self._word(state).begun + timedelta(milliseconds=self._limits.key_refresh):
            raise RefusedError("keys.too-soon", "the epoch has only begun", hint="go on with its key")
        return self.rotate(now, request.group)

    def history(self, now: datetime, unverified: UnverifiedValue[KeyRequest], grounds: Grounds) -> list[Output]:
        """Release keys of epochs that are over, to a broker that was found to have the right `history`.

        Raises `RefusedError`, as `join` does, and `keys.no-history` where none of the epochs is over.
        """
        request = self._check(now, unverified, Wish.HISTORY)
        entitlement(grounds, request.broker, request.group, self._served(request.group), now, rights=READERS)
        self._asked[request.broker, request.group] = request.time
        state = self._state(request.group)
        last = min(request.last, state.epoch - 1, request.first + self._limits.key_history - 1)
        if not 1 <= request.first <= last:
            raise RefusedError("keys.no-history", "none of these epochs is over", hint="epochs are counted from 1")
        keys = [self._archived(state, epoch) for epoch in range(request.first, last + 1)]
        sealed = seal_history(state.group, request.broker, request.public, keys, self._random)
        answer = KeyHistory(self._word(state), request.broker, request.public, request.first, sealed)
        return [Reply(request.broker, sign_value(answer, self._key))]

    # What the operator, the policy and the clock say.

    def evict(self, now: datetime, group: KeyGroup, broker: Principal) -> list[Output]:
        """Take the key from a broker, whatever its right; nothing where it does not hold it."""
        wishes = self._wish(group)
        wishes.admit.pop(broker, None)
        if broker in self._state(group).holders() or self._is_proposed(group, broker):
            wishes.evict.add(broker)
        return self._propose(now)

    def review(self, now: datetime, group: KeyGroup, grounds: Callable[[Principal], Grounds]) -> list[Output]:
        """Go by a policy that has changed: `grounds` asks the door about each broker that has the key or waits for it.

        Who has no right any more is evicted, all of them at once.
        """
        state, wishes = self._state(group), self._wish(group)
        for broker in self.holders(group):
            try:
                right = entitlement(grounds(broker), broker, group, self._serves(group.type), now)
            except RefusedError:
                right = None
            wishes.review(state, broker, right)
            if right is None and self._is_proposed(group, broker):
                wishes.evict.add(broker)
        return self._propose(now)

    def rotate(self, now: datetime, group: KeyGroup) -> list[Output]:
        """Begin an epoch, for an operator who wants one."""
        self._wish(group).refresh = True
        return self._propose(now)

    def sealed(self, now: datetime, group: KeyGroup, blocks: int) -> list[Output]:
        """Take note that so many blocks more were sealed under the key of the epoch."""
        self._blocks[group] = self._blocks.get(group, 0) + blocks
        return self.rotate(now, group) if self._blocks[group] >= self._refreshing.blocks else []

    def holders(self, group: KeyGroup) -> frozenset[Principal]:
        """Return all that hold the key or are about to: when policy changes, each is asked about anew."""
        return frozenset((*self._state(group).holders(), *self._wish(group).admit))

    def groups(self) -> Iterator[KeyGroup]:
        """Yield the groups that have begun."""
        return iter(self._groups)

    def tick(self, now: datetime) -> tuple[list[Output], datetime | None]:
        """Notice what has ended, tell the epochs, and say when to call again at the latest."""
        said: list[Output] = []
        for group, state in self._groups.items():
            if state.word is None:
                continue
            wishes = self._wish(group)
            wishes.evict |= {broker for broker, holder in state.holders().items() if holder.expired(now)}
            wishes.refresh |= now >= state.word.begun + timedelta(milliseconds=self._refreshing.period)
            said += self._notice(now, state)
        if self._proposed is not None and now >= self._proposed[0] + timedelta(milliseconds=self._limits.key_retry):
            # Whether the log has it nobody has said: it takes it now, or says that the place is taken.
            self._proposed = now, self._proposed[1]
            said.append(Append(self._number, self._proposed[1]))
        return [*said, *self._propose(now)], self.turns()

    def turns(self) -> datetime | None:
        """Return when to call `tick` at the latest, as things are."""
        turn: datetime | None = None
        if self._proposed is not None:
            turn = self._proposed[0] + timedelta(milliseconds=self._limits.key_retry)
        for group, state in self._groups.items():
            if state.word is None:
                continue
            turn = earliest(turn, state.word.begun + timedelta(milliseconds=self._refreshing.period))
            if group in self._noticed:
                turn = earliest(turn, self._noticed[group] + timedelta(milliseconds=self._limits.key_notice))
            for holder in state.holders().values():
                if holder.until is not None:
                    turn = earliest(turn, holder.until + datetime.resolution)
        return turn

    # The log.

    @property
    def position(self) -> int:
        """How many records were taken: where the log goes on."""
        return self._number

    def take(self, now: datetime, unverified: UnverifiedValue[KeyRecord]) -> list[Output]:
        """Take in the next record of the log, its own or another's; also to begin with, from the first one on.

        Raises `RefusedError` (`keys.log`) for one that is not the next, or of somebody who is no replica, and what
        signatures, `GroupState.check` and unwrapping raise. Nothing has changed then.
        """
        signed = unverified.verify()
        record = signed.value
        if record.word.manager not in self._replicas or (record.number, record.previous) != (self._number, self._head):
            raise RefusedError(
                "keys.log", "a record is not the next one of the log, or not of a manager", hint="read the log in order"
            )
        seed = open_seed(self._kek, record.seed, record.salt, record.word.group, record.number)
        state = self._state(record.word.group)
        state.check(record)
        if record.refresh and state.epoch:
            self._archive(state)
        rekey = state.apply(record, seed)
        self._groups[state.group] = state
        self._number, self._head = self._number + 1, signed.digest
        mine = self._proposed is not None and self._proposed[1].digest == signed.digest
        self._proposed = None
        said: list[Output] = []
        if rekey is not None:
            self._blocks.pop(state.group, None)
        if rekey is not None and mine:
            self._noticed[state.group] = now
            parts = split(record.word, rekey, self._limits.key_nodes)
            said += [Tell(state.group, sign_value(part, self._key)) for part in parts]
        # Who asked here is answered, whichever replica recorded it.
        for broker, applicant in self._wish(state.group).settle(state, record):
            if applicant.public:
                said.append(self._welcome(state, broker, state.members[broker], applicant.public))
        return [*said, *self._propose(now)]

    # What follows.

    def _propose(self, now: datetime) -> list[Output]:
        """Propose the next record, unless one is under way."""
        if self._proposed is None:
            for group, wishes in self._wishes.items():
                if wishes:
                    record = sign_value(self._record(in_utc(now), self._state(group), wishes), self._key)
                    self._proposed = now, record
                    return [Append(self._number, record)]
        return []

    def _record(self, now: datetime, state: GroupState, wishes: Wishes) -> KeyRecord:
        word = state.word
        refresh = word is None or wishes.need_epoch(state, word.begun - self._skew)
        if refresh:
            word = Word(self._key.principal, state.group, state.epoch + 1, now, self._refreshing.longest)
        else:
            word = self._word(state)
        salt, seed = self._random(SALT_BYTES), self._random(SECRET_BYTES)
        sealed = wrap_seed(self._kek, seed, salt, state.group, self._number)
        # What is too much for one record is left for the next.
        changes = wishes.changes(self._limits.key_changes)
        return KeyRecord(word, self._number, self._head, now, refresh, salt, sealed, *changes)

    def _welcome(self, state: GroupState, broker: Principal, holder: Holder, public: bytes) -> Output:
        content = holder.leaf.expose() + state.place(broker)
        sealed = seal_welcome(state.group, broker, public, content, self._random)
        return Reply(broker, sign_value(KeyWelcome(self._word(state), broker, public, sealed), self._key))

    def _notice(self, now: datetime, state: GroupState) -> Iterator[Output]:
        last = self._noticed.get(state.group)
        if last is None or now >= last + timedelta(milliseconds=self._limits.key_notice):
            self._noticed[state.group] = now
            yield Tell(state.group, sign_value(KeyNotice(self._word(state), in_utc(now)), self._key))

    def _check(self, now: datetime, unverified: UnverifiedValue[KeyRequest], wish: Wish) -> KeyRequest:
        """Check a request: signed, of the right kind, of now, and no copy of an earlier one."""
        request = unverified.verify().value
        if request.wish is not wish:
            raise RefusedError("keys.wrong-request", f"a request to {request.wish}, not to {wish}")
        last = self._asked.get((request.broker, request.group))
        window = timedelta(milliseconds=self._limits.key_request) + self._skew
        if abs(in_utc(now) - request.time) > window or (last is not None and request.time <= last):
            raise RefusedError(
                "keys.old-request", "a request is too old, or has come before", hint="sign a new one; set the clocks"
            )
        return request

    def _member(self, request: KeyRequest) -> tuple[GroupState, Holder]:
        state = self._state(request.group)
        holder = state.members.get(request.broker)
        if holder is None:
            raise RefusedError(
                "keys.not-member", f"{request.broker.short} is not in this key group", hint="join it first"
            )
        # Remembered for those alone who have a right to something: others could fill any memory.
        self._asked[request.broker, request.group] = request.time
        return state, holder

    def _served(self, group: KeyGroup) -> Collection[TypeName]:
        served = self._serves(group.type)
        if not served:
            raise RefusedError("keys.not-managed", f"the keys of `{group.type.name}` are managed by somebody else")
        return served

    def _state(self, group: KeyGroup) -> GroupState:
        return self._groups.get(group) or GroupState(group, self._limits)

    def _wish(self, group: KeyGroup) -> Wishes:
        return self._wishes.setdefault(group, Wishes())

    def _is_proposed(self, group: KeyGroup, broker: Principal) -> bool:
        record = self._proposed[1].value if self._proposed is not None else None
        return record is not None and record.word.group == group and any(broker == who for who, _ in record.admitted)

    def _word(self, state: GroupState) -> Word:
        """Return this manager's word on the epoch of a group, whichever replica began it."""
        if state.word is None:
            raise RefusedError("keys.not-member", "this key group has not begun", hint="join it first")
        word = state.word
        return Word(self._key.principal, word.group, word.epoch, word.begun, word.longest)

    def _archive(self, state: GroupState) -> None:
        salt = self._random(SALT_BYTES)
        box = wrap_over(self._kek, state.tree.key(), salt, state.group, state.epoch)
        self._over[state.id, state.epoch] = salt, box

    def _archived(self, state: GroupState, epoch: int) -> Secret:
        salt, box = self._over[state.id, epoch]
        return open_over(self._kek, box, salt, state.group, epoch)
