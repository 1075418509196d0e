"""What operators learn about links to other brokers: which were lost, why, for how long, and what that has cost.

A report when a link is lost, and one when it is back. Of a link that comes and goes all the time there are so many
reports (`_REPORTS`) and no more, until it has been quiet for a while (`_QUIET`); the next report says how often it was
lost meanwhile. It reads no clock: `now` is any that does not go back, in seconds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from penstock.codec.wire import Wire
from penstock.model.principals import Principal

#: seconds after which a link that comes and goes is reported again
_QUIET: Final = 60.0
#: reports about one link without such a pause
_REPORTS: Final = 4


class LinkState(StrEnum):
    """What has become of a link."""

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
    #: events that the broker had asked for, and that were not passed on to it while the link was down
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
    #: events that were not passed on: in this outage, and in all
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
        """How many events were not passed on to brokers that had asked for them."""
        return sum(link.unsent_all for link in self._links.values())

    def up(self, peer: Principal, now: float) -> None:
        """Take note that there is a link to a broker."""
        link = self._links.get(peer)
        if link is None:
            self._links[peer] = _Link(True, now)
        elif not link.up:
            before, unsent = link.since, link.unsent
            link.up, link.since, link.unsent = True, now, 0
            self._report(peer, link, LinkState.BACK, now - before, unsent, now)

    def lost(self, peer: Principal, code: str, now: float) -> None:
        """Take note that the link to a broker is lost."""
        link = self._links.get(peer)
        if link is not None and link.up:
            before = link.since
            link.up, link.since, link.code = False, now, code
            link.losses += 1
            link.untold += 1
            self._report(peer, link, LinkState.LOST, now - before, 0, now)

    def not_passed_on(self, peer: Principal, events: int) -> None:
        """Count events that a broker had asked for, and that could not be passed on to it."""
        link = self._links.get(peer)
        if link is not None:
            link.unsent += events
            link.unsent_all += events

    def status(self, now: float) -> dict[str, Wire]:
        """Return what operators see of the links that were ever lost."""
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
