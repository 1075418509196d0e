"""Finding authority in an unordered bag of certificates.

`discover` answers one question: what may this principal do, of what is asked, by the word of this root? The request
is a tag; what comes back are the reductions of all chains that lead from the root to the principal, narrowed to the
request, none of which covers another. For a request that names one thing the answer is complete; for one that names
many, a principal keeps at most `limits.grants_per_principal` different grants and `truncated` says if there were more,
or if following them all would have been too much work.

The order of checks: dates and on-line tests first, then names, then authority. `now` comes in as an argument.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Final, TypeAlias

from penstock.errors import PenstockError, RefusedError
from penstock.model.instants import instant_key
from penstock.model.principals import Principal
from penstock.trust.certificates import Authorisation, Certificate
from penstock.trust.closure import Closure
from penstock.trust.credentials import Credentials
from penstock.trust.limits import TRUST_LIMITS, TrustLimits
from penstock.trust.reduction import FiveTuple, FourTuple
from penstock.trust.subjects import Threshold
from penstock.trust.tags import Tag
from penstock.trust.validity import ALWAYS, OnlineTest, State, Validity

OnlineChecker: TypeAlias = Callable[[OnlineTest, str, datetime], Validity]
"""Answers an on-line test for a certificate id: for how long it holds. Raises `RefusedError` when it does not."""

NO_ENDS: Final[Mapping[str, Validity]] = MappingProxyType({})
"""No certificate was revoked before its time."""


def no_online_checker(test: OnlineTest, certificate: str, _now: datetime) -> Validity:
    """Refuse every on-line test: without someone to ask, a certificate that must be asked about is not valid."""
    raise RefusedError(
        "cert.online-test",
        f"no one here can answer the on-line test `{test.kind}`",
        hint="give the verifier a checker for on-line tests",
        certificate=certificate,
    )


@dataclass(frozen=True, slots=True)
class UnusableCertificate:
    """A certificate that was ignored, and why: a code (`cert.expired`, …) and a message for people."""

    certificate: Certificate
    code: str
    why: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """The certificates of a bag that are usable at one moment, as tuples, and those that are not."""

    fives: tuple[FiveTuple, ...]
    fours: tuple[FourTuple, ...]
    quorums: dict[Principal, Threshold]
    unusable: tuple[UnusableCertificate, ...]


@dataclass(frozen=True, slots=True)
class Findings:
    """The result of `discover`: grants for the principal, best first. No grant means no authority."""

    grants: tuple[FiveTuple, ...]
    evidence: Evidence
    truncated: bool = False


def sift(
    credentials: Credentials,
    now: datetime | None,
    online: OnlineChecker = no_online_checker,
    ends: Mapping[str, Validity] = NO_ENDS,
) -> Evidence:
    """Sort verified certificates into those usable now and those that are not. Never raises for a certificate.

    `ends` says until when those counted, by id, that were revoked.

    Without a `now` all dates are kept, so that what follows from the certificates says itself when it holds: that is
    how a history is decided. On-line tests are about one moment, so a certificate that has one is then not usable.
    """
    moment = None if now is None else instant_key(now)
    fives: list[FiveTuple] = []
    fours: list[FourTuple] = []
    unusable: list[UnusableCertificate] = []
    for certificate in credentials:
        statement = certificate.statement
        validity = statement.validity
        state = State.VALID if moment is None else validity.state(moment)
        if state is not State.VALID:
            when = validity.not_before if state is State.NOT_YET else validity.not_after
            word = "valid only from" if state is State.NOT_YET else "expired on"
            unusable.append(UnusableCertificate(certificate, f"cert.{state}", f"{word} {(when or b'').decode()}"))
            continue
        if (end := ends.get(certificate.id)) is not None:
            left = validity.intersect(end)
            if left is None or (moment is not None and left.state(moment) is not State.VALID):
                words = f"counted until {(end.not_after or b'').decode()}, and was revoked"
                unusable.append(UnusableCertificate(certificate, "cert.revoked", words))
                continue
            validity = left
        if validity.online:
            try:
                if now is None:
                    raise RefusedError("cert.online-test", "an on-line test cannot be asked about all times")
                validity = _ask(validity, certificate.id, now, online)
            except PenstockError as error:
                unusable.append(UnusableCertificate(certificate, error.code, error.message))
                continue
        because = (certificate.id,)
        if isinstance(statement, Authorisation):
            fives.append(
                FiveTuple(statement.issuer, statement.subject, statement.propagate, statement.tag, validity, because)
            )
        else:
            fours.append(FourTuple(statement.issuer, statement.name, statement.subject, validity, because))
    return Evidence(tuple(fives), tuple(fours), credentials.thresholds(), tuple(unusable))


def _ask(validity: Validity, certificate: str, now: datetime, online: OnlineChecker) -> Validity:
    """Run the on-line tests; what remains is a period without tests."""
    period = Validity(validity.not_before, validity.not_after)
    for test in validity.online:
        narrowed = period.intersect(online(test, certificate, now))
        if narrowed is None or not narrowed.contains(now):
            raise RefusedError("cert.online-test", f"the on-line test `{test.kind}` does not hold now")
        period = Validity(narrowed.not_before, narrowed.not_after)
    return period


def discover(  # noqa: PLR0913  # each argument is one of the facts that a decision rests on
    credentials: Credentials,
    root: Principal,
    principal: Principal,
    request: Tag,
    now: datetime,
    *,
    online: OnlineChecker = no_online_checker,
    limits: TrustLimits = TRUST_LIMITS,
) -> Findings:
    """Find what `principal` may do, of what `request` asks, by the word of `root`.

    Raises `MalformedError` (`value.zone`) when `now` has no time zone; never for the fault of a certificate: one whose
    right cannot be intersected within bounds gives nothing, and `truncated` says so.
    """
    evidence = sift(credentials, now, online)
    return follow(evidence, root, principal, request, limits=limits)


def follow(
    evidence: Evidence, root: Principal, principal: Principal, request: Tag, *, limits: TrustLimits = TRUST_LIMITS
) -> Findings:
    """Find authority among sifted certificates; see `discover`."""
    closure = Closure(evidence.fives, evidence.fours, evidence.quorums, limits=limits)
    grants = closure.grants([FiveTuple(None, root, True, request, ALWAYS)], principal)
    return Findings(tuple(grants), evidence, closure.truncated)
