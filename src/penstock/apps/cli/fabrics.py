"""`penstock fabric`: run what a fabric needs."""

import asyncio
import json
from pathlib import Path

import click

from penstock.apps.cli.shared.broker_client import talk
from penstock.apps.cli.shared.commands import argument, command, option, option_class, output_option, wants_data
from penstock.apps.cli.shared.session import Verbs
from penstock.apps.cli.shared.terminal import show


@click.group(cls=Verbs)
def fabric() -> None:
    """Run what a fabric needs: the keeper of a DDS domain."""


@option_class
class _Keep:
    address: str = argument(metavar="ADDRESS")
    file: str | None = option(
        "--file",
        metavar="FILE",
        type=click.Path(path_type=str),
        help="Keep persistent topics in this file (default: persistent topics are refused).",
    )
    standby: bool = option(
        "--standby", is_flag=True, help="Wait until the keeper that uses --file has ended, and take its place."
    )
    prefix: str = option(
        "--fabric-prefix",
        default="penstock",
        show_default=True,
        metavar="WORD",
        help="Begin the names of DDS topics with this.",
    )
    output: str = output_option()


@command(
    fabric,
    example="""
penstock fabric keep dds://127.0.0.1/7 --file topics.db
penstock fabric keep dds://127.0.0.1/7 --file topics.db --standby
penstock fabric keep dds://10.0.0.1,10.0.0.2/7?tag=bank
""",
)
def keep(options: _Keep) -> None:
    """Keep the topics of the DDS domain ADDRESS, dds://HOST[,HOST…][/DOMAIN][?tag=TAG], until it is stopped.

    DDS has no server. The keeper holds what topics offer, who owns them, and the samples that late readers get. Run one
    in each domain, and perhaps a stand-by. It prints a line when it is ready. Fabrics whose address has the same hosts,
    domain and tag find it.
    """
    from penstock.fabric.dds_keeper import DdsKeeper  # noqa: PLC0415  # an extra

    async def run(stop: asyncio.Event) -> None:
        file = None if options.file is None else Path(options.file)
        opening = DdsKeeper.open(options.address, file=file, standby=options.standby, prefix=options.prefix)
        async with await opening:
            as_data = json.dumps({"keeper": options.address, "file": options.file})
            # One line, because the program that started it waits for it.
            show([as_data if wants_data() else f"✓ keeps the topics of {options.address}"])
            await stop.wait()

    talk(run)
