"""Open sealed blocks into events, with the columns for which there are keys.

The keys are read where a task runs, once for each. Blocks that do not open are classified by code: those that can wait
(`WAITING`: the key, or the type, may come) and those that are to be set aside. Of an attribute without any key the
values are null; one of which there are keys, and not that of the block's epoch, makes the block wait: otherwise nobody
could tell events of one epoch without a value from those of another. Where signatures are demanded, by the
owner of a type or by who reads, a block is opened only if it is signed by somebody who may publish such events.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import LongType, StringType, StructField, StructType

from penstock.codec.blocks import BlockNames, EncodedBlock, Parts, decode_block, read_header, read_parts, split
from penstock.crypto.blinding import Directory
from penstock.crypto.opener import Opener, at_levels
from penstock.crypto.seal_keys import column_scope, unknown_key
from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.types import EventType
from penstock.model.values import Kind
from penstock.pipeline.frames import ID, SOURCE, TIME, attributes_of, in_quotes, quoted, transit_schema
from penstock.pipeline.ingest.event_frames import REASON, TYPE
from penstock.pipeline.outputs import closed_log
from penstock.pipeline.sealed.columns import ARROW_TYPES, Group, OpenedGroup, decode_array, groups, open_group, places
from penstock.pipeline.sealed.log import (
    AGAIN,
    BLOCK,
    FIRST,
    HEAD,
    HEADER,
    REPLAYED,
    ROWS,
    KeyFiles,
    Parted,
    count_blocks,
    map_arrow,
    readable,
)
from penstock.pipeline.sealed.signers import Grant, SignerPolicy

# ----------------------------------------------------------------------------------------------------------------------
# Opened events on their way from tasks to Spark.
#
# What an event is called and whether a value is null would be a string, and a question to Arrow, for each row and
# column: Spark's part of reading a log of long blocks is several times that of opening it. One number a row says all of
# it instead, and Spark turns it into names and nulls where it makes its rows.


_NUMBER: Final = "@names"
"""A number for who sent an event, its type, and which of its values are null, from the lowest bits on."""
_HALF: Final = 16
_LOWER: Final = (1 << _HALF) - 1
_NULLS: Final = 2 * _HALF
MARKED: Final = 31
"""So many columns have a bit that says whether they are null: what is left of a number of Spark without its sign."""


def events_schema(types: Iterable[EventType]) -> StructType:
    """Return the schema of events as jobs store them."""
    return StructType([StructField(TYPE, StringType()), *transit_schema(types)])


def numbered_schema(types: Sequence[EventType], senders: Sequence[str] | None) -> StructType:
    """Return the schema in which events leave tasks: a number stands for their type, known senders, and nulls.

    Spark asks Arrow for each value whether it is null, which is expensive: columns without nulls are declared so.
    """
    if max(len(types), len(senders or ())) > _LOWER + 1:
        raise ValueError("there are too many types or senders for one number")
    instead = (TYPE,) if senders is None else (TYPE, SOURCE)
    stored = events_schema(types)
    whole = {ID, *_marked(stored.names)}
    rest = [StructField(f.name, f.dataType, nullable=f.name not in whole) for f in stored if f.name not in instead]
    return StructType([StructField(_NUMBER, LongType(), nullable=False), *rest])


def unnumbered(found: DataFrame, types: Sequence[EventType], senders: Sequence[str] | None) -> DataFrame:
    """Return the events of a frame in that schema as jobs store them."""
    number, wanted = quoted(_NUMBER), events_schema(types).names
    shown = {TYPE: _named([str(t.name) for t in types], F.shiftright(number, _HALF).bitwiseAND(_LOWER)).alias(TYPE)}
    if senders is not None:
        shown[SOURCE] = _named(senders, number.bitwiseAND(_LOWER)).alias(SOURCE)
    for place, name in enumerate(_marked(wanted)):
        # With `F.when` some starts of Java were slower.
        bit = 1 << _NULLS + place
        shown[name] = F.expr(f"IF({in_quotes(_NUMBER)} & {bit}L = 0, {in_quotes(name)}, NULL)").alias(name)
    return found.select(*(shown.get(name, quoted(name)) for name in wanted))


def _marked(columns: Iterable[str]) -> list[str]:
    """Return those of the columns of events that have a bit, in the order of the bits."""
    return [name for name in columns if name not in (_NUMBER, TYPE, ID, SOURCE)][:MARKED]


def _named(names: Sequence[str], number: Column) -> Column:
    """Return the name of a number."""
    return F.get(F.array(*map(F.lit, names)).cast("array<string>"), number)


class Numbering:
    """Make batches in that schema, except for nulls, in a task."""

    def __init__(self, types: Sequence[EventType], senders: Sequence[str] | None) -> None:
        self.kinds: Mapping[str, Kind] = {str(a.id): a.spec.kind for a in attributes_of(types)}
        self._senders = None if senders is None else {name: number for number, name in enumerate(senders)}
        fields = [(_NUMBER, pa.int64()), (ID, pa.string()), (TIME, ARROW_TYPES[Kind.TIMESTAMP])]
        if senders is None:
            fields.append((SOURCE, pa.string()))
        self._schema = pa.schema([*fields, *((name, ARROW_TYPES[kind]) for name, kind in self.kinds.items())])
        self._last: tuple[tuple[int, int, bytes], Sequence[Any]] = (0, 0, b""), ()

    def batch(self, opened: OpenedGroup, version: int) -> Any:
        """Return the events of a block as rows: `version` is the place of its type.

        Raises `MalformedError` (`block.malformed`) if the sender is not known.
        """
        rows = len(opened.ids)
        number, *source = self._common(rows, version, opened.sender)
        found = opened.columns
        own = [found[n] if n in found else pa.nulls(rows, ARROW_TYPES[kind]) for n, kind in self.kinds.items()]
        return pa.RecordBatch.from_arrays([number, opened.ids, opened.times, *source, *own], schema=self._schema)

    def _common(self, rows: int, version: int, sender: bytes) -> Sequence[Any]:
        """Return the common values of a block's events, once for each event: blocks of one log are mostly alike."""
        if self._last[0] != (rows, version, sender):
            name = str(Principal(sender))
            source = [] if self._senders is not None else [pa.repeat(name, rows)]
            number = version << _HALF | self._place(name)
            self._last = (rows, version, sender), (pa.repeat(pa.scalar(number, pa.int64()), rows), *source)
        return self._last[1]

    def _place(self, sender: str) -> int:
        place = 0 if self._senders is None else self._senders.get(sender)
        if place is None:
            raise MalformedError("block.malformed", "a block has a sender that the log did not have when the job began")
        return place


