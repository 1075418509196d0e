"""Questions to the moderator about the rules of a file or of a rule book. None of them changes anything."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

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
    BookOptions,
    Cast,
    RuleSource,
    RuleSourceOptions,
    from_book,
    known_standing,
    load_rules,
    no_effect_option,
)
from penstock.apps.cli.shared.commands import (
    CommandAnswer,
    argument,
    command,
    option,
    option_class,
    output_option,
    until_answered,
)
from penstock.apps.cli.shared.describe import counted, instant_text, validity_text
from penstock.apps.cli.shared.names import NameBook
from penstock.apps.cli.shared.options import WHO, AtOption
from penstock.apps.cli.shared.session import CommandSession
from penstock.apps.cli.shared.terminal import Shown, diff_lines, fact_table, showing
from penstock.authority.rulebook import RuleBook
from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.model.instants import parse_instant
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.moderator.base.base import RuleBase
from penstock.moderator.descriptions import request_sentence, rule_sentence, standing_sentence
from penstock.moderator.detection.detector import CheckedRule, check_rules, find_conflicts
from penstock.moderator.detection.subscribers import Allowance, PublishRules, Subscriptions
from penstock.moderator.rules.rules import PublishRule
from penstock.moderator.rules.steps import RuleState, RuleStatus, Step
from penstock.moderator.settlement.proposals import Revision, propose
from penstock.moderator.settlement.undo import dependents, undone
from penstock.trust.validity import ALWAYS

# ----------------------------------------------------------------------------------------------------------------------
# `penstock moderator allow`: who receives what from which publisher, and why others do not.


@option_class
class _Allow:
    event: str = argument(**EVENT)
    publisher: str | None = option("--publisher", **WHO, help="Ask about this publisher only (default: all).")
    subscriber: str | None = option("--subscriber", **WHO, help="Ask about this subscriber only (default: all).")
    at: AtOption
    source: RuleSourceOptions
    output: str = output_option()


@command(example="penstock moderator allow Line.Press --subscriber ada --file rules.yaml")
def allow(session: CommandSession, options: _Allow) -> CommandAnswer:
    """Show who receives EVENT from which publisher, and why others do not.

    The exit status is 1 if nobody does.

    The command checks what the publisher requires of subscribers, what the subscriber requires of publishers, and what
    the rules require of the publisher itself. With --publisher and --subscriber it checks one pair; otherwise everybody
    who has a rule or has subscribed.
    """
    source = until_answered(options.source.opened(options.at.moment(session)))
    vocabulary = source.base.detector.vocabulary
    known = Subscriptions(vocabulary, source.base.rules, source.profiles, mode=source.base.mode)
    words = (options.publisher, options.subscriber)
    of, who = (None if word is None else source.cast.principal(word) for word in words)
    published = (rule for rule in source.base.rules if isinstance(rule, PublishRule))
    profiles = {**source.profiles, **source.publishers}
    publications = PublishRules(vocabulary, published, profiles, mode=source.base.mode)
    pairs = [publications.restrict(pair) for pair in _pairs(known, source, source.event(options.event), of, who)]
    return _pairs_answer(pairs, source.cast, options.event)


def _pairs(
    known: Subscriptions, source: RuleSource, event: TypeKey, publisher: Principal | None, subscriber: Principal | None
) -> list[Allowance]:
    if subscriber is None:
        return [pair for pair in known.pairs(event) if publisher in (None, pair.publisher)]
    if publisher is not None:
        return [known.allow(event, publisher, subscriber)]
    # A principal that has not subscribed yet can ask what it would receive.
    publishers = {each for rule in source.base.detector.rules.values() for each in rule.publishers}
    found = (known.allow(event, each, subscriber) for each in sorted(publishers))
    return [pair for pair in found if pair.published]


def _pairs_answer(pairs: Sequence[Allowance], cast: Cast, event: str) -> CommandAnswer:
    data = {
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

    def shown() -> Iterator[str]:
        for pair in pairs:
            mark, verb = ("✓", "receives") if pair.allowed else ("✗", "does not receive")
            yield f"{mark} {cast.show(pair.subscriber)} {verb} {event} from {cast.show(pair.publisher)}"
            yield from (f"    {cast.speak(reason)}" for reason in pair.reasons)

    said = f"nobody receives `{event}`" if pairs else f"nobody publishes `{event}`, or nobody has subscribed to it"
    refused = RefusedError("moderator.not-allowed", said, hint="`penstock moderator show` lists the rules")
    return CommandAnswer(data, shown(), None if any(pair.allowed for pair in pairs) else refused)


# ----------------------------------------------------------------------------------------------------------------------
# `penstock moderator check`: every conflict, with a witness.


#: show people at most this many rules that conflict
_MANY = 100


@option_class
class _Check:
    file: str | None = argument(required=False)
    book: BookOptions
    dry_run: bool = no_effect_option()
    output: str = output_option()


@command(
    example="""
