"""What a sample of events holds: a sealed block, or events as they are where somebody allows that.

What crosses a fabric is read by everybody who runs or reaches it. So events of sealed types cross it in their sealed
blocks alone, with nothing beside; those of other types only where the operator has said that everybody may read them.
Statements about policy and keys are for all, and signed or wrapped in themselves.
"""

from typing import Final

from penstock.broker.publications import Publications
from penstock.broker.reading import malformed
from penstock.broker.sealed import SealedPublications
from penstock.codec.wire import decode, encode

_KINDS: Final = {kind.KIND: kind for kind in (Publications, SealedPublications)}


def write_body(block: Publications) -> bytes:
    """Return a block as it crosses a fabric."""
    return encode([block.KIND, block.to_tree()])


def read_body(octets: bytes) -> Publications:
    """Read what crossed a fabric. Raises `MalformedError`, `LimitError`."""
    match decode(octets):
        case [str(kind), tree] if kind in _KINDS:
            block = _KINDS[kind].from_tree(tree)
        case _:
            malformed("a sample of events")
    if isinstance(block, SealedPublications) and block.beside:
        malformed("plaintext beside a sealed block, on a fabric")
    return block
