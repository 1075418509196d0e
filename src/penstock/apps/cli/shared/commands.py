"""How a command is declared: its options are the fields of a class, and its answer is a value printed in one place.

    @option_class
    class _Forget:
        petname: str = argument(metavar="NAME")
        dry_run: bool = option("--dry-run", is_flag=True, help="Write nothing.")
        output: str = output_option()
        names: NamesOption

    @command(name, "forget", example="penstock name forget met")
    def forget(options: _Forget) -> CommandAnswer: ...

A field whose type is itself such a class stands for its options, so that commands share groups of options. Fields keep
their order in the help text, and the name of a field is the name of its parameter.
"""

import gc
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from dataclasses import Field, dataclass, field, fields, is_dataclass
from functools import wraps
from typing import Any, Final, TypeVar, dataclass_transform

import click

from penstock.apps.cli.shared.renames import old_options, old_variables, rename_message, renamed_options
from penstock.apps.cli.shared.session import OLD_SPELLINGS, BadChoice, CommandSession, OldSpellings
from penstock.apps.cli.shared.terminal import Shown, show
from penstock.errors import PenstockError, did_you_mean

C = TypeVar("C")

HUMAN: Final = "human"
JSON: Final = "json"
_PARAMETER: Final = "click parameter"

# ----------------------------------------------------------------------------------------------------------------------
# Options.


def option(*names: str, **attributes: Any) -> Any:
    """Declare a field as an option; names and attributes are those of `click.Option`."""
    return field(metadata={_PARAMETER: lambda name: click.Option((*names, name), **_suggesting(attributes))})


def argument(**attributes: Any) -> Any:
    """Declare a field as an argument; attributes are those of `click.Argument`."""
    return field(metadata={_PARAMETER: lambda name: click.Argument((name,), **_suggesting(attributes))})


