"""What the commands share that change a rule book: who asks, and whether it is done, signed, or only rehearsed."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from penstock.apps.cli.moderator.output import plan_data, show_plan
from penstock.apps.cli.moderator.sources import BookOptions, RuleSource
from penstock.apps.cli.shared.commands import (
    CommandAnswer,
    option,
    option_class,
    output_option,
    until_answered,
    wants_data,
)
from penstock.apps.cli.shared.files import read_sexp, within
from penstock.apps.cli.shared.options import WHO, OutputFile, open_key, passphrase_option
from penstock.apps.cli.shared.session import CommandSession
from penstock.apps.cli.shared.terminal import Shown, show
from penstock.authority.rulebook import RuleBook
from penstock.authority.signed_requests import ModeratorRequest
from penstock.crypto import SigningKey
from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.model.principals import Principal
from penstock.moderator.descriptions import outcome
from penstock.moderator.rules.steps import NO_CHANGE, Add, Note, Pass, Request, Resolve, StateSubscriberRule, Undo
from penstock.moderator.settlement.addition import Plan
from penstock.moderator.settlement.consents import Consent
from penstock.trust.signed import SignedValue, UnverifiedValue, read_signed

#: the heading of a rule that conflicts
REJECTED = "rejected"
#: the number of rules in one write if they need not be written together
_BATCH: Final = 1_000
#: refusals of what somebody else has to agree to: what would come of it is shown all the same
_OTHERS: Final = ("moderator.consent", "moderator.needs-poll")


@option_class
class WhoOptions:
    """Who asks: by a key, or where the rule book takes requests without signatures, by a name."""

    key_file: str | None = option("--key", metavar="FILE", help="Sign the request with this private key.")
    passphrase_file: str | None = passphrase_option()
    as_who: str | None = option(
        "--as", **WHO, help="Ask as this principal, if the rule book accepts requests without signatures."
    )

    def key(self) -> SigningKey | None:
        """Read the key, if one was given. Raises as `open_key`."""
        return None if self.key_file is None else open_key(self.key_file, self.passphrase_file)


@option_class
class ActingOptions:
    """What the commands share that change a rule book."""

    who: WhoOptions
    why: str = option("--why", default="", metavar="TEXT", help="Record this reason in the log.")
    consents: tuple[str, ...] = option(
        "--consent",
        multiple=True,
        metavar="FILE",
        help="Add a consent that somebody else signed (`agree`). Can be repeated.",
    )
    out: str | None = option(
        "--out", metavar="FILE", help="Write the signed request to this file for `take`, and change nothing."
    )
    overwrite: bool = option("--overwrite", is_flag=True, help="Replace a file that exists.")
    dry_run: bool = option("--dry-run", is_flag=True, help="Show the result, and change nothing.")
    book: BookOptions
    output: str = output_option()

    def begin(self, session: CommandSession, *, passes: bool = False) -> "Acting":
        """Open a rule book for somebody who changes it, until the command has answered.

        What is only rehearsed is of the rules that hold now. `passes` is for who lets time pass, and nothing else.
        Raises what the options raise.
        """
        if self.who.key_file is not None and self.who.as_who is not None:
            raise MalformedError("cli.usage", "--key and --as exclude each other", hint="give one of them")
        destination = OutputFile(out=self.out, overwrite=self.overwrite, dry_run=self.dry_run)
        destination.check()
        agreed = tuple(map(read_consent, self.consents))
        key = self.who.key()
        own = None if key is None else key.principal
        source, book = until_answered(self.book.opened(own))
        named = None if self.who.as_who is None else source.cast.principal(self.who.as_who)
        rehearsed = (self.dry_run or self.out is not None) and not passes
        return Acting(
            session=session,
            source=source,
            book=book,
            who=named if key is None else key.principal,
            why=self.why,
            destination=destination,
            consents=agreed,
            passed=until_answered(book.rehearsal(session.now)) if rehearsed else None,
            _key=key,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Acting:
    """Somebody who changes a rule book."""

    session: CommandSession
    source: RuleSource
    book: RuleBook
    who: Principal | None
    why: str
    destination: OutputFile
    consents: tuple[UnverifiedValue[Consent], ...]
    #: what came of the time that has passed, where it is only rehearsed
    passed: Plan | None
    _key: SigningKey | None

    def asker(self) -> Principal:
        """Return who asks. Raises `MalformedError` (`cli.usage`) where nobody does."""
        if self.who is None:
            raise nobody()
        return self.who

    def note(self, who: Principal | None = None) -> Note:
        """Return who asks, when and why."""
        return Note(self.asker() if who is None else who, self.session.now, self.why)

    def do(self, request: Request, who: Principal | None = None) -> CommandAnswer:
        """Do what is asked for, or show what would come of it, and return the answer. Raises what `RuleBook` raises."""
        try:
            plan = self.plan_or_take(request, who)
        except RefusedError as error:
            error.hint = self._hint(error, request) or error.hint
            if not self.written and error.code in _OTHERS:
                return self.answer(self.book.plan(request, self.note(who)), error)
            raise
        return self.answer(plan, rejection(self.source, plan, written=self.written), passed=self._passed())

    def carry(
        self, asked: UnverifiedValue[ModeratorRequest], consents: tuple[UnverifiedValue[Consent], ...]
    ) -> CommandAnswer:
        """Do what somebody has signed, or show what would come of it, and answer. Raises what `RuleBook` raises."""
        value, now, dry_run = asked.value, self.session.now, self.destination.dry_run
        try:
            plan = (self.book.rehearse if dry_run else self.book.take)(asked, now, consents)
        except RefusedError as error:
            if dry_run and error.code in _OTHERS:
                return self.answer(self.book.plan(value.request, Note(value.by, now, value.why)), error)
            raise
        return self.answer(plan, rejection(self.source, plan, written=self.written), passed=self._passed())

    def _passed(self) -> Plan | None:
        """Return what came of the time that has passed, or would come of it."""
        return self.book.passed if self.written else self.passed

    def _hint(self, error: RefusedError, request: Request) -> str:
        """Say what to do next, in commands."""
        match error.code, request:
            case "moderator.consent", Resolve(rule_id, strategy):
                agree = f"`penstock moderator agree {rule_id} --by {strategy} --key … --out FILE`"
            case "moderator.consent", Undo(number, False):
                agree = f"`penstock moderator agree --undo {number} --key … --out FILE`"
            case "moderator.consent", _:
                agree = "`penstock moderator agree --request FILE --key …`, of what --out FILE writes here"
            case "moderator.untimely", _:
                return (
                    "check the clock; where it is right, the moderator sets the time of the rule book: "
                    "`penstock moderator pass --key …`"
                )
            case "moderator.unresolved", Resolve(rule_id):
                return f"`penstock moderator propose {rule_id}` shows the proposals that apply"
            case _:
                return ""
        publishers = error.fields.get("publishers")
        named = sorted(map(self.source.cast.show, publishers)) if isinstance(publishers, tuple) else []
        return f"{', '.join(named)}: {agree}; then give --consent FILE"

    def answer(self, plan: Plan, error: RefusedError | None, passed: Plan | None = None) -> CommandAnswer:
        """Return what a request came to, and what time that has passed came to before it."""
        return CommandAnswer(lambda: self.data(plan), self._shown(plan, passed), error)

    def _shown(self, plan: Plan, passed: Plan | None) -> Iterator[Shown]:
        yield from self.show_passed(passed)
        yield from show_plan(plan, self.source, done=self.written)
        if self.destination.out is not None:
            yield self.destination.line()

    def data(self, plan: Plan) -> dict[str, object]:
        """Return what a request came to as plain data."""
        file = {} if self.destination.out is None else self.destination.as_dict()
        return {**plan_data(plan, self.source, written=self.written), **file, "written": self.written}

    @property
    def written(self) -> bool:
        """True where the rule book is changed."""
        return not self.destination.dry_run and self.destination.out is None

    def plan_or_take(self, request: Request, who: Principal | None = None) -> Plan:
        """Do what is asked for, or plan it, and answer nothing. Raises what `RuleBook` raises."""
        note = self.note(who)
        if self.destination.out is not None:
            # Who else has to agree sees it first.
            plan = self.book.plan(request, note)
            self.destination.put(self._signed(request).to_sexp())
            return plan
        if self._key is not None:
            if self.destination.dry_run:
                return self.book.rehearse(self._signed(request).unverified(), note.when, self.consents)
            return self.book.ask(self._key, request, note.when, note.why, self.consents)
        if self.destination.dry_run:
            return self.book.rehearse_unsigned(request, note)
        return self.book.take_unsigned(request, note)

    def several(self, requests: Sequence[Add | StateSubscriberRule], *, whole: bool) -> Iterator[Plan]:
        """Do all that is stated or nothing, or in batches; or plan each on what would have come of those before.

        Raises what `RuleBook.state` raises.
        """
        if self.destination.out is not None:
            raise MalformedError("cli.usage", "one request is written to a file, not several", hint="give one rule")
        if self.written:
            size = max(1, len(requests)) if whole else _BATCH
            for first in range(0, len(requests), size):
                plans = self.book.state(requests[first : first + size], self.session.now, self.why, self._key)
                self.show_now(self.show_passed(self.book.passed))
                yield from plans
            return
        self.show_now(self.show_passed(self.passed))
        with ExitStack() as tried:
            for request in requests:
                try:
                    plan = self.plan_or_take(request, request.rule.stated_by)
                except PenstockError as error:
                    error.fields.setdefault("rule", request.rule.id)
                    raise
                tried.enter_context(self.book.base.tried(plan.step))
                yield plan

    def show_passed(self, passed: Plan | None) -> Iterator[Shown]:
        """Yield what came of the time that has passed."""
        if passed is not None:
            yield from show_plan(passed, self.source, done=self.written)

    @staticmethod
    def show_now(parts: Iterable[Shown]) -> None:
        """Print to people immediately."""
        if not wants_data():
            show(parts)

    def sets_time(self) -> bool:
        """Say whether whoever asks is the moderator, and the time of the book has to be set."""
        return self.who == self.book.founding.moderator and self.book.needs_time(self.session.now)

    def is_due(self) -> bool:
        """Say whether anything comes of the time that has passed, or of what has changed since."""
        note = Note(self.book.founding.moderator, self.session.now)
        return self.book.plan(Pass(), note).step.delta != NO_CHANGE

    def key(self) -> SigningKey:
        """Return the key. Raises `MalformedError` (`cli.usage`) where none was given."""
        if self._key is None:
            raise MalformedError("cli.usage", "only who has a key can sign", hint="give --key FILE")
        return self._key

    def _signed(self, request: Request) -> SignedValue[ModeratorRequest]:
        return self.book.sign(self.key(), request, self.session.now, self.why)


def read_consent(file: str) -> UnverifiedValue[Consent]:
    """Read what somebody has agreed to. Raises what `read_sexp` and `read_signed` raise."""
    value = read_sexp(file)
    with within(file):
        return read_signed(value, Consent)


def nobody() -> MalformedError:
    """Return the error for a request that nobody makes."""
    return MalformedError(
        "cli.usage",
        "nothing says who asks",
        hint="give --key FILE, or --as WHO where the rule book takes requests without signatures",
    )


def rejection(source: RuleSource, *plans: Plan, written: bool) -> RefusedError | None:
    """Return the error (`moderator.rejected`) if a rule was stated that conflicts."""
    ids = [
        plan.step.request.rule.id
        for plan in plans
        if isinstance(plan.step.request, Add) and outcome(source.base, plan) == REJECTED
    ]
    if not ids:
        return None
    rules = ", ".join(f"`{rule_id}`" for rule_id in ids[:10])
    return RefusedError(
        "moderator.rejected",
        f"{rules} {'was' if written else 'would be'} rejected, because it conflicts with others",
        hint=f"`penstock moderator propose {ids[0]}` shows proposals" if written else "",
    )
