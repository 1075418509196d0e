"""`penstock sexp`: S-expressions from one form into another."""

import sys

import click

from penstock.apps.cli.files import read_sexp, read_sexps
from penstock.apps.cli.groups import Verbs, example
from penstock.apps.cli.session import printable
from penstock.codec.sexp import SExp
from penstock.codec.sexp import advanced as to_advanced
from penstock.codec.sexp import canonical as to_canonical
from penstock.codec.sexp import transport as to_transport


@click.group(cls=Verbs)
def sexp() -> None:
    """S-expressions in their three forms."""


@sexp.command()
@click.argument("file", default="-")
@click.option(
    "--width", type=click.IntRange(20, 1000), default=100, show_default=True, help="Lines no wider than this."
)
@example("penstock sexp show met.cert --width 80")
def show(*, file: str, width: int) -> None:
    """Show all values in FILE, or on standard input, in the advanced form, which people can read."""
    for value in read_sexps(file):
        click.echo(printable(to_advanced(value, width=width)))


@sexp.command()
@click.argument("file", default="-")
@example("penstock sexp canonical met.cert | sha256sum")
def canonical(*, file: str) -> None:
    """Print the one value in FILE in the canonical form, which is what signatures are over."""
    write_form(read_sexp(file), "canonical", newline=sys.stdout.isatty())


@sexp.command()
@click.argument("file", default="-")
@example("penstock sexp transport met.cert   # one line that survives mail and chat")
def transport(*, file: str) -> None:
    """Print the one value in FILE in the transport form: base64 in braces."""
    write_form(read_sexp(file), "transport", newline=True)


def write_form(value: SExp, form: str, *, newline: bool) -> None:
    """Print a value in one of the three forms, as the bytes that it is."""
    match form:
        case "canonical":
            data = to_canonical(value)
        case "transport":
            data = to_transport(value)
        case _:
            data = to_advanced(value).encode()
    click.echo(data, nl=newline)
