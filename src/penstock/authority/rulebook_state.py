"""The state of a rule book as a fold of its ledger.

Whenever a step is read, its signed request is verified and planned again. So a change that was written to the ledger is
accepted only if it is the result of a signed request.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from penstock.authority.limits import AUTHORITY_LIMITS, AuthorityLimits
from penstock.authority.rulebook_records import (
    FOUND,
    PART,
    ModeratorRequest,
    RecordedStep,
    Whole,
    malformed,
    nobodys,
    read_found,
    read_taken,
    read_ticks,
)
from penstock.codec.limits import wide
from penstock.codec.sexp import SExp, canonical, parse_canonical, text
from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.model.principals import Principal
from penstock.moderator.base.base import RuleBase
from penstock.moderator.base.records import image_from_sexp, image_to_sexp, to_record
from penstock.moderator.files.founding import Founding
from penstock.moderator.polls import PollProof, verify_outcome
from penstock.moderator.rules import steps
from penstock.moderator.rules.steps import CLOCK, SEARCHING, Pass, Request, Step, Undo
from penstock.moderator.settlement.addition import Tightening
from penstock.moderator.settlement.proposals import Consent, poll_reason, relaxed_by, subject_of, tightened_by
from penstock.moderator.settlement.undo import plan_request
from penstock.store.ledgers.ledgers import Change, Ledger, ticks
from penstock.trust.signed import SignedValue, UnverifiedValue, read_count

# ----------------------------------------------------------------------------------------------------------------------
# Rights in a rule book: who may request what, who must consent, and that no request is applied twice.
#
# | request | may be made by | must consent |
# |---|---|---|
# | state a rule | its author, if the founding names no authors or names it | all that it binds |
# | withdraw a rule | its author, and each principal that it binds for itself | |
# | choose a proposal | the author of the rejected rule, the moderator | whose rules are relaxed |
# | let a principal leave | the principal, the moderator | the principal |
# | let a principal return | the principal | |
# | add, move, rename, remove an event type | an owner of a type that is named | other owners, whose rules are relaxed |
# | undo stating or withdrawing a rule | its requester | whose rules are reversed by it |
# | undo another step | its requester, the moderator | whose rules are reversed by it |
# | undo a step with a replay | the moderator | authors of what is undone, whose rules are reversed |
# | undo passed time | the moderator | whose rules are relaxed by it |
# | let time pass | anyone, without a signature and in the name of the clock | |
#
# An undoing reverses rules if it relaxes them, takes them out of force, or restores them after they were withdrawn, had
# left with their publisher, or were gone. The principal that stated such a rule must consent. If a rule is relaxed or
# restored, all principals that it binds must consent. A principal that chose a proposal may undo the choice, although
# the rule that came into force by it is rejected again.
#
# If the founding says `tightening: poll`, a step that tightens rules of principals other than the requester is accepted
# only from the moderator, with a poll that chose it.


_OWN: Final = (steps.Add, steps.StateSubscriberRule, steps.WithdrawRule)


@dataclass(frozen=True, slots=True)
class _Speakers:
    """Who may make a request, and who must consent besides."""

    may: frozenset[Principal]
    agree: frozenset[Principal] = frozenset()


class Rights:
    """Who is authorised in one rule book."""

    def __init__(self, founding: Founding, serials: dict[Principal, int], limits: AuthorityLimits) -> None:
        self.book = founding.digest
        #: the highest serial number that was taken from each
        self.serials = serials
        self._founding = founding
        self._age = timedelta(seconds=limits.moderator_request_age)

    def verify(self, base: RuleBase, taken: RecordedStep) -> None:
        """Verify that a step has the signatures that the previous state requires.

        Raises as `check_unsigned`, `admit` and `verify_consents`, and `MalformedError` (`moderator.record`)
        for a step that differs from its signed request.
        """
        step, word = taken.step, taken.word
        if word is None:
            self.check_unsigned(step.request, step.note.who)
            return
        asked = self.admit(base, word.asked, step.note.when).value
        if (asked.by, asked.why, asked.request) != (step.note.who, step.note.why, step.request):
            raise MalformedError("moderator.record", "the step is not the result of its request")
        self.verify_consents(base, step, word.consents, word.poll)

    def check_unsigned(self, request: Request, who: Principal) -> None:
        """Check that a request needs no signature and is in the name of the clock, unless the book has no signatures.

        Raises `RefusedError` (`moderator.unsigned`).
        """
        if self._founding.unsafe_unsigned:
            return
        if not isinstance(request, Pass):
            raise RefusedError(
                "moderator.unsigned", "requests to this rule book must be signed", hint="sign the request"
            )
        if who != CLOCK:
            raise RefusedError(
                "moderator.unsigned",
                f"{who.short} has not signed that time passes",
                hint="sign the request, or use the name of the clock",
            )

    def admit(
        self, base: RuleBase, asked: UnverifiedValue[ModeratorRequest], when: datetime
    ) -> SignedValue[ModeratorRequest]:
        """Verify a request before it is planned.

        (1) The requester has signed it. (2) It is for this rule book, (3) of about now, and (4) newer than the last one
        that was applied from there. (5) The requester is authorised.

        Raises `RefusedError`: `evolution.wrong-key`, `key.bad-signature`, `moderator.wrong-book`, `moderator.untimely`,
        `moderator.repeated`, `moderator.not-yours`; `MalformedError` (`moderator.unknown-rule`,
        `moderator.unknown-step`).
        """
        # (1) The signature first, before anything else is read.
        signed = asked.verify()
        value = signed.value
        # (2) Another rule book has other rules by the same ids.
        if value.book != self.book:
            raise _foreign("a request")
        # (3) A request that was delayed for long may no longer be wanted.
        if abs(value.time - when) > self._age:
            raise RefusedError(
                "moderator.untimely", "the request was not signed recently", hint="sign it again, and check the clock"
            )
        # (4) A request is applied only once.
        if value.serial <= self.serials.get(value.by, 0):
            raise RefusedError(
                "moderator.repeated",
                f"a request of {value.by.short} with this serial number, or a later one, was applied already",
                hint="sign it again with the next number",
                serial=self.next_serial(value.by),
            )
        # (5) The requester is authorised.
        if value.by not in self._speakers(base, value.request, value.by).may:
            raise RefusedError(
                "moderator.not-yours",
                f"{value.by.short} is not authorised to make this request",
                hint="let the principal make it that stated the rule, or that the rule binds",
            )
        return signed

    def verify_consents(
        self, base: RuleBase, step: Step, consents: Iterable[UnverifiedValue[Consent]], proof: PollProof | None = None
    ) -> None:
        """Verify that everyone who must consent has consented to the result of a step.

        (1) The consenting principal has signed it. (2) It is for this rule book, (3) to this step, (4) not expired, and
        (5) no other step has used it. A consent that was given in a poll is only for the poll's step. (6) No consent is
        missing. (7) If a poll is needed, there was one.

        Raises `RefusedError`: `evolution.wrong-key`, `key.bad-signature`, `moderator.wrong-book`, `moderator.consent`,
        `moderator.needs-poll`, and as `_verify_poll`.
        """
        subject = subject_of(step)
        agreed, poll = {step.note.who}, None if proof is None else self._verify_poll(base, step, proof)
        for consent in consents:
            # (1) No answer means no consent, and consents of others do not help.
            value = consent.verify().value
            # (2) As with requests.
            if value.book != self.book:
                raise _foreign("a consent")
            # (3) The state may have changed since, and with it the result of the request.
            if value.to != subject:
                raise _no_consent(value.by, "consented to another result")
            # (4) The consent itself says how long it is valid.
            if step.note.when > value.until:
                raise _no_consent(value.by, "consented, but the consent has expired")
            # (5) A step that was undone or withdrawn needs a new consent. A consent with a later time is not accepted.
            if _used_up(base, step, value.since):
                raise _no_consent(value.by, "consented to an earlier step")
            # A vote can be replaced, and others see it. Only the outcome of the poll is used.
            if value.poll not in (None, poll):
                raise _no_consent(value.by, "consented in a poll that chose another result")
            agreed.add(value.by)
        # (6) Needless consents are ignored.
        agree = self._speakers(base, step.request, step.note.who).agree
        if isinstance(step.request, Undo):
            agree |= _turned_round(base, step, step.request)
        missing = sorted(agree - agreed)
        if missing:
            raise _no_consent(missing[0], "has not consented", *missing)
        # (7) All principals may tighten and withdraw their own rules.
        if self._founding.tightening is Tightening.POLL and poll is None and not isinstance(step.request, SEARCHING):
            _check_own(base, step)

    def _verify_poll(self, base: RuleBase, step: Step, proof: PollProof) -> bytes:
        """Verify that a step is what a poll chose; return the poll's id.

        (1) The moderator asked, about this rule book. (2) The votes come to this step, (3) which is the moderator's, in
        the name of the poll, and the only one that was taken on it.

        Raises `RefusedError`: `moderator.wrong-book`, `poll.outcome`, and as `verify_outcome`.
        """
        # (1) Only the moderator starts polls.
        question = proof.question.verify()
        asked, moderator = question.value, self._founding.moderator
        if (asked.moderator, asked.book) != (moderator, self.book):
            raise _foreign("a poll")
        # (2) Every reader of the book counts the votes.
        chosen = verify_outcome(question, proof.outcome).chosen
        same = chosen is not None and asked.subject(chosen) == subject_of(step)
        # (3) As with consents.
        named = (step.note.who, step.note.why) == (moderator, poll_reason(question.digest))
        if not same or not named or _used_up(base, step, asked.since):
            raise RefusedError("poll.outcome", "the step is not what its poll chose, or was applied before")
        return question.digest

    def next_serial(self, who: Principal) -> int:
        """Return the serial number for a principal's next request."""
        return self.serials.get(who, 0) + 1

    def note(self, taken: RecordedStep) -> None:
        """Record the serial number of an applied request."""
        if taken.word is not None:
            asked = taken.word.asked.value
            self.serials[asked.by] = asked.serial

    def _speakers(self, base: RuleBase, request: Request, who: Principal) -> _Speakers:
        moderator = self._founding.moderator
        match request:
            case steps.Add(rule):
                return _Speakers(self._invited(rule.stated_by), frozenset(rule.publishers))
            case steps.StateSubscriberRule(rule):
                return _Speakers(self._invited(rule.stated_by), frozenset({rule.subscriber}))
            case steps.WithdrawRule(rule_id):
                return _Speakers(base.stated(rule_id).speakers)
            case steps.Resolve(rule_id, _, consents):
                return _Speakers(frozenset({base.standing(rule_id).stated.stated_by, moderator}), consents)
            case steps.Pass():
                return _Speakers(frozenset({who}))
            case steps.Leave(publisher):
                # Its demands on others would be suspended.
                return _Speakers(frozenset({publisher, moderator}), frozenset({publisher}))
            case steps.Return(publisher):
                return _Speakers(frozenset({publisher}))
            case steps.Undo(number, replay):
                step = base.step(number)
                # Only the author may undo stating or withdrawing a rule.
                first = _undone_at_last(base, step)
                own = isinstance(first.request, _OWN)
                # Only the moderator may undo passed time, or replay others' steps.
                if replay or isinstance(step.request, Pass):
                    return _Speakers(frozenset({moderator}), frozenset({first.note.who} if own else ()))
                return _Speakers(frozenset({step.note.who} if own else {step.note.who, moderator}))
            case steps.AddType(event, other) | steps.MoveType(event, other) | steps.RenameType(event, other):
                owners = frozenset({event.owner} if other is None else {event.owner, other.owner})
                relaxed = request.consents if isinstance(request, steps.MoveType) else frozenset()
                return _Speakers(owners, owners | relaxed)
            case steps.RemoveType(event):
                return _Speakers(frozenset({event.owner}))

    def _invited(self, who: Principal) -> frozenset[Principal]:
        """Return the principal, if it may state rules."""
        named = self._founding.speakers
        return frozenset({who} if not named or who in named else ())


