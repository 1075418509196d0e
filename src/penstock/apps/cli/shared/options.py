"""Groups of options that many commands share, and the durations that options take."""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import chain
from math import inf, isnan
from typing import Any, Final

import click

from penstock.apps.cli.shared.commands import CommandAnswer, option, option_class
from penstock.apps.cli.shared.credentials import Shelf, load_type
from penstock.apps.cli.shared.files import (
    as_text,
    check_private,
    check_target,
    read_bytes,
    read_sexp,
    within,
    write_bytes,
)
from penstock.apps.cli.shared.names import NameBook, complete_who, load_names
from penstock.apps.cli.shared.session import CommandSession
from penstock.apps.cli.shared.terminal import Shown
from penstock.codec.sexp import SExp, advanced
from penstock.crypto import ProtectedKey, PublicKey, SigningKey, read_key
from penstock.crypto.keys import passphrase_bytes
from penstock.errors import FailedError, MalformedError, printable
from penstock.model.instants import parse_instant
from penstock.model.types import EventType
from penstock.trust.capabilities import Right
from penstock.trust.certificates import Threshold
from penstock.trust.event_types import VerifiedType

SEXP: Final = "sexp"
#: how an option that names a principal is written and completed
WHO: Final[dict[str, Any]] = {"metavar": "WHO", "shell_complete": complete_who}
RIGHT: Final = click.Choice([right.value for right in Right])
_DURATION: Final = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(ms|s|m|h|d)?", re.ASCII)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def parse_duration(text: str, unit: str = "") -> float | None:
    """Return a duration in seconds, or None if the text is not one. `unit` is that of a plain number.

    >>> parse_duration("10m"), parse_duration("1.5", "s"), parse_duration("1.5")
    (600.0, 1.5, None)
    """
    found = _DURATION.fullmatch(text)
    unit = (found[2] or unit) if found else ""
    return float(found[1]) * _SECONDS[unit] if found and unit else None


class RealNumber(click.FloatRange):
    """A number within bounds, which NaN is not."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it."""
        found = float(super().convert(value, param, ctx))
        if isnan(found):
            self.fail("NaN is not a number", param, ctx)
        return found


class Duration(click.ParamType[float]):
    """A duration such as `500ms`, `30s`, `10m`, `2h` or `1d`, in seconds. A plain number is of the given unit."""

    name = "duration"

    def __init__(self, most: float = inf, *, unit: str = "s", above: float = -1.0) -> None:
        self.most, self.unit, self.above = most, unit, above

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read a duration."""
        seconds = parse_duration(str(value), self.unit)
        if seconds is None or not self.above < seconds <= self.most:
            more = " above 0" if self.above == 0 else ""
            hours = f"{self.most / 3_600:g}h" if self.most >= 3_600 else f"{self.most:g}s"
            limit = "" if self.most == inf else f", at most {hours}"
            self.fail(f"`{printable(str(value)[:40])}` is not a duration{more} such as 30s{limit}", param, ctx)
        return seconds


def html_option() -> Any:
    """Declare `--html`."""
    return option("--html", metavar="FILE", help="Write the report to this file as a self-contained HTML page.")


@option_class
class NamesOption:
    """The option for the reader's petnames."""

    names_file: str | None = option(
        "--names",
        metavar="FILE",
        help="Read your names for principals from this file (default: $PENSTOCK_NAMES, names.toml here, or the file of "
        "the context in use).",
    )

    def load(self, default: str | None = None) -> NameBook:
        """Read the names, from `default` if no file was chosen. Raises as `load_names`."""
        return load_names(self.names_file or default)


@option_class
class AtOption:
    """The option for the time of a question."""

    at: str | None = option(
        "--at", metavar="TIME", help="Ask about this time, such as 2026-05-01T12:00Z (default: now)."
    )

    def moment(self, session: CommandSession) -> datetime:
        """Return the time. Raises `MalformedError` (`date.malformed`)."""
        return session.now if self.at is None else parse_instant(self.at)


def passphrase_option() -> Any:
    """Declare `--passphrase-file`."""
    return option(
        "--passphrase-file",
        metavar="FILE",
        help="Read the key's passphrase from the first line of this file (default: ask for it).",
    )


