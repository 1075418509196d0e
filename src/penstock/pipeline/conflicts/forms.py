"""The functions of many rules in a form that Spark can compare: each different text is read once, where a task runs.

    function  string   `fnc_p` or `fnc_s`
    key       binary   a digest of the text, by which rules name it
    text      string   as it was stated
    reason    string   why no rule may state it; null for all others. `words` says more
    word      binary   the meaning: equal for texts that surely mean the same
    stated    string   the text in the selector language
    exact     boolean  whether `demands` say all
    demands   array    what it asks for, piece by piece

A demand is an interval of whole numbers, which stand for the values of an attribute in their order, or the presence of
a part that has no interval: a condition on several attributes, a pattern, an entry of a list in the mode `algorithm`.
One function surely implies another if each demand of the other, from `low` to `high`, has room for what is known of the
same in the one, from `least` to `most`. Where both are exact, it implies the other only if this is so.
"""

import hashlib
import json
import math
import re
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import ArrayType, BinaryType, BooleanType, LongType, StringType, StructField, StructType

from penstock.codec.yaml_text import Written
from penstock.errors import MalformedError, PenstockError
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.profiles import ProfileSchema
from penstock.model.tree import TreeScope, TypeTree
from penstock.model.values import INTEGER_MAX, INTEGER_MIN, AttributeSpec, Enumerated, Kind, Ranged
from penstock.moderator.descriptions import parse_function
from penstock.moderator.detection.judge import Forms, FunctionForm, QuickJudge
from penstock.moderator.files.rule_file import RuleFile, read_rule_file, write_rule_file
from penstock.moderator.limits import MODERATOR_ANSWERS
from penstock.moderator.rules.rules import AttributeList, Bound, ListEntry, Mode, PublishRule, RuleFunction
from penstock.moderator.rules.vocabulary import Vocabulary
from penstock.selector import ALWAYS, Selector
from penstock.selector.algebra import Box
from penstock.selector.sets import universe
from penstock.trust.limits import MODERATOR_LIST

# ----------------------------------------------------------------------------------------------------------------------
# The vocabulary of the rules of a table.


ANYWHERE: Final = TypeKey(Principal(bytes(32)), "Type")
"""The only event type of the vocabulary: tables say on which event types rules stand."""


