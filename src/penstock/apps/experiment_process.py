"""A process of an experiment: `python -m penstock.apps.experiment_process ROLE WORD…`. It says when it is ready."""

import asyncio
import sys
from collections.abc import Sequence

from penstock.apps.answer_links import AnswerLinks
from penstock.simulate.experiments.response_times import serve_point
from penstock.simulate.experiments.sealed_delivery import sealing_broker, sealing_publisher, sealing_subscriber


def play(words: Sequence[str]) -> None:
    """Play a role until standard input ends."""
    match words:
        case ["point", url, prefix, *rest]:
            asyncio.run(serve_point(lambda key, owner: AnswerLinks(key, owner, "127.0.0.1"), url, prefix, rest))
        case ["sealing-broker", number, mode, *rest]:
            asyncio.run(sealing_broker(int(number), mode, *map(int, rest)))
        case ["sealing-publisher", width, port]:
            asyncio.run(sealing_publisher(int(width), int(port)))
        case ["sealing-subscriber", width, port]:
            asyncio.run(sealing_subscriber(int(width), int(port)))
        case _:
            raise ValueError(f"unknown role: {words}")


if __name__ == "__main__":
    play(sys.argv[1:])
