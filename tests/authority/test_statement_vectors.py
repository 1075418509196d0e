"""Statements of every kind are read and written as they were first.

`statements.txt` has bodies in transport form: those of kinds from before statements were described as records were
written by the hand-written `to_sexp` of commit 9468ce9, the others when their kind was new.
Signatures are over these bytes: a statement that would be written otherwise could no longer be verified.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from penstock.authority import polls, role_book, rulebook_records
from penstock.authority.components.exchange import certificates
from penstock.authority.components.information import attribute_mapping
from penstock.authority.decisions import messages, updates
from penstock.authority.domain import distribution, domain_ledger
from penstock.codec.sexp import SExp, canonical, head, parse
from penstock.errors import PenstockError
from penstock.guard import agreements
from penstock.guard import roles as guard_roles
from penstock.roles import credentials
from penstock.trust import key_statements, policy_state, statements
from penstock.trust.signed import Claim

VECTORS: Final = [*map(parse, Path(__file__).with_name("statements.txt").read_bytes().split())]


def kinds(kind: type[Claim] = Claim) -> Iterator[type[Claim]]:
    # A dataclass with slots is a copy of its class, which stays among the subclasses until it is collected.
    for below in kind.__subclasses__():
        if below.HEAD and below.__module__.startswith("penstock.") and "__slots__" in vars(below):
            yield below
        yield from kinds(below)


assert all((agreements, attribute_mapping, key_statements, polls, policy_state, role_book, rulebook_records))
assert all((certificates, credentials, distribution, domain_ledger, guard_roles, messages, statements, updates))
KINDS: Final = {kind.HEAD: kind for kind in kinds()}


def test_there_is_a_vector_of_every_kind() -> None:
    assert {head(body) for body in VECTORS} == KINDS.keys()


@pytest.mark.parametrize("body", VECTORS, ids=lambda body: (head(body) or b"").decode())
def test_a_statement_is_written_as_it_was(body: SExp) -> None:
    kind = KINDS[head(body) or b""]
    assert canonical(kind.from_sexp(body).to_sexp()) == canonical(body)


@pytest.mark.parametrize("body", VECTORS, ids=lambda body: (head(body) or b"").decode())
def test_a_field_too_few_or_too_many_is_refused(body: SExp) -> None:
    assert isinstance(body, tuple)
    kind = KINDS[head(body) or b""]
    for place in range(1, len(body)):
        for changed in (
            (*body[:place], (b"unknown",), *body[place:]),
            (*body[:place], body[place], *body[place:]),
        ):
            with pytest.raises(PenstockError):
                kind.from_sexp(changed)
        without = (*body[:place], *body[place + 1 :])
        with suppress(PenstockError):
            assert kind.from_sexp(without).to_sexp() == without
