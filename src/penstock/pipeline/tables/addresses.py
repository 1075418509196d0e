"""Addresses: one text that says where the rows of a job come from, or where they go.

    PATH                        files, in the form that each job says
    parquet:PATH                Parquet files, in folders `NAME=VALUE` or not
    delta:PATH                  a Delta table
    iceberg:CATALOG#NAMESPACE.TABLE
    table:NAME                  a table of Spark's catalogue
    NAME://HOST:PORT/…?NAME=VALUE&…     servers, such as those of messages

An address has a scheme, and a scheme has a source, a sink, or both (`AddressScheme`). `register_scheme` adds one. A
path has none: files are read and written as each job says. Any path of Spark is a path here (`s3a://…`, `hdfs://…`).

Spark shows addresses in plans, and jobs keep them in their outputs. So an address that holds a secret is refused, and
is not repeated in the message.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Protocol
from urllib.parse import parse_qsl, urlsplit

from pyspark.sql import DataFrame, SparkSession

from penstock.errors import MalformedError, did_you_mean
from penstock.model.types import EventType
from penstock.pipeline.outputs import Streaming

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(.*)", re.DOTALL)
#: file systems of Spark, with which a path can begin
_FILE_SYSTEMS: Final = frozenset(
    {"file", "hdfs", "webhdfs", "viewfs", "s3", "s3a", "s3n", "gs", "abfs", "abfss", "wasb", "wasbs", "adl", "oss"}
)
_SECRETS: Final = re.compile(
    r"pass|secret|token|credential|(account|access|api).?key|sas|jaas|^sig(nature)?$", re.IGNORECASE
)
_SHOWN: Final = 80


# ----------------------------------------------------------------------------------------------------------------------
# What a scheme has to do.


class RowSource(Protocol):
    """Where the rows of a job come from."""

    @property
    def name(self) -> str:
        """A description of the input, which the output stores. It has no secret in it."""

    @property
    def files(self) -> str | None:
        """The path of the files, if the input is files that Spark can list."""

    @property
    def records(self) -> bool:
        """Whether its frames are records: CloudEvents in `@original`, with `@file` and `@position`.

        The frames of other sources have the columns of a table.
        """

    def batch(self, spark: SparkSession) -> DataFrame:
        """Return what there is now. It stays the same for as long as the frame is used."""

    def stream(self, spark: SparkSession, streaming: Streaming) -> DataFrame:
        """Return a stream of what there is and of what arrives."""

    def arrived(self, batch: DataFrame) -> DataFrame:
        """Return the rows of a batch of that stream. It is the batch itself, unless that only names the rows."""


@dataclass(frozen=True, slots=True)
class SinkRows:
    """The main rows of a batch, which are the same in each attempt.

    With `types` they are events in transit: `@type` (the version whose names the attributes have), `@id`, `@time`,
    `@source`, a column for each attribute id, and in what `deliver` writes also `@subscriber`. Without, they are rows
    with any columns.
    """

    frame: DataFrame
    types: tuple[EventType, ...] = ()


class RowSink(Protocol):
    """Where the main rows of a job go besides its folder."""

    @property
    def name(self) -> str:
        """A description of the sink, which the output stores. It has no secret in it."""

    def check(self) -> None:
        """Check what can be checked before the job reads anything: packages, servers, the schema's rules."""

    def holds(self, spark: SparkSession, output: str) -> bool:
        """Return whether it has rows of an output already."""

    def write(self, rows: SinkRows, output: str, batch: int) -> int:
        """Write one batch of an output, unless the sink has it, and return how many rows of the batch it has.

        `output` is a random name that an output keeps. Its batches come one after the other, with growing numbers; one
        comes again, with the same rows, after the driver was killed. The number is counted in the sink.
        """


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What else is said about a sink: the columns that its files are partitioned by."""

    partition_by: tuple[str, ...] = ()


# ----------------------------------------------------------------------------------------------------------------------
# The address.


@dataclass(frozen=True, slots=True)
class TableAddress:
    """An address. Its text has no secret in it; a path has the scheme ``""``."""

    scheme: str
    #: behind the scheme, without the options
    place: str
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def is_path(self) -> bool:
        """Whether it is a path."""
        return not self.scheme

    def __str__(self) -> str:
        return f"{self.scheme}:{self.place}" if self.scheme else self.place


def has_scheme(text: str) -> bool:
    """Return whether a text begins with a scheme, as URLs and addresses do: it is then no path on this machine.

    >>> has_scheme("delta:events"), has_scheme("s3a://bucket/events"), has_scheme("./a:b"), has_scheme("C:events")
    (True, True, False, False)
    """
    return _SCHEME.match(text) is not None


def parse_address(text: str, path: Callable[[str], str] = str) -> TableAddress:
    """Read an address; `path` makes paths absolute.

    Raises `MalformedError` (`tables.address`, `tables.scheme`, `tables.secret-in-address`).

    >>> str(parse_address("s3a://bucket/events")), parse_address("s3a://bucket/events").is_path
    ('s3a://bucket/events', True)
    """
    if not text or not text.isprintable():
        raise MalformedError("tables.address", "an address is a text that can be printed", hint=_forms())
    found = _SCHEME.fullmatch(text)
    # One letter is a drive.
    if found is None:
        return TableAddress("", path(text))
    scheme, rest = found[1], found[2]
    # What stands behind a scheme can be a URL itself: `delta:s3a://…`, or the catalogue in `iceberg:…`.
    _check_secrets(text if rest.startswith("//") else rest)
    if scheme.lower() in _FILE_SYSTEMS:
        return TableAddress("", path(text))
    known = _SCHEMES.get(scheme)
    if known is None:
        raise MalformedError(
            "tables.scheme",
            f"`{scheme[:_SHOWN]}:` is not known in an address",
            hint=f"{did_you_mean(scheme, _SCHEMES, _forms())} A path with a colon is written ./NAME",
        )
    place, options = _split(rest) if rest.startswith("//") and not known.resolve else (rest, {})
    if not place.removeprefix("//"):
        raise bad_address(known, "nothing stands behind the scheme")
    return TableAddress(scheme, known.resolve(place, path) if known.resolve else place, MappingProxyType(options))


def _check_secrets(text: str) -> None:
    try:
        parts = urlsplit(text)
        names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
        # `abfss://container@account…` has a user that is not one.
        inside = parts.password is not None or ("@" in parts.netloc and not parts.scheme.startswith(("abfs", "wasb")))
    except ValueError:
        raise MalformedError("tables.address", "the address cannot be read as a URL", hint=_forms()) from None
    # A path of a file that holds a secret may be named.
    said = [name for name in names if _SECRETS.search(name) and not name.lower().endswith(("file", "credentials"))]
    if inside or said:
        raise MalformedError(
            "tables.secret-in-address",
            "an address has a user, a password or another secret in it, which Spark shows in plans",
            hint="keep it in a file or in the environment; the reference of the scheme says which",
        )


def _split(rest: str) -> tuple[str, dict[str, str]]:
    place, _, query = rest.partition("?")
    return place, dict(parse_qsl(query, keep_blank_values=True))


# ----------------------------------------------------------------------------------------------------------------------
# The registry.


@dataclass(frozen=True, slots=True)
class AddressScheme:
    """A scheme: its name, the form of its addresses, and what makes a source or a sink of one."""

    name: str
    form: str
    source: Callable[[TableAddress], RowSource] | None = None
    sink: Callable[[TableAddress, SinkOptions], RowSink] | None = None
    #: returns a place with its path made absolute, if it has a path
    resolve: Callable[[str, Callable[[str], str]], str] | None = None


_SCHEMES: Final[dict[str, AddressScheme]] = {}


def register_scheme(scheme: AddressScheme) -> None:
    """Make a scheme known, in the place of an earlier one of the same name."""
    _SCHEMES[scheme.name] = scheme


def source_at(address: TableAddress) -> RowSource:
    """Return the source at an address that is not a path. Raises `MalformedError` (`tables.address`)."""
    scheme = _SCHEMES[address.scheme]
    if scheme.source is None:
        raise bad_address(scheme, "it can be written to, and not be read")
    return scheme.source(address)


def sink_at(address: TableAddress, options: SinkOptions) -> RowSink:
    """Return the sink at an address. Raises `MalformedError` (`tables.address`)."""
    if address.is_path:
        raise MalformedError(
            "tables.address",
            f"`{address.place[:_SHOWN]}` does not say what kind of table it is",
            hint=_forms(sinks=True),
        )
    scheme = _SCHEMES[address.scheme]
    if scheme.sink is None:
        raise bad_address(scheme, "it can be read, and not be written to")
    return scheme.sink(address, options)


def bad_address(scheme: AddressScheme, why: str) -> MalformedError:
    """Return the error for an address that is not of the form of its scheme. It does not repeat the address."""
    return MalformedError("tables.address", f"`{scheme.name}:` in an address: {why}", hint=f"write {scheme.form}")


def _forms(*, sinks: bool = False) -> str:
    forms = [scheme.form for scheme in _SCHEMES.values() if not sinks or scheme.sink is not None]
    return f"write {', '.join([*([] if sinks else ['a path']), *forms])}."
