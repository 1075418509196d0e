"""The validity statements that a verifier has, and what follows for one certificate: valid until, revoked or unknown.

A state machine without a clock or a network. Its rules:

1. A timed statement counts from `not_before` to `not_after`. Two of one issuer and kind that overlap are both void.
   Without a statement that covers now, nothing is known (RFC 2693, 5.2: the gap is not valid).
2. A timed statement that begins before a forgotten one has ended is refused. Numbers of active revocations and
   heartbeats, and times of heartbeats, do not decrease. If two active revocations have the same number, no certificate
   that depends on them is valid, until there is one with a higher number.
3. Active revocations count immediately. A heartbeat ends after its period, and after the interval that the certificate
   permits, both counted from when it was signed or received, whichever is earlier: an issuer whose clock is ahead does
   not extend it. A heartbeat for a revocation that has not arrived yet vouches for nothing.
4. A one-time answer counts once, for the question with its nonce, and for `recheck` from the time of the question.
5. Clocks jump. The only bounds that are remembered are dates in signed statements, and the last ended statements are
   kept. So a verifier whose clock was ahead goes on with them when its clock is corrected.
6. Everything is bounded (`TrustLimits.statement_*`). What does not fit is refused, and so are its certificates.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import islice, zip_longest
from typing import Annotated, ClassVar, Final, TypeAlias, cast

from penstock.codec.sexp import SExp, canonical
from penstock.errors import LimitError, MalformedError, RefusedError
from penstock.model.principals import Principal
from penstock.trust.limits import TRUST_LIMITS, TrustLimits
from penstock.trust.signed import DIGEST, SignedValue, StatementRecord, read_signed
from penstock.trust.statements import (
    VALIDITY_KINDS,
    ActiveRevocation,
    Heartbeat,
    OneTimeAnswer,
    OneTimeQuestion,
    OnlineKind,
    OnlineTerms,
    Revalidation,
    RevocationList,
    TimedStatement,
    ValidityClaim,
)
from penstock.trust.validity import OnlineTest, Periods, Validity, earliest

#: ended statements that are kept of each issuer and kind
_KEPT: Final = 2
_INSTANT: Final = timedelta(microseconds=1)
#: a question is forgotten after this time: an answer that comes later is refused
ANSWER_TIME: Final = timedelta(seconds=30)


RevokingStatement: TypeAlias = ActiveRevocation | OneTimeAnswer | TimedStatement
"""The kinds of statements that can revoke a certificate."""


class OnlineState(StrEnum):
    """What statements say about a certificate."""

    VALID = "valid"
    UNKNOWN = "unknown"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True)
class OnlineStatus:
    """What statements say about a certificate now: until when, and why in a code and words for people.

    Only a valid certificate has no code.
    """

    state: OnlineState
    until: datetime | None = None
    code: str = ""
    why: str = ""

    @property
    def missing(self) -> bool:
        """Whether a later statement could say more."""
        return self.code in ("statement.unknown", "statement.ended")


@dataclass(frozen=True, slots=True)
class Outlook:
    """What an issuer's statements of one kind say now: about the certificates that they list, and about all others."""

    others: OnlineStatus
    listed: frozenset[str] = field(default=frozenset(), repr=False)
    about_listed: OnlineStatus = OnlineStatus(OnlineState.REVOKED)

    def status(self, certificate: str) -> OnlineStatus:
        """Return what they say about a certificate."""
        return self.about_listed if certificate in self.listed else self.others


@dataclass(slots=True)
class _Timed:
    """The timed statements of one issuer and kind, the earliest first."""

    windows: list[SignedValue[TimedStatement]] = field(default_factory=list)
    #: digests of statements that overlap with others
    void: set[bytes] = field(default_factory=set)
    #: the last end of a forgotten statement
    floor: datetime | None = None

    def purge(self, now: datetime) -> None:
        """Forget all statements that have ended, except for the last ones."""
        ended = [held for held in self.windows if held.value.not_after < now][:-_KEPT]
        for held in ended:
            self.windows.remove(held)
            self.void.discard(held.digest)
            end = held.value.not_after
            self.floor = end if self.floor is None else max(self.floor, end)


