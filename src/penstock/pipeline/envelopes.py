"""CloudEvents 1.0 in structured JSON, one a line, as typed events.

    specversion  `1.0`
    id           a text that is not empty
    source       the principal of the publisher, `ed25519:…` or `threshold:…`, which is a URI as CloudEvents asks
    type         the event type in one version, `owner/name@version`; without `@version` it is version 0
    time         RFC 3339. CloudEvents may lack it; here it is needed, for rights are asked at its time
    data         an object: attribute names and values. What is absent is null

Timestamps in `data` are written as `time` is. Other members of the envelope (`subject`, `dataschema`, extensions) are
allowed and not kept. `datacontenttype` is JSON where it stands.
"""

from collections.abc import Iterable
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.model.types import EventType
from penstock.model.values import AttributeSpec, Kind
from penstock.pipeline.convert import Problem, from_json
from penstock.pipeline.frames import quoted
from penstock.pipeline.records import ORIGINAL, PLACE, line_text
from penstock.pipeline.tagging import Checked, Version

_MAP: Final = "map<string,variant>"
_MOMENT: Final = AttributeSpec(Kind.TIMESTAMP)
_MEMBERS: Final = ("specversion", "id", "source", "type", "time", "datacontenttype", "data")
_JSON: Final = r"(?i)\A\s*application/(?:[a-z0-9.!#$&^_-]+\+)?json\s*(?:;.*)?\z"
# What is left of escapes once complete pairs and all other escapes are taken out is half a pair.
_ESCAPES: Final = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\[^u]"
_HALF: Final = r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}"

_LINE, _OUTER, _DATA = "@line", "@outer", "@data"


def check_envelopes(records: DataFrame, types: Iterable[EventType]) -> Checked:
    """Check records against the versions that they name."""
    versions = list(types)
    place = [quoted(name) for name in PLACE]
    # (1) The line as text, null where it is none.
    line = F.when(F.is_valid_utf8(quoted(ORIGINAL).cast("string")), line_text(quoted(ORIGINAL)))
    lines = records.select(*place, line.alias(_LINE))
    # (2) The object. Spark's parser stops behind the first value and ignores the rest of the line; but only one single
    # value can be put both into an object and into an array.
    text = quoted(_LINE)
    whole = F.try_parse_json(F.concat(F.lit('{"":'), text, F.lit("}")))
    alone = F.try_parse_json(F.concat(F.lit("["), text, F.lit("]"))).isNotNull()
    outer = lines.select(*place, text, F.when(alone, F.try_variant_get(whole, "$['']", _MAP)).alias(_OUTER))
    # (3) The members of the envelope, and those of its data.
    data = F.try_variant_get(F.try_element_at(quoted(_OUTER), F.lit("data")), "$", _MAP)
    found = quoted(_OUTER).isNotNull()
    members = outer.select(*place, text, found.alias(_OUTER), data.alias(_DATA), *_read(_OUTER, "", _MEMBERS))
    names = list(dict.fromkeys(name for event_type in versions for name in event_type.by_name))
    parsed = members.select("*", *_read(_DATA, "data.", names))
    content = _string("datacontenttype")
    json = (_shape("datacontenttype") == "VOID") | content.rlike(_JSON)
    no_data = quoted(_DATA).isNull() | ~_shape("data").startswith("OBJECT") | ~F.coalesce(json, F.lit(False))
    return Checked(
        parsed,
        type=_type(versions),
        id=_string("id"),
        time=from_json("time", _MOMENT, _shape("time"), _text("time")),
        source=_string("source"),
        problems=_line_problems(),
        versions=[_version(event_type) for event_type in versions],
        content=[Problem(no_data, "ingest.data", "`data` is no JSON object")],
    )


def _read(object_: str, prefix: str, names: Iterable[str]) -> list[Column]:
    """Return shape and text of some members of an object; a member that is absent is a null."""
    columns = []
    for name in names:
        value = F.try_element_at(quoted(object_), F.lit(name))
        columns.append(F.coalesce(F.schema_of_variant(value), F.lit("VOID")).alias(f"@shape {prefix}{name}"))
        columns.append(F.try_variant_get(value, "$", "string").alias(f"@text {prefix}{name}"))
    return columns


def _shape(name: str) -> Column:
    return quoted(f"@shape {name}")


def _text(name: str) -> Column:
    return quoted(f"@text {name}")


def _string(name: str) -> Column:
    return F.when(_shape(name) == "STRING", _text(name))


def _type(versions: Iterable[EventType]) -> Column:
    found = F.lit(None).cast("string")
    for event_type in versions:
        name = event_type.name
        texts = [str(name), str(name.key)] if name.version == "0" else [str(name)]
        found = F.when(_string("type").isin(*texts), F.lit(str(name))).otherwise(found)
    return found


def _line_problems() -> list[Problem]:
    text, unread = quoted(_LINE), ~quoted(_OUTER)
    half = F.regexp_replace(text, _ESCAPES, " ").rlike(_HALF)
    # Asked of every line, because a session can be told to let the last of two equal names win.
    repeated = _repeated(text) | _repeated(F.get_json_object(text, "$.data"))
    return [
        Problem(text.isNull(), "ingest.utf8", "not UTF-8"),
        Problem(text.rlike(r"\A[ \t\r\n]*\z"), "ingest.empty", "an empty line"),
        Problem(unread & half, "ingest.text", "a string holds a lone surrogate"),
        Problem(repeated, "ingest.duplicate-key", "a name stands twice in an object"),
        Problem(unread, "ingest.json", "not one JSON object"),
        Problem(
            ~F.coalesce(_string("specversion") == "1.0", F.lit(False)), "ingest.envelope", "`specversion` is not `1.0`"
        ),
    ]


def _repeated(text: Column) -> Column:
    keys = F.json_object_keys(text)
    return F.coalesce(F.size(keys) != F.size(F.array_distinct(keys)), F.lit(False))


def _version(event_type: EventType) -> Version:
    name = event_type.name
    known = F.array(*map(F.lit, event_type.by_name)) if event_type.by_name else F.array().cast("array<string>")
    unknown = F.size(F.array_except(F.map_keys(quoted(_DATA)), known)) > 0
    values = {
        a.name: from_json(f"attribute `{a.name}`", a.spec, _shape(f"data.{a.name}"), _text(f"data.{a.name}"))
        for a in event_type.attributes
    }
    words = f"`data` has an attribute that `{name.name}` version {name.version} lacks"
    return Version(event_type, values, [Problem(unknown, "ingest.unknown-attribute", words)])
