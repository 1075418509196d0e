"""Questions to the moderator, about the rules of a file or of a rule book: nothing is changed by any of them."""

from datetime import datetime
from typing import Any

import click

from penstock.apps.cli import paint
from penstock.apps.cli.describe import instant_text, validity_text
from penstock.apps.cli.groups import example
from penstock.apps.cli.moderator_answers import (
    conflicts_data,
    proposal_data,
    rule_data,
    show_changes,
    show_conflicts,
    show_proposals,
    show_state,
    state_data,
    step_data,
)
from penstock.apps.cli.moderator_sources import (
    RULE,
    Source,
    asking_option,
    book_options,
    from_book,
    known_standing,
    opened,
    opened_book,
    source_options,
)
from penstock.apps.cli.options import JSON, output_option
from penstock.apps.cli.session import Session, say_json
from penstock.authority.rulebook import RuleBook
from penstock.errors import MalformedError, RefusedError
from penstock.model.instants import parse_instant
from penstock.moderator.base import RuleBase
from penstock.moderator.deltas import Standing, Status
from penstock.moderator.detect_naive import find_conflicts
from penstock.moderator.propose import Revision, propose
from penstock.moderator.sentences import request_sentence, rule_sentence, standing_sentence
from penstock.moderator.steps import Step
from penstock.moderator.undo import dependents, undone
from penstock.trust.validity import ALWAYS


@click.command()
@click.argument("rule", required=False, **RULE)
@source_options
@output_option()
@click.pass_obj
@example("penstock moderator show --store sqlite:rules.db")
def show(session: Session, /, *, rule: str | None, output: str, **where: Any) -> None:
    """Show the tree, and how rules stand; or RULE alone."""
    with opened(**where, now=session.now) as source:
        if rule is not None:
            _show_rule(known_standing(source.base, rule), source, output)
        elif output == JSON:
            say_json(state_data(source))
        else:
            show_state(source)


def _show_rule(standing: Standing, source: Source, output: str) -> None:
    stated = standing.stated
    if output == JSON:
        form = None if standing.form is None else rule_data(standing.form, source.cast)
        say_json({"status": str(standing.status), "stated": rule_data(stated, source.cast), "form": form})
        return
    now = standing.form or stated
    facts = [
        ("rule", stated.id),
        ("event", stated.event.name),
        ("stated by", source.cast.show(stated.stated_by)),
        ("publishers", ", ".join(map(source.cast.show, stated.publishers))),
        ("stands", str(standing.status)),
        ("subscribers", now.fnc_s.text),
        ("publishers", now.fnc_p.text),
        ("valid", validity_text(stated.validity)),
    ]
    paint.facts(facts)


@click.command("propose")
@click.argument("rule", **RULE)
@source_options
@asking_option
@output_option()
@click.pass_obj
@example("penstock moderator propose r2 --file rules.yaml")
def propose_(session: Session, /, *, rule: str, output: str, **where: Any) -> None:
    """Show ways out for RULE, which collides, as diffs.

    Those that change least come first. Where profiles of subscribers are known, each says how many of them would gain
    and lose events, and always who would have to agree that its rule demands less. Nothing is applied: choose one with
    `penstock moderator resolve`.
    """
    with opened(**where, now=session.now) as source:
        standing = known_standing(source.base, rule)
        candidate = standing.stated
        if standing.status is not Status.REJECTED:
            raise RefusedError(
                "moderator.not-rejected",
                f"rule `{rule}` is {standing.status}, and there is nothing to resolve",
                hint=f"`penstock moderator explain {rule}{source.option}` says how it stands",
            )
        conflicts = source.base.detector.conflicts(candidate)
        found = propose(source.base, candidate, source.customs.subscribers)
        if output == JSON:
            proposals = [proposal_data(each, source.cast) for each in found]
            say_json({**conflicts_data(candidate, conflicts, source), "proposals": proposals})
        elif not conflicts:
            paint.line(f"{rule} collides with nothing any more; state it again")
        else:
            show_proposals(candidate.id, found, source)
            if found and not source.option:
                paint.line(f"`penstock moderator resolve {rule} --by {found[0].strategy}` applies the first of them.")
        if not found:
            raise RefusedError(
                "moderator.unresolved",
                f"there is no way in which rule `{rule}` could come into force",
                hint="withdraw it, or state another one",
            )


