"""`penstock moderator check`: every conflict there is, with whom it makes a difference to."""

from collections.abc import Iterable, Sequence
from typing import Any

import click

from penstock.apps.cli import paint
from penstock.apps.cli.describe import counted
from penstock.apps.cli.groups import example
from penstock.apps.cli.moderator_answers import conflicts_data, show_rule_conflicts
from penstock.apps.cli.moderator_sources import Cast, Source, asking_option, book_options, load_rules, opened_now
from penstock.apps.cli.names import load_names
from penstock.apps.cli.options import JSON, output_option
from penstock.apps.cli.pub_progress import showing
from penstock.apps.cli.session import Session, say_json
from penstock.errors import MalformedError, RefusedError
from penstock.moderator.base import RuleBase
from penstock.moderator.checking import Checked, check_rules
from penstock.moderator.deltas import Status
from penstock.moderator.rules import PublishRule

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
def check(session: Session, /, *, file: str | None, output: str, **where: Any) -> None:
    """Name every conflict; the status is 1 if there is one.

    Each is told with the rules, where they stand to each other, the attributes at fault, and somebody for whom it makes
    a difference. FILE is a rule base in YAML, or a bundle of signed rules. Without it: the rules of the rule book that
    were rejected, and what they collide with now. Rules in force there never collide.
    """
    if file is not None:
        _check_file(file, where["names_file"], output)
        return
    with opened_now(**where, now=session.now) as source:
        found = [Checked(rule, source.base.detector.conflicts(rule)) for rule in _rejected(source.base)]
        over = (Status.WITHDRAWN, Status.ENDED)
        there = sum(1 for each in source.base.standings.values() if each.status not in over)
        _answer_check(source, there, found, output)


def _check_file(file: str, names_file: str | None, output: str) -> None:
    names = load_names(names_file)
    rules = load_rules(file, names)
    base = RuleBase(rules.vocabulary, rules.mode)
    source = Source(
        file, base, rules.customs, Cast(names, rules.names), {}, lines=rules.lines, option=f" --file {file}"
    )
    found: list[Checked] = []
    done = [0]
    with showing(lambda: f"checked: {done[0]:,} of {len(rules.rules):,} rules"):
        for checked in check_rules(rules.vocabulary, rules.mode, rules.rules):
            done[0] += 1
            if checked.conflicts or checked.problem is not None:
                found.append(checked)
    _answer_check(source, len(rules.rules), found, output)


def _rejected(base: RuleBase) -> Iterable[PublishRule]:
    return (each.stated for _, each in sorted(base.standings.items()) if each.status is Status.REJECTED)


def _answer_check(source: Source, rules: int, found: Sequence[Checked], output: str) -> None:
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


def _problem(checked: Checked, source: Source) -> dict[str, object]:
    problem: dict[str, object] = {} if checked.problem is None else checked.problem.as_dict()
    return {"rule": checked.rule.id, "line": source.lines.get(checked.rule.id), **problem}
