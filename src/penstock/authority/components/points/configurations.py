"""Which configuration of a component is in force, and which one serves a request (paper 4, 4.1.3). It is pure.

A reconfiguration has a number and an expected time. A component applies it at the expected time or later, and then
writes its apply time. The minimum of all apply times is the base time. A request names the configuration number under
which it was written, and is served

- now, if the number is in force, and no reconfiguration is expected before the request was sent;
- later, after the next reconfiguration was applied, if one is expected before the request was sent, or the number is
  not in force yet;
- under the old configuration, if the number was in force before, and the request was sent before the base time. While
  the base time is not known, it lies between the expected time and the component's own apply time.

No old configuration is kept for longer than LS after the apply time: all requests from before have ended then.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.authority.components.exchange.samples import Configuration, Reconfiguration
from penstock.authority.components.exchange.verification import RoutineRefusedError
from penstock.errors import RefusedError

#: reconfigurations that wait for their expected time, or for one before them
WAITING: Final = 64
#: announcements of reconfigurations whose parts have not all arrived
ANNOUNCEMENTS: Final = 8


@dataclass(slots=True)
class _Past:
    """A configuration that is in force no more."""

    number: int
    configuration: Configuration
    #: of the reconfiguration that ended it
    expected: float
    applied: float
    base: float | None = None


class ReconfigurationParts:
    """Puts the parts of reconfigurations together that one component reads, without what is for others alone."""

    def __init__(self, component: str) -> None:
        self._component = component
        self._kept: OrderedDict[tuple[int, str, int], dict[int, Reconfiguration]] = OrderedDict()

    def add(self, part: Reconfiguration, writer: str) -> Reconfiguration | None:
        """Take in a part that a PAP with a record has written; return the reconfiguration if it was the last one."""
        own = {self._component}
        part = msgspec.structs.replace(
            part,
            certificates={name: part.certificates[name] for name in own & part.certificates.keys()},
            private={name: part.private[name] for name in own & part.private.keys()},
        )
        if part.parts == 1:
            return part
        announcement = part.number, writer, part.announcement
        found = self._kept.setdefault(announcement, {})
        found[part.part] = part
        if len(found) < part.parts:
            while len(self._kept) > ANNOUNCEMENTS:
                self._kept.popitem(last=False)
            return None
        for other in [one for one in self._kept if one[0] == part.number]:
            del self._kept[other]
        whole = [found[number] for number in sorted(found)]
        return msgspec.structs.replace(
            whole[0],
            certificates={name: data for one in whole for name, data in one.certificates.items()},
            withdrawn=tuple(name for one in whole for name in one.withdrawn),
            private={name: data for one in whole for name, data in one.private.items()},
            part=1,
            parts=1,
        )


class ConfigurationTimeline:
    """The configurations of one component. See the module."""

    def __init__(self, first: Configuration, role: str) -> None:
        self.current = first
        self.role = role
        #: the configuration number in force. It also grows with reconfigurations that change nothing here
        self.number = first.number
        self._waiting: dict[int, Reconfiguration] = {}
        self._past: deque[_Past] = deque()

    @property
    def pending(self) -> Reconfiguration | None:
        """The reconfiguration to apply next."""
        return self._waiting.get(self.number + 1)

    @property
    def known(self) -> int:
        """The number of the last reconfiguration of which all before are known too."""
        number = self.number
        while number + 1 in self._waiting:
            number += 1
        return number

    def plan(self, reconfiguration: Reconfiguration) -> bool:
        """Take in a reconfiguration; return whether it is a new one.

        Raises `RefusedError` (`component.reconfiguration`) for another one with the same number, one that was applied,
        and too many.
        """
        known = self._waiting.get(reconfiguration.number)
        if reconfiguration.number <= self.number or (known is not None and not known.agrees(reconfiguration)):
            raise _refused(reconfiguration.number, f"the configuration number is {self.number}")
        if known is not None:
            return False
        if len(self._waiting) >= WAITING:
            raise _refused(reconfiguration.number, "too many wait")
        self._waiting[reconfiguration.number] = reconfiguration
        return True

    def after(self) -> Configuration:
        """Return the configuration after the pending reconfiguration: the same one if nothing changes here."""
        return self.current if self.pending is None else self.pending.changed(self.current, self.role)

    def suspends(self, now: float) -> bool:
        """Return whether a request that is sent now must wait until the pending reconfiguration is applied."""
        pending = self.pending
        return pending is not None and now > pending.expected

    def apply(self, now: float) -> None:
        """Put the pending reconfiguration in force. Raises `ValueError` before its expected time, or without one."""
        pending = self.pending
        if pending is None or now < pending.expected:
            raise ValueError("no reconfiguration can be applied yet")
        after = self.after()
        self._past.append(_Past(self.number, self.current, pending.expected, now))
        del self._waiting[pending.number]
        self.current, self.number = after, pending.number

    def base(self, number: int, time: float) -> None:
        """Take in the base time of a reconfiguration."""
        for past in self._past:
            if past.number == number - 1:
                past.base = time

    def forget(self, now: float) -> None:
        """Drop old configurations that no valid request can need."""
        while self._past and self._past[0].applied + self._past[0].configuration.lifespan < now:
            self._past.popleft()

    def all_kept(self) -> list[Configuration]:
        """Return the configuration in force and the old ones that are kept."""
        return [self.current, *(past.configuration for past in self._past)]

    def serving(self, number: int, sent: float) -> Configuration | None:
        """Return the configuration under which a request is served, and None if that is to be seen later.

        Raises `RefusedError` (`component.old-configuration`) if it is not served.
        """
        if number > self.number:
            return None
        if number == self.number:
            return None if self.suspends(sent) else self.current
        for past in self._past:
            if past.number == number:
                if sent <= (past.expected if past.base is None else past.base):
                    return past.configuration
                if past.base is None and sent <= past.applied:
                    return None
        raise RoutineRefusedError(
            "component.old-configuration",
            f"a request was sent under configuration {number}, and {self.number} is in force",
            hint="apply the reconfiguration, and ask again",
        )

    def kept(self, number: int) -> Configuration | None:
        """Return the configuration with a number, if it is in force or kept."""
        if number == self.number:
            return self.current
        return next((past.configuration for past in self._past if past.number == number), None)


def _refused(number: int, why: str) -> RefusedError:
    return RefusedError(
        "component.reconfiguration",
        f"reconfiguration {number} is refused: {why}",
        hint="it may be a copy of an old one, or of a PAP that no longer owns CONF",
    )