def without_nulls(batch: Any) -> Any:
    """Return a batch in which the number of a row says which of its values are null, and columns with a bit have none.

    Not only by the schema: Java may refuse to read what is null.
    """
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    numbers = columns[_NUMBER].to_numpy()
    for place, name in enumerate(_marked(batch.schema.names)):
        column = columns[name]
        if column.null_count:
            numbers = numbers | column.is_null().to_numpy(zero_copy_only=False).astype(np.int64) << _NULLS + place
            buffers = [None, *column.buffers()[1:]]
            columns[name] = pa.Array.from_buffers(column.type, len(column), buffers, 0, column.offset)
    columns[_NUMBER] = pa.array(numbers)
    return pa.RecordBatch.from_arrays([*columns.values()], schema=batch.schema)


# ----------------------------------------------------------------------------------------------------------------------
# Sealed blocks become events again, as many columns of them as keys are held for.


UNKNOWN_TYPE: Final = "pipeline.unknown-type"
WAITING: Final = ("seal.unknown-key", "seal.unknown-label", UNKNOWN_TYPE)
"""Codes of blocks that may open once more is known here."""
_FEW: Final = 8_192
_SMALL: Final = 16 << 20
"""Blocks of fewer events, and of fewer bytes, are put together before they go to Spark."""
#: the flag in the second byte of a header
_SIGNED: Final = 2


