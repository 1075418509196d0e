"""Signed requests to the moderator.

    (moderator-request (book <digest>) (by <principal>) (serial <number>) (time <date>) (why <text>) <request>)

A request counts for one rule base, once, and only for a while: the serial numbers of one principal rise from each
request that was taken to the next, and its time is not far from the moderator's clock. So an old one can be shown again
without any effect, and one that was held back does not come into effect when nobody expects it.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, ClassVar

from penstock.codec.sexp import Form, SExp
from penstock.model.principals import Principal
from penstock.moderator.base.records import request_from_sexp, request_to_sexp
from penstock.moderator.polls import PollProof
from penstock.moderator.rules.steps import Request
from penstock.moderator.settlement.consents import Consent
from penstock.trust.signed import DIGEST, Claim, UnverifiedValue, malformed


def _read_request(value: SExp) -> Request:
    if not isinstance(value, tuple):
        raise malformed("a request is a list")
    return request_from_sexp(value)


@dataclass(frozen=True, slots=True)
class ModeratorRequest(Claim):
    """A request to the moderator."""

    HEAD: ClassVar = b"moderator-request"
    ORDER: ClassVar = ("book", "by", "serial", "time", "why", "request")
    SIGNER: ClassVar = "by"
    #: the digest of the founding of the rule base
    book: Annotated[bytes, DIGEST] = field(repr=False)
    by: Principal
    serial: int
    time: datetime
    request: Annotated[Request, Form(request_to_sexp, _read_request)]
    why: str = ""


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A received request with others' consents, not verified yet."""

    asked: UnverifiedValue[ModeratorRequest]
    consents: tuple[UnverifiedValue[Consent], ...] = ()
    #: what was chosen in a poll comes with it
    poll: PollProof | None = None
