"""Addresses: what they say, and what is wrong with those that are refused."""

from collections.abc import Iterator

import pytest
from tests.trust.kit import refused

from penstock.errors import MalformedError
from penstock.pipeline.tables import addresses
from penstock.pipeline.tables.addresses import (
    AddressScheme,
    SinkOptions,
    parse_address,
    register_scheme,
    sink_at,
    source_at,
)

LAKE = AddressScheme("lake", "lake:PATH", resolve=lambda place, path: path(place))
BUS = AddressScheme("bus", "bus://HOST:PORT/TOPIC")


@pytest.fixture(autouse=True)
def _schemes() -> Iterator[None]:
    before = dict(addresses._SCHEMES)
    register_scheme(LAKE)
    register_scheme(BUS)
    yield
    addresses._SCHEMES.clear()
    addresses._SCHEMES.update(before)


@pytest.mark.parametrize(
    "path", ["in/meter.csv", "/a b", "s3a://bucket/x", "file:/tmp/x", "C:\\x", "hdfs://h:9/x", "."]
)
def test_a_path_is_a_path(path: str) -> None:
    found = parse_address(path)
    assert found.is_path
    assert str(found) == path


def test_an_address_has_a_scheme_a_place_and_options() -> None:
    found = parse_address("bus://h:1/T?start=earliest&tlsca=/x")
    assert (found.scheme, found.place, dict(found.options)) == ("bus", "//h:1/T", {"start": "earliest", "tlsca": "/x"})
    assert str(found) == "bus://h:1/T"
    assert parse_address("lake:x", lambda path: f"/here/{path}").place == "/here/x"
    assert parse_address("lake:s3a://b/x?y").place == "s3a://b/x?y"


def test_a_scheme_that_is_mistyped_gets_a_proposal() -> None:
    with pytest.raises(MalformedError) as caught:
        parse_address("laek:x")
    assert caught.value.code == "tables.scheme"
    assert caught.value.hint.startswith("did you mean `lake`?")
    with pytest.raises(MalformedError) as caught:
        parse_address("xyzzy://x")
    assert "lake:PATH, bus://HOST:PORT/TOPIC." in caught.value.hint


@pytest.mark.parametrize("text", ["", "lake:", "bus://", "a\nb"])
def test_what_is_not_an_address(text: str) -> None:
    with refused("tables.address"):
        parse_address(text)


@pytest.mark.parametrize(
    "text",
    [
        *("bus://me:hunter2@h:1/T", "bus://hunter2@h:1/T", "bus://h:1/T?password=hunter2", "s3a://hunter2:x@bucket/y"),
        *("lake:s3a://me:hunter2@bucket/y", "lake:postgresql://me:hunter2@h/db#n.t", "lake:abfss://c@a/x?sig=hunter2"),
    ],
)
def test_a_secret_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(MalformedError) as caught:
        parse_address(text)
    assert caught.value.code == "tables.secret-in-address"
    assert "hunter2" not in f"{caught.value!r} {caught.value} {caught.value.hint} {caught.value.as_dict()}"


def test_a_path_to_a_secret_is_none() -> None:
    assert parse_address("bus://h:1/T?credentials=/x.creds&tokenFile=/y").options["tokenFile"] == "/y"
    assert parse_address("abfss://container@account.dfs.core.windows.net/x").is_path
    assert parse_address("lake:abfss://container@account.dfs.core.windows.net/x").scheme == "lake"


def test_a_scheme_may_be_for_one_direction_only() -> None:
    for found in (lambda: source_at(parse_address("lake:x")), lambda: sink_at(parse_address("lake:x"), SinkOptions())):
        with refused("tables.address"):
            found()
    with refused("tables.address"):
        sink_at(parse_address("some/folder"), SinkOptions())
