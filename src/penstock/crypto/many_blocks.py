"""One column of many blocks, opened by turns without anything in between: for jobs whose blocks hold one event each."""

from collections.abc import Sequence

from cryptography.exceptions import InvalidTag

from penstock.crypto.aead import cannot_open
from penstock.crypto.opener import Way
from penstock.crypto.seal_keys import unknown_key


def open_column(
    way: Way, place: int, nonces: Sequence[bytes], sealed: Sequence[bytes], bound: Sequence[bytes]
) -> list[bytes]:
    """Open one column of many blocks, of which what is authenticated is given.

    Raises `RefusedError`: `seal.cannot-open` where one of them does not, and `seal.unknown-key`.
    """
    decrypt = way.decrypt[place]
    if decrypt is None:
        raise unknown_key(way.names.type)
    try:
        return [*map(decrypt, nonces, sealed, bound)]
    except InvalidTag:
        raise cannot_open() from None