@dataclass(frozen=True, slots=True)
class BlockReader:
    """Arguments of tasks: the files of their keys, the types, and the wanted attributes."""

    keys: KeyFiles
    types: tuple[EventType, ...]
    wanted: tuple[str, ...]
    #: all who have sealed the blocks; where that is not known, their long names come from tasks row by row
    senders: tuple[str, ...] | None = None
    #: whether everything must be signed; events whose owner requires it always must
    verify: bool = False
    #: who may sign what
    grants: tuple[Grant, ...] = ()
    #: whether copies may be among the blocks, those of one name together
    once: bool = False

    @classmethod
    def of(
        cls, keys: KeyFiles, types: Iterable[EventType], columns: Iterable[str], senders: tuple[str, ...] | None = None
    ) -> "BlockReader":
        """Look at the keys here, to find out which columns of a log need be read. Raises as `KeyFiles.read`."""
        known = tuple(types)
        return cls(keys, known, readable(known, keys.read(), columns), senders)

    def verified(self, blocks: DataFrame, judge: SignerPolicy | None, *, all_types: bool = False) -> "BlockReader":
        """Return a copy with the permitted signers, if blocks must be signed; without a judge, nobody may sign."""
        if not all_types and not any(t.signed for t in self.types):
            return self
        grants = () if judge is None else judge.grants(blocks, self.keys)
        return replace(self, verify=all_types, grants=grants)

    def events_of(self, found: Parted) -> DataFrame:
        """Return the events of blocks of which some may be copies."""
        opened = self.events(found.alone)
        return opened if found.suspect is None else opened.union(replace(self, once=True).events(found.suspect))

    def failures_of(self, found: Parted) -> DataFrame:
        """Return those of them that do not open, and copies."""
        failed = self.failures(found.alone)
        if found.suspect is None:
            return failed
        return failed.unionByName(replace(self, once=True).failures(found.suspect).drop(AGAIN))

    def events(self, blocks: DataFrame, *, strict: bool = False) -> DataFrame:
        """Return the events of the blocks that open; with `strict`, all blocks must open.

        Attributes of which no key is held are null, and their columns are not read.
        """
        whole = [name for name in blocks.columns if name in (BLOCK, AGAIN)]
        schema = numbered_schema(self.types, self.senders)
        found = map_arrow(blocks, self._strict if strict else self._opened, schema, (*HEAD, *self.wanted, *whole))
        return unnumbered(found, self.types, self.senders)

    def failures(self, blocks: DataFrame) -> DataFrame:
        """Return the blocks that do not open, as they are, with the code in `@reason`."""
        return map_arrow(blocks, self._failed, StructType([*blocks.schema, StructField(REASON, StringType())]))

    def stored(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the events of blocks in the columns in which jobs store them, without Spark.

        All blocks must open. Raises as `closed_log`.
        """
        names = pa.array([str(t.name) for t in self.types], pa.string())
        for batch in self._checked(batches):
            numbers = batch.column(_NUMBER).to_numpy() >> _HALF & _LOWER
            yield batch.append_column(TYPE, names.take(pa.array(numbers)))

    def _opened(self, batches: Iterable[Any]) -> Iterator[Any]:
        opened = (found for found in self._read(batches) if not isinstance(found, Failed))
        yield from map(without_nulls, _gathered(opened))

    def _strict(self, batches: Iterable[Any]) -> Iterator[Any]:
        yield from map(without_nulls, _gathered(self._checked(batches)))

    def _checked(self, batches: Iterable[Any]) -> Iterator[Any]:
        for found in self._read(batches):
            if isinstance(found, Failed):
                raise closed_log(found.code)
            yield found

    def _failed(self, batches: Iterable[Any]) -> Iterator[Any]:
        reader = _Reader(self)
        for batch in batches:
            failed = [found for found in reader.read(batch) if isinstance(found, Failed)]
            kept = batch.take(pa.array([found.row for found in failed], pa.int64()))
            yield kept.append_column(REASON, pa.array([found.code for found in failed], pa.string()))

    def _read(self, batches: Iterable[Any]) -> Iterator["Any | Failed"]:
        reader = _Reader(self)
        for batch in batches:
            yield from reader.read(batch)


class Failed(NamedTuple):
    """A block that does not open: its row, and why."""

    row: int
    code: str


class _Reader:
    """Reads the blocks of one task."""

    def __init__(self, reading: BlockReader) -> None:
        self._wanted = frozenset(str(a.id) for a in attributes_of(reading.types))
        self._read = reading.wanted
        self._types = reading.types
        self._versions: dict[bytes, int] = {}
        self._rows = Numbering(reading.types, reading.senders)
        self._kinds = self._rows.kinds
        ring = reading.keys.read()
        self._held = frozenset(scope for scope, _, _ in ring.items())
        self._directory = Directory.of(ring, reading.types)
        self._opener = Opener(ring, self._directory, admits=at_levels({t.key: t.sealing for t in reading.types}))
        self._verify_all, self._signed = reading.verify, {t.key for t in reading.types if t.signed}
        self._grants: dict[tuple[bytes, str], list[Grant]] = {}
        for grant in reading.grants:
            self._grants.setdefault((grant.signer, grant.type), []).append(grant)
        self._taken: set[bytes] | None = set() if reading.once else None

    def read(self, batch: Any) -> Iterator[Any | Failed]:
        """Yield events in batches, and the blocks that failed."""
        rows = batch.column(ROWS).fill_null(0).to_numpy(zero_copy_only=False)
        single = (rows == 1) & batch.column(HEADER).is_valid().to_numpy(zero_copy_only=False)
        if self._taken is not None:
            single[:] = False
        elif self._verify_all or self._signed:
            # Signatures differ, and are looked at one by one.
            single &= ~_are_signed(batch.column(HEADER))
        if single.any():
            columns = {"": batch.column(FIRST), **{name: batch.column(name) for name in self._read}}
            for group in groups(batch.column(HEADER), np.flatnonzero(single)):
                yield from self._group(batch, group, columns)
        for row in np.flatnonzero(~single).tolist():
            yield self._block(batch, row)

    def _group(self, batch: Any, group: Group, columns: Mapping[str, Any]) -> Iterator[Any | Failed]:
        try:
            found = open_group(self._opener, group, columns, self._wanted, self._kinds)
            if self._demands(found.names.type):
                raise _unsigned()
            version = self._version(found.names)
            self._check_epochs(found.names, (n for n in found.names.attributes if n not in found.columns))
            yield self._rows.batch(found, version)
        except (PenstockError, KeyError):
            # Find the block that does not open.
            yield from (self._block(batch, row) for row in group.rows.tolist())

    def _block(self, batch: Any, row: int) -> Any | Failed:
        try:
            return self._open(batch, row)
        except PenstockError as error:
            return Failed(row, error.code)

    def _open(self, batch: Any, row: int) -> Any:
        header, columns = self._parts(batch, row)
        encoded = self._opener.open_encoded(header, columns, self._wanted)
        parts = read_parts(header, {})
        if parts.rows != batch.column(ROWS)[row].as_py():
            raise MalformedError("block.malformed", "a row of a sealed log that counts other events than its block")
        version = self._version(encoded.names)
        pairs = list(zip(encoded.names.attributes, encoded.columns, strict=True))
        self._check_epochs(encoded.names, (n for n, data in pairs if data is None))
        if self._demands(encoded.names.type):
            self._verify(header, parts, encoded)
        ids = decode_array(encoded.ids, encoded.rows, Kind.STRING)
        times = decode_array(encoded.times, encoded.rows, Kind.TIMESTAMP)
        arrays = {n: decode_array(data, encoded.rows, self._kinds[n]) for n, data in pairs if data is not None}
        found = self._rows.batch(OpenedGroup(encoded.names, parts.header().fixed.sender, ids, times, arrays), version)
        # Last, because only blocks that opened completely count as taken.
        self._take(parts, again=AGAIN in batch.schema.names and bool(batch.column(AGAIN)[row].as_py()))
        return found

    def _check_epochs(self, names: BlockNames, closed: Iterable[str]) -> None:
        """Check that of attributes which did not open no key is held. Raises `RefusedError` (`seal.unknown-key`)."""
        if any(column_scope(names.type, name) in self._held for name in closed):
            raise unknown_key(names.type)

    def _demands(self, of_type: TypeKey) -> bool:
        """Return whether events of a type must be signed."""
        return self._verify_all or of_type in self._signed

    def _verify(self, header: bytes, parts: Parts, encoded: EncodedBlock) -> None:
        """Check the signer of a block. Raises `RefusedError`: `seal.unsigned`, `seal.bad-signature`, `seal.signer`."""
        sender = self._opener.verify_parts(header, decode_block(encoded)).sender
        names = encoded.names
        known = self._grants.get((sender.digest, str(names.type)), ())
        if not any(grant.covers(parts.time, names.attributes) for grant in known):
            raise RefusedError("seal.signer", f"a block is signed by {sender.short}, who may not publish such events")

    def _take(self, parts: Parts, *, again: bool) -> None:
        """Take a block that has opened, once. Raises `RefusedError` (`seal.replayed`)."""
        if self._taken is None:
            return
        header = parts.header()
        name = header.fixed.sender + header.id
        if again or name in self._taken:
            raise RefusedError(REPLAYED, "a block of the log has come before")
        self._taken.add(name)

    def _parts(self, batch: Any, row: int) -> tuple[bytes, Mapping[str, bytes]]:
        """Return the header and the columns of a block, as far as they are to be read."""
        header = batch.column(HEADER)[row].as_py()
        if header is None:
            return self._cut(batch.column(BLOCK)[row].as_py() if BLOCK in batch.schema.names else None)
        cells = {"": _cell(batch.column(FIRST), row), **{name: _cell(batch.column(name), row) for name in self._read}}
        return header, {name: cell for name, cell in cells.items() if cell is not None}

    def _cut(self, block: bytes | None) -> tuple[bytes, Mapping[str, bytes]]:
        """Cut a block that came whole: when it came, its labels or its attributes were not known."""
        data = block or b""
        self._version(self._directory.resolve(read_header(data).route))
        return split(data)

    def _version(self, names: BlockNames) -> int:
        """Return which version events are shown in: that with the same attributes, or one with more."""
        found = self._versions.get(names.written)
        if found is None:
            ids = {*names.attributes}
            own = [(n, {str(a.id) for a in t.attributes}) for n, t in enumerate(self._types) if t.key == names.type]
            fitting = [n for n, known in own if known == ids] or [n for n, known in own if known > ids]
            if not fitting:
                raise _unknown_type()
            found = self._versions[names.written] = fitting[0]
        return found


def _cell(column: Any, row: int) -> bytes | None:
    """Return a value of a binary column, copied once: a scalar of Arrow would be a copy more."""
    one = column.slice(row, 1)
    return None if one.null_count else places(one)[1].tobytes()


def _are_signed(headers: Any) -> NDArray[np.bool_]:
    """Return for each header whether it is signed. The result is arbitrary for data that is not a header."""
    ends, data = places(headers)
    flags = np.minimum(ends[:-1] + 1, max(len(data) - 1, 0))
    found: NDArray[np.bool_] = (data[flags] & _SIGNED) != 0 if len(data) else np.zeros(len(flags), np.bool_)
    return found


def _unsigned() -> RefusedError:
    return RefusedError("seal.unsigned", "a block that has to be signed is not")


def _unknown_type() -> MalformedError:
    return MalformedError(UNKNOWN_TYPE, "a block of a type, or with attributes, that are not known here")


def _gathered(batches: Iterable[Any]) -> Iterator[Any]:
    """Put small batches together."""
    waiting: list[Any] = []
    rows = size = 0
    for batch in batches:
        alone = batch.num_rows >= _FEW or batch.nbytes >= _SMALL
        if waiting and (alone or rows >= _FEW or size >= _SMALL):
            yield pa.concat_batches(waiting)
            waiting, rows, size = [], 0, 0
        if alone:
            yield batch
        else:
            waiting.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
    if waiting:
        yield pa.concat_batches(waiting)


def sealed_columns(blocks: DataFrame) -> tuple[str, ...]:
    """Return the attributes that a frame of blocks has columns for."""
    return tuple(name for name in blocks.columns if name not in (*HEAD, BLOCK, AGAIN))


def sealed_events(
    blocks: DataFrame,
    types: Iterable[EventType],
    keys: KeyFiles,
    judge: SignerPolicy | None = None,
) -> DataFrame:
    """Return the events of a sealed log as if they had been stored as they are.

    A job that reads them fails if a block cannot be opened (`seal.closed-log`): `unseal` sets such blocks aside. A
    copy of a block is reported here.
    """
    found = count_blocks(blocks)
    if found.copies:
        raise closed_log(REPLAYED)
    reading = BlockReader.of(keys, types, sealed_columns(blocks), found.senders).verified(blocks, judge)
    return reading.events(blocks, strict=True)
