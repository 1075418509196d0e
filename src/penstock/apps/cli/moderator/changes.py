"""Changes of a rule book: rules are stated, resolved and taken back, publishers leave, steps are undone."""

from typing import Any

import click

from penstock.apps.cli.certs.grants import LAST_SECOND, MIDNIGHT, PeriodOptions
from penstock.apps.cli.moderator.execution import Acting, acting, acting_options, nobody, refuse_rejected
from penstock.apps.cli.moderator.sources import EVENT, RULE, at_line, known_standing, load_rules
from penstock.apps.cli.shared import terminal as paint
from penstock.apps.cli.shared.describe import counted
from penstock.apps.cli.shared.groups import example
from penstock.apps.cli.shared.options import JSON, WHO, F
from penstock.apps.cli.shared.session import CommandSession, say_json
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


def period_options(function: F) -> F:
    """Add the options that say while a rule is valid."""
    for option in (
        click.option("--days", type=click.IntRange(min=1), metavar="N", help="How many days it is valid."),
        click.option("--not-after", metavar="TIME", help=f"The last moment at which it is valid; {LAST_SECOND}."),
        click.option("--not-before", metavar="TIME", help=f"The first moment at which it is valid; {MIDNIGHT}."),
    ):
        function = option(function)
    return function


@click.command()
@click.argument("rule", required=False)
@click.option("--from", "source", metavar="FILE", help="State the rules in a file that are yours, all or none.")
@click.option(
    "--continue", "missing", is_flag=True, help="With --from: leave out the rules that are in the book already."
)
@click.option("--event", metavar="TYPE", **EVENT, help="The event type that the rule is about.")
@click.option("--fnc-s", multiple=True, metavar="CONDITION", help="What subscribers must satisfy; repeat it.")
@click.option("--fnc-p", multiple=True, metavar="CONDITION", help="What publishers must satisfy; repeat it.")
@click.option("--publisher", "publishers", multiple=True, **WHO, help="Whom it is of (default: you); repeat it.")
@period_options
@acting_options
@click.pass_obj
@example(
    """
penstock moderator add r2 --event Line.Press --fnc-s "role = 'engineer'" --key acme.key --dry-run
penstock moderator add r3 --event Line.Press --fnc-s "{(role, engineer), (age, min, 18)}" --key acme.key
penstock moderator add --from rules.yaml --key acme.key
penstock moderator add --from rules.yaml --key acme.key --continue
"""
)
def add(  # noqa: PLR0913  # one argument an option
    session: CommandSession,
    /,
    *,
    rule: str | None,
    source: str | None,
    missing: bool,
    event: str | None,
    fnc_s: tuple[str, ...],
    fnc_p: tuple[str, ...],
    publishers: tuple[str, ...],
    not_before: str | None,
    not_after: str | None,
    days: int | None,
    **how: Any,
) -> None:
    """State RULE; the status is 1 if it collides.

    Then it is rejected, and kept in the log of what may come back.

    The rules of a file are stated as a whole: where one is refused, none is in the book. With --continue those are left
    out that it has already, and many are written in batches, so that a run that was stopped can be run again.

    --fnc-s says what subscribers must satisfy, --fnc-p what publishers must. A condition is one of the selector
    language, or an attribute list as {(role, engineer), (age, max, 65)}. What is not said is TRUE, which everybody
    satisfies.
    """
    if missing and source is None:
        raise MalformedError("cli.usage", "--continue is for the rules of a file", hint="give --from FILE")
    if (rule is None) is (source is None):
        raise MalformedError("cli.usage", "state one rule, or those of a file", hint="give RULE, or --from FILE")
    with acting(session, **how) as act:
        if source is not None:
            _add_file(act, source, missing=missing)
            return
        if rule is None or event is None:
            raise MalformedError("cli.usage", "nothing says what the rule is about", hint="give --event TYPE")
        stated_by = act.asker()
        stated = PublishRule(
            rule,
            act.source.event(event),
            tuple(map(act.source.cast.principal, publishers)) or (stated_by,),
            stated_by,
            _condition(fnc_p),
            _condition(fnc_s),
            PeriodOptions(not_before=not_before, not_after=not_after, days=days).validity(session.now),
        )
        refuse_rejected(act.source, act.do(Add(stated)), written=act.written)


def _condition(written: tuple[str, ...]) -> Selector:
    return conjunction(*map(parse_function, written)) if written else ALWAYS


def _add_file(act: Acting, file: str, *, missing: bool) -> None:
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
            if act.output == JSON:
                told.append(act.data(plan))
            else:
                act.answer(plan)
    except PenstockError as error:
        if error.code in ("moderator.duplicate-id", "store.limit") and not missing:
            error.hint = "nothing was stated; with --continue, what the book does not have is stated, in batches"
        with at_line(file, rules, str(error.fields.get("rule", ""))):
            raise
    if act.output == JSON:
        say_json({"steps": told, "there": len(stated) - len(left)})
    else:
        if len(left) < len(stated):
            paint.line(f"{counted(len(stated) - len(left), 'rule')} in the book already")
        if len(stated) < len(rules.stated):
            paint.line(f"{counted(len(rules.stated) - len(stated), 'rule')} of others in the file: left to them")
    refuse_rejected(act.source, *plans, written=act.written)


def _is_there(base: RuleBase, rule: Rule) -> bool:
    """Say whether a book has a rule as it is stated, and nobody has taken it back."""
    known = base.standings.get(rule.id) or base.wishes.get(rule.id)
    return known is not None and known.stated == rule and known.status not in (RuleStatus.WITHDRAWN, RuleStatus.ENDED)


