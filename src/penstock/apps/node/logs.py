"""The log of a node, with a line for each report to operators, for people or as JSON.

A line names the principal, its request, the code of a refusal and the missing rights, but never a value, a filter or a
restriction. The number of lines in a second is bounded. A summary line counts those that were left out.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from penstock.apps.node.limits import NodeLimits
from penstock.broker.core.reports import LinkReport, LinkState
from penstock.broker.local.requests import Detail, RequestReport
from penstock.errors import PenstockError, printable
from penstock.model.principals import Petnames, Principal

Line: TypeAlias = Mapping[str, object]


@dataclass(slots=True)
class Log:
    """Writes the log. `write` receives each line. With `quiet`, accepted requests are left out."""

    write: Callable[[str], None]
    clock: Callable[[], datetime]
    limits: NodeLimits
    as_json: bool = False
    quiet: bool = False
    names: Petnames = field(default_factory=Petnames)
    _second: datetime | None = field(default=None, init=False)
    _lines: int = field(default=0, init=False)

    def note(self, report: RequestReport | LinkReport | PenstockError) -> None:
        """Log a report of a node."""
        if isinstance(report, PenstockError):
            self.say("warning", "problem", code=report.code, message=report.message)
        elif isinstance(report, LinkReport):
            self._note_link(report)
        elif report.code or not self.quiet:
            asked, detail = report.asked, report.detail
            missing = [
                {"right": str(one.right), "about": str(one.about), "attributes": list(one.attributes)}
                for one in detail.missing
            ]
            about = "" if asked.about is None else str(asked.about)
            # A request that is granted in part is nothing bad, and must not look so to people.
            for_people = not report.code and not self.as_json
            self.say(
                "warning" if report.code else "info",
                "refused" if report.code else "active",
                code=report.code,
                session=report.session,
                principal=report.principal,
                asked=str(asked.verb),
                about=about,
                missing=[] if for_people else missing,
                withheld=_withheld(detail, about) if for_people else "",
                problems=list(detail.problems),
            )

    def _note_link(self, report: LinkReport) -> None:
        lost = report.state is LinkState.LOST
        self.say(
            "warning" if lost or report.unsent else "info",
            f"link-{report.state}",
            broker=report.peer,
            code=report.code,
            **{"up_for" if lost else "down_for": round(report.seconds, 1)},
            unsent=report.unsent or None,
            losses=report.losses or None,
        )

    def say(self, level: str, what: str, **facts: object) -> None:
        """Log a line. Empty facts are left out."""
        now = self.clock()
        second = now.replace(microsecond=0)
        if second != self._second:
            left_out = self._lines - self.limits.log_lines
            self._second, self._lines = second, 0
            if left_out > 0:
                self._put(now, "warning", "left-out", {"lines": left_out})
        self._lines += 1
        if self._lines <= self.limits.log_lines:
            self._put(now, level, what, facts)

    def _put(self, now: datetime, level: str, what: str, facts: Line) -> None:
        told = {name: fact for name, fact in facts.items() if fact not in ("", [], None)}
        at = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        if self.as_json:
            plain = {name: str(fact) if isinstance(fact, Principal) else fact for name, fact in told.items()}
            self.write(json.dumps({"time": at, "level": level, "event": what, **plain}))
            return
        words = [f"{name}={self._word(fact)}" for name, fact in told.items()]
        self.write(printable(" ".join([at, level, what, *words])))

    def _word(self, fact: object) -> str:
        if isinstance(fact, Principal):
            return self.names.show(fact)
        text = fact if isinstance(fact, str) else json.dumps(fact, ensure_ascii=False)
        for principal, name in self.names.items():
            text = text.replace(str(principal), name)
        return json.dumps(text, ensure_ascii=False) if isinstance(fact, str) and " " in text else text


def _withheld(detail: Detail, about: str) -> str:
    """Return what a client does not get of its request: attributes, and of which types if these are others."""
    return "; ".join(
        (", ".join(one.attributes) or "everything") + (f" of {one.about}" if str(one.about) != about else "")
        for one in detail.missing
    )
