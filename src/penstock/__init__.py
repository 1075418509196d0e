"""Penstock: access control for publish/subscribe systems that several organisations share.

Owners sign their event types; domains hold capabilities and delegate them; a local broker turns whatever
authority a client can show into one value, a `Restriction`, and enforces it on every event.

`connect`, the client's way in, and what a program loads from files for it (`load_key`, `load_credentials`,
`load_type`) are fetched when they are first used; everything else is imported from the rooms: `penstock.selector`,
`penstock.trust`, `penstock.guard` and so on. Importing this package alone imports none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.broker.client.client import connect as connect
    from penstock.store.files.client_files import load_credentials as load_credentials
    from penstock.store.files.client_files import load_key as load_key
    from penstock.store.files.client_files import load_type as load_type

__version__ = "0.1.0"
__all__ = ["connect", "load_credentials", "load_key", "load_type"]

#: where names are that are fetched when they are first used, so that importing the package alone is fast
_HOMES: Final = {
    "connect": "penstock.broker.client.client",
    "load_credentials": "penstock.store.files.client_files",
    "load_key": "penstock.store.files.client_files",
    "load_type": "penstock.store.files.client_files",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(name)
    return getattr(import_module(home), name)
