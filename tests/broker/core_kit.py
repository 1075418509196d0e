"""A core by itself: it has neither links nor keys, and it reports to the test alone."""

from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import count

from tests.broker.sports import NOW

from penstock.broker.core.core import Core
from penstock.broker.core.exchange import Outward
from penstock.broker.core.reports import LinkReport
from penstock.broker.core.settings import NodeSettings
from penstock.broker.local.requests import RequestReport
from penstock.errors import PenstockError
from penstock.guard import Recorder
from penstock.model.events import TransitEvent
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.trust.credentials import Credentials
from penstock.trust.discovery import no_online_checker
from penstock.trust.validity import OnlineTest, Validity


class LonePorts:
    """What surrounds a core by itself. It remembers what it receives, and says no to all that it is asked."""

    def __init__(self) -> None:
        self.codes: list[str] = []
        self.woken: list[datetime] = []
        self.outputs: list[Outward] = []

    def report(self, report: RequestReport | LinkReport | PenstockError) -> None:
        self.codes.append(report.code)

    def carry_out(self, output: Outward) -> None:
        self.outputs.append(output)

    def wake(self, due: datetime) -> None:
        self.woken.append(due)

    def do_due(self) -> None: ...

    def rights_changed(self) -> None: ...

    def remembers(self, broker: Principal) -> bool:
        return False

    def check_online(self, test: OnlineTest, certificate: str, now: datetime) -> Validity:
        return no_online_checker(test, certificate, now)

    async def gather(self, bag: Credentials, statements: Sequence[bytes]) -> None: ...

    def reads_as_much(self, peer: Principal, of_type: TypeKey) -> bool:
        return False

    def may_sign(self, broker: Principal, of_type: TypeKey, attributes: tuple[str, ...]) -> bool:
        return False

    def waits_for_keys(self, of_type: TypeKey) -> bool:
        return False

    def take_own(self, now: datetime, event: TransitEvent) -> None: ...

    def soon(self, work: Callable[[], None]) -> None: ...

    def spread(self, events: tuple[TransitEvent, ...]) -> None: ...

    def interests_changed(self) -> None: ...


def lone_core(settings: NodeSettings, ports: LonePorts, clock: Callable[[], datetime] = lambda: NOW) -> Core:
    """Return a core by itself."""
    numbers = count(1)
    recorder = Recorder(
        source="broker",
        sink=lambda _record: None,
        clock=clock,
        timer=lambda: 0,
        ids=lambda: str(next(numbers)),
        revocations=lambda _record: None,
    )
    return Core(settings, recorder, clock, ports)