@dataclass(slots=True)
class _Active:
    """The last active revocation and heartbeat of one issuer."""

    revoked: SignedValue[ActiveRevocation] | None = None
    beat: SignedValue[Heartbeat] | None = None
    #: when the heartbeat arrived
    heard: datetime | None = None
    #: the highest number under which there are two different revocations
    forked: int = 0

    def until(self, interval: timedelta | None = None) -> datetime | None:
        """Return when the last heartbeat ends, if the certificate permits this interval at most."""
        if self.beat is None or self.heard is None:
            return None
        value = self.beat.value
        period = value.until - value.time
        return min(value.time, self.heard) + (period if interval is None else min(period, interval))


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question without an answer: when it was asked, and how long its answer counts."""

    question: OneTimeQuestion
    at: datetime
    recheck: timedelta


@dataclass(frozen=True, slots=True)
class _Answered:
    """The last answer about a certificate, and when it was asked for."""

    answer: SignedValue[OneTimeAnswer]
    at: datetime
    until: datetime


@dataclass(slots=True)
class _Issuer:
    timed: dict[OnlineKind, _Timed] = field(default_factory=dict)
    active: _Active = field(default_factory=_Active)
    answers: dict[str, _Answered] = field(default_factory=dict)

    def is_over(self, now: datetime) -> bool:
        """Return whether every statement has ended."""
        until = self.active.until()
        ends = [held.value.not_after for timed in self.timed.values() for held in timed.windows]
        ends += [found.until for found in self.answers.values()]
        return all(end < now for end in ends) and (until is None or until < now)


_TIMED_KINDS: Final = {RevocationList: OnlineKind.CRL, Revalidation: OnlineKind.REVALIDATION}


class StatementBook:
    """See the module. `verifier` is the principal that asks one-time questions."""

    def __init__(self, verifier: Principal, *, limits: TrustLimits = TRUST_LIMITS) -> None:
        self._verifier = verifier
        self._limits = limits
        self._issuers: dict[Principal, _Issuer] = {}
        #: questions without an answer by nonce, the oldest first, and how many there are about a certificate
        self._asked: dict[bytes, _Asked] = {}
        self._open: Counter[str] = Counter()

    # Statements.

    def take(self, statement: SignedValue[ValidityClaim], now: datetime) -> bool:
        """Take a verified statement; return whether it is new. Two that exclude each other are both kept, as void.

        Raises `RefusedError`: `statement.backwards` for one from before what is known, `statement.ended` for a
        heartbeat that is over, `statement.nonce` for an answer to no open question; and `LimitError`
        (`statement.limit`).
        """
        value = statement.value
        issuer = self._issuer(value.issuer, now)
        match value:
            case TimedStatement():
                timed = issuer.timed.setdefault(_TIMED_KINDS[type(value)], _Timed())
                new = self._take_timed(timed, cast("SignedValue[TimedStatement]", statement), now)
            case ActiveRevocation():
                new = _take_revocation(issuer.active, cast("SignedValue[ActiveRevocation]", statement))
            case Heartbeat():
                new = _take_heartbeat(issuer.active, cast("SignedValue[Heartbeat]", statement), now)
            case OneTimeAnswer():
                new = self._take_answer(issuer, cast("SignedValue[OneTimeAnswer]", statement), now)
            case _:
                raise TypeError("not a validity statement")
        if new:
            self._issuers[value.issuer] = issuer
        return new

    def _issuer(self, principal: Principal, now: datetime) -> _Issuer:
        known = self._issuers.get(principal)
        if known is not None:
            return known
        most = self._limits.statement_issuers
        if len(self._issuers) >= most:
            # What is forgotten has ended: taken again, it would be refused or vouch for nothing.
            for one in [one for one, issuer in self._issuers.items() if issuer.is_over(now)]:
                del self._issuers[one]
        if len(self._issuers) >= most:
            raise LimitError("statement.limit", f"there are validity statements of more than {most} issuers")
        return _Issuer()

    def _take_timed(self, timed: _Timed, statement: SignedValue[TimedStatement], now: datetime) -> bool:
        value, most = statement.value, self._limits.statements_of_issuer
        if any(held.digest == statement.digest for held in timed.windows):
            return False
        timed.purge(now)
        clash = [held.digest for held in timed.windows if held.value.overlaps(value)]
        timed.void.update(clash)
        if not clash and timed.floor is not None and value.not_before <= timed.floor:
            raise _backwards(f"it begins before {_moment(timed.floor)}, when an earlier one ended")
        if len(timed.windows) >= most:
            raise LimitError("statement.limit", f"one issuer has more than {most} statements that have not ended")
        listed = sum(len(held.value.certificates) for held in timed.windows) + len(value.certificates)
        if listed > self._limits.statement_certificates:
            bound = self._limits.statement_certificates
            raise LimitError("statement.limit", f"statements of one issuer list more than {bound} certificates")
        if clash:
            timed.void.add(statement.digest)
        timed.windows.append(statement)
        timed.windows.sort(key=lambda held: held.value.not_before)
        # One that has ended is kept if it is among the last: the clock may be ahead.
        timed.purge(now)
        return statement in timed.windows

    def _take_answer(self, issuer: _Issuer, statement: SignedValue[OneTimeAnswer], now: datetime) -> bool:
        value = statement.value
        self._forget_questions(now)
        asked = self._asked.get(value.nonce)
        question = OneTimeQuestion(value.issuer, value.certificate, value.verifier, value.nonce)
        if asked is None or asked.question != question:
            raise RefusedError("statement.nonce", "this one-time answer does not belong to an open question")
        self._close(value.nonce)
        issuer.answers[value.certificate] = _Answered(statement, asked.at, asked.at + asked.recheck)
        return True

    def ask(self, terms: OnlineTerms, certificate: str, nonce: bytes, now: datetime) -> OneTimeQuestion:
        """Return a question to the issuer. Its answer is accepted once, within `ANSWER_TIME`.

        Raises `LimitError` (`statement.limit`), `MalformedError` (`online.malformed`) for terms of another kind.
        """
        self._forget_questions(now)
        if len(self._asked) >= self._limits.statement_questions:
            raise LimitError("statement.limit", "too many one-time questions are open")
        if terms.kind is not OnlineKind.ONE_TIME or terms.pause is None:
            raise MalformedError("online.malformed", f"a test `{terms.kind}` is not answered one question at a time")
        question = OneTimeQuestion(terms.signer, certificate, self._verifier, nonce)
        self._asked[nonce] = _Asked(question, now, terms.pause)
        self._open[certificate] += 1
        return question

    def _forget_questions(self, now: datetime) -> None:
        # A question from the future was asked before the clock was corrected.
        first, last = (next(iter(ordered), None) for ordered in (self._asked.values(), reversed(self._asked.values())))
        if first is None or last is None or (first.at <= now <= first.at + ANSWER_TIME and last.at <= now):
            return
        for nonce in [nonce for nonce, one in self._asked.items() if not one.at <= now <= one.at + ANSWER_TIME]:
            self._close(nonce)

    def _close(self, nonce: bytes) -> None:
        certificate = self._asked.pop(nonce).question.certificate
        self._open[certificate] -= 1
        if not self._open[certificate]:
            del self._open[certificate]

    def is_due(self, terms: OnlineTerms, certificate: str, now: datetime) -> bool:
        """Return whether to ask about a certificate: no question is open, and the last answer ends soon or has ended.

        An answer is replaced in the last quarter of its time, so that access does not end in between.
        """
        self._forget_questions(now)
        if certificate in self._open:
            return False
        known = self._issuers.get(terms.signer, _Issuer()).answers.get(certificate)
        return known is None or not known.at <= now < known.until - (known.until - known.at) / 4

    def is_current(self, issuer: Principal, now: datetime) -> bool:
        """Return whether a statement of an issuer that others can use counts now."""
        known = self._issuers.get(issuer, _Issuer())
        until = known.active.until()
        return (until is not None and now <= until) or any(
            held.value.not_before <= now <= held.value.not_after
            for timed in known.timed.values()
            for held in timed.windows
        )

    def is_over(self, issuer: Principal, now: datetime) -> bool:
        """Return whether every statement of an issuer has ended."""
        known = self._issuers.get(issuer)
        return known is None or known.is_over(now)

    def forget(self, issuer: Principal) -> None:
        """Forget an issuer whose statements have ended."""
        self._issuers.pop(issuer, None)

    def revoked_by(self, issuer: Principal, certificate: str, now: datetime) -> SignedValue[RevokingStatement] | None:
        """Return the statement that revokes a certificate now."""
        known = self._issuers.get(issuer, _Issuer())
        revoked, answer = known.active.revoked, known.answers.get(certificate)
        if revoked is not None and certificate in revoked.value.certificates:
            return revoked
        if answer is not None and answer.answer.value.revoked:
            return answer.answer
        for held in (known.timed.get(OnlineKind.CRL) or _Timed()).windows:
            if held.value.not_before <= now <= held.value.not_after and certificate in held.value.certificates:
                return held
        return None

    def statements(self, issuer: Principal) -> Iterator[SignedValue[ValidityClaim]]:
        """Yield an issuer's statements that others can use: all except one-time answers."""
        known = self._issuers.get(issuer)
        if known is not None:
            for timed in known.timed.values():
                yield from timed.windows
            yield from filter(None, (known.active.revoked, known.active.beat))

    def issuers(self) -> Iterator[Principal]:
        """Yield the issuers of the statements that are here."""
        yield from self._issuers

    # Time.

    def purge(self, now: datetime) -> None:
        """Forget statements that have ended, except for the last ones, and questions without an answer."""
        self._forget_questions(now)
        for issuer in self._issuers.values():
            for timed in issuer.timed.values():
                timed.purge(now)
            for certificate in [one for one, found in issuer.answers.items() if not found.at <= now <= found.until]:
                del issuer.answers[certificate]

    def turns(self, now: datetime) -> datetime | None:
        """Return when the next statement begins or has ended, after now."""
        turn: datetime | None = None
        for issuer in self._issuers.values():
            for timed in issuer.timed.values():
                for held in timed.windows:
                    begin, end = held.value.not_before, held.value.not_after
                    turn = earliest(turn, begin if begin > now else _end(end, now))
            ends = [found.until for found in issuer.answers.values()]
            ends += [] if (until := issuer.active.until()) is None else [until]
            for end in ends:
                turn = earliest(turn, _end(end, now))
        return turn

    # Certificates.

    def check(self, test: OnlineTest, certificate: str, now: datetime) -> Validity:
        """Return for how long an on-line test holds: an `OnlineChecker`.

        Raises `RefusedError` (`cert.revoked`, `statement.*`) if it does not, `MalformedError` (`online.malformed`).
        """
        status = self.status(OnlineTerms.of(test), certificate, now)
        if status.state is not OnlineState.VALID:
            raise RefusedError(status.code, status.why, certificate=certificate)
        return Validity.between(None, status.until)

    def status(self, terms: OnlineTerms, certificate: str, now: datetime) -> OnlineStatus:
        """Return what statements say about a certificate now."""
        if terms.kind is OnlineKind.ONE_TIME:
            issuer = self._issuers.get(terms.signer, _Issuer())
            return _answer_status(issuer.answers.get(certificate), terms, now)
        return self.outlook(terms, now).status(certificate)

    def outlook(self, terms: OnlineTerms, now: datetime) -> Outlook:
        """Return what statements say now about all certificates with a test. One-time answers are not among them."""
        issuer = self._issuers.get(terms.signer, _Issuer())
        if terms.kind is OnlineKind.ACTIVE:
            return _active_outlook(issuer.active, terms, now)
        return _timed_outlook(issuer.timed.get(terms.kind) or _Timed(), terms, now)

    # Storage.

    def remember(self, issuer: Principal) -> list[bytes]:
        """Return what must survive a restart about an issuer: a `StatementMemory`, and the statements.

        One-time answers are left out: their questions do not survive.
        """
        known = self._issuers.get(issuer, _Issuer())
        timed = {kind: known.timed.get(kind) or _Timed() for kind in _TIMED_KINDS.values()}
        memory = StatementMemory(
            issuer,
            timed[OnlineKind.CRL].floor,
            timed[OnlineKind.REVALIDATION].floor,
            known.active.heard,
            known.active.forked,
            frozenset(digest for one in timed.values() for digest in one.void),
        )
        return [canonical(memory.to_sexp()), *(statement.to_bytes() for statement in self.statements(issuer))]

    def restore(self, values: Sequence[SExp], now: datetime) -> list[SignedValue[ValidityClaim]]:
        """Go on with what `remember` returned, and return the statements: all signatures are verified.

        Raises `MalformedError` (`evolution.malformed`), `RefusedError` (`key.bad-signature`) and `LimitError`.
        """
        memory = StatementMemory.from_sexp(values[0] if values else ())
        statements = [read_signed(value, *VALIDITY_KINDS).verify() for value in values[1:]]
        if any(one.value.issuer != memory.issuer or isinstance(one.value, OneTimeAnswer) for one in statements):
            raise MalformedError("evolution.malformed", "stored validity statements are not all of their issuer")
        issuer = self._issuers[memory.issuer] = self._issuer(memory.issuer, now)
        for kind, floor in ((OnlineKind.CRL, memory.crl_floor), (OnlineKind.REVALIDATION, memory.reval_floor)):
            windows = [one for one in statements if kind.encode() == one.value.HEAD]
            if windows or floor:
                held = sorted(cast("list[SignedValue[TimedStatement]]", windows), key=lambda one: one.value.not_before)
                issuer.timed[kind] = _Timed(held, {one.digest for one in held} & memory.void, floor)
        for one in statements:
            if isinstance(one.value, ActiveRevocation):
                issuer.active.revoked = cast("SignedValue[ActiveRevocation]", one)
            elif isinstance(one.value, Heartbeat):
                issuer.active.beat, issuer.active.heard = cast("SignedValue[Heartbeat]", one), memory.heard
        issuer.active.forked = memory.forked
        return statements


