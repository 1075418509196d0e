"""`penstock policy combine`: what decisions of several come to, by an algorithm or a decision tuple."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import click

from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.files import read_bytes, within
from penstock.errors import MalformedError
from penstock.policy.combining.registry import POLICY_COMBINING, combined, combined_responses
from penstock.policy.combining.tuples import PREFIX, DecisionTuple
from penstock.policy.language.results import PolicyOutcome, Response, Result, XacmlDecision
from penstock.policy.syntax.json import requests as json_requests
from penstock.policy.syntax.json import requests as json_written
from penstock.policy.syntax.xml import requests as xml_requests

_DECISIONS: Final[Mapping[str, XacmlDecision]] = {
    "P": XacmlDecision.PERMIT,
    "D": XacmlDecision.DENY,
    "NA": XacmlDecision.NOT_APPLICABLE,
    "IN_P": XacmlDecision.INDETERMINATE_P,
    "IN_D": XacmlDecision.INDETERMINATE_D,
    "IN_DP": XacmlDecision.INDETERMINATE_DP,
    "IN": XacmlDecision.INDETERMINATE_DP,
    **{one.plain: one for one in XacmlDecision},
}


@dataclass(frozen=True, slots=True)
class _Said:
    """A decision, and the priority of whoever made it."""

    decision: XacmlDecision
    priority: int

    @classmethod
    def of(cls, text: str) -> "_Said":
        letter, sign, priority = text.partition("@")
        if letter not in _DECISIONS or (sign and not priority.removeprefix("-").isdecimal()):
            hint = "write P, D, NA, IN, IN_P, IN_D or IN_DP, and a priority as P@2"
            raise MalformedError("combining.decision", f"`{text[:80]}` is not a decision", hint=hint)
        return cls(_DECISIONS[letter], int(priority or 0))


def _responses(files: tuple[str, ...]) -> tuple[list[Response], list[int]]:
    """Read responses, each with the priority after `@`, where there is one."""
    responses, priorities = [], []
    for text in files:
        file, _, priority = text.rpartition("@")
        if not file or not priority.removeprefix("-").isdecimal():
            file, priority = text, "0"
        data = read_bytes(file)
        with within(file):
            read = xml_requests.read_response if data.lstrip().startswith(b"<") else json_requests.read_response
            responses.append(read(data))
        priorities.append(int(priority))
    return responses, priorities


@option_class
class _Combine:
    decisions: tuple[str, ...] = argument(nargs=-1, metavar="[DECISION]...")
    name: str | None = option(
        "--by", metavar="ALGORITHM", help="Combine by this algorithm: its id, or the last part of it."
    )
    elements: tuple[str, ...] = option(
        "--element",
        multiple=True,
        metavar="NAME=TEXT",
        help="Set an element of a decision tuple: P, D, NA, IN, or IN_P, IN_D and IN_DP.",
    )
    responses: tuple[str, ...] = option(
        "--response", multiple=True, metavar="FILE[@N]", help="Read an XACML response, in XML or JSON. Can be repeated."
    )
    output: str = output_option()


@command(
    example="""
penstock policy combine --by deny-overrides P NA D
penstock policy combine --by deny-overrides P@2 D@1
penstock policy combine --element 'P=#P > 1' --element 'D=#P < 1 and #D > 0' P P D
penstock policy combine --by permit-overrides --response house.xml@2 --response guests.json@1
"""
)
def combine(options: _Combine) -> CommandAnswer:
    """Combine DECISIONs, each P, D, NA or IN, with a priority after `@`.

    Whole responses of decision points are given with --response, and are combined with their obligations. Of the
    applicable ones, those with the highest priority count. Elements of a decision tuple are expressions over sequences,
    such as `NA* P .*`, or constraints on counts, such as `#P > 1`. A tuple in which two elements accept the same
    sequence is refused. If no element accepts some sequence, the output says so. The printed id can be used wherever a
    policy names an algorithm.
    """
    if (options.name is None) is not bool(options.elements):
        raise click.UsageError("say one of --by and --element")
    if options.decisions and options.responses:
        raise click.UsageError("say decisions, or --response")
    chosen = _tuple(options.elements).id if options.name is None else POLICY_COMBINING.get(options.name, options.name)
    found = _combined(chosen, options.decisions, options.responses)
    gap = DecisionTuple.of_id(chosen).gap() if chosen.startswith(PREFIX) else None
    data = {
        "algorithm": chosen,
        "decision": found.results[0].decision.value if len(found.results) == 1 else None,
        "gap": None if gap is None else list(gap.witness),
        **({"response": json_written.write_response(found)} if options.responses else {}),
    }

    def shown() -> Iterator[str]:
        if gap is not None:
            yield f"! no element accepts: {gap}; that is Indeterminate"
        for result in found.results:
            yield result.decision.value
            for word, duties in (("obligation", result.obligations), ("advice", result.advice)):
                yield from (f"  {word} {duty.id}" for duty in duties)
        if not found.results:
            yield chosen

    return CommandAnswer(data, shown())


def _combined(name: str, decisions: tuple[str, ...], files: tuple[str, ...]) -> Response:
    if files:
        return combined_responses(name, *_responses(files))
    said = [_Said.of(one) for one in decisions]
    outcomes, priorities = [PolicyOutcome(one.decision) for one in said], [one.priority for one in said]
    found = combined(name, outcomes, priorities or None)
    return Response([Result(found.decision)] if said else [])


def _tuple(elements: tuple[str, ...]) -> DecisionTuple:
    pairs = [one.partition("=") for one in elements]
    if any(not sign for _, sign, _ in pairs) or len({name.strip() for name, _, _ in pairs}) != len(pairs):
        raise click.UsageError("an element is a name, `=` and a text, each once: --element 'P=#P > 1'")
    return DecisionTuple.of({name.strip(): text for name, _, text in pairs})
