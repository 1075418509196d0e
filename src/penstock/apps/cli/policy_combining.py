"""`penstock policy combine`: what decisions of several come to, by an algorithm or a decision tuple."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import click

from penstock.apps.cli import options
from penstock.apps.cli.groups import example
from penstock.apps.cli.options import JSON
from penstock.apps.cli.session import say, say_json
from penstock.errors import MalformedError
from penstock.policy.combining import combined
from penstock.policy.results import Decision, Outcome
from penstock.policy.text_names import POLICY_COMBINING
from penstock.policy.tuples import PREFIX, DecisionTuple

_DECISIONS: Final[Mapping[str, Decision]] = {
    "P": Decision.PERMIT,
    "D": Decision.DENY,
    "NA": Decision.NOT_APPLICABLE,
    "IN_P": Decision.INDETERMINATE_P,
    "IN_D": Decision.INDETERMINATE_D,
    "IN_DP": Decision.INDETERMINATE_DP,
    "IN": Decision.INDETERMINATE_DP,
    **{one.plain: one for one in Decision},
}


@dataclass(frozen=True, slots=True)
class _Said:
    """A decision, and the priority of whoever made it."""

    decision: Decision
    priority: int

    @classmethod
    def of(cls, text: str) -> "_Said":
        letter, sign, priority = text.partition("@")
        if letter not in _DECISIONS or (sign and not priority.removeprefix("-").isdecimal()):
            hint = "write P, D, NA, IN, IN_P, IN_D or IN_DP, and a priority as P@2"
            raise MalformedError("combining.decision", f"`{text[:80]}` is no decision", hint=hint)
        return cls(_DECISIONS[letter], int(priority or 0))


@click.command()
@click.argument("decisions", nargs=-1, metavar="[DECISION]...")
@click.option("--by", "name", metavar="ALGORITHM", help="An algorithm by the last part of its id, or by its id.")
@click.option(
    "--element",
    "elements",
    multiple=True,
    metavar="NAME=TEXT",
    help="An element of a decision tuple: P, D, NA, IN, or IN_P, IN_D and IN_DP.",
)
@options.output_option()
@example(
    """
penstock policy combine --by deny-overrides P NA D
penstock policy combine --by deny-overrides P@2 D@1
penstock policy combine --element 'P=#P > 1' --element 'D=#P < 1 and #D > 0' P P D
"""
)
def combine(*, decisions: tuple[str, ...], name: str | None, elements: tuple[str, ...], output: str) -> None:
    """Say what DECISIONs of several come to, each P, D, NA or IN, with a priority after `@`.

    Of those that are applicable, the ones with the highest priority count. Elements of a decision tuple are expressions
    over sequences, as in `NA* P .*`, or constraints on counts, as in `#P > 1`; what two of them accept is refused, and
    what none accepts is told. The id that is printed stands wherever a policy names an algorithm.
    """
    if (name is None) is not bool(elements):
        raise click.UsageError("say one of --by and --element")
    chosen = _tuple(elements).id if name is None else POLICY_COMBINING.get(name, name)
    said = [_Said.of(one) for one in decisions]
    result = combined(chosen, [Outcome(one.decision) for one in said], [one.priority for one in said] or None)
    gap = DecisionTuple.of_id(chosen).gap() if chosen.startswith(PREFIX) else None
    if output == JSON:
        told = None if gap is None else list(gap.witness)
        say_json({"algorithm": chosen, "decision": result.decision.value if said else None, "gap": told})
        return
    if gap is not None:
        say(f"! no element accepts: {gap}; that is Indeterminate")
    say(result.decision.value if said else chosen)


def _tuple(elements: tuple[str, ...]) -> DecisionTuple:
    pairs = [one.partition("=") for one in elements]
    if any(not sign for _, sign, _ in pairs) or len({name.strip() for name, _, _ in pairs}) != len(pairs):
        raise click.UsageError("an element is a name, `=` and a text, each once: --element 'P=#P > 1'")
    return DecisionTuple.of({name.strip(): text for name, _, text in pairs})
