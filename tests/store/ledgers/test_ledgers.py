"""Changes, their bytes and their chain."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from hashlib import sha256

import pytest

from penstock.codec.sexp import canonical
from penstock.errors import MalformedError, RefusedError
from penstock.model.principals import Principal
from penstock.store.ledgers.ledgers import EMPTY, NewChange, chain, check_ledger_name, to_row, verify_row
from penstock.testing.store_suite import ALICE, NOON, entry


def test_the_octets_of_a_change_are_those_of_the_page() -> None:
    written = NewChange(who=ALICE, when=NOON, kind="rule.add", why="why", after=b"(x)")
    (change,) = chain("rules", EMPTY, [written])
    octets = canonical(
        (
            *(b"penstock-change", b"rules", b"1", bytes(32), str(ALICE).encode(), b"1777636800000000"),
            *(b"rule.add", b"why", (b"after", b"(x)")),
        )
    )
    assert change.hash == sha256(octets).digest()


def test_no_two_changes_have_the_same_octets() -> None:
    base = NewChange(who=ALICE, when=NOON, kind="a", why="b")
    others = [
        base,
        replace(base, who=Principal(b"\1" * 32, "threshold")),
        replace(base, when=NOON + timedelta(microseconds=1)),
        replace(base, kind="ab", why=""),
        replace(base, why="bb"),
        replace(base, before=b""),
        replace(base, after=b""),
        replace(base, before=b"", after=b""),
    ]
    assert len({chain("rules", EMPTY, [one])[0].hash for one in others}) == len(others)
    assert chain("rules", EMPTY, [base])[0].hash != chain("other", EMPTY, [base])[0].hash


def test_a_change_says_nothing_of_its_content_to_a_log() -> None:
    (change,) = chain("rules", EMPTY, [replace(entry(1), before=b"secret", after=b"secret")])
    assert "secret" not in repr(change)


def test_an_instant_is_kept_in_utc_to_the_microsecond() -> None:
    here = datetime(2026, 5, 1, 14, 0, 0, 123456, tzinfo=timezone(timedelta(hours=2)))
    (change,) = chain("rules", EMPTY, [replace(entry(1), when=here)])
    assert verify_row("rules", EMPTY, to_row(change)).when == datetime(2026, 5, 1, 12, 0, 0, 123456, tzinfo=UTC)


def test_times_before_1970_are_times_too() -> None:
    (change,) = chain("rules", EMPTY, [replace(entry(1), when=datetime(1, 1, 1, tzinfo=UTC))])
    assert verify_row("rules", EMPTY, to_row(change)) == change


@pytest.mark.parametrize(
    "wrong",
    [{"kind": ""}, {"kind": "Rule"}, {"kind": "a b"}, {"why": "two\nlines"}, {"why": "\0"}, {"why": "\ud800"}],
    ids=repr,
)
def test_what_has_another_form_is_no_change(wrong: dict[str, str]) -> None:
    with pytest.raises(MalformedError) as problem:
        replace(entry(1), **wrong)  # type: ignore[arg-type]  # that is what is tried
    assert problem.value.code == "store.value"


@pytest.mark.parametrize("name", ["", "Rules", "9", "a b", "a:b", "a" * 129, "a\n"])
def test_what_has_another_form_names_no_ledger(name: str) -> None:
    with pytest.raises(MalformedError) as problem:
        check_ledger_name(name)
    assert problem.value.code == "store.value"


def test_a_change_is_verified_in_its_place_alone() -> None:
    first, second = chain("rules", EMPTY, [entry(1), entry(2)])
    assert verify_row("rules", first.head, to_row(second)) == second
    for ledger, head, row in (
        ("rules", EMPTY, second),
        ("other", EMPTY, first),
        ("rules", replace(first.head, hash=bytes(32)), second),
    ):
        with pytest.raises(RefusedError) as problem:
            verify_row(ledger, head, to_row(row))
        assert problem.value.code == "store.broken"
