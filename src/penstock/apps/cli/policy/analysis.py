"""`penstock policy analyse`, `diff` and `residual`: what policies decide about all possible requests."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import click

from penstock.apps.cli.policy.files import lenient_option, read_named, read_request_file, read_root
from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.credentials import need_type
from penstock.apps.cli.shared.events import parse_schema, split_pair
from penstock.apps.cli.shared.options import TypeFileOptions
from penstock.apps.cli.shared.session import CommandSession
from penstock.errors import MalformedError, RefusedError, did_you_mean
from penstock.guard.environment import environment_schema
from penstock.guard.policies import Residuals
from penstock.guard.restriction import Restriction
from penstock.model.types import EventType
from penstock.policy.analysis.questions import Analysis, AnalysisResult, DecisionChange, IdleRule, RuleContradiction
from penstock.policy.engine.lookup import Repository, check_policies
from penstock.policy.language.datatypes import STRING
from penstock.policy.language.event_attributes import action_facts, event_names, type_facts
from penstock.policy.language.requests import ENVIRONMENT, SUBJECT, Attributes, Facts, Key, Request, key_of
from penstock.policy.syntax.json.requests import write_request
from penstock.policy.syntax.text.tokens import CATEGORY_NAME
from penstock.selector.analysis import AnalysisVerdict
from penstock.trust.capabilities import Right


def refer_option() -> Any:
    """Declare `--refer`."""
    return option("--refer", multiple=True, metavar="FILE", help="Read a policy that is referred to. Can be repeated.")


_ANY: Final = "any"
_KINDS: Final[Mapping[str, frozenset[str]]] = {
    "never-applies": frozenset({"never-applies"}),
    "same-without": frozenset({"same-without"}),
    "idle": frozenset({"never-applies", "same-without"}),
    "conflicts": frozenset({"conflicts"}),
    _ANY: frozenset({"never-applies", "same-without", "conflicts"}),
}
"""The kinds of findings as `--fail-on` names them, which are those of the JSON output, and the kinds they stand for."""


@option_class
class _Analyse:
    file: str = argument(metavar="FILE")
    referred: tuple[str, ...] = refer_option()
    targets_only: bool = option("--targets-only", is_flag=True, help="Ignore the conditions of rules that overlap.")
    fail_on: tuple[str, ...] = option(
        "--fail-on",
        multiple=True,
        metavar="KIND[,KIND]",
        help=f"Exit with 1 if there is such a finding: {', '.join(_KINDS)}. Can be repeated.",
    )
    lenient: bool = lenient_option()
    output: str = output_option()


@command(
    example="""
