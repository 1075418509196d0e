"""Records of revocations in the decision log: when one was ordered, and when a broker had carried it out."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from penstock.guard.log_envelopes import (
    REVOKED,
    URI_REFERENCE,
    check_names,
    cloud_event,
    is_text,
    json_line,
    named_field,
    open_envelope,
    parsed,
    text_of,
    texts_of,
    time_of,
    written,
    wrong_field,
)
from penstock.model.instants import in_utc
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.principals import Principal

_REVOCATION: Final = frozenset({"owner", "revocation", "because", "ordered"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RevocationRecord:
    """A revocation as one broker has carried it out.

    `source` is that broker, `time` when it was complete there, and `ordered` when `owner` ordered it. `revocation` is
    the id of the order, the same for all brokers, and `because` the ids of the credentials that count no longer. Raises
    `MalformedError` (`log.field`, `value.zone`, `value.range`).
    """

    id: str
    source: str
    time: datetime
    owner: Principal
    revocation: str
    because: tuple[str, ...]
    ordered: datetime

    def __post_init__(self) -> None:
        object.__setattr__(self, "time", in_utc(self.time))
        object.__setattr__(self, "ordered", in_utc(self.ordered))
        if not URI_REFERENCE.fullmatch(self.source):
            raise wrong_field("source", "expected a URI reference, such as a principal or a name without spaces")
        if not self.id or not self.revocation:
            raise wrong_field("id", "every record has an id of its own, and names the revocation")
        if not self.because:
            raise wrong_field("because", "a revocation names what it revokes")
        if self.time < self.ordered:
            raise wrong_field("ordered", "nothing is complete before it was ordered")
        if not all(map(is_text, (self.id, self.revocation, *self.because))):
            raise wrong_field("text", "a lone surrogate is no Unicode text")

    @property
    def took(self) -> timedelta:
        """The time to revoke."""
        return self.time - self.ordered

    def to_cloud_event(self) -> dict[str, object]:
        """Return the record as a CloudEvent in structured mode, as plain data."""
        data = {
            "owner": str(self.owner),
            "revocation": self.revocation,
            "because": list(self.because),
            "ordered": written(self.ordered),
        }
        return cloud_event(self.id, self.source, REVOKED, self.time, data)

    def to_json(self) -> str:
        """Return the record as one line of JSON."""
        return json_line(self.to_cloud_event())


def read_revocation(text: str | bytes, limits: Limits = DEFAULT_LIMITS) -> RevocationRecord:
    """Read a record of a revocation from JSON. Raises as `decision_log.read_record`."""
    envelope, data = open_envelope(parsed(text, limits), REVOKED)
    check_names(data, _REVOCATION)
    with named_field():
        return RevocationRecord(
            id=text_of(envelope, "id"),
            source=text_of(envelope, "source"),
            time=time_of(text_of(envelope, "time")),
            owner=Principal.parse(text_of(data, "owner")),
            revocation=text_of(data, "revocation"),
            because=texts_of(data, "because"),
            ordered=time_of(text_of(data, "ordered")),
        )