@dataclass(frozen=True, slots=True)
class StatementMemory(StatementRecord):
    """What a verifier remembers about an issuer besides its statements; see `_Timed` and `_Active`.

    (validity-memory (issuer <principal>) [(crl-floor <date>)] [(reval-floor <date>)] [(heard <date>)] (forked <n>)
    (void <digest> …))
    """

    HEAD: ClassVar = b"validity-memory"
    issuer: Principal
    crl_floor: datetime | None = None
    reval_floor: datetime | None = None
    heard: datetime | None = None
    forked: int = 0
    void: Annotated[frozenset[bytes], DIGEST] = frozenset()


def _take_revocation(active: _Active, statement: SignedValue[ActiveRevocation]) -> bool:
    known, number = active.revoked, statement.value.number
    if known is not None and number == known.value.number and statement.digest != known.digest:
        new, active.forked = active.forked < number, number
        return new
    if known is not None and number <= known.value.number:
        if number < known.value.number:
            raise _backwards(f"revocation {known.value.number} is known, and this is {number}")
        return False
    active.revoked = statement
    return True


def _take_heartbeat(active: _Active, statement: SignedValue[Heartbeat], now: datetime) -> bool:
    known, value = active.beat, statement.value
    if known is not None:
        if statement.digest == known.digest:
            return False
        if value.number == known.value.number and value.head != known.value.head:
            new, active.forked = active.forked < value.number, value.number
            return new
        if value.number < known.value.number or value.time <= known.value.time:
            raise _backwards("a later heartbeat is known")
    if value.until < now:
        raise RefusedError("statement.ended", f"the heartbeat ended at {_moment(value.until)}")
    active.beat, active.heard = statement, now
    return True