@click.command()
@click.argument("rule")
@click.option("--event", required=True, metavar="TYPE", **EVENT, help="The event type that is wanted.")
@click.option("--fnc-p", multiple=True, metavar="CONDITION", help="What publishers must satisfy; repeat it.")
@click.option("--subscriber", **WHO, help="Whom it is for (default: you).")
@period_options
@acting_options
@click.pass_obj
@example("penstock moderator subscribe ada-press --event Line.Press --fnc-p \"country = 'de'\" --key ada.key")
def subscribe(  # noqa: PLR0913  # one argument an option
    session: CommandSession,
    /,
    *,
    rule: str,
    event: str,
    fnc_p: tuple[str, ...],
    subscriber: str | None,
    not_before: str | None,
    not_after: str | None,
    days: int | None,
    **how: Any,
) -> None:
    """State RULE of a subscriber: from whom it wants events."""
    with acting(session, **how) as act:
        stated_by = act.asker()
        whom = stated_by if subscriber is None else act.source.cast.principal(subscriber)
        validity = PeriodOptions(not_before=not_before, not_after=not_after, days=days).validity(session.now)
        wish = SubscribeRule(rule, act.source.event(event), whom, stated_by, _condition(fnc_p), validity)
        act.do(StateSubscriberRule(wish))


@click.command()
@click.argument("rule", **RULE)
@acting_options
@click.pass_obj
@example("penstock moderator remove r2 --key acme.key --why 'the press is gone'")
def remove(session: CommandSession, /, *, rule: str, **how: Any) -> None:
    """Take RULE back, which you have stated, or yourself out of it.

    Who has stated a rule takes all of it back; a publisher or subscriber for whom somebody else has stated it takes
    itself out of it, and the rule goes with the last of them. Whatever in the log fits then comes back.
    """
    with acting(session, **how) as act:
        if rule not in act.book.base.wishes:
            known_standing(act.book.base, rule)
        act.do(WithdrawRule(rule))


@click.command()
@click.argument("rule", **RULE)
@click.option("--by", "strategy", type=STRATEGIES, required=True, help="The way out that is chosen.")
@acting_options
@click.pass_obj
@example(
    """
penstock moderator resolve r2 --by add-attributes --key acme.key --dry-run
penstock moderator resolve r2 --by delete-attributes --key acme.key --consent bolt.consent
"""
)
def resolve(session: CommandSession, /, *, rule: str, strategy: str, **how: Any) -> None:
    """Choose a way out for RULE, which collides.

    All of it is applied, or nothing.
    Where rules would demand less than their publishers stated, each of these has to agree (`penstock moderator agree`).
    """
    with acting(session, **how) as act:
        act.do(resolving(act, rule, Strategy(strategy)))


def resolving(act: Acting, rule: str, strategy: Strategy) -> Resolve:
    """Return the request for a way out, with all who have to agree."""
    with act.book.rehearsal(act.session.now):
        candidate = known_standing(act.book.base, rule).stated
        found = find(act.book.base, candidate, strategy)
    return Resolve(rule, strategy, frozenset() if found is None else found.relaxed)


@click.command()
@click.argument("publisher", **WHO)
@acting_options
@click.pass_obj
@example("penstock moderator leave acme --key acme.key")
def leave(session: CommandSession, /, *, publisher: str, **how: Any) -> None:
    """Let PUBLISHER go away; its rules rest."""
    with acting(session, **how) as act:
        act.do(Leave(act.source.cast.principal(publisher)))


@click.command("return")
@click.argument("publisher", **WHO)
@acting_options
@click.pass_obj
@example("penstock moderator return acme --key acme.key")
def return_(session: CommandSession, /, *, publisher: str, **how: Any) -> None:
    """Let PUBLISHER come back, and its rules if they fit."""
    with acting(session, **how) as act:
        act.do(Return(act.source.cast.principal(publisher)))


@click.command("pass")
@acting_options
@click.pass_obj
@example("penstock moderator pass")
def pass_(session: CommandSession, /, **how: Any) -> None:
    """Let time pass: periods of rules end and begin.

    Anybody may do so, without a signature. Other changes do so too before anything is decided.
    With the moderator's key it sets the time of the rule book, where that is far from now because a clock was wrong.
    """
    with acting(session, passes=True, **how) as act:
        if act.is_due() or act.sets_time():
            act.do(Pass(), CLOCK if act.who is None else act.who)
        elif act.output == JSON:
            say_json({"written": False, "outcome": "nothing is due"})
        else:
            paint.line("no period has ended or begun")


@click.command()
@click.argument("step", type=click.IntRange(min=1))
@click.option("--replay", is_flag=True, help="Ask again for all that came later, as if the step had never been.")
@acting_options
@click.pass_obj
@example("penstock moderator undo 4 --key acme.key --dry-run")
def undo(session: CommandSession, /, *, step: int, replay: bool, **how: Any) -> None:
    """Take STEP back, and nothing else.

    Where later steps depend on it, that is refused, and they are named.
    """
    with acting(session, **how) as act:
        try:
            act.do(Undo(step, replay))
        except RefusedError as error:
            if isinstance(numbers := error.fields.get("steps"), tuple):
                error.hint = f"undo {', '.join(map(str, reversed(numbers)))} first, or say --replay"
            raise
