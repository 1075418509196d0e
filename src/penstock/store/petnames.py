"""Files of petnames: TOML, one name a line, `met = "ed25519:…"`. They are their owner's own, and nothing signs them."""

import tomllib
from collections.abc import Mapping

from penstock.errors import MalformedError
from penstock.model.principals import Principal


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
            raise MalformedError("petname.malformed", f"`{name}` is no text", hint='met = "ed25519:…"')
        found[name] = Principal.parse(written)
    return found


def check_petname(name: str) -> None:
    """Check a petname: one that reads like a principal could pass for another one. Raises `MalformedError`."""
    if not name or not name.isprintable() or len(name) > 64 or any(sign in name for sign in "/:#="):
        raise MalformedError(
            "petname.malformed",
            f"`{name[:80]}` cannot be a petname",
            hint="use 1 to 64 printable characters without `/`, `:`, `#` and `=`",
        )
