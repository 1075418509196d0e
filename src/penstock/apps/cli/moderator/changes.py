"""Change a rule book: state, resolve and withdraw rules, change event types, agree to requests of others.

`Acting` carries out a change: it applies it, signs it for somebody else to apply, or only rehearses it."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import chain
from typing import Final

import click

from penstock.apps.cli.certs.grants import PeriodOptions
from penstock.apps.cli.moderator.output import (
    conflicts_data,
    plan_data,
    proposal_data,
    show_plan,
    show_proposals,
    show_rule_conflicts,
)
from penstock.apps.cli.moderator.sources import (
    EVENT,
    RULE,
    BookOptions,
    RuleSource,
    at_line,
    known_standing,
    load_rules,
)
from penstock.apps.cli.shared.commands import (
    CommandAnswer,
    argument,
    command,
    option,
    option_class,
    output_option,
    until_answered,
    wants_data,
)
from penstock.apps.cli.shared.describe import counted
from penstock.apps.cli.shared.files import read_sexp, within
from penstock.apps.cli.shared.options import WHO, KeyOptions, OutputFile, open_key, passphrase_option
from penstock.apps.cli.shared.session import CommandSession, Verbs
from penstock.apps.cli.shared.terminal import Shown, show
from penstock.authority.rulebook import RuleBook
from penstock.authority.rulebook_records import ModeratorRequest
from penstock.codec.sexp import advanced, transport
from penstock.crypto import SigningKey
from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.moderator.base.base import RuleBase
from penstock.moderator.descriptions import outcome, parse_function
from penstock.moderator.rules.rules import PublishRule, Rule, SubscribeRule
from penstock.moderator.rules.steps import (
    CLOCK,
    NO_CHANGE,
    Add,
    AddType,
    Leave,
    MoveType,
    Note,
    Pass,
    RemoveType,
    RenameType,
    Request,
    Resolve,
    Return,
    RuleStatus,
    StateSubscriberRule,
    Strategy,
    Undo,
    WithdrawRule,
)
from penstock.moderator.settlement.addition import Plan
from penstock.moderator.settlement.proposals import Consent, find, subject_of
from penstock.moderator.settlement.type_changes import move_conflicts, propose_move
from penstock.selector import ALWAYS, Selector, conjunction
from penstock.trust.signed import SignedValue, UnverifiedValue, read_signed, sign_value

#: the heading of a rule that conflicts
REJECTED = "rejected"
#: the number of rules in one write if they need not be written together
_BATCH: Final = 1_000
#: refusals because somebody else must agree: the result is shown all the same
_OTHERS: Final = ("moderator.consent", "moderator.needs-poll")


@option_class
class WhoOptions:
    """Options for who asks: by a key, or by a name if the rule book accepts requests without signatures."""

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
    """The options that all commands share which change a rule book."""

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
        """Open a rule book to change it, until the command has answered.

        A rehearsal uses the rules that hold now. `passes` is set by the command that only lets time pass. Raises what
        the options raise.
        """
        if self.who.key_file is not None and self.who.as_who is not None:
            raise MalformedError("cli.usage", "--key and --as exclude each other", hint="give one of them")
        destination = OutputFile(out=self.out, overwrite=self.overwrite, dry_run=self.dry_run)
        destination.check()
        agreed = tuple(map(read_consent, self.consents))
        act = begin_acting(session, self.book, self.who.key(), destination, passes=passes)
        who = act.who if self.who.as_who is None else act.source.cast.principal(self.who.as_who)
        return replace(act, who=who, why=self.why, consents=agreed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Acting:
    """A principal that changes a rule book, and how: apply, sign for somebody else, or rehearse."""

    session: CommandSession
    source: RuleSource
    book: RuleBook
    who: Principal | None
    why: str = ""
    destination: OutputFile
    consents: tuple[UnverifiedValue[Consent], ...] = ()
    #: the result of the time that has passed, if it is only rehearsed
    passed: Plan | None
    _key: SigningKey | None

    def asker(self) -> Principal:
        """Return who asks. Raises `MalformedError` (`cli.usage`) if nobody is named."""
        if self.who is None:
            raise nobody()
        return self.who

    def note(self, who: Principal | None = None) -> Note:
        """Return who asks, when and why."""
        return Note(self.asker() if who is None else who, self.session.now, self.why)

    def do(self, request: Request, who: Principal | None = None) -> CommandAnswer:
        """Apply or rehearse a request, and return the answer. Raises what `RuleBook` raises."""
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
        """Apply or rehearse a signed request, and return the answer. Raises what `RuleBook` raises."""
        value, now, dry_run = asked.value, self.session.now, self.destination.dry_run
        try:
            plan = (self.book.rehearse if dry_run else self.book.take)(asked, now, consents)
        except RefusedError as error:
            if dry_run and error.code in _OTHERS:
                return self.answer(self.book.plan(value.request, Note(value.by, now, value.why)), error)
            raise
        return self.answer(plan, rejection(self.source, plan, written=self.written), passed=self._passed())

    def _passed(self) -> Plan | None:
        """Return the result of the time that has passed, applied or rehearsed."""
        return self.book.passed if self.written else self.passed

    def _hint(self, error: RefusedError, request: Request) -> str:
        """Return the commands to run next."""
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
        """Return the answer: the result of the request, after that of the time that has passed."""
        return CommandAnswer(lambda: self.data(plan), self._shown(plan, passed), error)

    def _shown(self, plan: Plan, passed: Plan | None) -> Iterator[Shown]:
        yield from self.show_passed(passed)
        yield from show_plan(plan, self.source, done=self.written)
        if self.destination.out is not None:
            yield self.destination.line()

    def data(self, plan: Plan) -> dict[str, object]:
        """Return the result of a request as plain data."""
        file = {} if self.destination.out is None else self.destination.as_dict()
        return {**plan_data(plan, self.source, written=self.written), **file, "written": self.written}

    @property
    def written(self) -> bool:
        """Whether the rule book is changed."""
        return not self.destination.dry_run and self.destination.out is None

    def plan_or_take(self, request: Request, who: Principal | None = None) -> Plan:
        """Apply a request, or plan it, without an answer. Raises what `RuleBook` raises."""
        note = self.note(who)
        if self.destination.out is not None:
            # Show the result first to those who must agree.
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
        """Apply all requests or none, or in batches; or plan each on the result of those before it.

        Raises what `RuleBook.state` raises.
        """
        if self.destination.out is not None:
            raise MalformedError("cli.usage", "only one request can be written to a file", hint="give one rule")
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
        """Yield the result of the time that has passed."""
        if passed is not None:
            yield from show_plan(passed, self.source, done=self.written)

    @staticmethod
    def show_now(parts: Iterable[Shown]) -> None:
        """Print to people immediately."""
        if not wants_data():
            show(parts)

    def sets_time(self) -> bool:
        """Return whether the moderator asks, and the time of the book must be set."""
        return self.who == self.book.founding.moderator and self.book.needs_time(self.session.now)

    def is_due(self) -> bool:
        """Return whether the time that has passed changes anything."""
        note = Note(self.book.founding.moderator, self.session.now)
        return self.book.plan(Pass(), note).step.delta != NO_CHANGE

    def key(self) -> SigningKey:
        """Return the key. Raises `MalformedError` (`cli.usage`) if none was given."""
        if self._key is None:
            raise MalformedError("cli.usage", "a signature needs a key", hint="give --key FILE")
        return self._key

    def _signed(self, request: Request) -> SignedValue[ModeratorRequest]:
        return self.book.sign(self.key(), request, self.session.now, self.why)


def begin_acting(
    session: CommandSession, book: BookOptions, key: SigningKey | None, destination: OutputFile, *, passes: bool = False
) -> Acting:
    """Open a rule book to change it, with a key or without. Raises what `BookOptions.opened` raises."""
    who = None if key is None else key.principal
    source, opened = until_answered(book.opened(who))
    rehearsed = (destination.dry_run or destination.out is not None) and not passes
    passed = until_answered(opened.rehearsal(session.now)) if rehearsed else None
    return Acting(
        session=session, source=source, book=opened, who=who, destination=destination, passed=passed, _key=key
    )


def read_consent(file: str) -> UnverifiedValue[Consent]:
    """Read a signed consent. Raises what `read_sexp` and `read_signed` raise."""
    value = read_sexp(file)
    with within(file):
        return read_signed(value, Consent)


def nobody() -> MalformedError:
    """Return the error for a request that nobody makes."""
    return MalformedError(
        "cli.usage",
        "it is not known who asks",
        hint="give --key FILE, or --as WHO if the rule book accepts requests without signatures",
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


# ----------------------------------------------------------------------------------------------------------------------
# State, resolve and withdraw rules, let publishers leave and return, undo steps.


STRATEGIES = click.Choice([strategy.value for strategy in Strategy])


@option_class
class _Add:
    rule: str | None = argument(required=False)
    source: str | None = option("--from", metavar="FILE", help="State your rules in this file, all or none.")
    missing: bool = option("--continue", is_flag=True, help="Leave out rules of --from that are in the book already.")
    event: str | None = option("--event", metavar="TYPE", **EVENT, help="State the rule about this event type.")
    fnc_s: tuple[str, ...] = option(
        "--fnc-s", multiple=True, metavar="CONDITION", help="Require this of subscribers. Can be repeated."
    )
    fnc_p: tuple[str, ...] = option(
        "--fnc-p", multiple=True, metavar="CONDITION", help="Require this of publishers. Can be repeated."
    )
    publishers: tuple[str, ...] = option(
        "--publisher", multiple=True, **WHO, help="State the rule for this publisher (default: you). Can be repeated."
    )
    period: PeriodOptions
    acting: ActingOptions


@command(
    example="""
