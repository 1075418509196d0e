"""The fabric over DDS: the suite of all adapters."""

import os
from pathlib import Path

import pytest

from penstock.fabric import Clock, Fabric
from penstock.testing.fabric_suite import FabricSuite

pytest.importorskip("cyclonedds", reason="cyclonedds is not installed: there is no wheel for this machine")

from penstock.fabric.dds import DdsFabric
from penstock.fabric.dds_keeper import DdsKeeper

ADDRESS = f"dds://127.0.0.1/{os.getpid() % 200}?tag=test{os.getpid()}"


class WithKeeper(DdsFabric):
    keeper: DdsKeeper

    async def close(self) -> None:
        await super().close()
        await self.keeper.close()


class TestDds(FabricSuite):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "topics"

    async def open(self, clock: Clock) -> Fabric:
        keeper = await DdsKeeper.open(ADDRESS, file=self.path, clock=clock)
        fabric = await WithKeeper.connect(ADDRESS, clock=clock)
        fabric.keeper = keeper
        return fabric

    async def join(self, fabric: Fabric) -> Fabric:
        return await DdsFabric.connect(ADDRESS, clock=self.clock)
