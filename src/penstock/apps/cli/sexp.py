"""`penstock sexp` and `penstock spki`: convert S-expressions, and reduce lists of rights."""

import sys

import click

from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.files import read_sexp, read_sexps, within
from penstock.apps.cli.shared.session import Verbs
from penstock.codec.sexp import SExp
from penstock.codec.sexp import advanced as to_advanced
from penstock.codec.sexp import canonical as to_canonical
from penstock.codec.sexp import transport as to_transport
from penstock.trust.redtest import reduce_case


@click.group(cls=Verbs)
def sexp() -> None:
    """Show and convert S-expressions in their three forms."""


@option_class
class _Show:
    file: str = argument(default="-")
    width: int = option(
        "--width", type=click.IntRange(20, 1000), default=100, show_default=True, help="Break lines at this width."
    )
    output: str = output_option()


@command(sexp, example="penstock sexp show met.cert --width 80")
def show(options: _Show) -> CommandAnswer:
    """Show all values in FILE, or on standard input, in the advanced form, which people can read."""
    values = read_sexps(options.file)
    lines = (line for value in values for line in to_advanced(value, width=options.width).split("\n"))
    return CommandAnswer({"values": [to_transport(value).decode() for value in values]}, lines)


@option_class
class _OneValue:
    file: str = argument(default="-")
    output: str = output_option()


@command(sexp, example="penstock sexp canonical met.cert | sha256sum")
def canonical(options: _OneValue) -> CommandAnswer:
    """Print the one value in FILE in the canonical form, which signatures cover."""
    return form_answer(read_sexp(options.file), "canonical")


@command(sexp, example="penstock sexp transport met.cert   # one line that survives mail and chat")
def transport(options: _OneValue) -> CommandAnswer:
    """Print the one value in FILE in the transport form: base64 in braces."""
    return form_answer(read_sexp(options.file), "transport")


def form_answer(value: SExp, form: str) -> CommandAnswer:
    """Return a value in one of the three forms, as bytes; for programs, in its transport form.

    The canonical form has no end of line, and gets one only on a terminal.
    """
    match form:
        case "canonical":
            data = to_canonical(value) + (b"\n" if sys.stdout.isatty() else b"")
        case "transport":
            data = to_transport(value) + b"\n"
        case _:
            data = to_advanced(value).encode() + b"\n"
    return CommandAnswer({"value": to_transport(value).decode()}, [data])


# ----------------------------------------------------------------------------------------------------------------------
# `penstock spki`: reduce lists of rights, as other SPKI implementations do.


@click.group(cls=Verbs)
def spki() -> None:
    """Reduce lists of rights as in RFC 2693."""


@option_class
class _Reduce:
    file: str = argument(default="-")
    form: str = option(
        "--form",
        type=click.Choice(["canonical", "transport", "advanced"]),
        default="canonical",
        show_default=True,
        help="Print the list in this form.",
    )
    output: str = output_option()


@command(spki, example="penstock spki reduce < case.sexp")
def reduce(options: _Reduce) -> CommandAnswer:
    """Reduce the `(red-test (acl …) (sequence …) …)` in FILE, or on standard input, to an `(acl …)`.

    Signatures are ignored: the cases test reduction only. The notation of older implementations is accepted if it is
    unambiguous: limits as `(g x)`, dates as a year, binary k and n, relative names. Unknown fields are refused.
    """
    case = read_sexp(options.file)
    with within(options.file):
        reduced = reduce_case(case)
    return form_answer(reduced, options.form)
