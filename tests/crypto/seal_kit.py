"""A broker that seals, readers with some of its keys, and events of every kind."""

import hashlib
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from hypothesis import strategies as st

from penstock.codec.blocks import Block, names
from penstock.codec.columns import Column
from penstock.crypto import SigningKey
from penstock.crypto.seal_keys import KeyRing, column_scope
from penstock.crypto.wrapping import Secret
from penstock.errors import PenstockError
from penstock.model.names import AttributeId, TypeKey
from penstock.model.values import INTEGER_MAX, INTEGER_MIN, Scalar

OWNER, BROKER, OTHER = (SigningKey(bytes((number,)) * 32) for number in (1, 2, 3))
TYPE = TypeKey(OWNER.principal, "uk.gov.pito.Numberplate")
PARENT = TypeKey(OWNER.principal, "uk.gov.pito.Sighting")
NOW = datetime(2026, 5, 1, 12, 30, 15, 250, tzinfo=UTC)
SMALL = (3, 2)
"""Attributes and rows of a block that is small enough to try everything on."""

_SEEDS = count(1)


def fresh(size: int) -> bytes:
    """Return bytes that differ each time."""
    return hashlib.shake_256(b"%d" % next(_SEEDS)).digest(size)


def attribute(place: int) -> AttributeId:
    """Return an attribute; the first one is inherited."""
    return AttributeId(OWNER.principal, TYPE.name if place else PARENT.name, str(place))


def attributes(number: int) -> tuple[str, ...]:
    """Return so many attributes."""
    return tuple(str(attribute(place)) for place in range(number))


def secret(scope: str, epoch: int) -> Secret:
    """Return the key of a scope in an epoch, the same each time."""
    return Secret(hashlib.sha256(f"{scope} {epoch}".encode()).digest())


def ring(shown: Collection[str], *, epochs: Sequence[int] = (7,), whole: bool = True) -> KeyRing:
    """Return a ring with the keys of some attributes, and of the type."""
    found = KeyRing()
    for scope in [*(column_scope(TYPE, one) for one in shown), *([str(TYPE)] if whole else [])]:
        for epoch in epochs:
            found.put(scope, epoch, secret(scope, epoch))
    return found


def block_of(*columns: Column) -> Block:
    """Return a block with these columns."""
    rows = len(columns[0]) if columns else 1
    ids = [f"event-{row}" for row in range(rows)]
    times = [NOW + timedelta(seconds=row) if row % 3 else None for row in range(rows)]
    return Block(names(TYPE, (PARENT,), attributes(len(columns))), ids, times, [*columns])


def small(salt: int = 0) -> Block:
    """Return a block on which everything can be tried."""
    return block_of(["AE05 XYZ", None], [salt, 300], [True, None])


def code_of(act: Callable[..., object], *arguments: object) -> str:
    """Return the code of the error that is raised; a refusal to open has no cause to tell more."""
    with pytest.raises(PenstockError) as caught:
        act(*arguments)
    assert caught.value.__cause__ is None or not caught.value.code.startswith("seal.")
    return caught.value.code


_VALUES: list[st.SearchStrategy[Scalar]] = [
    st.text(st.characters(codec="utf-8"), max_size=12),
    st.integers(INTEGER_MIN, INTEGER_MAX),
    st.floats(allow_nan=False),
    st.booleans(),
    st.datetimes(timezones=st.just(UTC)),
]


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    """Draw a block: any number of columns of any kinds, with nulls."""
    rows = draw(st.integers(1, 6))
    kinds = draw(st.lists(st.sampled_from(_VALUES), max_size=5))
    columns = [draw(st.lists(kind | st.none(), min_size=rows, max_size=rows)) for kind in kinds]
    ids = draw(st.lists(st.text(st.characters(codec="utf-8"), max_size=5), min_size=rows, max_size=rows))
    times = draw(st.lists(st.datetimes(timezones=st.just(UTC)) | st.none(), min_size=rows, max_size=rows))
    return Block(names(TYPE, (PARENT,), attributes(len(columns))), ids, times, columns)
