"""Keys of sealed blocks: those that the members of a key group share, and those that are derived from them.

    derived key = HKDF-SHA256(epoch key, label ‖ sender ‖ incarnation ‖ length of scope ‖ scope ‖ purpose)

The scope is the name of a type, or an attribute in events of a type: a sub-type has keys of its own for what it
inherits, because a right on a sub-type is none on its parent. Sender and incarnation make the keys of each process its
own, so that no two of them can meet at one nonce, whatever they have forgotten. The purpose keeps apart what is sealed
under one epoch key; for ciphers the algorithm is a part of it.
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
    """What a derived key is for."""

    IDS = "ids"
    ATTRIBUTE = "attribute"
    EVENT = "event"
    SALT = "salt"
    FILTER = "filter"


class KeyRing:
    """The epoch keys that somebody holds, by scope: a type, or an attribute in events of a type (`column_scope`).

    Who reads blocks of blinded types has keys of labels too (`label_scope`), whose epochs are others than the type's.

    `version` changes with every change, so that what was derived from a key that is gone can be forgotten.
    """

    def __init__(self) -> None:
        self._keys: dict[str, dict[int, Secret]] = {}
        self.version = 0

    def __repr__(self) -> str:
        return f"KeyRing({len(self._keys)} scopes)"

    def put(self, scope: str, epoch: int, key: Secret) -> None:
        """Take a key."""
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
        """Return the newest epoch of which there is a key."""
        return max(self._keys.get(scope, {}), default=None)

    def current(self, scope: str) -> int | None:
        """Return the epoch that is sealed under: the newest, where nobody says otherwise."""
        return self.newest(scope)

    def items(self) -> Iterator[tuple[str, int, Secret]]:
        """Yield what is held: scope, epoch and key."""
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
    """Return whose key seals each column of a block, and for which purpose."""
    whole = str(names.type)
    if level is Level.EVENT:
        return ((whole, Purpose.EVENT),)
    own = ((column_scope(names.type, attribute), Purpose.ATTRIBUTE) for attribute in names.attributes)
    return ((whole, Purpose.IDS), *own)


def column_scope(of_type: TypeKey, attribute: str) -> str:
    """Return the scope of an attribute in events of a type: its id, with the type where it is an inherited one."""
    return str(attribute) if attribute.startswith(f"{of_type}#") else f"{of_type} {attribute}"


def label_scope(of_type: TypeKey) -> str:
    """Return the scope of the key that makes the labels of a type. No attribute has such a name."""
    return f"{of_type} labels"


def type_of(scope: str) -> str:
    """Return the name of the type of which a scope is, or in events of which it is an attribute."""
    return scope.partition(" ")[0].partition("#")[0]


def column_of(of_type: TypeKey, scope: str) -> str | None:
    """Return the attribute that a scope is about in events of a type; of the type itself, nothing (`""`); else None."""
    whole = str(of_type)
    if scope == whole or scope.startswith(f"{whole}#"):
        return scope if scope != whole else ""
    return scope.removeprefix(f"{whole} ") if scope.startswith(f"{whole} ") else None


def held_keys(keys: KeyRing, fixed: Fixed, names: BlockNames) -> list[Secret | None]:
    """Return the epoch key of each column, where it is held."""
    return [keys.key(scope, epoch) for (scope, _), epoch in zip(scopes(names, fixed.level), fixed.epochs, strict=True)]


@lru_cache(maxsize=1_024)
def places(columns: int) -> tuple[bytes, ...]:
    """Return what tells each of so many columns where it stands."""
    return tuple(place.to_bytes(2, "big") for place in range(columns))


def closed_epoch(event_type: TypeKey) -> RefusedError:
    """Return the error for what is sealed in an epoch that is over."""
    return RefusedError(
        "seal.closed-epoch",
        f"a block of `{event_type.name}` is sealed in an epoch that is over",
        hint="it was too long under way, or somebody sends it again; with the right `history` it can be opened later",
    )


def unknown_key(event_type: TypeKey, attribute: str = "") -> RefusedError:
    """Return the error for a key that is not held, of the type itself or of an attribute.

    Nothing was tried: whoever gets the key can try then.
    """
    of = f"attribute `{attribute.rpartition('#')[2]}` of " if attribute else ""
    return RefusedError(
        "seal.unknown-key",
        f"no key is held here for {of}`{event_type.name}` in this epoch",
        hint="brokers get it with a right to the type and all attributes, others with `penstock keys fetch`",
    )


# ----------------------------------------------------------------------------------------------------------------------
# The keys of a broker that runs, with what its key groups say of their epochs.
#
# Which epoch is sealed under is said by the group, and not by the number: an epoch has begun, or it is over. What is
# sealed in an epoch that is over is not opened any more, by the time at which it arrives; what is of an epoch that is
# still unknown waits for its key. Keys of old epochs, which somebody was given for reading logs, open nothing here.


class LiveKeys(KeyRing):
    """See the module. Nothing is over, and nothing to come, of scopes whose keys nobody expects here."""

    def __init__(self) -> None:
        super().__init__()
        self._current: dict[str, int] = {}
        #: epochs whose keys open what arrives, by scope; and the highest of those that have ever been
        self._open: dict[str, set[int]] = {}
        self._highest: dict[str, int] = {}
        self._missed: dict[str, int] = {}

    def expect(self, scope: str) -> None:
        """Record that this broker is in the group of a scope, or is about to be."""
        if scope not in self._open:
            self._open[scope] = set()
            self.version += 1

    def begin(self, scope: str, epoch: int, key: Secret) -> None:
        """Take the key of an epoch, and seal under it unless there is a later one."""
        self.expect(scope)
        self._open[scope].add(epoch)
        self._current[scope] = max(epoch, self._current.get(scope, 0))
        self._highest[scope] = max(epoch, self._highest.get(scope, 0))
        self.put(scope, epoch, key)

    def close(self, scope: str, epoch: int) -> None:
        """Forget the key of an epoch, which is over."""
        self._open.get(scope, set()).discard(epoch)
        if self._current.get(scope) == epoch:
            del self._current[scope]
        self.drop(scope, epoch)

    def leave(self, scope: str) -> None:
        """Expect nothing more of a scope: this broker has left its group."""
        for epoch in self._open.pop(scope, set()):
            self.drop(scope, epoch)
        for known in (self._current, self._highest, self._missed):
            known.pop(scope, None)
        self.version += 1

    def current(self, scope: str) -> int | None:
        """Return the epoch that the group says is the current one."""
        return self._current.get(scope)

    def is_expected(self, scope: str) -> bool:
        """Say whether keys of a scope are held here, or will be."""
        return scope in self._open

    def is_over(self, scope: str, epoch: int) -> bool:
        """Say whether an epoch is over, or was before this broker came."""
        held = self._open.get(scope)
        return held is not None and epoch not in held and epoch <= self._highest.get(scope, 0)

    def awaits(self, scope: str, epoch: int) -> bool:
        """Say whether the key of an epoch is still to come; if so, `missed` tells of it."""
        if scope not in self._open or epoch <= self._highest.get(scope, 0):
            return False
        self._missed[scope] = max(epoch, self._missed.get(scope, 0))
        return True

    def missed(self) -> dict[str, int]:
        """Return which epochs were asked for and not known since this was asked last: the highest of each scope."""
        missed, self._missed = self._missed, {}
        return missed