class _Choice(click.Choice[str]):
    """One of several words. A mistyped one is refused with the word that was probably meant."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the word. Raises `BadChoice`."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            known = [self.normalize_choice(one, ctx) for one in self.choices]
            raise BadChoice(error.message, ctx, param, did_you_mean(str(value), known)) from None


def _suggesting(attributes: dict[str, Any]) -> dict[str, Any]:
    kind = attributes.get("type")
    if not isinstance(kind, click.Choice):
        return attributes
    return {**attributes, "type": _Choice(kind.choices, kind.case_sensitive)}


def output_option(*more: str) -> Any:
    """Declare `-o human|json`, and further forms. The field must be called `output`."""
    return option(
        "-o",
        "--output",
        type=click.Choice([HUMAN, JSON, *more]),
        default=HUMAN,
        show_default=True,
        help="Print for people or for programs.",
    )


@dataclass_transform(kw_only_default=True, frozen_default=True)
def option_class(cls: type[C]) -> type[C]:
    """Make a class the options of a command, or a group of options that commands share."""
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)


def _parameters(kind: type) -> Iterator[click.Parameter]:
    for one in fields(kind):
        if _PARAMETER in one.metadata:
            yield one.metadata[_PARAMETER](one.name)
        else:
            yield from _parameters(_group(one))


def _filled(kind: type[C], given: Mapping[str, Any]) -> C:
    return kind(
        **{
            one.name: given[one.name] if _PARAMETER in one.metadata else _filled(_group(one), given)
            for one in fields(kind)  # type: ignore[arg-type]  # `_parameters` has checked that it is a dataclass
        }
    )


def _group(one: "Field[Any]") -> type:
    if not isinstance(one.type, type) or not is_dataclass(one.type):
        raise TypeError(f"`{one.name}` is neither an option nor a group of options")
    return one.type


# ----------------------------------------------------------------------------------------------------------------------
# Answers.


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """The answer of a command: `data` for programs, `shown` for people. An `error` is raised after the answer.

    Both can be computed late, `data` by a function and `shown` by an iterator, because only one of them is printed.
    """

    data: Mapping[str, object] | Callable[[], Mapping[str, object]]
    shown: Iterable[Shown] = ()
    error: PenstockError | None = None

    def as_data(self) -> Mapping[str, object]:
        """Return the data."""
        return self.data() if callable(self.data) else self.data

    def render(self) -> None:
        """Print the answer as `--output` says. Raises its error, if it has one."""
        if wants_data():
            say_json(self.as_data())
        else:
            show(self.shown)
        if self.error is not None:
            raise self.error


def wants_data() -> bool:
    """Return whether the running command was called with `-o json`."""
    context = click.get_current_context(silent=True)
    return context is not None and context.params.get("output") == JSON


def say_json(answer: Mapping[str, object]) -> None:
    """Print an answer for programs."""
    click.echo(json.dumps(answer, indent=2))


@contextmanager
def one_answer(no: Mapping[str, object]) -> Iterator[None]:
    """Print one JSON object also if a question ends with an error, with `-o json`.

    `no` is the object; `code` and `reason` of the error are added to it.
    """
    try:
        yield
    except PenstockError as error:
        if wants_data():
            say_json({**no, "code": error.code, "reason": error.message})
        raise


def until_answered(resource: AbstractContextManager[C]) -> C:
    """Enter a resource, and leave it when the command has answered, because answers can be computed late."""
    return click.get_current_context().with_resource(resource)


# ----------------------------------------------------------------------------------------------------------------------
# Commands.


class CommandVerb(click.Command):
    """A command that also accepts old spellings of its options, with a warning. `answer` runs it without printing."""

    answer: Callable[[Mapping[str, Any]], CommandAnswer | None]

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and collect garbage from now on, also if that waited until its modules were imported."""
        if not gc.isenabled():
            gc.freeze()
            gc.enable()
        return super().invoke(ctx)

    def make_parser(self, ctx: click.Context) -> Any:
        """Return the parser, which knows the old spellings; they are not options, so no help text has them."""
        parser = super().make_parser(ctx)
        for row, current in renamed_options(ctx):
            old = copy(current)
            old.opts, old.secondary_opts = [row.old], []
            old.add_to_parser(parser, ctx)
        return parser

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, and warn of old spellings."""
        spellings: OldSpellings | None = ctx.meta.get(OLD_SPELLINGS)
        given = [*args]
        rest = super().parse_args(ctx, args)
        if spellings is not None:
            for old, new in (*old_options(ctx, given), *old_variables(ctx)):
                spellings.add(rename_message(old, new))
        return rest


def command(
    group: click.Group | None = None, name: str | None = None, *, example: str = ""
) -> Callable[[Callable[..., CommandAnswer | None]], click.Command]:
    """Make a function a command, in a group or alone.

    The function takes its options, and before them the session if it needs one, as its annotations say. It returns its
    answer, or None if it has printed it already. The example is added to its help text.
    """

    def decorate(function: Callable[..., CommandAnswer | None]) -> click.Command:
        kinds = [kind for of, kind in inspect.get_annotations(function).items() if of != "return"]
        parameters = [one for kind in kinds if kind is not CommandSession for one in _parameters(kind)]
        if len({one.name for one in parameters}) < len(parameters):
            raise TypeError(f"two options of `{function.__name__}` have one name")

        def answer(given: Mapping[str, Any]) -> CommandAnswer | None:
            session = click.get_current_context().obj
            return function(*(session if kind is CommandSession else _filled(kind, given) for kind in kinds))

        @wraps(function)
        def run(**given: Any) -> None:
            found = answer(given)
            if found is not None:
                found.render()

        made = click.command(
            name, cls=CommandVerb, params=parameters, help=with_example(function.__doc__ or "", example)
        )(run)
        made.answer = answer
        if group is not None:
            group.add_command(made)
        return made

    return decorate


def with_example(text: str, example: str) -> str:
    """Return a help text with an example whose layout is kept."""
    # Cleaned here: the example is not indented, so click would keep the indentation of the text above it, and Python
    # 3.13 would not.
    lines = "\n".join(f"  {line}" for line in example.strip().split("\n"))
    return f"{inspect.cleandoc(text)}\n\n\b\nExample:\n{lines}" if example else inspect.cleandoc(text)
