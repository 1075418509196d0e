"""A broker in a key group: how it joins, follows the epochs, and when it must not seal (section 7.6).

A pure state machine for one group. The driver passes in what arrives, and carries out the returned outputs in order:

1. Only statements of a manager of the type count, and only if they are not from the future.
2. Epochs are followed one by one. Their parts arrive in any order, also repeatedly; parts of a later epoch wait. If
   something is missing, the broker asks for its path until it has it. The answer has the keys of the epochs that it
   has missed: blocks that were sealed in them may have arrived and wait.
3. After an epoch ends, its key opens blocks that were still under way, for a while. Then it is forgotten.
4. Nothing is sealed under the key of an epoch that has lasted too long: events wait (`Hold`) until there is a newer
   one (`Resume`). Each publication asks `seals`, so no tick has to come in time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from penstock.broker.evolution.policy_keeper import NO_SKEW
from penstock.broker.keys.group import UNPLACED
from penstock.broker.keys.sealing import open_history, open_missed, open_path, open_welcome
from penstock.broker.limits import BrokerLimits
from penstock.crypto import SigningKey
from penstock.crypto.hpke import SealingKey
from penstock.crypto.key_tree import KeyPath
from penstock.crypto.keys import RandomBytes
from penstock.crypto.wrapping import SECRET_BYTES, Secret, unopened
from penstock.errors import RefusedError
from penstock.model.instants import in_utc
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.trust.key_statements import (
    NOT_MEMBER,
    EpochStatement,
    KeyEpoch,
    KeyGroup,
    KeyHistory,
    KeyNotice,
    KeyPathAnswer,
    KeyRefusal,
    KeyRequest,
    KeyWelcome,
    KeyWish,
    join_parts,
)
from penstock.trust.signed import SignedValue, UnverifiedValue, sign_value
from penstock.trust.validity import earliest

# ----------------------------------------------------------------------------------------------------------------------
# The outputs of a member, in the order in which the driver must carry them out.


@dataclass(frozen=True, slots=True)
class Ask:
    """Send a request to the group's key managers."""

    request: SignedValue[KeyRequest]


@dataclass(frozen=True, slots=True)
class Opened:
    """Use the key of an epoch. With `live`, events are opened and, in the newest epoch, sealed under it."""

    group: KeyGroup
    epoch: int
    key: Secret = field(repr=False)
    live: bool = True
    #: when the epoch started, if it is the newest
    begun: datetime | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ForgetKey:
    """Forget the key of an epoch."""

    group: KeyGroup
    epoch: int


@dataclass(frozen=True, slots=True)
class Hold:
    """Seal nothing: publications wait."""

    group: KeyGroup


@dataclass(frozen=True, slots=True)
class Resume:
    """Seal again, and start with the publications that wait."""

    group: KeyGroup


@dataclass(frozen=True, slots=True)
class KeyRefused:
    """Record that a manager has refused the last request, with its code."""

    group: KeyGroup
    code: str


Output: TypeAlias = Ask | Opened | ForgetKey | Hold | Resume | KeyRefused


# ----------------------------------------------------------------------------------------------------------------------
# The member itself.


Heard: TypeAlias = KeyEpoch | KeyWelcome | KeyPathAnswer | KeyHistory | KeyNotice

Manages: TypeAlias = Callable[[datetime, TypeKey, Principal], bool]
"""Returns whether a principal may manage a type's keys: it is the owner, or has the right `keys`."""

_UNPLACED_BYTES: Final = len(UNPLACED) + SECRET_BYTES
#: the first request waits `key_retry` divided by this for its answer, and each further one twice as long
_PATIENCE: Final = 16


