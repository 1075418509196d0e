"""What the commands share that sign for an owner of types: its key, its chain, and the broker that is told."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from penstock.apps.cli.names import Names
from penstock.apps.cli.net_client import Call, client_options
from penstock.apps.cli.options import open_key
from penstock.crypto import SigningKey
from penstock.model.principals import Principal
from penstock.store.policy_chain import ChainFile

F = TypeVar("F", bound=Callable[..., Any])

_SUFFIX: Final = ".chain"


@dataclass(frozen=True, slots=True)
class Desk:
    """Where an owner signs: with its key, into its chain; and whom it tells, as whom."""

    key: SigningKey
    call: Call
    file: ChainFile
    unchecked: bool = False

    @classmethod
    def of(
        cls,
        *,
        chain: str | None,
        as_key: str | None,
        as_passphrase_file: str | None,
        unchecked: bool = False,
        **connection: Any,
    ) -> "Desk":
        """Read what the options name. Raises what reading it raises."""
        call = Call.of(**connection)
        path = Path(connection["key_file"]).with_suffix(_SUFFIX) if chain is None else Path(chain)
        caller = call if as_key is None else replace(call, key=open_key(as_key, as_passphrase_file))
        return cls(call.key, caller, ChainFile(path), unchecked)

    @property
    def principal(self) -> Principal:
        """The owner."""
        return self.key.principal

    @property
    def names(self) -> Names:
        """The reader's names."""
        return self.call.names


def desk_options(function: F) -> F:
    """Add what an owner needs: the options of a connection, `--chain` and `--as`."""
    for option in (
        click.option("--as-passphrase-file", metavar="FILE", help="As --passphrase-file, for the key that --as names."),
        click.option("--as", "as_key", metavar="FILE", help="Connect with another key than the owner's."),
        click.option(
            "--chain",
            metavar="FILE",
            help="The owner's chain of policy events (default: beside the key, its name with .chain).",
        ),
    ):
        function = option(function)
    return client_options(function)


def signing_options(function: F) -> F:
    """Add the options of `desk_options`, and `--unchecked`."""
    return click.option(
        "--unchecked",
        is_flag=True,
        help="Sign where the broker does not tell how far the chain is: it tells the owner, and operators.",
    )(desk_options(function))