def _check_own(base: RuleBase, step: Step) -> None:
    """Check that a step tightens only the requester's own rules."""
    others = sorted(tightened_by(base, step.delta) - {step.note.who})
    if others:
        raise RefusedError(
            "moderator.needs-poll",
            f"a rule of {others[0].short} would be tightened without a poll",
            hint="let the moderator start one (`penstock moderator poll`)",
            publishers=tuple(others),
        )


def _turned_round(base: RuleBase, step: Step, undo: Undo) -> frozenset[Principal]:
    """Return the principals that must consent to the changes of their rules when a step is undone."""
    # A relaxation that was undone needs a new consent.
    found = relaxed_by(base, step.delta)
    undone = base.step(undo.number)
    # If a clock was wrong, rules have ended too early, and the rules that replaced them are rejected again. And a rule
    # that came into force by a choice is rejected again when the choice is undone.
    chosen = isinstance(undone.request, steps.Resolve) and undone.note.who == step.note.who
    if not undo.replay and (chosen or isinstance(undone.request, Pass)):
        return found
    # A principal's demands neither vanish nor return without its consent.
    ceasing = (rule.stated_by for rule in step.delta.ceasing.values())
    return found.union(ceasing, *(rule.speakers for rule in step.delta.rising.values()))


def _undone_at_last(base: RuleBase, step: Step) -> Step:
    """Return the step that is undone, possibly through other undone steps."""
    while isinstance(step.request, Undo):
        step = base.step(step.request.number)
    return step


