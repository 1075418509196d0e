"""Patterns over atoms with wildcards: `(* prefix s)` and our `(* glob p)`.

Both are runs of literal bytes with a wildcard between them: `a*b*` is the parts `a`, `b` and the empty one. Two such
patterns share an atom exactly when one's first part begins the other's and one's last part ends the other's: write
the longer first part, all the middle parts of both, and the longer last part. That holds pairwise for any number of
them. Inclusion is a match of one against the other, with the other's wildcards as symbols that only a wildcard can
take; that is exact as long as some byte does not occur in the including pattern, which `GLOB_BYTES` ensures.
"""

from dataclasses import dataclass, field
from typing import Final

#: the longest glob: at least one byte is a `*`, so at most 255 of 256 can occur
#: the longest glob: at least one byte is a `*`, so at most 255 of 256 can occur
GLOB_BYTES: Final = 256


@dataclass(frozen=True, slots=True)
class Prefix:
    """Atoms that begin with `octets`."""

    octets: bytes


@dataclass(frozen=True, slots=True)
class Glob:
    """Atoms that a pattern with at least one `*` matches. Made by `make_glob`."""

    pattern: bytes
    parts: tuple[bytes, ...] = field(compare=False, repr=False)


def make_glob(pattern: bytes) -> Glob | bytes:
    """Return the pattern in normal form: runs of `*` are one, and without any it is the literal."""
    if b"*" not in pattern:
        return pattern
    while b"**" in pattern:
        pattern = pattern.replace(b"**", b"*")
    return Glob(pattern, tuple(pattern.split(b"*")))


def parts_of(pattern: Prefix | Glob) -> tuple[bytes, ...]:
    """Return the literal parts, with a wildcard between each two."""
    return pattern.parts if isinstance(pattern, Glob) else (pattern.octets, b"")


def glob_matches(glob: Glob, atom: bytes) -> bool:
    """Say whether the pattern matches an atom, in time linear in the atom for each part."""
    parts = glob.parts
    first, last = parts[0], parts[-1]
    end = len(atom) - len(last)
    if len(first) > end or not atom.startswith(first) or not atom.endswith(last):
        return False
    position = len(first)
    for part in parts[1:-1]:
        position = atom.find(part, position, end)
        if position < 0:
            return False
        position += len(part)
    return True


def glob_includes(outer: tuple[bytes, ...], inner: tuple[bytes, ...]) -> bool:
    """Say whether every atom of `inner` is one of `outer`; both given by their parts."""
    if not inner[0].startswith(outer[0]) or not inner[-1].endswith(outer[-1]):
        return False
    # The middle parts must be found in order, each whole inside one part of the inner pattern.
    index, position = 0, len(outer[0])
    last = len(inner) - 1
    for part in outer[1:-1]:
        while True:
            end = len(inner[index]) - (len(outer[-1]) if index == last else 0)
            found = inner[index].find(part, position, end)
            if found >= 0:
                position = found + len(part)
                break
            if index == last:
                return False
            index, position = index + 1, 0
    return True


def globs_disjoint(a: tuple[bytes, ...], b: tuple[bytes, ...]) -> bool:
    """Say whether two patterns share no atom; both given by their parts."""
    return not ((a[0].startswith(b[0]) or b[0].startswith(a[0])) and (a[-1].endswith(b[-1]) or b[-1].endswith(a[-1])))
