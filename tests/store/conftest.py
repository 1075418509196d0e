"""What tests of stores share: one PostgreSQL server in a process of the run."""

from collections.abc import Iterator

import pytest

from penstock.testing.postgres import PostgresServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Start a PostgreSQL server."""
    with PostgresServer() as server:
        yield server
