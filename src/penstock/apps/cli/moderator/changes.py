"""Changes of a rule book: rules are stated, resolved and taken back, publishers leave, steps are undone."""

import click

from penstock.apps.cli.certs.grants import PeriodOptions
from penstock.apps.cli.moderator.execution import Acting, ActingOptions, nobody, rejection
from penstock.apps.cli.moderator.output import show_plan
from penstock.apps.cli.moderator.sources import EVENT, RULE, at_line, known_standing, load_rules
from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, wants_data
from penstock.apps.cli.shared.describe import counted
from penstock.apps.cli.shared.options import WHO
from penstock.apps.cli.shared.session import CommandSession
from penstock.apps.cli.shared.terminal import show
from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.moderator.base.base import RuleBase
from penstock.moderator.rules.notation import parse_function
from penstock.moderator.rules.rules import PublishRule, Rule, SubscribeRule
from penstock.moderator.rules.steps import (
    CLOCK,
    Add,
    Leave,
    Pass,
    Resolve,
    Return,
    RuleStatus,
    StateSubscriberRule,
    Strategy,
    Undo,
    WithdrawRule,
)
from penstock.moderator.settlement.proposals import find
from penstock.selector import ALWAYS, Selector, conjunction

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
        raise MalformedError("cli.usage", "nothing says what the rule is about", hint="give --event TYPE")
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
    """State the rules of a file that are of whoever asks; where nothing is signed and nobody is named, all of them."""
    if act.who is None and not act.book.founding.unsafe_unsigned:
        raise nobody()
    rules = load_rules(file, act.source.cast.names)
    stated = [request for request in rules.stated if act.who in (None, request.rule.stated_by)]
    if not stated:
        raise MalformedError(
            "moderator.no-rules",
            f"`{file}` has no rules that {act.source.cast.show(act.asker())} states",
            hint="`by` names who states a rule, and `principals` who that is",
        )
    left = [request for request in stated if not (missing and _is_there(act.book.base, request.rule))]
    plans, told = [], []
    try:
        for plan in act.several(left, whole=not missing):
            plans.append(plan)
            # The result is shown before the next one changes the rules.
            if wants_data():
                told.append(act.data(plan))
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
    return CommandAnswer({"steps": told, "there": len(stated) - len(left)}, shown, rejected)


def _is_there(base: RuleBase, rule: Rule) -> bool:
    """Say whether a book has a rule as it is stated, and nobody has taken it back."""
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
    """Return the request for a proposal, with all who have to agree."""
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
