"""A broker in a key group: how it gets in, follows the epochs, and when it must not seal (section 7.6).

A plain state machine for one group. Whoever drives it tells it what comes, and carries out what it returns, in order:

1. Nothing counts but what a manager has signed that is trusted with the type, and that is not from the future.
2. Epochs are followed one by one. Their parts come in any order and more than once; those of a later epoch wait. Where
   something is missing the broker asks for its path, again and again until it has it. With it come the keys of the last
   epochs that it has missed: what was sealed in them may have arrived, and waits.
3. The key of an epoch opens what was under way when the next began, for a while, and is then forgotten.
4. Nothing is sealed under the key of an epoch that has lasted longer than it can: events wait (`Hold`) until there is a
   newer one (`Resume`). `seals` is asked with each publication, so that no tick has to come in time.
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
# What a member of a key group wants done, in the order in which it returns it.


@dataclass(frozen=True, slots=True)
class Ask:
    """To be sent to a key manager of the group."""

    request: SignedValue[KeyRequest]


@dataclass(frozen=True, slots=True)
class Opened:
    """The key of an epoch is known. With `live` it is that of the newest epoch, under which events are sealed."""

    group: KeyGroup
    epoch: int
    key: Secret = field(repr=False)
    live: bool = True
    #: when the epoch began, where it is the newest
    begun: datetime | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ForgetKey:
    """The key of an epoch is to be forgotten."""

    group: KeyGroup
    epoch: int


@dataclass(frozen=True, slots=True)
class Hold:
    """Nothing may be sealed: publications wait."""

    group: KeyGroup


@dataclass(frozen=True, slots=True)
class Resume:
    """What waits may be sealed."""

    group: KeyGroup


@dataclass(frozen=True, slots=True)
class KeyRefused:
    """A manager does not give what was asked for last, and says why."""

    group: KeyGroup
    code: str


Output: TypeAlias = Ask | Opened | ForgetKey | Hold | Resume | KeyRefused


# ----------------------------------------------------------------------------------------------------------------------
# A broker in a key group: how it gets in, follows the epochs, and when it must not seal (section 7.6).


Heard: TypeAlias = KeyEpoch | KeyWelcome | KeyPathAnswer | KeyHistory | KeyNotice

Manages: TypeAlias = Callable[[datetime, TypeKey, Principal], bool]
"""Says whether a principal may manage the keys of a type: its owner, or somebody with the right `keys`."""

_UNPLACED_BYTES: Final = len(UNPLACED) + SECRET_BYTES
#: the first answer is waited for `key_retry` divided by this, the next ones twice as long each time
_PATIENCE: Final = 16


class KeyMember:
    """See the module. `now` never goes back."""

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
        #: parts of epochs that are to come, and the newest epoch that was heard of
        self._parts: dict[int, dict[int, KeyEpoch]] = {}
        self._known = 0
        self._closing: dict[int, datetime] = {}
        self._wish: KeyWish | None = None
        self._asked: datetime | None = None
        #: how often it has asked for the same
        self._tries = 0
        #: the digest of the last request for its path, if it was not answered
        self._seeking: bytes | None = None
        self._told: datetime | None = None
        self._holds = True
        #: whether a manager says that it was evicted: it is not a member then, until it joins again
        self.evicted = False
        #: blocks that were sealed here in this epoch
        self._blocks = 0

    # What the broker wants.

    def join(self, now: datetime) -> list[Output]:
        """Ask to join, or to have a right renewed; asked again until a manager answers."""
        self._private = self._private or SealingKey(self._random)
        self._wish, self._asked, self._tries, self.evicted = KeyWish.JOIN, None, 0, False
        return self._ask(now)

    def leave(self, now: datetime) -> list[Output]:
        """Leave, and forget everything; what is under way cannot be opened any more."""
        request: list[Output] = [Ask(self._request(now, KeyWish.LEAVE))] if self._leaf is not None else []
        self._private = self._wish = None
        return [*request, *self.dismissed()]

    def refresh(self, now: datetime) -> list[Output]:
        """Ask for a new epoch, because too much was sealed in this one."""
        return [Ask(self._request(now, KeyWish.REFRESH))] if self._leaf is not None else []

    def sealed(self, now: datetime, blocks: int) -> list[Output]:
        """Record that so many blocks more were sealed here: where they are too many, a new epoch is asked for."""
        before, self._blocks = self._blocks, self._blocks + blocks
        most = self._limits.key_blocks if self._word is None else min(self._limits.key_blocks, self._word.blocks)
        # Not with each block; a request may be lost, and is repeated when there are as many more.
        return self.refresh(now) if before // most < self._blocks // most else []

    def history(self, now: datetime, first: int, last: int) -> list[Output]:
        """Ask for the keys of epochs that are over; `Opened` brings them, one by one."""
        self._reading = SealingKey(self._random)
        return [Ask(self._request(now, KeyWish.HISTORY, first, last, self._reading.public))]

    def wanted(self, now: datetime, epoch: int) -> list[Output]:
        """Record that something came which was sealed in an epoch: one that is not known yet is asked for."""
        if self._leaf is None or epoch <= max(self.epoch, self._known):
            return []
        # Whoever sent it may have made the number up: it is a reason to ask, and nothing else.
        self._wish = self._wish or KeyWish.PATH
        return self._ask(now)

    # What comes.

    def receive(self, now: datetime, unverified: UnverifiedValue[Heard]) -> list[Output]:
        """Take in what a manager says: in any order, and as often as it comes.

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
            return []
        self._known = max(self._known, value.word.epoch)
        return [*said, *self._follow(now), *self._seek(now), *self._tell(now)]

    def refused(self, now: datetime, unverified: UnverifiedValue[KeyRefusal]) -> list[Output]:
        """Take in that a manager does not give what was asked for; nothing where it was asked by others, or long ago.

        A request to join goes on: there may be a place another time. Who was evicted forgets everything. Raises
        `RefusedError`: `keys.untrusted`, and what signatures raise.
        """
        value = unverified.value
        asked = self._seeking if value.code == NOT_MEMBER else self._joining
        if (value.group, value.broker, value.public) != (self.group, self._key.principal, asked):
            return []
        unverified.verify()
        self._check_manager(now, value.manager)
        said = self.dismissed() if value.code == NOT_MEMBER else []
        # Who joins already is about to be a member again.
        self.evicted = self._wish is None
        return [*said, KeyRefused(self.group, value.code)]

    def dismissed(self) -> list[Output]:
        """Forget everything, since this broker is not in the group any more.

        A request to join goes on: the manager may not have had it yet.
        """
        epochs = sorted({*self._closing, *(() if self._word is None else (self._word.epoch,))})
        said: list[Output] = [ForgetKey(self.group, epoch) for epoch in epochs]
        said += [Hold(self.group)] if not self._holds else []
        self._leaf = self._path = self._word = self._seeking = None
        self._wish = self._wish if self._wish is KeyWish.JOIN else None
        self._parts, self._closing, self._known, self._holds = {}, {}, 0, True
        return said

    def tick(self, now: datetime) -> tuple[list[Output], datetime | None]:
        """Forget keys, ask again, notice that nothing new has come; and say when to call again at the latest."""
        over = [epoch for epoch, until in self._closing.items() if now >= until]
        said: list[Output] = [ForgetKey(self.group, epoch) for epoch in sorted(over)]
        for epoch in over:
            del self._closing[epoch]
        return [*said, *self._ask(now), *self._tell(now)], self.turns()

    def turns(self) -> datetime | None:
        """Return when to call `tick` at the latest, as things are."""
        turn: datetime | None = None
        for until in self._closing.values():
            turn = earliest(turn, until)
        if self._wish is not None and self._asked is not None:
            turn = earliest(turn, self._asked + self._pause)
        if self._word is not None and not self._holds:
            turn = earliest(turn, self._word.until + self._skew + datetime.resolution)
        return turn

    # What is known.

    @property
    def epoch(self) -> int:
        """The epoch whose key is known; 0 where there is none."""
        return 0 if self._word is None else self._word.epoch

    @property
    def word(self) -> EpochStatement | None:
        """What the manager said about that epoch."""
        return self._word

    def seals(self, now: datetime) -> bool:
        """Say whether events may be sealed at this very moment: not in an epoch that is over, or is not the last."""
        until = self.seals_until
        return until is not None and in_utc(now) <= until

    @property
    def seals_until(self) -> datetime | None:
        """Until when events may be sealed, if nothing else is heard; None where they may not be now."""
        return None if self._word is None or self._known > self.epoch else self._word.until + self._skew

    # What follows.

    @property
    def _pause(self) -> timedelta:
        """How long to wait for an answer: less for the first ones, when managers may not have been there yet."""
        if self._wish is not KeyWish.JOIN:
            return self._retry
        return min(self._retry, self._retry / _PATIENCE * (1 << min(self._tries, _PATIENCE)))

    @property
    def _joining(self) -> bytes | None:
        """The key of the request to join, if it was not answered."""
        return self._private.public if self._private is not None and self._wish is KeyWish.JOIN else None

    def _check(self, now: datetime, word: EpochStatement) -> None:
        if word.group != self.group:
            raise RefusedError("keys.wrong-group", "a statement about another key group")
        self._check_manager(now, word.manager)
        if word.begun - self._skew > in_utc(now):
            raise RefusedError(
                "keys.future", "an epoch begins in the future", hint="set the clocks, or allow for more skew"
            )

    def _check_manager(self, now: datetime, manager: Principal) -> None:
        if not self._manages(now, self.group.type, manager):
            raise RefusedError(
                "keys.untrusted",
                f"{manager.short} does not manage the keys of `{self.group.type.name}`",
                hint="the owner grants `keys` to those who do",
            )

    def _welcomed(self, now: datetime, value: KeyWelcome) -> list[Output]:
        private = self._private
        if private is None and self._leaf is not None and value.broker == self._key.principal:
            # A copy, or the answer of another replica: one was enough.
            return []
        if private is None or (value.broker, value.public) != (self._key.principal, private.public):
            raise unopened()
        leaf, place = open_welcome(self.group, value.broker, private, value.sealed)
        # The key was for one request: what was sealed to it opens only now.
        self._private = None
        self._answered()
        return self._arrive(now, value.word, leaf, place)

    def _found(self, now: datetime, value: KeyPathAnswer) -> list[Output]:
        if self._leaf is None or value.broker != self._key.principal:
            raise unopened()
        before, epoch, about = self.epoch, value.word.epoch, (value.salt, self.group, value.word.epoch)
        place = open_path(self._leaf, value.sealed, *about)
        keys = open_missed(self._leaf, value.missed, *about) if value.missed else []
        # Of less than it has heard of, it is of a replica that is behind, or was said long ago: asking goes on.
        if epoch >= self._known:
            self._seeking = None
            if self._wish is KeyWish.PATH:
                self._answered()
        said = self._arrive(now, value.word, self._leaf, place)
        # What it had by itself in the meantime may be forgotten already.
        missed = {number: key for number, key in enumerate(keys, epoch - len(keys)) if number > before}
        for number in missed:
            self._close_later(now, number)
        return [*(Opened(self.group, number, key) for number, key in missed.items()), *said]

    def _answered(self) -> None:
        self._wish, self._asked, self._seeking, self._tries = None, None, None, 0

    def _arrive(self, now: datetime, word: EpochStatement, leaf: Secret, place: bytes) -> list[Output]:
        """Take in where this broker is, unless it is further already."""
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
        """Keep a part of an epoch that is to come, of not too many."""
        if self.epoch < value.word.epoch <= self.epoch + self._limits.key_waiting:
            parts = self._parts.setdefault(value.word.epoch, {})
            if any(part.parts != value.parts for part in parts.values()):
                parts.clear()
            parts[value.part] = value

    def _follow(self, now: datetime) -> list[Output]:
        """Go through the epochs that are whole."""
        said: list[Output] = []
        while self._path is not None:
            parts = self._parts.get(self.epoch + 1, {})
            if not parts or len(parts) < next(iter(parts.values())).parts:
                break
            word = parts[0].word
            try:
                path = self._path.follow(join_parts(parts[at] for at in sorted(parts)))
            except RefusedError:
                # Evicted, or not where it believes to be: a manager knows.
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
            # A copy, or the answer of another replica: one was enough.
            return []
        if private is None or (value.broker, value.public) != (self._key.principal, private.public):
            raise unopened()
        keys = open_history(self.group, value.broker, private, value.sealed)
        self._reading = None
        return [Opened(self.group, epoch, key, live=False) for epoch, key in enumerate(keys, value.first)]

    def _seek(self, now: datetime) -> list[Output]:
        """Ask for the path where something is missing; parts of the next epoch may still be under way."""
        if self._known <= self.epoch:
            self._wish = None if self._wish is KeyWish.PATH else self._wish
            return []
        if self._wish is None:
            self._wish, self._asked = KeyWish.PATH, now if self.epoch + 1 in self._parts else None
        return self._ask(now)

    def _ask(self, now: datetime) -> list[Output]:
        """Ask for what is wanted, if it is time to."""
        if self._wish is None or (self._asked is not None and abs(now - self._asked) < self._pause):
            return []
        self._asked, self._tries = now, self._tries + 1
        public = self._joining or b""
        # What it has missed, as far as it has heard: a manager that knows of less cannot tell whether it is a member.
        missed = (self.epoch + 1, max(self.epoch, self._known)) if self._wish is KeyWish.PATH else (0, 0)
        request = self._request(now, self._wish, *missed, public)
        self._seeking = request.digest if self._wish is KeyWish.PATH else self._seeking
        return [Ask(request)]

    def _request(
        self, now: datetime, wish: KeyWish, first: int = 0, last: int = 0, public: bytes = b""
    ) -> SignedValue[KeyRequest]:
        # Each request is later than the one before, so that none can be taken for a copy.
        time = in_utc(now) if self._told is None else max(in_utc(now), self._told + datetime.resolution)
        self._told = time
        return sign_value(KeyRequest(wish, self._key.principal, self.group, time, first, last, public), self._key)

    def _tell(self, now: datetime) -> list[Output]:
        """Say whether events may be sealed, where that has changed."""
        if self.seals(now) is not self._holds:
            return []
        self._holds = not self._holds
        return [Hold(self.group) if self._holds else Resume(self.group)]
