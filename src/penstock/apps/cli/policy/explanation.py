"""`penstock policy explain`: explain the decision of a policy on a request."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import click

from penstock.apps.cli.policy.analysis import refer_option
from penstock.apps.cli.policy.files import read_named, read_request_file
from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.events import split_pair
from penstock.apps.cli.shared.files import read_bytes, within
from penstock.apps.cli.shared.options import AtOption
from penstock.apps.cli.shared.session import CommandSession
from penstock.apps.http.bundles import load
from penstock.apps.http.entities import Entities
from penstock.errors import MalformedError, RefusedError, did_you_mean
from penstock.policy.analysis.explanation import (
    MOST_EXPLAINED,
    MOST_OTHERS,
    DecisionExplanation,
    ExplainedElement,
    ExplainedTest,
    explain,
)
from penstock.policy.analysis.questions import resolved
from penstock.policy.engine.decide import decide, plainly
from penstock.policy.engine.lookup import PolicySources, Repository, check_policies
from penstock.policy.language.datatypes import Value, read_value
from penstock.policy.language.policies import Designator, Root
from penstock.policy.language.requests import Key, Request
from penstock.policy.language.results import Obligation, XacmlDecision
from penstock.policy.syntax.forms import read_policies
from penstock.policy.syntax.text.policy_writer import PolicyTextWriter
from penstock.policy.syntax.text.tokens import CATEGORY_NAME
from penstock.selector.analysis import AnalysisVerdict

_WIDTH: Final = 80
_MARKS: Final = {XacmlDecision.PERMIT: "✓", XacmlDecision.DENY: "✗"}


@option_class
class _Explain:
    file: str = argument(metavar="FILE")
    referred: tuple[str, ...] = refer_option()
    request_file: str | None = option(
        "--request", metavar="FILE", help="Read the request from this file: XACML in XML or JSON, or AuthZEN."
    )
    given: tuple[str, ...] = option(
        "--set",
        multiple=True,
        metavar="NAME=VALUE",
        help="Set an attribute of the request, by its name in the policy or its id. Can be repeated.",
    )
    everything: bool = option(
        "--all", is_flag=True, help=f"List everything that did not decide (default: the first {MOST_OTHERS})."
    )
    at: AtOption
    output: str = output_option()


@command(
    name="explain",
    example="""