@dataclass(frozen=True)
class RuleTerms:
    """The vocabulary of rules without the event types: how they are compared, and the attributes of profiles."""

    scope: TreeScope
    publishers: Mapping[str, AttributeSpec]
    subscribers: Mapping[str, AttributeSpec]
    mode: Mode = Mode.SCOPED

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The same for one event type, on which any two functions can be compared."""
        tree = TypeTree.of({ANYWHERE: None}, self.scope)
        return Vocabulary(tree, ProfileSchema(self.publishers), ProfileSchema(self.subscribers))

    def __reduce__(self) -> tuple[object, ...]:
        # For tasks: derived values are computed there.
        return RuleTerms, (self.scope, dict(self.publishers), dict(self.subscribers), self.mode)

    def as_dict(self) -> dict[str, Written]:
        """Return the terms as plain data: a rule base without rules."""
        return write_rule_file(RuleFile(self.vocabulary, self.mode))

    @classmethod
    def from_dict(cls, data: object) -> "RuleTerms":
        """Read terms from plain data. Raises as `read_rule_file`."""
        read = read_rule_file(data)
        words = read.vocabulary
        return cls(words.tree.scope, words.publishers.attributes, words.subscribers.attributes, read.mode)


# ----------------------------------------------------------------------------------------------------------------------
# The functions of many rules in a form that Spark can compare: each different text is read once, where a task runs.


DEMAND: Final = StructType(
    [
        StructField("of", StringType()),
        StructField("attribute", StringType()),
        *(StructField(name, LongType()) for name in ("low", "high", "least", "most")),
    ]
)
FUNCTIONS: Final = StructType(
    [
        StructField("function", StringType()),
        StructField("key", BinaryType()),
        StructField("text", StringType()),
        StructField("reason", StringType()),
        StructField("words", StringType()),
        StructField("word", BinaryType()),
        StructField("stated", StringType()),
        StructField("exact", BooleanType()),
        StructField("demands", ArrayType(DEMAND)),
    ]
)
_DEMAND_KINDS: Final = (pa.string(), pa.string(), *[pa.int64()] * 4)
_ARROW: Final = pa.schema(
    [
        ("function", pa.string()),
        ("key", pa.binary()),
        ("text", pa.string()),
        ("reason", pa.string()),
        ("words", pa.string()),
        ("word", pa.binary()),
        ("stated", pa.string()),
        ("exact", pa.bool_()),
        ("demands", pa.list_(pa.struct(list(zip(DEMAND.names, _DEMAND_KINDS, strict=True))))),
    ]
)
_DIGEST: Final = 16
_JSON: Final = re.compile(r"\s*\{\s*[\"}]")
_AND: Final = " AND "
#: an entry of a list, as selectors are written
_ENTRY: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,127}) (=|<=|>=) ('[^']{0,128}'|0|-?[1-9][0-9]{0,17})", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class _Demand(NamedTuple):
    of: str
    attribute: str | None
    low: int | None
    high: int | None
    least: int | None
    most: int | None

    def met(self, other: "_Demand") -> "_Demand | None":
        """Return the intersection of two demands of exact functions on one attribute; None if it is empty."""
        if self.low is None or other.low is None or self.high is None or other.high is None:
            return None
        low, high = max(self.low, other.low), min(self.high, other.high)
        return None if low > high else _Demand(self.of, self.attribute, low, high, low, high)


class _Read(NamedTuple):
    stated: str
    demands: list[_Demand]
    exact: bool


def key_of(text: Column) -> Column:
    """Return the key of a text; rules without a function state TRUE."""
    return F.unhex(F.substring(F.sha2(text, 256), 1, 2 * _DIGEST))


def digest(text: str) -> bytes:
    """Return the key of a text, as `key_of` does."""
    return hashlib.sha256(text.encode()).digest()[:_DIGEST]


def read_functions(texts: DataFrame, terms: RuleTerms) -> DataFrame:
    """Read different texts (`function`, `text`), each once (`FUNCTIONS`)."""

    def read(batches: Iterable[Any]) -> Iterator[Any]:
        reader = FunctionReader(terms)
        for batch in batches:
            asked = zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
            yield _batch([reader.row(RuleFunction(name), text) for name, text in asked])

    return texts.select("function", "text").mapInArrow(read, FUNCTIONS)


def _batch(rows: list[dict[str, object]]) -> Any:
    """Return rows as an Arrow batch: column by column is faster than row by row."""
    columns = [_column(rows, name, kind) for name, kind in zip(_ARROW.names[:-1], _ARROW.types[:-1], strict=True)]
    listed = [row.get("demands") for row in rows]
    demands = [demand for found in listed if isinstance(found, list) for demand in found]
    fields = list(zip(*demands, strict=True)) or [()] * len(DEMAND)
    values = [pa.array(found, kind) for found, kind in zip(fields, _DEMAND_KINDS, strict=True)]
    offsets, place = [0], 0
    for found in listed:
        place += len(found) if isinstance(found, list) else 0
        offsets.append(place)
    packed = pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()),
        pa.StructArray.from_arrays(values, DEMAND.names),
        mask=pa.array([found is None for found in listed], pa.bool_()),
    )
    return pa.RecordBatch.from_arrays([*columns, packed], schema=_ARROW)


def _column(rows: list[dict[str, object]], name: str, kind: Any) -> Any:
    return pa.array([row.get(name) for row in rows], kind)


class FunctionReader:
    """Read functions over the attributes of some terms."""

    def __init__(self, terms: RuleTerms) -> None:
        self._terms = terms
        self._vocabulary = terms.vocabulary
        self._judge = QuickJudge(self._vocabulary, terms.mode)
        self._entries: dict[tuple[RuleFunction, str], _Demand | None] = {}
        #: attributes, comparisons and kinds of values whose demands are known without parsing
        self._trusted: set[tuple[RuleFunction, str, str, bool]] = set()
        self._sides = {function: _Side.of(self._judge.forms[function]) for function in RuleFunction}

    def row(self, function: RuleFunction, text: str) -> dict[str, object]:
        """Return the row of a text; a problem with it is part of the row."""
        known: dict[str, object] = {"function": str(function), "key": digest(text), "text": text}
        try:
            read = self._put_together(function, text) or self._read(function, text)
        except PenstockError as error:
            return {**known, "reason": error.code, "words": error.message.removeprefix(f"rule `r`, {function}: ")}
        meaning = repr(sorted(read.demands)) if read.exact else read.stated
        word = digest(f"{function} {read.exact} {meaning}")
        return {**known, "word": word, "stated": read.stated, "exact": read.exact, "demands": read.demands}

    def _read(self, function: RuleFunction, text: str) -> "_Read":
        selector = read_text(text)
        self._check(function, selector)
        return _Read(selector.text, *self._demands(function, selector))

    def _put_together(self, function: RuleFunction, text: str) -> "_Read | None":
        """Return the demands of all entries of a list, each of which is read once; None for other texts.

        Most rules state lists, and these have their entries in common.
        """
        found: dict[str, _Demand] = {}
        entries = text.split(_AND)
        for entry in entries if len(entries) <= MODERATOR_LIST else ():
            demand = self._entry(function, entry)
            if demand is None:
                return None
            known = found.get(demand.of)
            if known is not None:
                demand = demand.met(known)
                if demand is None or self._terms.mode is Mode.ALGORITHM:
                    return None
            found[demand.of] = demand
        if self._terms.mode is Mode.ALGORITHM and len({entry.partition(" ")[0] for entry in entries}) < len(entries):
            # Two entries about one attribute may exclude each other, which their texts do not show.
            return None
        return _Read(text, [found[name] for name in sorted(found)], exact=True) if found else None

    def _entry(self, function: RuleFunction, text: str) -> _Demand | None:
        """Return the one demand of an entry in the form in which selectors are written; None for all else."""
        if (function, text) in self._entries:
            return self._entries[function, text]
        found: _Demand | None = None
        if (parts := _ENTRY.fullmatch(text)) is not None:
            form = (function, parts[1], parts[2], parts[3][0] == "'")
            quick = self._sides[function].entry(parts[1], parts[2], parts[3])
            if quick is not None and self._terms.mode is Mode.ALGORITHM:
                quick = _present(text, parts[1])
            if quick is None or form not in self._trusted:
                # The first entry of a form is read like any text, and shows whether the others must be read too.
                read = self._read(function, text)
                found = read.demands[0] if read.exact and read.stated == text and len(read.demands) == 1 else None
                if quick is not None and quick == found:
                    self._trusted.add(form)
            else:
                found = quick
        if len(self._entries) >= MODERATOR_ANSWERS:
            self._entries.clear()
        self._entries[function, text] = found
        return found

    def _check(self, function: RuleFunction, selector: Selector) -> None:
        stated = (selector, ALWAYS) if function is RuleFunction.P else (ALWAYS, selector)
        other = RuleFunction.S if function is RuleFunction.P else RuleFunction.P
        rule = PublishRule("r", ANYWHERE, (ANYWHERE.owner,), ANYWHERE.owner, *stated)
        self._vocabulary.check(rule, passed={(other, ALWAYS.text)}, shown=self._judge.shows)

    def _demands(self, function: RuleFunction, selector: Selector) -> tuple[list[_Demand], bool]:
        side = self._sides[function]
        form = side.forms.form(selector)
        if self._terms.mode is Mode.ALGORITHM:
            return [_present(entry.selector.text, entry.name) for entry in form.entries], True
        return side.demands(form)


@dataclass(frozen=True, slots=True)
class _Side:
    """One kind of profiles: how sets of values are written as intervals of whole numbers."""

    forms: Forms
    schema: Mapping[str, AttributeSpec]
    #: the numbers of listed words
    places: Mapping[str, Mapping[str, int]]

    @classmethod
    def of(cls, forms: Forms) -> "_Side":
        """Number the words of attributes that have a list of them."""
        places = {
            name: {str(value): place for place, value in enumerate(sorted(spec.domain.values))}
            for name, spec in forms.schema.items()
            if isinstance(spec.domain, Enumerated) and spec.kind is Kind.STRING
        }
        return cls(forms, forms.schema, places)

    def entry(self, name: str, comparison: str, literal: str) -> _Demand | None:
        """Return the demand of an entry with a whole number or a listed word; None for other entries."""
        spec = self.schema.get(name)
        if spec is None:
            return None
        if literal.startswith("'"):
            place = self.places.get(name, {}).get(literal[1:-1])
            return None if place is None or comparison != "=" else _Demand(name, name, place, place, place, place)
        if spec.kind is not Kind.INTEGER or isinstance(spec.domain, Enumerated):
            return None
        value, least, most = int(literal), INTEGER_MIN, INTEGER_MAX
        if isinstance(spec.domain, Ranged):
            least, most = int(spec.domain.low), int(spec.domain.high)  # type: ignore[arg-type]  # of the kind
        if not least <= value <= most:
            return None
        low, high = least if comparison == "<=" else value, most if comparison == ">=" else value
        return _Demand(name, name, low, high, low, high)

    def demands(self, form: FunctionForm) -> tuple[list[_Demand], bool]:
        """Return the demands of a function, and whether they are complete."""
        stated: dict[str, _Interval] = {}
        others: list[_Demand] = []
        for part in map(self.forms.form, form.parts):
            intervals = self._intervals(part)
            if intervals is None:
                others.append(_present(part.selector.text, None))
                continue
            for name, (low, high) in intervals.items():
                known = stated.get(name, (low, high))
                stated[name] = (max(low, known[0]), min(high, known[1]))
        known_of = {name: (spans[0][0], spans[-1][1]) for name in form.box if (spans := self._spans(name, form.box))}
        found = [
            _Demand(name, name, *stated.get(name, (None, None)), *known_of.get(name, (None, None)))
            for name in sorted({*stated, *known_of})
        ]
        return [*found, *others], not others

    def _intervals(self, part: FunctionForm) -> dict[str, "_Interval"] | None:
        """Return the intervals of a part, or None if it is something else."""
        if part.rest:
            return None
        found = {name: self._spans(name, part.box) for name in part.box}
        return {name: spans[0] for name, spans in found.items()} if all(len(s) == 1 for s in found.values()) else None

    def _spans(self, name: str, box: Box) -> list["_Interval"]:
        """Return the values that a box allows an attribute as intervals; none if null or NaN is among them."""
        spec = self.schema[name]
        values = box[name] & universe(spec)
        if values.null or values.nan:
            return []
        if not isinstance(spec.domain, Enumerated):
            return [] if spec.kind is Kind.STRING else [_interval(spec.kind, *span) for span in values.spans]
        order = sorted(spec.domain.values)
        found: list[_Interval] = []
        for low, high in values.spans:
            first, end = bisect_left(order, low), len(order) if high is None else bisect_left(order, high)
            if found and found[-1][1] + 1 == first:
                first = found.pop()[0]
            found.append((first, end - 1))
        return found


_Interval: TypeAlias = tuple[int, int]


def _interval(kind: Kind, low: Any, high: Any) -> _Interval:
    """Return a span of values as numbers in the same order, both ends included."""
    match kind:
        case Kind.INTEGER:
            return low, INTEGER_MAX if high is None else high - 1
        case Kind.FLOAT:
            return _ordered(low), _ordered(math.inf) if high is None else _ordered(high) - 1
        case Kind.TIMESTAMP:
            return (low - _EPOCH) // _MICROSECOND, INTEGER_MAX if high is None else (high - _EPOCH) // _MICROSECOND - 1
        case _:
            return int(low), 1 if high is None else int(high) - 1


def _ordered(value: float) -> int:
    """Return a double as a whole number: the order is the same, and neighbours stay neighbours."""
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return bits if bits >= 0 else -(bits + (1 << 63))


def _present(text: str, attribute: str | None) -> _Demand:
    """Return the demand for a part as it is written."""
    return _Demand(f"@{digest(text).hex()}", attribute, 0, 0, 0, 0)


def read_text(text: str) -> Selector:
    """Read a function as it stands in a table: a selector, or an attribute list, in JSON or as the paper writes it.

    Raises what `parse_function` and `AttributeList` raise, and `MalformedError` (`moderator.list`).

    >>> read_text('{"role": "engineer", "age": {"max": 18}}').text
    "age <= 18 AND role = 'engineer'"
    """
    if not _JSON.match(text):
        return parse_function(text)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _no_list() from error
    return AttributeList(tuple(_entries(found))).selector


def _entries(found: Mapping[str, object]) -> Iterator[ListEntry]:
    for name, value in found.items():
        match value:
            case {**bounds} if bounds and set(bounds) <= {Bound.MIN, Bound.MAX}:
                for bound, end in bounds.items():
                    yield _entry(name, end, Bound(str(bound)))
            case _:
                yield _entry(name, value, Bound.IS)


def _entry(name: str, value: object, bound: Bound) -> ListEntry:
    if not isinstance(value, bool | int | float | str):
        raise _no_list()
    return ListEntry(name, value, bound)


def _no_list() -> MalformedError:
    return MalformedError(
        "moderator.list",
        "this is not an attribute list in JSON",
        hint='write `{"role": "engineer", "age": {"min": 18}}`, or a selector',
    )
