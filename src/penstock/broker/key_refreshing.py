"""When the epoch of a key group ends by itself, and what is otherwise with the keys of labels.

A type's labels say where its events meet. Their key is for recognising a type and for nothing else, so that it stays
when brokers join, and for long. When it changes, brokers are to be found under the old labels and the new ones for a
while. The next change does not begin before that is over: so no more than two labels of a type are in use at a time.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from penstock.broker.key_group import GroupState
from penstock.broker.key_wishes import Wishes
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.trust.key_messages import KeyGroup


@dataclass(frozen=True, slots=True)
class Refreshing:
    """When an epoch ends by itself, in milliseconds and blocks, and after which time nobody may seal under its key.

    The key of labels has a period of its own, and the time in which old and new ones are both in use.
    """

    period: int = DEFAULT_LIMITS.key_epoch
    blocks: int = DEFAULT_LIMITS.key_blocks
    longest: int = DEFAULT_LIMITS.key_longest
    labels: int = DEFAULT_LIMITS.label_epoch
    overlap: int = DEFAULT_LIMITS.label_overlap

    @classmethod
    def by(cls, limits: Limits) -> "Refreshing":
        """Return what some limits say."""
        epochs = limits.key_epoch, limits.key_blocks, limits.key_longest
        return cls(*epochs, limits.label_epoch, limits.label_overlap)

    def of(self, group: KeyGroup) -> "Refreshing":
        """Return what counts for a group."""
        if not group.labels:
            return self
        return replace(self, period=self.labels, longest=max(self.longest, DEFAULT_LIMITS.label_longest))

    def overlaps(self, state: GroupState, now: datetime) -> bool:
        """Say whether the labels before those of now are still in use."""
        if not state.group.labels or state.word is None:
            return False
        return state.epoch > 1 and now < state.word.begun + timedelta(milliseconds=self.overlap)

    def resumes(self, state: GroupState, wishes: Wishes) -> datetime | None:
        """Return until when wishes may have to wait; None where they need not."""
        waits = state.group.labels and state.epoch > 1 and (wishes.evict or wishes.refresh)
        return state.word.begun + timedelta(milliseconds=self.overlap) if waits and state.word is not None else None

    def due(self, state: GroupState, wishes: Wishes, now: datetime) -> Wishes:
        """Return what can be done of some wishes now."""
        return wishes.patient() if self.overlaps(state, now) else wishes
