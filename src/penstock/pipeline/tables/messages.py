"""The rows of a batch as messages, for sinks that are servers of messages."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.errors import MalformedError
from penstock.model.types import EventType
from penstock.pipeline.enforce.manifest import SUBSCRIBER
from penstock.pipeline.event_columns import ID, TIME, TYPE
from penstock.pipeline.frames import JSON_FORM, envelope, envelope_data, quoted, shown_source
from penstock.pipeline.outputs import raise_in_task
from penstock.pipeline.tables.addresses import SinkRows
from penstock.pipeline.tables.columns import in_parts

TO_SUBSCRIBER: Final = "subscriber"
"""The header that names the reader of a message."""
_HEADERS: Final = "array<struct<name:string,value:string>>"
_MOMENT: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"


def messages(rows: SinkRows, *, binary: bool = False) -> DataFrame:
    """Return the messages of rows: `id`, `key`, `value` and `headers`.

    Events are CloudEvents with their source as key; `binary` puts their metadata into headers `ce_NAME`. Other rows are
    JSON objects without a key. A task fails (`tables.events`) at an event of an unknown version.
    Raises `MalformedError` (`tables.column`).
    """
    return in_parts(rows, partial(_messages, binary=binary))


def _messages(frame: DataFrame, types: Sequence[EventType], *, binary: bool) -> DataFrame:
    pairs: list[tuple[str, Column]] = []
    if SUBSCRIBER in frame.columns:
        pairs.append((TO_SUBSCRIBER, quoted(SUBSCRIBER)))
    nothing = F.lit(None).cast("string")
    if not types:
        plain = [quoted(name).alias(name.removeprefix("@")) for name in frame.columns]
        if len({name.removeprefix("@") for name in frame.columns}) != len(frame.columns):
            raise MalformedError("tables.column", "two columns would have one name in JSON")
        own_id, value, key = nothing, F.to_json(F.struct(*plain), JSON_FORM), nothing
        pairs.append(("content-type", F.lit("application/json")))
    else:
        made = envelope_data if binary else envelope
        unknown = raise_in_task("tables.events", F.lit("an event is of a version that the job does not know"))
        own_id = quoted(ID)
        value = F.coalesce(
            *(F.when(quoted(TYPE) == str(one.name), made(one, lambda a: str(a.id))) for one in types),
            unknown.cast("string"),
        )
        key = F.coalesce(*(F.when(quoted(TYPE) == str(one.name), shown_source(one)) for one in types))
        pairs.append(("content-type", F.lit("application/json" if binary else "application/cloudevents+json")))
        if binary:
            moment = F.date_format(F.to_utc_timestamp(quoted(TIME), F.current_timezone()), _MOMENT)
            said = {"specversion": F.lit("1.0"), "id": own_id, "source": key, "type": quoted(TYPE), "time": moment}
            pairs += [(f"ce_{name}", column) for name, column in said.items()]
    headers = F.array(*(F.struct(F.lit(name).alias("name"), column.alias("value")) for name, column in pairs))
    return frame.select(
        own_id.alias("id"), key.alias("key"), value.alias("value"), headers.cast(_HEADERS).alias("headers")
    )
