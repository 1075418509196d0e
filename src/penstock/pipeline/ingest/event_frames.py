"""The last step of every ingest: one frame in which each record is an event or has a reason why it is none.

Nothing here filters, joins or multiplies rows: as many rows come out as records went in.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from penstock.errors import MalformedError
from penstock.model.names import AttributeId
from penstock.model.types import EventType
from penstock.model.values import Kind
from penstock.pipeline.event_columns import INGESTED as INGESTED
from penstock.pipeline.event_columns import QUARANTINE as QUARANTINE
from penstock.pipeline.event_columns import REASON as REASON
from penstock.pipeline.event_columns import TYPE as TYPE
from penstock.pipeline.event_columns import WORDS as WORDS
from penstock.pipeline.frames import (
    EARLIEST,
    ID,
    LATEST,
    METADATA,
    SOURCE,
    TIME,
    attributes_of,
    literal,
    quoted,
    transit_schema,
)
from penstock.pipeline.ingest.csv_columns import CsvTable, RecordPlaces
from penstock.pipeline.ingest.mapping import BoundMapping
from penstock.pipeline.ingest.records import FILE, NUMBER, ORIGINAL, POSITION, Converted, RecordProblem
from penstock.pipeline.shared_columns import OF

NAME, RANK, LACKS = "@name", "@rank", "@lacks"
"""What a table says of a version: the name and the place of the attribute in each shared column, and what it lacks."""
UNKNOWN_ATTRIBUTE: Final = "ingest.unknown-attribute"
_PROBLEM, _FAULT = "@problem", "@fault"
_PLACED: Final = (
    *(StructField(name, StringType()) for name in (REASON, WORDS, FILE)),
    StructField(POSITION, LongType()),
    StructField(ORIGINAL, BinaryType()),
)
_BRIEF: Final = (StructField(REASON, StringType()), *(StructField(name, LongType()) for name in (NUMBER, POSITION)))
# Letters one by one: Java looks these up in a table, and a range of them is a function that it calls for each letter.
_BASE32: Final = "[abcdefghijklmnopqrstuvwxyz234567]"
PRINCIPAL: Final = f"\\A(?:ed25519|threshold):{_BASE32}{{51}}[aq]\\z"
"""52 characters of base32 for 256 bits: the four unused bits of the last one are zero."""


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a type: the values by attribute name, and what else is wrong with a record of it."""

    event_type: EventType
    values: Mapping[str, Converted]
    problems: Sequence[RecordProblem] = ()


@dataclass(frozen=True, slots=True)
class CheckedRecords:
    """A frame of records and columns over it: the metadata of events, what is wrong, and the versions they may be of.

    `type` is the text of a version's name, or null. Problems with the record come first, then those
    with its metadata and its type, then `content`, and then those with its attributes.
    """

    frame: DataFrame
    type: Column
    id: Column
    time: Converted
    source: Column
    problems: Sequence[RecordProblem]
    versions: Sequence[Version]
    content: Sequence[RecordProblem] = ()
    #: the values in shared columns, if the versions have these
    shared: Mapping[str, Converted] = field(default_factory=dict)
    #: whether a record has an attribute that its version lacks, if the versions share columns
    lacking: Column | None = None
    #: whether the source is a principal, if that was asked before
    principal: Column | None = None


