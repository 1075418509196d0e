"""What a broker told, which may have any form: it is shown as far as it has the one that is expected."""

from collections.abc import Mapping

from penstock.codec.wire import Wire


def table(value: Wire) -> Mapping[str, Wire]:
    """Return a table, or an empty one for what is none."""
    return value if isinstance(value, dict) else {}


def listed(value: Wire) -> list[Wire]:
    """Return a list, or an empty one for what is none."""
    return value if isinstance(value, list) else []