@option_class
class KeyOptions:
    """Options for the key that a command signs with."""

    key_file: str = option("--key", metavar="FILE", required=True, help="Sign with this private key.")
    passphrase_file: str | None = passphrase_option()

    def open(self) -> SigningKey:
        """Read the key. Raises as `open_key`."""
        return open_key(self.key_file, self.passphrase_file)


@option_class
class OutputFile:
    """Options for the output of a command: a file, or standard output."""

    out: str | None = option("--out", metavar="FILE", help="Write to this file (default: standard output).")
    overwrite: bool = option("--overwrite", is_flag=True, help="Replace a file that exists.")
    dry_run: bool = option("--dry-run", is_flag=True, help="Do everything except write the file.")

    def check(self) -> None:
        """Check early that the file can be written. Raises as `check_target` does."""
        if self.out is not None:
            check_target(self.out, overwrite=self.overwrite)

    @property
    def written(self) -> bool:
        """Whether a file is written."""
        return self.out is not None and not self.dry_run

    def put(self, value: SExp) -> None:
        """Write the file, if there is one and this is not a rehearsal. Raises what `write_bytes` raises."""
        if self.out is not None and not self.dry_run:
            write_bytes(self.out, as_text(value), overwrite=self.overwrite)

    def line(self) -> str:
        """Return a sentence that says what was done."""
        return f"{'would write' if self.dry_run else 'wrote'} {self.out}"

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        return {"file": self.out, "written": self.written}

    def answer(self, value: SExp, data: Mapping[str, object], lines: Iterable[Shown] = ()) -> CommandAnswer:
        """Write a value, and return the answer: people see it if there is no file, or else what was done and `lines`.

        Raises as `put`.
        """
        self.put(value)
        shown = advanced(value).split("\n") if self.out is None else chain([self.line()], lines)
        return CommandAnswer({**data, **self.as_dict()}, shown)


@option_class
class ShelfOptions:
    """Options for types that are needed to verify another type."""

    parent: tuple[str, ...] = option(
        "--parent", multiple=True, metavar="FILE", help="Read a type that the type extends. Can be repeated."
    )
    previous: tuple[str, ...] = option(
        "--previous", multiple=True, metavar="FILE", help="Read an earlier version of the type. Can be repeated."
    )

    def load(self, *more: str) -> Shelf:
        """Read these types, and more. Raises as `Shelf.of`."""
        return Shelf.of(*self.parent, *self.previous, *more)

    def verified(self, file: str, now: datetime) -> tuple[VerifiedType, tuple[Threshold, ...]]:
        """Read and verify a type; return it, and the quorums that its credentials hold.

        Raises what reading and verifying it raise.
        """
        unverified, shelf = load_type(file), self.load()
        with within(file):
            verified = shelf.verify(unverified, now)
            return verified, tuple(unverified.credentials.verify().thresholds().values())


@option_class
class TypeFileOptions:
    """Options for the type in which names of attributes are looked up."""

    type_file: str | None = option(
        "--type-file",
        metavar="FILE",
        help="Read this signed event type, so that attributes can be named by their names.",
    )
    shelf: ShelfOptions

    def load(self, now: datetime) -> EventType | None:
        """Read and verify the type.

        Attributes must not be looked up in a type that somebody else made: a forged one could give one name to another
        attribute. Raises as `ShelfOptions.verified`.
        """
        return None if self.type_file is None else self.shelf.verified(self.type_file, now)[0].event_type


def open_key(name: str, passphrase_file: str | None) -> SigningKey:
    """Read a private key, and ask for its passphrase if it has one.

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

    Raises `MalformedError` (`key.passphrase-text`) if a file contains no text, and `FailedError` (`cli.aborted`) if
    nobody types an answer.
    """
    if file is None:
        text = _asked(prompt, confirm=confirm)
    else:
        try:
            check_private(file)
            text = read_bytes(file).decode().partition("\n")[0].removesuffix("\r")
        except UnicodeDecodeError:
            raise MalformedError("key.passphrase-text", f"`{file}` contains no text") from None
    return passphrase_bytes(text)


def _asked(prompt: str, *, confirm: bool) -> str:
    try:
        return str(click.prompt(prompt, hide_input=True, confirmation_prompt=confirm, err=True))
    except click.Abort:
        raise FailedError(
            "cli.aborted",
            "stopped: no passphrase was given",
            hint="without a terminal, name a file: --passphrase-file, or --kek-passphrase-file",
        ) from None
