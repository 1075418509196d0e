"""Decisions by attribute-based policies on all rows of a table of requests.

    row   the columns of the request   @decision  @status  @obligations  @advice  @policies

Rows are decided in Python, whole columns together (`vectors`). Policies are sent to the tasks as a file beside
the job: in the function that tasks run they would stand in requests to a Spark Connect server, which logs those.
"""

import hashlib
import io
import pickle
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache
from math import nan
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark import SparkFiles
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from penstock.errors import MalformedError
from penstock.pipeline.evaluate.columns import column
from penstock.pipeline.evaluate.mapping import RequestColumn, check_columns
from penstock.pipeline.evaluate.vectors import COLUMNS, SCHEMA, Decider
from penstock.pipeline.sealed.log import map_arrow
from penstock.policy.engine.lookup import Repository, check_policies
from penstock.policy.engine.vectors import Vectors
from penstock.policy.language.datatypes import DataType, Function
from penstock.policy.language.policies import PolicyLiteral, Root, function_of
from penstock.policy.syntax.xml.policies import write_policy

#: policies that a process of Python keeps ready
_READY: Final = 2


@dataclass(frozen=True)
class TablePolicies:
    """A policy that decides, and those that it may refer to. Raises as `check_policies`."""

    root: Root
    referred: tuple[Root, ...] = ()

    def __post_init__(self) -> None:
        check_policies([self.root], self.referred)

    @cached_property
    def revision(self) -> str:
        """Return a digest of the policies."""
        digest = hashlib.sha256()
        for one in (self.root, *self.referred):
            digest.update(hashlib.sha256(write_policy(one)).digest())
        # Spark would take some for numbers, where it stands in a path.
        return f"rev-{digest.hexdigest()[:16]}"

    @cached_property
    def _written(self) -> bytes:
        octets = io.BytesIO()
        _Pickler(octets, pickle.HIGHEST_PROTOCOL).dump((self.root, self.referred))
        return octets.getvalue()

    def send(self, spark: SparkSession) -> str:
        """Send them to wherever tasks run, as a file, and return its name."""
        name = f"penstock-{hashlib.sha256(self._written).hexdigest()}"
        file = Path(_folder().name) / name
        if not file.exists():
            file.write_bytes(self._written)
        spark.addArtifacts(str(file), file=True)
        return name


@lru_cache(maxsize=1)
def _folder() -> "tempfile.TemporaryDirectory[str]":
    """Return a folder of this process alone: executors come for a file when they need it."""
    return tempfile.TemporaryDirectory(prefix="penstock-")


class _Pickler(pickle.Pickler):
    """Writes policies: functions are named, and not described."""

    def reducer_override(self, thing: object) -> Any:
        if isinstance(thing, Function):
            return function_of, (thing.id,)
        if isinstance(thing, PolicyLiteral) and thing.value != thing.value:  # NaN
            return _no_number, (thing.gives,)
        if isinstance(thing, MappingProxyType):
            # The class itself has no name by which it could be found.
            return _unchanging, (dict(thing),)
        return NotImplemented


def _no_number(of: DataType) -> PolicyLiteral:
    """Return NaN: there is one object, which bags find by identity."""
    return PolicyLiteral(nan, of)


def _unchanging(found: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(found)


@dataclass(frozen=True, slots=True)
class _Task:
    """Arguments of a task: where the policies are, which columns are which attributes, and the time."""

    file: str
    columns: tuple[RequestColumn, ...]
    now: datetime
    #: the types of the columns
    types: tuple[Any, ...]

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        decider = _decider(self)
        names = {one.key: one.name for one in self.columns}
        for batch in batches:
            numbers = decider.decide([batch.column(names[key]) for key in decider.keys], batch.num_rows)
            found = decider.answers.columns(numbers)
            yield pa.RecordBatch.from_arrays([*batch.columns, *found], names=[*batch.schema.names, *COLUMNS])


@lru_cache(maxsize=_READY)
def _decider(task: _Task) -> Decider:
    """Read the policies, once for all tasks that a process runs."""
    root, referred = pickle.loads(Path(SparkFiles.get(task.file)).read_bytes())  # noqa: S301  # whoever sends it sends the code, too
    vectors = Vectors(root, Repository(referred), task.now, [one.key for one in task.columns])
    given = {one.key: (one, found) for one, found in zip(task.columns, task.types, strict=True)}
    columns = [
        column(given[key][1], key.of, vectors.constants(place), given[key][0].separator)
        for place, key in enumerate(vectors.keys)
    ]
    return Decider(vectors, columns)


def evaluate(
    requests: DataFrame, policies: TablePolicies, columns: Sequence[RequestColumn], now: datetime
) -> DataFrame:
    """Return rows with what policies say of them, at some time.

    A row whose values cannot be read as what they should be is Indeterminate. Raises `MalformedError`
    (`evaluate.column`, `mapping.column`).
    """
    check_columns(tuple(columns))
    types = tuple(_type(requests, one) for one in columns)
    taken = sorted({*COLUMNS} & {*requests.columns})
    if taken:
        raise MalformedError(
            "evaluate.column", f"there is a column `{taken[0]}` already", hint="rename it: answers will stand there"
        )
    task = _Task(policies.send(requests.sparkSession), tuple(columns), now, types)
    return map_arrow(requests, task, StructType([*requests.schema, *SCHEMA]))


def _type(requests: DataFrame, wanted: RequestColumn) -> Any:
    """Return the type of a column in Arrow, if values of an attribute can stand there."""
    if wanted.name not in requests.columns:
        raise MalformedError(
            "evaluate.column",
            f"there is no column `{wanted.name[:80]}`",
            hint=f"there are: {', '.join(requests.columns)[:400]}",
        )
    found = to_arrow_type(requests.schema[wanted.name].dataType)
    if wanted.many is not (pa.types.is_list(found) or wanted.separator is not None):
        raise MalformedError(
            "evaluate.column",
            f"column `{wanted.name[:80]}` {'holds no arrays' if wanted.many else 'holds arrays'}",
            hint="say `many` where a row has several values, and only there",
        )
    column(found, wanted.key.of, None, wanted.separator)
    return found
