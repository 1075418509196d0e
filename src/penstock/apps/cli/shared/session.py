"""One run of the command line: its time and random source, groups of commands, and how errors are reported."""

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from typing import Any, Final, NoReturn, TextIO

import click

from penstock.apps.cli.shared.renames import current_command
from penstock.errors import FailedError, MalformedError, PenstockError, SelectorError, did_you_mean, printable

#: the key under which a command stores the reader's names for principals, for `report`
SPOKEN: Final = "penstock.spoken"
#: the key of the run's `OldSpellings`
OLD_SPELLINGS: Final = "penstock.old-spellings"
#: the key under which a command that talks to a broker stores how `penstock explain` asks about its user, for `report`
EXPLAINED: Final = "penstock.explained"
#: more characters than the first sentence of a help text has
_WHOLE: Final = 1_000
_SET: Final = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class CommandSession:
    """The time and the random source of one run; tests bring their own."""

    now: datetime
    random: Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning, which does not stop a command."""

    code: str
    message: str

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        return {"code": self.code, "message": self.message}


def say(text: str = "") -> None:
    """Print one line of an answer for people. Line breaks in it are escaped, because strangers wrote parts of it."""
    click.echo(printable(text))


def aside(text: str) -> None:
    """Print text on standard error. If its reader is gone, or it cannot be written, drop it: the command goes on."""
    try:
        click.echo(text, err=True)
    except BrokenPipeError:
        _discard(sys.stderr)
    except OSError:
        pass


def warn(*warnings: Warned) -> None:
    """Print warnings on standard error."""
    for warning in warnings:
        aside(printable(f"warning: {warning.message} [{warning.code}]"))


@dataclass(frozen=True, slots=True)
class OldSpellings:
    """The warnings of one run about old spellings. With `-o json` they follow the answer, or are part of the error."""

    as_json: bool
    warnings: list[Warned] = field(default_factory=list)

    def add(self, message: str) -> None:
        """Warn of one."""
        self.warnings.append(Warned("cli.renamed", message))
        if not self.as_json:
            warn(self.warnings[-1])


def speak(text: str, spoken: Mapping[str, str]) -> str:
    """Replace the short forms of principals in a text by the reader's names.

    >>> speak("no one leads from {k:9a…, k:b7…} to k:c3…", {"k:9a…": "pito", "k:b7…": "met"})
    'no one leads from {met, pito} to k:c3…'
    """
    for short, petname in spoken.items():
        text = text.replace(short, petname)
    # A set that was in the order of the keys is now in the order of their names.
    return _SET.sub(lambda found: f"{{{', '.join(sorted(found[1].split(', ')))}}}", text) if spoken else text


def report(error: PenstockError, *, as_json: bool, spoken: Mapping[str, str], warnings: Sequence[Warned] = ()) -> None:
    """Print an error on standard error: message and code, the place in a selector, and what to do next.

    `spoken` has the reader's own names for principals, by their short form. With `-o json` the warnings are beside the
    error, because a program reads all of it as one object.
    """
    if as_json:
        data = error.as_dict()
        if isinstance(error, SelectorError):
            data["pointer"] = error.pointer()
        beside = {"warnings": [one.as_dict() for one in warnings]} if warnings else {}
        aside(json.dumps({"error": data, **beside}, indent=2))
        return
    lines = [f"error: {error}"]
    if isinstance(error, SelectorError) and error.text:
        lines += [f"  {line}" for line in error.pointer().split("\n")]
    if error.hint:
        lines.append(f"hint: {error.hint}")
    for line in lines:
        aside(printable(speak(line, spoken)))


def wants_json(arguments: list[str]) -> bool:
    """Return whether `-o json` was given, even if the rest of the command line is malformed."""
    joined = " ".join(arguments)
    return any(form in f" {joined} " for form in (" -o json ", " -ojson ", " --output json ", " --output=json "))


# ----------------------------------------------------------------------------------------------------------------------
# Groups of commands. Nouns are imported only when they are used, and all errors are handled in `Root.main`.


FAILED = 3


@dataclass(frozen=True, slots=True)
class Noun:
    """A command that is imported only when it is used: `module:attribute`, and its line in the list."""

    where: str
    help: str
    #: the extra that must be installed for it
    extra: str = ""

    def load(self) -> click.Command:
        """Import the command. Raises `FailedError` (`cli.extra`) if its extra is not installed."""
        module, _, attribute = self.where.partition(":")
        try:
            command = getattr(import_module(module), attribute)
        except ModuleNotFoundError as error:
            if not self.extra:
                raise
            raise FailedError(
                "cli.extra",
                f"this command needs `{error.name}`, which is not installed",
                hint=f"pip install 'penstock[{self.extra}]'",
            ) from error
        if not isinstance(command, click.Command):
            raise TypeError(f"{self.where} is not a command")
        return command


class _Commands(click.Group):
    """A group that suggests a command for one that it does not have.

    `elsewhere` maps commands that people look for here to the noun that has them, `meant` other words to commands.
    """

    def __init__(
        self,
        *arguments: Any,
        elsewhere: Mapping[str, str] | None = None,
        meant: Mapping[str, str] | None = None,
        **attributes: Any,
    ) -> None:
        super().__init__(*arguments, **attributes)
        self.elsewhere = elsewhere or {}
        self.meant = meant or {}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command. Raises `MalformedError` (`cli.usage`) for one that does not exist, and what click raises."""
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            if name in self.elsewhere:
                hint = f"did you mean `{self.elsewhere[name]} {name}`?"
            elif name in self.meant:
                hint = f"did you mean `{ctx.command_path} {self.meant[name]}`?"
            else:
                hint = did_you_mean(name, known) or f"`{ctx.command_path} --help` lists all"
            raise MalformedError("cli.usage", f"no such command `{name[:80]}`", hint=hint)
        return super().resolve_command(ctx, args)


