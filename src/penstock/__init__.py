"""Penstock: access control for publish/subscribe systems that several organisations share.

Owners sign their event types; domains hold capabilities and delegate them; a local broker turns whatever
authority a client can show into one value, a `Restriction`, and enforces it on every event.

Import from the rooms: `penstock.selector`, `penstock.trust`, `penstock.guard` and so on. Importing this package
alone imports none of them; `penstock.connect`, the client's way in, is fetched when it is first used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.broker.client import connect as connect

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name == "connect":
        from penstock.broker.client import connect  # noqa: PLC0415  # importing the package alone must be fast

        return connect
    raise AttributeError(name)
