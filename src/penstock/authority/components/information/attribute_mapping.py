"""What attributes of another domain's subjects mean here: reviewed, signed tables (paper 4, section 4.1).

    from = "bank"
    to = "court"

    [types]                    # types of subjects there, and what they are here; no others are mapped
    employee = "visitor"

    [attributes]               # attributes there that rows use, and the values that they can have
    rank = { kind = "integer", range = [1, 5] }
    branch = { kind = "string", values = ["north", "south"] }

    [[rows]]
    attribute = "clearance"
    value = "secret"
    where = "rank >= 3"
    because = "the bank vets officers of rank 3 and above as we do for secret"

    [[rows]]
    attribute = "clearance"
    value = []                 # nothing, on purpose
    where = "rank < 3"
    because = "others are not vetted"

A mapped subject has exactly the attributes of the table, and `ID@DOMAIN` as its id, so that it is never taken for a
subject of this domain. For each attribute exactly one row must match. Rows that overlap, or that nothing can match, are
refused when the table is read. If no row matches, the question is not answered (`foreign.unmapped`): the decision is
Indeterminate. `mapping_gaps` finds such values before.

    (attribute-mapping (author <principal>) (number <n>) (time <date>) (table <TOML>) (valid …))
    (mapping-review (reviewer <principal>) (mapping <digest>) (time <date>))

The domain that maps signs the table as its author, and another principal, such as the other domain, reviews it. A
component that applies tables remembers their numbers (`remember_mappings`), so that nobody can put an older one in the
place of a newer one.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from itertools import combinations
from typing import Annotated, ClassVar, Final, TypeAlias

import msgspec

from penstock.authority.components.exchange.topics import check_component_name
from penstock.authority.decisions.questions import RESERVED, AccessQuestion, Entity, Properties, flattened
from penstock.codec.sexp import canonical
from penstock.crypto import Signer
from penstock.errors import EvaluationError, LimitError, MalformedError, RefusedError
from penstock.model.instants import instant_key
from penstock.model.principals import Principal
from penstock.model.values import AttributeSpec, Enumerated, Kind, Ranged, Scalar, Schema
from penstock.selector import (
    AnalysisVerdict,
    Compiled,
    Selector,
    compile_selector,
    conjunction,
    covers,
    disjunction,
    overlaps,
    parse,
    satisfiable,
)
from penstock.store.files.strict_tables import Strict
from penstock.trust.signed import (
    DIGEST,
    Claim,
    UnverifiedValue,
    malformed,
    read_statements,
    sign_value,
    statements_to_sexp,
)
from penstock.trust.validity import ALWAYS, State, Validity, ValidityField

#: a table: bytes, and rows
MAPPING_BYTES: Final = 65_536
MAPPING_ROWS: Final = 256
_FILE: Final = Strict.of("foreign.", "see docs/reference/attribute-mapping.md")
_KINDS: Final = (Kind.STRING, Kind.INTEGER, Kind.FLOAT, Kind.BOOLEAN)
#: a type of subjects, in explanations and errors
_TYPE: Final = "type"
MappedValue: TypeAlias = str | bool | int | float
_SCALARS: Final = (str, bool, int, float)


# ----------------------------------------------------------------------------------------------------------------------
# Tables.


@dataclass(frozen=True, slots=True)
class MappingRow:
    """A row: a value of an attribute here, for subjects that match there."""

    attribute: str
    #: the values here; none if the attribute is absent on purpose
    values: tuple[MappedValue, ...]
    where: Selector
    #: why, for people
    because: str
    matches: Compiled

    def __str__(self) -> str:
        return f"{self.attribute} = {_shown(self.values)} where {self.where.text}"


@dataclass(frozen=True)
class AttributeMapping:
    """A table that was read and checked. Its author and its review are verified elsewhere: see `ReviewedMapping`."""

    source: str
    target: str
    types: Mapping[str, str]
    schema: Schema
    rows: tuple[MappingRow, ...]

    @cached_property
    def attributes(self) -> Mapping[str, tuple[MappingRow, ...]]:
        """The rows of each attribute here."""
        names = dict.fromkeys(row.attribute for row in self.rows)
        return {name: tuple(row for row in self.rows if row.attribute == name) for name in names}


def read_mapping(data: bytes) -> AttributeMapping:
    """Read a table, and check that it says one thing at most of each subject.

    Raises `MalformedError`: `foreign.*`, `component.name`, `selector.*`, `value.*`; `LimitError` (`foreign.limit`);
    `RefusedError`: `foreign.overlap`, `foreign.unreachable`, `foreign.unsettled`.
    """
    if len(data) > MAPPING_BYTES:
        raise LimitError("foreign.limit", f"a table is longer than {MAPPING_BYTES} bytes")
    table = _FILE.parse(data)
    _FILE.known("the file", table, ("from", "to", "types", "attributes", "rows"))
    source, target = (_FILE.text(key, _FILE.needed("the file", table, key)) for key in ("from", "to"))
    for name in (source, target):
        check_component_name(name)
    types = {
        name: _FILE.text(f"types.{name}", word)
        for name, word in _FILE.table("types", _FILE.needed("the file", table, "types")).items()
    }
    given = _FILE.table("attributes", _FILE.needed("the file", table, "attributes"))
    schema = {name: _spec(f"attributes.{name}", spec) for name, spec in given.items()}
    listed = _FILE.needed("the file", table, "rows")
    if not isinstance(listed, list):
        raise _FILE.wrong("rows", "tables: write [[rows]] before each")
    if len(listed) > MAPPING_ROWS:
        raise LimitError("foreign.limit", f"a table has more than {MAPPING_ROWS} rows")
    rows = tuple(_row(f"rows[{place}]", row, schema) for place, row in enumerate(listed))
    mapping = AttributeMapping(source, target, types, schema, rows)
    _check_rows(mapping)
    return mapping


def _spec(where: str, value: object) -> AttributeSpec:
    table = _FILE.table(where, value)
    _FILE.known(f"`{where}`", table, ("kind", "values", "range"))
    kind = _FILE.needed(f"`{where}`", table, "kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise _FILE.not_one_of(f"{where}.kind", kind, _KINDS)
    domain: Enumerated | Ranged | None = None
    if "range" in table:
        ends = table["range"]
        numbers = isinstance(ends, list) and all(isinstance(end, int | float) for end in ends)
        if "values" in table or not isinstance(ends, list) or not numbers or len(ends) != 2:
            raise _FILE.wrong(f"{where}.range", "[least, most], without `values` beside it")
        domain = Ranged(*ends)
    elif "values" in table:
        members = table["values"]
        if not isinstance(members, list) or not all(isinstance(one, _SCALARS) for one in members):
            raise _FILE.wrong(f"{where}.values", "a list of texts, numbers, or true and false")
        domain = Enumerated(frozenset(members))
    return AttributeSpec(Kind(kind), domain)


def _row(where: str, value: object, schema: Schema) -> MappingRow:
    table = _FILE.table(where, value)
    _FILE.known(f"`{where}`", table, ("attribute", "value", "where", "because"))
    attribute, condition, because = (
        _FILE.text(f"{where}.{key}", _FILE.needed(f"`{where}`", table, key))
        for key in ("attribute", "where", "because")
    )
    if attribute in RESERVED:
        raise _FILE.wrong(f"{where}.attribute", "another name: this one identifies the subject")
    given = _FILE.needed(f"`{where}`", table, "value")
    values = tuple(given) if isinstance(given, list) else (given,)
    if not all(isinstance(one, _SCALARS) for one in values):
        raise _FILE.wrong(f"{where}.value", "a text, a number, true, false, or a list of them")
    selector = parse(condition)
    selector.check(schema)
    return MappingRow(attribute, values, selector, because, compile_selector(selector, schema))


def _check_rows(mapping: AttributeMapping) -> None:
    for row in mapping.rows:
        found = satisfiable(row.where, mapping.schema)
        if found.verdict is AnalysisVerdict.NO:
            raise RefusedError("foreign.unreachable", f"nothing can match `{row}`", hint="correct it, or take it out")
        _check_settled(found.verdict, row)
    for rows in mapping.attributes.values():
        for one, other in combinations(rows, 2):
            found = overlaps(one.where, other.where, mapping.schema)
            if found.verdict is AnalysisVerdict.YES:
                raise RefusedError(
                    "foreign.overlap",
                    f"`{one}` and `{other}` both match {_values(found.witness or {})}",
                    hint="make their conditions exclude each other",
                )
            _check_settled(found.verdict, one)


def _check_settled(verdict: AnalysisVerdict, row: MappingRow) -> None:
    if verdict is AnalysisVerdict.UNKNOWN:
        raise RefusedError("foreign.unsettled", f"it is not known what `{row}` matches", hint="write it more simply")


@dataclass(frozen=True, slots=True)
class MappingGap:
    """An attribute here that no row maps, for a subject with these values; without values if it is not known."""

    attribute: str
    witness: Mapping[str, Scalar] | None

    def __str__(self) -> str:
        if self.witness is None:
            return f"not known whether a row of `{self.attribute}` matches every subject"
        return f"no row of `{self.attribute}` matches {_values(self.witness)}"


def mapping_gaps(mapping: AttributeMapping) -> tuple[MappingGap, ...]:
    """Return a gap for each attribute that some subject, although it has all attributes, does not get."""
    found = []
    for attribute, rows in mapping.attributes.items():
        used = sorted(frozenset[str]().union(*(row.where.attributes for row in rows)))
        whole = conjunction(*(parse(f'"{name.replace(chr(34), chr(34) * 2)}" IS NOT NULL') for name in used))
        answer = covers(disjunction(*(row.where for row in rows)), whole, mapping.schema)
        if answer.verdict is not AnalysisVerdict.YES:
            found.append(MappingGap(attribute, answer.witness))
    return tuple(found)


# ----------------------------------------------------------------------------------------------------------------------
# Mapping subjects.


def map_subject(question: AccessQuestion, mapping: AttributeMapping) -> AccessQuestion:
    """Return the question as it is asked here, about a subject of the other domain.

    Raises `EvaluationError` (`foreign.unmapped`) if its type, or an attribute of the table, has no row;
    `MalformedError` (`pdp.request`) for properties that cannot be read.
    """
    subject = question.subject
    properties: Properties = {
        row.attribute: row.values[0] if len(row.values) == 1 else [*row.values]
        for row in _matching(subject, mapping)
        if row.values
    }
    mapped = Entity(_mapped_type(subject, mapping), f"{subject.id}@{mapping.source}", properties)
    return replace(question, subject=mapped)


def explain_mapping(question: AccessQuestion, mapping: AttributeMapping) -> tuple[str, ...]:
    """Return a sentence for the subject's type and for each attribute that it gets. Raises as `map_subject`.

    >>> table = b'''
    ... from = "bank"
    ... to = "court"
    ... types = { employee = "visitor" }
    ... attributes.rank = { kind = "integer" }
    ... rows = [{ attribute = "clearance", value = "secret", where = "rank >= 3", because = "vetted" }]
    ... '''
    >>> officer = AccessQuestion.of(Entity("employee", "ann", {"rank": 4}), "read", ("file", "7"))
    >>> print("\\n".join(explain_mapping(officer, read_mapping(table))))
    type `employee` at bank is type `visitor` at court
    `rank >= 3` at bank (rank = 4) is `clearance = 'secret'` at court: vetted
    """
    source, target, subject = mapping.source, mapping.target, question.subject
    said = [f"{_TYPE} `{subject.type}` at {source} is {_TYPE} `{_mapped_type(subject, mapping)}` at {target}"]
    known = _known(subject, mapping)
    for row in _matching(subject, mapping):
        seen = _values({name: known[name] for name in sorted(row.where.attributes)})
        here = f"`{row.attribute} = {_shown(row.values)}`" if row.values else f"no `{row.attribute}`"
        said.append(f"`{row.where.text}` at {source} ({seen}) is {here} at {target}: {row.because}")
    return tuple(said)


def _mapped_type(subject: Entity, mapping: AttributeMapping) -> str:
    found = mapping.types.get(subject.type)
    if found is None:
        raise _unmapped(mapping, f"{_TYPE} `{subject.type[:80]}`")
    return found


def _matching(subject: Entity, mapping: AttributeMapping) -> Iterator[MappingRow]:
    """Yield the row of each attribute that matches a subject."""
    known = _known(subject, mapping)
    for attribute, rows in mapping.attributes.items():
        found = [row for row in rows if row.matches(known)]
        if len(found) != 1:
            raise _unmapped(mapping, f"`{attribute}` of this subject")
        yield found[0]


def _known(subject: Entity, mapping: AttributeMapping) -> dict[str, Scalar]:
    """Return what a subject has of the attributes that rows use. A value that the table does not expect is refused."""
    said: Properties = flattened(subject.properties, "pdp.request")
    known: dict[str, Scalar] = {}
    for name, spec in mapping.schema.items():
        value = said.get(name)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if spec.kind is Kind.FLOAT and type(value) is int:
            value = float(value)
        try:
            spec.check(value)  # type: ignore[arg-type]  # it checks the kind
        except MalformedError:
            raise _unmapped(mapping, f"this value of `{name[:80]}`") from None
        known[name] = value  # type: ignore[assignment]  # it is of the attribute's kind
    return known


def _unmapped(mapping: AttributeMapping, what: str) -> EvaluationError:
    # Values are not named: a message must not carry what its reader may not see.
    return EvaluationError(
        "foreign.unmapped",
        f"{what} of {mapping.source} is not mapped to {mapping.target}",
        hint="add a row to the mapping, and let it be reviewed",
    )


def _shown(values: Sequence[MappedValue]) -> str:
    written = [f"'{one}'" if isinstance(one, str) else str(one).lower() for one in values]
    return written[0] if len(written) == 1 else f"[{', '.join(written)}]"


def _values(row: Mapping[str, Scalar]) -> str:
    return ", ".join(f"{name} = {'NULL' if value is None else value!r}" for name, value in row.items())


# ----------------------------------------------------------------------------------------------------------------------
# Signed tables.


@dataclass(frozen=True, slots=True)
class MappingStatement(Claim):
    """A table, signed by the domain that maps. Of several for the same domains, the greatest number counts."""

    HEAD: ClassVar = b"attribute-mapping"
    SIGNER: ClassVar = "author"
    author: Principal
    number: int
    time: datetime
    table: bytes
    validity: ValidityField = ALWAYS

    def verify_fields(self) -> None:
        """Raise `MalformedError` (`evolution.malformed`) for an on-line test: nobody would ask for its result."""
        if self.validity.online:
            raise malformed("a mapping has no on-line test")


@dataclass(frozen=True, slots=True)
class MappingReview(Claim):
    """Somebody else has read a table, and agrees with it."""

    HEAD: ClassVar = b"mapping-review"
    SIGNER: ClassVar = "reviewer"
    reviewer: Principal
    mapping: Annotated[bytes, DIGEST]
    time: datetime


@dataclass(frozen=True, slots=True)
class ReviewedMapping:
    """A table whose author and reviewer were verified. Only `read_reviewed_mapping` makes one."""

    mapping: AttributeMapping
    number: int
    time: datetime
    author: Principal
    reviewers: tuple[Principal, ...]
    validity: Validity
    #: of the signed statement
    digest: bytes

    def at(self, now: datetime) -> AttributeMapping:
        """Return the table. Raises `EvaluationError` (`foreign.expired`, `foreign.not-yet-valid`)."""
        state = self.validity.state(instant_key(now))
        if state is State.VALID:
            return self.mapping
        raise EvaluationError(
            f"foreign.{state}",
            f"the mapping from {self.mapping.source} to {self.mapping.target} is valid {self.validity}",
            hint="sign a table with a greater number, and let it be reviewed",
        )


def sign_mapping(table: bytes, number: int, time: datetime, key: Signer, validity: Validity = ALWAYS) -> bytes:
    """Sign a table as its author, and return a file without reviews. Raises as `read_mapping`."""
    read_mapping(table)
    statement = MappingStatement(key.principal, number, time, table, validity)
    return canonical(statements_to_sexp([sign_value(statement, key)]))


def review_mapping(data: bytes, time: datetime, key: Signer) -> bytes:
    """Add a review to the file of a signed table. Raises as `read_mapping` and `read_statements`.

    Raises `RefusedError` (`foreign.review`) if the author reviews the own table.
    """
    statement, reviews = _statements(data)
    signed = statement.verify()
    read_mapping(signed.value.table)
    if key.principal == signed.value.author:
        raise RefusedError("foreign.review", "the author of a mapping cannot review it", hint="ask the other domain")
    review = sign_value(MappingReview(key.principal, signed.digest, time), key)
    return canonical(statements_to_sexp([signed, *(one.verify() for one in reviews), review]))


def mapping_table(data: bytes) -> str:
    """Return the table in the file of a signed mapping, as its author wrote it. Raises as `read_statements`."""
    return _statements(data)[0].verify().value.table.decode()


def read_reviewed_mapping(
    data: bytes, authors: Collection[Principal], reviewers: Mapping[str, Collection[Principal]]
) -> ReviewedMapping:
    """Read a signed table: (1) its signatures, (2) its author, (3) the table, (4) a review by somebody else.

    `reviewers` has, by domain, who may review the tables about its subjects.

    Raises `RefusedError`: `foreign.author`, `foreign.review`, `evolution.wrong-key`, `key.bad-signature`; and as
    `read_mapping` and `read_statements`.
    """
    statement, unverified = _statements(data)
    signed, reviews = statement.verify(), [one.verify() for one in unverified]  # (1)
    said = signed.value
    if said.author not in authors:  # (2)
        raise RefusedError("foreign.author", f"{said.author.short} may not say what attributes mean here")
    mapping = read_mapping(said.table)  # (3)
    found = tuple(
        review.value.reviewer
        for review in reviews
        if review.value.mapping == signed.digest
        and review.value.reviewer in reviewers.get(mapping.source, ())
        and review.value.reviewer != said.author
    )
    if not found:  # (4)
        raise RefusedError(
            "foreign.review",
            f"the mapping was not reviewed by somebody who may review those of {mapping.source}",
            hint="let one of `reviewers` sign it: a review of an earlier table does not count",
        )
    return ReviewedMapping(mapping, said.number, said.time, said.author, found, said.validity, signed.digest)


def newest_mappings(found: Iterable[ReviewedMapping]) -> tuple[ReviewedMapping, ...]:
    """Return, for each two domains, the table with the greatest number.

    Raises `RefusedError` (`foreign.number`) for different tables with one number.
    """
    newest: dict[tuple[str, str], ReviewedMapping] = {}
    for one in found:
        known = newest.setdefault((one.mapping.source, one.mapping.target), one)
        if one.number > known.number:
            newest[one.mapping.source, one.mapping.target] = one
        elif one.number == known.number:
            _check_same(one, known.digest)
    return tuple(newest.values())


class _RememberedMapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The newest table that a component has applied for two domains."""

    source: str
    target: str
    number: int
    digest: bytes