class Nouns(_Commands):
    """A group whose commands are imported only when they are used. They are listed in sections."""

    def __init__(self, *, sections: Mapping[str, Mapping[str, Noun]], **attributes: Any) -> None:
        super().__init__(**attributes)
        self.sections = sections
        self.nouns = {name: noun for section in sections.values() for name, noun in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """Return the names of all commands."""
        return list(self.nouns)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # as click calls it
        """Import one command."""
        noun = self.nouns.get(cmd_name)
        return None if noun is None else noun.load()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # as click calls it
        """List the commands without importing them."""
        widest = max(map(len, self.nouns))
        for title, nouns in self.sections.items():
            with formatter.section(title):
                # The texts of all sections begin in one column.
                formatter.write_dl([(name.ljust(widest), noun.help) for name, noun in nouns.items()])


class Root(Nouns):
    """The command `penstock` itself."""

    def main(  # type: ignore[override]  # click has overloads for its two modes; this group has one
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        **extra: Any,
    ) -> NoReturn:
        """Run, and turn every error into a message and an exit status."""
        arguments = list(sys.argv[1:] if args is None else args)
        extra.pop("standalone_mode", None)
        extra.pop("windows_expand_args", None)
        name = prog_name or "penstock"
        self._main_shell_completion(extra, name, complete_var)
        as_json = wants_json(arguments)
        old = OldSpellings(as_json)
        arguments, message = current_command(arguments)
        if message:
            old.add(message)
        meta: dict[str, Any] = {}
        try:
            with self.make_context(name, arguments, **extra) as context:
                # Nested contexts share this, and it outlives them.
                meta = context.meta
                meta[OLD_SPELLINGS] = old
                self.invoke(context)
            sys.stdout.flush()
            if as_json:
                warn(*old.warnings)
        except click.exceptions.Exit as leaving:
            sys.exit(leaving.exit_code)
        except BrokenPipeError:
            _discard(sys.stdout)
            sys.exit(FAILED)
        except (PenstockError, click.ClickException, click.Abort, KeyboardInterrupt, OSError) as error:
            problem = _as_penstock_error(error)
            if EXPLAINED in meta:
                meta[EXPLAINED].complete(problem)
            if isinstance(error, click.exceptions.NoArgsIsHelpError) and not as_json:
                aside(f"{error.message}\n")
            report(problem, as_json=as_json, spoken=meta.get(SPOKEN, {}), warnings=old.warnings)
            sys.exit(problem.exit_status)
        sys.exit(0)


def _as_penstock_error(
    error: PenstockError | click.ClickException | click.Abort | KeyboardInterrupt | OSError,
) -> PenstockError:
    match error:
        case PenstockError():
            return error
        case click.exceptions.NoArgsIsHelpError():
            return MalformedError("cli.usage", f"`{error.ctx.command_path}` needs a command")
        case click.UsageError():
            path = error.ctx.command_path if error.ctx is not None else "penstock"
            # click lays out some messages in several lines, and makes suggestions of its own.
            text = error.message if isinstance(error, click.NoSuchOption) else error.format_message()
            message = " ".join(text.split()).rstrip(".")
            hint = _suggestion(error) or f"`{path} --help` shows how"
            return MalformedError("cli.usage", message[:1].lower() + message[1:], hint=hint)
        case click.ClickException():
            return MalformedError("cli.usage", error.format_message())
        case click.Abort() | KeyboardInterrupt():
            return FailedError("cli.aborted", "stopped")
        case OSError():
            where = "" if error.filename is None else f"`{error.filename}`: "
            return FailedError("file.failed", f"{where}{error.strerror or 'input or output failed'}")


class BadChoice(click.BadParameter):
    """A value that an option cannot have, with the value that was probably meant."""

    def __init__(self, message: str, ctx: click.Context | None, param: click.Parameter | None, suggestion: str) -> None:
        super().__init__(message, ctx, param)
        self.suggestion = suggestion


def _suggestion(error: click.UsageError) -> str:
    if error.ctx is not None and error.message.startswith(_EXTRA):
        # An argument where an option is needed: a selector, or a type.
        found = error.message.partition("(")[2].rpartition(")")[0]
        flags = {name for one in error.ctx.command.get_params(error.ctx) for name in one.opts}
        if "--where" in flags and _is_selector(found):
            return f'choose events with `--where "{found}"`'
        if "--type" in flags and "/" in found:
            return f"choose a type with `--type {found}`"
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        options = (one for one in error.ctx.command.get_params(error.ctx) if isinstance(one, click.Option))
        return did_you_mean(error.option_name, [name for one in options for name in (*one.opts, *one.secondary_opts)])
    return error.suggestion if isinstance(error, BadChoice) else ""


_EXTRA: Final = "Got unexpected extra argument"


def _is_selector(text: str) -> bool:
    from penstock.selector import parse  # noqa: PLC0415  # most commands need no selectors

    # A single word could be an attribute, but is rather a name.
    with suppress(PenstockError):
        return any(sign in text for sign in "<>= ") and bool(parse(text).attributes)
    return False


def _discard(stream: TextIO) -> None:
    """Discard what a stream has buffered, and whatever follows: its reader is gone."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class Verbs(_Commands):
    """The verbs of one noun, in the order in which they are declared."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # as click calls it
        """Return the names of the verbs."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs with the whole first sentence of their help, which click would cut."""
        known = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        rows = [(name, one.get_short_help_str(_WHOLE)) for name, one in known.items() if one and not one.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)
