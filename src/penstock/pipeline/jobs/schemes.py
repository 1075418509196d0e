"""The schemes of addresses that jobs know, in the order in which messages list them."""

from typing import Final

from penstock.pipeline.jetstream.scheme import JETSTREAM
from penstock.pipeline.kafka.scheme import KAFKA
from penstock.pipeline.tables.addresses import AddressScheme, register_scheme
from penstock.pipeline.tables.delta import DELTA
from penstock.pipeline.tables.files import CATALOGUE, PARQUET
from penstock.pipeline.tables.iceberg import ICEBERG

SCHEMES: Final[tuple[AddressScheme, ...]] = (PARQUET, DELTA, ICEBERG, CATALOGUE, KAFKA, JETSTREAM)


def register_schemes() -> None:
    """Make all schemes known."""
    for scheme in SCHEMES:
        register_scheme(scheme)
