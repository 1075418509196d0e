"""`penstock spki`: reduction by itself, on cases that other SPKI implementations share."""

import click

from penstock.apps.cli.files import read_sexp, within
from penstock.apps.cli.groups import Verbs, example
from penstock.apps.cli.options import output_option
from penstock.apps.cli.sexps import write_form
from penstock.trust.redtest import reduce_case


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
