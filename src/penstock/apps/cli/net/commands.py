"""`penstock net`: the list of its verbs, and `penstock net show`."""

import asyncio
from collections.abc import Mapping

import click

from penstock.apps.cli.net.chain import chain
from penstock.apps.cli.net.policy import (
    agree,
    checkpoint,
    end_agreement,
    install,
    publish,
    remove,
    remove_profile,
    require_stamps,
    retire,
    revoke,
    stamp,
)
from penstock.apps.cli.net.status import plain, show_status
from penstock.apps.cli.shared.broker_client import ClientOptions, talk
from penstock.apps.cli.shared.commands import CommandAnswer, command, option_class, output_option
from penstock.apps.cli.shared.session import Verbs
from penstock.codec.wire import Wire


@click.group(cls=Verbs)
def net() -> None:
    """Show how a broker sees the network, and change an owner's policy in it."""


@option_class
class _Show:
    client: ClientOptions
    output: str = output_option()


@command(
    net,
    example="""
penstock net show --broker penstock://127.0.0.1:7600 --network pito/London --key operator.key
""",
)
def show(options: _Show) -> CommandAnswer:
    """Show a broker's state: brokers and links, sessions, sizes, and how far each owner's policy has spread.

    For the operators that its file names, and for its own key.
    """
    call = options.client.call()

    async def ask(_stop: asyncio.Event) -> Mapping[str, Wire]:
        async with call.client() as client:
            return await client.status()

    status = talk(ask)
    return CommandAnswer({key: plain(value) for key, value in status.items()}, show_status(status, call.names))


for _command in (
    *(publish, revoke, retire, install, remove, agree, end_agreement, remove_profile),
    *(require_stamps, checkpoint, stamp, chain),
):
    net.add_command(_command)