penstock moderator add r2 --event Line.Press --fnc-s "role = 'engineer'" --key acme.key --dry-run
penstock moderator add r3 --event Line.Press --fnc-s "{(role, engineer), (age, min, 18)}" --key acme.key
penstock moderator add --from rules.yaml --key acme.key
penstock moderator add --from rules.yaml --key acme.key --continue
"""
)
def add(session: CommandSession, options: _Add) -> CommandAnswer:
    """State RULE. The exit status is 1 if it conflicts with others.

    A rule that conflicts is rejected, and kept in the log of rules that can come back.

    The rules of a file are stated as a whole: if one is refused, none is added. With --continue, rules that the book
    already has are left out, and the others are written in batches, so that an interrupted run can be repeated.

    --fnc-s is what subscribers must satisfy, --fnc-p what publishers must satisfy. A condition is a selector, or an
    attribute list such as {(role, engineer), (age, max, 65)}. The default is TRUE, which everybody satisfies.
    """
    if options.missing and options.source is None:
        raise MalformedError("cli.usage", "--continue is for the rules of a file", hint="give --from FILE")
    if (options.rule is None) is (options.source is None):
        raise MalformedError("cli.usage", "state one rule, or those of a file", hint="give RULE, or --from FILE")
    act = options.acting.begin(session)
    if options.source is not None:
        return _add_file(act, options.source, missing=options.missing)
    if options.rule is None or options.event is None:
        raise MalformedError("cli.usage", "the rule has no event type", hint="give --event TYPE")
    stated_by = act.asker()
    stated = PublishRule(
        options.rule,
        act.source.event(options.event),
        tuple(map(act.source.cast.principal, options.publishers)) or (stated_by,),
        stated_by,
        _condition(options.fnc_p),
        _condition(options.fnc_s),
        options.period.validity(session.now),
    )
    return act.do(Add(stated))


def _condition(written: tuple[str, ...]) -> Selector:
    return conjunction(*map(parse_function, written)) if written else ALWAYS


def _add_file(act: Acting, file: str, *, missing: bool) -> CommandAnswer:
    """State the asker's rules of a file; if nothing is signed and nobody is named, all of them."""
    if act.who is None and not act.book.founding.unsafe_unsigned:
        raise nobody()
    rules = load_rules(file, act.source.cast.names)
    stated = [request for request in rules.stated if act.who in (None, request.rule.stated_by)]
    if not stated:
        raise MalformedError(
            "moderator.no-rules",
            f"`{file}` has no rules of {act.source.cast.show(act.asker())}",
            hint="`by` names who states a rule, and `principals` says which principal that is",
        )
    left = [request for request in stated if not (missing and _is_there(act.book.base, request.rule))]
    plans, results = [], []
    try:
        for plan in act.several(left, whole=not missing):
            plans.append(plan)
            # The result is shown before the next one changes the rules.
            if wants_data():
                results.append(act.data(plan))
            else:
                show(show_plan(plan, act.source, done=act.written))
    except PenstockError as error:
        if error.code in ("moderator.duplicate-id", "store.limit") and not missing:
            error.hint = "nothing was stated; with --continue, what the book does not have is stated, in batches"
        with at_line(file, rules, str(error.fields.get("rule", ""))):
            raise
    shown = []
    if len(left) < len(stated):
        shown.append(f"{counted(len(stated) - len(left), 'rule')} in the book already")
    if len(stated) < len(rules.stated):
        shown.append(f"{counted(len(rules.stated) - len(stated), 'rule')} of others in the file: left to them")
    rejected = rejection(act.source, *plans, written=act.written)
    return CommandAnswer({"steps": results, "there": len(stated) - len(left)}, shown, rejected)


