"""Keys of sealed blocks: the keys that the members of a key group share, and the keys derived from them.

    derived key = HKDF-SHA256(epoch key, label ‖ sender ‖ incarnation ‖ length of scope ‖ scope ‖ purpose)

The scope is the name of a type, or an attribute in events of a type. A sub-type has its own keys for inherited
attributes, because a right on a sub-type is not a right on its parent. Because of sender and incarnation, each process
has its own keys, so that no two processes can use the same key and nonce, even after a crash. The purpose separates the
uses of one epoch key. For ciphers it includes the algorithm.
"""

from collections.abc import Iterator
from enum import StrEnum
from functools import lru_cache
from typing import Final

from penstock.codec.blocks import BlockNames, Fixed, Level
from penstock.crypto.aead import Aead, CipherAlgorithm
from penstock.crypto.wrapping import SECRET_BYTES, Secret, hkdf
from penstock.errors import RefusedError
from penstock.model.names import TypeKey

_LABEL: Final = b"penstock-seal-1 "


class Purpose(StrEnum):
    """The purposes of derived keys."""

    IDS = "ids"
    ATTRIBUTE = "attribute"
    EVENT = "event"
    SALT = "salt"
    FILTER = "filter"


class KeyRing:
    """The epoch keys that a process holds, by scope: a type, or an attribute in events of a type (`column_scope`).

    Readers of blinded types have label keys too (`label_scope`), whose epochs differ from the type's.

    `version` changes with every change, so that keys derived from a removed key can be forgotten.
    """

    def __init__(self) -> None:
        self._keys: dict[str, dict[int, Secret]] = {}
        self.version = 0

    def __repr__(self) -> str:
        return f"KeyRing({len(self._keys)} scopes)"

    def put(self, scope: str, epoch: int, key: Secret) -> None:
        """Add a key."""
        self._keys.setdefault(str(scope), {})[epoch] = key
        self.version += 1

    def drop(self, scope: str, epoch: int) -> None:
        """Forget a key, if it was there."""
        held = self._keys.get(scope, {})
        if held.pop(epoch, None) is not None:
            self.version += 1
        if not held:
            self._keys.pop(scope, None)

    def key(self, scope: str, epoch: int) -> Secret | None:
        """Return the key of an epoch, if it is held."""
        return self._keys.get(scope, {}).get(epoch)

    def newest(self, scope: str) -> int | None:
        """Return the newest epoch with a key."""
        return max(self._keys.get(scope, {}), default=None)

    def current(self, scope: str) -> int | None:
        """Return the epoch to seal in: the newest."""
        return self.newest(scope)

    def items(self) -> Iterator[tuple[str, int, Secret]]:
        """Yield scope, epoch and key of each key."""
        for scope, held in self._keys.items():
            for epoch, key in held.items():
                yield scope, epoch, key


def derive(key: Secret, sender: bytes, incarnation: bytes, scope: str, purpose: str) -> bytes:
    """Return the key for one purpose of one sender. Both prefixes have a fixed length."""
    name = scope.encode()
    info = b"".join((_LABEL, sender, incarnation, len(name).to_bytes(2, "big"), name, purpose.encode()))
    return hkdf(key.expose(), info, SECRET_BYTES)


def derive_cipher(key: Secret, fixed: Fixed, scope: str, purpose: Purpose) -> Aead:
    """Return the cipher for the columns of one scope."""
    algorithm = CipherAlgorithm(fixed.algorithm)
    raw = derive(key, fixed.sender, fixed.incarnation, scope, f"{purpose} {algorithm.name}")
    return algorithm.cipher(raw)


def scopes(names: BlockNames, level: Level) -> tuple[tuple[str, Purpose], ...]:
    """Return the scope and the purpose of each column's key."""
    whole = str(names.type)
    if level is Level.EVENT:
        return ((whole, Purpose.EVENT),)
    own = ((column_scope(names.type, attribute), Purpose.ATTRIBUTE) for attribute in names.attributes)
    return ((whole, Purpose.IDS), *own)


def column_scope(of_type: TypeKey, attribute: str) -> str:
    """Return the scope of an attribute in events of a type: its id, with the type if it is inherited."""
    return str(attribute) if attribute.startswith(f"{of_type}#") else f"{of_type} {attribute}"


def label_scope(of_type: TypeKey) -> str:
    """Return the scope of a type's label key. No attribute has such a name."""
    return f"{of_type} labels"


def type_of(scope: str) -> str:
    """Return the name of a scope's type."""
    return scope.partition(" ")[0].partition("#")[0]


