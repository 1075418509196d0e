"""Decide by a policy who may sign the blocks of a log, and pass the result to tasks.

A signature counts only if its signer may publish such events: the type and each attribute of the block, in all
versions, without conditions, at the time at which the block was sealed (as brokers demand it). Dates of a policy are
not passed to tasks. They receive which of the times in headers are valid, from the first to the last.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from penstock.codec.blocks import read_bound, read_parts, read_route, split
from penstock.codec.columns import instant
from penstock.crypto.blinding import Directory
from penstock.errors import PenstockError
from penstock.guard import Branch, Effect
from penstock.model.names import AttributeId, TypeKey
from penstock.model.principals import Principal
from penstock.model.types import EventType
from penstock.model.values import Kind
from penstock.pipeline.enforce.policy import PipelinePolicy
from penstock.pipeline.enforce.programs import table
from penstock.pipeline.frames import micros
from penstock.pipeline.sealed.log import BLOCK, HEADER, KeyFiles, map_arrow
from penstock.selector import ALWAYS as TRUE
from penstock.trust.capabilities import Right
from penstock.trust.event_types import VerifiedType

_SENDER, _TYPE, _TIME = "sender", "type", "time"
_HEADS: Final = StructType(
    [StructField(_SENDER, BinaryType()), StructField(_TYPE, StringType()), StructField(_TIME, LongType())]
)
_FROM, _UNTIL = "from", "until"
_FIRST, _LAST = "first", "last"
#: a date means the whole of its second, or the instant at which it begins; either way nothing changes in between
_AFTER: Final = (timedelta(microseconds=1), timedelta(seconds=1))


class Grant(NamedTuple):
    """That a signer may publish some attributes of a type, in blocks that were sealed from one time to another."""

    signer: bytes
    type: str
    first: int
    last: int
    attributes: frozenset[str]

    def covers(self, time: int, attributes: Iterable[str]) -> bool:
        """Return whether it covers a block."""
        return self.first <= time <= self.last and self.attributes.issuperset(attributes)


class _Seen(NamedTuple):
    """Times of blocks that somebody has sealed, or says so."""

    signer: bytes
    type: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class SignerPolicy:
    """A policy that says who may publish what."""

    policy: PipelinePolicy
    types: tuple[VerifiedType, ...]

    def grants(self, blocks: DataFrame, keys: KeyFiles) -> tuple[Grant, ...]:
        """Return the grants of the senders of some blocks, for the times of these blocks."""
        rights = self._rights()
        found = self._heads(keys, rights).of(blocks)
        seen = [one for one in _times(found) if (one.signer, one.type) in rights]
        changing = [one for one in seen if rights[one.signer, one.type].changes(one)]
        spans = [one for one in seen if one not in changing]
        if changing:
            cuts = [(one, rights[one.signer, one.type].cuts(one)) for one in changing]
            spans += _times(_cut(found, cuts), _FROM)
        granted = ((one, rights[one.signer, one.type].attributes(instant(one.first))) for one in spans)
        return tuple(Grant(*one, attributes) for one, attributes in granted if attributes is not None)

    def grants_of(self, headers: Iterable[bytes | None], keys: KeyFiles) -> tuple[Grant, ...]:
        """Return the same by the headers of the blocks, without Spark."""
        rights = self._rights()
        times: dict[tuple[bytes, str], list[int]] = {}
        for signer, of_type, time in self._heads(keys, rights).read(headers):
            times.setdefault((signer, of_type), []).append(time)
        found = []
        for who in times.keys() & rights.keys():
            own = sorted(times[who])
            for start, end in pairwise(rights[who].cuts(_Seen(*who, own[0], own[-1]))):
                inside = own[bisect_left(own, start) : bisect_left(own, end)]
                attributes = rights[who].attributes(instant(inside[0])) if inside else None
                if attributes is not None:
                    found.append(Grant(*who, inside[0], inside[-1], attributes))
        return tuple(found)

    def _rights(self) -> dict[tuple[bytes, str], "_Right"]:
        return {
            (principal.digest, str(key)): right
            for key in dict.fromkeys(verified.event_type.key for verified in self.types)
            for principal in self._principals(key)
            if (right := self._right(principal, key)).branches
        }

    def _heads(self, keys: KeyFiles, rights: Iterable[tuple[bytes, str]]) -> "_Heads":
        return _Heads(keys, tuple(v.event_type for v in self.types), frozenset(signer for signer, _ in rights))

    def _principals(self, key: TypeKey) -> Iterable[Principal]:
        return dict.fromkeys((key.owner, *self.policy.principals()))

    def _right(self, principal: Principal, key: TypeKey) -> "_Right":
        versions = [verified for verified in self.types if verified.event_type.key == key]
        found = []
        for verified in versions:
            decision = self.policy.decide(principal, Right.PUBLISH, verified)
            branches = decision.restriction.branches if decision.effect is Effect.PERMIT else ()
            found.append(tuple(branch for branch in branches if _is_whole(branch)))
        attributes = dict.fromkeys(a.id for verified in versions for a in verified.event_type.attributes)
        return _Right(tuple(attributes), tuple(found) if all(found) else ())


def _is_whole(branch: Branch) -> bool:
    """Return whether a branch holds for all events while it is valid."""
    bare = branch.where == TRUE and branch.when.condition == TRUE and branch.only is None
    return bare and not (branch.forced or branch.guards or branch.when.validity.online)


class _Right(NamedTuple):
    """A right to publish a type."""

    known: tuple[AttributeId, ...]
    #: of each version
    branches: tuple[tuple[Branch, ...], ...]

    def attributes(self, at: datetime) -> frozenset[str] | None:
        """Return the attributes that may be published at a time in all versions; None if the type may not."""
        held = [[branch for branch in own if branch.when.validity.contains(at)] for own in self.branches]
        if not all(held):
            return None
        return frozenset(str(a) for a in self.known if all(any(branch.shows(a) for branch in own) for own in held))

    def cuts(self, seen: _Seen) -> list[int]:
        """Return the instants at which the permitted attributes can change, from the first time on."""
        found = {seen.first, seen.last + 1}
        for validity in (branch.when.validity for own in self.branches for branch in own):
            instants = [] if validity.starts is None else [validity.starts]
            instants += [] if validity.ends is None else [validity.ends + after for after in _AFTER]
            found.update(at for at in map(micros, instants) if seen.first < at <= seen.last)
        return sorted(found)

    def changes(self, seen: _Seen) -> bool:
        """Return whether the grant can differ between these times."""
        return len(self.cuts(seen)) > 2  # the beginning and the end


@dataclass(frozen=True, slots=True)
class _Heads:
    """Read the sender, type and time from the headers of blocks, for some senders only."""

    keys: KeyFiles
    types: tuple[EventType, ...]
    senders: frozenset[bytes]

    def of(self, blocks: DataFrame) -> DataFrame:
        """Return sender, type and time of each block."""
        named = [name for name in (HEADER, BLOCK) if name in blocks.columns]
        return map_arrow(blocks, self._read, _HEADS, named)

    def read(self, headers: Iterable[bytes | None]) -> Iterator[tuple[bytes, str, int]]:
        """Yield the same by the headers of the blocks, without Spark."""
        directory = Directory.of(self.keys.read(), self.types)
        found = (self._head(directory, {HEADER: header}) for header in headers)
        yield from ((one[_SENDER], one[_TYPE], one[_TIME]) for one in found if one is not None)

    def _read(self, batches: Iterable[Any]) -> Iterator[Any]:
        directory = Directory.of(self.keys.read(), self.types)
        schema = pa.schema([(_SENDER, pa.binary()), (_TYPE, pa.string()), (_TIME, pa.int64())])
        for batch in batches:
            rows = [self._head(directory, row) for row in batch.to_pylist()]
            yield pa.RecordBatch.from_pylist([row for row in rows if row is not None], schema=schema)

    def _head(self, directory: Directory, row: dict[str, Any]) -> dict[str, Any] | None:
        try:
            parts = read_parts(row[HEADER] or split(row.get(BLOCK) or b"")[0], {})
            fixed, _, time, _ = read_bound(parts.bound)
            if fixed.sender not in self.senders:
                return None
            of_type = directory.resolve(read_route(parts.route)).type
            instant(time)
        except PenstockError:
            # Opening it reports the error.
            return None
        return {_SENDER: fixed.sender, _TYPE: str(of_type), _TIME: time}


def _times(heads: DataFrame, *apart: str) -> list[_Seen]:
    """Return the first and the last time of each sender and type, for each span of times apart."""
    grouped = heads.groupBy(_SENDER, _TYPE, *apart).agg(F.min(_TIME).alias(_FIRST), F.max(_TIME).alias(_LAST))
    return [_Seen(bytes(row[0]), *row[1:]) for row in grouped.select(_SENDER, _TYPE, _FIRST, _LAST).collect()]


def _cut(heads: DataFrame, cuts: Iterable[tuple[_Seen, list[int]]]) -> DataFrame:
    """Return the heads of some senders with the span that they are in."""
    spans = [(one.signer.hex().upper(), one.type, *span) for one, own in cuts for span in pairwise(own)]
    kinds = {"by": Kind.STRING, "of": Kind.STRING, _FROM: Kind.INTEGER, _UNTIL: Kind.INTEGER}
    known = F.broadcast(table(heads.sparkSession, kinds, spans))
    within = (F.col(_TIME) >= F.col(_FROM)) & (F.col(_TIME) < F.col(_UNTIL))
    return heads.join(known, (F.hex(_SENDER) == F.col("by")) & (F.col(_TYPE) == F.col("of")) & within)