def _is_there(base: RuleBase, rule: Rule) -> bool:
    """Return whether a book has exactly this rule, and it has not been withdrawn."""
    known = base.standings.get(rule.id) or base.wishes.get(rule.id)
    return known is not None and known.stated == rule and known.status not in (RuleStatus.WITHDRAWN, RuleStatus.ENDED)


@option_class
class _Subscribe:
    rule: str = argument()
    event: str = option("--event", required=True, metavar="TYPE", **EVENT, help="Subscribe to this event type.")
    fnc_p: tuple[str, ...] = option(
        "--fnc-p", multiple=True, metavar="CONDITION", help="Require this of publishers. Can be repeated."
    )
    subscriber: str | None = option("--subscriber", **WHO, help="State the rule for this subscriber (default: you).")
    period: PeriodOptions
    acting: ActingOptions


@command(example="penstock moderator subscribe ada-press --event Line.Press --fnc-p \"country = 'de'\" --key ada.key")
def subscribe(session: CommandSession, options: _Subscribe) -> CommandAnswer:
    """State RULE of a subscriber: whose events it wants."""
    act = options.acting.begin(session)
    stated_by = act.asker()
    subscriber = stated_by if options.subscriber is None else act.source.cast.principal(options.subscriber)
    validity = options.period.validity(session.now)
    event = act.source.event(options.event)
    wish = SubscribeRule(options.rule, event, subscriber, stated_by, _condition(options.fnc_p), validity)
    return act.do(StateSubscriberRule(wish))


