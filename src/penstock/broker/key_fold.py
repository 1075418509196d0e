"""What the log of key managers says: all groups, and the keys of epochs that are over. A fold of its records."""

from dataclasses import dataclass, field

from penstock.broker.key_archive import Archive
from penstock.broker.key_checkpoint import Gathering, read_state
from penstock.broker.key_group import GroupState, Holder
from penstock.broker.key_outputs import Record
from penstock.broker.key_sealing import open_seed
from penstock.crypto.key_tree import Rekey
from penstock.crypto.keyfile import RandomBytes
from penstock.crypto.wrapping import Secret
from penstock.errors import RefusedError
from penstock.model.limits import Limits
from penstock.model.principals import Principal
from penstock.trust.key_messages import KeyGroup
from penstock.trust.key_records import KeyCheckpoint, KeyRecord
from penstock.trust.policy_events import BEGINNING
from penstock.trust.signed import SignedValue


@dataclass(frozen=True, slots=True)
class Taken:
    """What a record came to: what members are told where an epoch begins, and whether a checkpoint is whole.

    One that does not follow from those before is skipped, by all who read it.
    """

    rekey: Rekey | None = field(default=None, repr=False)
    whole: bool = False
    skipped: RefusedError | None = None


class KeyFold:
    """See the module. Records of `replicas` count, and no others."""

    def __init__(self, kek: Secret, replicas: frozenset[Principal], random: RandomBytes, limits: Limits) -> None:
        self._kek = kek
        self._replicas = replicas
        self._limits = limits
        self.groups: dict[KeyGroup, GroupState] = {}
        self.archive = Archive(kek, random)
        #: how many records there are, the digest of the last, and where the last checkpoint begins
        self.number = 0
        self.head = BEGINNING
        self.checkpoint = 0
        self._gathering = Gathering()
        #: whether records were left out, and the checkpoint in their place is not whole yet
        self._jumped = False

    @property
    def gathered(self) -> int:
        """How many parts of a checkpoint stand at the end of the log, if it is not whole."""
        return self._gathering.count

    def state(self, group: KeyGroup) -> GroupState:
        """Return the state of a group, also of one that has not begun."""
        return self.groups.get(group) or GroupState(group)

    def missed(self, state: GroupState, holder: Holder, first: int) -> list[Secret]:
        """Return the keys of the last epochs before this one that a member was to have: from `first` on, not too many.

        Labels that are still in use are asked for by themselves.
        """
        if not first or state.group.labels:
            return []
        since = max(first, holder.since, state.epoch - self._limits.key_waiting)
        return [
            self.archive.get(state.group, epoch) for epoch in self.archive.kept(state.group, since, state.epoch - 1)
        ]

    def released(self, state: GroupState, first: int, last: int) -> tuple[int, list[Secret]]:
        """Return the keys of epochs that are over, from one to another, and the first that is kept; not too many.

        Of labels, also that of now: it lasts for long, and events of a type that were read by then lie under it. Raises
        `RefusedError` (`keys.no-history`) where none of the epochs is over.
        """
        kept = self.archive.kept(state.group, first, last)
        if state.group.labels and state.tree and first <= state.epoch <= last:
            kept.append(state.epoch)
        if not kept or first < 1:
            raise RefusedError(
                "keys.no-history",
                "none of these epochs is over and kept",
                hint="epochs are counted from 1; the oldest ones may be forgotten",
            )
        released = kept[: self._limits.key_history]
        return kept[0], [
            state.tree.key() if epoch == state.epoch else self.archive.get(state.group, epoch) for epoch in released
        ]

    def take(self, signed: SignedValue[Record]) -> Taken:
        """Take in the next record. Raises as `KeyManager.take`; nothing has changed then."""
        record = signed.value
        if record.signer not in self._replicas or not self._is_next(record):
            raise RefusedError(
                "keys.log", "a record is not the next one of the log, or not of a manager", hint="read the log in order"
            )
        taken = self._take_part(record) if isinstance(record, KeyCheckpoint) else self._take_record(record)
        self.number, self.head = record.number + 1, signed.digest
        return taken

    def _is_next(self, record: Record) -> bool:
        if isinstance(record, KeyCheckpoint) and not record.part and record.number > self.number:
            return True
        # After a jump nothing is known before the checkpoint is whole.
        known = not self._jumped or isinstance(record, KeyCheckpoint)
        return known and (record.number, record.previous) == (self.number, self.head)

    def _take_record(self, record: KeyRecord) -> Taken:
        seed = open_seed(self._kek, record.seed, record.salt, record.word.group, record.number)
        state = self.state(record.word.group)
        self._gathering.take(None)
        try:
            state.check(record)
        except RefusedError as error:
            # It stays in the log, and whoever stopped at it would stop for good.
            return Taken(skipped=error)
        if record.refresh and state.epoch:
            self.archive.put(state.group, state.epoch, state.tree.key(), record.time)
        rekey = state.apply(record, seed)
        self.groups[state.group] = state
        return Taken(rekey)

    def _take_part(self, part: KeyCheckpoint) -> Taken:
        whole = self._gathering.whole(part)
        if whole:
            self.groups, self.archive = read_state(whole, self.archive, self._kek, self._limits)
            self.checkpoint = part.first
        self._jumped = not whole and (self._jumped or part.number > self.number)
        self._gathering.take(part)
        return Taken(whole=bool(whole))
