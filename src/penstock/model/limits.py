"""Bounds on event types and topics, and on caches of values. They are constants: all brokers must know the same types.

Each package keeps its own bounds in a module of this name. What a node file can set is in `penstock.broker.limits`,
`penstock.fabric.limits` and `penstock.apps.node.limits`; everything else is the same everywhere.
"""

from typing import Final

#: an event type: attributes, length of its name, and depth of the tree that it is in
TYPE_ATTRIBUTES: Final = 1_024
TYPE_NAME_LENGTH: Final = 256
TYPE_DEPTH: Final = 32
#: entries of a cache of pure functions of values
CACHE_ENTRIES: Final = 10_000
