"""What is to become of a key group: wishes that wait until a record in the log has them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from penstock.broker.key_group import GroupState
from penstock.broker.key_rights import Entitlement
from penstock.errors import LimitError
from penstock.model.principals import Principal
from penstock.trust.key_records import KeyRecord


@dataclass(frozen=True, slots=True)
class Applicant:
    """A broker that wants to join, or its right renewed: the right, and the key that the answer is sealed to.

    Where nobody has asked there is no key, and no answer.
    """

    right: Entitlement
    public: bytes = field(default=b"", repr=False)


@dataclass(slots=True)
class Wishes:
    """Who is to be admitted, let go and evicted, and whether an epoch is to begin in any case."""

    admit: dict[Principal, Applicant] = field(default_factory=dict)
    leave: set[Principal] = field(default_factory=set)
    evict: set[Principal] = field(default_factory=set)
    refresh: bool = False

    def __bool__(self) -> bool:
        return bool(self.admit or self.leave or self.evict or self.refresh)

    def need_epoch(self, state: GroupState, begun: datetime) -> bool:
        """Say whether an epoch must begin; not where all who join had their right when it began, and ever since.

        Section 7.6.2; `begun` is when the epoch began on the slowest clock. Labels say nothing of the past that would
        be worth moving a rendezvous for: nobody's joining changes them.
        """
        if self.refresh or self.evict or not state.tree:
            return True
        return not state.group.labels and not all(
            broker in state.members or (applicant.right.covers(begun) and broker not in state.evicted)
            for broker, applicant in self.admit.items()
        )

    def check_room(self, state: GroupState, broker: Principal, most: int) -> None:
        """Check that there is a place for a broker among those who are in the group and those who wait.

        Raises `LimitError` (`keys.members`).
        """
        if broker in state.members or broker in self.admit:
            return
        waiting = sum(one not in state.members for one in self.admit)
        if len(state.members) + waiting >= most:
            raise LimitError(
                "keys.members",
                f"a key group has at most {most} members, and this one has no place left",
                hint="evict brokers that need the key no longer",
            )

    def fit(self, state: GroupState, most: int) -> None:
        """Forget who wants to join where a replica has given the last places to others; it asks again, and is told."""
        waiting = [broker for broker in self.admit if broker not in state.members]
        for broker in waiting[max(0, most - len(state.members)) :]:
            del self.admit[broker]

    def patient(self) -> "Wishes":
        """Return those that need no epoch."""
        return Wishes(self.admit, self.leave - self.evict)

    def reinstate(self, broker: Principal) -> None:
        """Let a broker stay that was to be evicted and is not yet, since it has a right again."""
        self.evict.discard(broker)

    def review(self, state: GroupState, broker: Principal, right: Entitlement | None) -> None:
        """Take in what right a broker has now: without one it is evicted, and with another end that end counts."""
        member, left = state.members.get(broker), state.left.get(broker)
        if right is None or (left is not None and left.until != right.until):
            self.admit.pop(broker, None)
            if member is not None or left is not None:
                self.evict.add(broker)
        elif member is not None and member.until != right.until:
            self.admit.setdefault(broker, Applicant(right))

    def settle(self, state: GroupState, record: KeyRecord) -> Iterator[tuple[Principal, Applicant]]:
        """Forget what is as it was wished, and yield those who are admitted."""
        for broker, applicant in [*self.admit.items()]:
            member = state.members.get(broker)
            if member is not None and member.until == applicant.right.until:
                del self.admit[broker]
                yield broker, applicant
        self.leave &= state.members.keys()
        self.evict &= state.holders().keys()
        self.refresh &= not record.refresh

    def changes(
        self, most: int
    ) -> tuple[tuple[tuple[Principal, datetime | None], ...], tuple[Principal, ...], tuple[Principal, ...]]:
        """Return who is admitted and until when, who is let go, and who is evicted: no more than fit in one record."""
        admitted = [(broker, applicant.right.until) for broker, applicant in self.admit.items()]
        return tuple(admitted[:most]), _some(self.leave - self.evict, most), _some(self.evict, most)


def _some(brokers: set[Principal], most: int) -> tuple[Principal, ...]:
    return tuple(sorted(brokers, key=lambda broker: broker.digest)[:most])
