"""Reports lose no error from the count, and pass each cause on at most once in an interval."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.authority.components.exchange.reports import CAUSES, INTERVAL, CauseReports
from penstock.errors import PenstockError, RefusedError

ERRORS = st.tuples(st.floats(0, 8), st.integers(0, 2), st.integers(0, 2 * CAUSES))


@given(st.lists(ERRORS, max_size=60), st.integers(1, 2 * CAUSES))
def test_every_error_is_reported_or_counted(steps: list[tuple[float, int, int]], causes: int) -> None:
    now = 0.0
    seen: list[tuple[float, PenstockError]] = []

    def note(error: PenstockError) -> None:
        seen.append((now, error))

    reports, made = CauseReports(note, lambda: now), Counter[str]()
    for pause, code, cause in steps:
        now += pause
        made[f"c.{code}"] += 1
        reports(RefusedError(f"c.{code}", f"why {cause % causes}"))
    reports.close()
    counted: Counter[str] = Counter()
    for _, error in seen:
        counted[error.code] += int(error.fields.get("more", 1))  # type: ignore[call-overload]  # a count
    assert counted == made
    if causes > CAUSES:
        return  # some are distinguished by their codes alone
    first = [(time, error.code, error.message) for time, error in seen if "more" not in error.fields]
    for at, (time, *cause_) in enumerate(first):
        assert all(time - before >= INTERVAL for before, *other in first[:at] if other == cause_)


def test_causes_without_end_are_distinguished_by_their_codes() -> None:
    seen: list[PenstockError] = []
    reports = CauseReports(seen.append, lambda: 0.0)
    for number in range(10 * CAUSES):
        reports(RefusedError("component.flood", f"from {number}"))
    assert len(seen) == CAUSES + 1
    reports.close()
    assert seen[-1].fields == {"more": 9 * CAUSES - 1}
    assert str(seen[-1]) == f"from {10 * CAUSES - 1} ({9 * CAUSES - 1} times more in 0 s) [component.flood]"
