"""`penstock policy analyse` and `penstock policy diff`: what policies say about all requests at once."""

import json
from collections.abc import Mapping
from functools import partial
from typing import TypeAlias

import click

from penstock.apps.cli import options
from penstock.apps.cli.groups import example
from penstock.apps.cli.options import JSON
from penstock.apps.cli.policy_files import lenient_option, read_named
from penstock.apps.cli.session import say, say_json
from penstock.errors import RefusedError
from penstock.policy.analysis import Analysis, Answer, Change, Conflict, IdleRule
from penstock.policy.datatypes import STRING
from penstock.policy.json_written import write_request
from penstock.policy.repository import Repository, check_policies
from penstock.policy.requests import ENVIRONMENT, Attributes, Key, Request
from penstock.policy.text_names import CATEGORY_NAME
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

    Each overlap is shown with a request, which decides so whenever it is asked. What is looked at are requests with at
    most two values for each attribute, or with one if there are more than 40 rules. Functions other than comparisons
    and logic may give anything: what depends on them, and is not shown by a request, is marked with ? and says so.
    """
    asked, names = _analysis(referred, file, lenient=lenient)
    idle, conflicts = asked.idle_rules(), asked.conflicts(conditions=not targets_only)
    if output == JSON:
        say_json(
            {
                "idle": [_idle_data(one) for one in idle],
                "conflicts": [_conflict_data(one, names) for one in conflicts],
                "values": asked.values,
            }
        )
        return
    for rule in idle:
        say(f"{_mark(rule.verdict)} {rule.rule}: {_idle_text(rule)}")
        _show_unknown(rule.unknown)
    for one in conflicts:
        sure = one.found.verdict is Verdict.YES
        say(f"{_mark(one.found.verdict)} {_conflict_text(one) if sure else f'not known whether {_conflict_text(one)}'}")
        _show(one.found, names)
    if not idle and not conflicts:
        say("✓ each rule does something, and none permits what another denies")
    say(_looked_at(asked))


@click.command()
@click.argument("before", metavar="BEFORE")
@click.argument("after", metavar="AFTER")
@refer_option
@lenient_option
@options.output_option()
@example("penstock policy diff records-1.xml records-2.xml")
def diff(*, before: str, after: str, referred: tuple[str, ...], lenient: bool, output: str) -> None:
    """Say which decisions change from the policy in one file to that in another, each with a request.

    The status is 0 where every request is decided alike, and 1 otherwise, or where that is not known. Requests are
    looked at, and shown, as by `penstock policy analyse`.
    """
    asked, names = _analysis(referred, before, after, lenient=lenient)
    changes = asked.changes()
    if output == JSON:
        say_json({"changes": [_change_data(one, names) for one in changes], "values": asked.values})
    else:
        for one in changes:
            sure = one.found.verdict is Verdict.YES
            change = f"{one.before} becomes {one.after}"
            say(f"{_mark(one.found.verdict)} {change if sure else f'not known whether {change}'}")
            _show(one.found, names)
        say(_looked_at(asked))
    if any(one.found.verdict is Verdict.YES for one in changes):
        raise RefusedError("xacml.differ", "the policies decide differently")
    if changes:
        raise RefusedError("xacml.undecided", "it is not known whether the policies decide alike")
    if output != JSON:
        say("✓ the policies decide alike")


_Names: TypeAlias = Mapping[Key, str]
"""How the text of a policy calls attributes."""


def _analysis(referred: tuple[str, ...], *files: str, lenient: bool) -> tuple[Analysis, _Names]:
    read = partial(read_named, lenient=lenient)
    roots, others = [*map(read, files)], [*map(read, referred)]
    for root, _ in roots:
        check_policies([root], [one for one, _ in others])
    names = {one.key: name for _, known in (*others, *roots) for name, one in known.items() if one.issuer is None}
    return Analysis(*(root for root, _ in roots), sources=Repository(root for root, _ in others)), names


def _looked_at(asked: Analysis) -> str:
    if asked.values == 1:
        return "  looked at: requests with at most one value for each attribute, since there are many rules"
    return f"  looked at: requests with at most {asked.values} values for each attribute"


def _mark(verdict: Verdict) -> str:
    return "!" if verdict is Verdict.YES else "?"


def _idle_text(rule: IdleRule) -> str:
    text = "it never applies" if rule.never else "every decision is the same without it"
    return text if rule.verdict is Verdict.YES else f"not known whether {text}"


def _conflict_text(one: Conflict) -> str:
    return f"{one.permit} permits what {one.deny} denies"


def _show(found: Answer, names: _Names) -> None:
    for key, values in (found.witness or {}).items():
        category = CATEGORY_NAME.get(key.category, key.category) if key in names else key.category
        shown = ", ".join(key.of.write(one) if key.of is not STRING else _text(one) for one in values)
        say(f"  {names.get(key, key.id)} = {shown} ({key.of}, {category})")
    if found.verdict is Verdict.YES and not found.witness:
        say("  any request, for instance one that says nothing")
    _show_unknown(found.unknown)


def _text(value: str) -> str:
    """Return a text as it is, or in quotes where it would not be seen what belongs to it."""
    return value if value.isprintable() and value.strip() == value and value and "," not in value else json.dumps(value)


def _show_unknown(unknown: tuple[str, ...]) -> None:
    for one in unknown:
        say(f"  depends on {one}, which is not understood")


def _idle_data(rule: IdleRule) -> Mapping[str, object]:
    why = "never-applies" if rule.never else "same-without"
    told = {"rule": [*rule.rule.within, rule.rule.rule.id], "why": why, "verdict": rule.verdict.value}
    return {**told, "unknown": [*rule.unknown]}


def _conflict_data(one: Conflict, names: _Names) -> Mapping[str, object]:
    rules = {"permit": one.permit, "deny": one.deny}
    return {name: [*rule.within, rule.rule.id] for name, rule in rules.items()} | _found_data(one.found, names)


def _change_data(one: Change, names: _Names) -> Mapping[str, object]:
    return {"before": one.before, "after": one.after} | _found_data(one.found, names)


def _found_data(found: Answer, names: _Names) -> dict[str, object]:
    told: dict[str, object] = {"verdict": found.verdict.value, "unknown": [*found.unknown], "request": None}
    if found.witness is None:
        return told
    request = [
        {
            "category": key.category,
            "id": key.id,
            "type": key.of.id,
            "values": [key.of.write(one) for one in values],
            **({"name": names[key]} if key in names else {}),
        }
        for key, values in found.witness.items()
    ]
    # A request of XACML, which has one category at least, as `penstock pdp evaluate` reads it.
    whole = Request.of_facts(found.witness)
    xacml = write_request(whole if whole.categories else Request((Attributes(ENVIRONMENT),)))
    return {**told, "request": request, "xacml": xacml}
