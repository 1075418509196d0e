"""What the commands share that change a rule book: who asks, and whether it is done, signed, or only rehearsed."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import click

from penstock.apps.cli.moderator.output import plan_data, show_plan
from penstock.apps.cli.moderator.sources import RuleSource, book_options, opened_book
from penstock.apps.cli.shared import terminal as paint
from penstock.apps.cli.shared.files import Destination, read_sexp, within
from penstock.apps.cli.shared.options import JSON, WHO, F, open_key, output_option, passphrase_option
from penstock.apps.cli.shared.session import CommandSession, say_json
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

#: what a rule that collides is told as
REJECTED = "rejected"
#: the number of rules in one write if they need not be written together
_BATCH: Final = 1_000
#: refusals of what somebody else has to agree to: what would come of it is shown all the same
_OTHERS: Final = ("moderator.consent", "moderator.needs-poll")


def who_options(function: F) -> F:
    """Add `--key`, `--passphrase-file` and `--as`."""
    for option in (
        click.option("--as", "as_who", **WHO, help="Who asks, where the rule book takes requests without signatures."),
        passphrase_option,
        click.option("--key", "key_file", metavar="FILE", help="Your private key, which the request is signed with."),
    ):
        function = option(function)
    return function


def acting_options(function: F) -> F:
    """Add the options of the commands that change a rule book."""
    for option in (
        output_option(),
        book_options,
        click.option("--dry-run", is_flag=True, help="Show what would come of it, and change nothing."),
        click.option("--overwrite", is_flag=True, help="Replace a file that exists."),
        click.option("--out", metavar="FILE", help="Write the signed request to a file, for `take`, instead."),
        click.option(
            "--consent",
            "consents",
            multiple=True,
            metavar="FILE",
            help="What somebody else who has to agree has signed (`agree`); repeat it.",
        ),
        click.option("--why", default="", metavar="TEXT", help="Why, for whoever reads the log."),
        who_options,
    ):
        function = option(function)
    return function


@dataclass(frozen=True, slots=True, kw_only=True)
class Acting:
    """Somebody who changes a rule book."""

    session: CommandSession
    source: RuleSource
    book: RuleBook
    who: Principal | None
    why: str
    dry_run: bool
    destination: Destination
    output: str
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

    def do(self, request: Request, who: Principal | None = None) -> Plan:
        """Do what is asked for, or show what would come of it, and answer. Raises what `RuleBook` raises."""
        try:
            plan = self.plan_or_take(request, who)
        except RefusedError as error:
            error.hint = self._hint(error, request) or error.hint
            if not self.written and error.code in _OTHERS:
                self.answer(self.book.plan(request, self.note(who)))
            raise
        self.show_passed(self.passed)
        self.answer(plan)
        if self.destination.file is not None and self.output != JSON:
            paint.line(self.destination.line())
        return plan

    def carry(self, asked: UnverifiedValue[ModeratorRequest], consents: tuple[UnverifiedValue[Consent], ...]) -> Plan:
        """Do what somebody has signed, or show what would come of it, and answer. Raises what `RuleBook` raises."""
        value, now = asked.value, self.session.now
        try:
            plan = (self.book.rehearse if self.dry_run else self.book.take)(asked, now, consents)
        except RefusedError as error:
            if self.dry_run and error.code in _OTHERS:
                self.answer(self.book.plan(value.request, Note(value.by, now, value.why)))
            raise
        self.show_passed(self.passed if self.dry_run else self.book.passed)
        self.answer(plan)
        return plan

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
                return f"`penstock moderator propose {rule_id}` shows the ways that lead somewhere"
            case _:
                return ""
        publishers = error.fields.get("publishers")
        named = sorted(map(self.source.cast.show, publishers)) if isinstance(publishers, tuple) else []
        return f"{', '.join(named)}: {agree}; then give --consent FILE"

    def answer(self, plan: Plan) -> None:
        """Answer what a request came to."""
        if self.output == JSON:
            say_json(self.data(plan))
        else:
            show_plan(plan, self.source, done=self.written)

    def data(self, plan: Plan) -> dict[str, object]:
        """Return what a request came to as plain data."""
        file = {} if self.destination.file is None else self.destination.as_dict()
        return {**plan_data(plan, self.source, written=self.written), **file, "written": self.written}

    @property
    def written(self) -> bool:
        """True where the rule book is changed."""
        return not self.dry_run and self.destination.file is None

    def plan_or_take(self, request: Request, who: Principal | None = None) -> Plan:
        """Do what is asked for, or plan it, and answer nothing. Raises what `RuleBook` raises."""
        note = self.note(who)
        if self.destination.file is not None:
            # Who else has to agree sees it first.
            plan = self.book.plan(request, note)
            self.destination.put(self._signed(request).to_sexp())
            return plan
        if self._key is not None:
            if self.dry_run:
                return self.book.rehearse(self._signed(request).unverified(), note.when, self.consents)
            plan = self.book.ask(self._key, request, note.when, note.why, self.consents)
        elif self.dry_run:
            return self.book.rehearse_unsigned(request, note)
        else:
            plan = self.book.take_unsigned(request, note)
        self.show_passed(self.book.passed)
        return plan

    def several(self, requests: Sequence[Add | StateSubscriberRule], *, whole: bool) -> Iterator[Plan]:
        """Do all that is stated or nothing, or in batches; or plan each on what would have come of those before.

        Raises what `RuleBook.state` raises.
        """
        if self.destination.file is not None:
            raise MalformedError("cli.usage", "one request is written to a file, not several", hint="give one rule")
        if self.written:
            size = max(1, len(requests)) if whole else _BATCH
            for first in range(0, len(requests), size):
                plans = self.book.state(requests[first : first + size], self.session.now, self.why, self._key)
                self.show_passed(self.book.passed)
                yield from plans
            return
        self.show_passed(self.passed)
        with ExitStack() as tried:
            for request in requests:
                try:
                    plan = self.plan_or_take(request, request.rule.stated_by)
                except PenstockError as error:
                    error.fields.setdefault("rule", request.rule.id)
                    raise
                tried.enter_context(self.book.base.tried(plan.step))
                yield plan

    def show_passed(self, passed: Plan | None) -> None:
        """Tell people what came of the time that has passed."""
        if passed is not None and self.output != JSON:
            show_plan(passed, self.source, done=self.written)

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


@contextmanager
def acting(  # noqa: PLR0913  # one argument an option
    session: CommandSession,
    *,
    key_file: str | None,
    passphrase_file: str | None,
    as_who: str | None,
    why: str = "",
    consents: tuple[str, ...] = (),
    out: str | None = None,
    overwrite: bool = False,
    dry_run: bool,
    output: str,
    passes: bool = False,
    **where: Any,
) -> Iterator[Acting]:
    """Open a rule book for somebody who changes it; what is only rehearsed is of the rules that hold now.

    `passes` is for who lets time pass, and nothing else. Raises what the options raise.
    """
    if key_file is not None and as_who is not None:
        raise MalformedError("cli.usage", "--key and --as exclude each other", hint="give one of them")
    destination = Destination.free(out, overwrite=overwrite, dry_run=dry_run)
    agreed = tuple(map(read_consent, consents))
    key = None if key_file is None else open_key(key_file, passphrase_file)
    own = None if key is None else key.principal
    with opened_book(**where, own=own) as (source, book), ExitStack() as rehearsing:
        named = None if as_who is None else source.cast.principal(as_who)
        rehearsed = (dry_run or out is not None) and not passes
        yield Acting(
            session=session,
            source=source,
            book=book,
            who=named if key is None else key.principal,
            why=why,
            dry_run=dry_run,
            destination=destination,
            output=output,
            consents=agreed,
            passed=rehearsing.enter_context(book.rehearsal(session.now)) if rehearsed else None,
            _key=key,
        )


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


def refuse_rejected(source: RuleSource, *plans: Plan, written: bool) -> None:
    """End with status 1 where a rule was stated that collides. Raises `RefusedError` (`moderator.rejected`)."""
    ids = [
        plan.step.request.rule.id
        for plan in plans
        if isinstance(plan.step.request, Add) and outcome(source.base, plan) == REJECTED
    ]
    if ids:
        rules = ", ".join(f"`{rule_id}`" for rule_id in ids[:10])
        raise RefusedError(
            "moderator.rejected",
            f"{rules} {'was' if written else 'would be'} rejected, because it collides",
            hint=f"`penstock moderator propose {ids[0]}` shows ways out" if written else "",
        )
