"""`penstock net`: how a broker sees the network."""

import asyncio
from collections.abc import Mapping
from typing import Any

import click

from penstock.apps.cli.net.chain import chain
from penstock.apps.cli.net.policy import (
    agree,
    checkpoint,
    end_agreement,
    forget,
    install,
    publish,
    remove,
    require_stamps,
    retire,
    revoke,
)
from penstock.apps.cli.net.stamps import stamp
from penstock.apps.cli.net.status import plain, show_status
from penstock.apps.cli.shared import options
from penstock.apps.cli.shared.broker_client import Call, client_options, talk
from penstock.apps.cli.shared.groups import Verbs, example
from penstock.apps.cli.shared.options import JSON
from penstock.apps.cli.shared.session import say_json
from penstock.codec.wire import Wire


@click.group(cls=Verbs)
def net() -> None:
    """How a broker sees the network, and what owners change in it."""


@net.command()
@client_options
@options.output_option()
@example(
    """
penstock net show --broker penstock://127.0.0.1:7600 --network pito/London --key operator.key
"""
)
def show(*, output: str, **connection: Any) -> None:
    """Ask a broker for its state: brokers and links, sessions, sizes, and how far each owner's policy has come.

    For the operators that its file names, and for its own key.
    """
    call = Call.of(**connection)

    async def ask(_stop: asyncio.Event) -> Mapping[str, Wire]:
        async with call.client() as client:
            return await client.status()

    status = talk(ask)
    if output == JSON:
        say_json({key: plain(value) for key, value in status.items()})
        return
    show_status(status, call.names)


for command in (
    *(publish, revoke, retire, install, remove, agree, end_agreement, forget),
    *(require_stamps, checkpoint, stamp, chain),
):
    net.add_command(command)
