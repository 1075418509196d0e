"""The rule book: the moderator's rule base in a ledger of a store.

    book = RuleBook.create(ledger, signed_founding, when)      # or RuleBook.open(ledger)
    book.plan(request, note)                                   # looks, and changes nothing
    book.ask(key, request, when)                               # signs, and takes what came of it
    book.take(signed_request, when)                            # takes what others have signed

Before each decision, rules whose period has ended or begun are taken out of force or put into force. This is a step of
its own, which needs no signature.

A step is planned on the current state of the ledger, and appended only if the ledger still has that state. If others
were faster, it is planned again, so that concurrent writers never override each other. A step is on disk when the call
returns. A book is for one thread at a time. Several books can be open on one ledger.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from penstock.authority.limits import AUTHORITY_LIMITS, AuthorityLimits
from penstock.authority.rulebook_records import (
    ModeratorRequest,
    RecordedStep,
    SignedRequest,
    Snapshots,
    Whole,
    begin,
    found,
    read_taken,
    take,
)
from penstock.authority.rulebook_state import Book, BookState, RuleBookFold, Times, read_log, same_state
from penstock.crypto import SigningKey
from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.model.instants import instant_key
from penstock.model.principals import Principal
from penstock.moderator.base.base import RuleBase
from penstock.moderator.files.founding import Founding
from penstock.moderator.polls import PollProof
from penstock.moderator.rules.steps import (
    CLOCK,
    NO_CHANGE,
    Add,
    Note,
    Pass,
    Request,
    RuleState,
    RuleStatus,
    StateSubscriberRule,
    Step,
    SubscriberRule,
)
from penstock.moderator.settlement.addition import Plan
from penstock.moderator.settlement.proposals import Consent
from penstock.moderator.settlement.undo import plan_request
from penstock.store.ledgers.folds import FoldView, refold, state_at
from penstock.store.ledgers.ledgers import EMPTY, Ledger, LedgerHead, NewChange, Progress, broken, quiet
from penstock.trust.signed import SignedValue, UnverifiedValue, sign_value
from penstock.trust.validity import ALWAYS, State

# ----------------------------------------------------------------------------------------------------------------------
# The periods of rules in a rule book: whether one has ended or begun, and is not in effect yet.
#
# This is checked before each decision, so only the rules with a period are examined.


_OVER: Final = (RuleStatus.ENDED, RuleStatus.WITHDRAWN)


class Periods:
    """The rules of a rule base that have a period, kept up to date with the base."""

    def __init__(self, base: RuleBase) -> None:
        self._base = base
        #: their ids, and the time before which nothing is due
        self._limited: dict[str, bytes] = {}
        self._seen = -1

    def due(self, when: datetime) -> bool:
        """Return whether a period has ended or begun that is not in effect yet."""
        self._follow()
        now = instant_key(when)
        limited = (one for one, due in self._limited.items() if due <= now)
        found = (self._base.standings.get(one) or self._base.wishes.get(one) for one in limited)
        return any(each is not None and self._is_due(each, now) for each in found)

    def _is_due(self, each: RuleState | SubscriberRule, now: bytes) -> bool:
        match each.stated.validity.state(now):
            case State.EXPIRED:
                return each.status not in _OVER
            case State.VALID:
                return each.status is RuleStatus.WAITING and not each.stated.rests(self._base.away)
            case _:
                return False

    def _follow(self) -> None:
        """Add rules stated since. Removed rules may stay: they are never due."""
        taken = self._base.next_number - 1
        if self._seen < 0 or taken - self._seen > self._base.remembered:
            self._limited.clear()
            self._limited.update(self._base.limited)
            self._note(self._base.wishes.items())
        elif taken > self._seen:
            for step in self._base.since(self._seen):
                self._note((one, change.after) for one, change in step.delta.rules.items())
                self._note((one, change.after) for one, change in step.delta.wishes.items())
        self._seen = taken

    def _note(self, rules: Iterable[tuple[str, RuleState | SubscriberRule | None]]) -> None:
        limited = (one for one, each in rules if each is not None and each.stated.validity != ALWAYS)
        self._limited.update(dict.fromkeys(limited, b""))


# ----------------------------------------------------------------------------------------------------------------------
# The rule book.


_PASSED: Final = "periods have ended or begun"


@dataclass(frozen=True, slots=True)
class _Turn:
    """A request, how to plan it at a time, and its signed statement."""

    request: Request
    note: Note
    #: the principal that may advance the time by any amount
    moderator: bool
    planned: Callable[[Note], tuple[Plan, SignedRequest | None]]


class RuleBook:
    """A rule base in a ledger. Made by `open`, `create` and `create_unsigned`. All methods raise errors of stores."""

    def __init__(self, ledger: Ledger, limits: AuthorityLimits, own: Principal | None = None) -> None:
        self._limits = limits
        self._times = Times.within(limits)
        self._fold = RuleBookFold(ledger, limits=limits)
        self._snapshots = Snapshots(ledger, own)
        self._view: FoldView[BookState] = FoldView(
            ledger, self._fold, keeping=self._snapshots, every=limits.moderator_snapshot_every, limits=limits
        )
        self._book = _begun(ledger, self._view.state)
        self._periods = Periods(self._book.base)
        self._rehearsing = False
        #: the step for the passed time, before the last request that was applied
        self.passed: Plan | None = None

    @classmethod
    def open(
        cls, ledger: Ledger, *, own: Principal | None = None, limits: AuthorityLimits = AUTHORITY_LIMITS
    ) -> "RuleBook":
        """Open the rule book of a ledger: from the last snapshot that its moderator signed, or from its beginning.

        Snapshots signed by `own` are accepted too, for the holder of this key. Requests that are signed with it store a
        snapshot after many steps.

        Raises `RefusedError`: `moderator.no-book` if there is none, `moderator.book` if another program has written to
        it, `store.broken`.
        """
        return cls(ledger, limits, own)

    @classmethod
    def create(
        cls,
        ledger: Ledger,
        founding: UnverifiedValue[Founding],
        when: datetime,
        why: str = "",
        *,
        limits: AuthorityLimits = AUTHORITY_LIMITS,
    ) -> "RuleBook":
        """Begin a rule book with a signed founding.

        Raises `RefusedError`: `evolution.wrong-key`, `key.bad-signature`, `moderator.book-exists`; `MalformedError`
        (`moderator.founding`) if it is for another ledger.
        """
        signed = founding.verify()
        begin(ledger, signed.value, found(founding, Note(signed.value.moderator, when, why)), limits)
        return cls.open(ledger, limits=limits)

    @classmethod
    def create_unsigned(
        cls,
        ledger: Ledger,
        founding: Founding,
        when: datetime,
        why: str = "",
        *,
        limits: AuthorityLimits = AUTHORITY_LIMITS,
    ) -> "RuleBook":
        """Begin a rule book without signatures. Raises as `create`, and `moderator.unsigned`."""
        if not founding.unsafe_unsigned:
            raise RefusedError("moderator.unsigned", "the founding is not signed", hint="let the moderator sign it")
        begin(ledger, founding, found(founding, Note(founding.moderator, when, why)), limits)
        return cls.open(ledger, limits=limits)

    # --- what there is --------------------------------------------------------------------------------------------

    @property
    def ledger(self) -> Ledger:
        """Return the ledger."""
        return self._view.ledger

    @property
    def founding(self) -> Founding:
        """Return the founding: the moderator, the customs, and the known profiles."""
        return self._book.founding

    @property
    def base(self) -> RuleBase:
        """The rule base as it was last read. Change it only by `take`."""
        return self._book.base

    @property
    def id(self) -> bytes:
        """Return the id that requests to this rule book name."""
        return self._book.rights.book

    @property
    def head(self) -> LedgerHead:
        """Return the last head that was read."""
        return self._view.head

    def needs_time(self, now: datetime) -> bool:
        """Return whether its time is so far from now that only a request signed by the moderator can set it."""
        try:
            self._times.of_step(self._book.time, now, moderator=False)
        except RefusedError:
            return True
        return False

    def next_serial(self, who: Principal) -> int:
        """Return the serial number for a principal's next request."""
        return self._book.rights.next_serial(who)

    def refresh(self) -> None:
        """Apply changes by others. Raises as `open`."""
        if not self._rehearsing:
            self._view.refresh()

    def at(self, instant: datetime) -> RuleBase:
        """Return the rule base as it was at an instant. Raises `RefusedError` (`moderator.no-book`) before it began."""
        state, _ = state_at(self.ledger, RuleBookFold(self.ledger, limits=self._limits), instant, self._snapshots)
        return _begun(self.ledger, state).base

    def log(self) -> Iterator[RecordedStep]:
        """Yield all steps in order, with the signed statements that they are based on."""
        return read_log(self.ledger)

    # --- changes --------------------------------------------------------------------------------------------------

    def plan(self, request: Request, note: Note) -> Plan:
        """Plan the result of a request now, without changing anything. Raises errors of its kind of plan."""
        self.refresh()
        now = self._now(note, moderator=note.who == self.founding.moderator)
        with nullcontext() if isinstance(request, Pass) else self.rehearsal(now.when):
            return self._plan(request, now)

    @contextmanager
    def rehearsal(self, when: datetime) -> Iterator[Plan | None]:
        """Advance the time within this context, without writing it: plans use the rules that are in force then.

        Yields the step for the passed time, if there is one. No request can be applied within.
        """
        self.refresh()
        passing, outer = self._passing(when), self._rehearsing
        self._rehearsing = True
        try:
            if passing is None:
                yield None
            else:
                with self.base.tried(passing.step):
                    yield passing
        finally:
            self._rehearsing = outer

    def rehearse(
        self,
        asked: UnverifiedValue[ModeratorRequest],
        when: datetime,
        consents: Sequence[UnverifiedValue[Consent]] = (),
    ) -> Plan:
        """Return the result of `take` without changing anything. Raises as `take`."""
        return self._rehearse(self._signed(asked, when, consents))

    def rehearse_unsigned(self, request: Request, note: Note) -> Plan:
        """Return the result of `take_unsigned` without changing anything. Raises as `take_unsigned`."""
        return self._rehearse(self._unsigned(request, note))

    def take(
        self,
        asked: UnverifiedValue[ModeratorRequest],
        when: datetime,
        consents: Sequence[UnverifiedValue[Consent]] = (),
        *,
        poll: PollProof | None = None,
    ) -> Plan:
        """Apply a signed request; pass the poll if a poll chose it.

        Raises as `Times.of_step`, `Rights.admit`, the plan and `Rights.verify_consents`, and `RefusedError`
        (`moderator.busy`) if others were always faster. Nothing is changed then. After a `FailedError` it is unknown
        whether the request was applied. Repeating it is safe: `moderator.repeated` says that it was.
        """
        return self._take(self._signed(asked, when, consents, poll))

    def ask(  # noqa: PLR0913  # what a step rests on
        self,
        key: SigningKey,
        request: Request,
        when: datetime,
        why: str = "",
        consents: Sequence[UnverifiedValue[Consent]] = (),
        *,
        poll: PollProof | None = None,
    ) -> Plan:
        """Sign a request and apply it. Raises as `take`, except for `moderator.repeated`."""
        for _ in range(self._limits.moderator_attempts):
            try:
                with self._snapshots.signed_by(key):
                    # So much time has passed that only the moderator can confirm it.
                    if not isinstance(request, Pass) and self._sets_time(key, when):
                        self.take(self.sign(key, Pass(), when, _PASSED).unverified(), when)
                    return self.take(self.sign(key, request, when, why).unverified(), when, consents, poll=poll)
            except RefusedError as error:
                # Another process uses the same key.
                if error.code != "moderator.repeated":
                    raise
        raise _busy()

    def state(
        self, stated: Sequence[Add | StateSubscriberRule], when: datetime, why: str = "", key: SigningKey | None = None
    ) -> list[Plan]:
        """State several rules, all of them or none: signed, or in their authors' names in a book without signatures.

        Raises as `ask` and `take_unsigned`, and `LimitError` (`store.limit`) if they are too many for one change of the
        ledger. The field `rule` of an error has the id of the rule.
        """
        if key is not None and self._sets_time(key, when):
            self.ask(key, Pass(), when, _PASSED)
        for _ in range(self._limits.moderator_attempts):
            try:
                with self._snapshots.signed_by(key):
                    return self._state(stated, when, why, key)
            except RefusedError as error:
                if error.code not in ("store.conflict", "moderator.repeated"):
                    raise
        raise _busy()

    def _state(
        self, stated: Sequence[Add | StateSubscriberRule], when: datetime, why: str, key: SigningKey | None
    ) -> list[Plan]:
        self.refresh()
        plans: list[Plan] = []
        entries: list[NewChange] = []

        def take_in(plan: Plan, word: SignedRequest | None) -> None:
            entries.extend(self._written(RecordedStep(plan.step, word)).entries(self._limits))
            tried.enter_context(self.base.tried(plan.step))
            plans.append(plan)

        with ExitStack() as tried:
            passing: Plan | None = None
            for ahead, request in enumerate(stated):
                try:
                    turn = (
                        self._unsigned(request, Note(request.rule.stated_by, when, why))
                        if key is None
                        else self._signed(self.sign(key, request, when, why, ahead=ahead).unverified(), when, ())
                    )
                    now = self._now(turn.note, moderator=turn.moderator)
                    if not ahead and (passing := self._passing(now.when)) is not None:
                        take_in(passing, None)
                    take_in(*turn.planned(now))
                except PenstockError as error:
                    error.fields.setdefault("rule", request.rule.id)
                    raise
        self._write([plan.step for plan in plans], entries)
        self.passed = passing
        return plans if passing is None else plans[1:]

    def sign(
        self, key: SigningKey, request: Request, when: datetime, why: str = "", *, ahead: int = 0
    ) -> SignedValue[ModeratorRequest]:
        """Sign a request that can be applied next, or after so many others of the same key.

        Raises as `sign_value`.
        """
        serial = self.next_serial(key.principal) + ahead
        return sign_value(ModeratorRequest(self.id, key.principal, serial, when, request, why), key)

    def take_unsigned(self, request: Request, note: Note) -> Plan:
        """Apply a request that needs no signature. Raises as `take`.

        If requests must be signed, this is only possible for passed time, in the name of the clock (`steps.CLOCK`).
        Others raise `moderator.unsigned`.
        """
        return self._take(self._unsigned(request, note))

    def pass_time(self, when: datetime, key: SigningKey | None = None) -> Plan | None:
        """End and begin periods that are due; return the step, if there is one.

        With the moderator's key this works however long ago the last step was. Raises as `take`.
        """
        self.refresh()
        passing = self._passing(when)
        if passing is None:
            return None
        if key is not None and key.principal == self.founding.moderator:
            return self.ask(key, Pass(), when, _PASSED)
        return self.take_unsigned(Pass(), passing.step.note)

    def _signed(
        self,
        asked: UnverifiedValue[ModeratorRequest],
        when: datetime,
        consents: Sequence[UnverifiedValue[Consent]],
        poll: PollProof | None = None,
    ) -> _Turn:
        def planned(now: Note) -> tuple[Plan, SignedRequest | None]:
            value = self._book.rights.admit(self.base, asked, now.when).value
            return self._plan(value.request, Note(value.by, now.when, value.why)), SignedRequest(
                asked, tuple(consents), poll
            )

        by = asked.value.by
        return _Turn(asked.value.request, Note(by, when), by == self.founding.moderator, planned)

    def _unsigned(self, request: Request, note: Note) -> _Turn:
        def planned(now: Note) -> tuple[Plan, SignedRequest | None]:
            self._book.rights.check_unsigned(request, now.who)
            return self._plan(request, now), None

        mine = self.founding.unsafe_unsigned and note.who == self.founding.moderator
        return _Turn(request, note, mine, planned)

    def _rehearse(self, turn: _Turn) -> Plan:
        self.refresh()
        now = self._now(turn.note, moderator=turn.moderator)
        with nullcontext() if isinstance(turn.request, Pass) else self.rehearsal(now.when):
            plan, word = turn.planned(now)
            self._written(RecordedStep(plan.step, word))
            return plan

    def _passing(self, when: datetime, who: Principal = CLOCK) -> Plan | None:
        """Plan the effects of the passed time, in the name of the clock."""
        if not self._periods.due(when):
            return None
        plan = self._plan(Pass(), Note(who, when, _PASSED))
        return None if plan.step.delta == NO_CHANGE else plan

    def _sets_time(self, key: SigningKey, when: datetime) -> bool:
        """Return whether periods have ended or begun, and only this key can confirm it."""
        self.refresh()
        return key.principal == self.founding.moderator and self.needs_time(when) and self._periods.due(when)

    def _take(self, turn: _Turn) -> Plan:
        if self._rehearsing:
            raise ValueError("requests cannot be applied in a rehearsal")
        self.passed = None
        for _ in range(self._limits.moderator_attempts):
            self.refresh()
            now = self._now(turn.note, moderator=turn.moderator)
            # In a book without signatures, the moderator sets the time by a request.
            sets = turn.moderator and self.founding.unsafe_unsigned and self.needs_time(now.when)
            passing = None if isinstance(turn.request, Pass) else self._passing(now.when, now.who if sets else CLOCK)
            try:
                if passing is not None:
                    # If the request is refused then, nothing is written.
                    self._rehearse(turn)
                    self._append(RecordedStep(passing.step, None))
                    self.passed = passing
                plan, word = turn.planned(now)
                self._append(RecordedStep(plan.step, word))
            except RefusedError as error:
                if error.code != "store.conflict":
                    raise
                continue
            return plan
        raise _busy()

    def _append(self, taken: RecordedStep) -> None:
        self._write([taken.step], [*self._written(taken).entries(self._limits)])

    def _write(self, steps: Sequence[Step], entries: Sequence[NewChange]) -> None:
        self._fold.planned = {step.number: step for step in steps}
        try:
            self._view.append(entries)
        finally:
            self._fold.planned = {}

    def _written(self, taken: RecordedStep) -> Whole:
        """Return a step's record, if it can be read again and its signatures are authorised."""
        whole = take(taken.step, taken.word, self.ledger.head().when)
        read = read_taken(taken.step.number, whole)
        if read != taken:
            raise MalformedError("moderator.record", "the step would not be read as it was written")
        self._fold.check(self._book, read)
        return whole

    def _plan(self, request: Request, note: Note) -> Plan:
        return plan_request(self.base, request, note, self.founding.customs)

    def _now(self, note: Note, *, moderator: bool) -> Note:
        """Return the time for which to plan: the time that will be written."""
        return replace(note, when=self._times.of_step(self._book.time, note.when, moderator=moderator))

    # --- proof ----------------------------------------------------------------------------------------------------

    def keep(self, key: SigningKey | None = None) -> None:
        """Store a snapshot signed by the moderator, from which the book opens quickly.

        Raises `RefusedError`: `evolution.wrong-key`, and `moderator.unsigned` without a key in a book with signatures.
        """
        with self._snapshots.signed_by(key):
            self._view.keep()

    def verify(self, known: LedgerHead = EMPTY, progress: Progress = quiet) -> LedgerHead:
        """Verify the whole book without snapshots: the chain, every signature, and that each step is the result of its
        request.

        Compare the head with a copy elsewhere to detect a completely new chain. Raises `RefusedError` (`store.broken`,
        `moderator.book`) and names the first invalid change.
        """
        self.refresh()
        self.ledger.verify(known, progress)
        state = refold(self.ledger, RuleBookFold(self.ledger, limits=self._limits), self.head)
        if not same_state(state, self._view.state):
            raise broken(self.ledger.name, self.head.number, "leads to another state than a snapshot says")
        return self.head


def _begun(ledger: Ledger, state: BookState) -> Book:
    if state.book is None:
        raise RefusedError(
            "moderator.no-book",
            f"there is no rule book in `{ledger.name}`",
            hint="run `penstock moderator init` to begin one",
        )
    return state.book


def _busy() -> RefusedError:
    return RefusedError("moderator.busy", "other processes kept changing the rule book", hint="try again")