penstock policy analyse records.xml
penstock policy analyse root.xml --refer records.xml --targets-only -o json
penstock policy analyse records.policy --fail-on conflicts,never-applies
"""
)
def analyse(options: _Analyse) -> CommandAnswer:
    """Find rules that have no effect, and rules that permit and deny the same request, in the policy in FILE.

    Each overlap is shown with a request that is decided in this way. The analysis covers requests with at most two
    values for each attribute, or one if there are more than 40 rules. Functions other than comparisons and logic can
    return anything: results that depend on them, and are not shown by a request, are marked with ?. With --fail-on the
    exit status is 1 if something of these kinds was found, or if it is not known.
    """
    failing = _failing(options.fail_on)
    asked, names = _analysis(options.referred, options.file, lenient=options.lenient)
    idle, conflicts = asked.idle_rules(), asked.conflicts(conditions=not options.targets_only)
    data = {
        "idle": [_idle_data(one) for one in idle],
        "conflicts": [_conflict_data(one, names) for one in conflicts],
        "values": asked.values,
    }

    def shown() -> Iterator[str]:
        for rule in idle:
            yield f"{_mark(rule.verdict)} {rule.rule}: {_idle_text(rule)}"
            yield from _show_unknown(rule.unknown)
        for one in conflicts:
            yield _sentence(one.found, f"{one.permit} permits what {one.deny} denies")
            yield from _show(one.found, names)
        if not idle and not conflicts:
            yield "✓ each rule does something, and none permits what another denies"
        yield _looked_at(asked)

    verdicts = [("never-applies" if one.never else "same-without", one.verdict) for one in idle]
    verdicts += [("conflicts", one.found.verdict) for one in conflicts]
    return CommandAnswer(data, shown(), _failure([one for one in verdicts if one[0] in failing]))


def _failing(written: tuple[str, ...]) -> frozenset[str]:
    """Return the kinds of findings that `--fail-on` names. Raises `MalformedError` (`cli.usage`)."""
    found: frozenset[str] = frozenset()
    for kind in (kind.strip() for one in written for kind in one.split(",")):
        if kind not in _KINDS:
            hint = did_you_mean(kind, _KINDS, f"write one of {', '.join(_KINDS)}")
            raise MalformedError("cli.usage", f"`{kind[:80]}` is not a kind of finding", hint=hint)
        found |= _KINDS[kind]
    return found


def _failure(found: Sequence[tuple[str, AnalysisVerdict]]) -> RefusedError | None:
    """Return the error for findings that must not exist, by their kinds and verdicts."""
    if not found:
        return None
    counts = Counter(kind for kind, verdict in found if verdict is AnalysisVerdict.YES)
    if not counts:
        return RefusedError("xacml.undecided", "it could not be determined whether there are findings of these kinds")
    return RefusedError("policy.findings", f"found {', '.join(f'{count} {kind}' for kind, count in counts.items())}")


@option_class
class _Diff:
    before: str = argument(metavar="BEFORE")
    after: str = argument(metavar="AFTER")
    referred: tuple[str, ...] = refer_option()
    lenient: bool = lenient_option()
    output: str = output_option()


@command(example="penstock policy diff records-1.xml records-2.xml")
def diff(options: _Diff) -> CommandAnswer:
    """Show which decisions change from the policy in BEFORE to that in AFTER, each with a request.

    The exit status is 0 if every request is decided alike, and 1 otherwise, or if that is not known. The analysis
    covers the same requests as `penstock policy analyse`.
    """
    asked, names = _analysis(options.referred, options.before, options.after, lenient=options.lenient)
    changes = asked.changes()
    error = None
    if any(one.found.verdict is AnalysisVerdict.YES for one in changes):
        error = RefusedError("xacml.differ", "the policies decide differently")
    elif changes:
        error = RefusedError("xacml.undecided", "it could not be determined whether the policies decide alike")

    def shown() -> Iterator[str]:
        for one in changes:
            yield _sentence(one.found, f"{one.before} becomes {one.after}")
            yield from _show(one.found, names)
        yield _looked_at(asked)
        if not changes:
            yield "✓ the policies decide alike"

    data = {"changes": [_change_data(one, names) for one in changes], "values": asked.values}
    return CommandAnswer(data, shown(), error)


_Names: TypeAlias = Mapping[Key, str]
"""Names of attributes in the text of a policy."""


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


def _mark(verdict: AnalysisVerdict) -> str:
    return "!" if verdict is AnalysisVerdict.YES else "?"


def _idle_text(rule: IdleRule) -> str:
    text = "it never applies" if rule.never else "every decision is the same without it"
    return text if rule.verdict is AnalysisVerdict.YES else f"not known whether {text}"


def _sentence(found: AnalysisResult, text: str) -> str:
    sure = found.verdict is AnalysisVerdict.YES
    return f"{_mark(found.verdict)} {text if sure else f'not known whether {text}'}"


def _show(found: AnalysisResult, names: _Names) -> Iterator[str]:
    for key, values in (found.witness or {}).items():
        category = CATEGORY_NAME.get(key.category, key.category) if key in names else key.category
        shown = ", ".join(key.of.write(one) if key.of is not STRING else _text(one) for one in values)
        yield f"  {names.get(key, key.id)} = {shown} ({key.of}, {category})"
    if found.verdict is AnalysisVerdict.YES and not found.witness:
        yield "  any request, for instance one that says nothing"
    yield from _show_unknown(found.unknown)


def _text(value: str) -> str:
    """Return a text as it is, or in quotes if its ends would not be visible."""
    return value if value.isprintable() and value.strip() == value and value and "," not in value else json.dumps(value)


def _show_unknown(unknown: tuple[str, ...]) -> Iterator[str]:
    for one in unknown:
        yield f"  depends on {one}, which is not understood"


def _idle_data(rule: IdleRule) -> Mapping[str, object]:
    why = "never-applies" if rule.never else "same-without"
    as_data = {"rule": [*rule.rule.within, rule.rule.rule.id], "why": why, "verdict": rule.verdict.value}
    return {**as_data, "unknown": [*rule.unknown]}


def _conflict_data(one: RuleContradiction, names: _Names) -> Mapping[str, object]:
    rules = {"permit": one.permit, "deny": one.deny}
    return {name: [*rule.within, rule.rule.id] for name, rule in rules.items()} | _found_data(one.found, names)


def _change_data(one: DecisionChange, names: _Names) -> Mapping[str, object]:
    return {"before": one.before, "after": one.after} | _found_data(one.found, names)


def _found_data(found: AnalysisResult, names: _Names) -> dict[str, object]:
    as_data: dict[str, object] = {"verdict": found.verdict.value, "unknown": [*found.unknown], "request": None}
    if found.witness is None:
        return as_data
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
    # An XACML request, which has at least one category, as `penstock pdp evaluate` reads it.
    whole = Request.of_facts(found.witness)
    xacml = write_request(whole if whole.categories else Request((Attributes(ENVIRONMENT),)))
    return {**as_data, "request": request, "xacml": xacml}


# ----------------------------------------------------------------------------------------------------------------------
# `penstock policy residual`: the part of a policy that remains to be decided for each event.


@option_class
class _Residual:
    file: str = argument(metavar="FILE")
    of_type: TypeFileOptions
    right: str = option(
        "--right",
        type=click.Choice([Right.SUBSCRIBE.value, Right.PUBLISH.value]),
        default=Right.SUBSCRIBE.value,
        show_default=True,
        help="Ask for this right.",
    )
    subjects: tuple[str, ...] = option(
        "--subject", multiple=True, metavar="ID=TEXT", help="Set an attribute of the subject. Can be repeated."
    )
    request_file: str | None = option(
        "--request", metavar="FILE", help="Read what else is known from this request, in XML or JSON."
    )
    facts: tuple[str, ...] = option(
        "--fact", multiple=True, metavar="NAME:KIND", help="Declare a fact that brokers know. Can be repeated."
    )
    understood: tuple[str, ...] = option(
        "--obligation", multiple=True, metavar="ID", help="Name an obligation that brokers meet. Can be repeated."
    )
    referred: tuple[str, ...] = refer_option()
    output: str = output_option()


@command(
    example="""
