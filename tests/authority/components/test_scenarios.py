"""Scenarios of components as data: each file of `scenarios` runs on every fabric.

A file has `[domain]` with the components that are `admitted` to roles, `[policies]` with the rules of policies by name,
`[table]` with what differs from the roles of `kit.TABLE`, `[rules]` with what roles of PSPs may specify, and
`[attributes]` with what PIPs know. `[visited]` has the same of another domain, and its mapping; steps there have
`at = "visited"`. Each of `[[steps]]` has one verb, after which the runner waits until it has
happened:

| verb | what happens, or is expected |
|---|---|
| `pap` | a PAP starts |
| `join` | a component joins; `shows` its certificate of the first domain; with `refused`, it is refused for that |
| `begin` | a component begins to join; `joined` waits for it |
| `has` | a component has this `number`, `role`, `write`, `read`, `combining` |
| `advance` | so many seconds pass |
| `reconfigure` | the PAP announces what changes in roles, expected after `within` seconds |
| `ask` | a PEP asks; `decision` is an effect, or the code of a refusal |
| `freeze` | a component prepares configurations without end |
| `kill`, `leave` | a component or PAP ends without a word, or leaves |
| `specify` | a PSP specifies a policy; `policy` is its identity, or `refused` the reason |
| `withdraw` | a component is no longer admitted to its role |
| `members` | who is a member, as the PAP that acts sees it |
| `waiting` | who has not applied a reconfiguration yet, as that PAP sees it |
| `reads` | the components whose requests a PDP or PIP reads |
| `keeps` | a topic keeps no more than `at_most` samples |
| `reports` | the codes of all errors that were noted since the last `reports` |
"""

import asyncio
import os
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from tests.authority.components.kit import (
    KINDS,
    PAP_KEY,
    SECOND_PAP_KEY,
    STRANGER,
    TABLE,
    administration,
    admitted,
    key_of,
    memory_fabric,
)
from tests.authority.components.points.test_points import policy

from penstock.authority.components.administration.administration_point import AdministrationComponent
from penstock.authority.components.administration.specification import (
    PolicyAdministration,
    PolicyLanguage,
    SpecificationComponent,
    SpecificationRule,
)
from penstock.authority.components.exchange.samples import AttributeQuery, Configuration, RoleConfiguration
from penstock.authority.components.exchange.topics import ComponentKind, TopicLevels
from penstock.authority.components.information.attribute_mapping import (
    ReviewedMapping,
    read_reviewed_mapping,
    review_mapping,
    sign_mapping,
)
from penstock.authority.components.information.sources import EntityTable, FunctionAttributes
from penstock.authority.components.points.component import Component, ComponentSettings
from penstock.authority.components.points.decision import DecisionComponent
from penstock.authority.components.points.enforcement import EnforcementComponent
from penstock.authority.components.points.information import InformationComponent
from penstock.authority.components.points.request_components import ReplyingComponent
from penstock.authority.decisions.questions import AccessQuestion
from penstock.errors import PenstockError
from penstock.fabric import Fabric
from penstock.fabric.nats import NatsFabric
from penstock.fabric.tasks import waited_for
from penstock.roles.engine import SetFact
from penstock.testing.fabric_suite import ManualClock
from penstock.testing.nats import NatsServer
from penstock.trust.validity import ALWAYS, Validity

FILES: Final = sorted(Path(__file__).with_name("scenarios").glob("*.toml"))
PAP_KEYS: Final = {"pap1": PAP_KEY, "pap2": SECOND_PAP_KEY}
VISITED_PAP_KEYS: Final = {"pap9": STRANGER}
_NUMBERS: Final = count()