@option_class
class _Remove:
    rule: str = argument(**RULE)
    acting: ActingOptions


@command(example="penstock moderator remove r2 --key acme.key --why 'the press is gone'")
def remove(session: CommandSession, options: _Remove) -> CommandAnswer:
    """Withdraw RULE, or withdraw yourself from it.

    Whoever stated a rule withdraws all of it. A publisher or subscriber whose rule somebody else stated withdraws
    itself, and the rule ends with the last of them. Rules in the log that fit then come back.
    """
    act = options.acting.begin(session)
    if options.rule not in act.book.base.wishes:
        known_standing(act.book.base, options.rule)
    return act.do(WithdrawRule(options.rule))


@option_class
class _Resolve:
    rule: str = argument(**RULE)
    strategy: str = option("--by", type=STRATEGIES, required=True, help="Apply this proposal.")
    acting: ActingOptions


@command(
    example="""
penstock moderator resolve r2 --by add-attributes --key acme.key --dry-run
penstock moderator resolve r2 --by delete-attributes --key acme.key --consent bolt.consent
"""
)
def resolve(session: CommandSession, options: _Resolve) -> CommandAnswer:
    """Apply a proposal for RULE, which conflicts with others.

    The whole proposal is applied, or nothing. If rules would require less than their publishers stated, each of these
    publishers must agree (`penstock moderator agree`).
    """
    act = options.acting.begin(session)
    return act.do(resolving(act, options.rule, Strategy(options.strategy)))


