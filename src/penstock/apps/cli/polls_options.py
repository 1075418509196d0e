"""What the commands about polls share: the NATS servers that carry one, and files with what somebody has signed."""

from typing import Final, TypeVar

import click

from penstock.apps.cli import options
from penstock.apps.cli.files import read_sexp, within
from penstock.errors import MalformedError, RefusedError
from penstock.fabric.nats_login import LoginError, NatsLogin, address
from penstock.trust.signed import Claim, SignedValue, read_signed

V = TypeVar("V", bound=Claim)
_LOGIN: Final = ("credentials", "nkey", "token_file", "tls_ca", "tls_cert", "tls_key")


def nats_options(function: options.F) -> options.F:
    """Add `--nats` and `--nats-login`."""
    for option in (
        click.option(
            "--nats-login",
            "login_files",
            multiple=True,
            metavar="WHAT=FILE",
            help=f"What the servers want to see: {', '.join(_LOGIN)}; repeat it.",
        ),
        click.option(
            "--nats",
            "servers",
            multiple=True,
            envvar="PENSTOCK_NATS",
            metavar="URL",
            help="NATS servers that carry the poll; repeat it ($PENSTOCK_NATS).",
        ),
    ):
        function = option(function)
    return function


def nats_login(servers: tuple[str, ...], login_files: tuple[str, ...]) -> NatsLogin | None:
    """Return how to get into the servers that were named, if any. Raises `MalformedError` (`cli.usage`)."""
    files = dict(each.partition("=")[::2] for each in login_files)
    if not all(files.values()) or not set(files) <= set(_LOGIN) or (files and not servers):
        raise MalformedError(
            "cli.usage", "--nats-login is WHAT=FILE, beside --nats", hint=f"WHAT is {', '.join(_LOGIN)}"
        )
    try:
        return NatsLogin(tuple(map(address, servers)), **files) if servers else None
    except LoginError as error:
        raise MalformedError(
            "cli.usage", "--nats is no address of a server", hint="such as nats://localhost:4222"
        ) from error


def read_said(file: str, kind: type[V]) -> SignedValue[V]:
    """Read what somebody has signed, and verify it. Raises what `read_sexp`, `read_signed` and verifying raise."""
    value = read_sexp(file)
    with within(file):
        return read_signed(value, kind).verify()


def unknown_poll(wanted: str) -> RefusedError:
    """Return the error for a poll that is not there, or of which too little is said."""
    return RefusedError("poll.unknown", f"no one poll begins with `{wanted[:80]}`", hint="give more of its digits")
