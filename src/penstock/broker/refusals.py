"""Refusals of strangers: recorded and reported so often and no oftener, since anybody can cause them.

Whoever has not been let in yet can ask again and again, and under ever new keys. In each period, the first refusal of a
principal is recorded as it is, up to `refusal_records` of them; further ones of the same principal are counted, and
recorded as one number when the period ends. What is left out then, of principals that were too many, is counted in
`refusals not recorded`. Nothing is ever left out that was permitted, nor the first refusal of somebody who had been let
in: a revocation leaves its trace. Operators are told of each code `refusal_reports` times in a period, and then how
often it happened besides.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from penstock.errors import PenstockError, RefusedError
from penstock.guard import DecisionRecord
from penstock.guard.decision import Effect
from penstock.guard.decision_log import Counts
from penstock.guard.recording import Recorder, Sink
from penstock.model.limits import Limits
from penstock.trust.caches import Recent
from penstock.trust.capabilities import Right

if TYPE_CHECKING:
    from penstock.model.principals import Principal


@dataclass(slots=True)
class _Refused:
    """A refusal that was recorded, and how often it happened again."""

    record: DecisionRecord
    again: int = 0


class Refusals:
    """See the module. It is the sink of a broker's recorder, and hands on to that of the decision log."""

    def __init__(self, sink: Sink, counts: "Counter[str]", limits: Limits) -> None:
        self._sink = sink
        self._counts = counts
        self._limits = limits
        self._period = timedelta(milliseconds=limits.refusal_period)
        self._since: datetime | None = None
        self._refused: dict[Principal, _Refused] = {}
        self._let_in: Recent[Principal, None] = Recent(limits.cache_entries)
        self._reported: Counter[str] = Counter()

    def __call__(self, entry: DecisionRecord) -> None:
        """Record a decision, or count it. Raises what the sink raises."""
        if entry.counts is not None or not entry.action.on_network or entry.action is Right.INSTALL:
            self._sink(entry)
        elif entry.effect is Effect.PERMIT:
            self._sink(entry)
            self._refused.pop(entry.principal, None)
            self._let_in.put(entry.principal, None)
        elif entry.principal in self._let_in:
            self._sink(entry)
            self._let_in.drop(entry.principal)
        elif (known := self._refused.get(entry.principal)) is not None:
            known.again += 1
        elif len(self._refused) < self._limits.refusal_records:
            self._sink(entry)
            self._refused[entry.principal] = _Refused(entry)
        else:
            self._counts["refusals not recorded"] += 1

    def report(self, code: str) -> bool:
        """Count that somebody was refused with a code; say whether operators are to be told of this one."""
        self._reported[code] += 1
        return self._reported[code] <= self._limits.refusal_reports

    def tick(self, now: datetime, recorder: Recorder, note: Callable[[PenstockError], None]) -> None:
        """Record and report what was counted, where a period is over. Raises what the sink raises."""
        if self._since is None:
            self._since = now
        if now - self._since >= self._period:
            self._since = now
            self.flush(recorder, note)

    def flush(self, recorder: Recorder, note: Callable[[PenstockError], None]) -> None:
        """Record and report what was counted, and begin again. Raises what the sink raises."""
        reported, self._reported = self._reported, Counter()
        for code, times in reported.items():
            if times > self._limits.refusal_reports:
                besides = times - self._limits.refusal_reports
                note(RefusedError(code, f"{besides} more peers were refused in the same way", times=besides))
        refused, self._refused = self._refused, {}
        for known in refused.values():
            if known.again:
                recorder.enforced(known.record, Counts(passed=0, refused=known.again))