def tag(checked: CheckedRecords, at: datetime) -> DataFrame:
    """Return one row for each record, with `@reason` where it is not an event.

    The attributes stand under their ids, as in transit. Raises `MalformedError` (`ingest.types`) when two types have
    the same attribute with different kinds, or a type stands twice.
    """
    kinds = kinds_of(version.event_type for version in checked.versions)
    known = quoted(TYPE)
    # (1) Each value as a column.
    values: list[Column] = []
    wrong = [*checked.problems, *metadata_problems(checked)]
    merged: dict[AttributeId, Column] = {}
    for version in checked.versions:
        own = known == F.lit(str(version.event_type.name))
        wrong.extend(_only(own, problem) for problem in version.problems)
        for attribute in version.event_type.attributes:
            converted = version.values.get(attribute.name)
            if converted is None:
                continue
            value = quoted(f"@value {len(values)}")
            values.append(converted.value.alias(f"@value {len(values)}"))
            wrong.extend(_only(own, problem) for problem in converted.problems(value))
            before = merged.get(attribute.id)
            merged[attribute.id] = F.when(own, value) if before is None else before.when(own, value)
    # (2) The first thing that is wrong, as a number.
    judged = _typed(checked, values).select("*", _first(wrong).alias(_PROBLEM))
    # (3) What it means. A bad record has no values.
    good = quoted(_PROBLEM).isNull()
    return judged.select(
        *_reason(wrong),
        *map(quoted, (FILE, POSITION, ORIGINAL)),
        literal(at, Kind.TIMESTAMP).alias(INGESTED),
        known,
        *(F.when(good, quoted(name)).alias(name) for name in METADATA),
        *(F.when(good, merged.get(id_, literal(None, kind))).alias(str(id_)) for id_, kind in kinds.items()),
    )


def tag_shared(checked: CheckedRecords, at: datetime) -> DataFrame:
    """Return the same of versions that share columns: these, and `@of`, are in the place of the attributes.

    Of several attributes with problems, the first of the version counts, as it does for `tag`.
    """
    # (1) Each value as a column.
    typed = _typed(checked, [one.value.alias(column) for column, one in checked.shared.items()])
    # (2) The first thing that is wrong: as a number, or in the attribute that comes first.
    lacking = [] if checked.lacking is None else [RecordProblem(checked.lacking, UNKNOWN_ATTRIBUTE, "")]
    wrong = [*checked.problems, *metadata_problems(checked), *lacking]
    none = F.lit(None).cast("struct<rank: int, code: string, words: string>")
    faults = [
        F.when(problem.where, _fault(column, number, problem))
        for column, one in checked.shared.items()
        for number, problem in enumerate(one.problems(quoted(column)))
    ]
    judged = typed.select("*", _first(wrong).alias(_PROBLEM), F.least(none, none, *faults).alias(_FAULT))
    # (3) What it means. A bad record has no values.
    good = quoted(_PROBLEM).isNull() & quoted(_FAULT).isNull()
    code, words = _reason(wrong)
    lacks = F.when(quoted(_PROBLEM) == len(wrong) - 1, quoted(LACKS)) if lacking else F.lit(None)
    fault = quoted(_FAULT)
    return judged.select(
        F.coalesce(code, fault.getField("code")).alias(REASON),
        F.coalesce(lacks, words, fault.getField("words")).alias(WORDS),
        *map(quoted, (FILE, POSITION, ORIGINAL)),
        literal(at, Kind.TIMESTAMP).alias(INGESTED),
        quoted(TYPE),
        quoted(OF),
        *(F.when(good, quoted(name)).alias(name) for name in (*METADATA, *checked.shared)),
    )


_PROBLEMS_OF_ONE: Final = 8
"""More problems than one attribute can have."""


def _fault(column: str, number: int, problem: RecordProblem) -> Column:
    rank = quoted(f"{RANK} {column}") * F.lit(_PROBLEMS_OF_ONE) + F.lit(number)
    words = F.concat(F.lit("attribute `"), quoted(f"{NAME} {column}"), F.lit(f"`{problem.words}"))
    return F.struct(rank.alias("rank"), F.lit(problem.code).alias("code"), words.alias("words"))


def _typed(checked: CheckedRecords, values: Iterable[Column]) -> DataFrame:
    return checked.frame.select(
        "*",
        checked.type.alias(TYPE),
        checked.id.alias(ID),
        checked.time.value.alias(TIME),
        checked.source.alias(SOURCE),
        *values,
    )


def _first(wrong: Sequence[RecordProblem]) -> Column:
    """Return the number of the first problem of a record."""
    number = F.lit(None).cast("int")
    if wrong:
        number = F.when(wrong[0].where, F.lit(0))
        for position, problem in enumerate(wrong[1:], start=1):
            number = number.when(problem.where, F.lit(position))
    return number


