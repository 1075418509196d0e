"""Reports of components: each cause once in an interval, with a count of how often it came again.

A source that fails answers no question, and a flood of forgeries is refused sample by sample: neither may flood whoever
reads the reports. It is pure: `now` is a function.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Final

from penstock.authority.decisions.decision_point import Note
from penstock.errors import PenstockError

#: seconds in which a cause is reported once
INTERVAL: Final = 10.0
#: causes that are distinguished in an interval; others are distinguished by their codes
CAUSES: Final = 100


@dataclass(slots=True)
class _Cause:
    since: float
    last: PenstockError
    more: int = 0


class CauseReports:
    """Pass errors on to `note`. See the module. A cause is a code with its message.

    >>> reports = CauseReports(print, lambda: 0.0)
    >>> for _ in range(22):
    ...     reports(PenstockError("file.missing", "there is no file `staff.csv`"))
    there is no file `staff.csv` [file.missing]
    >>> reports.close()
    there is no file `staff.csv` (21 times more in 0 s) [file.missing]
    """

    def __init__(self, note: Note, now: Callable[[], float]) -> None:
        self._note = note
        self._now = now
        #: in the order of their first report
        self._causes: dict[tuple[str, str], _Cause] = {}

    def __call__(self, error: PenstockError) -> None:
        """Report an error, or count it if its cause was reported in this interval."""
        now = self._now()
        self._pass_on(now, now - INTERVAL)
        cause = error.code, error.message
        if cause not in self._causes and len(self._causes) >= CAUSES:
            cause = error.code, ""
        known = self._causes.get(cause)
        if known is None:
            self._causes[cause] = _Cause(now, error)
            self._note(error)
        else:
            known.more += 1
            known.last = error

    def close(self) -> None:
        """Report all counts."""
        now = self._now()
        self._pass_on(now, now)

    def _pass_on(self, now: float, before: float) -> None:
        """Report the counts of the causes that were first reported before a time, and forget them."""
        while self._causes and (one := next(iter(self._causes.values()))).since <= before:
            del self._causes[next(iter(self._causes))]
            if one.more:
                last = copy(one.last)
                last.message = f"{last.message} ({one.more} times more in {now - one.since:.0f} s)"
                last.args = (last.message,)
                last.fields = {**last.fields, "more": one.more}
                self._note(last)
