"""Views of a ledger that somebody exchanged under their feet."""

from pathlib import Path

import pytest
from sqlalchemy import text

from penstock.errors import RefusedError
from penstock.store.ledgers.folds import FoldView
from penstock.store.ledgers.ledgers import EMPTY, Ledger
from penstock.store.ledgers.memory import MemoryRecords
from penstock.store.ledgers.urls import open_database, open_store
from penstock.testing.store_suite import Sum, entry


@pytest.mark.parametrize("changes", [0, 1, 2, 3])
def test_a_view_does_not_go_on_with_another_chain(changes: int) -> None:
    records, others = MemoryRecords(), MemoryRecords()
    view = FoldView(Ledger(records, "rules"), Sum())
    view.append([entry(1), entry(2)])
    Ledger(others, "rules").append(EMPTY, [entry(7) for _ in range(changes)])
    records._rows, records._heads = others._rows, others._heads
    with pytest.raises(RefusedError) as problem:
        view.refresh()
    assert problem.value.code == "store.broken"
    assert view.state == 3


def test_a_snapshot_that_was_damaged_is_passed_over(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/rules.db"
    with open_store(url, create=True) as store:
        view = FoldView(store.ledger("rules"), Sum())
        view.append([entry(1), entry(2)])
        view.keep()
        database = open_database(url)
        with database._writing() as connection:
            connection.execute(text("UPDATE penstock_snapshots SET data = x'39'"))
        database.close()
        fold = Sum()
        assert (FoldView(store.ledger("rules"), fold).state, fold.steps) == (3, 2)


def test_a_snapshot_that_its_fold_cannot_read_is_passed_over() -> None:
    ledger = Ledger(MemoryRecords(), "rules")
    ledger.append(EMPTY, [entry(1)])
    ledger.keep_snapshot("sum-1", ledger.head(), b"no number")
    assert FoldView(ledger, Sum()).state == 1