def _timed_outlook(timed: _Timed, terms: OnlineTerms, now: datetime) -> Outlook:
    found = [held for held in timed.windows if held.value.not_before <= now <= held.value.not_after]
    if any(held.digest in timed.void for held in found):
        why = f"two `{terms.kind}` statements of {terms.signer.short} overlap: both fail"
        return Outlook(_unknown("statement.overlap", why))
    if not found:
        ended = [held.value.not_after for held in timed.windows if held.value.not_after < now]
        return Outlook(_missing(terms, max(ended, default=timed.floor)))
    value = found[0].value
    valid = OnlineStatus(OnlineState.VALID, value.not_after)
    if terms.kind is OnlineKind.CRL:
        return Outlook(valid, value.certificates, _revoked(terms, value.not_before))
    why = f"the revalidation of {terms.signer.short} does not list it"
    return Outlook(_unknown("statement.not-listed", why), value.certificates, valid)


def _active_outlook(active: _Active, terms: OnlineTerms, now: datetime) -> Outlook:
    if active.revoked is None:
        return Outlook(_beat_status(active, terms, now))
    value = active.revoked.value
    return Outlook(_beat_status(active, terms, now), value.certificates, _revoked(terms, value.time))


def _beat_status(active: _Active, terms: OnlineTerms, now: datetime) -> OnlineStatus:
    """Return what heartbeats say about certificates that are not revoked."""
    revoked, beat, until = active.revoked, active.beat, active.until(terms.pause)
    if beat is None or until is None:
        return _missing(terms, None)
    last = 0 if revoked is None else revoked.value.number
    if last < beat.value.number:
        return _unknown("statement.unknown", f"revocation {beat.value.number} of {terms.signer.short} is missing")
    differs = revoked is not None and last == beat.value.number and beat.value.head != revoked.digest
    if differs or (active.forked and active.forked >= last):
        return _unknown("statement.overlap", f"{terms.signer.short} has signed two revocations {last}: both fail")
    if until < now:
        return _missing(terms, until)
    return OnlineStatus(OnlineState.VALID, until)