def resolving(act: Acting, rule: str, strategy: Strategy) -> Resolve:
    """Return the request for a proposal, with everybody who must agree."""
    with act.book.rehearsal(act.session.now):
        candidate = known_standing(act.book.base, rule).stated
        found = find(act.book.base, candidate, strategy)
    return Resolve(rule, strategy, frozenset() if found is None else found.relaxed)


@option_class
class _Leave:
    publisher: str = argument(**WHO)
    acting: ActingOptions


@command(example="penstock moderator leave acme --key acme.key")
def leave(session: CommandSession, options: _Leave) -> CommandAnswer:
    """Record that PUBLISHER leaves. Its rules are suspended."""
    act = options.acting.begin(session)
    return act.do(Leave(act.source.cast.principal(options.publisher)))


@command(name="return", example="penstock moderator return acme --key acme.key")
def return_(session: CommandSession, options: _Leave) -> CommandAnswer:
    """Record that PUBLISHER returns, with those of its rules that fit."""
    act = options.acting.begin(session)
    return act.do(Return(act.source.cast.principal(options.publisher)))


@option_class
class _Pass:
    acting: ActingOptions


@command(name="pass", example="penstock moderator pass")
def pass_(session: CommandSession, options: _Pass) -> CommandAnswer:
    """Let time pass: start and end the validity periods of rules.

    Everybody can do so, without a signature. Other changes do so too before they are decided. With the moderator's key,
    the command sets the rule book's time if a wrong clock has moved it far from now.
    """
    act = options.acting.begin(session, passes=True)
    if act.is_due() or act.sets_time():
        return act.do(Pass(), CLOCK if act.who is None else act.who)
    return CommandAnswer({"written": False, "outcome": "nothing is due"}, ["no period has ended or begun"])


@option_class
class _Undo:
    step: int = argument(type=click.IntRange(min=1))
    replay: bool = option("--replay", is_flag=True, help="Replay all later steps, as if this step had never been.")
    acting: ActingOptions


@command(example="penstock moderator undo 4 --key acme.key --dry-run")
def undo(session: CommandSession, options: _Undo) -> CommandAnswer:
    """Undo STEP, and nothing else.

    If later steps depend on it, the request is refused, and the error names them.
    """
    act = options.acting.begin(session)
    try:
        return act.do(Undo(options.step, options.replay))
    except RefusedError as error:
        if isinstance(numbers := error.fields.get("steps"), tuple):
            error.hint = f"undo {', '.join(map(str, reversed(numbers)))} first, or say --replay"
        raise


# ----------------------------------------------------------------------------------------------------------------------
# `penstock moderator type`: add, move, rename and remove event types while rules are in force.


@click.group("type", cls=Verbs)
def type_() -> None:
    """Change the tree of event types, with rules in place."""


@option_class
class _AddType:
    name: str = argument()
    below: str | None = option(
        "--below", metavar="TYPE", **EVENT, help="Put it below this type (default: make it a root)."
    )
    acting: ActingOptions


@command(type_, "add", example="penstock moderator type add Line.Dry --below Line --key plant.key")
def add_type(session: CommandSession, options: _AddType) -> CommandAnswer:
    """Add an event type, owned by the owner of the type above it, or by `owner/NAME`."""
    act = options.acting.begin(session)
    parent = None if options.below is None else act.source.event(options.below)
    return act.do(AddType(_new(act, options.name, parent), parent))


