"""Bounds that a node file can set: those of the process here, and those of its broker in `penstock.broker.limits`.

The bounds of all other packages are the same everywhere. A node file that names one of them is refused.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from types import MappingProxyType, ModuleType
from typing import Final

import penstock.broker.limits as broker_limits
import penstock.codec.limits as codec_limits
import penstock.crypto.limits as crypto_limits
import penstock.fabric.limits as fabric_limits
import penstock.guard.limits as guard_limits
import penstock.model.limits as model_limits
import penstock.moderator.limits as moderator_limits
import penstock.policy.limits as policy_limits
import penstock.selector.limits as selector_limits
import penstock.store.limits as store_limits
import penstock.trust.limits as trust_limits
from penstock.broker.limits import MOST, BrokerLimits

#: what TOML and JSON can both write
_HIGHEST: Final = (1 << 53) - 1
_PACKAGES: Final = (
    *(broker_limits, codec_limits, crypto_limits, fabric_limits, guard_limits, model_limits),
    *(moderator_limits, policy_limits, selector_limits, store_limits, trust_limits),
)


@dataclass(frozen=True, kw_only=True)
class NodeLimits:
    """Bounds of one node. Sizes are in bytes, times in milliseconds."""

    #: the broker itself
    broker: BrokerLimits = field(default_factory=BrokerLimits)
    #: the HTTP pages: bytes of a request, time for one, and simultaneous connections
    http_bytes: int = 8_192
    http_time: int = 5_000
    http_connections: int = 64
    #: lines of the log in a second, so that frequent refusals cannot fill a disk
    log_lines: int = 200
    #: files that each list of the node file names
    policy_files: int = 10_000
    #: refused blocks in the state folder, and their bytes; if full, the sender with most loses its oldest
    quarantine_blocks: int = 4_096
    quarantine_bytes: int = 256 << 20


def _settable(kind: type[NodeLimits | BrokerLimits]) -> dict[str, int]:
    """Return the names of a class's limits, and the highest value of each."""
    return {one.name: one.metadata.get(MOST, _HIGHEST) for one in fields(kind) if one.type is int}


def _names(package: ModuleType) -> Iterator[str]:
    """Yield the names of a package's limits: its constants, and the fields of its classes."""
    for name, value in vars(package).items():
        if isinstance(value, int):
            yield name.lower()
        elif isinstance(value, type) and is_dataclass(value):
            yield from (one.name for one in fields(value) if one.type is int)


_OF_BROKER: Final = _settable(BrokerLimits)
#: all limits that a node file can set, and the highest value of each
SETTABLE: Final[Mapping[str, int]] = MappingProxyType(_OF_BROKER | _settable(NodeLimits))
#: limits that no file can set
FIXED: Final = frozenset(name for package in _PACKAGES for name in _names(package)) - SETTABLE.keys()


def node_limits(chosen: Mapping[str, int]) -> NodeLimits:
    """Return the defaults with some of `SETTABLE` changed."""
    of_broker = {name: value for name, value in chosen.items() if name in _OF_BROKER}
    own = {name: value for name, value in chosen.items() if name not in _OF_BROKER}
    return NodeLimits(broker=BrokerLimits(**of_broker), **own)  # type: ignore[arg-type]  # fields of these names are numbers