def _used_up(base: RuleBase, step: Step, since: int) -> bool:
    """Return whether a step with the same consents was applied since, or is later than now."""
    subject, kind = subject_of(step), type(step.request)
    alike = (later for later in base.since(since) if isinstance(later.request, kind))
    return since >= base.next_number or any(subject_of(later) == subject for later in alike)


def _foreign(what: str) -> RefusedError:
    return RefusedError("moderator.wrong-book", f"{what} is for another rule book", hint="sign one for this rule book")


def _no_consent(who: Principal, what: str, *missing: Principal) -> RefusedError:
    return RefusedError(
        "moderator.consent",
        f"{who.short} {what}",
        hint="get the consent of every principal that must consent",
        publishers=missing or (who,),
    )


# ----------------------------------------------------------------------------------------------------------------------
# The time of a rule book: it increases from step to step, and only the moderator can correct it.
#
# Each step has the time of its writer's clock. One wrong clock must not block a book: only the moderator can advance
# the time far, or set it back. The times of a ledger never decrease. If the ledger was ahead when a step was written,
# the step contains its own time.


@dataclass(frozen=True, slots=True)
class Times:
    """The permitted times of steps."""

    #: how far clocks may differ, and the pause after which the moderator must confirm that so much time has passed
    drift: timedelta
    leap: timedelta

    @classmethod
    def within(cls, limits: AuthorityLimits) -> "Times":
        """Return the times that limits allow."""
        return cls(timedelta(seconds=limits.moderator_request_age), timedelta(seconds=limits.moderator_leap))

    def of_step(self, last: datetime, now: datetime, *, moderator: bool) -> datetime:
        """Return the time of a step that is written now, by the local clock. Raises as `check`."""
        when = last if now < last <= now + self.drift else now
        self.check(last, when, moderator=moderator)
        return when

    def check(self, last: datetime, when: datetime, *, moderator: bool) -> None:
        """Check the time of a step after that of the last one. Raises `RefusedError` (`moderator.untimely`)."""
        if moderator:
            return
        if when < last:
            raise RefusedError(
                "moderator.untimely",
                f"the last change is of {last:%Y-%m-%d}, which is later than now",
                hint="check the clock; if it is right, let the moderator sign any request to set the time",
            )
        if when - last > self.leap:
            raise RefusedError(
                "moderator.untimely",
                f"the last change is of {last:%Y-%m-%d}, which is long ago, or a clock is wrong",
                hint="check the clock; if it is right, let the moderator sign that time has passed",
            )


