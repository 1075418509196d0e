"""How values of each kind are written in z3, and read back from its models."""

import ctypes
import math
import struct
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any, Final, TypeAlias

import z3

from penstock.model.values import INTEGER_MAX, INTEGER_MIN, AttributeSpec, Enumerated, Kind, Ranged, Value
from penstock.selector.alphabet import Alphabet

Formula: TypeAlias = Any
"""A z3 expression; z3 ships no types."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_FIRST: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_LAST: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
#: Stands for the infinite floats where floats are real numbers: beyond every double and every integer.
_INFINITY: Final = 1 << 1024


class UnsettledError(Exception):
    """The solver cannot say."""


class Representation:
    """Values in one z3 context; with `exact`, floats are IEEE doubles, and real numbers otherwise."""

    def __init__(self, alphabet: Alphabet, *, exact: bool) -> None:
        self.context = z3.Context()
        self.alphabet = alphabet
        self.exact = exact
        self.double_sort = z3.Float64(self.context)

    def constant(self, value: Value) -> Formula:
        """Write a value."""
        match value:
            case bool():
                return z3.BoolVal(value, self.context)
            case str():
                return self.string(value)
            case datetime():
                return z3.IntVal((value.astimezone(UTC) - _EPOCH) // _MICROSECOND, self.context)
            case float() if self.exact:
                return self.double(value)
            case float():
                return self.rational(value)
            case int():
                return z3.IntVal(value, self.context)

    def string(self, text: str) -> Formula:
        """Write a string by its codes: z3's own constructor would read escapes in it."""
        codes = self.alphabet.encode(text)
        array = (ctypes.c_uint * len(codes))(*codes)
        return z3.SeqRef(z3.Z3_mk_u32string(self.context.ref(), len(codes), array), self.context)

    def double(self, value: float) -> Formula:
        """Write a double, bit by bit."""
        (bits,) = struct.unpack("<Q", struct.pack("<d", value))
        return z3.simplify(z3.fpBVToFP(z3.BitVecVal(bits, 64, self.context), self.double_sort, self.context))

    def rational(self, value: float) -> Formula:
        """Write a float as the real number that it is."""
        if math.isinf(value):
            return z3.RealVal(_INFINITY if value > 0 else -_INFINITY, self.context)
        return z3.RealVal(Fraction(value), self.context)

    def variable(self, name: str, kind: Kind) -> Formula:
        """Return an unknown value."""
        match kind:
            case Kind.STRING:
                return z3.String(name, self.context)
            case Kind.BOOLEAN:
                return z3.Bool(name, self.context)
            case Kind.FLOAT if self.exact:
                return z3.FP(name, self.double_sort)
            case Kind.FLOAT:
                return z3.Real(name, self.context)
            case Kind.INTEGER | Kind.TIMESTAMP:
                return z3.Int(name, self.context)

    def bounds(self, value: Formula, spec: AttributeSpec) -> list[Formula]:
        """Return what holds of every value that the attribute may have."""
        match spec.domain:
            case Enumerated(members):
                return [z3.Or([value == self.constant(member) for member in members] or [False])]
            case Ranged(low, high):
                return [self.constant(low) <= value, value <= self.constant(high)]
            case None:
                return self.natural_bounds(value, spec.kind)

    def natural_bounds(self, value: Formula, kind: Kind) -> list[Formula]:
        """Return the limits of a kind itself."""
        match kind:
            case Kind.INTEGER:
                return [value >= INTEGER_MIN, value <= INTEGER_MAX]
            case Kind.TIMESTAMP:
                return [value >= _FIRST, value <= _LAST]
            case Kind.FLOAT if not self.exact:
                return [self.rational(-math.inf) <= value, value <= self.rational(math.inf)]
            case Kind.STRING if self.alphabet.bounded:
                codes = z3.Range(self._character(0), self._character(self.alphabet.size - 1), self.context)
                return [z3.InRe(value, z3.Star(codes))]
            case _:
                return []

    def _character(self, code: int) -> Formula:
        array = (ctypes.c_uint * 1)(code)
        return z3.SeqRef(z3.Z3_mk_u32string(self.context.ref(), 1, array), self.context)

    def read(self, kind: Kind, found: Formula) -> Value:
        """Read a value from a model.

        Raises `UnsettledError` where the model has no plain value.
        """
        match kind:
            case Kind.BOOLEAN:
                return bool(z3.is_true(found))
            case Kind.INTEGER if z3.is_int_value(found):
                return int(found.as_long())
            case Kind.TIMESTAMP if z3.is_int_value(found):
                return _EPOCH + int(found.as_long()) * _MICROSECOND
            case Kind.STRING if z3.is_string_value(found):
                return self._read_string(found)
            case Kind.FLOAT if self.exact:
                bits = z3.simplify(z3.fpToIEEEBV(found, self.context))
                value: float = struct.unpack("<d", struct.pack("<Q", bits.as_long()))[0]
                return value
            case Kind.FLOAT if z3.is_rational_value(found):
                return _nearest(found.as_fraction())
            case _:
                raise UnsettledError

    def _read_string(self, found: Formula) -> str:
        length = z3.Z3_get_string_length(self.context.ref(), found.as_ast())
        array = (ctypes.c_uint * length)()
        z3.Z3_get_string_contents(self.context.ref(), found.as_ast(), length, array)
        return self.alphabet.decode(array)


def _nearest(fraction: Fraction) -> float:
    try:
        return float(fraction)
    except OverflowError:
        return math.inf if fraction > 0 else -math.inf
