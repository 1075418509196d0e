"""`penstock selector`: check selectors against a type, try them on an event, compare what they mean."""

import json
from collections.abc import Mapping

import click

from penstock.apps.cli.shared import options
from penstock.apps.cli.shared.attributes import given_twice, parse_schema, parse_value, split_pair
from penstock.apps.cli.shared.credentials import load_event_type
from penstock.apps.cli.shared.describe import value_text
from penstock.apps.cli.shared.groups import Verbs, example
from penstock.apps.cli.shared.options import JSON
from penstock.apps.cli.shared.session import CommandSession, say, say_json
from penstock.errors import MalformedError, RefusedError
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
    """Selectors: check them, try them, compare them.

    A selector is an SQL condition such as `speed > 30 AND zone IN ('north', 'south')`.
    """


def schema_options(function: options.F) -> options.F:
    """Add the options that say which attributes there are."""
    return options.type_file_options(
        click.option(
            "--attribute", "attributes", multiple=True, metavar="NAME:KIND[:DOMAIN]", help="An attribute; repeat it."
        )(function)
    )


def _schema(
    session: CommandSession, attributes: tuple[str, ...], type_file: str | None, *shelf: tuple[str, ...]
) -> Schema | None:
    event_type = load_event_type(type_file, shelf[0], shelf[1], session.now)
    if event_type is None and not attributes:
        return None
    known: Schema = event_type.schema if event_type is not None else {}
    declared = parse_schema(attributes)
    for name in known.keys() & declared.keys():
        raise given_twice(name, "the type has an attribute of that name")
    return {**known, **declared}


def _needed(schema: Schema | None) -> Schema:
    if schema is None:
        raise MalformedError(
            "cli.schema", "the attributes are not known", hint="give --type-file, or --attribute for each of them"
        )
    return schema


@selector.command()
@click.argument("text", metavar="SELECTOR")
@schema_options
@options.output_option()
@click.pass_obj
@example("penstock selector check \"speed > 30 AND zone = 'north'\" --attribute speed:integer --attribute zone:string")
def check(  # noqa: PLR0913  # one argument an option
    session: CommandSession,
    *,
    text: str,
    attributes: tuple[str, ...],
    type_file: str | None,
    parent: tuple[str, ...],
    previous: tuple[str, ...],
    output: str,
) -> None:
    """Check that a SELECTOR is well-formed and, where attributes are given, fits them; print its canonical form."""
    schema = _schema(session, attributes, type_file, parent, previous)
    parsed = parse(text)
    if schema is not None:
        parsed.check(schema)
    if output == JSON:
        say_json({"ok": True, "selector": parsed.text, "attributes": sorted(parsed.attributes)})
    else:
        say(parsed.text)


@selector.command("eval")
@click.argument("text", metavar="SELECTOR")
@click.option("--value", "values", multiple=True, metavar="NAME=VALUE", help="The value of an attribute; repeat it.")
@schema_options
@options.output_option()
@click.pass_obj
@example('penstock selector eval "speed > 30" --attribute speed:integer --value speed=42')
def eval_(  # noqa: PLR0913  # one argument an option
    session: CommandSession,
    *,
    text: str,
    values: tuple[str, ...],
    attributes: tuple[str, ...],
    type_file: str | None,
    parent: tuple[str, ...],
    previous: tuple[str, ...],
    output: str,
) -> None:
    """Say whether a SELECTOR is true of an event: TRUE, FALSE or NULL. The exit status is 0 for TRUE only."""
    schema = _needed(_schema(session, attributes, type_file, parent, previous))
    parsed = parse(text)
    parsed.check(schema)
    row: dict[str, Scalar] = {}
    for written in values:
        name, value = split_pair(written, "NAME=VALUE")
        if name not in schema:
            raise MalformedError(
                "event.unknown-attribute", f"there is no attribute `{name[:80]}`", hint=f"known: {', '.join(schema)}"
            )
        if name in row:
            raise given_twice(written, "an attribute has one value")
        row[name] = parse_value(schema[name].kind, value)
        schema[name].check(row[name])
    truth = evaluate(parsed, row)
    shown = {True: "TRUE", False: "FALSE", None: "NULL"}[truth]
    if output == JSON:
        say_json({"value": truth})
    else:
        say(shown)
    if truth is not True:
        raise RefusedError("selector.not-true", f"the selector is {shown} here")


@selector.command("satisfiable")
@click.argument("text", metavar="SELECTOR")
@schema_options
@options.output_option()
@click.pass_obj
@example('penstock selector satisfiable "speed > 300" --attribute speed:integer:0..200   # no')
def satisfiable_(  # noqa: PLR0913  # one argument an option
    session: CommandSession,
    *,
    text: str,
    attributes: tuple[str, ...],
    type_file: str | None,
    parent: tuple[str, ...],
    previous: tuple[str, ...],
    output: str,
) -> None:
    """Say whether a SELECTOR can be true of any event at all, and show such an event."""
    schema = _needed(_schema(session, attributes, type_file, parent, previous))
    _answer(satisfiable(parse(text), schema), output, "no event satisfies it")


def _comparison(name: str, summary: str, shown: str, no: str) -> None:
    """Make the command for one question about two selectors."""

    @selector.command(name)
    @click.argument("first", metavar="SELECTOR")
    @click.argument("second", metavar="OTHER")
    @schema_options
    @options.output_option()
    @click.pass_obj
    def compare(  # noqa: PLR0913  # one argument an option
        session: CommandSession,
        *,
        first: str,
        second: str,
        attributes: tuple[str, ...],
        type_file: str | None,
        parent: tuple[str, ...],
        previous: tuple[str, ...],
        output: str,
    ) -> None:
        schema = _needed(_schema(session, attributes, type_file, parent, previous))
        question = {"covers": covers, "overlaps": overlaps, "equivalent": equivalent}[name]
        _answer(question(parse(first), parse(second), schema), output, no)

    compare.help = f"{summary}\n\n\b\nExample:\n  {shown}"


_comparison(
    "covers",
    "Say whether SELECTOR is true wherever OTHER is; if not, show an event of which only OTHER is.",
    'penstock selector covers "speed > 30" "speed > 50" --attribute speed:integer',
    "the first does not cover the second",
)
_comparison(
    "overlaps",
    "Say whether SELECTOR and OTHER can be true of the same event, and show one.",
    'penstock selector overlaps "speed > 30" "speed < 50" --attribute speed:integer',
    "no event satisfies both",
)
_comparison(
    "equivalent",
    "Say whether SELECTOR and OTHER are true of the same events; if not, show one that tells them apart.",
    'penstock selector equivalent "speed > 30" "NOT speed <= 30" --attribute speed:integer',
    "they are not equivalent",
)


def _answer(answer: SelectorAnalysis, output: str, no: str) -> None:
    if output == JSON:
        row = None if answer.witness is None else {name: _plain(value) for name, value in answer.witness.items()}
        say_json({"verdict": answer.verdict.value, "witness": row, "by": answer.by})
    else:
        say(answer.verdict.value)
        if answer.witness is not None:
            say(f"for example {_row(answer.witness)}")
    if answer.verdict is AnalysisVerdict.NO:
        raise RefusedError("selector.no", no)
    if answer.verdict is AnalysisVerdict.UNKNOWN:
        raise RefusedError(
            "selector.unknown", "that could not be found out within the limits", hint="ask about simpler selectors"
        )


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