@option_class
class _Move:
    name: str = argument(**EVENT)
    below: str | None = option("--below", metavar="TYPE", **EVENT, help="Move it below this type.")
    root: bool = option("--root", is_flag=True, help="Make it a root.")
    strategy: str | None = option("--by", type=STRATEGIES, help="Apply this proposal if rules would conflict.")
    acting: ActingOptions


@command(type_, example="penstock moderator type move Line.Dry --below Line.Paint --key plant.key --dry-run")
def move(session: CommandSession, options: _Move) -> CommandAnswer:
    """Move an event type, with all types below it.

    Conflicts that the move would create are shown with proposals, and nothing is moved unless you choose one of these.
    """
    if (options.below is None) is not options.root:
        raise click.UsageError("say where it goes: --below TYPE, or --root")
    act = options.acting.begin(session)
    to = MoveType(act.source.event(options.name), None if options.below is None else act.source.event(options.below))
    try:
        return act.do(to if options.strategy is None else _by(act, to, Strategy(options.strategy)))
    except RefusedError as error:
        if error.code == "moderator.conflict":
            return _collisions(act, to, error)
        raise


def _by(act: Acting, to: MoveType, strategy: Strategy) -> MoveType:
    """Return the request for a move by a proposal, with everybody who must agree."""
    with act.book.rehearsal(act.session.now):
        ways = propose_move(act.book.base, to)
    relaxed = next((way.relaxed for way in ways if way.strategy is strategy), frozenset())
    return replace(to, strategy=strategy, consents=relaxed)


def _collisions(act: Acting, to: MoveType, error: RefusedError) -> CommandAnswer:
    with act.book.rehearsal(act.session.now):
        found = move_conflicts(act.book.base, to)
        ways = propose_move(act.book.base, to, act.source.customs.subscribers)
    data = {
        "written": False,
        "conflicts": [conflicts_data(rule, conflicts, act.source) for rule, conflicts in found],
        "proposals": [proposal_data(way, act.source.cast) for way in ways],
    }
    shown = (part for rule, conflicts in found for part in show_rule_conflicts(rule, conflicts, act.source))
    return CommandAnswer(data, chain(shown, show_proposals("what moves", ways, act.source)), error)


@option_class
class _Rename:
    name: str = argument(**EVENT)
    new: str = argument()
    acting: ActingOptions


@command(type_, example="penstock moderator type rename Line.Dry Line.Drying --key plant.key")
def rename(session: CommandSession, options: _Rename) -> CommandAnswer:
    """Rename an event type. Rules and log entries follow."""
    act = options.acting.begin(session)
    event = act.source.event(options.name)
    return act.do(RenameType(event, _new(act, options.new, event)))


@option_class
class _RemoveType:
    name: str = argument(**EVENT)
    acting: ActingOptions


@command(type_, "remove", example="penstock moderator type remove Line.Dry --key plant.key")
def remove_type(session: CommandSession, options: _RemoveType) -> CommandAnswer:
    """Remove an event type. The types below it move to its parent, and the rules on it end."""
    act = options.acting.begin(session)
    return act.do(RemoveType(act.source.event(options.name)))


def _new(act: Acting, written: str, beside: TypeKey | None) -> TypeKey:
    owner, slash, name = written.rpartition("/")
    if slash:
        return TypeKey(act.source.cast.principal(owner), name)
    return TypeKey(act.asker() if beside is None else beside.owner, name)


# ----------------------------------------------------------------------------------------------------------------------
# Changes that need several people: signed requests, and consents to them.


_DAYS = 7