def _answer_status(found: _Answered | None, terms: OnlineTerms, now: datetime) -> OnlineStatus:
    if found is None or now < found.at:
        return _missing(terms, None)
    if found.answer.value.revoked:
        return _revoked(terms, found.answer.value.time)
    return OnlineStatus(OnlineState.VALID, found.until) if now <= found.until else _missing(terms, found.until)


def _unknown(code: str, why: str) -> OnlineStatus:
    return OnlineStatus(OnlineState.UNKNOWN, None, code, why)


def _missing(terms: OnlineTerms, ended: datetime | None) -> OnlineStatus:
    what = f"statement `{terms.kind}` of {terms.signer.short}"
    if ended is None:
        return _unknown("statement.unknown", f"there is no {what} for now")
    return _unknown("statement.ended", f"the last {what} ended at {_moment(ended)}")


def _revoked(terms: OnlineTerms, since: datetime) -> OnlineStatus:
    why = f"revoked by a statement `{terms.kind}` of {terms.signer.short} at {_moment(since)}"
    return OnlineStatus(OnlineState.REVOKED, None, "cert.revoked", why)


def _backwards(why: str) -> RefusedError:
    return RefusedError("statement.backwards", f"a statement is older than what is known: {why}")


def _end(last: datetime, now: datetime) -> datetime | None:
    """Return the first instant after the last one that something counts; None if that is over, or never."""
    return last + _INSTANT if now <= last < datetime.max.replace(tzinfo=last.tzinfo) else None


