"""Requests to the moderator, signed by whoever asks.

    (moderator-request (book <digest>) (by <principal>) (serial <number>) (time <date>) (why <text>) <request>)

A request counts for one rule base, once, and only for a while: the serial numbers of one principal rise from each
request that was taken to the next, and its time is not far from the moderator's clock. So an old one can be shown again
without any effect, and one that was held back does not come into effect when nobody expects it.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from penstock.codec.sexp import SExp, text
from penstock.model.principals import Principal
from penstock.moderator.base.records import request_from_sexp, request_to_sexp
from penstock.moderator.polls import PollProof
from penstock.moderator.rules.steps import Request
from penstock.moderator.settlement.consents import Consent
from penstock.trust.signed import (
    Claim,
    UnverifiedValue,
    malformed,
    one,
    read_count,
    read_digest,
    read_owner,
    read_time,
    time_field,
)


@dataclass(frozen=True, slots=True)
class ModeratorRequest(Claim):
    """What somebody asks of the moderator."""

    HEAD: ClassVar = b"moderator-request"
    #: the digest of the founding of the rule base
    book: bytes = field(repr=False)
    by: Principal
    serial: int
    time: datetime
    request: Request
    why: str = ""

    @property
    def signer(self) -> Principal:
        """Whoever asks."""
        return self.by

    def to_sexp(self) -> SExp:
        """Return the body that is signed. Raises `MalformedError` for a time that cannot be written."""
        return (
            self.HEAD,
            (b"book", self.book),
            (b"by", str(self.by).encode()),
            (b"serial", b"%d" % self.serial),
            time_field(self.time),
            (b"why", self.why.encode()),
            (b"request", request_to_sexp(self.request)),
        )

    @classmethod
    def from_sexp(cls, body: SExp) -> "ModeratorRequest":
        """Read a body. Raises `MalformedError` (`evolution.malformed`, and what the parts raise)."""
        request = one(body, b"request")
        if not isinstance(request, tuple):
            raise malformed("a request is a list")
        return cls(
            read_digest(one(body, b"book")),
            read_owner(one(body, b"by")),
            read_count(one(body, b"serial")),
            read_time(body),
            request_from_sexp(request),
            text(one(body, b"why")),
        )


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A request as it came, and what others agree to; nothing of it is verified."""

    asked: UnverifiedValue[ModeratorRequest]
    consents: tuple[UnverifiedValue[Consent], ...] = ()
    #: what was chosen in a poll comes with it
    poll: PollProof | None = None
