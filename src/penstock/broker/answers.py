"""Answers about rights that are asked for with every event, remembered while they are certainly the same.

An answer rests on policy, on what somebody shows, and on dates. It is asked anew when one of these differs, and at the
first instant at which one of the dates could make a difference.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from penstock.broker.sessions import turning_point
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.trust.validity import Validity

_NEVER: Final = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Answer:
    by: tuple[object, ...]
    until: datetime
    answer: bool


class Answers:
    """See the module. Of so many as `Limits.cache_entries` says the oldest are forgotten."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._known: dict[Hashable, _Answer] = {}

    def known(self, about: Hashable, by: tuple[object, ...], now: datetime) -> bool | None:
        """Return the answer to a question that was asked by the same facts before; None where it is to be found."""
        known = self._known.get(about)
        return None if known is None or now >= known.until or known.by != by else known.answer

    def forget(self) -> None:
        """Forget all answers: the clock was corrected, and dates may lie ahead again; or they could not be recorded."""
        self._known.clear()

    def keep(
        self, about: Hashable, by: tuple[object, ...], now: datetime, dates: Iterable[Validity], *, answer: bool
    ) -> bool:
        """Remember an answer that was found, until one of the dates on which it rests; return it."""
        self._known.pop(about, None)
        if len(self._known) >= self._limits.cache_entries:
            self._known.pop(next(iter(self._known)))
        self._known[about] = _Answer(by, turning_point(dates, now) or _NEVER, answer)
        return answer
