"""Events as they are printed: aligned for people, and as a CloudEvent a line, which `penstock pub` and `seal` take."""

import json
from typing import Final

from penstock.apps.cli.describe import value_text
from penstock.model.events import Event
from penstock.model.types import EventType
from penstock.model.values import Scalar

_NARROWEST: Final = 12


def cloud_event(event: Event, source: str) -> str:
    """Return an event as a line of JSON; what cannot be read is null."""
    return json.dumps(
        {
            "specversion": "1.0",
            "id": event.id,
            "source": source,
            "type": str(event.type.name),
            "time": plain(event.time),
            "data": {name: plain(value) for name, value in event.values.items()},
        }
    )


class Rows:
    """Aligns the events of a type below the names of its attributes."""

    def __init__(self, event_type: EventType) -> None:
        names = [attribute.name for attribute in event_type.attributes]
        self._widths = {name: max(_NARROWEST, len(name)) for name in names}

    def heading(self) -> str:
        """Return the line above the events."""
        return "  ".join(["time".ljust(24), *(name.ljust(width) for name, width in self._widths.items())]).rstrip()

    def row(self, event: Event) -> str:
        """Return the line of an event."""
        at = "" if event.time is None else event.time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        shown = [_shown(value).ljust(self._widths.get(name, 0)) for name, value in event.values.items()]
        return "  ".join([at.ljust(24), *shown]).rstrip()


def plain(value: object) -> object:
    """Return a value as JSON has it; an instant is written."""
    return value if value is None or isinstance(value, str | int | float) else value_text(value)  # type: ignore[arg-type]  # an instant is left


def _shown(value: Scalar) -> str:
    return "-" if value is None else value_text(value)