penstock moderator check rules.yaml
penstock moderator check --store sqlite:rules.db -o json
"""
)
def check(session: CommandSession, options: _Check) -> CommandAnswer:
    """List every conflict. The exit status is 1 if there is one.

    Each conflict is shown with its rules, how their event types are related, the attributes that cause it, and somebody
    affected. FILE is a rule base in YAML, or a bundle of signed rules. Without FILE, the command lists the rejected
    rules of the rule book and what they conflict with now. Rules in force never conflict.
    """
    if options.file is not None:
        return _check_file(options.file, options.book.names.load())
    source = until_answered(options.book.opened_at(session.now))
    found = [CheckedRule(rule, source.base.detector.conflicts(rule)) for rule in _rejected(source.base)]
    over = (RuleStatus.WITHDRAWN, RuleStatus.ENDED)
    there = sum(1 for each in source.base.standings.values() if each.status not in over)
    return _check_answer(source, there, found)


def _check_file(file: str, names: NameBook) -> CommandAnswer:
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
    return _check_answer(source, len(rules.rules), found)


def _rejected(base: RuleBase) -> Iterable[PublishRule]:
    return (each.stated for _, each in sorted(base.standings.items()) if each.status is RuleStatus.REJECTED)


def _check_answer(source: RuleSource, rules: int, found: Sequence[CheckedRule]) -> CommandAnswer:
    wrong = [each for each in found if each.problem is not None]
    conflicting = [each for each in found if each.conflicts]

    def data() -> dict[str, object]:
        return {
            "ok": not found,
            "where": source.where,
            "rules": rules,
            "conflicts": [conflicts_data(each.rule, each.conflicts, source) for each in conflicting],
            "problems": [_problem(each, source) for each in wrong],
        }

    def shown() -> Iterator[Shown]:
        for each in wrong[:_MANY]:
            line = f" (line {source.lines[each.rule.id]})" if source.lines.get(each.rule.id) else ""
            yield f"✗ {each.rule.id}{line}: {each.problem}"
            if each.problem is not None and each.problem.hint:
                yield f"  {each.problem.hint}"
        for each in conflicting[:_MANY]:
            yield from show_rule_conflicts(each.rule, each.conflicts, source)
        if len(conflicting) > _MANY:
            yield f"and {len(conflicting) - _MANY:,} more rules conflict; -o json has them all"
        if not found:
            yield f"✓ {counted(rules, 'rule')}, no conflict"

    error: PenstockError | None = None
    if wrong:
        error = MalformedError(
            "moderator.wrong-rules",
            f"{counted(len(wrong), 'rule')} of {rules:,} cannot be compared",
            hint="correct the problems that are shown above",
        )
    elif conflicting:
        number = sum(len(each.conflicts) for each in conflicting)
        error = RefusedError(
            "moderator.conflict",
            f"{counted(number, 'conflict')} among {counted(rules, 'rule')}",
            hint=f"`penstock moderator propose {conflicting[0].rule.id}{source.option}` shows proposals",
        )
    return CommandAnswer(data, shown(), error)


def _problem(checked: CheckedRule, source: RuleSource) -> dict[str, object]:
    problem: dict[str, object] = {} if checked.problem is None else checked.problem.as_dict()
    return {"rule": checked.rule.id, "line": source.lines.get(checked.rule.id), **problem}


# ----------------------------------------------------------------------------------------------------------------------
# The other questions.


@option_class
class _Show:
    rule: str | None = argument(required=False, **RULE)
    source: RuleSourceOptions
    output: str = output_option()


@command(example="penstock moderator show --store sqlite:rules.db")
def show(session: CommandSession, options: _Show) -> CommandAnswer:
    """Show the tree and the status of all rules, or of RULE only."""
    source = until_answered(options.source.opened(session.now))
    if options.rule is None:
        return CommandAnswer(lambda: state_data(source), show_state(source))
    standing = known_standing(source.base, options.rule)
    stated, now = standing.stated, standing.form or standing.stated
    form = None if standing.form is None else rule_data(standing.form, source.cast)
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
    data = {"status": str(standing.status), "stated": rule_data(stated, source.cast), "form": form}
    return CommandAnswer(data, [fact_table(facts)])


@option_class
class _Propose:
    rule: str = argument(**RULE)
    source: RuleSourceOptions
    dry_run: bool = no_effect_option()
    output: str = output_option()


@command(name="propose", example="penstock moderator propose r2 --file rules.yaml")
def propose_(session: CommandSession, options: _Propose) -> CommandAnswer:
    """Show proposals for RULE, which conflicts with others, as diffs.

    Those that change least come first. If profiles of subscribers are known, each proposal says how many of them would
    gain and lose events. It always says who must agree because its rule would require less. Nothing is applied: choose
    one with `penstock moderator resolve`.
    """
    rule, source = options.rule, until_answered(options.source.opened(session.now))
    standing = known_standing(source.base, rule)
    candidate = standing.stated
    if standing.status is not RuleStatus.REJECTED:
        raise RefusedError(
            "moderator.not-rejected",
            f"rule `{rule}` is {standing.status}, so there is nothing to resolve",
            hint=f"`penstock moderator explain {rule}{source.option}` shows its state",
        )
    conflicts = source.base.detector.conflicts(candidate)
    found = propose(source.base, candidate, source.customs.subscribers)

    def data() -> dict[str, object]:
        proposals = [proposal_data(each, source.cast) for each in found]
        return {**conflicts_data(candidate, conflicts, source), "proposals": proposals}

    def shown() -> Iterator[Shown]:
        if not conflicts:
            yield f"{rule} has no conflict any more; state it again"
            return
        yield from show_proposals(candidate.id, found, source)
        if found and not source.option:
            yield f"`penstock moderator resolve {rule} --by {found[0].strategy}` applies the first of them."

    unresolved = RefusedError(
        "moderator.unresolved",
        f"no proposal lets rule `{rule}` come into force",
        hint="withdraw it, or state another one",
    )
    return CommandAnswer(data, shown(), None if found else unresolved)


@option_class
class _Explain:
    rule: str | None = argument(required=False, **RULE)
    other: str | None = option("--with", metavar="RULE", **RULE, help="Explain how RULE relates to this rule.")
    number: int | None = option(
        "--step", type=click.IntRange(min=1), metavar="N", help="Explain a step of the log instead."
    )
    source: RuleSourceOptions
    dry_run: bool = no_effect_option()
    output: str = output_option()


@command(
    example="""