class Scenario:
    """A domain, its components, and the steps of a file."""

    def __init__(
        self, data: Mapping[str, Any], fabric: Fabric, clock: ManualClock, home: "Scenario | None" = None
    ) -> None:
        self.data, self.fabric, self.clock, self.home = data, fabric, clock, home
        self.name, self.keys = ("bank", PAP_KEYS) if home is None else ("court", VISITED_PAP_KEYS)
        self.administrators = frozenset(key.principal for key in self.keys.values())
        domain = dict(data["domain"])
        self.admitted: dict[str, str] = domain.pop("admitted")
        self.levels = TopicLevels(**domain.pop("levels", {}))
        self.settings = domain
        self.table = {**TABLE}
        self.table = {**TABLE, **{role: self.row(role, row) for role, row in data.get("table", {}).items()}}
        self.components: dict[str, Component] = {}
        self.paps: dict[str, AdministrationComponent] = {}
        self.joining: dict[str, asyncio.Future[None]] = {}
        self.notes: list[str] = [] if home is None else home.notes
        visited = data.get("visited")
        self.visited = None if visited is None else Scenario(visited, fabric, clock, self)

    def row(self, role: str, changed: Mapping[str, Any]) -> RoleConfiguration:
        """Return the configuration of a role with other values."""
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in changed.items()}
        like = str(values.pop("like", role))
        if "policies" in values:
            values["policies"] = tuple(policy(one, self.data["policies"][one]) for one in values["policies"])
        return msgspec.structs.replace(self.table[like], **values)

    def note(self, error: PenstockError) -> None:
        """Record an error."""
        self.notes.append(error.code)

    def mappings(self) -> list[ReviewedMapping]:
        """Return the signed table of this domain; `mapping_valid` says for how many seconds it is valid."""
        if "mapping" not in self.data:
            return []
        author, reviewer = key_of("author"), key_of("reviewer")
        now = datetime.fromtimestamp(self.clock.now(), UTC)
        seconds = self.data.get("mapping_valid")
        validity = ALWAYS if seconds is None else Validity.between(now, now + timedelta(seconds=seconds))
        signed = sign_mapping(self.data["mapping"].encode(), 1, now, author, validity)
        assert self.home is not None
        by = {self.home.name: {reviewer.principal}}
        return [read_reviewed_mapping(review_mapping(signed, now, reviewer), {author.principal}, by)]

    def component(self, name: str, role: str | None, certificates: tuple[bytes, ...] = ()) -> Component:
        """Return a component that has not joined."""
        role = role or self.admitted[name]
        kind = ComponentKind(self.table[role].kind) if role in self.table else KINDS[role.partition("(")[0]]
        settings = ComponentSettings(
            domain=self.name,
            id=name,
            kind=kind,
            role=role,
            administrators=self.administrators,
            certificates=certificates,
            levels=self.levels,
        )
        named: dict[str, Any] = {"clock": self.clock, "note": self.note}
        if kind is ComponentKind.PEP:
            return EnforcementComponent(self.fabric, key_of(name), settings, **named)
        if kind is ComponentKind.PDP:
            return DecisionComponent(self.fabric, key_of(name), settings, mappings=self.mappings(), **named)
        if kind is ComponentKind.PIP:
            knows = self.home if certificates and self.home is not None else self
            return InformationComponent(self.fabric, key_of(name), settings, sources=[knows.source()], **named)
        if kind is ComponentKind.PSP:
            return SpecificationComponent(self.fabric, key_of(name), settings, **named)
        return Component(self.fabric, key_of(name), settings, **named)

    def source(self) -> FunctionAttributes:
        """Return what PIPs know: of users."""
        known: Mapping[str, Mapping[str, object]] = self.data.get("attributes", {})

        async def read(query: AttributeQuery) -> Mapping[str, object] | None:
            return known.get(query.id)

        names = {name: name for entity in known.values() for name in entity}
        return FunctionAttributes(read, EntityTable("subject", "user", names), self.clock)

    @property
    def acting(self) -> AdministrationComponent:
        """The PAP that owns CONF, or the only one."""
        return next((one for one in self.paps.values() if one.owns), next(iter(self.paps.values())))

    async def run(self) -> None:
        """Take all steps."""
        for number, step in enumerate(self.data["steps"], 1):
            verb = next(iter(step))
            place = self.visited if "at" in step else self
            try:
                async with asyncio.timeout(60):
                    others = {key: value for key, value in step.items() if key not in (verb, "at")}
                    await getattr(place, f"step_{verb}")(step[verb], **others)
            except (AssertionError, TimeoutError) as error:
                raise AssertionError(f"step {number}: {step}: {error!r}; noted: {self.notes}") from error
        await self.close()

    async def close(self) -> None:
        """Close what is left."""
        for one in self.joining.values():
            one.cancel()
        for component in self.components.values():
            await component.close()
        for administrator in self.paps.values():
            await administrator.close()
        if self.visited is not None:
            await self.visited.close()

    async def until(self, holds: Callable[[], bool], shown: Callable[[], object]) -> None:
        """Wait until something holds, whatever the fabric needs for it."""
        try:
            async with asyncio.timeout(20):
                while not holds():
                    await asyncio.sleep(0.001)
        except TimeoutError:
            raise AssertionError(f"it is {shown()}") from None

    # ------------------------------------------------------------------------------------------------------------------
    # The steps.

    async def step_pap(self, name: str) -> None:
        """Start a PAP."""
        members = tuple(self.admitted.items())
        own = {"domain": self.name, "administrators": self.administrators, "table": self.table, "levels": self.levels}
        partners = {} if self.home is None else {self.home.name: self.home.administrators}
        settings = administration(*members, id=name, partners=partners, **own, **self.settings)
        rules = {
            role: SpecificationRule(tuple(rule["decided_by"]), frozenset(rule["resource_types"]))
            for role, rule in self.data.get("rules", {}).items()
        }
        self.paps[name] = PolicyAdministration(
            self.fabric, self.keys[name], settings, rules=rules, clock=self.clock, note=self.note
        )
        await self.paps[name].join()

    async def step_join(
        self, name: str, role: str | None = None, refused: str | None = None, *, shows: bool = False
    ) -> None:
        """Join."""
        first = self.home.components[name].configuration if shows and self.home is not None else None
        component = self.component(name, role, () if first is None else (first.certificate,))
        reason = None
        try:
            await component.join()
            self.components[name] = component
        except PenstockError as error:
            reason = error.fields.get("reason", error.code)
        assert reason == refused

    async def step_keeps(self, topic: str, at_most: int) -> None:
        """Look at what a topic keeps."""
        kept = -1
        for _ in range(200):
            kept = len(await self.fabric.state(f"{self.name}-{topic}"))
            if kept <= at_most:
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"it keeps {kept}")

    async def step_begin(self, name: str) -> None:
        """Begin to join."""
        self.components[name] = self.component(name, None)
        self.joining[name] = waited_for(self.components[name].join())
        # Until it waits by the clock.
        waiting = len(self.clock._sleepers) + 1
        await self.until(lambda: len(self.clock._sleepers) >= waiting, lambda: "not waiting")

    async def step_joined(self, name: str) -> None:
        """Wait until it has joined. Time passes meanwhile: a PAP may look again only after a lease."""
        joining = self.joining.pop(name)
        while not joining.done():
            await asyncio.wait((joining,), timeout=1)
            if not joining.done():
                await self.clock.advance(2)
        await joining

    async def step_has(self, name: str, **wanted: Any) -> None:
        """Look at a component."""

        def found() -> dict[str, Any]:
            component = self.components[name]
            certificate, configuration = component.certificate, component.configuration
            if certificate is None or configuration is None:
                return {"number": 0}
            every = {
                "number": component.number,
                "role": certificate.role_name,
                "write": sorted(map(str, certificate.topics.write)),
                "read": sorted(map(str, certificate.topics.read)),
                "combining": configuration.combining,
            }
            return {name: every[name] for name in wanted}

        await self.until(lambda: found() == wanted, found)

    async def step_advance(self, seconds: float) -> None:
        """Let time pass."""
        await self.clock.advance(seconds)

    async def step_reconfigure(self, roles: Mapping[str, Any], within: float = 1.0) -> None:
        """Announce a reconfiguration."""
        changed = {role: self.row(role, row) for role, row in roles.items()}
        self.table |= changed
        await self.acting.reconfigure(changed, expected=self.clock.now() + within)

    async def step_ask(
        self, name: str, subject: str = "alice", action: str = "look", resource: str = "7", decision: str = "Permit"
    ) -> None:
        """Ask for a decision."""
        component = self.components[name]
        assert isinstance(component, EnforcementComponent)
        question = AccessQuestion.of(("user", subject), action, ("account", resource))
        asking = waited_for(component.decide(question))
        for turn in count(1):
            await asyncio.wait((asking,), timeout=0.001)
            if asking.done():
                break
            if turn % 50 == 0:  # time-outs and repetitions are by the clock
                await self.clock.advance(0.5)
        try:
            found: str = (await asking).effect
        except PenstockError as error:
            found = error.code
        assert found == decision

    async def step_specify(
        self, name: str, *, called: str, language: str, text: str, policy: str = "", refused: str = ""
    ) -> None:
        """Specify a policy."""
        component = self.components[name]
        assert isinstance(component, SpecificationComponent)
        specifying = waited_for(component.specify(called, text.encode(), PolicyLanguage(language)))
        for turn in count(1):
            await asyncio.wait((specifying,), timeout=0.001)
            if specifying.done():
                break
            if turn % 20 == 0:  # components apply it by the clock
                await self.clock.advance(0.5)
        try:
            found = ((await specifying).policy, "")
        except PenstockError as error:
            found = ("", str(error.fields.get("reason", error.code)))
        assert found == (policy, refused)

    async def step_freeze(self, name: str) -> None:
        """Let a component prepare without end."""

        async def prepare(_configuration: Configuration) -> None:
            await asyncio.Event().wait()

        self.components[name].prepare = prepare  # type: ignore[assignment, method-assign]  # that is the step

    async def step_kill(self, name: str) -> None:
        """End without a word."""
        if name in self.paps:
            killed = self.paps.pop(name)
            killed._owned = None  # its claim to CONF stays until the lease is over
            await killed.close()
        else:
            await self.components.pop(name).close()

    async def step_leave(self, name: str) -> None:
        """Leave."""
        await (self.paps.pop(name) if name in self.paps else self.components.pop(name)).leave()

    async def step_withdraw(self, name: str) -> None:
        """Admit a component no more."""
        fact = admitted(name, self.admitted[name])
        await self.acting.change_roles([SetFact(fact.fact, False, fact.arguments)])

    async def step_members(self, names: list[str]) -> None:
        """Look at the members."""
        await self.until(lambda: sorted(self.acting.registry.members) == names, lambda: [*self.acting.registry.members])

    async def step_waiting(self, names: list[str]) -> None:
        """Look at who has not applied a reconfiguration."""

        def waiting() -> list[str]:
            return sorted({one for progress in self.acting.registry.progress.values() for one in progress.waiting})

        await self.until(lambda: waiting() == names, waiting)

    async def step_reads(self, names: list[str], of: str) -> None:
        """Look at the filter of a component."""
        component = self.components[of]
        assert isinstance(component, ReplyingComponent)
        await self.until(
            lambda: sorted(one for _, one in component.dependencies.read) == names,
            lambda: component.dependencies.read,
        )

    async def step_reports(self, codes: list[str]) -> None:
        """Look at what was noted."""
        await self.until(lambda: sorted(self.notes) == sorted(codes), lambda: self.notes)
        self.notes.clear()


