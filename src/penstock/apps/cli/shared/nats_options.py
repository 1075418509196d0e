"""Options for the login to a NATS server. They have a module of their own, because fabrics take a while to import."""

from collections.abc import Iterable
from typing import Any, Final

from penstock.apps.cli.shared.commands import option
from penstock.errors import MalformedError
from penstock.fabric.nats_login import LoginError, NatsLogin, address

_NATS_LOGIN: Final = ("credentials", "nkey", "token_file", "tls_ca", "tls_cert", "tls_key")


def nats_login_option() -> Any:
    """Declare `--nats-login`."""
    return option(
        "--nats-login",
        multiple=True,
        metavar="WHAT=FILE",
        help=f"Log in to the servers with a file: {', '.join(_NATS_LOGIN)}. Can be repeated.",
    )


def nats_login(name: str, servers: Iterable[str], login_files: Iterable[str]) -> NatsLogin:
    """Return the login for servers that option `name` names. Raises `MalformedError` (`cli.usage`)."""
    files, servers = dict(each.partition("=")[::2] for each in login_files), tuple(servers)
    if not all(files.values()) or not set(files) <= set(_NATS_LOGIN) or (files and not servers):
        raise MalformedError(
            "cli.usage", f"--nats-login is WHAT=FILE, and needs {name}", hint=f"WHAT is {', '.join(_NATS_LOGIN)}"
        )
    try:
        return NatsLogin(tuple(map(address, servers)), **files)
    except LoginError as error:
        raise MalformedError(
            "cli.usage", f"{name} is not an address of a server", hint="such as nats://localhost:4222"
        ) from error