def _moment(instant: datetime) -> str:
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# ----------------------------------------------------------------------------------------------------------------------
# The certificates that somebody depends on, and which of them have another state now.


@dataclass(slots=True)
class _Group:
    """The certificates with one test, and the outlook by which their states were last compared.

    `strays` are the states of certificates that were asked about later, if the outlook was another one then.
    """

    outlook: Outlook
    certificates: set[str] = field(default_factory=set)
    strays: dict[str, OnlineState] = field(default_factory=dict)

    def state(self, certificate: str) -> OnlineState:
        """Return the last known state of a certificate."""
        return self.strays.get(certificate) or self.outlook.status(certificate).state

    def shift(self, outlook: Outlook) -> dict[str, OnlineState]:
        """Compare with another outlook, and return the certificates whose states have changed, with those before."""
        before, strays = self.outlook, self.strays
        self.outlook, self.strays = outlook, {}
        same = before.others.state is outlook.others.state and before.about_listed.state is outlook.about_listed.state
        if same and before.listed is outlook.listed and not strays:
            return {}
        found = (before.listed ^ outlook.listed) & self.certificates | strays.keys() if same else self.certificates
        states = {one: strays.get(one) or before.status(one).state for one in found}
        return {one: state for one, state in states.items() if state is not outlook.status(one).state}


