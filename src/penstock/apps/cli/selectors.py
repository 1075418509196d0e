"""`penstock selector`: check selectors against a type, evaluate them on an event, and compare them."""

import json
from collections.abc import Mapping

import click

from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.describe import value_text
from penstock.apps.cli.shared.events import given_twice, parse_schema, parse_value, split_pair
from penstock.apps.cli.shared.options import TypeFileOptions
from penstock.apps.cli.shared.session import CommandSession, Verbs
from penstock.errors import MalformedError, RefusedError, did_you_mean
from penstock.model.values import Scalar, Schema
from penstock.selector import (
    AnalysisVerdict,
    SelectorAnalysis,
    covers,
    equivalent,
    evaluate,
    overlaps,
    parse,
    satisfiable,
)


@click.group(cls=Verbs)
def selector() -> None:
    """Check, evaluate and compare selectors.

    A selector is an SQL condition such as `speed > 30 AND zone IN ('north', 'south')`.
    """


@option_class
class SchemaOptions:
    """Options for the known attributes."""

    of_type: TypeFileOptions
    attributes: tuple[str, ...] = option(
        "--attribute", multiple=True, metavar="NAME:KIND[:DOMAIN]", help="Declare an attribute. Can be repeated."
    )

    def load(self, session: CommandSession) -> Schema | None:
        """Return the attributes, if any are given. Raises what reading them raises, and `MalformedError`."""
        event_type = self.of_type.load(session.now)
        if event_type is None and not self.attributes:
            return None
        known: Schema = event_type.schema if event_type is not None else {}
        declared = parse_schema(self.attributes)
        for name in known.keys() & declared.keys():
            raise given_twice(name, "the type has an attribute of that name")
        return {**known, **declared}

    def needed(self, session: CommandSession) -> Schema:
        """Return the attributes. Raises as `load`, and `MalformedError` (`cli.schema`) if none are given."""
        schema = self.load(session)
        if schema is None:
            raise MalformedError(
                "cli.schema", "no attributes are given", hint="give --type-file, or --attribute for each of them"
            )
        return schema


@option_class
class _OneSelector:
    text: str = argument(metavar="SELECTOR")
    schema: SchemaOptions
    output: str = output_option()


@command(
    selector,
    example="""
penstock selector check "speed > 30 AND zone = 'north'" --attribute speed:integer --attribute zone:string
""",
)
def check(session: CommandSession, options: _OneSelector) -> CommandAnswer:
    """Check that a SELECTOR is well-formed and fits the attributes, if any are given. Print its canonical form."""
    schema = options.schema.load(session)
    parsed = parse(options.text)
    if schema is not None:
        parsed.check(schema)
    data = {"ok": True, "selector": parsed.text, "attributes": sorted(parsed.attributes)}
    return CommandAnswer(data, [parsed.text])


@option_class
class _Evaluate:
    text: str = argument(metavar="SELECTOR")
    values: tuple[str, ...] = option(
        "--set", multiple=True, metavar="NAME=VALUE", help="Set the value of an attribute. Can be repeated."
    )
    schema: SchemaOptions
    output: str = output_option()


@command(
    selector,
    "evaluate",
    example='penstock selector evaluate "speed > 30" --attribute speed:integer --set speed=42',
)
def evaluate_command(session: CommandSession, options: _Evaluate) -> CommandAnswer:
    """Evaluate a SELECTOR for an event: TRUE, FALSE or NULL. The exit status is 0 for TRUE only."""
    schema = options.schema.needed(session)
    parsed = parse(options.text)
    parsed.check(schema)
    row: dict[str, Scalar] = {}
    for written in options.values:
        name, value = split_pair(written, "NAME=VALUE")
        if name not in schema:
            hint = did_you_mean(name, schema, f"known: {', '.join(schema)}")
            raise MalformedError("event.unknown-attribute", f"there is no attribute `{name[:80]}`", hint=hint)
        if name in row:
            raise given_twice(written, "an attribute has one value")
        row[name] = parse_value(schema[name].kind, value, name)
        schema[name].check(row[name])
    truth = evaluate(parsed, row)
    shown = {True: "TRUE", False: "FALSE", None: "NULL"}[truth]
    error = None if truth else RefusedError("selector.not-true", f"the selector is {shown} here")
    return CommandAnswer({"value": truth}, [shown], error)


@command(
    selector,
    "satisfiable",
    example='penstock selector satisfiable "speed > 300" --attribute speed:integer:0..200   # no',
)
def satisfiable_(session: CommandSession, options: _OneSelector) -> CommandAnswer:
    """Find out whether any event can match a SELECTOR, and show such an event."""
    schema = options.schema.needed(session)
    return _answer(satisfiable(parse(options.text), schema), "no event satisfies it")


@option_class
class _TwoSelectors:
    first: str = argument(metavar="SELECTOR")
    second: str = argument(metavar="OTHER")
    schema: SchemaOptions
    output: str = output_option()


def _comparison(name: str, summary: str, example: str, no: str) -> None:
    """Make the command for one question about two selectors."""

    def compare(session: CommandSession, options: _TwoSelectors) -> CommandAnswer:
        schema = options.schema.needed(session)
        question = {"covers": covers, "overlaps": overlaps, "equivalent": equivalent}[name]
        return _answer(question(parse(options.first), parse(options.second), schema), no)

    compare.__doc__ = summary
    command(selector, name, example=example)(compare)


_comparison(
    "covers",
    "Find out whether SELECTOR matches all events that OTHER matches; if not, show one that only OTHER matches.",
    'penstock selector covers "speed > 30" "speed > 50" --attribute speed:integer',
    "the first does not cover the second",
)
_comparison(
    "overlaps",
    "Find out whether SELECTOR and OTHER can match the same event, and show one.",
    'penstock selector overlaps "speed > 30" "speed < 50" --attribute speed:integer',
    "no event satisfies both",
)
_comparison(
    "equivalent",
    "Find out whether SELECTOR and OTHER match the same events; if not, show one that only one of them matches.",
    'penstock selector equivalent "speed > 30" "NOT speed <= 30" --attribute speed:integer',
    "they are not equivalent",
)


def _answer(answer: SelectorAnalysis, no: str) -> CommandAnswer:
    row = None if answer.witness is None else {name: _plain(value) for name, value in answer.witness.items()}
    shown = [answer.verdict.value]
    if answer.witness is not None:
        shown.append(f"for example {_row(answer.witness)}")
    error = None
    if answer.verdict is AnalysisVerdict.NO:
        error = RefusedError("selector.no", no)
    elif answer.verdict is AnalysisVerdict.UNKNOWN:
        error = RefusedError(
            "selector.unknown", "the answer could not be found within the limits", hint="try simpler selectors"
        )
    return CommandAnswer({"verdict": answer.verdict.value, "witness": row, "by": answer.by}, shown, error)


def _row(row: Mapping[str, Scalar]) -> str:
    return ", ".join(f"{name} = {_quoted(value)}" for name, value in sorted(row.items()))


def _quoted(value: Scalar) -> str:
    if value is None:
        return "NULL"
    return json.dumps(value) if isinstance(value, str) else value_text(value)


def _plain(value: Scalar) -> object:
    # JSON has no timestamps and no infinities.
    if value is None or isinstance(value, str | bool | int):
        return value
    return value_text(value)
