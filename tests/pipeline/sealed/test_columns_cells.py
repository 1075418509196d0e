"""Blocks of one event each are opened together; and who opens them one by one in the end does so for a reason."""

from typing import Any

import numpy as np
import pytest
from tests.pipeline.sealed_kit import CAR, PLATE, WHOLE, batch, event, ring, seal, sealer, shown
from tests.trust.kit import refused

from penstock.crypto.opener import Opener
from penstock.model.types import EventType
from penstock.pipeline.sealed.columns import groups, open_group
from penstock.pipeline.sealed.log import FIRST, HEADER


def opened(log: Any, event_type: EventType) -> list[Any]:
    kinds = {str(a.id): a.spec.kind for a in event_type.attributes}
    columns = {"": log.column(FIRST), **{name: log.column(name) for name in kinds}}
    found = groups(log.column(HEADER), np.arange(log.num_rows))
    return [open_group(Opener(ring()), group, columns, kinds, kinds) for group in found]


@pytest.mark.parametrize("kind", [CAR, WHOLE], ids=["attribute", "event"])
def test_blocks_of_one_sender_are_one_group(kind: EventType) -> None:
    one, other = sealer(), sealer()
    log = batch([seal(other if n % 4 == 3 else one, [n], kind) for n in range(20)], [kind])
    found = opened(log, kind)
    assert sorted(len(group.ids) for group in found) == [5, 15]
    plates = {
        id_: plate
        for group in found
        for id_, plate in zip(group.ids.to_pylist(), group.columns[str(kind.attributes[0].id)].to_pylist(), strict=True)
    }
    assert plates == {f"e{n}": shown(event(n, kind))[str(kind.attributes[0].id)] for n in range(20)}


def test_a_group_opens_as_a_whole_or_not_at_all() -> None:
    from_ = sealer()
    rows = batch([seal(from_, [n]) for n in range(3)], [CAR]).to_pylist()
    rows[1][PLATE] = rows[0][PLATE]
    with refused("seal.cannot-open"):
        opened(batch(rows, [CAR]), CAR)
