"""One run of the command line: its time and random source, groups of commands, and how errors are reported."""

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from typing import Any, Final, NoReturn

import click

from penstock.errors import FailedError, MalformedError, PenstockError, SelectorError, printable

#: the key under which a command stores the reader's names for principals, for `report`
SPOKEN: Final = "penstock.spoken"
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


def warn(*warnings: Warned) -> None:
    """Print warnings on standard error."""
    for warning in warnings:
        click.echo(printable(f"warning: {warning.message} [{warning.code}]"), err=True)


def speak(text: str, spoken: Mapping[str, str]) -> str:
    """Replace the short forms of principals in a text by the reader's names.

    >>> speak("no one leads from {k:9a…, k:b7…} to k:c3…", {"k:9a…": "pito", "k:b7…": "met"})
    'no one leads from {met, pito} to k:c3…'
    """
    for short, petname in spoken.items():
        text = text.replace(short, petname)
    # A set that was in the order of the keys is now in the order of their names.
    return _SET.sub(lambda found: f"{{{', '.join(sorted(found[1].split(', ')))}}}", text) if spoken else text


def report(error: PenstockError, *, as_json: bool, spoken: Mapping[str, str]) -> None:
    """Print an error on standard error: message and code, the place in a selector, and what to do next.

    `spoken` has the reader's own names for principals, by their short form.
    """
    if as_json:
        data = error.as_dict()
        if isinstance(error, SelectorError):
            data["pointer"] = error.pointer()
        click.echo(json.dumps({"error": data}, indent=2), err=True)
        return
    lines = [f"error: {error}"]
    if isinstance(error, SelectorError) and error.text:
        lines += [f"  {line}" for line in error.pointer().split("\n")]
    if error.hint:
        lines.append(f"hint: {error.hint}")
    for line in lines:
        click.echo(printable(speak(line, spoken)), err=True)


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


class Nouns(click.Group):
    """A group whose commands are imported only when they are used."""

    def __init__(self, *, nouns: Mapping[str, Noun], **attributes: Any) -> None:
        super().__init__(**attributes)
        self.nouns = nouns

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """Return the names of all commands."""
        return list(self.nouns)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # as click calls it
        """Import one command."""
        noun = self.nouns.get(cmd_name)
        return None if noun is None else noun.load()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # as click calls it
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, noun.help) for name, noun in self.nouns.items()])


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
        spoken: dict[str, str] = {}
        try:
            with self.make_context(name, arguments, **extra) as context:
                # Nested contexts share this, and it outlives them.
                spoken = context.meta.setdefault(SPOKEN, {})
                self.invoke(context)
            sys.stdout.flush()
        except click.exceptions.Exit as leaving:
            sys.exit(leaving.exit_code)
        except BrokenPipeError:
            _quiet_stdout()
            sys.exit(FAILED)
        except (PenstockError, click.ClickException, click.Abort, KeyboardInterrupt, OSError) as error:
            problem = _as_penstock_error(error)
            if isinstance(error, click.exceptions.NoArgsIsHelpError) and not as_json:
                click.echo(f"{error.message}\n", err=True)
            report(problem, as_json=as_json, spoken=spoken)
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
            # click lays out some messages in several lines.
            message = " ".join(error.format_message().split()).rstrip(".")
            return MalformedError("cli.usage", message[:1].lower() + message[1:], hint=f"`{path} --help` shows how")
        case click.ClickException():
            return MalformedError("cli.usage", error.format_message())
        case click.Abort() | KeyboardInterrupt():
            return FailedError("cli.aborted", "stopped")
        case OSError():
            where = "" if error.filename is None else f"`{error.filename}`: "
            return FailedError("file.failed", f"{where}{error.strerror or 'input or output failed'}")


def _quiet_stdout() -> None:
    """Discard buffered output: its reader is gone."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
    except (OSError, ValueError):
        pass


class Verbs(click.Group):
    """The verbs of one noun, in the order in which they are declared.

    `elsewhere` maps verbs that people look for here to the command that has them.
    """

    def __init__(self, *arguments: Any, elsewhere: Mapping[str, str] | None = None, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.elsewhere = elsewhere or {}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a verb. Raises `MalformedError` (`cli.usage`) for one that another noun has, and what click raises."""
        verb = args[0]
        if verb not in self.commands and verb in self.elsewhere:
            raise MalformedError(
                "cli.usage", f"no such command '{verb}'", hint=f"`{self.elsewhere[verb]} {verb}` is another command"
            )
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # as click calls it
        """Return the names of the verbs."""
        return list(self.commands)