def is_moderators(founding: Founding, taken: RecordedStep) -> bool:
    """Return whether a step is signed by the moderator, if it is signed at all."""
    if taken.word is not None:
        return taken.word.asked.value.by == founding.moderator
    return founding.unsafe_unsigned and taken.step.note.who == founding.moderator


# ----------------------------------------------------------------------------------------------------------------------
# The state of a rule book.


@dataclass(slots=True)
class Book:
    """The state of a rule book. It changes with each step."""

    founding: Founding
    base: RuleBase
    rights: Rights
    #: the founding as it was stored
    found: bytes = field(repr=False)
    #: the time of the last step
    time: datetime


@dataclass(slots=True)
class BookState:
    """A rule book, or none yet, and the parts of an incomplete change."""

    book: Book | None = None
    parts: list[Change] = field(default_factory=list)


class RuleBookFold:
    """See `penstock.store.ledgers.folds.Fold`. Steps before a snapshot are read from the ledger when one is to be
    undone."""

    name = "rule-book-3"

    def __init__(self, ledger: Ledger, *, limits: AuthorityLimits = AUTHORITY_LIMITS) -> None:
        self._ledger = ledger
        # The solver is limited by its own count of work, which is the same on every machine, so that a slow machine
        # decides the same as when the step was planned.
        self._limits = replace(limits, solver_time=max(limits.solver_time, limits.moderator_patience))
        self._times = Times.within(limits)
        #: steps, by their numbers, that were planned on the preceding state and need not be planned again
        self.planned: Mapping[int, Step] = {}

    def empty(self) -> BookState:
        """Return the state before the founding."""
        return BookState()

    def step(self, state: BookState, change: Change) -> BookState:
        """Apply a change. Raises `RefusedError` (`moderator.book`) if it cannot be the result of a request."""
        state.parts.append(change)
        if change.kind == PART:
            return state
        try:
            whole = Whole.of(state.parts)
            state.parts.clear()
            if state.book is None:
                state.book = self._found(whole)
            else:
                taken = read_taken(state.book.base.next_number, whole)
                self._take(state.book, taken if state.book.founding.unsafe_unsigned else nobodys(taken))
        except PenstockError as error:
            raise RefusedError(
                "moderator.book",
                f"change {change.number} of `{change.ledger}` is not a valid change of this rule book: {error.message}",
                hint="another program has written to the ledger; restore a backup whose head you know",
                number=change.number,
                reason=error.code,
            ) from error
        return state

    def dump(self, state: BookState) -> bytes:
        """Return the state as bytes."""
        if state.book is None:
            return b""
        book = state.book
        serials = ((str(who).encode(), b"%d" % serial) for who, serial in sorted(book.rights.serials.items()))
        time = (b"time", b"%d" % ticks(book.time))
        image = image_to_sexp(book.base.state)
        return canonical((b"rule-book-state", book.found, time, (b"serials", *serials), image))

    def load(self, data: bytes) -> BookState:
        """Return the state that was dumped. Raises `MalformedError`."""
        if not data:
            return BookState()
        match parse_canonical(data, limits=wide(len(data))):
            case (b"rule-book-state", bytes(found), (b"time", bytes(time)), (b"serials", *serials), image):
                pass
            case _:
                raise malformed("not the state of a rule book")
        try:
            founding = read_found(found)
            base = RuleBase.resume(
                founding.vocabulary,
                founding.mode,
                image_from_sexp(image),
                self._earlier,
                limits=self._limits,
            )
        except RefusedError as error:
            raise malformed("a snapshot of conflicting rules, or of an unsigned founding") from error
        rights = Rights(founding, dict(map(_read_serial, serials)), self._limits)
        return BookState(Book(founding, base, rights, found, read_ticks(time)))

    def _found(self, whole: Whole) -> Book:
        founding = read_found(whole.after)
        if whole.kind != FOUND:
            raise malformed("a rule book must begin with its founding")
        if founding.name != self._ledger.name or founding.moderator != whole.who:
            raise malformed("the founding belongs to another rule book")
        base = RuleBase(founding.vocabulary, founding.mode, limits=self._limits)
        return Book(founding, base, Rights(founding, {}, self._limits), whole.after, whole.when)

    def _take(self, book: Book, taken: RecordedStep) -> None:
        self.check(book, taken)
        step = taken.step
        if step != self.planned.get(step.number):
            planned = plan_request(book.base, step.request, step.note, book.founding.customs).step
            if to_record(planned) != (taken.record or to_record(step)):
                raise malformed("the step is not the result of its request")
        book.base.apply(step)
        book.rights.note(taken)
        book.time = step.note.when
        # Old steps are rarely needed, and there may be very many of them.
        if book.base.remembered > self._limits.moderator_steps:
            book.base.forget(self._earlier)

    def check(self, book: Book, taken: RecordedStep) -> None:
        """Check that a step is authorised at its time. Raises errors of `Rights` and `Times`."""
        self._times.check(book.time, taken.step.note.when, moderator=is_moderators(book.founding, taken))
        book.rights.verify(book.base, taken)

    def _earlier(self, count: int) -> Sequence[Step]:
        return [taken.step for taken in read_log(self._ledger, count)]


