"""Reports to operators: refused rights on the network, and links to other brokers that were lost or are back.

Operators get one report when a link is lost, and one when it is back, with the reason, the duration and the number of
events that were not sent. A link that is lost again and again is reported at most `_REPORTS` times until it has been
quiet for `_QUIET`; the next report says how often it was lost meanwhile. Nothing here reads a clock: `now` is any clock
that does not go back, in seconds.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, TypeAlias

from penstock.broker.limits import BrokerLimits
from penstock.codec.wire import Wire
from penstock.errors import PenstockError, RefusedError
from penstock.guard import DecisionRecord
from penstock.guard.decision import Effect
from penstock.guard.decision_log import EventCounts, Recorder, Sink
from penstock.model.principals import Principal
from penstock.trust.caches import Recent
from penstock.trust.capabilities import Right

# ----------------------------------------------------------------------------------------------------------------------
# Refused rights on the network: the number of records and reports is bounded, because anybody can ask for a right.
#
# A stranger can ask again and again, and with a new key each time. In each period, the first refusal of a right to a
# principal is recorded, for up to `refusal_records` strangers. Further refusals are counted, and the count is recorded
# when the period ends. Refusals of more strangers than that are only counted, in `refusals not recorded`. Members are
# bounded in the same way, but strangers do not take their place in the log. Every permitted right is recorded, and so
# is the first refusal of a right that a principal had before, so that a revocation leaves a trace. Operators see each
# error code `refusal_reports` times in a period, and then how many more there were.


@dataclass(slots=True)
class _Refused:
    """A refusal that was recorded, and how often it happened again."""

    record: DecisionRecord
    again: int = 0


class Refusals:
    """The sink of a broker's recorder. It passes some records on to the sink of the decision log."""

    def __init__(self, sink: Sink, counts: "Counter[str]", limits: BrokerLimits) -> None:
        self._sink = sink
        self._counts = counts
        self._limits = limits
        self._period = timedelta(milliseconds=limits.refusal_period)
        self._since: datetime | None = None
        self._refused: dict[tuple[Principal, Right], _Refused] = {}
        #: those of strangers among them
        self._strangers = 0
        self._permitted: Recent[tuple[Principal, Right], None] = Recent(limits.cache_entries)
        self._reported: Counter[str] = Counter()

    def __call__(self, entry: DecisionRecord) -> None:
        """Record a decision, or count it. Raises what the sink raises."""
        asked = entry.principal, entry.action
        if entry.counts is not None or not entry.action.on_network:
            self._sink(entry)
        elif entry.effect is Effect.PERMIT:
            self._sink(entry)
            self._permitted.put(asked, None)
        elif asked in self._permitted:
            self._sink(entry)
            self._permitted.drop(asked)
        elif (known := self._refused.get(asked)) is not None:
            known.again += 1
        elif (is_member := self._is_member(entry.principal)) or self._strangers < self._limits.refusal_records:
            self._sink(entry)
            self._refused[asked] = _Refused(entry)
            self._strangers += not is_member
        else:
            self._counts["refusals not recorded"] += 1

    def _is_member(self, principal: "Principal") -> bool:
        return (principal, Right.CONNECT) in self._permitted

    def report(self, code: str) -> bool:
        """Count that somebody was refused with a code; say whether to report this one to operators."""
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
        refused, self._refused, self._strangers = self._refused, {}, 0
        for known in refused.values():
            if known.again:
                recorder.enforced(known.record, EventCounts(passed=0, refused=known.again))


# ----------------------------------------------------------------------------------------------------------------------
# Links to other brokers.


#: seconds after which a link that comes and goes is reported again
_QUIET: Final = 60.0
#: reports about one link without such a pause
_REPORTS: Final = 4


class LinkState(StrEnum):
    """Whether a link was lost or is back."""

    LOST = "lost"
    BACK = "back"


@dataclass(frozen=True, slots=True)
class LinkReport:
    """A link to a broker was lost, or is back."""

    peer: Principal
    state: LinkState
    #: why it was lost
    code: str
    #: for how many seconds it had been up or down before
    seconds: float
    #: events that the broker had asked for, and that were not sent to it while the link was down
    unsent: int = 0
    #: how often it was lost since the last report, where that is more than once
    losses: int = 0


Told: TypeAlias = Callable[[LinkReport], None]


@dataclass(slots=True)
class _Link:
    up: bool
    #: when it came up, or was lost
    since: float
    code: str = ""
    #: events that were not sent: in this outage, and in total
    unsent: int = 0
    unsent_all: int = 0
    losses: int = 0
    #: how often it was lost since the last report; when the last report was, and how many there were without a pause
    untold: int = 0
    reported: float = float("-inf")
    reports: int = 0


class LinkReports:
    """See the module."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self._links: dict[Principal, _Link] = {}

    @property
    def unsent(self) -> int:
        """The number of events that were not sent to brokers that had asked for them."""
        return sum(link.unsent_all for link in self._links.values())

    def up(self, peer: Principal, now: float) -> None:
        """Record that there is a link to a broker."""
        link = self._links.get(peer)
        if link is None:
            self._links[peer] = _Link(True, now)
        elif not link.up:
            before, unsent = link.since, link.unsent
            link.up, link.since, link.unsent = True, now, 0
            self._report(peer, link, LinkState.BACK, now - before, unsent, now)

    def lost(self, peer: Principal, code: str, now: float) -> None:
        """Record that the link to a broker is lost."""
        link = self._links.get(peer)
        if link is not None and link.up:
            before = link.since
            link.up, link.since, link.code = False, now, code
            link.losses += 1
            link.untold += 1
            self._report(peer, link, LinkState.LOST, now - before, 0, now)

    def not_passed_on(self, peer: Principal, events: int) -> None:
        """Count events that a broker had asked for, and that could not be sent to it."""
        link = self._links.get(peer)
        if link is not None:
            link.unsent += events
            link.unsent_all += events

    def status(self, now: float) -> dict[str, Wire]:
        """Return the state of each link that was ever lost, as plain data."""
        return {
            str(peer): {
                "state": str(LinkState.BACK if link.up else LinkState.LOST),
                "code": link.code,
                "seconds": now - link.since,
                "losses": link.losses,
                "unsent": link.unsent_all,
            }
            for peer, link in sorted(self._links.items())
            if link.losses
        }

    def _report(  # noqa: PLR0913, PLR0917  # what a report says
        self, peer: Principal, link: _Link, state: LinkState, seconds: float, unsent: int, now: float
    ) -> None:
        if now - link.reported >= _QUIET:
            link.reports = 0
        elif link.reports >= _REPORTS:
            return
        losses = link.untold if link.untold > 1 else 0
        link.reported, link.untold, link.reports = now, 0, link.reports + 1
        self._told(LinkReport(peer, state, link.code, seconds, unsent, losses))
