"""What the tests of hostile peers share."""

from collections.abc import Iterator

import pytest
from tests.network.hostile.network_kit import Stage


@pytest.fixture(scope="session", params=["hostile_links"])
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Return the stage of brokers in a line, on which all attacks over links take place."""
    made = Stage(lambda: tmp_path_factory.mktemp("line"))
    yield made
    made.close()
