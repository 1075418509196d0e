"""Topic keys: samples are sealed, so that only components whose topics-lists have a topic can read it.

A sealed sample is

    <ff ff> <key number: 8 bytes> <nonce: 12 bytes> <the sample, with AES-256-GCM-SIV>

The domain and the topic are associated data: a sealed sample opens nowhere else. The key of a topic is derived from a
secret that the PAPs of the domain share, and from the key number: the configuration number from which it holds. A PAP
gives a component the keys of its topics-list, sealed to a key that the component made for its request to join.

When a component has lost its role, the PAPs change all keys by a reconfiguration, `rekey_within` seconds later at most.
Until all have applied it, PAPs write under the keys before, and components keep those. PSPs read no reconfigurations: a
PAP writes their new keys to APOL, for each PSP under its own key.

JOIN is not sealed. On CONF, a configuration is sealed to its component alone, and the plans of PAPs to the PAPs.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NoReturn

import msgspec

from penstock.authority.components.exchange.samples import PolicyText
from penstock.crypto.aead import NONCE_BYTES, TAG_BYTES, Aead, CipherAlgorithm, opened
from penstock.crypto.hpke import SealingKey, seal_to
from penstock.crypto.wrapping import expand
from penstock.errors import MalformedError, RefusedError
from penstock.fabric import RandomBytes

#: no certificate is so long: what begins like this is not a plain sample
_MARK: Final = b"\xff\xff"
_NUMBER: Final = 8
_HEADER: Final = len(_MARK) + _NUMBER + NONCE_BYTES
TOPIC_SECRET_BYTES: Final = 32
#: the number of the key of CONF, which only PAPs have and which does not change
FIXED_NUMBER: Final = 0


class PrivateConfiguration(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a PAP tells one component alone: its part of the configuration, and its topic keys by key number."""

    combining: dict[str, str] = {}
    priorities: dict[str, int] = {}
    policies: tuple[PolicyText, ...] = ()
    keys: dict[int, dict[str, bytes]] = {}
    #: components whose roles have ended since the keys changed: by component, the record
    ended: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"PrivateConfiguration({len(self.policies)} policies)"


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(PrivateConfiguration).decode


def seal_private(
    private: PrivateConfiguration, box_key: bytes, domain: str, component: str, random: RandomBytes
) -> bytes:
    """Seal to one component what only it must know. Raises `RefusedError` (`keys.weak-key`)."""
    return seal_to(box_key, _encode(private), _info(domain, component), random)


def open_private(sealed: bytes, key: SealingKey, domain: str, component: str) -> PrivateConfiguration:
    """Open what a PAP has sealed to a component.

    Raises `RefusedError` (`keys.unopened`), `MalformedError` (`component.sample`).
    """
    try:
        return _decode(key.open(sealed, _info(domain, component)))
    except msgspec.MsgspecError:
        raise MalformedError("component.sample", "what a PAP has sealed is not a configuration") from None


def _info(domain: str, component: str) -> bytes:
    return f"penstock component keys 1\0{domain}/{component}".encode()


# ----------------------------------------------------------------------------------------------------------------------
# Sealing and opening samples.


