"""`penstock policy analyse` and `penstock policy diff`: what policies say about all requests at once."""

from collections.abc import Mapping
from functools import partial

import click

from penstock.apps.cli import options
from penstock.apps.cli.groups import example
from penstock.apps.cli.options import JSON
from penstock.apps.cli.policy_files import lenient_option, read_root
from penstock.apps.cli.session import say, say_json
from penstock.errors import RefusedError
from penstock.policy.analysis import Analysis, Answer, Change, Conflict, IdleRule
from penstock.policy.repository import Repository, check_policies
from penstock.policy.requests import Facts
from penstock.selector.analysis import Verdict

refer_option = click.option("--refer", "referred", multiple=True, metavar="FILE", help="A policy that is referred to.")


@click.command()
@click.argument("file", metavar="FILE")
@refer_option
@click.option("--targets-only", is_flag=True, help="Ignore the conditions of rules that overlap.")
@lenient_option
@options.output_option()
@example(
    """
penstock policy analyse records.xml
penstock policy analyse root.xml --refer records.xml --targets-only -o json
"""
)
def analyse(*, file: str, referred: tuple[str, ...], targets_only: bool, lenient: bool, output: str) -> None:
    """Find rules that do nothing, and rules that permit and deny the same, in the policy in FILE.

    Each overlap is shown with a request. Attributes have at most one value each; a policy that uses more than
    comparisons and logic is not understood, and what is not is named.
    """
    asked = _analysis(referred, file, lenient=lenient)
    idle, conflicts = asked.idle_rules(), asked.conflicts(conditions=not targets_only)
    if output == JSON:
        say_json({"idle": [_idle_data(one) for one in idle], "conflicts": [_conflict_data(one) for one in conflicts]})
        return
    for rule in idle:
        say(f"{_mark(rule.verdict)} {rule.rule}: {_idle_text(rule)}")
    for one in conflicts:
        say(f"{_mark(one.found.verdict)} {one.permit} permits what {one.deny} denies")
        _show(one.found.witness)
    if not idle and not conflicts:
        say("✓ each rule does something, and none permits what another denies")


@click.command()
@click.argument("before", metavar="BEFORE")
@click.argument("after", metavar="AFTER")
@refer_option
@lenient_option
@options.output_option()
@example("penstock policy diff records-1.xml records-2.xml")
def diff(*, before: str, after: str, referred: tuple[str, ...], lenient: bool, output: str) -> None:
    """Say which decisions change from the policy in one file to that in another, each with a request.

    The status is 0 where every request is decided alike, and 1 otherwise, or where that is not known.
    """
    asked = _analysis(referred, before, after, lenient=lenient)
    changes = asked.changes()
    if output == JSON:
        say_json({"changes": [_change_data(one) for one in changes]})
    else:
        for one in changes:
            say(f"{_mark(one.found.verdict)} {one.before} becomes {one.after}")
            _show(one.found.witness)
    if any(one.found.verdict is Verdict.YES for one in changes):
        raise RefusedError("xacml.differ", "the policies decide differently")
    if changes:
        raise RefusedError("xacml.undecided", "it is not known whether the policies decide alike")
    if output != JSON:
        say("✓ the policies decide alike")


def _analysis(referred: tuple[str, ...], *files: str, lenient: bool) -> Analysis:
    read = partial(read_root, lenient=lenient)
    roots, others = [*map(read, files)], [*map(read, referred)]
    for root in roots:
        check_policies([root], others)
    return Analysis(*roots, sources=Repository(others))


def _mark(verdict: Verdict) -> str:
    return "!" if verdict is Verdict.YES else "?"


def _idle_text(rule: IdleRule) -> str:
    text = "it never applies" if rule.never else "every decision is the same without it"
    return text if rule.verdict is Verdict.YES else f"not known whether {text}"


def _show(witness: Facts | None) -> None:
    for key, values in (witness or {}).items():
        say(f"  {key.id} = {key.of.write(values[0])} ({key.of}, {key.category})")


def _idle_data(rule: IdleRule) -> Mapping[str, object]:
    why = "never-applies" if rule.never else "same-without"
    return {"rule": [*rule.rule.within, rule.rule.rule.id], "why": why, "verdict": rule.verdict.value}


def _conflict_data(one: Conflict) -> Mapping[str, object]:
    rules = {"permit": one.permit, "deny": one.deny}
    return {name: [*rule.within, rule.rule.id] for name, rule in rules.items()} | _found_data(one.found)


def _change_data(one: Change) -> Mapping[str, object]:
    return {"before": one.before, "after": one.after} | _found_data(one.found)


def _found_data(found: Answer) -> dict[str, object]:
    if found.witness is None:
        return {"verdict": found.verdict.value, "request": None}
    request = [
        {"category": key.category, "id": key.id, "type": key.of.id, "value": key.of.write(values[0])}
        for key, values in found.witness.items()
    ]
    return {"verdict": found.verdict.value, "request": request}