penstock moderator explain r2 --file rules.yaml
penstock moderator explain r2 --with r1
penstock moderator explain --step 4 --store sqlite:rules.db
"""
)
def explain(session: CommandSession, options: _Explain) -> CommandAnswer:
    """Explain the status of RULE, or a step, in sentences."""
    if (options.rule is None) is (options.number is None) or (options.other is not None and options.rule is None):
        raise MalformedError("cli.usage", "explain one rule, or one step", hint="give RULE, or --step N")
    source = until_answered(options.source.opened(session.now))
    if options.number is not None:
        return _explain_step(options.number, source)
    standing = known_standing(source.base, options.rule or "")
    if options.other is None:
        return _explain_rule(standing, source)
    return _explain_pair(source, standing.stated, known_standing(source.base, options.other).stated)


def _explain_rule(standing: RuleState, source: RuleSource) -> CommandAnswer:
    stated, base, show = standing.stated, source.base, source.cast.show
    conflicting = base.detector.conflicts(stated) if standing.status is RuleStatus.REJECTED else ()
    touched = [step for step in base.steps if stated.id in step.delta.rules]

    def data() -> dict[str, object]:
        return {
            "rule": stated.id,
            "status": str(standing.status),
            "sentences": [rule_sentence(stated, show), standing_sentence(standing)],
            "stated": rule_data(stated, source.cast),
            "form": None if standing.form is None else rule_data(standing.form, source.cast),
            "conflicts": conflicts_data(stated, conflicting, source)["conflicts"],
            "steps": [step_data(step, source.cast) for step in touched],
        }

    def shown() -> Iterator[Shown]:
        yield rule_sentence(stated, show)
        if stated.validity != ALWAYS:
            yield f"It is valid {validity_text(stated.validity)}."
        yield standing_sentence(standing)
        if standing.form is not None and standing.form != stated:
            yield from diff_lines(f"  {line}" for line in Revision(stated, standing.form).diff())
        if conflicting:
            yield from show_conflicts(stated, conflicting, source)
            yield f"`penstock moderator propose {stated.id}{source.option}` shows proposals."
        elif standing.status is RuleStatus.REJECTED:
            yield "It has no conflict any more, and can be stated again."
        for step in touched:
            yield f"step {step.number}, {instant_text(step.note.when)}: {_asked(step, source)}"

    return CommandAnswer(data, shown())


def _explain_pair(source: RuleSource, one: PublishRule, two: PublishRule) -> CommandAnswer:
    found = find_conflicts(one, [two], source.base.detector.vocabulary, source.base.mode)

    def shown() -> Iterator[Shown]:
        yield rule_sentence(one, source.cast.show)
        yield rule_sentence(two, source.cast.show)
        if found:
            yield from show_conflicts(one, found, source)
        elif source.base.tree.related(one.event, two.event):
            yield "They do not conflict."
        else:
            yield "They have nothing to do with each other: neither event type is above the other."

    return CommandAnswer({**conflicts_data(one, found, source), "with": two.id}, shown())


def _explain_step(number: int, source: RuleSource) -> CommandAnswer:
    base = source.base
    step = next((each for each in base.steps if each.number == number), None)
    if step is None:
        raise MalformedError(
            "moderator.unknown-step", f"there is no step {number}", hint="`penstock moderator log` lists all steps"
        )
    by = undone(base).get(number)
    later = [] if by is not None else [each.number for each in dependents(base, step)]
    undone_by = None if by is None else by.number

    def shown() -> Iterator[Shown]:
        why = f", because: {step.note.why}" if step.note.why else ""
        yield f"Step {step.number}, {instant_text(step.note.when)}: {_asked(step, source)}{why}."
        yield from show_changes(step, source.cast)
        if undone_by is not None:
            yield f"It was undone by step {undone_by}."
        elif later:
            numbers = ", ".join(map(str, later))
            yield f"Later steps depend on it: {numbers}. To undo it, undo these first, or replay them."
        else:
            yield "No later step depends on it: it can be undone."

    return CommandAnswer({**step_data(step, source.cast), "undone_by": undone_by, "depending": later}, shown())


def _asked(step: Step, source: RuleSource) -> str:
    return f"{source.cast.show(step.note.who)} asked to {request_sentence(step.request, source.cast.show)}"


@option_class
class _At:
    time: str = argument()
    book: BookOptions
    output: str = output_option()


@command(example="penstock moderator at 2026-05-01T12:00Z --store sqlite:rules.db")
def at(options: _At) -> CommandAnswer:
    """Show the rule book as it was at TIME.

    A date alone is 00:00 UTC of that day.
    """
    instant = parse_instant(options.time)
    source, book = until_answered(options.book.opened())
    then = from_book(book, source.where, source.cast.names, _base_at(book, instant))
    return CommandAnswer(lambda: {"at": options.time, **state_data(then)}, show_state(then))


def _base_at(book: RuleBook, instant: datetime) -> RuleBase:
    try:
        return book.at(instant)
    except RefusedError as error:
        if error.code == "moderator.no-book":
            began = instant_text(book.founding.time)
            error.message = f"the rule book was begun {began}, after {instant_text(instant)}"
            error.hint = "ask about a later time"
        raise
