"""Whose word counts in a rule book: who may ask for what, who else has to agree, and that nothing counts twice.

| request | may be asked for by | has to agree |
|---|---|---|
| a rule is stated | whoever states it, if the founding names nobody or names it | all whom it binds |
| a rule is withdrawn | whoever stated it, all whom it binds, each for itself | |
| a way out is chosen | whoever stated the rule that was rejected, the moderator | whose rules are relaxed |
| somebody leaves | it, the moderator | it |
| somebody comes back | it | |
| an event type is added, moved, renamed, removed | an owner of a type named | the others, whose rules are relaxed |
| a rule's being stated, or withdrawn, is undone | whoever asked for it | whose rules turn round by it |
| another step is undone | whoever asked for it, the moderator | whose rules turn round by it |
| a step is undone with a replay | the moderator | whoever stated or withdrew what is undone, whose rules turn round |
| that time passed is undone | the moderator | whose rules are relaxed by it |
| time passes | anybody, without a signature and in nobody's name | |

Rules turn round by an undoing when they are relaxed, go out of force, or stand again though they were withdrawn, had
left with their publisher, or were gone. Who stated them agrees to that; to the first and the last, all whom they bind.
Who chose a way out may take that back, though the rule that came into force by it is rejected again.

Where the founding says `tightening: poll`, a step that tightens rules of others than who asks for it counts only as the
moderator's, with a poll that chose it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from penstock.authority.rulebook_records import Taken
from penstock.authority.signed_requests import Asked
from penstock.errors import MalformedError, RefusedError
from penstock.model.limits import Limits
from penstock.model.principals import Principal
from penstock.moderator import steps
from penstock.moderator.adding import Tightening
from penstock.moderator.base import RuleBase
from penstock.moderator.consents import Consent, poll_reason, subject_of
from penstock.moderator.founding import Founding
from penstock.moderator.poll import Proof, verify_outcome
from penstock.moderator.propose import relaxed_by, tightened_by
from penstock.moderator.steps import CLOCK, SEARCHING, Pass, Request, Step, Undo
from penstock.trust.signed import SignedValue, UnverifiedValue

_OWN: Final = (steps.Add, steps.Subscribe, steps.Withdraw)


@dataclass(frozen=True, slots=True)
class _Speakers:
    """Who may ask, and who has to agree besides."""

    may: frozenset[Principal]
    agree: frozenset[Principal] = frozenset()


class Rights:
    """The words that count in one rule book."""

    def __init__(self, founding: Founding, serials: dict[Principal, int], limits: Limits) -> None:
        self.book = founding.digest
        #: the highest serial number that was taken from each
        self.serials = serials
        self._founding = founding
        self._age = timedelta(seconds=limits.moderator_request_age)

    def verify(self, base: RuleBase, taken: Taken) -> None:
        """Verify that a step rests on the words of those whose words count, on the state before it.

        Raises what `check_unsigned`, `admit` and `verify_consents` raise, and `MalformedError` (`moderator.record`)
        for a step that says something else than the word it rests on.
        """
        step, word = taken.step, taken.word
        if word is None:
            self.check_unsigned(step.request, step.note.who)
            return
        asked = self.admit(base, word.asked, step.note.when).value
        if (asked.by, asked.why, asked.request) != (step.note.who, step.note.why, step.request):
            raise MalformedError("moderator.record", "a step is not what was asked for")
        self.verify_consents(base, step, word.consents, word.poll)

    def check_unsigned(self, request: Request, who: Principal) -> None:
        """Check that a request needs no signature and is in nobody's name, unless this is a book in which nobody signs.

        Raises `RefusedError` (`moderator.unsigned`).
        """
        if self._founding.unsafe_unsigned:
            return
        if not isinstance(request, Pass):
            raise RefusedError("moderator.unsigned", "requests to this rule book are signed", hint="sign the request")
        if who != CLOCK:
            raise RefusedError(
                "moderator.unsigned",
                f"{who.short} has not signed that time passes",
                hint="sign the request, or let time pass in nobody's name",
            )

    def admit(self, base: RuleBase, asked: UnverifiedValue[Asked], when: datetime) -> SignedValue[Asked]:
        """Verify a request before it is planned.

        (1) Whoever asks has signed it. (2) It is for this rule book, (3) of about now, and (4) newer than the last one
        that was taken from there. (5) It is for them to ask.

        Raises `RefusedError`: `evolution.wrong-key`, `key.bad-signature`, `moderator.wrong-book`, `moderator.untimely`,
        `moderator.repeated`, `moderator.not-yours`; `MalformedError` (`moderator.unknown-rule`,
        `moderator.unknown-step`).
        """
        # (1) Nothing of it is looked at before.
        signed = asked.verify()
        value = signed.value
        # (2) Another rule book has other rules by the same ids.
        if value.book != self.book:
            raise _foreign("a request")
        # (3) What was held back for long is not what somebody wants now.
        if abs(value.time - when) > self._age:
            raise RefusedError(
                "moderator.untimely", "the request was not signed lately", hint="sign it again, and check the clock"
            )
        # (4) What was taken before does not count again.
        if value.serial <= self.serials.get(value.by, 0):
            raise RefusedError(
                "moderator.repeated",
                f"a request of {value.by.short} with this serial number, or a later one, was taken already",
                hint="sign it again with the next number",
                serial=self.next_serial(value.by),
            )
        # (5) Everybody speaks for what is theirs.
        if value.by not in self._speakers(base, value.request, value.by).may:
            raise RefusedError("moderator.not-yours", "that is for others to ask", hint="see who may ask for what")
        return signed

    def verify_consents(
        self, base: RuleBase, step: Step, consents: Iterable[UnverifiedValue[Consent]], proof: Proof | None = None
    ) -> None:
        """Verify that all have agreed who have to, to what a step comes to.

        (1) Whoever agrees has signed it. (2) It is for this rule book, (3) to this step, (4) not over, and (5) no other
        step was taken on it; one that was given in a poll is for its step alone. (6) Nobody is missing. (7) Where that
        takes a poll, there was one.

        Raises `RefusedError`: `evolution.wrong-key`, `key.bad-signature`, `moderator.wrong-book`, `moderator.consent`,
        `moderator.needs-poll`, and as `_verify_poll`.
        """
        subject = subject_of(step)
        agreed, poll = {step.note.who}, None if proof is None else self._verify_poll(base, step, proof)
        for consent in consents:
            # (1) Silence is refusal, and so is what others say.
            value = consent.verify().value
            # (2) As with requests.
            if value.book != self.book:
                raise _foreign("a consent")
            # (3) The state may have changed since, and with it what would come of the request.
            if value.to != subject:
                raise _no_consent(value.by, "agreed to something else than would come of it")
            # (4) By its own word.
            if step.note.when > value.until:
                raise _no_consent(value.by, "agreed, but not for so long")
            # (5) A step that was undone, or withdrawn, needs a new one; one that was given for later is none.
            if _used_up(base, step, value.since):
                raise _no_consent(value.by, "agreed to what was done before")
            # A vote can be replaced, and others see it: what counts is what the poll came to.
            if value.poll not in (None, poll):
                raise _no_consent(value.by, "agreed in a poll, and this is not what it chose")
            agreed.add(value.by)
        # (6) Those who need not agree do no harm.
        agree = self._speakers(base, step.request, step.note.who).agree
        if isinstance(step.request, Undo):
            agree |= _turned_round(base, step, step.request)
        missing = sorted(agree - agreed)
        if missing:
            raise _no_consent(missing[0], "has not agreed", *missing)
        # (7) Everybody may tighten what is theirs, and withdraw it.
        if self._founding.tightening is Tightening.POLL and poll is None and not isinstance(step.request, SEARCHING):
            _check_own(base, step)

    def _verify_poll(self, base: RuleBase, step: Step, proof: Proof) -> bytes:
        """Verify that a step is what a poll chose; return the poll's id.

        (1) The moderator asked, about this rule book. (2) The votes come to this step, (3) which is the moderator's, in
        the name of the poll, and the only one that was taken on it.

        Raises `RefusedError`: `moderator.wrong-book`, `poll.outcome`, and what `verify_outcome` raises.
        """
        # (1) Nobody else polls.
        question = proof.question.verify()
        asked, moderator = question.value, self._founding.moderator
        if (asked.moderator, asked.book) != (moderator, self.book):
            raise _foreign("a poll")
        # (2) Whoever reads the book counts them.
        chosen = verify_outcome(question, proof.outcome).chosen
        same = chosen is not None and asked.subject(chosen) == subject_of(step)
        # (3) As with consents.
        named = (step.note.who, step.note.why) == (moderator, poll_reason(question.digest))
        if not same or not named or _used_up(base, step, asked.since):
            raise RefusedError("poll.outcome", "a step is not what its poll chose, or was taken before")
        return question.digest

    def next_serial(self, who: Principal) -> int:
        """Return the number that the next request of somebody can have."""
        return self.serials.get(who, 0) + 1

    def note(self, taken: Taken) -> None:
        """Remember that a request was taken."""
        if taken.word is not None:
            asked = taken.word.asked.value
            self.serials[asked.by] = asked.serial

    def _speakers(self, base: RuleBase, request: Request, who: Principal) -> _Speakers:
        moderator = self._founding.moderator
        match request:
            case steps.Add(rule):
                return _Speakers(self._invited(rule.stated_by), frozenset(rule.publishers))
            case steps.Subscribe(rule):
                return _Speakers(self._invited(rule.stated_by), frozenset({rule.subscriber}))
            case steps.Withdraw(rule_id):
                return _Speakers(base.stated(rule_id).speakers)
            case steps.Resolve(rule_id, _, consents):
                return _Speakers(frozenset({base.standing(rule_id).stated.stated_by, moderator}), consents)
            case steps.Pass():
                return _Speakers(frozenset({who}))
            case steps.Leave(publisher):
                # What it demands of others would rest.
                return _Speakers(frozenset({publisher, moderator}), frozenset({publisher}))
            case steps.Return(publisher):
                return _Speakers(frozenset({publisher}))
            case steps.Undo(number, replay):
                step = base.step(number)
                # What somebody states, withdraws, or takes back of that, is for nobody else to turn round.
                first = _undone_at_last(base, step)
                own = isinstance(first.request, _OWN)
                # That time passes is nobody's word to take back, and others' steps are not to be asked for again.
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
        """Return somebody, if it may state rules."""
        named = self._founding.speakers
        return frozenset({who} if not named or who in named else ())


def _check_own(base: RuleBase, step: Step) -> None:
    """Check that a step tightens no rules but those of who asks for it."""
    others = sorted(tightened_by(base, step.delta) - {step.note.who})
    if others:
        raise RefusedError(
            "moderator.needs-poll",
            f"a rule of {others[0].short} would be tightened, and those affected were not asked",
            hint="let the moderator ask them (`penstock moderator poll`)",
            publishers=tuple(others),
        )


def _turned_round(base: RuleBase, step: Step, undo: Undo) -> frozenset[Principal]:
    """Return those who have to agree to what becomes of their rules when a step is undone."""
    # A relaxation that was agreed to, and taken back, does not come again without being agreed to again.
    found = relaxed_by(base, step.delta)
    undone = base.step(undo.number)
    # Where a clock was wrong, rules have ended that nobody gave up, and those that took their place give way again. And
    # a rule that came into force by somebody's choice is rejected again when whoever chose takes that back.
    chosen = isinstance(undone.request, steps.Resolve) and undone.note.who == step.note.who
    if not undo.replay and (chosen or isinstance(undone.request, Pass)):
        return found
    # What somebody demands does not vanish by the word of others, nor does it come back when it was given up.
    ceasing = (rule.stated_by for rule in step.delta.ceasing.values())
    return found.union(ceasing, *(rule.speakers for rule in step.delta.rising.values()))


def _undone_at_last(base: RuleBase, step: Step) -> Step:
    """Return the step that is undone, perhaps by way of others that were undone."""
    while isinstance(step.request, Undo):
        step = base.step(step.request.number)
    return step


def _used_up(base: RuleBase, step: Step, since: int) -> bool:
    """Say whether a step that rests on the same consents was taken since, or that is later than now."""
    subject, kind = subject_of(step), type(step.request)
    alike = (later for later in base.since(since) if isinstance(later.request, kind))
    return since >= base.next_number or any(subject_of(later) == subject for later in alike)


def _foreign(what: str) -> RefusedError:
    return RefusedError("moderator.wrong-book", f"{what} is for another rule book", hint="sign one for this rule book")


def _no_consent(who: Principal, what: str, *missing: Principal) -> RefusedError:
    return RefusedError(
        "moderator.consent",
        f"{who.short} {what}",
        hint="ask each of those who have to agree",
        publishers=missing or (who,),
    )
