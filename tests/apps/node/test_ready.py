"""What `/ready` says of a node: not while a task fails, policy is not reconciled, or it may not be a broker."""

import asyncio
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

from penstock.apps.node.config import Stamps
from penstock.apps.node.process import Metrics, RunningNode
from penstock.fabric.tasks import failing, keep_running


def ready(*, held: bool = False, is_broker: bool = True, stamps: Stamps = Stamps.REQUIRED) -> tuple[int, bytes]:
    node: Any = RunningNode.__new__(RunningNode)
    node._stopping, node._reloading, node._metrics = asyncio.Event(), object(), Metrics()
    local, policies = SimpleNamespace(held=held), SimpleNamespace(is_broker=is_broker)
    node._node = SimpleNamespace(core=SimpleNamespace(local=local), policies=policies)
    node._loaded = SimpleNamespace(file=SimpleNamespace(stamps=stamps))
    answer = node._is_ready()
    return answer.status, answer.body


def test_a_task_that_fails_makes_a_node_unready() -> None:
    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        assert ready() == (HTTPStatus.OK, b"ready\n")

        async def work() -> None:
            raise ValueError

        task = keep_running("reading policy", work)
        while not failing():
            await asyncio.sleep(0)
        assert ready() == (HTTPStatus.SERVICE_UNAVAILABLE, b"failing: reading policy\n")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert ready() == (HTTPStatus.OK, b"ready\n")

    asyncio.run(main())


def test_a_node_whose_policy_is_not_reconciled_is_not_ready() -> None:
    async def main() -> None:
        assert ready(held=True)[0] == HTTPStatus.SERVICE_UNAVAILABLE
        assert ready(is_broker=False)[0] == HTTPStatus.SERVICE_UNAVAILABLE

    asyncio.run(main())


def test_a_node_that_may_do_without_time_stamps_says_so() -> None:
    async def main() -> None:
        status, body = ready(stamps=Stamps.OPTIONAL)
        assert (status, body.startswith(b"ready\n"), b"time-stamps are optional" in body) == (HTTPStatus.OK, True, True)

    asyncio.run(main())
