"""The roles that processes of experiments play: `python -m … ROLE WORD…`. Each says when it is ready."""

import asyncio
from collections.abc import Sequence

from penstock.simulate.experiments.experiment import OpenLinks
from penstock.simulate.experiments.response_times import serve_point
from penstock.simulate.experiments.sealed_delivery import sealing_broker, sealing_publisher, sealing_subscriber


def play(words: Sequence[str], links: OpenLinks) -> None:
    """Play a role until standard input ends."""
    match words:
        case ["point", url, prefix, *rest]:
            asyncio.run(serve_point(links, url, prefix, rest))
        case ["sealing-broker", number, mode, *rest]:
            asyncio.run(sealing_broker(int(number), mode, *map(int, rest)))
        case ["sealing-publisher", width, port]:
            asyncio.run(sealing_publisher(int(width), int(port)))
        case ["sealing-subscriber", width, port]:
            asyncio.run(sealing_subscriber(int(width), int(port)))
        case _:
            raise ValueError(f"unknown role: {words}")