@option_class
class _Agree:
    rule: str | None = argument(required=False)
    strategy: str | None = option("--by", type=STRATEGIES, help="Agree to this proposal for RULE.")
    request_file: str | None = option(
        "--request", metavar="FILE", help="Agree to a request that somebody else signed (--out)."
    )
    undo: int | None = option("--undo", type=click.IntRange(min=1), metavar="STEP", help="Agree that STEP is undone.")
    days: int = option(
        "--days",
        type=click.IntRange(1, 366),
        default=_DAYS,
        show_default=True,
        metavar="N",
        help="Let the consent be valid for this many days.",
    )
    key: KeyOptions
    book: BookOptions
    destination: OutputFile
    output: str = output_option()


@command(
    example="""
penstock moderator agree r2 --by delete-attributes --key bolt.key --out bolt.consent
penstock moderator agree --request r7.request --key bolt.key --out bolt.consent
penstock moderator agree --undo 7 --key bolt.key --out bolt.consent
"""
)
def agree(session: CommandSession, options: _Agree) -> CommandAnswer:
    """Sign your consent to what somebody else requests.

    Consent is needed for a proposal by which your rule requires less, for a request that needs several people, and to
    undo a step because of which your rule requires more now. The command shows the result, and you agree to this result
    only: the consent does not count if the result would be different by then.
    """
    asked = [
        options.request_file is not None,
        options.undo is not None,
        options.rule is not None or options.strategy is not None,
    ]
    if sum(asked) != 1 or (options.rule is None) is not (options.strategy is None):
        raise MalformedError(
            "cli.usage", "a consent is for one thing", hint="give RULE and --by, --request FILE, or --undo STEP"
        )
    destination = options.destination
    destination.check()
    act = begin_acting(session, options.book, options.key.open(), _nowhere(dry_run=True))
    plan = _planned(act, options)
    consent = Consent(
        act.book.id,
        act.asker(),
        subject_of(plan.step),
        # The step for passed time is not written yet.
        act.book.base.next_number - (1 if act.passed is None else 2),
        (session.now + timedelta(days=options.days)).replace(microsecond=0),
    )
    value = sign_value(consent, act.key()).to_sexp()
    destination.put(value)
    data = {
        **plan_data(plan, act.source, written=False),
        "consent": transport(value).decode(),
        **destination.as_dict(),
    }
    if destination.out is None:
        return CommandAnswer(data, advanced(value).split("\n"))
    return CommandAnswer(data, chain(show_plan(plan, act.source, done=False), [destination.line()]))


def _nowhere(*, dry_run: bool) -> OutputFile:
    """Return the output of a change that is not signed for somebody else."""
    return OutputFile(out=None, overwrite=False, dry_run=dry_run)


def _planned(act: Acting, options: _Agree) -> Plan:
    """Plan the request that is agreed to."""
    if options.request_file is not None:
        asked = read_request(options.request_file).value
        return act.book.plan(asked.request, Note(asked.by, act.session.now, asked.why))
    if options.undo is not None:
        return act.book.plan(Undo(options.undo), act.note())
    return act.book.plan(resolving(act, options.rule or "", Strategy(options.strategy or "")), act.note())


@option_class
class _Take:
    file: str = argument()
    consents: tuple[str, ...] = option(
        "--consent", multiple=True, metavar="FILE", help="Read a consent of somebody else. Can be repeated."
    )
    dry_run: bool = option("--dry-run", is_flag=True, help="Show the result, and change nothing.")
    book: BookOptions
    output: str = output_option()


@command(example="penstock moderator take r7.request --consent bolt.consent")
def take(session: CommandSession, options: _Take) -> CommandAnswer:
    """Apply a request that somebody signed with --out."""
    asked = read_request(options.file)
    agreed = tuple(map(read_consent, options.consents))
    return begin_acting(session, options.book, None, _nowhere(dry_run=options.dry_run)).carry(asked, agreed)


def read_request(file: str) -> UnverifiedValue[ModeratorRequest]:
    """Read a signed request. Raises what `read_sexp` and `read_signed` raise."""
    value = read_sexp(file)
    with within(file):
        return read_signed(value, ModeratorRequest)
