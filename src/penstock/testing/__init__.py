"""For tests of programs that use Penstock: `network`, a network with a real broker in this process.

The other modules are internal: the suites that every adapter passes, and real servers on free ports.

- `local_network` implements `network`.
- `fabric_suite` tests an adapter of `penstock.fabric`, with a manual clock.
- `store_suite` tests an adapter of `penstock.store`.
- `nats`, `postgres`, `kafka` and `s3` start real servers, `server_process` runs and ends their processes.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.testing.local_network import LocalNetwork as LocalNetwork
    from penstock.testing.local_network import network as network

__all__ = ["LocalNetwork", "network"]


def __getattr__(name: str) -> object:
    # Loaded lazily: the servers and suites beside it need no broker.
    if name not in __all__:
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    from penstock.testing import local_network  # noqa: PLC0415  # see above

    return getattr(local_network, name)
