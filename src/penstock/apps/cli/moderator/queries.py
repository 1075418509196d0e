"""Questions to the moderator, about the rules of a file or of a rule book: nothing is changed by any of them."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import click

from penstock.apps.cli.moderator.output import (
    conflicts_data,
    proposal_data,
    rule_data,
    show_changes,
    show_conflicts,
    show_proposals,
    show_rule_conflicts,
    show_state,
    state_data,
    step_data,
)
from penstock.apps.cli.moderator.sources import (
    EVENT,
    RULE,
    Cast,
    RuleSource,
    asking_option,
    book_options,
    from_book,
    known_standing,
    load_rules,
    opened,
    opened_book,
    opened_now,
    source_options,
)
from penstock.apps.cli.shared import terminal as paint
from penstock.apps.cli.shared.describe import counted, instant_text, validity_text
from penstock.apps.cli.shared.groups import example
from penstock.apps.cli.shared.names import load_names
from penstock.apps.cli.shared.options import JSON, WHO, at_option, moment, output_option
from penstock.apps.cli.shared.session import CommandSession, say_json
from penstock.apps.cli.shared.terminal import showing
from penstock.authority.rulebook import RuleBook
from penstock.errors import MalformedError, RefusedError
from penstock.model.instants import parse_instant
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.moderator.base.base import RuleBase
from penstock.moderator.descriptions import request_sentence, rule_sentence, standing_sentence
from penstock.moderator.detection.detector import CheckedRule, check_rules
from penstock.moderator.detection.naive import find_conflicts
from penstock.moderator.detection.subscribers import Allowance, PublishRules, Subscriptions
from penstock.moderator.rules.rules import PublishRule
from penstock.moderator.rules.steps import RuleState, RuleStatus, Step
from penstock.moderator.settlement.proposals import Revision, propose
from penstock.moderator.settlement.undo import dependents, undone
from penstock.trust.validity import ALWAYS

# ----------------------------------------------------------------------------------------------------------------------
# `penstock moderator allow`: who receives what from whom, and why others do not.


@click.command()
@click.argument("event", **EVENT)
@click.option("--publisher", **WHO, help="Ask about this publisher alone.")
@click.option("--subscriber", **WHO, help="Ask about this subscriber alone.")
@at_option
@source_options
@output_option()
@click.pass_obj
@example("penstock moderator allow Line.Press --subscriber ada --file rules.yaml")
def allow(  # noqa: PLR0913  # one argument an option
    session: CommandSession,
    /,
    *,
    event: str,
    publisher: str | None,
    subscriber: str | None,
    at: str | None,
    output: str,
    **where: Any,
) -> None:
    """Say who receives EVENT from whom, and why not.

    The status is 1 where nobody does.
    It looks at what the publisher demands of subscribers, at what the subscriber demands of publishers, and at what the
    rules demand of the publisher itself.
    With --publisher and --subscriber it is one pair; else all who have a rule, or have subscribed.
    """
    now = moment(at, session)
    with opened(**where, now=now) as source:
        vocabulary = source.base.detector.vocabulary
        known = Subscriptions(vocabulary, source.base.rules, source.profiles, mode=source.base.mode)
        of, who = (None if word is None else source.cast.principal(word) for word in (publisher, subscriber))
        published = (rule for rule in source.base.rules if isinstance(rule, PublishRule))
        profiles = {**source.profiles, **source.publishers}
        publications = PublishRules(vocabulary, published, profiles, mode=source.base.mode)
        pairs = [publications.restrict(pair) for pair in _pairs(known, source, source.event(event), of, who)]
        _answer_pairs(pairs, source, event, output)


def _pairs(
    known: Subscriptions, source: RuleSource, event: TypeKey, publisher: Principal | None, subscriber: Principal | None
) -> list[Allowance]:
    if subscriber is None:
        return [pair for pair in known.pairs(event) if publisher in (None, pair.publisher)]
    if publisher is not None:
        return [known.allow(event, publisher, subscriber)]
    # Who has not subscribed yet may ask what it would get.
    publishers = {each for rule in source.base.detector.rules.values() for each in rule.publishers}
    found = (known.allow(event, each, subscriber) for each in sorted(publishers))
    return [pair for pair in found if pair.published]


def _answer_pairs(pairs: Sequence[Allowance], source: RuleSource, event: str, output: str) -> None:
    cast = source.cast
    allowed = [pair for pair in pairs if pair.allowed]
    if output == JSON:
        say_json(
            {
                "event": event,
                "pairs": [
                    {
                        "publisher": cast.show(pair.publisher),
                        "subscriber": cast.show(pair.subscriber),
                        "allowed": pair.allowed,
                        "reasons": [cast.speak(reason) for reason in pair.reasons],
                    }
                    for pair in pairs
                ],
            }
        )
    else:
        for pair in pairs:
            mark = "✓" if pair.allowed else "✗"
            verb = "receives" if pair.allowed else "does not receive"
            paint.line(f"{mark} {cast.show(pair.subscriber)} {verb} {event} from {cast.show(pair.publisher)}")
            for reason in pair.reasons:
                paint.line(f"    {cast.speak(reason)}")
    if not allowed:
        said = f"nobody receives `{event}`" if pairs else f"nobody publishes `{event}`, or nobody has subscribed to it"
        raise RefusedError("moderator.not-allowed", said, hint="`penstock moderator show` has the rules")


# ----------------------------------------------------------------------------------------------------------------------
# `penstock moderator check`: every conflict there is, with whom it makes a difference to.


#: as many rules that collide are told to people
_MANY = 100


@click.command()
@click.argument("file", required=False)
@book_options
@asking_option
@output_option()
@click.pass_obj
@example(
    """
