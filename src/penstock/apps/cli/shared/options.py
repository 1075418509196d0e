"""The options that many commands share, so that they are the same everywhere."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, TypeVar

import click

from penstock.apps.cli.shared.files import check_private, read_bytes, read_sexp, within
from penstock.apps.cli.shared.names import complete_who
from penstock.apps.cli.shared.session import CommandSession
from penstock.crypto import ProtectedKey, PublicKey, SigningKey, read_key
from penstock.crypto.keys import passphrase_bytes
from penstock.errors import FailedError, MalformedError
from penstock.model.instants import parse_instant
from penstock.trust.capabilities import Right

F = TypeVar("F", bound=Callable[..., Any])

HUMAN = "human"
JSON = "json"
SEXP = "sexp"
#: how an option is written and completed that means a principal
WHO: Final[dict[str, Any]] = {"metavar": "WHO", "shell_complete": complete_who}
RIGHT = click.Choice([right.value for right in Right])


def output_option(*more: str) -> Callable[[F], F]:
    """Add `-o human|json`, and further forms."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice([HUMAN, JSON, *more]),
        default=HUMAN,
        show_default=True,
        help="How to answer: for people or for programs.",
    )


def names_option(function: F) -> F:
    """Add `--names`."""
    return click.option(
        "--names",
        "names_file",
        metavar="FILE",
        help="Your own names for principals (default: $PENSTOCK_NAMES, or names.toml here).",
    )(function)


def at_option(function: F) -> F:
    """Add `--at`."""
    return click.option("--at", metavar="TIME", help="Ask about another time than now, such as 2026-05-01T12:00Z.")(
        function
    )


def write_options(function: F) -> F:
    """Add `--out`, `--overwrite` and `--dry-run`."""
    for option in (
        click.option("--dry-run", is_flag=True, help="Do everything but write the file."),
        click.option("--overwrite", is_flag=True, help="Replace a file that exists."),
        click.option("--out", metavar="FILE", help="Write to this file instead of standard output."),
    ):
        function = option(function)
    return function


def key_options(function: F) -> F:
    """Add `--key` and `--passphrase-file`."""
    for option in (
        passphrase_option,
        click.option("--key", "key_file", metavar="FILE", required=True, help="The private key to sign with."),
    ):
        function = option(function)
    return function


def passphrase_option(function: F) -> F:
    """Add `--passphrase-file`."""
    return click.option(
        "--passphrase-file",
        metavar="FILE",
        help="Take the passphrase of the key from the first line of a file; otherwise it is asked for.",
    )(function)


def type_file_options(function: F) -> F:
    """Add `--type-file`, `--parent` and `--previous`."""
    return click.option(
        "--type-file", metavar="FILE", help="A signed event type; its attributes can then be named by their names."
    )(shelf_options(function))


def shelf_options(function: F) -> F:
    """Add `--parent` and `--previous`."""
    for option in (
        click.option(
            "--previous", multiple=True, metavar="FILE", help="An earlier version of the type, to compare with."
        ),
        click.option("--parent", multiple=True, metavar="FILE", help="A type that the type extends."),
    ):
        function = option(function)
    return function


def moment(at: str | None, session: CommandSession) -> datetime:
    """Return the time that a question is about. Raises `MalformedError` (`date.malformed`)."""
    return session.now if at is None else parse_instant(at)


def open_key(name: str, passphrase_file: str | None) -> SigningKey:
    """Read a private key, and ask for its passphrase where it has one.

    Raises `MalformedError` (`key.public-only` and what reading it raises), `RefusedError` (`file.exposed`,
    `key.passphrase`).
    """
    value = read_sexp(name)
    with within(name):
        stored = read_key(value)
    if not isinstance(stored, PublicKey):
        check_private(name)
    if isinstance(stored, ProtectedKey):
        secret = passphrase(passphrase_file, f"Passphrase of {name}")
        with within(name):
            return stored.open(secret)
    if isinstance(stored, SigningKey):
        return stored
    raise MalformedError("key.public-only", f"`{name}` is a public key and cannot sign", hint="give the private key")


def passphrase(file: str | None, prompt: str, *, confirm: bool = False) -> bytes:
    """Return a passphrase from a file or a prompt, never from the command line, which others can see.

    Raises `MalformedError` (`key.passphrase-text`) when a file holds no text, and `FailedError` (`cli.aborted`) where
    nobody answers.
    """
    if file is None:
        text = _asked(prompt, confirm=confirm)
    else:
        try:
            check_private(file)
            text = read_bytes(file).decode().partition("\n")[0].removesuffix("\r")
        except UnicodeDecodeError:
            raise MalformedError("key.passphrase-text", f"`{file}` holds no text") from None
    return passphrase_bytes(text)


def _asked(prompt: str, *, confirm: bool) -> str:
    try:
        return str(click.prompt(prompt, hide_input=True, confirmation_prompt=confirm, err=True))
    except click.Abort:
        raise FailedError(
            "cli.aborted",
            "stopped: no passphrase was given",
            hint="where nobody can be asked, name a file: --passphrase-file, or --kek-passphrase-file",
        ) from None
