"""The record that a key manager has proposed for the end of the log, until the log has one there."""

from datetime import datetime, timedelta

from penstock.broker.key_outputs import Append, Record
from penstock.model.principals import Principal
from penstock.trust.key_messages import KeyGroup
from penstock.trust.key_records import KeyRecord
from penstock.trust.signed import SignedValue


class Proposal:
    """See the module. It is made again after `retry`, while nobody has said whether the log has it."""

    def __init__(self, retry: timedelta) -> None:
        self._retry = retry
        self._made: tuple[datetime, Append] | None = None

    @property
    def under_way(self) -> bool:
        """Whether a record is proposed."""
        return self._made is not None

    @property
    def turn(self) -> datetime | None:
        """When `again` is to be called at the latest."""
        return None if self._made is None else self._made[0] + self._retry

    def make(self, now: datetime, number: int, record: SignedValue[Record]) -> Append:
        """Propose a record for a place."""
        append = Append(number, record)
        self._made = now, append
        return append

    def again(self, now: datetime) -> list[Append]:
        """Propose it again, if it is time: the log takes it now, or says that the place is taken."""
        if self._made is None or abs(now - self._made[0]) < self._retry:
            return []
        self._made = now, self._made[1]
        return [self._made[1]]

    def settle(self, record: SignedValue[Record]) -> bool:
        """Take note that the log has this record in the place, and say whether it is the one that was proposed."""
        made, self._made = self._made, None
        return made is not None and made[1].record.digest == record.digest

    def admits(self, group: KeyGroup, broker: Principal) -> bool:
        """Say whether it would let a broker into a group."""
        record = None if self._made is None else self._made[1].record.value
        if not isinstance(record, KeyRecord) or record.word.group != group:
            return False
        return any(broker == who for who, _ in record.admitted)
