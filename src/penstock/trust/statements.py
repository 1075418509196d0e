"""Several signed statements in one file:

    (statements (sequence <body> (signature …)) …)

A file with one statement may hold it as it is. Nothing of what is read has been verified.
"""

from collections.abc import Iterable
from typing import TypeVar

from penstock.codec.sexp import SExp, canonical, parse
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.trust.signed import Claim, SignedValue, UnverifiedValue, malformed, read_signed

V = TypeVar("V", bound=Claim)


def statements_to_sexp(statements: Iterable[SignedValue[Claim]]) -> SExp:
    """Return statements as one."""
    return (b"statements", *(statement.to_sexp() for statement in statements))


def write_statements(statements: Iterable[SignedValue[Claim]]) -> bytes:
    """Return statements in canonical form."""
    return canonical(statements_to_sexp(statements))


def read_statements(data: bytes, *kinds: type[V], limits: Limits = DEFAULT_LIMITS) -> tuple[UnverifiedValue[V], ...]:
    """Read statements of these kinds, in any S-expression form.

    Raises `MalformedError` (`evolution.malformed`, `sexp.*`, and what the parts raise), `RefusedError`
    (`evolution.signature-mismatch`), `LimitError`.
    """
    found: tuple[SExp, ...]
    match parse(data, limits=limits):
        case (b"statements", *listed):
            found = tuple(listed)
        case (b"sequence", *_) as single:
            found = (single,)
        case _:
            raise malformed("not a file of signed statements")
    return tuple(read_signed(statement, *kinds) for statement in found)
