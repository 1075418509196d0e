"""The time of a rule book: it goes on from step to step, and only the moderator can set it right.

Each step has a time, that of the clock of whoever took it. One wrong clock must not bring a book to a stand: time leaps
far ahead, and falls back, on the word of the moderator alone. The times of a ledger never fall; where the ledger was
ahead when a step was taken, the step says its own time.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from penstock.authority.rulebook_records import Taken
from penstock.errors import RefusedError
from penstock.model.limits import Limits
from penstock.moderator.founding import Founding


@dataclass(frozen=True, slots=True)
class Times:
    """Which times steps can have."""

    #: how far clocks may differ, and how long a book may rest before the moderator has to say that so much time passed
    drift: timedelta
    leap: timedelta

    @classmethod
    def within(cls, limits: Limits) -> "Times":
        """Return the times that limits allow."""
        return cls(timedelta(seconds=limits.moderator_request_age), timedelta(seconds=limits.moderator_leap))

    def of_step(self, last: datetime, now: datetime, *, moderator: bool) -> datetime:
        """Return the time of a step that is taken now, by the clock of whoever takes it. Raises as `check`."""
        when = last if now < last <= now + self.drift else now
        self.check(last, when, moderator=moderator)
        return when

    def check(self, last: datetime, when: datetime, *, moderator: bool) -> None:
        """Check the time of a step after that of the last one. Raises `RefusedError` (`moderator.untimely`)."""
        if moderator:
            return
        if when < last:
            raise RefusedError(
                "moderator.untimely",
                f"the last change is of {last:%Y-%m-%d}, which is later than now",
                hint="check the clock; where it is right, the moderator sets the time by any request that it signs",
            )
        if when - last > self.leap:
            raise RefusedError(
                "moderator.untimely",
                f"the last change is of {last:%Y-%m-%d}, and much has happened since, or a clock is wrong",
                hint="check the clock; where it is right, let the moderator sign that time has passed",
            )


def is_moderators(founding: Founding, taken: Taken) -> bool:
    """Say whether a step rests on the word of the moderator, if it rests on one that counts at all."""
    if taken.word is not None:
        return taken.word.asked.value.by == founding.moderator
    return founding.unsafe_unsigned and taken.step.note.who == founding.moderator
