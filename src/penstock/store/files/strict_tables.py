"""Read TOML tables that people write, strictly: an unknown key is an error, with a suggestion."""

import tomllib
import zoneinfo
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Self, TypeVar

from penstock.errors import MalformedError, did_you_mean
from penstock.guard import environment_schema
from penstock.model.principals import Principal
from penstock.model.values import AttributeSpec, Value, canonical, check_value, kind_of
from penstock.store.limits import POLICY_NAME_LENGTH

# ----------------------------------------------------------------------------------------------------------------------
# Files of petnames: TOML, one name per line, `met = "ed25519:…"`. They are local to their owner, and not signed.


def parse_petnames(data: bytes) -> dict[str, Principal]:
    """Read a file of petnames. Raises `MalformedError` (`petname.malformed`, `principal.malformed`)."""
    try:
        table = tomllib.loads(data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise MalformedError(
            "petname.malformed",
            f"not TOML: {str(error)[:200]}",
            hint='write one name a line: met = "ed25519:…"',
        ) from None
    return read_petnames(table)


def read_petnames(table: Mapping[str, object]) -> dict[str, Principal]:
    """Read petnames from a table. Raises `MalformedError` (`petname.malformed`, `principal.malformed`)."""
    found: dict[str, Principal] = {}
    for name, written in table.items():
        check_petname(name)
        if not isinstance(written, str):
            raise MalformedError("petname.malformed", f"`{name}` is not a text", hint='met = "ed25519:…"')
        found[name] = Principal.parse(written)
    return found


def check_petname(name: str) -> None:
    """Check a petname: it must not look like a principal. Raises `MalformedError`."""
    if not name or not name.isprintable() or len(name) > 64 or any(sign in name for sign in "/:#="):
        raise MalformedError(
            "petname.malformed",
            f"`{name[:80]}` cannot be a petname",
            hint="use 1 to 64 printable characters without `/`, `:`, `#` and `=`",
        )


# ----------------------------------------------------------------------------------------------------------------------
# TOML tables, read strictly: an unknown key is an error, with a suggestion.


_ITEM = TypeVar("_ITEM")


@dataclass(frozen=True, slots=True, kw_only=True)
class Strict:
    """How to read one kind of file: its error codes, and where it is described."""

    syntax: str
    unknown: str
    missing: str
    value: str
    zone: str
    help: str

    @classmethod
    def of(cls, codes: str, help: str, *, zone: str = "value") -> Self:  # noqa: A002  # as the field
        """Return the file whose error codes begin in this way: `plan.` has `plan.syntax`, `plan.missing` and so on."""
        return cls(
            syntax=f"{codes}syntax",
            unknown=f"{codes}unknown-key",
            missing=f"{codes}missing",
            value=f"{codes}value",
            zone=f"{codes}{zone}",
            help=help,
        )

    def parse(self, data: str | bytes) -> dict[str, object]:
        """Read TOML. Raises `MalformedError` with the code for syntax."""
        try:
            return tomllib.loads(data if isinstance(data, str) else data.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise MalformedError(self.syntax, f"not a TOML file: {str(error)[:200]}", hint=self.help) from error

    def wrong(self, where: str, expected: str) -> MalformedError:
        """Return the error for a value of the wrong kind."""
        return MalformedError(self.value, f"`{where}` must be {expected}", hint=self.help)

    def not_one_of(self, where: str, value: object, words: Iterable[str]) -> MalformedError:
        """Return the error for a word that is not one of those that can stand here."""
        known = [*words]
        hint = did_you_mean(value, known, self.help) if isinstance(value, str) else self.help
        return MalformedError(self.value, f"`{where}` must be one of {', '.join(known)}", hint=hint)

    def known(self, where: str, table: Mapping[str, object], keys: Iterable[str]) -> None:
        """Check that a table has no keys but these."""
        unknown = sorted(table.keys() - set(keys))
        if unknown:
            words = sorted(keys)
            raise MalformedError(
                self.unknown,
                f"{where} has no key `{unknown[0][:80]}`",
                hint=did_you_mean(unknown[0], words, f"it has: {', '.join(words)}"),
                key=unknown[0][:80],
            )

    def needed(self, where: str, table: Mapping[str, object], key: str) -> object:
        """Return the value of a required key."""
        if key not in table:
            raise MalformedError(self.missing, f"{where} lacks `{key}`", hint=self.help)
        return table[key]

    def table(self, where: str, value: object) -> dict[str, object]:
        """Return a value that must be a table."""
        if not isinstance(value, dict):
            raise self.wrong(where, "a table")
        return value

    def text(self, where: str, value: object) -> str:
        """Return a value that must be a text that is not empty."""
        if not isinstance(value, str) or not value:
            raise self.wrong(where, "a text")
        return value

    def texts(self, where: str, value: object) -> tuple[str, ...]:
        """Return a value that must be a list of texts."""
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(where, "a list of texts")
        return tuple(value)

    def some(self, where: str, values: tuple[_ITEM, ...]) -> tuple[_ITEM, ...]:
        """Return a list that must not be empty."""
        if not values:
            raise self.wrong(where, "a list that is not empty")
        return values

    def flag(self, where: str, value: object) -> bool:
        """Return a value that must be true or false."""
        if not isinstance(value, bool):
            raise self.wrong(where, "true or false")
        return value

    def time_zone(self, where: str, value: object) -> zoneinfo.ZoneInfo:
        """Return a value that must name a time zone. Raises `MalformedError` with the code for zones."""
        text = self.text(where, value)
        try:
            return zoneinfo.ZoneInfo(text)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise MalformedError(
                self.zone,
                f"`{where}`: `{text[:80]}` is not a time zone",
                hint="write `UTC` or a region such as `Europe/Amsterdam`",
            ) from error

    def name(self, where: str, value: object) -> str:
        """Return a value that must be a printable name."""
        name = self.text(where, value)
        if len(name) > POLICY_NAME_LENGTH or not name.isprintable():
            raise self.wrong(where, f"at most {POLICY_NAME_LENGTH} printable characters")
        return name

    def petnames(self, where: str, value: object) -> Mapping[str, Principal] | str:
        """Return petnames from a table or a file. Raises `petname.malformed` too."""
        if isinstance(value, str):
            return self.text(where, value)
        return MappingProxyType(read_petnames(self.table(where, value)))

    def homes(self, where: str, value: object) -> Mapping[str, str]:
        """Return the name of each principal's domain, by principal or petname."""
        table = self.table(where, value)
        return MappingProxyType(
            {member: self.name(f"{where}.{member[:80]}", domain) for member, domain in table.items()}
        )

    def facts(self, where: str, value: object) -> Mapping[str, Value]:
        """Return facts that conditions can use. Raises `MalformedError` (`environment.reserved`) too."""
        found: dict[str, Value] = {}
        for name, fact in self.table(where, value).items():
            if not isinstance(fact, str | int | float | datetime):
                raise self.wrong(f"{where}.{name}", "a string, a number, a boolean or a date with time and zone")
            try:
                check_value(kind_of(fact), fact)
            except MalformedError as error:
                raise self.wrong(f"{where}.{name}", f"usable: {error.message}") from error
            kept = canonical(fact)
            if kept is not None:
                found[name] = kept
        environment_schema({name: AttributeSpec(kind_of(fact)) for name, fact in found.items()})
        return MappingProxyType(found)
