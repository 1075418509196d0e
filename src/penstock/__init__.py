"""Penstock: access control for publish/subscribe systems that several organisations share.

Owners sign their event types; domains hold capabilities and delegate them; a local broker turns whatever
authority a client can show into one value, a `Restriction`, and enforces it on every event.

Import from the rooms: `penstock.selector`, `penstock.trust`, `penstock.guard` and so on. Importing this package
alone imports none of them.
"""

__version__ = "0.1.0"
