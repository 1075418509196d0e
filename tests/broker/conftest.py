"""The ways of a link: every behaviour of links holds on both."""

import pytest
from tests.broker.link_kit import Nats, Tls, Way


@pytest.fixture(params=["tls", "nats"])
def way(request: pytest.FixtureRequest) -> Way:
    """Return each way in turn."""
    if request.param == "tls":
        return Tls()
    return Nats(request.getfixturevalue("server").url)