def remember_mappings(found: Iterable[ReviewedMapping], remembered: bytes = b"[]") -> bytes:
    """Return what a component must keep when it applies these tables; `remembered` is what it has kept before.

    Raises `RefusedError`: `foreign.rollback` for a table that is older than one that was applied, `foreign.number` for
    another one with the same number; `MalformedError` (`foreign.remembered`).
    """
    try:
        kept = msgspec.json.decode(remembered, type=list[_RememberedMapping])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        hint = "restore the file; without it, an older mapping would not be noticed"
        raise MalformedError("foreign.remembered", "cannot read which mappings were applied", hint=hint) from None
    newest = {(one.source, one.target): one for one in kept}
    for one in found:
        source, target = one.mapping.source, one.mapping.target
        known = newest.get((source, target))
        if known is not None and one.number < known.number:
            raise RefusedError(
                "foreign.rollback",
                f"the mapping from {source} to {target} has the number {one.number}, and {known.number} was applied",
                hint="use the newer file, or sign this table again with a greater number",
            )
        if known is not None and one.number == known.number:
            _check_same(one, known.digest)
        newest[source, target] = _RememberedMapping(source, target, one.number, one.digest)
    return msgspec.json.encode(sorted(newest.values(), key=lambda one: (one.source, one.target))) + b"\n"


def _check_same(one: ReviewedMapping, digest: bytes) -> None:
    if one.digest != digest:
        raise RefusedError(
            "foreign.number",
            f"two mappings from {one.mapping.source} to {one.mapping.target} have the number {one.number}",
            hint="sign the newer one again with a greater number",
        )


def _statements(data: bytes) -> tuple[UnverifiedValue[MappingStatement], list[UnverifiedValue[MappingReview]]]:
    if len(data) > 2 * MAPPING_BYTES:
        raise LimitError("foreign.limit", f"the file of a mapping is longer than {2 * MAPPING_BYTES} bytes")
    found: tuple[UnverifiedValue[Claim], ...] = read_statements(data, MappingStatement, MappingReview)
    tables = [one for one in found if isinstance(one.value, MappingStatement)]
    if len(tables) != 1:
        raise MalformedError("foreign.syntax", "the file must contain one signed table, and reviews of it")
    reviews = [one for one in found if isinstance(one.value, MappingReview)]
    return tables[0], reviews  # type: ignore[return-value]  # by their values