def same_state(one: BookState, other: BookState) -> bool:
    """Return whether two states are the same, however much of them was read so far. Raises errors of reading rules."""

    def told(state: BookState) -> tuple[object, ...]:
        if state.book is None:
            return ()
        book, image = state.book, state.book.base.image()
        return (book.found, book.time, book.rights.serials, image, image.unsettled, image.steps)

    return told(one) == told(other)


def read_log(ledger: Ledger, count: int | None = None) -> Iterator[RecordedStep]:
    """Yield the steps of a rule book as they were stored: so many, or all. The ledger is read to its end.

    Raises `MalformedError` (`moderator.record`, and errors of its parts), `RefusedError` (`store.broken`).
    """
    parts: list[Change] = []
    number, unsigned = 0, False
    for change in ledger.read():
        parts.append(change)
        if change.kind == PART:
            continue
        whole = Whole.of(parts)
        parts.clear()
        # The later changes prove that these were not replaced.
        if not number:
            unsigned = read_found(whole.after).unsafe_unsigned
        elif count is None or number <= count:
            taken = read_taken(number, whole)
            yield taken if unsigned else nobodys(taken)
        number += 1


def _read_serial(value: SExp) -> tuple[Principal, int]:
    match value:
        case (who, serial):
            return Principal.parse(text(who)), read_count(serial)
    raise malformed("a serial number must belong to a principal")
