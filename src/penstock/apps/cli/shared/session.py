"""What one run of the command line knows about the world: the time, a random source, and how to answer."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import click

from penstock.errors import PenstockError, SelectorError, printable

#: where a command leaves the reader's words for principals, for `report`
SPOKEN: Final = "penstock.spoken"
_SET: Final = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class CommandSession:
    """The time and the random source of one run; tests bring their own."""

    now: datetime
    random: Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class Warned:
    """Something to know about, that does not stop a command."""

    code: str
    message: str

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        return {"code": self.code, "message": self.message}


def say(text: str = "") -> None:
    """Print one line of an answer for people; what a stranger wrote into it cannot begin another one."""
    click.echo(printable(text))


def warn(*warnings: Warned) -> None:
    """Print warnings on standard error."""
    for warning in warnings:
        click.echo(printable(f"warning: {warning.message} [{warning.code}]"), err=True)


def speak(text: str, spoken: Mapping[str, str]) -> str:
    """Put the reader's words for principals into a text that names them by their short form.

    >>> speak("no one leads from {k:9a…, k:b7…} to k:c3…", {"k:9a…": "pito", "k:b7…": "met"})
    'no one leads from {met, pito} to k:c3…'
    """
    for short, petname in spoken.items():
        text = text.replace(short, petname)
    # A set that was in the order of the keys is now in the order of their names.
    return _SET.sub(lambda found: f"{{{', '.join(sorted(found[1].split(', ')))}}}", text) if spoken else text


def report(error: PenstockError, *, as_json: bool, spoken: Mapping[str, str]) -> None:
    """Print an error on standard error: message and code, the place in a selector, and what to do next.

    `spoken` holds the reader's own words for principals, by their short form.
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
    """Say whether `-o json` was asked for, also where the rest of the command line was not understood."""
    joined = " ".join(arguments)
    return any(form in f" {joined} " for form in (" -o json ", " -ojson ", " --output json ", " --output=json "))