class TopicKeys:
    """The keys that somebody holds. `find` returns the key of a topic under a number, and None without one."""

    def __init__(self, domain: str, find: Callable[[str, int], bytes | None]) -> None:
        self._domain = domain
        self._find = find
        self._ciphers: dict[tuple[str, int], Aead] = {}

    def __reduce__(self) -> NoReturn:
        raise TypeError("keys are neither pickled nor copied")

    def seal(self, topic: str, number: int, data: bytes, random: RandomBytes) -> bytes:
        """Seal a sample for a topic. Raises `RefusedError` (`component.key-missing`)."""
        cipher = self._cipher(topic, number)
        if cipher is None:
            raise _missing(topic, number)
        nonce = random(NONCE_BYTES)
        return b"".join((_MARK, number.to_bytes(_NUMBER), nonce, cipher.encrypt(nonce, data, self._about(topic))))

    def open(self, topic: str, data: bytes) -> bytes:
        """Open a sealed sample of a topic.

        Raises `RefusedError`: `component.not-sealed`, `component.key-missing`, with the number in the field `number`,
        `seal.cannot-open`.
        """
        if not is_sealed(data):
            raise RefusedError("component.not-sealed", f"a sample for {topic} is not sealed", topic=topic)
        number = int.from_bytes(data[len(_MARK) : len(_MARK) + _NUMBER])
        cipher = self._cipher(topic, number)
        if cipher is None:
            raise _missing(topic, number)
        return opened(cipher, data[len(_MARK) + _NUMBER : _HEADER], data[_HEADER:], self._about(topic))

    def _cipher(self, topic: str, number: int) -> Aead | None:
        found = self._ciphers.get((topic, number))
        if found is None:
            key = self._find(topic, number)
            if key is None:
                return None
            found = self._ciphers[topic, number] = CipherAlgorithm.AES_GCM_SIV.cipher(key)
        return found

    def _about(self, topic: str) -> bytes:
        return f"{self._domain}/{topic}".encode()


def is_sealed(data: bytes) -> bool:
    """Return whether these bytes are a sealed sample, and not a plain one."""
    return data.startswith(_MARK) and len(data) >= _HEADER + TAG_BYTES


def _missing(topic: str, number: int) -> RefusedError:
    return RefusedError(
        "component.key-missing",
        f"a sample for {topic} is sealed with key {number}, which this component does not have",
        hint="the component has not joined, its topics-list does not have the topic, or a reconfiguration is under way",
        topic=topic,
        number=number,
    )


class HeldTopicKeys(TopicKeys):
    """The keys of a component. `number` is the key number in force, under which it writes."""

    def __init__(self, domain: str) -> None:
        self._held: dict[int, Mapping[str, bytes]] = {}
        self.number = FIXED_NUMBER
        super().__init__(domain, lambda topic, number: self._held.get(number, {}).get(topic))

    def __repr__(self) -> str:
        return f"HeldTopicKeys({sorted(self._held)})"

    def put(self, keys: Mapping[int, Mapping[str, bytes]]) -> None:
        """Add keys by number."""
        self._held.update(keys)

    def has(self, number: int) -> bool:
        """Return whether there are keys of a number."""
        return number in self._held

    def settle(self, number: int) -> None:
        """Take in that all write under a number: of earlier keys only the last ones stay, for samples on their way."""
        for old in sorted(one for one in self._held if one < number)[:-1]:
            del self._held[old]
        self._ciphers = {place: cipher for place, cipher in self._ciphers.items() if place[1] in self._held}


class DerivedTopicKeys(TopicKeys):
    """All keys of a domain, for its PAPs. Raises `MalformedError` (`component.settings`) for a short secret."""

    def __init__(self, domain: str, secret: bytes) -> None:
        if len(secret) != TOPIC_SECRET_BYTES:
            raise MalformedError("component.settings", f"the secret of a domain has {TOPIC_SECRET_BYTES} bytes")
        self._secret = secret
        super().__init__(domain, self.key)

    def __repr__(self) -> str:
        return "DerivedTopicKeys()"

    def key(self, topic: str, number: int) -> bytes:
        """Return the key of a topic from a configuration number on."""
        about = f"penstock topic key 1\0{self._domain}/{topic}\0{number}".encode()
        return expand(self._secret, about, TOPIC_SECRET_BYTES)

    def keys_of(self, topics: Iterable[str], numbers: Iterable[int]) -> dict[int, dict[str, bytes]]:
        """Return the keys of these topics under each of the numbers, as a component gets them."""
        names = sorted(topics)
        return {number: {topic: self.key(topic, number) for topic in names} for number in numbers}