def _reason(wrong: Sequence[RecordProblem]) -> tuple[Column, Column]:
    """Return code and words of the problem whose number a record has."""
    codes, words = (F.array(*map(F.lit, texts)) for texts in ([p.code for p in wrong], [p.words for p in wrong]))
    return F.get(codes, quoted(_PROBLEM)).alias(REASON), F.get(words, quoted(_PROBLEM)).alias(WORDS)


def tag_csv(
    files: DataFrame, bound: BoundMapping, at: datetime, *, brief: bool = False, some: RecordPlaces | None = None
) -> DataFrame:
    """Return the same of CSV files, which tasks read column by column.

    `brief` leaves out what only the quarantine needs, and adds `@number`. `some` chooses records of numbered files.
    """
    table = CsvTable.of(bound, brief=brief, some=some)
    own = {str(a.id): a.spec.kind for a in bound.event_type.attributes}
    event, names = transit_schema((bound.event_type,)), [one.name for one in table.events]
    place = _BRIEF if brief else _PLACED
    schema = StructType([*place, *(event[name] for name in names)])
    needed = (ORIGINAL,) if brief else (FILE, ORIGINAL) if some is None else (FILE, ORIGINAL, NUMBER)
    checked = files.select(*map(quoted, needed)).mapInArrow(table.read, schema)
    added = {
        INGESTED: literal(at, Kind.TIMESTAMP),
        TYPE: F.lit(str(bound.event_type.name)),
        **{name: literal(None, kind) for name, kind in own.items() if name not in names},
    }
    wanted = (*(field.name for field in place), *(() if brief else (INGESTED,)), TYPE, *METADATA, *own)
    return checked.select(*(added[name].alias(name) if name in added else quoted(name) for name in wanted))


def metadata_problems(checked: CheckedRecords, publishers: Sequence[str] = ()) -> list[RecordProblem]:
    """Return what can be wrong with the metadata of records, in terms of their columns `@id` to `@type`.

    `publishers` are principals whose names are recognised without looking at each of their letters.
    """
    never = F.lit(False)
    named, there = quoted(ID) != F.lit(""), quoted(TIME).isNotNull()
    principal = quoted(SOURCE).rlike(PRINCIPAL) if checked.principal is None else checked.principal
    principal = quoted(SOURCE).isin(*publishers) | principal if publishers else principal
    # A record whose time is an instant has no problem with it.
    instant = F.unix_micros(quoted(TIME)).between(F.lit(EARLIEST), F.lit(LATEST))
    time = [
        RecordProblem(p.where, "ingest.time", "the time is not an instant", instant)
        for p in checked.time.problems(quoted(TIME))
    ]
    return [
        RecordProblem(~F.coalesce(named, never), "ingest.id", "the id is absent or no text", named),
        RecordProblem(~F.coalesce(principal, never), "ingest.source", "the source is not a principal", principal),
        *time,
        RecordProblem(quoted(TIME).isNull(), "ingest.time", "the time is absent", there),
        RecordProblem(quoted(TYPE).isNull(), "ingest.type", "of no type and version that is known"),
        *checked.content,
    ]


def _only(own: Column, problem: RecordProblem) -> RecordProblem:
    return RecordProblem(own & problem.where, problem.code, problem.words)


def kinds_of(types: Iterable[EventType]) -> dict[AttributeId, Kind]:
    """Return the kind of each attribute. Raises `MalformedError` (`ingest.types`, `pipeline.case`)."""
    known = list(types)
    names = [event_type.name for event_type in known]
    if len(set(names)) != len(names):
        raise MalformedError("ingest.types", "a version of a type is given twice", hint="give each version once")
    kinds = {a.id: a.spec.kind for a in attributes_of(known)}
    for event_type in known:
        for a in event_type.attributes:
            if kinds[a.id] is not a.spec.kind:
                raise MalformedError(
                    "ingest.types",
                    f"attribute `{a.name}` is a {kinds[a.id]} in one version and a {a.spec.kind} in another",
                    hint="an attribute that changes its kind needs a new UID; ingest the versions one by one",
                )
    return kinds