class KeyMember:
    """A broker in one key group. `now` must never go back."""

    def __init__(  # noqa: PLR0913  # each argument is one part of a member's configuration
        self,
        key: SigningKey,
        group: KeyGroup,
        manages: Manages,
        random: RandomBytes,
        *,
        skew: timedelta = NO_SKEW,
        limits: BrokerLimits,
    ) -> None:
        self._key = key
        self.group = group
        self._id = group.id
        self._manages = manages
        self._random = random
        self._skew = skew
        self._limits = limits
        self._retry = timedelta(milliseconds=limits.key_retry)
        self._private: SealingKey | None = None
        self._reading: SealingKey | None = None
        self._leaf: Secret | None = None
        #: None for a member that has no place in the tree yet
        self._path: KeyPath | None = None
        self._word: EpochStatement | None = None
        #: parts of future epochs, and the newest epoch that was heard of
        self._parts: dict[int, dict[int, KeyEpoch]] = {}
        self._known = 0
        self._closing: dict[int, datetime] = {}
        self._wish: KeyWish | None = None
        self._asked: datetime | None = None
        #: how often the current request was sent
        self._tries = 0
        #: when this broker's right ends, by its own credentials: the right that it has last joined or renewed with
        self.until: datetime | None = None
        #: whether the current request to join only renews a right, and when the right ended before that
        self._renews = False
        self._until_before: datetime | None = None
        #: the digest of the last unanswered request for the path
        self._seeking: bytes | None = None
        self._told: datetime | None = None
        self._holds = True
        #: whether a manager has said that this broker was evicted: it must join again
        self.evicted = False
        #: the newest epoch that it had heard of when a manager last said so
        self._evicted_at = 0
        #: blocks that were sealed here in this epoch
        self._blocks = 0

    # The broker's own requests.

    def join(self, now: datetime, until: datetime | None = None) -> list[Output]:
        """Ask to join with a right that ends then, repeatedly until a manager admits this broker."""
        self._renews = False
        return self._join(now, until)

    def renew(self, now: datetime, until: datetime | None) -> list[Output]:
        """Ask to renew a right, because its end has changed. An unanswered request to join stays one.

        Repeated until a manager answers. If an operator evicts this broker, it does not ask any more.
        """
        if self._joining is None:
            self._renews, self._until_before = True, self.until
        return self._join(now, until)

    def _join(self, now: datetime, until: datetime | None) -> list[Output]:
        self.until = until
        self._private = self._private or SealingKey(self._random)
        self._wish, self._asked, self._tries, self.evicted = KeyWish.JOIN, None, 0, False
        return self._ask(now)

    def leave(self, now: datetime) -> list[Output]:
        """Leave, and forget all keys. Blocks that are under way cannot be opened any more."""
        request: list[Output] = [Ask(self._request(now, KeyWish.LEAVE))] if self._leaf is not None else []
        self._private = self._wish = None
        return [*request, *self.dismissed()]

    def refresh(self, now: datetime) -> list[Output]:
        """Ask for a new epoch, because too much was sealed in this one."""
        return [Ask(self._request(now, KeyWish.REFRESH))] if self._leaf is not None else []

    def sealed(self, now: datetime, blocks: int) -> list[Output]:
        """Count blocks that were sealed here, and ask for a new epoch if they are too many."""
        before, self._blocks = self._blocks, self._blocks + blocks
        most = self._limits.key_blocks if self._word is None else min(self._limits.key_blocks, self._word.blocks)
        # Not with each block. A request may be lost, so it is repeated after as many more.
        return self.refresh(now) if before // most < self._blocks // most else []

    def history(self, now: datetime, first: int, last: int) -> list[Output]:
        """Ask for the keys of past epochs. Each comes as `Opened`."""
        self._reading = SealingKey(self._random)
        return [Ask(self._request(now, KeyWish.HISTORY, first, last, self._reading.public))]

    def wanted(self, now: datetime, epoch: int) -> list[Output]:
        """Record that a block of an epoch has arrived, and ask for the path if the epoch is unknown."""
        if self._leaf is None or epoch <= max(self.epoch, self._known):
            return []
        # The sender may have made up the number: it is a reason to ask, and nothing else.
        self._wish = self._wish or KeyWish.PATH
        return self._ask(now)

    # Statements of managers, and time.

    def receive(self, now: datetime, unverified: UnverifiedValue[Heard]) -> list[Output]:
        """Process a manager's statement: in any order, and as often as it arrives.

        Raises `RefusedError`: `keys.wrong-group`, `keys.untrusted`, `keys.future`, `keys.unopened` for an answer that
        is not for this broker, and what signatures raise.
        """
        value = unverified.verify().value
        self._check(now, value.word)
        said: list[Output] = []
        match value:
            case KeyWelcome():
                said = self._welcomed(now, value)
            case KeyPathAnswer():
                said = self._found(now, value)
            case KeyHistory():
                return self._read(value)
            case KeyEpoch():
                self._keep(value)
        if self._leaf is None:
            return said
        self._known = max(self._known, value.word.epoch)
        return [*said, *self._follow(now), *self._seek(now), *self._tell(now)]

    def refused(self, now: datetime, unverified: UnverifiedValue[KeyRefusal]) -> list[Output]:
        """Process a manager's refusal; ignore it if it is not about the last request of this broker.

        A request to join continues: there may be a place later, and an operator's eviction that waits is over then. A
        request that only renews a right ends with that eviction. An evicted broker forgets all keys. Raises
        `RefusedError`: `keys.untrusted`, and what signatures raise.
        """
        value = unverified.value
        asked = {self._joining, self._seeking if value.code == NOT_MEMBER else None}
        if (value.group, value.broker) != (self.group, self._key.principal) or value.public not in asked:
            return []
        unverified.verify()
        self._check_manager(now, value.manager)
        said: list[Output] = []
        if value.code == NOT_MEMBER and value.public == self._seeking:
            self._evicted_at = max(self._evicted_at, self.epoch, self._known)
            said = self.dismissed()
        elif value.code == NOT_MEMBER and self._renews:
            # The right counts that this broker had when the operator evicted it.
            self._private, self.until = None, self._until_before
            self._answered()
        # A broker that is joining already will be a member again.
        self.evicted = self._wish is None
        if value.code == NOT_MEMBER and self._leaf is not None:
            # It keeps its keys until it hears of the epoch that starts without it.
            return []
        return [*said, KeyRefused(self.group, value.code)]

    def dismissed(self) -> list[Output]:
        """Forget all keys, because this broker is not in the group any more.

        A request to join continues: the manager may not have received it yet.
        """
        epochs = sorted({*self._closing, *(() if self._word is None else (self._word.epoch,))})
        said: list[Output] = [ForgetKey(self.group, epoch) for epoch in epochs]
        said += [Hold(self.group)] if not self._holds else []
        self._leaf = self._path = self._word = self._seeking = None
        self._wish = self._wish if self._wish is KeyWish.JOIN else None
        self._parts, self._closing, self._known, self._holds = {}, {}, 0, True
        return said

    def tick(self, now: datetime) -> tuple[list[Output], datetime | None]:
        """Process what is due; return the outputs, and when to call again at the latest."""
        over = [epoch for epoch, until in self._closing.items() if now >= until]
        said: list[Output] = [ForgetKey(self.group, epoch) for epoch in sorted(over)]
        for epoch in over:
            del self._closing[epoch]
        return [*said, *self._ask(now), *self._tell(now)], self.turns()

    def turns(self) -> datetime | None:
        """Return when to call `tick` at the latest."""
        turn: datetime | None = None
        for until in self._closing.values():
            turn = earliest(turn, until)
        if self._wish is not None and self._asked is not None:
            turn = earliest(turn, self._asked + self._pause)
        if self._word is not None and not self._holds:
            turn = earliest(turn, self._word.until + self._skew + datetime.resolution)
        return turn

    # State.

    @property
    def epoch(self) -> int:
        """The epoch whose key is known; 0 if there is none."""
        return 0 if self._word is None else self._word.epoch

    @property
    def word(self) -> EpochStatement | None:
        """The manager's statement about that epoch."""
        return self._word

    def seals(self, now: datetime) -> bool:
        """Return whether events may be sealed now: the epoch is the newest known, and has not lasted too long."""
        until = self.seals_until
        return until is not None and in_utc(now) <= until

    @property
    def seals_until(self) -> datetime | None:
        """Until when events may be sealed if no statement arrives; None if they may not be now."""
        return None if self._word is None or self._known > self.epoch else self._word.until + self._skew

    # Internals.

    @property
    def _pause(self) -> timedelta:
        """How long to wait for an answer: less for the first requests, when managers may still be starting."""
        if self._wish is not KeyWish.JOIN:
            return self._retry
        return min(self._retry, self._retry / _PATIENCE * (1 << min(self._tries, _PATIENCE)))

    @property
    def _joining(self) -> bytes | None:
        """The public key of the unanswered request to join."""
        return self._private.public if self._private is not None and self._wish is KeyWish.JOIN else None

    def _check(self, now: datetime, word: EpochStatement) -> None:
        if word.group != self.group:
            raise RefusedError("keys.wrong-group", "a statement about keys names another key group")
        self._check_manager(now, word.manager)
        if word.begun - self._skew > in_utc(now):
            raise RefusedError(
                "keys.future", "an epoch starts in the future", hint="set the clocks, or allow for more skew"
            )

    def _check_manager(self, now: datetime, manager: Principal) -> None:
        if not self._manages(now, self.group.type, manager):
            raise RefusedError(
                "keys.untrusted",
                f"{manager.short} may not manage the keys of `{self.group.type.name}`",
                hint="let the type's owner grant it `keys`",
            )

    def _welcomed(self, now: datetime, value: KeyWelcome) -> list[Output]:
        private, epoch = self._private, value.word.epoch
        if private is None and self._leaf is not None and value.broker == self._key.principal:
            # A copy, or another replica's answer: one is enough.
            return []
        if private is None and self.evicted and value.broker == self._key.principal and epoch > self._evicted_at:
            # It was admitted again. An older welcome of another replica has used up the key of its request.
            return self.join(now, self.until)
        if private is None or (value.broker, value.public) != (self._key.principal, private.public):
            raise unopened()
        if epoch < self._known:
            # A replica that is behind has answered. Wait for another one.
            return []
        leaf, place = open_welcome(self.group, value.broker, private, value.sealed)
        # The private key is for one request.
        self._private = None
        self._answered()
        return self._arrive(now, value.word, leaf, place)

    def _found(self, now: datetime, value: KeyPathAnswer) -> list[Output]:
        if self._leaf is None or value.broker != self._key.principal:
            raise unopened()
        before, epoch, about = self.epoch, value.word.epoch, (value.salt, self.group, value.word.epoch)
        try:
            place = open_path(self._leaf, value.sealed, *about)
        except RefusedError:
            if self._wish is KeyWish.PATH and epoch >= self._known:
                # A replica that was behind has welcomed it before its eviction: it was admitted again since.
                return self.join(now, self.until)
            raise
        keys = open_missed(self._leaf, value.missed, *about) if value.missed else []
        # An answer about an older epoch is from a replica that is behind, or is old itself: keep asking.
        if epoch >= self._known:
            self._seeking = None
            if self._wish is KeyWish.PATH:
                self._answered()
        said = self._arrive(now, value.word, self._leaf, place)
        # Keys that it got otherwise in the meantime may be forgotten already.
        missed = {number: key for number, key in enumerate(keys, epoch - len(keys)) if number > before}
        for number in missed:
            self._close_later(now, number)
        return [*(Opened(self.group, number, key) for number, key in missed.items()), *said]

    def _answered(self) -> None:
        self._wish, self._asked, self._seeking, self._tries = None, None, None, 0

    def _arrive(self, now: datetime, word: EpochStatement, leaf: Secret, place: bytes) -> list[Output]:
        """Apply this broker's path, unless it knows a later epoch already."""
        if word.epoch < self.epoch:
            return []
        if place.startswith(UNPLACED) and len(place) == _UNPLACED_BYTES:
            path, key = KeyPath(self._id, 0, leaf, {}), Secret(place[len(UNPLACED) :])
        else:
            path = KeyPath.from_bytes(self._id, leaf, place)
            key = path.key(word.epoch)
        self._leaf = leaf
        return self._enter(now, word, path, key)

    def _keep(self, value: KeyEpoch) -> None:
        """Keep a part of a future epoch, up to `key_waiting` epochs ahead."""
        if self.epoch < value.word.epoch <= self.epoch + self._limits.key_waiting:
            parts = self._parts.setdefault(value.word.epoch, {})
            if any(part.parts != value.parts for part in parts.values()):
                parts.clear()
            parts[value.part] = value

    def _follow(self, now: datetime) -> list[Output]:
        """Enter the epochs of which all parts are here."""
        said: list[Output] = []
        while self._path is not None:
            parts = self._parts.get(self.epoch + 1, {})
            if not parts or len(parts) < next(iter(parts.values())).parts:
                break
            word = parts[0].word
            try:
                path = self._path.follow(join_parts(parts[at] for at in sorted(parts)))
            except RefusedError:
                # This broker was evicted, or its path is wrong: a manager knows.
                del self._parts[word.epoch]
                break
            said += self._enter(now, word, path, path.key(word.epoch))
        return said

    def _enter(self, now: datetime, word: EpochStatement, path: KeyPath, key: Secret) -> list[Output]:
        before = self.epoch
        self._word, self._path = word, path
        self._parts = {epoch: parts for epoch, parts in self._parts.items() if epoch > word.epoch}
        if word.epoch == before:
            return []
        # It is a member: a manager that started again may not know of an operator's command that its log does not have.
        self.evicted = False
        self._blocks = 0
        if before:
            self._close_later(now, before)
        return [Opened(self.group, word.epoch, key, begun=word.begun)]

    def _close_later(self, now: datetime, epoch: int) -> None:
        grace = self._limits.label_overlap if self.group.labels else self._limits.key_grace
        self._closing[epoch] = now + timedelta(milliseconds=grace)

    def _read(self, value: KeyHistory) -> list[Output]:
        private = self._reading
        if private is None and value.broker == self._key.principal:
            # A copy, or another replica's answer: one is enough.
            return []
        if private is None or (value.broker, value.public) != (self._key.principal, private.public):
            raise unopened()
        keys = open_history(self.group, value.broker, private, value.sealed)
        self._reading = None
        return [Opened(self.group, epoch, key, live=False) for epoch, key in enumerate(keys, value.first)]

    def _seek(self, now: datetime) -> list[Output]:
        """Ask for the path if something is missing; parts of the next epoch may still be under way."""
        if self._known <= self.epoch:
            self._wish = None if self._wish is KeyWish.PATH else self._wish
            return []
        if self._wish is None:
            self._wish, self._asked = KeyWish.PATH, now if self.epoch + 1 in self._parts else None
        return self._ask(now)

    def _ask(self, now: datetime) -> list[Output]:
        """Send the current request, if it is time."""
        if self._wish is None or (self._asked is not None and abs(now - self._asked) < self._pause):
            return []
        self._asked, self._tries = now, self._tries + 1
        public = self._joining or b""
        # The missed epochs as far as known: a manager that knows fewer cannot tell whether this is a member.
        missed = (self.epoch + 1, max(self.epoch, self._known)) if self._wish is KeyWish.PATH else (0, 0)
        request = self._request(now, self._wish, *missed, public)
        self._seeking = request.digest if self._wish is KeyWish.PATH else self._seeking
        return [Ask(request)]

    def _request(
        self, now: datetime, wish: KeyWish, first: int = 0, last: int = 0, public: bytes = b""
    ) -> SignedValue[KeyRequest]:
        # Each request is later than the one before, so that none is taken for a replay. A manager has taken none that
        # was further ahead than it allows: such a one is from a clock that has been set right since.
        time, window = in_utc(now), self._skew + timedelta(milliseconds=self._limits.key_request)
        if self._told is not None and self._told - time <= window:
            time = max(time, self._told + datetime.resolution)
        self._told = time
        return sign_value(KeyRequest(wish, self._key.principal, self.group, time, first, last, public), self._key)

    def _tell(self, now: datetime) -> list[Output]:
        """Return `Hold` or `Resume` if it has changed whether events may be sealed."""
        if self.seals(now) is not self._holds:
            return []
        self._holds = not self._holds
        return [Hold(self.group) if self._holds else Resume(self.group)]