@click.command()
@click.argument("rule", required=False, **RULE)
@click.option("--with", "other", metavar="RULE", **RULE, help="Explain what these two have to do with each other.")
@click.option("--step", "number", type=click.IntRange(min=1), metavar="N", help="Explain a step of the log instead.")
@source_options
@asking_option
@output_option()
@click.pass_obj
@example(
    """
penstock moderator explain r2 --file rules.yaml
penstock moderator explain r2 --with r1
penstock moderator explain --step 4 --store sqlite:rules.db
"""
)
def explain(  # one argument an option
    session: Session, /, *, rule: str | None, other: str | None, number: int | None, output: str, **where: Any
) -> None:
    """Say in sentences how RULE stands, or what a step was."""
    if (rule is None) is (number is None) or (other is not None and rule is None):
        raise MalformedError("cli.usage", "explain one rule, or one step", hint="give RULE, or --step N")
    with opened(**where, now=session.now) as source:
        if rule is not None and other is not None:
            _explain_pair(source, rule, other, output)
        elif rule is not None:
            _explain_rule(known_standing(source.base, rule), source, output)
        elif number is not None:
            _explain_step(number, source, output)


def _explain_rule(standing: Standing, source: Source, output: str) -> None:
    stated, base, show = standing.stated, source.base, source.cast.show
    colliding = base.detector.conflicts(stated) if standing.status is Status.REJECTED else ()
    touched = [step for step in base.steps if stated.id in step.delta.rules]
    told = conflicts_data(stated, colliding, source)
    if output == JSON:
        form = None if standing.form is None else rule_data(standing.form, source.cast)
        say_json(
            {
                "rule": stated.id,
                "status": str(standing.status),
                "sentences": [rule_sentence(stated, show), standing_sentence(standing)],
                "stated": rule_data(stated, source.cast),
                "form": form,
                "conflicts": told["conflicts"],
                "steps": [step_data(step, source.cast) for step in touched],
            }
        )
        return
    paint.line(rule_sentence(stated, show))
    if stated.validity != ALWAYS:
        paint.line(f"It is valid {validity_text(stated.validity)}.")
    paint.line(standing_sentence(standing))
    if standing.form is not None and standing.form != stated:
        paint.diff(f"  {line}" for line in Revision(stated, standing.form).diff())
    if colliding:
        show_conflicts(stated, colliding, source)
        paint.line(f"`penstock moderator propose {stated.id}{source.option}` shows ways out.")
    elif standing.status is Status.REJECTED:
        paint.line("It collides with nothing any more, and can be stated again.")
    for step in touched:
        paint.line(f"step {step.number}, {instant_text(step.note.when)}: {_asked(step, source)}")


def _explain_pair(source: Source, rule: str, other: str, output: str) -> None:
    one, two = known_standing(source.base, rule).stated, known_standing(source.base, other).stated
    found = find_conflicts(one, [two], source.base.detector.vocabulary, source.base.mode)
    if output == JSON:
        say_json({**conflicts_data(one, found, source), "with": other})
        return
    paint.line(rule_sentence(one, source.cast.show))
    paint.line(rule_sentence(two, source.cast.show))
    if found:
        show_conflicts(one, found, source)
    elif source.base.tree.related(one.event, two.event):
        paint.line("They do not collide.")
    else:
        paint.line("They have nothing to do with each other: neither event type is above the other.")


def _explain_step(number: int, source: Source, output: str) -> None:
    base = source.base
    step = next((each for each in base.steps if each.number == number), None)
    if step is None:
        raise MalformedError(
            "moderator.unknown-step", f"there is no step {number}", hint="`penstock moderator log` has all of them"
        )
    by = undone(base).get(number)
    later = [] if by is not None else [each.number for each in dependents(base, step)]
    if output == JSON:
        undone_by = None if by is None else by.number
        say_json({**step_data(step, source.cast), "undone_by": undone_by, "depending": later})
        return
    why = f", because: {step.note.why}" if step.note.why else ""
    paint.line(f"Step {step.number}, {instant_text(step.note.when)}: {_asked(step, source)}{why}.")
    show_changes(step, source.cast)
    if by is not None:
        paint.line(f"It was undone by step {by.number}.")
    elif later:
        numbers = ", ".join(map(str, later))
        paint.line(f"Later steps depend on it: {numbers}. To undo it, undo these first, or replay them.")
    else:
        paint.line("No later step depends on it: it can be undone.")


def _asked(step: Step, source: Source) -> str:
    return f"{source.cast.show(step.note.who)} asked to {request_sentence(step.request, source.cast.show)}"


@click.command()
@click.argument("time")
@book_options
@output_option()
@example("penstock moderator at 2026-05-01T12:00Z --store sqlite:rules.db")
def at(*, time: str, output: str, **where: Any) -> None:
    """Show the rule book as it was at TIME.

    A date alone is 00:00 UTC of that day.
    """
    instant = parse_instant(time)
    with opened_book(**where) as (source, book):
        then = from_book(book, source.where, source.cast.names, _base_at(book, instant))
        if output == JSON:
            say_json({"at": time, **state_data(then)})
        else:
            show_state(then)


def _base_at(book: RuleBook, instant: datetime) -> RuleBase:
    try:
        return book.at(instant)
    except RefusedError as error:
        if error.code == "moderator.no-book":
            began = instant_text(book.founding.time)
            error.message = f"the rule book was begun {began}, after {instant_text(instant)}"
            error.hint = "ask about a later time"
        raise
