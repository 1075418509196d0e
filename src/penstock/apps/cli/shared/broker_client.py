"""Options and functions of commands that talk to a broker: its address, the identity, and the credentials."""

import asyncio
import select
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from shlex import quote
from typing import Final, TypeVar

import click
from click.shell_completion import CompletionItem

from penstock.apps.cli.shared.commands import option, option_class
from penstock.apps.cli.shared.credentials import load_credentials, load_type
from penstock.apps.cli.shared.names import NameBook
from penstock.apps.cli.shared.options import WHO, Duration, NamesOption, open_key, passphrase_option
from penstock.apps.cli.shared.session import EXPLAINED
from penstock.broker.client.client import Client, TypeSource, connect
from penstock.crypto import SigningKey
from penstock.errors import MalformedError, PenstockError
from penstock.fabric.tasks import waited_for
from penstock.model.names import NetworkName
from penstock.model.principals import Principal
from penstock.store.files.client_files import OmittedArguments
from penstock.store.files.contexts import ContextFile
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import UnverifiedType
from penstock.trust.refusals import LackedRight

T = TypeVar("T")
#: the option for each argument of a connection
_OPTIONS: Final = {"url": "--broker", "network": "--network", "key": "--key"}


def complete_context(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a context."""
    try:
        known = ContextFile.load().contexts
    except PenstockError:
        known = {}
    return [CompletionItem(name) for name in known if name.startswith(incomplete)]


@option_class
class ClientOptions:
    """What a connection needs. Options that are left out come from the environment, or from a context."""

    context: str | None = option(
        "--context",
        metavar="NAME",
        shell_complete=complete_context,
        help="Take what is not given from this context (default: the environment, then $PENSTOCK_CONTEXT, then the "
        "context in use).",
    )
    url: str | None = option(
        "--broker",
        metavar="URL",
        help="Connect to penstock://HOST:PORT, or nats://HOST:PORT with --broker-principal (default: $PENSTOCK_BROKER,"
        " or the context's).",
    )
    network: str | None = option(
        "--network", metavar="OWNER/NAME", help="Use this network (default: $PENSTOCK_NETWORK, or the context's)."
    )
    key_file: str | None = option(
        "--key", metavar="FILE", help="Connect with this private key (default: $PENSTOCK_KEY, or the context's)."
    )
    passphrase_file: str | None = passphrase_option()
    credentials: tuple[str, ...] = option(
        "--credential",
        multiple=True,
        type=click.Path(path_type=str),
        metavar="FILE",
        help="Show the broker these certificates (default: $PENSTOCK_CREDENTIALS, or the context's). Can be repeated.",
    )
    broker_principal: str | None = option(
        "--broker-principal", **WHO, help="Require this broker identity (default: accept any broker of the network)."
    )
    patience: float = option(
        "--connect-timeout",
        type=Duration(),
        default="0s",
        metavar="DURATION",
        help="Retry the connection for this long, such as 30s (default: do not retry).",
    )
    names: NamesOption

    def call(self, type_files: tuple[str, ...] | None = None) -> "Call":
        """Read what the options, the environment and the context name. Raises what reading it raises.

        Without `type_files`, the command is not about a type.
        """
        omitted = OmittedArguments(self.context, _OPTIONS)
        url = self.url or omitted.find("url")
        network = self.network or omitted.find("network")
        key_file = self.key_file or omitted.find("key")
        names = self.names.load(omitted.names_file())
        broker = self.broker_principal or omitted.broker_principal()
        found, credentials = type_files or (), self.credentials or omitted.credential_files()
        if type_files == () and omitted.context.type_file:
            found = (omitted.context.type_file,)
        call = Call(
            url,
            names.network(network),
            open_key(key_file, self.passphrase_file),
            load_credentials(credentials),
            names,
            None if broker is None else names.principal(broker),
            self.patience,
            tuple(map(load_type, found)),
            key_file,
            credentials,
        )
        click.get_current_context().meta[EXPLAINED] = self._explaining(call, omitted, type_files or ())
        return call

    def _explaining(self, call: "Call", omitted: OmittedArguments, type_files: tuple[str, ...]) -> "ExplainOptions":
        given = [
            ("--broker", self.url),
            ("--network", self.network),
            ("--key", self.key_file),
            ("--passphrase-file", self.passphrase_file),
            ("--broker-principal", self.broker_principal),
            ("--names", self.names.names_file),
            *(("--credential", file) for file in self.credentials),
        ]
        return ExplainOptions(
            call,
            " ".join((*omitted.context_option(), *(f"{option} {quote(value)}" for option, value in given if value))),
            type_files,
            has_network=bool(self.network or omitted.context.network),
        )


@dataclass(frozen=True, slots=True)
class ExplainOptions:
    """How `penstock explain` asks about the user of a command that talks to a broker."""

    call: "Call"
    options: str
    type_files: tuple[str, ...]
    has_network: bool

    def complete(self, error: PenstockError) -> None:
        """Let the hint of a refusal for lack of rights name the command that its reader can run."""
        lacked, revoked = error.fields.get("lacked"), error.fields.get("revoked")
        if isinstance(lacked, LackedRight):
            error.hint = lacked.hint(self.command(lacked), revoked if isinstance(revoked, tuple) else ())

    def command(self, lacked: LackedRight) -> str:
        """Return the command that explains why a right is missing; it can be run as it is."""
        names = self.call.names
        if lacked.who != self.call.key.principal:
            return ""
        if isinstance(lacked.about, NetworkName):
            return lacked.command(self.options, names.write, about="" if self.has_network else None)
        given = self.call.types[-1].definition.name if self.call.types else None
        if lacked.about not in (given, None if given is None else given.key):
            return lacked.command(self.options, names.write)
        *parents, last = (quote(file) for file in self.type_files) if self.type_files else ("",)
        files = " ".join((f"--type-file {last}", *(f"--parent {file}" for file in parents))) if last else ""
        return lacked.command(self.options, names.write, about=files)


@option_class
class BrokerTypeOptions:
    """Options for the event type of a request."""

    type_name: str | None = option("--type", metavar="OWNER/NAME[@VERSION]", help="Use this event type.")
    type_files: tuple[str, ...] = option(
        "--type-file",
        multiple=True,
        type=click.Path(path_type=str),
        metavar="FILE",
        help="Read a signed type that the broker may not know, parents first. Without --type the last one is used.",
    )


@dataclass(frozen=True, slots=True)
class Call:
    """A connection to make, as the options describe it."""

    url: str
    network: NetworkName
    key: SigningKey
    credentials: Credentials
    names: NameBook
    broker: Principal | None
    patience: float
    types: tuple[UnverifiedType, ...] = ()
    key_file: str = ""
    credential_files: tuple[str, ...] = ()

    def client(self) -> Client:
        """Return a client that connects when it is entered. Raises `MalformedError` (`client.url`)."""
        return connect(
            self.url,
            key=self.key,
            network=self.network,
            credentials=self.credentials,
            types=self.types,
            broker=self.broker,
            patience=self.patience,
        )

    def type(self, name: str | None) -> TypeSource:
        """Return the type that the options name. Raises `MalformedError` (`cli.type-file`, `name.malformed`)."""
        if name is not None:
            return self.names.type(name)
        if not self.types:
            raise MalformedError("cli.type-file", "no event type is given", hint="give --type, or --type-file")
        return self.types[-1]


def talk(conversation: Callable[[asyncio.Event], Awaitable[T]]) -> T:
    """Run a conversation with a broker. Its event is set when the command is stopped (SIGINT, SIGTERM).

    It is also stopped when the reader of standard output is gone. Raises `BrokenPipeError` then, and what the
    conversation raises.
    """

    async def run() -> T:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        unread: list[BrokenPipeError] = []

        def failed(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
            # What a client's callback prints fails there, and not where the conversation waits.
            error = context.get("exception")
            if isinstance(error, BrokenPipeError) and _is_unread():
                unread.append(error)
                stop.set()
            else:
                loop.default_exception_handler(context)

        loop.set_exception_handler(failed)
        found = await conversation(stop)
        if unread:
            raise unread[0]
        return found

    return asyncio.run(run())


def _is_unread() -> bool:
    """Return whether the reader of standard output is gone."""
    watched = select.poll()
    watched.register(sys.stdout, 0)
    return bool(watched.poll(0))


async def until(stop: asyncio.Event, work: Awaitable[T]) -> T | None:
    """Wait for work, and return its result, or None if the command is stopped first."""
    task, stopped = waited_for(work), waited_for(stop.wait())
    try:
        await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for one in (task, stopped):
            one.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)
