"""Seal and open the secrets in messages and records of key groups, each in a context of its own.

Everything that does not open, or has the wrong form, raises the same error: `RefusedError` (`keys.unopened`).
"""

from collections.abc import Iterable
from struct import Struct
from typing import Final

from penstock.codec.wire import Wire
from penstock.crypto.hpke import SealingKey, seal_to
from penstock.crypto.keys import RandomBytes
from penstock.crypto.wrapping import SALT_BYTES, SECRET_BYTES, Secret, unopened, unwrap, wrap
from penstock.errors import MalformedError, RefusedError
from penstock.model.principals import Principal
from penstock.trust.key_statements import KeyGroup, KeyHistory
from penstock.trust.signed import parse_signed

_WELCOME: Final = b"penstock-key-welcome-1 "
_HISTORY: Final = b"penstock-key-history-1 "
_PATH: Final = b"path"
_MISSED: Final = b"missed"
_SEED: Final = b"seed"
_OVER: Final = b"over"
_STATE: Final = b"state"
_RECORD: Final = b"record"
#: the first byte of a sealed record; one that is not sealed is an S-expression
_SEALED: Final = b"\x02"
_PLAIN: Final = b"("
_LENGTH: Final = Struct(">I")
#: records are padded to a multiple of this, so that their length does not reveal names
_PADDING: Final = 256


def seal_welcome(group: KeyGroup, broker: Principal, public: bytes, content: bytes, random: RandomBytes) -> bytes:
    """Seal a member's leaf and path. Raises `RefusedError` (`keys.weak-key`)."""
    return seal_to(public, content, _WELCOME + group.id + broker.digest, random)


def open_welcome(group: KeyGroup, broker: Principal, private: SealingKey, sealed: bytes) -> tuple[Secret, bytes]:
    """Return a member's leaf and path."""
    content = private.open(sealed, _WELCOME + group.id + broker.digest)
    if len(content) < SECRET_BYTES:
        raise unopened()
    return Secret(content[:SECRET_BYTES]), content[SECRET_BYTES:]


def seal_history(
    group: KeyGroup, broker: Principal, public: bytes, keys: Iterable[Secret], random: RandomBytes
) -> bytes:
    """Seal the keys of consecutive epochs. Raises `RefusedError` (`keys.weak-key`)."""
    return seal_to(public, b"".join(key.expose() for key in keys), _HISTORY + group.id + broker.digest, random)


def open_history(group: KeyGroup, broker: Principal, private: SealingKey, sealed: bytes) -> list[Secret]:
    """Return the keys of consecutive epochs."""
    return _secrets(private.open(sealed, _HISTORY + group.id + broker.digest))


def wrap_path(leaf: Secret, place: bytes, salt: bytes, group: KeyGroup, epoch: int) -> bytes:
    """Wrap a member's path under its leaf."""
    return wrap(leaf, place, salt, _PATH, group.id, _number(epoch))


def open_path(leaf: Secret, sealed: bytes, salt: bytes, group: KeyGroup, epoch: int) -> bytes:
    """Return a member's path."""
    return unwrap(leaf, sealed, salt, _PATH, group.id, _number(epoch))


def wrap_missed(leaf: Secret, keys: Iterable[Secret], salt: bytes, group: KeyGroup, epoch: int) -> bytes:
    """Wrap the keys of the epochs before `epoch`, which a member has missed, under its leaf."""
    return wrap(leaf, b"".join(key.expose() for key in keys), salt, _MISSED, group.id, _number(epoch))


def open_missed(leaf: Secret, sealed: bytes, salt: bytes, group: KeyGroup, epoch: int) -> list[Secret]:
    """Return the keys of the epochs before `epoch`."""
    return _secrets(unwrap(leaf, sealed, salt, _MISSED, group.id, _number(epoch)))


def wrap_seed(kek: Secret, seed: Secret, salt: bytes, group: KeyGroup, number: int) -> bytes:
    """Wrap the seed of a record."""
    return wrap(kek, seed.expose(), salt, _SEED, group.id, _number(number))


def open_seed(kek: Secret, sealed: bytes, salt: bytes, group: KeyGroup, number: int) -> Secret:
    """Return the seed of a record."""
    return Secret(unwrap(kek, sealed, salt, _SEED, group.id, _number(number)))


def wrap_over(kek: Secret, key: Secret, salt: bytes, group: KeyGroup, epoch: int) -> bytes:
    """Wrap the key of a past epoch."""
    return wrap(kek, key.expose(), salt, _OVER, group.id, _number(epoch))


def open_over(kek: Secret, sealed: bytes, salt: bytes, group: KeyGroup, epoch: int) -> Secret:
    """Return the key of a past epoch."""
    return Secret(unwrap(kek, sealed, salt, _OVER, group.id, _number(epoch)))


def wrap_state(kek: Secret, state: bytes, salt: bytes, first: int) -> bytes:
    """Wrap a checkpoint that starts at a position of the log."""
    return wrap(kek, state, salt, _STATE, _number(first))


def open_state(kek: Secret, sealed: bytes, salt: bytes, first: int) -> bytes:
    """Return the content of a checkpoint."""
    return unwrap(kek, sealed, salt, _STATE, _number(first))


def seal_record(kek: Secret, record: bytes, salt: bytes) -> bytes:
    """Seal a record of the log to holders of the key-encryption key."""
    content = _LENGTH.pack(len(record)) + record
    return _SEALED + salt + wrap(kek, content + bytes(-len(content) % _PADDING), salt, _RECORD)


def open_record(kek: Secret, stored: bytes) -> bytes:
    """Return a record of the log. One of an older version, which is not sealed, is returned unchanged.

    Raises `RefusedError`: `keys.unopened`, and `keys.log-version` for an unknown form.
    """
    kind, salt, sealed = stored[:1], stored[1 : 1 + SALT_BYTES], stored[1 + SALT_BYTES :]
    if kind == _PLAIN:
        return stored
    if kind != _SEALED:
        raise RefusedError(
            "keys.log-version",
            "a record of the key log has a form that this version cannot read",
            hint="run the version that wrote it, or start with another log",
        )
    content = unwrap(kek, sealed, salt, _RECORD)
    record = content[_LENGTH.size :]
    (length,) = _LENGTH.unpack_from(content) if len(content) >= _LENGTH.size else (-1,)
    if not 0 <= length <= len(record):
        raise unopened()
    return record[:length]


def _secrets(data: bytes) -> list[Secret]:
    if len(data) % SECRET_BYTES:
        raise unopened()
    return [Secret(data[at : at + SECRET_BYTES]) for at in range(0, len(data), SECRET_BYTES)]


def _number(value: int) -> bytes:
    return str(value).encode()


def _malformed() -> MalformedError:
    return MalformedError("protocol.malformed", "a malformed answer about keys")


def open_released(answer: Wire, group: KeyGroup, who: Principal, private: SealingKey) -> dict[int, Secret]:
    """Return the released keys by epoch. Raises `RefusedError` (`keys.unopened`), `MalformedError`.

    The broker has checked that the signer manages the keys. Wrong keys would open nothing.
    """
    found: dict[int, Secret] = {}
    match answer:
        case {"history": bytes(signed), "live": list(live)}:
            for one in live:
                match one:
                    case [int(epoch), bytes(sealed)]:
                        found[epoch] = open_history(group, who, private, sealed)[0]
            if signed:
                value = parse_signed(signed, KeyHistory).verify().value
                found |= dict(enumerate(open_history(group, who, private, value.sealed), value.first))
            return found
    raise _malformed()