penstock policy explain records.policy --request request.json
penstock policy explain records.policy --set role=nurse --set hour=20
penstock policy explain examples/authzen-todo --request question.json -o json
""",
)
def explain_decision(session: CommandSession, options: _Explain) -> CommandAnswer:
    """Explain how the policy in FILE decides a request, and what would change the decision.

    The explanation names the policies and rules that decided, with the values they saw, and why others did not apply.
    Changes of the request are the smallest ones that lead to Permit, or away from it: each was evaluated before it is
    shown. FILE can also be the bundle of `penstock pdp serve`. The exit status is 0 if everything is permitted, and 1
    otherwise. `penstock explain` explains what certificates permit, and with --policy what a broker decides by both.
    """
    if options.request_file is None and not options.given:
        raise click.UsageError("give --request, --set or both")
    policies = _read_bundle(Path(options.file)) if Path(options.file).is_dir() else _read_policy(options)
    names = PolicyTextWriter([resolved(policies.root, policies.sources)], policies.names).names
    request = Request(())
    if options.request_file is not None:
        request = read_request_file(options.request_file, policies.entities)
    for key, values in _given(options.given, names).items():
        request = request.with_values(key, values)
    root, sources, now = policies.root, policies.sources, options.at.moment(session)
    most = None if options.everything else MOST_OTHERS
    each = explain(root, request, now, sources, names=policies.names, most=most)
    found = [*islice(each, None if options.everything else MOST_EXPLAINED)]
    more = next(each, None) is not None
    # The exit status is about all decisions, also those that are not explained.
    results = decide(plainly(root), request, now, sources).results
    denied = [one.decision for one in results if one.decision is not XacmlDecision.PERMIT]
    error = RefusedError("pdp.not-permitted", f"the answer is {denied[0].plain}") if denied else None
    data = {"decisions": [one.as_dict() for one in found], "more": more}
    return CommandAnswer(data, _shown(found, more=more), error)


# ----------------------------------------------------------------------------------------------------------------------
# What is explained.


@dataclass(frozen=True, slots=True)
class _Policies:
    """A policy that decides, and what it uses besides the request."""

    root: Root
    sources: PolicySources
    names: Mapping[Key, str]
    entities: Entities | None = None


def _read_policy(options: _Explain) -> _Policies:
    root, known = read_named(options.file)
    others = [read_named(file) for file in options.referred]
    check_policies([root], [one for one, _ in others])
    names = _names(known, *(those for _, those in others))
    return _Policies(root, Repository(one for one, _ in others), names)


def _read_bundle(folder: Path) -> _Policies:
    bundle = load(folder)
    texts = (read_bytes(str(file)) for file in sorted(folder.glob("*.policy")))
    return _Policies(
        bundle.root, bundle.sources, _names(*(read_policies(one).attributes for one in texts)), bundle.entities
    )


def _names(*known: Mapping[str, Designator]) -> Mapping[Key, str]:
    return {one.key: name for those in known for name, one in those.items() if one.issuer is None}


def _given(pairs: Sequence[str], names: Mapping[Key, str]) -> Mapping[Key, tuple[Value, ...]]:
    found: dict[Key, tuple[Value, ...]] = {}
    for pair in pairs:
        name, text = split_pair(pair, "NAME=VALUE")
        keys = [key for key, own in names.items() if own == name] or [key for key in names if key.id == name]
        if len(keys) != 1:
            why = "uses several attributes" if keys else "does not use an attribute"
            known = f"it uses {', '.join(sorted(names.values()))}" if names else ""
            hint = known if keys else did_you_mean(name, [*names.values(), *(key.id for key in names)], known)
            raise MalformedError("cli.usage", f"the policy {why} `{name[:80]}`", hint=hint)
        with within(f"--set {name}"):
            found[keys[0]] = (*found.get(keys[0], ()), read_value(text, keys[0].of))
    return found


# ----------------------------------------------------------------------------------------------------------------------
# For people.


def _shown(found: Sequence[DecisionExplanation], *, more: bool) -> Iterator[str]:
    for number, one in enumerate(found):
        yield from ["", ""] if number else []
        if len(found) > 1:
            yield f"Request {number + 1}"
        yield from _decision(one)
    if more:
        yield ""
        yield from _wrapped(f"The request asks for more than {len(found)} decisions. Use --all to explain all of them.")


def _decision(one: DecisionExplanation) -> Iterator[str]:
    outcome = one.outcome
    yield f"{_MARKS.get(outcome.decision, '?')} {outcome.decision.value}"
    if outcome.status.message:
        yield from _wrapped(outcome.status.message, 2)
    for missing in outcome.status.missing:
        category = CATEGORY_NAME.get(missing.category, missing.category)
        yield from _wrapped(f"missing: {one.name_of(missing)} ({missing.of}, {category})", 2)
    if one.path is not None:
        yield from ("", "Decided by")
        yield from _path(one.path, 2, outcome.status.message)
    if one.others:
        yield from ("", "Did not decide")
        yield from _others(one)
    for title, duties in (("Obligations", outcome.obligations), ("Advice", outcome.advice)):
        if duties:
            yield from ("", title)
            yield from (line for duty in duties for line in _duty(duty))
    if one.changes is not None:
        yield from ("", "What would change the decision")
        yield from _changes(one)


def _path(element: ExplainedElement, indent: int, known: str) -> Iterator[str]:
    """Yield an element and the children that decided, without the message that is already above."""
    combining = f" ({element.combining})" if element.combining else ""
    decision = "" if element.decision is None else f": {element.decision.value}"
    yield from _wrapped(f"{element.kind} {element.id}{combining}{decision}", indent)
    for test in element.tests:
        mark = "?" if test.holds is None else "✓" if test.holds else "✗"
        yield from _wrapped(f"{mark} {_tested(test)}", indent + 2, 4)
    if element.note and element.note != known:
        yield from _wrapped(element.note, indent + 2)
    for child in element.children:
        yield from _path(child, indent + 2, known)


def _tested(test: ExplainedTest) -> str:
    return f"{test.text}{_seen(test)}{f': {test.error}' if test.error else ''}"


def _seen(test: ExplainedTest) -> str:
    return f"  ({'; '.join(map(str, test.values))})" if test.values else ""


def _others(one: DecisionExplanation) -> Iterator[str]:
    unused = [other for other in one.others if other.decision is None and not other.note]
    for other in one.others:
        if other not in unused:
            yield from _wrapped(f"{other.kind} {' / '.join(other.place[1:])}: {_why_not(other, one)}", 2, 4)
    if unused:
        names = ", ".join(" / ".join(other.place[1:]) for other in unused)
        yield from _wrapped(f"not evaluated, because the decision was certain: {names}", 2, 4)
    if one.left_out:
        yield f"  {one.left_out} more. Use --all to list them."


def _why_not(other: ExplainedElement, one: DecisionExplanation) -> str:
    for test in other.tests:
        return _tested(test) if test.holds is None else f"{test.text} is false{_seen(test)}"
    decision = other.decision
    if decision is None or decision is XacmlDecision.NOT_APPLICABLE:
        return other.note or "not applicable"
    if decision is one.outcome.decision:
        return f"{decision.value} as well"
    return f"{decision.value}, overridden{f': {other.note}' if other.note else ''}"


def _duty(duty: Obligation) -> Iterator[str]:
    yield from _wrapped(duty.id, 2)
    for assigned in duty.assigned:
        yield from _wrapped(f"{assigned.id} = {assigned.of.write(assigned.value)}", 4)


def _changes(one: DecisionExplanation) -> Iterator[str]:
    changes = one.changes
    if changes is None:
        return
    for text, decision in one.change_texts():
        yield from _wrapped(f"{decision} with {text}", 2, 4)
    goal = "Deny or NotApplicable" if one.outcome.decision is XacmlDecision.PERMIT else "Permit"
    if changes.verdict is AnalysisVerdict.NO:
        few = "attributes that the policy uses" if changes.most is None else f"at most {changes.most} attributes"
        yield from _wrapped(f"No change of {few} leads to {goal}.", 2)
    elif changes.verdict is AnalysisVerdict.UNKNOWN:
        yield from _wrapped(f"It could not be computed which change leads to {goal}.", 2)
    elif not changes.certain:
        yield from _wrapped("There can be other changes, and smaller ones.", 2)
    if changes.reason:
        yield from _wrapped(f"Reason: {changes.reason}.", 2)
    for construct in changes.unknown:
        yield from _wrapped(f"depends on {construct}, which is not understood", 2, 4)


def _wrapped(text: str, indent: int = 0, hanging: int = 2) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hanging),
        break_long_words=False,
        break_on_hyphens=False,
    ) or [" " * indent]