class AskedCertificates:
    """The certificates that a book was asked about. The cost of a change grows with what it changes.

    A statement concerns all certificates with the same test alike, except for those that it lists. So only certificates
    whose listing changes are looked at, or all if the statements begin or cease to count.
    """

    def __init__(self, book: StatementBook) -> None:
        self._book = book
        self._groups: dict[Principal, dict[OnlineTerms, _Group]] = {}
        #: one-time answers are about one certificate each
        self._once: dict[Principal, dict[tuple[OnlineTerms, str], OnlineState]] = {}
        #: all of them, those that were asked about last at the end
        self._order: dict[tuple[OnlineTerms, str], None] = {}
        #: certificates that were valid and are revoked now, and who says so, until somebody has recorded that
        self.revoked: dict[tuple[Principal, str], None] = {}

    def __len__(self) -> int:
        return len(self._order)

    def ask(self, terms: OnlineTerms, certificate: str, now: datetime) -> None:
        """Record the state of a certificate: somebody is about to rely on it."""
        self._order.pop((terms, certificate), None)
        self._order[terms, certificate] = None
        if terms.kind is OnlineKind.ONE_TIME:
            state = self._book.status(terms, certificate, now).state
            states = self._once.setdefault(terms.signer, {})
            self._note(terms, certificate, states.get((terms, certificate)), state)
            states[terms, certificate] = state
            return
        outlook = self._book.outlook(terms, now)
        group = self._groups.setdefault(terms.signer, {}).setdefault(terms, _Group(outlook))
        state = outlook.status(certificate).state
        if certificate in group.certificates:
            self._note(terms, certificate, group.state(certificate), state)
        group.certificates.add(certificate)
        group.strays.pop(certificate, None)
        if state is not group.outlook.status(certificate).state:
            group.strays[certificate] = state

    def _note(self, terms: OnlineTerms, certificate: str, before: OnlineState | None, state: OnlineState) -> None:
        if before is OnlineState.VALID and state is OnlineState.REVOKED:
            self.revoked[terms.signer, certificate] = None

    def changed(self, issuer: Principal, now: datetime) -> frozenset[str]:
        """Return the certificates whose states have changed since this was called, or they were asked about."""
        found: set[str] = set()
        for terms, group in self._groups.get(issuer, {}).items():
            changed = group.shift(self._book.outlook(terms, now))
            found |= changed.keys()
            for certificate, before in changed.items():
                self._note(terms, certificate, before, group.state(certificate))
        states = self._once.get(issuer, {})
        for one, before in states.items():
            states[one] = self._book.status(*one, now).state
            self._note(*one, before, states[one])
            if states[one] is not before:
                found.add(one[1])
        return frozenset(found)

    def forget(self, kept: frozenset[str], newest: int) -> None:
        """Forget all certificates that are not to be kept, except for the newest ones."""
        for terms, certificate in list(islice(self._order, max(0, len(self._order) - newest))):
            if certificate not in kept:
                self._drop(terms, certificate)

    def forget_questions(self, kept: frozenset[str]) -> None:
        """Forget all certificates with one-time answers that are not to be kept."""
        for terms, certificate in [one for states in self._once.values() for one in states if one[1] not in kept]:
            self._drop(terms, certificate)

    def _drop(self, terms: OnlineTerms, certificate: str) -> None:
        del self._order[terms, certificate]
        if terms.kind is OnlineKind.ONE_TIME:
            states = self._once[terms.signer]
            del states[terms, certificate]
            if not states:
                del self._once[terms.signer]
            return
        groups = self._groups[terms.signer]
        groups[terms].certificates.discard(certificate)
        groups[terms].strays.pop(certificate, None)
        if not groups[terms].certificates:
            del groups[terms]
            if not groups:
                del self._groups[terms.signer]

    def issuers(self) -> list[Principal]:
        """Return who signs the statements that certificates here need."""
        return [*self._groups, *(issuer for issuer in self._once if issuer not in self._groups)]

    def questions(self) -> list[tuple[OnlineTerms, str]]:
        """Return the certificates with one-time answers."""
        return [one for states in self._once.values() for one in states]

    def misses(self, issuer: Principal, now: datetime) -> bool:
        """Return whether a later statement of an issuer, other than a one-time answer, could say more."""
        return any(self._book.outlook(terms, now).others.missing for terms in self._groups.get(issuer, {}))


