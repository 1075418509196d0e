"""The components of a domain plan, run: the fabric that a plan names, and a host for some of its components.

    async with plan_fabric(loaded) as fabric:
        async with ComponentHost(loaded, fabric, keys, note) as host:     # PAPs first, then the others
            await host.components["atm"].decide(question)

Everything that a component needs is in its plan (docs/reference/domain-plan.md), except for passphrases of keys.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Self

from penstock.apps.node.config import read_kafka, read_nats
from penstock.apps.node.load import kafka_login, nats_login
from penstock.authority.components.administration.administration_point import AdministrationComponent
from penstock.authority.components.administration.specification import SpecificationComponent
from penstock.authority.components.component_factory import (
    AnyComponent,
    HostNote,
    JoiningFabric,
    make_component,
    show_roles,
    specify_policies,
)
from penstock.authority.components.plans.domain_plan import PLAN_FILE, PLAN_NAMING, SHARED_FABRICS, LoadedPlan
from penstock.authority.components.points.component import Component
from penstock.crypto import Signer
from penstock.errors import PenstockError, RefusedError
from penstock.fabric import EmbeddedFabric, Fabric, FileKeeper
from penstock.fabric.addresses import open_fabric
from penstock.fabric.tasks import waited_for
from penstock.store.files.files import replace_file
from penstock.store.files.named_files import NamedFiles

# ----------------------------------------------------------------------------------------------------------------------
# The fabric.


@asynccontextmanager
async def plan_fabric(loaded: LoadedPlan) -> AsyncIterator[Fabric]:
    """Open the fabric that a plan names; without one, a fabric inside this process.

    Raises `MalformedError` with the codes of plans, and as `open_fabric`.
    """
    table = dict(loaded.plan.fabric)
    PLAN_FILE.known("`fabric`", table, ("nats", "joining", "dds", "kafka", "keep"))
    if "nats" in table:
        async with _nats_fabric(loaded, PLAN_FILE.table("fabric.nats", table["nats"])) as fabric:
            yield fabric
        return
    if "dds" in table:
        async with await open_fabric(PLAN_FILE.text("fabric.dds", table["dds"])) as fabric:
            yield fabric
        return
    if "kafka" in table:
        named = NamedFiles(loaded.folder, PLAN_NAMING)
        login = kafka_login(read_kafka(PLAN_FILE, "fabric.kafka", table["kafka"]), named)
        async with await open_fabric(login) as fabric:
            yield fabric
        return
    keep = loaded.folder / PLAN_FILE.text("fabric.keep", table["keep"]) if "keep" in table else Path(":memory:")
    async with EmbeddedFabric(keeper=FileKeeper(keep)) as embedded:
        yield embedded


@asynccontextmanager
async def _nats_fabric(loaded: LoadedPlan, table: Mapping[str, object]) -> AsyncIterator[Fabric]:
    login = nats_login(read_nats(PLAN_FILE, table), NamedFiles(loaded.folder, PLAN_NAMING))
    if login is not None:
        async with await open_fabric(login) as fabric:
            yield fabric


def _joining(loaded: LoadedPlan) -> JoiningFabric | None:
    """Return what opens the fabric to join: `joining` has what differs from `nats`, such as the login."""
    if "joining" not in loaded.plan.fabric:
        return None
    tables = (PLAN_FILE.table(f"fabric.{key}", loaded.plan.fabric.get(key, {})) for key in ("nats", "joining"))
    return partial(_nats_fabric, loaded, {key: value for table in tables for key, value in table.items()})


def is_shared(loaded: LoadedPlan) -> bool:
    """Return whether the fabric of a plan connects processes."""
    return not SHARED_FABRICS.isdisjoint(loaded.plan.fabric)


class ComponentHost:
    """Components of one plan in one process. They join when it is entered, PAPs first, and leave at the end.

    A component that is refused does not stop the others: `refused` has its error.
    """

    def __init__(
        self,
        loaded: LoadedPlan,
        fabric: Fabric,
        keys: Mapping[str, Signer],
        note: HostNote,
        *,
        joined: Callable[[str], None] = lambda _id: None,
    ) -> None:
        joining = _joining(loaded)
        self.components: dict[str, AnyComponent] = {
            id_: make_component(loaded, loaded.plan.components[id_], fabric, key, note, joining=joining)
            for id_, key in keys.items()
        }
        show_roles(self.components, keys)
        self.refused: dict[str, PenstockError] = {}
        self._loaded = loaded
        self._joined = joined
        self._note = note

    async def __aenter__(self) -> Self:
        await self.join()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()

    async def join(self) -> None:
        """Let all components join: PAPs first, because the others wait for them. If one cannot, all leave."""
        first, joining = self._administrators(), list[asyncio.Future[None]]()
        try:
            for id_ in first:
                await self._join(id_)
            joining += [waited_for(self._join(id_)) for id_ in self.components if id_ not in first]
            await asyncio.gather(*joining)
        except BaseException:
            for one in joining:
                one.cancel()
            await asyncio.gather(*joining, return_exceptions=True)
            await self.leave()
            raise

    def _administrators(self) -> list[str]:
        return [id_ for id_, one in self.components.items() if isinstance(one, AdministrationComponent)]

    async def _join(self, id_: str) -> None:
        component = self.components[id_]
        try:
            await component.join()
        except RefusedError as error:
            self.refused[id_] = error
            self._note(id_, error)
            return
        file = self._loaded.plan.components[id_].certificate
        if file and isinstance(component, Component) and component.configuration is not None:
            replace_file(self._loaded.folder / file, component.configuration.certificate)
        self._joined(id_)
        if isinstance(component, SpecificationComponent):
            await specify_policies(self._loaded, component, self._note)

    async def leave(self) -> None:
        """Let all components leave: PAPs last, so that they record it."""
        last = self._administrators()
        await asyncio.gather(*(one.leave() for id_, one in self.components.items() if id_ not in last))
        for id_ in last:
            await self.components[id_].leave()