def run(
    path: Path,
    connect: Callable[[ManualClock], Awaitable[AbstractAsyncContextManager[Fabric]]],
    topic_secret: bytes = b"",
) -> None:
    async def whole() -> None:
        clock = ManualClock()
        async with await connect(clock) as fabric:
            scenario = Scenario(tomllib.loads(path.read_text(encoding="utf-8")), fabric, clock)
            scenario.settings["topic_secret"] = topic_secret
            try:
                await scenario.run()
            finally:
                with suppress(PenstockError):
                    await scenario.close()

    asyncio.run(whole())


@pytest.mark.parametrize("secret", [b"", bytes(32)], ids=["signed", "sealed"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_on_the_embedded_fabric(path: Path, secret: bytes) -> None:
    async def connect(clock: ManualClock) -> Fabric:
        return memory_fabric(clock)

    run(path, connect, secret)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_on_nats(path: Path, server: NatsServer) -> None:
    async def connect(clock: ManualClock) -> Fabric:
        return await NatsFabric.connect(server.url, prefix=f"scenario{next(_NUMBERS)}", clock=clock)

    run(path, connect)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_on_dds(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("cyclonedds", reason="cyclonedds is not installed: there is no wheel for this machine")
    from penstock.fabric.dds import DdsFabric  # noqa: PLC0415  # it needs cyclonedds
    from penstock.fabric.dds_keeper import DdsKeeper  # noqa: PLC0415  # it needs cyclonedds

    address = f"dds://127.0.0.1/{(os.getpid() + 100) % 200}?tag=scenarios{os.getpid()}n{next(_NUMBERS)}"

    @asynccontextmanager
    async def opened(clock: ManualClock) -> AsyncIterator[Fabric]:
        keeper = await DdsKeeper.open(address, file=tmp_path / "topics", clock=clock)
        try:
            async with await DdsFabric.connect(address, clock=clock) as fabric:
                yield fabric
        finally:
            await keeper.close()

    async def connect(clock: ManualClock) -> AbstractAsyncContextManager[Fabric]:
        return opened(clock)

    run(path, connect)
