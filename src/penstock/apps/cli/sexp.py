"""`penstock sexp`: S-expressions from one form into another."""

import sys

import click

from penstock.apps.cli.shared.files import read_sexp, read_sexps, within
from penstock.apps.cli.shared.groups import Verbs, example
from penstock.apps.cli.shared.options import JSON, output_option
from penstock.apps.cli.shared.session import say_block, say_json
from penstock.codec.sexp import SExp
from penstock.codec.sexp import advanced as to_advanced
from penstock.codec.sexp import canonical as to_canonical
from penstock.codec.sexp import transport as to_transport
from penstock.trust.redtest import reduce_case


@click.group(cls=Verbs)
def sexp() -> None:
    """S-expressions in their three forms."""


@sexp.command()
@click.argument("file", default="-")
@click.option(
    "--width", type=click.IntRange(20, 1000), default=100, show_default=True, help="Lines no wider than this."
)
@output_option()
@example("penstock sexp show met.cert --width 80")
def show(*, file: str, width: int, output: str) -> None:
    """Show all values in FILE, or on standard input, in the advanced form, which people can read."""
    values = read_sexps(file)
    if output == JSON:
        say_json({"values": [to_transport(value).decode() for value in values]})
        return
    for value in values:
        say_block(to_advanced(value, width=width))


@sexp.command()
@click.argument("file", default="-")
@output_option()
@example("penstock sexp canonical met.cert | sha256sum")
def canonical(*, file: str, output: str) -> None:
    """Print the one value in FILE in the canonical form, which is what signatures are over."""
    write_form(read_sexp(file), "canonical", output)


@sexp.command()
@click.argument("file", default="-")
@output_option()
@example("penstock sexp transport met.cert   # one line that survives mail and chat")
def transport(*, file: str, output: str) -> None:
    """Print the one value in FILE in the transport form: base64 in braces."""
    write_form(read_sexp(file), "transport", output)


def write_form(value: SExp, form: str, output: str) -> None:
    """Print a value in one of the three forms, as the bytes that it is; for programs, its transport form.

    The canonical form has no end of line, and gets one only where a person is reading.
    """
    if output == JSON:
        say_json({"value": to_transport(value).decode()})
        return
    match form:
        case "canonical":
            data = to_canonical(value)
        case "transport":
            data = to_transport(value)
        case _:
            data = to_advanced(value).encode()
    click.echo(data, nl=form != "canonical" or sys.stdout.isatty())


# ----------------------------------------------------------------------------------------------------------------------
# `penstock spki`: reduction by itself, on cases that other SPKI implementations share.


@click.group(cls=Verbs)
def spki() -> None:
    """Reduce lists of rights as RFC 2693 does."""


@spki.command()
@click.argument("file", default="-")
@click.option(
    "--form",
    type=click.Choice(["canonical", "transport", "advanced"]),
    default="canonical",
    show_default=True,
    help="The form in which the list is printed.",
)
@output_option()
@example("penstock spki reduce < case.sexp")
def reduce(*, file: str, form: str, output: str) -> None:
    """Reduce the `(red-test (acl …) (sequence …) …)` in FILE, or on standard input, to an `(acl …)`.

    Signatures are not looked at: the cases are about reduction alone. The notation of older implementations is read
    where it is unambiguous: limits as `(g x)`, dates as a year, binary k and n, relative names. Fields that are not
    known are refused.
    """
    case = read_sexp(file)
    with within(file):
        reduced = reduce_case(case)
    write_form(reduced, form, output)
