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
4. Now and then all state goes into the log as a checkpoint (`key_checkpoint`), and what came before is forgotten.

Seeds in the log, and keys of epochs that are over, are wrapped under a key that replicas share (`kek`).
"""

from collections.abc import Callable, Collection, Iterator
from datetime import datetime, timedelta
from typing import TypeAlias

from penstock.broker.evolution import NO_SKEW
from penstock.broker.key_answers import KeyAnswers
from penstock.broker.key_checkpoint import Condensing
from penstock.broker.key_fold import KeyFold
from penstock.broker.key_group import GroupState, Holder
from penstock.broker.key_notices import KeyNotices
from penstock.broker.key_outputs import Forget, Noted, Output, Record
from penstock.broker.key_proposal import Proposal
from penstock.broker.key_refreshing import Refreshing
from penstock.broker.key_requests import KeyRequests
from penstock.broker.key_rights import MEMBERS, READERS, Grounds, entitlement
from penstock.broker.key_sealing import wrap_seed
from penstock.broker.key_wishes import Applicant, Wishes
from penstock.broker.sessions import earliest
from penstock.crypto import SigningKey
from penstock.crypto.key_tree import Rekey
from penstock.crypto.keyfile import RandomBytes
from penstock.crypto.wrapping import SALT_BYTES, SECRET_BYTES, Secret
from penstock.errors import LimitError, RefusedError
from penstock.model.instants import in_utc
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.names import TypeKey, TypeName
from penstock.model.principals import Principal
from penstock.trust.capabilities import Right
from penstock.trust.key_messages import (
    KeyGroup,
    KeyRequest,
    Wish,
    Word,
)
from penstock.trust.key_records import KeyCheckpoint, KeyRecord
from penstock.trust.signed import UnverifiedValue, sign_value

Serves: TypeAlias = Callable[[TypeKey], Collection[TypeName]]
"""Says which versions of a type are served whose key groups are managed here; none for other types."""


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

    # What brokers ask.

    def join(self, now: datetime, unverified: UnverifiedValue[KeyRequest], grounds: Grounds) -> list[Output]:
        """Take in a request to join, or to have a right renewed, with what was decided about the broker.

        Raises `RefusedError`: `keys.not-entitled`, `keys.not-managed`, and what any request raises (`keys.old-request`,
        `keys.wrong-request`, `evolution.wrong-key`, `key.bad-signature`); and `LimitError` (`keys.members`).
        """
        request = self._requests.check(now, unverified, Wish.JOIN)
        served = self._served(request.group)
        right = entitlement(grounds, request.broker, request.group, served, now)
        state = self._state(request.group)
        self._wish(request.group).check_room(state, request.broker, self._limits.key_members)
        self._requests.remember(request)
        applicant = Applicant(right, request.public)
        member = state.members.get(request.broker)
        if request.group.labels:
            self._wish(request.group).reinstate(request.broker)
        if member is not None and member.until == right.until:
            return [self._answers.welcome(state, request.broker, member, applicant.public)]
        wishes = self._wish(request.group)
        wishes.admit[request.broker] = applicant
        wishes.leave.discard(request.broker)
        return self._propose(now)

    def leave(self, now: datetime, unverified: UnverifiedValue[KeyRequest]) -> list[Output]:
        """Take in a request to leave. Raises `RefusedError`, as any request does, and `keys.not-member`."""
        request = self._requests.check(now, unverified, Wish.LEAVE)
        self._member(request)
        self._wish(request.group).leave.add(request.broker)
        return self._propose(now)

    def path(self, now: datetime, unverified: UnverifiedValue[KeyRequest]) -> list[Output]:
        """Tell a member that has missed something where it is, with the keys of epochs that it has missed.

        Raises `RefusedError`, as `leave` does.
        """
        request = self._requests.check(now, unverified, Wish.PATH)
        state, holder = self._member(request)
        missed = self._fold.missed(state, holder, request.first)
        return [self._answers.path(state, request.broker, holder, missed)]

    def was_evicted(self, request: KeyRequest) -> bool:
        """Say whether somebody was evicted, who has heard of no later epoch than there is here.

        Who is back has heard of one: it began when it joined, and a replica that is behind has not read of it.
        """
        state = self._state(request.group)
        return request.broker in state.evicted and state.epoch >= request.last

    def refresh(self, now: datetime, unverified: UnverifiedValue[KeyRequest]) -> list[Output]:
        """Take in a member's word that it has sealed as much as it may under one key.

        Raises `RefusedError`, as `leave` does, and `keys.too-soon`: nobody can keep a group busy.
        """
        request = self._requests.check(now, unverified, Wish.REFRESH)
        state, _ = self._member(request)
        if now < self._answers.word(state).begun + timedelta(milliseconds=self._limits.key_refresh):
            raise RefusedError("keys.too-soon", "the epoch has only begun", hint="go on with its key")
        return self.rotate(now, request.group)

    def history(self, now: datetime, unverified: UnverifiedValue[KeyRequest], grounds: Grounds) -> list[Output]:
        """Release keys of epochs that are over, to somebody who was found to have one of `history_rights`.

        Raises `RefusedError`, as `join` does, and `keys.no-history` where none of the epochs is over.
        """
        request = self._requests.check(now, unverified, Wish.HISTORY)
        rights = self.history_rights(now, request)
        entitlement(grounds, request.broker, request.group, self._served(request.group), now, rights=rights)
        self._requests.remember(request)
        state = self._state(request.group)
        return [self._answers.history(state, request, *self._fold.released(state, request.first, request.last))]

    def history_rights(self, now: datetime, request: KeyRequest) -> frozenset[Right]:
        """Return which rights release what is asked for: `history`, except for labels that are still in use.

        Their key is for every member of the group, which may have joined after they changed.
        """
        state = self._state(request.group)
        in_use = request.first == request.last == state.epoch - 1 and self._refreshing.overlaps(state, now)
        return MEMBERS if in_use and request.broker in state.members else READERS

    # What the operator, the policy and the clock say.

    def evict(self, now: datetime, group: KeyGroup, broker: Principal) -> list[Output]:
        """Take the key from a broker, whatever its right; nothing where it does not hold it."""
        wishes = self._wish(group)
        wishes.admit.pop(broker, None)
        if broker in self._state(group).holders() or self._proposal.admits(group, broker):
            wishes.evict.add(broker)
        return self._propose(now)

    def review(
        self,
        now: datetime,
        group: KeyGroup,
        grounds: Callable[[Principal], Grounds],
        spared: Collection[Principal] = (),
    ) -> list[Output]:
        """Go by a policy that has changed: `grounds` asks the door about each broker that has the key or waits for it.

        Who has no right any more is evicted, all of them at once. Those who are `spared` stay as they are.
        """
        state, wishes = self._state(group), self._wish(group)
        for broker in self.holders(group) - frozenset(spared):
            try:
                right = entitlement(grounds(broker), broker, group, self._serves(group.type), now)
            except RefusedError:
                right = None
            if group.labels and right is not None:
                wishes.reinstate(broker)
            wishes.review(state, broker, right)
            if right is None and self._proposal.admits(group, broker):
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

    def condense(self, now: datetime, since: datetime | None = None) -> list[Output]:
        """Begin the log anew with a checkpoint; the keys of epochs that were over before an instant are not in it.

        Raises `LimitError` (`keys.checkpoint`).
        """
        self._condensing.want(since)
        return self._propose(now)

    def forgot(self, number: int) -> None:
        """Take note that the log keeps no record before a place."""
        self._condensing.forgotten = max(number, self._condensing.forgotten)

    @property
    def forgotten(self) -> int:
        """Before which place of the log nothing is kept, as far as is known."""
        return self._condensing.forgotten

    def has_forgotten(self, before: datetime, place: int) -> bool:
        """Say whether a checkpoint from a place on is without epochs that were over before an instant.

        And whether the log is rid of all that came before it: so long their keys are there.
        """
        begins = self._fold.checkpoint
        return self._condensing.has_left_out(before) and begins >= place and self.forgotten >= begins

    def holders(self, group: KeyGroup) -> frozenset[Principal]:
        """Return all that hold the key or are about to: when policy changes, each is asked about anew."""
        return frozenset((*self._state(group).holders(), *self._wish(group).admit))

    def word(self, group: KeyGroup) -> Word | None:
        """Return what was said last about the epoch of a group, if it has begun."""
        return self._state(group).word

    def relabels(self, now: datetime, group: KeyGroup) -> bool:
        """Say whether labels are changing, so that the next change has to wait."""
        return self._refreshing.overlaps(self._state(group), now)

    def groups(self) -> Iterator[KeyGroup]:
        """Yield the groups that have begun."""
        return iter(self._fold.groups)

    def tick(self, now: datetime) -> tuple[list[Output], datetime | None]:
        """Notice what has ended, tell the epochs, and say when to call again at the latest."""
        self._requests.begin(now)
        said: list[Output] = []
        for group, state in self._fold.groups.items():
            if state.word is None:
                continue
            wishes = self._wish(group)
            wishes.evict |= {broker for broker, holder in state.holders().items() if holder.expired(now)}
            wishes.refresh |= now >= state.word.begun + timedelta(milliseconds=self._refreshing.of(group).period)
            if self._notices.is_due(now, group):
                said.append(self._answers.notice(now, state))
        said += self._proposal.again(now)
        if self.forgotten < self._fold.checkpoint:
            # Also what another replica, or this one in another life, did not live to forget.
            said.append(Forget(self._fold.checkpoint))
        self._condensing.look(self._fold)
        return [*said, *self._go_on(now)], self.turns()

    def turns(self) -> datetime | None:
        """Return when to call `tick` at the latest, as things are."""
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
        """How many records were taken: where the log goes on."""
        return self._fold.number

    def take(self, now: datetime, unverified: UnverifiedValue[Record]) -> list[Output]:
        """Take in the next record of the log, its own or another's; also to begin with, from the first one on.

        Where records were forgotten, the first one begins a checkpoint. One that does not follow (`GroupState.check`)
        counts for nothing, for any replica. Raises `RefusedError` (`keys.log`) for one that is not the next, or of
        somebody who is no replica, and what signatures and unwrapping raise. Nothing has changed then.
        """
        signed = unverified.verify()
        record, taken = signed.value, self._fold.take(signed)
        mine = self._proposal.settle(signed)
        if isinstance(record, KeyCheckpoint):
            self._condensing.take(now, mine=mine, whole=taken.whole)
            said: list[Output] = [Forget(record.first)] if mine and taken.whole else []
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
        # Who asked here is answered, whichever replica recorded it.
        for broker, applicant in self._wish(state.group).settle(state, record):
            if applicant.public:
                said.append(self._answers.welcome(state, broker, state.members[broker], applicant.public))
        return said

    # What follows.

    def _go_on(self, now: datetime) -> list[Output]:
        """Propose the next record. A checkpoint that is too much for the log keeps nobody from anything."""
        try:
            return self._propose(now)
        except LimitError as error:
            return [Noted(error), *self._propose(now)]

    def _propose(self, now: datetime) -> list[Output]:
        """Propose the next record, unless one is under way; a checkpoint before all else, as it must not be broken."""
        if self._proposal.under_way or self._condensing.waits(now):
            return []
        if self._condensing.wanted and self._fold.groups:
            part = self._condensing.next(in_utc(now), self._fold, self._key.principal)
            return [self._proposal.make(now, self._fold.number, sign_value(part, self._key))]
        for group, wishes in self._wishes.items():
            state = self._state(group)
            wishes.fit(state, self._limits.key_members)
            due = self._refreshing.due(state, wishes, now)
            if due:
                record = self._record(in_utc(now), state, due)
                # What would be skipped is not written: it would be proposed again, and again.
                state.check(record)
                return [self._proposal.make(now, self._fold.number, sign_value(record, self._key))]
        return []

    def _record(self, now: datetime, state: GroupState, wishes: Wishes) -> KeyRecord:
        word = state.word
        refresh = word is None or wishes.need_epoch(state, word.begun - self._skew)
        if refresh:
            lasts = self._refreshing.of(state.group)
            word = Word(self._key.principal, state.group, state.epoch + 1, now, lasts.longest, lasts.blocks)
        else:
            word = self._answers.word(state)
        salt, seed = self._random(SALT_BYTES), Secret(self._random(SECRET_BYTES))
        sealed = wrap_seed(self._kek, seed, salt, state.group, self._fold.number)
        # What is too much for one record is left for the next.
        changes = wishes.changes(self._limits.key_changes)
        return KeyRecord(word, self._fold.number, self._fold.head, now, refresh, salt, sealed, *changes)

    def _member(self, request: KeyRequest) -> tuple[GroupState, Holder]:
        state = self._state(request.group)
        holder = state.members.get(request.broker)
        if holder is None:
            raise RefusedError(
                "keys.not-member", f"{request.broker.short} is not in this key group", hint="join it first"
            )
        self._requests.remember(request)
        return state, holder

    def _served(self, group: KeyGroup) -> Collection[TypeName]:
        served = self._serves(group.type)
        if not served:
            raise RefusedError("keys.not-managed", f"the keys of `{group.type.name}` are managed by somebody else")
        return served

    def _state(self, group: KeyGroup) -> GroupState:
        return self._fold.state(group)

    def _wish(self, group: KeyGroup) -> Wishes:
        return self._wishes.setdefault(group, Wishes())