def column_of(of_type: TypeKey, scope: str) -> str | None:
    """Return a scope's attribute in events of a type, `""` for the type itself, or None for another type's scope."""
    whole = str(of_type)
    if scope == whole or scope.startswith(f"{whole}#"):
        return scope if scope != whole else ""
    return scope.removeprefix(f"{whole} ") if scope.startswith(f"{whole} ") else None


def held_keys(keys: KeyRing, fixed: Fixed, names: BlockNames) -> list[Secret | None]:
    """Return the epoch key of each column, or None if it is not held."""
    return [keys.key(scope, epoch) for (scope, _), epoch in zip(scopes(names, fixed.level), fixed.epochs, strict=True)]


@lru_cache(maxsize=1_024)
def places(columns: int) -> tuple[bytes, ...]:
    """Return the associated data for the position of each column."""
    return tuple(place.to_bytes(2, "big") for place in range(columns))


def closed_epoch(event_type: TypeKey) -> RefusedError:
    """Return the error for a block that was sealed in a past epoch."""
    return RefusedError(
        "seal.closed-epoch",
        f"a block of `{event_type.name}` was sealed in a past epoch",
        hint="it was delayed or replayed; with the right `history` it can be opened from a log",
    )


def unknown_key(event_type: TypeKey, attribute: str = "") -> RefusedError:
    """Return the error for a key that is not held, of the type itself or of an attribute.

    Nothing was tried: with the key the block may open.
    """
    of = f"attribute `{attribute.rpartition('#')[2]}` of " if attribute else ""
    return RefusedError(
        "seal.unknown-key",
        f"no key is held here for {of}`{event_type.name}` in this epoch",
        hint="brokers get it with a right to the type and all attributes, others with `penstock sealing fetch`",
    )


# ----------------------------------------------------------------------------------------------------------------------
# The keys of a running broker, and the epochs of its key groups.
#
# The group, not the number, says which epoch to seal in, and which epochs are over. A block of a past epoch is not
# opened if it arrives after the end of the epoch. A block of an unknown epoch waits for its key. Keys of past epochs,
# which are for reading logs, open nothing here.


class LiveKeys(KeyRing):
    """The keys of a running broker. A scope that it does not follow has no past and no future epochs."""

    def __init__(self) -> None:
        super().__init__()
        self._current: dict[str, int] = {}
        #: the epochs whose keys open arriving blocks, by scope, and the highest epoch so far
        self._open: dict[str, set[int]] = {}
        self._highest: dict[str, int] = {}
        self._missed: dict[str, int] = {}

    def expect(self, scope: str) -> None:
        """Record that this broker is in a scope's group, or is joining it."""
        if scope not in self._open:
            self._open[scope] = set()
            self.version += 1

    def begin(self, scope: str, epoch: int, key: Secret) -> None:
        """Add the key of an epoch, and seal under it unless there is a later one."""
        self.expect(scope)
        self._open[scope].add(epoch)
        self._current[scope] = max(epoch, self._current.get(scope, 0))
        self._highest[scope] = max(epoch, self._highest.get(scope, 0))
        self.put(scope, epoch, key)

    def close(self, scope: str, epoch: int) -> None:
        """Remove the key of an epoch that is over."""
        self._open.get(scope, set()).discard(epoch)
        if self._current.get(scope) == epoch:
            del self._current[scope]
        self.drop(scope, epoch)

    def leave(self, scope: str) -> None:
        """Stop following a scope: this broker has left its group."""
        for epoch in self._open.pop(scope, set()):
            self.drop(scope, epoch)
        for known in (self._current, self._highest, self._missed):
            known.pop(scope, None)
        self.version += 1

    def current(self, scope: str) -> int | None:
        """Return the group's current epoch."""
        return self._current.get(scope)

    def is_expected(self, scope: str) -> bool:
        """Return whether keys of a scope are held here, or are expected."""
        return scope in self._open

    def is_over(self, scope: str, epoch: int) -> bool:
        """Return whether an epoch is over, or was over before this broker joined."""
        held = self._open.get(scope)
        return held is not None and epoch not in held and epoch <= self._highest.get(scope, 0)

    def awaits(self, scope: str, epoch: int) -> bool:
        """Return whether the key of an epoch is still expected. If so, `missed` returns it."""
        if scope not in self._open or epoch <= self._highest.get(scope, 0):
            return False
        self._missed[scope] = max(epoch, self._missed.get(scope, 0))
        return True

    def missed(self) -> dict[str, int]:
        """Return the highest unknown epoch of each scope that was requested since the last call."""
        missed, self._missed = self._missed, {}
        return missed
