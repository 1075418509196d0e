"""The decision log of the service: a CloudEvent a line, for each decision, written before it is sent.

The caller, the subject and resource, the decision, its policy and revision, and how long it took; no
properties, which may be anybody's secrets. One write for all decisions of a question. What audits read of it is in
docs/reference/decision-log.md.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Final

from msgspec import Struct

from penstock.guard.decision_log import ANSWERED
from penstock.policy.language.results import XacmlDecision
from penstock.store.files.appended_lines import AppendedLines

_SAID: Final = {one: one.value for one in XacmlDecision}
_quoted: Final[Callable[[str], str]] = encode_basestring_ascii


class Decided(Struct, frozen=True, gc=False):
    """One decision: its subject, action and resource; for a request in XACML they are empty."""

    decision: XacmlDecision
    subject: tuple[str, str] = ("", "")
    action: str = ""
    resource: tuple[str, str] = ("", "")
    status: str = ""


class DecisionContext(Struct, frozen=True, gc=False):
    """The common part of all decisions of a question."""

    id: str
    time: datetime
    endpoint: str
    revision: str
    #: the policy that decides, as a list in JSON
    because: str
    #: microseconds, of which each decision has the same share
    took: int
    caller: str | None
    request_id: str | None


class Journal(AppendedLines):
    """See the module. Raises `FailedError` (`log.write`) when a record could not be written."""

    def __init__(self, path: Path, source: str) -> None:
        super().__init__(path)
        self._quoted_source = _quoted(source)

    def record(self, asking: DecisionContext, decided: Sequence[Decided]) -> None:
        """Append the decisions of a question."""
        if len(decided) == 1:
            self.write(self._line(asking, 0, decided[0], asking.took).encode())
        else:
            took = asking.took // (len(decided) or 1)
            self.write("".join(self._line(asking, place, one, took) for place, one in enumerate(decided)).encode())

    def _line(self, asking: DecisionContext, place: int, one: Decided, took: int) -> str:
        """Return a record. It is formatted by hand, because it is half of the cost of a cached question."""
        (who, whose), (what, which) = one.subject, one.resource
        because = "[]" if one.decision is XacmlDecision.NOT_APPLICABLE else asking.because
        rest = f',"status":{_quoted(one.status)}' if one.status else ""
        if asking.caller:
            rest += f',"caller":{_quoted(asking.caller)}'
        if asking.request_id:
            rest += f',"request":{_quoted(asking.request_id)}'
        return (
            f'{{"specversion":"1.0","id":{_quoted(f"{asking.id}-{place}")},"source":{self._quoted_source},'
            f'"type":"{ANSWERED}","time":"{asking.time.isoformat()}","datacontenttype":"application/json",'
            f'"data":{{"endpoint":{_quoted(asking.endpoint)},"decision":"{_SAID[one.decision]}",'
            f'"because":{because},"revision":{_quoted(asking.revision)},"took":{took},"subject":{{"type":{_quoted(who)},"id":{_quoted(whose)}}},'
            f'"action":{_quoted(one.action)},"resource":{{"type":{_quoted(what)},"id":{_quoted(which)}}}{rest}}}}}\n'
        )
