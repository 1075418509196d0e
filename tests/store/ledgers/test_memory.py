"""Records that end with the process."""

from collections.abc import Iterator

import pytest

from penstock.store.ledgers.ledgers import Store
from penstock.store.ledgers.memory import MemoryRecords
from penstock.testing.store_suite import StoreSuite


class TestMemory(StoreSuite):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        with Store(MemoryRecords()) as store:
            yield store
