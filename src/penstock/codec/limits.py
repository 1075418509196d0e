"""Bounds on the bytes that parsers read. A node file cannot set them: all brokers must accept the same bytes."""

from dataclasses import dataclass
from functools import cache
from typing import Final

#: nesting of an S-expression
SEXP_DEPTH: Final = 64
#: bytes of a frame on a link
FRAME_BYTES: Final = 1 << 20
#: bytes of a handshake message
HANDSHAKE_BYTES: Final = 1_024
#: events that travel together, and their bytes: less than a frame, because numbers can take more when written again
ROUTE_BLOCK_EVENTS: Final = 1_024
ROUTE_BLOCK_BYTES: Final = 512 << 10
#: a sealed block: rows, and values (rows times columns)
BLOCK_ROWS: Final = 1 << 20
BLOCK_CELLS: Final = 1 << 22
#: characters of a text that an XML schema type or a pattern is matched with
POLICY_MATCHED: Final = 10_000


@dataclass(frozen=True, kw_only=True)
class CodecLimits:
    """Bounds on encoded input. Sizes are in bytes."""

    #: an S-expression: bytes, nesting, and atoms plus lists
    sexp_bytes: int = 1 << 20
    sexp_depth: int = SEXP_DEPTH
    sexp_nodes: int = 65_536
    #: a file of several S-expressions: bytes, and values in it
    file_bytes: int = 16 << 20
    file_values: int = 65_536

    #: an XML document: bytes, and elements in it; characters of a text that is matched; steps of an XPath expression
    xml_bytes: int = 16 << 20
    xml_nodes: int = 1_000_000
    policy_matched: int = POLICY_MATCHED
    policy_path: int = 5_000_000

    #: a YAML text: characters, nesting, values
    yaml_length: int = 64 << 20
    yaml_depth: int = 32
    yaml_nodes: int = 4_000_000

    #: a frame on a link: bytes, and messages in it; a message: nesting, and items of one list or map
    frame_bytes: int = FRAME_BYTES
    frame_messages: int = 4_096
    wire_depth: int = 16
    wire_items: int = 8_192
    #: bytes of a handshake message
    handshake_bytes: int = HANDSHAKE_BYTES

    #: a sealed block: bytes, rows, values (rows times columns), bytes of the names in its header
    block_bytes: int = 64 << 20
    block_rows: int = BLOCK_ROWS
    block_cells: int = BLOCK_CELLS
    block_names: int = 256 << 10


CODEC_LIMITS: Final = CodecLimits()


def wide(size: int) -> CodecLimits:
    """Return limits for bytes of one's own, of which there can be many: their size was bounded when they were kept."""
    return _wide(size.bit_length())


@cache
def _wide(bits: int) -> CodecLimits:
    return CodecLimits(sexp_bytes=1 << bits, sexp_nodes=1 << bits)