penstock moderator check rules.yaml
penstock moderator check --store sqlite:rules.db -o json
"""
)
def check(session: CommandSession, /, *, file: str | None, output: str, **where: Any) -> None:
    """Name every conflict; the status is 1 if there is one.

    Each is told with the rules, where they stand to each other, the attributes at fault, and somebody for whom it makes
    a difference. FILE is a rule base in YAML, or a bundle of signed rules. Without it: the rules of the rule book that
    were rejected, and what they collide with now. Rules in force there never collide.
    """
    if file is not None:
        _check_file(file, where["names_file"], output)
        return
    with opened_now(**where, now=session.now) as source:
        found = [CheckedRule(rule, source.base.detector.conflicts(rule)) for rule in _rejected(source.base)]
        over = (RuleStatus.WITHDRAWN, RuleStatus.ENDED)
        there = sum(1 for each in source.base.standings.values() if each.status not in over)
        _answer_check(source, there, found, output)


def _check_file(file: str, names_file: str | None, output: str) -> None:
    names = load_names(names_file)
    rules = load_rules(file, names)
    base = RuleBase(rules.vocabulary, rules.mode)
    source = RuleSource(
        file, base, rules.customs, Cast(names, rules.names), {}, lines=rules.lines, option=f" --file {file}"
    )
    found: list[CheckedRule] = []
    done = [0]
    with showing(lambda: f"checked: {done[0]:,} of {len(rules.rules):,} rules"):
        for checked in check_rules(rules.vocabulary, rules.mode, rules.rules):
            done[0] += 1
            if checked.conflicts or checked.problem is not None:
                found.append(checked)
    _answer_check(source, len(rules.rules), found, output)


def _rejected(base: RuleBase) -> Iterable[PublishRule]:
    return (each.stated for _, each in sorted(base.standings.items()) if each.status is RuleStatus.REJECTED)


def _answer_check(source: RuleSource, rules: int, found: Sequence[CheckedRule], output: str) -> None:
    wrong = [each for each in found if each.problem is not None]
    colliding = [each for each in found if each.conflicts]
    number = sum(len(each.conflicts) for each in colliding)
    if output == JSON:
        say_json(
            {
                "ok": not found,
                "where": source.where,
                "rules": rules,
                "conflicts": [conflicts_data(each.rule, each.conflicts, source) for each in colliding],
                "problems": [_problem(each, source) for each in wrong],
            }
        )
    else:
        for each in wrong[:_MANY]:
            line = f" (line {source.lines[each.rule.id]})" if source.lines.get(each.rule.id) else ""
            paint.line(f"✗ {each.rule.id}{line}: {each.problem}")
            if each.problem is not None and each.problem.hint:
                paint.line(f"  {each.problem.hint}")
        for each in colliding[:_MANY]:
            show_rule_conflicts(each.rule, each.conflicts, source)
        if len(colliding) > _MANY:
            paint.line(f"and {len(colliding) - _MANY:,} more rules collide; -o json has them all")
        if not found:
            paint.line(f"✓ {counted(rules, 'rule')}, no conflict")
    if wrong:
        raise MalformedError(
            "moderator.wrong-rules",
            f"{counted(len(wrong), 'rule')} of {rules:,} cannot be compared",
            hint="correct what is said above",
        )
    if colliding:
        raise RefusedError(
            "moderator.conflict",
            f"{counted(number, 'conflict')} among {counted(rules, 'rule')}",
            hint=f"`penstock moderator propose {colliding[0].rule.id}{source.option}` shows ways out",
        )


def _problem(checked: CheckedRule, source: RuleSource) -> dict[str, object]:
    problem: dict[str, object] = {} if checked.problem is None else checked.problem.as_dict()
    return {"rule": checked.rule.id, "line": source.lines.get(checked.rule.id), **problem}


# ----------------------------------------------------------------------------------------------------------------------
# Questions to the moderator, about the rules of a file or of a rule book: nothing is changed by any of them.


@click.command()
@click.argument("rule", required=False, **RULE)
@source_options
@output_option()
@click.pass_obj
@example("penstock moderator show --store sqlite:rules.db")
def show(session: CommandSession, /, *, rule: str | None, output: str, **where: Any) -> None:
    """Show the tree, and how rules stand; or RULE alone."""
    with opened(**where, now=session.now) as source:
        if rule is not None:
            _show_rule(known_standing(source.base, rule), source, output)
        elif output == JSON:
            say_json(state_data(source))
        else:
            show_state(source)


def _show_rule(standing: RuleState, source: RuleSource, output: str) -> None:
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
def propose_(session: CommandSession, /, *, rule: str, output: str, **where: Any) -> None:
    """Show ways out for RULE, which collides, as diffs.

    Those that change least come first. Where profiles of subscribers are known, each says how many of them would gain
    and lose events, and always who would have to agree that its rule demands less. Nothing is applied: choose one with
    `penstock moderator resolve`.
    """
    with opened(**where, now=session.now) as source:
        standing = known_standing(source.base, rule)
        candidate = standing.stated
        if standing.status is not RuleStatus.REJECTED:
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
    session: CommandSession, /, *, rule: str | None, other: str | None, number: int | None, output: str, **where: Any
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


def _explain_rule(standing: RuleState, source: RuleSource, output: str) -> None:
    stated, base, show = standing.stated, source.base, source.cast.show
    colliding = base.detector.conflicts(stated) if standing.status is RuleStatus.REJECTED else ()
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
    elif standing.status is RuleStatus.REJECTED:
        paint.line("It collides with nothing any more, and can be stated again.")
    for step in touched:
        paint.line(f"step {step.number}, {instant_text(step.note.when)}: {_asked(step, source)}")


def _explain_pair(source: RuleSource, rule: str, other: str, output: str) -> None:
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


def _explain_step(number: int, source: RuleSource, output: str) -> None:
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


def _asked(step: Step, source: RuleSource) -> str:
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
