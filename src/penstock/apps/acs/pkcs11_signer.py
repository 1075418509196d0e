"""A program for `signer` in a domain file: sign with an Ed25519 key of a PKCS#11 token.

    PENSTOCK_PIN=… python -m penstock.apps.acs.pkcs11_signer MODULE TOKEN KEY [--public]

MODULE is the library of the token, TOKEN and KEY are labels. It reads a message from standard input and prints the 64
bytes of its signature; with `--public` it prints the public key, for `key` in the domain file. The private key does not
leave the token. Tools that sign in several parts cannot be used for this: Ed25519 signs a message as a whole.
"""

import ctypes
import os
import sys
from ctypes import byref, c_ubyte, c_ulong, c_void_p
from typing import Final

from penstock.codec.sexp import transport
from penstock.crypto import PublicKey

# The constants of PKCS#11 3.0 that are needed here.
_EDDSA: Final = 0x1057
_CLASS, _LABEL, _EC_POINT = 0, 3, 0x181
_PUBLIC_KEY, _PRIVATE_KEY = 2, 3
_SERIAL_SESSION, _USER = 4, 1
_WORDS: Final = 3
_LABEL_BYTES: Final = 32
_TOKEN_INFO_BYTES: Final = 512
_MOST_SLOTS: Final = 64
_SIGNATURE_BYTES: Final = 64
_KEY_BYTES: Final = 32
#: a point is a DER string of bytes, or its content
_POINT_PREFIX: Final = bytes((4, _KEY_BYTES))


class _Attribute(ctypes.Structure):
    _fields_ = (("type", c_ulong), ("value", c_void_p), ("length", c_ulong))


class _Mechanism(ctypes.Structure):
    _fields_ = (("mechanism", c_ulong), ("parameter", c_void_p), ("length", c_ulong))


class Pkcs11Error(Exception):
    """A function of the token's library failed, or something is not on the token."""


class Pkcs11Token:
    """A token that was opened with its PIN."""

    def __init__(self, module: str, label: str, pin: str) -> None:
        self._library = ctypes.CDLL(module)
        self._call("C_Initialize", None)
        self._session = c_ulong()
        self._call("C_OpenSession", self._slot(label), c_ulong(_SERIAL_SESSION), None, None, byref(self._session))
        secret = pin.encode()
        self._call("C_Login", self._session, c_ulong(_USER), secret, c_ulong(len(secret)))

    def _call(self, name: str, *arguments: object) -> None:
        result = getattr(self._library, name)(*arguments)
        if result:
            raise Pkcs11Error(f"{name} failed with {result & 0xFFFFFFFF:#x}")

    def _slot(self, label: str) -> c_ulong:
        slots, count = (c_ulong * _MOST_SLOTS)(), c_ulong(_MOST_SLOTS)
        self._call("C_GetSlotList", c_ubyte(1), slots, byref(count))
        for slot in slots[: count.value]:
            info = ctypes.create_string_buffer(_TOKEN_INFO_BYTES)
            self._call("C_GetTokenInfo", c_ulong(slot), info)
            if info.raw[:_LABEL_BYTES].rstrip(b" ") == label.encode():
                return c_ulong(slot)
        raise Pkcs11Error("there is no such token")

    def sign(self, key: str, message: bytes) -> bytes:
        """Return the Ed25519 signature of a message by the private key with this label. Raises `Pkcs11Error`."""
        found = self._find(_PRIVATE_KEY, key)
        signature, size = (c_ubyte * _SIGNATURE_BYTES)(), c_ulong(_SIGNATURE_BYTES)
        self._call("C_SignInit", self._session, byref(_Mechanism(_EDDSA, None, 0)), found)
        self._call("C_Sign", self._session, message, c_ulong(len(message)), signature, byref(size))
        return bytes(signature[: size.value])

    def public(self, key: str) -> bytes:
        """Return the public key with this label. Raises `Pkcs11Error`."""
        data = ctypes.create_string_buffer(len(_POINT_PREFIX) + _KEY_BYTES)
        wanted = _Attribute(_EC_POINT, ctypes.cast(data, c_void_p), len(data))
        self._call("C_GetAttributeValue", self._session, self._find(_PUBLIC_KEY, key), byref(wanted), c_ulong(1))
        found = data.raw[: wanted.length].removeprefix(_POINT_PREFIX)
        if len(found) != _KEY_BYTES:
            raise Pkcs11Error("the key is not an Ed25519 key")
        return found

    def _find(self, kind_of_key: int, key: str) -> c_ulong:
        kind, label = c_ulong(kind_of_key), key.encode()
        wanted = (_Attribute * 2)(
            _Attribute(_CLASS, ctypes.cast(byref(kind), c_void_p), ctypes.sizeof(kind)),
            _Attribute(_LABEL, ctypes.cast(ctypes.c_char_p(label), c_void_p), len(label)),
        )
        found, count = c_ulong(), c_ulong()
        self._call("C_FindObjectsInit", self._session, wanted, c_ulong(2))
        self._call("C_FindObjects", self._session, byref(found), c_ulong(1), byref(count))
        self._call("C_FindObjectsFinal", self._session)
        if not count.value:
            raise Pkcs11Error("there is no such key")
        return found


def main() -> int:
    """Sign standard input, or print the public key, and return the exit status."""
    words = [word for word in sys.argv[1:] if word != "--public"]
    if len(words) != _WORDS or "PENSTOCK_PIN" not in os.environ:
        sys.stderr.write(
            "usage: PENSTOCK_PIN=… python -m penstock.apps.acs.pkcs11_signer MODULE TOKEN KEY [--public]\n"
        )
        return 2
    module, label, key = words
    try:
        token = Pkcs11Token(module, label, os.environ["PENSTOCK_PIN"])
        if "--public" in sys.argv:
            data = transport(PublicKey(token.public(key)).to_sexp()) + b"\n"
        else:
            data = token.sign(key, sys.stdin.buffer.read())
    except (OSError, Pkcs11Error) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.buffer.write(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
