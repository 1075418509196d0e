"""Mapping files of request tables: which column is which attribute of a request.

The keys are described in docs/how-to/evaluate-a-table.md. Columns that are not named are kept, and not looked at.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.errors import MalformedError
from penstock.policy.language.datatypes import STRING, XPATH, DataType, data_type
from penstock.policy.language.requests import Key, key_of
from penstock.policy.syntax.text.tokens import CATEGORY
from penstock.store.files.strict_tables import Strict

_FILE: Final = Strict(
    syntax="mapping.syntax",
    unknown="mapping.unknown-key",
    missing="mapping.missing",
    value="mapping.value",
    zone="mapping.zone",
    help="see docs/how-to/evaluate-a-table.md",
)


@dataclass(frozen=True, slots=True)
class RequestColumn:
    """A column that holds an attribute: a value in each row, or with `many` a bag, as an array or with a separator."""

    name: str
    key: Key
    many: bool = False
    separator: str | None = None


def read_request_mapping(data: str | bytes) -> tuple[RequestColumn, ...]:
    """Read a mapping file.

    Raises `MalformedError`: `mapping.syntax`, `mapping.unknown-key`, `mapping.missing`, `mapping.value`,
    `mapping.column` where two columns are one attribute, `xacml.type`.
    """
    table = _FILE.parse(data)
    _FILE.known("the mapping", table, {"columns"})
    columns = _FILE.table("columns", _FILE.needed("the mapping", table, "columns"))
    found = tuple(_column(name, _FILE.table(f"columns.{name}", value)) for name, value in columns.items())
    _FILE.some("columns", found)
    check_columns(found)
    return found


def _column(name: str, table: Mapping[str, object]) -> RequestColumn:
    where = f"columns.{name}"
    _FILE.known(where, table, {"category", "id", "type", "many", "separator"})
    category = _FILE.text(f"{where}.category", _FILE.needed(where, table, "category"))
    separator = None
    if "separator" in table:
        separator = _FILE.text(f"{where}.separator", table["separator"])
    many = _FILE.flag(f"{where}.many", table.get("many", separator is not None))
    if separator is not None and not many:
        raise _FILE.wrong(f"{where}.many", "true, where there is a separator")
    named = _FILE.text(f"{where}.id", table.get("id", name))
    key = key_of(CATEGORY.get(category, category), named, _type(where, table))
    return RequestColumn(name, key, many, separator)


def _type(where: str, table: Mapping[str, object]) -> DataType:
    found = data_type(_FILE.text(f"{where}.type", table.get("type", STRING.name)))
    if found is XPATH:
        raise _FILE.wrong(f"{where}.type", "a type of values: there is no content that a path could look into")
    return found


def check_columns(columns: tuple[RequestColumn, ...]) -> None:
    """Check that no attribute stands in two columns. Raises `MalformedError` (`mapping.column`)."""
    seen: dict[Key, str] = {}
    for one in columns:
        if one.key in seen:
            raise MalformedError(
                "mapping.column",
                f"columns `{seen[one.key][:80]}` and `{one.name[:80]}` are one attribute",
                hint="put its values into one column that holds arrays",
            )
        seen[one.key] = one.name
