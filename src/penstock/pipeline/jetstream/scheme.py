"""`jetstream://` in addresses. What needs nats-py is imported when an address is used."""

from typing import TYPE_CHECKING, Final

from penstock.errors import MalformedError
from penstock.pipeline.tables.addresses import AddressScheme, SinkOptions, TableAddress, bad_address

if TYPE_CHECKING:
    from penstock.pipeline.jetstream.messages import JetStreamSource
    from penstock.pipeline.jetstream.sink import JetStreamSink


def _options(address: TableAddress) -> dict[str, str]:
    """Return the options of docs/reference/jetstream.md. Raises `MalformedError` (`tables.address`)."""
    servers, _, stream = address.place.removeprefix("//").partition("/")
    given = {name.lower(): value for name, value in address.options.items()}
    tls = given.pop("tls", "false")
    if not servers or not stream or given.keys() & {"url", "stream"} or tls not in ("true", "false"):
        raise bad_address(JETSTREAM, "name servers, a stream and options")
    url = ",".join(f"{'tls' if tls == 'true' else 'nats'}://{server}" for server in servers.split(","))
    return {**given, "url": url, "stream": stream}


def _source(address: TableAddress) -> "JetStreamSource":
    from penstock.pipeline.jetstream.messages import JetStreamSource  # noqa: PLC0415  # an extra

    return JetStreamSource(_options(address))


def _sink(address: TableAddress, options: SinkOptions) -> "JetStreamSink":
    from penstock.pipeline.jetstream.options import parse_options  # noqa: PLC0415  # an extra
    from penstock.pipeline.jetstream.sink import JetStreamSink  # noqa: PLC0415  # an extra

    if options.partition_by:
        raise MalformedError("tables.partition", "a stream has no partitions", hint="leave out --partition-by")
    return JetStreamSink(parse_options(_options(address)))


JETSTREAM: Final = AddressScheme(
    "jetstream", "jetstream://HOST:PORT/STREAM?subject=SUBJECT", source=_source, sink=_sink
)