penstock policy residual plates.policy --type-file numberplate.type \\
    --subject urn:penstock:subject:owner-role=billing
"""
)
def residual(session: CommandSession, options: _Residual) -> CommandAnswer:
    """Show what the policy in FILE permits of events, as a restriction, if everything else is known.

    A broker computes it once, when somebody subscribes or wants to publish, and checks only this for each event. The
    type and the right are always known. A policy that requires of events what selectors cannot express is refused, with
    the part that cannot be expressed: brokers then evaluate it for each event. The exit status is 1 if nothing is
    permitted.
    """
    event_type = need_type(options.of_type.load(session.now), "what a policy permits of events")
    known: Facts = {
        **({} if options.request_file is None else read_request_file(options.request_file).facts()),
        **_of_subject(options.subjects),
        **action_facts(Right(options.right)),
        **type_facts(event_type),
    }
    root, others = read_root(options.file), [read_root(one) for one in options.referred]
    check_policies([root], others)
    restriction = Residuals(root, Repository(others), frozenset(options.understood)).restriction(
        known,
        Right(options.right),
        event_type,
        names=event_names(event_type),
        environment=environment_schema(parse_schema(options.facts)),
    )
    data = {"type": str(event_type.name), "right": options.right, **restriction.as_dict(event_type)}
    refused = RefusedError("pdp.not-permitted", f"no event of `{event_type.name.name}` is permitted")
    return CommandAnswer(data, _show_residual(restriction, event_type), None if restriction.branches else refused)


def _of_subject(written: tuple[str, ...]) -> Facts:
    found: dict[str, tuple[str, ...]] = {}
    for pair in written:
        name, value = split_pair(pair, "ID=TEXT")
        found[name] = (*found.get(name, ()), value)
    return {key_of(SUBJECT, name, STRING): values for name, values in found.items()}


def _show_residual(restriction: Restriction, event_type: EventType) -> Iterator[str]:
    names = {attribute.id: attribute.name for attribute in event_type.attributes}
    for branch in restriction.branches:
        shown = [attribute.name for attribute in event_type.attributes if branch.shows(attribute.id)]
        yield f"✓ {'all attributes' if branch.attributes is None else ', '.join(shown)}"
        as_data = branch.as_dict(names)
        for place in ("where", "when"):
            if place in as_data:
                yield f"    {place} {as_data[place]}"
        yield f"    by {', '.join(one.removeprefix('policy:') for one in branch.because)}"