# ----------------------------------------------------------------------------------------------------------------------
# History: when a certificate was valid, by all statements that were ever made.


@dataclass(frozen=True, slots=True)
class StatementHistory:
    """Verified statements of any time: an `OnlineHistory`. The rules are those of the book.

    Active revocations and heartbeats count as if each had arrived when it was signed, timed statements as if all had
    arrived before they began. A one-time answer counts from its time, for `recheck`.
    """

    statements: tuple[SignedValue[ValidityClaim], ...] = ()

    def periods(self, test: OnlineTest, certificate: str) -> Periods:
        """Return when an on-line test held for a certificate. Raises `MalformedError` (`online.malformed`)."""
        terms = OnlineTerms.of(test)
        mine = {one.digest: one for one in self.statements if one.value.issuer == terms.signer}
        match terms.kind:
            case OnlineKind.ACTIVE:
                found = _active_periods(tuple(mine.values()), terms, certificate)
            case OnlineKind.ONE_TIME:
                found = _answer_periods(tuple(mine.values()), terms, certificate)
            case _:
                kind = RevocationList if terms.kind is OnlineKind.CRL else Revalidation
                timed = [one.value for one in mine.values() if isinstance(one.value, kind)]
                found = [
                    (one.not_before, one.not_after)
                    for one in _sound(timed)
                    if (certificate in one.certificates) is (kind is Revalidation)
                ]
        return tuple(Validity.between(*period) for period in _joined(found))


NO_STATEMENTS: Final = StatementHistory()

_Period: TypeAlias = tuple[datetime, datetime]


def _sound(timed: Iterable[TimedStatement]) -> list[TimedStatement]:
    """Return the statements that do not overlap with others."""
    ordered = sorted(timed, key=lambda one: one.not_before)
    clear = [True] * len(ordered)
    longest = 0
    for place in range(1, len(ordered)):
        # If it overlaps with any before, then with the one that ends last.
        if ordered[place].not_before <= ordered[longest].not_after:
            clear[place] = clear[longest] = False
        if ordered[place].not_after >= ordered[longest].not_after:
            longest = place
    return [one for one, alone in zip(ordered, clear, strict=True) if alone]


def _active_periods(
    statements: Sequence[SignedValue[ValidityClaim]], terms: OnlineTerms, certificate: str
) -> list[_Period]:
    """Let the statements arrive one after the other, each when it was signed, and ask after each of them."""
    steps = [(one.value, one) for one in statements if isinstance(one.value, ActiveRevocation | Heartbeat)]
    # A heartbeat confirms the revocation of the same time.
    steps.sort(key=lambda step: (step[0].time, isinstance(step[0], Heartbeat), step[0].number))
    active, found = _Active(), list[_Period]()
    ends = [value.time - _INSTANT for value, _ in steps[1:]]
    for (value, one), end in zip_longest(steps, ends):
        with suppress(RefusedError):
            if isinstance(value, Heartbeat):
                _take_heartbeat(active, cast("SignedValue[Heartbeat]", one), value.time)
            else:
                _take_revocation(active, cast("SignedValue[ActiveRevocation]", one))
        status = _active_outlook(active, terms, value.time).status(certificate)
        if status.until is not None:
            until = status.until if end is None else min(status.until, end)
            found += [(value.time, until)] if value.time <= until else []
    return found


def _answer_periods(
    statements: Sequence[SignedValue[ValidityClaim]], terms: OnlineTerms, certificate: str
) -> list[_Period]:
    answers = [one.value for one in statements if isinstance(one.value, OneTimeAnswer)]
    mine = [one for one in answers if one.certificate == certificate]
    revoked = [one.time for one in mine if one.revoked]
    found: list[_Period] = []
    for one in mine:
        end = one.time + (terms.pause or timedelta())
        if not one.revoked:
            found.append((one.time, min([end, *(time - _INSTANT for time in revoked if one.time < time <= end)])))
    return found


def _joined(periods: Iterable[_Period]) -> list[_Period]:
    """Return periods in order, with those joined that meet or follow each other immediately."""
    found: list[_Period] = []
    for begin, end in sorted(periods):
        if found and begin <= found[-1][1] + _INSTANT:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found
