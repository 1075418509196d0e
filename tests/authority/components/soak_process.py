"""A component of `test_soak` as a process: `NAME ROLE URL FILE`. It writes what happens to FILE, as lines of JSON.

It joins, and leaves on SIGTERM. When it has lost its role, it joins again by itself. A PEP asks all the time.
"""

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.authority.components.kit import KINDS, PAP_KEY, SECOND_PAP_KEY, key_of

from penstock.authority.components.exchange.samples import AttributeQuery, Configuration
from penstock.authority.components.exchange.topics import ComponentKind, TopicLevels
from penstock.authority.components.information.sources import EntityTable, FunctionAttributes
from penstock.authority.components.points.component import Component, ComponentSettings
from penstock.authority.components.points.decision import ConfiguredPolicies, DecisionComponent
from penstock.authority.components.points.enforcement import EnforcementComponent
from penstock.authority.components.points.information import InformationComponent
from penstock.authority.decisions.questions import AccessQuestion
from penstock.errors import PenstockError
from penstock.fabric import Fabric, SystemClock
from penstock.fabric.nats import NatsFabric
from penstock.fabric.tasks import waited_for

PREFIX: Final = "soak"
LEVELS: Final = TopicLevels(lease=6.0)
#: a fault that a test plants, to see that it is found
FAULT: Final = os.environ.get("SOAK_FAULT", "")
#: users are `u0`, `u1`, …, and each one's number is its rank
USERS: Final = 8


async def rank(query: AttributeQuery) -> Mapping[str, object]:
    """Return what a PIP knows of a user."""
    return {"rank": int(query.id[1:])}


class FaultyDecisionComponent(DecisionComponent):
    """A PDP that decides by its first policies, and says that it has applied the others."""

    async def configured(self, configuration: Configuration) -> None:
        """Apply nothing after the first configuration."""
        if not self._policies or self._policies[-1].configuration is configuration:
            await super().configured(configuration)

    def _policies_of(self, configuration: Configuration) -> ConfiguredPolicies:
        return self._policies[-1] if self._policies else super()._policies_of(configuration)


class SoakProcess:
    """One component until it is to leave."""

    def __init__(self, name: str, role: str, path: str) -> None:
        self.name, self.role = name, role
        self.lines = Path(path).open("a", buffering=1, encoding="utf-8")  # noqa: SIM115  # until the process ends
        self.random = random.Random(path)  # noqa: S311  # a choice of questions

    def say(self, what: str, **fields: object) -> None:
        """Write a line."""
        self.lines.write(json.dumps({"what": what, "time": time.time(), **fields}) + "\n")

    def note(self, error: PenstockError) -> None:
        """Record a report: a component that has lost its role joins again by itself."""
        self.say("note", code=error.code, more=error.fields.get("more", 0))
        if error.code == "component.role-lost":
            self.say("joining")
        elif error.code == "component.rejoined":
            self.say("joined")

    def component(self, fabric: Fabric) -> Component:
        """Return the component, which has not joined."""
        kind, administrators = KINDS[self.role[:2]], frozenset({PAP_KEY.principal, SECOND_PAP_KEY.principal})
        settings = ComponentSettings(
            domain="bank", id=self.name, kind=kind, role=self.role, administrators=administrators, levels=LEVELS
        )
        named: dict[str, Any] = {"note": self.note}
        if kind is ComponentKind.PIP:
            source = FunctionAttributes(rank, EntityTable("subject", "user", {"rank": "rank"}), SystemClock())
            return InformationComponent(fabric, key_of(self.name), settings, sources=[source], **named)
        kinds: dict[ComponentKind, type[Component]] = {
            ComponentKind.PEP: EnforcementComponent,
            ComponentKind.PDP: FaultyDecisionComponent if FAULT == "old-policy" else DecisionComponent,
        }
        return kinds.get(kind, Component)(fabric, key_of(self.name), settings, **named)

    async def run(self, url: str) -> None:
        """Join, and work until this task is cancelled."""
        async with await self.connected(url) as fabric:
            component = self.component(fabric)
            self.say("joining")
            if FAULT == "silent-join" and self.name == "pip0":
                await asyncio.Event().wait()
            try:
                await component.join()
            except PenstockError as error:
                self.say("refused", code=error.fields.get("reason", error.code))
                return
            self.say("joined")
            try:
                if isinstance(component, EnforcementComponent):
                    await self.ask(component)
                await asyncio.Event().wait()
            finally:
                await component.leave()

    async def connected(self, url: str) -> NatsFabric:
        """Return the fabric, as soon as the server answers on a machine with too much to do."""
        while True:
            try:
                return await NatsFabric.connect(url, prefix=PREFIX)
            except PenstockError as error:
                self.note(error)

    async def ask(self, point: EnforcementComponent) -> None:
        """Ask all the time."""
        while True:
            user, action, asked = self.random.randrange(USERS), self.random.choice(("look", "withdraw")), time.time()
            try:
                decided = await point.decide(AccessQuestion.of(("user", f"u{user}"), action, ("account", "7")))
                bases = [one.revision for answer in decided.answers for one in answer.value.rests_on]
                self.say("decided", asked=asked, user=user, action=action, effect=decided.effect, revisions=bases)
            except PenstockError as error:
                self.say("undecided", code=error.code)
            await asyncio.sleep(self.random.uniform(0.1, 0.6))


async def main(name: str, role: str, url: str, path: str) -> None:
    """Run until a signal comes."""
    process = SoakProcess(name, role, path)
    running = waited_for(process.run(url))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    await asyncio.wait((running,))
    if not running.cancelled():
        running.result()
    process.say("left")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
