"""Compute results of pure functions once, and share them between simulated processes and between seeds.

All brokers of a world read the same statements, and every seed signs and verifies the same certificates. These
functions depend on nothing but their arguments, and their results cannot change; so a trace is the same with and
without this. Whoever calls them spends the time of the service all the same.

Nothing that failed is shared: a signature is verified again until it is valid.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from penstock.authority.rulebook_records import RecordedStep, Whole
from penstock.codec.limits import CODEC_LIMITS, CodecLimits
from penstock.codec.sexp import SExp, canonical
from penstock.crypto.keys import PublicKey, SigningKey
from penstock.simulate.simulation import replaced_functions
from penstock.trust.signed import Claim, SignedValue, UnverifiedValue

_K = TypeVar("_K")
_V = TypeVar("_V")

#: results of one function that are kept; then all are forgotten
_MOST: Final = 20_000


class _Results(dict[_K, _V]):
    """Results by arguments, up to a number of them."""

    def keep(self, key: _K, value: _V) -> _V:
        """Keep a result, and return it."""
        if len(self) >= _MOST:
            self.clear()
        self[key] = value
        return value


def _sign(original: Callable[[SigningKey, bytes], bytes]) -> Callable[[SigningKey, bytes], bytes]:
    known: _Results[tuple[bytes, bytes], bytes] = _Results()

    def sign(self: SigningKey, message: bytes) -> bytes:
        key = self.seed, message
        found = known.get(key)
        # Ed25519 gives the same message the same signature.
        return known.keep(key, original(self, message)) if found is None else found

    return sign


def _verify(original: Callable[[PublicKey, bytes, bytes], None]) -> Callable[[PublicKey, bytes, bytes], None]:
    valid: _Results[tuple[bytes, bytes, bytes], bool] = _Results()

    def verify(self: PublicKey, message: bytes, signature: bytes) -> None:
        key = self.raw, message, signature
        if key not in valid:
            original(self, message, signature)
            valid.keep(key, True)

    return verify


def _parse(original: Callable[..., SExp]) -> Callable[..., SExp]:
    known: _Results[tuple[bytes, CodecLimits], SExp] = _Results()

    def parse(data: bytes, *, limits: CodecLimits = CODEC_LIMITS) -> SExp:
        key = data, limits
        found = known.get(key)
        return known.keep(key, original(data, limits=limits)) if found is None else found

    return parse


def _write(original: Callable[[SExp], bytes]) -> Callable[[SExp], bytes]:
    known: _Results[SExp, bytes] = _Results()

    def write(value: SExp) -> bytes:
        return known.get(value) or known.keep(value, original(value))

    return write


def _read(original: Callable[..., UnverifiedValue[Claim]]) -> Callable[..., UnverifiedValue[Claim]]:
    known: _Results[tuple[bytes, tuple[type[Claim], ...]], UnverifiedValue[Claim]] = _Results()

    def read(data: bytes, *kinds: type[Claim]) -> UnverifiedValue[Claim]:
        key = data, kinds
        found = known.get(key)
        if found is None:
            found = original(data, *kinds)
            if _is_unchangeable(found.value):
                known.keep(key, found)
        return found

    return read


def _believe(
    original: Callable[[UnverifiedValue[Claim]], SignedValue[Claim]],
) -> Callable[[UnverifiedValue[Claim]], SignedValue[Claim]]:
    known: _Results[tuple[bytes, bytes, bytes], SignedValue[Claim]] = _Results()

    def verify(self: UnverifiedValue[Claim]) -> SignedValue[Claim]:
        key = self.digest, self.key.raw, self.signature
        found = known.get(key)
        if found is None:
            found = original(self)
            return known.keep(key, found) if _is_unchangeable(found.value) else found
        # The signature is verified all the same, but the verified statement is kept only once.
        self.key.verify(canonical(self.body), self.signature)
        return found

    return verify


def _taken(original: Callable[[int, Whole], RecordedStep]) -> Callable[[int, Whole], RecordedStep]:
    known: _Results[tuple[int, Whole], RecordedStep] = _Results()

    def read_taken(number: int, whole: Whole) -> RecordedStep:
        key = number, whole
        found = known.get(key)
        # Whoever applies it does not change its mappings.
        return known.keep(key, original(number, whole)) if found is None else found

    return read_taken


def _is_unchangeable(value: object) -> bool:
    """Return whether a value and its parts can be shared: what could be changed has no hash."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


_PURE: Final[Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any]]]] = {
    "penstock.crypto.keys:SigningKey.sign": _sign,
    "penstock.crypto.keys:PublicKey.verify": _verify,
    "penstock.codec.sexp.canonical:parse_canonical": _parse,
    "penstock.codec.sexp.canonical:canonical": _write,
    "penstock.trust.signed:parse_signed": _read,
    "penstock.trust.signed:UnverifiedValue.verify": _believe,
    "penstock.authority.rulebook_records:read_taken": _taken,
}


@contextmanager
def shared_results() -> Iterator[None]:
    """Share the results of pure functions between all simulations that run meanwhile in this process."""
    with replaced_functions(((path, path) for path in _PURE), lambda path, original: _PURE[path](original)):
        yield
