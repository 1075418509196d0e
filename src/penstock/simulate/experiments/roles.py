"""The roles that processes of experiments play: `python -m … ROLE WORD…`. Each says when it is ready."""

import asyncio
from collections.abc import Sequence

from penstock.simulate.experiments.experiment import OpenLinks
from penstock.simulate.experiments.response_times import serve_point


def play(words: Sequence[str], links: OpenLinks) -> None:
    """Play a role until standard input ends."""
    match words:
        case ["point", url, prefix, *rest]:
            asyncio.run(serve_point(links, url, prefix, rest))
        case _:
            raise ValueError(f"unknown role: {words}")
