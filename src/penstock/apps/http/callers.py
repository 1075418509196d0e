"""Who may ask the decision service: names and bearer tokens (RFC 6750), one pair a line of a file.

Tokens are kept as digests and compared in constant time, with all that there are: how long it takes tells nothing.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.errors import MalformedError
from penstock.store.files import read_file

#: characters of a token at least
_SHORTEST: Final = 16


@dataclass(frozen=True, slots=True)
class Callers:
    """Names by the digests of their tokens."""

    digests: Mapping[bytes, str] = field(repr=False)

    def name(self, authorization: bytes) -> str | None:
        """Return whose token it is; nobody's is none."""
        scheme, _, token = authorization.partition(b" ")
        asked = hashlib.sha256(token.strip(b" ")).digest()
        found = None
        for digest, name in self.digests.items():
            if hmac.compare_digest(digest, asked):
                found = name
        return found if scheme.lower() == b"bearer" else None


def read_callers(path: Path) -> Callers:
    """Read a file of callers. Raises `MalformedError` (`pdp.tokens`), `FailedError`, `LimitError`."""
    found: dict[bytes, str] = {}
    try:
        lines = read_file(str(path)).decode("ascii").splitlines()
    except UnicodeDecodeError:
        raise _wrong("it is not ASCII") from None
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        # What is wrong is told by its line alone: it may be a token.
        if len(words) != 2 or len(words[1]) < _SHORTEST:
            raise _wrong(f"line {number} is no name and a token of {_SHORTEST} characters or more")
        digest = hashlib.sha256(words[1].encode()).digest()
        if digest in found:
            raise _wrong(f"the token of line {number} is another's too")
        found[digest] = words[0]
    if not found:
        raise _wrong("it names nobody")
    return Callers(found)


def _wrong(message: str) -> MalformedError:
    hint = "write `NAME TOKEN` in each line; `openssl rand -hex 32` makes a token"
    return MalformedError("pdp.tokens", f"the file of callers: {message}", hint=hint)
