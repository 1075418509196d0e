"""Combining information: the newest value of each field counts, and a contradiction gives none."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.authority.components.information.combining import (
    CombinedInformation,
    InformationAnswer,
    InformationCollection,
    InformationMode,
    TimedValue,
)
from penstock.authority.limits import POINT_SKEW
from penstock.errors import MalformedError

NOW = datetime(2026, 5, 1, tzinfo=UTC)
RANK, OWNER = "subject/rank", "resource/owner"


def value(text: str, day: int = 0) -> TimedValue:
    return TimedValue(text, NOW - timedelta(days=day))


def answer(source: str, domain: str = "bank", /, **fields: TimedValue) -> InformationAnswer:
    return InformationAnswer(
        domain, source, {{"rank": RANK, "owner": OWNER}[name]: one for name, one in fields.items()}
    )


def combined(
    mode: str, *answers: InformationAnswer, priorities: dict[str, int] | None = None
) -> tuple[CombinedInformation, bool]:
    collection = InformationCollection(InformationMode.parse(mode), frozenset({RANK, OWNER}), priorities or {})
    for one in answers:
        collection.take(one, NOW)
    return collection.result(), collection.complete


def test_the_first_answer_is_enough_for_availability() -> None:
    result, complete = combined("first", answer("a", rank=value("3")), answer("b", rank=value("4"), owner=value('"x"')))
    assert (dict(result.fields), {*result.null}, complete) == ({RANK: value("3")}, {OWNER}, True)


def test_parts_are_composed() -> None:
    one = answer("a", rank=value("3"))
    assert not combined("compose", one)[1]
    result, complete = combined("compose", one, answer("b", owner=value('"x"')))
    assert (dict(result.fields), {*result.null}, complete) == (
        {RANK: value("3"), OWNER: value('"x"')},
        set[str](),
        True,
    )


def test_the_newest_change_wins_for_each_field() -> None:
    result, _ = combined(
        "n:2",
        answer("a", rank=value("3", 1), owner=value('"x"', 5)),
        answer("b", rank=value("4", 2), owner=value('"y"', 4)),
    )
    assert result.fields == {RANK: value("3", 1), OWNER: value('"y"', 4)}
    assert result.outdated == {RANK, OWNER}
    assert result.alarm is None


def test_a_contradiction_gives_no_value_and_an_alarm() -> None:
    result, _ = combined(
        "n:2", answer("a", rank=value("1"), owner=value('"x"')), answer("b", rank=value("1.0"), owner=value('"x"', 1))
    )
    assert (dict(result.fields), {*result.null}) == ({OWNER: value('"x"')}, {RANK})
    assert result.alarm is not None
    assert (result.alarm.code, result.alarm.fields["fields"]) == ("pdp.contradiction", [RANK])


def test_too_few_answers_are_null() -> None:
    result, complete = combined("n:2", answer("a", rank=value("3"), owner=value('"x"')), answer("b", rank=value("3")))
    assert (dict(result.fields), {*result.null}, complete) == ({RANK: value("3")}, {OWNER}, False)
    assert combined("first")[0].null == combined("compose")[0].null == {RANK, OWNER}


def test_only_the_highest_priority_counts_and_is_waited_for() -> None:
    low, high = answer("a", "bank", rank=value("3"), owner=value('"x"')), answer("b", "tax", rank=value("4", 9))
    for mode in ("first", "compose"):
        assert not combined(mode, low, priorities={"tax": 1})[1]
    result, complete = combined("compose", low, high, priorities={"tax": 1})
    assert (result.fields, complete) == ({RANK: value("4", 9), OWNER: value('"x"')}, False)
    result, complete = combined("first", low, high, priorities={"tax": 1})
    assert (result.fields, complete) == ({RANK: value("4", 9)}, True)
    # A priority below that of the others is waited for by nobody.
    assert combined("first", low, priorities={"tax": -1})[1]


def test_what_does_not_count() -> None:
    late = TimedValue("9", NOW + timedelta(seconds=POINT_SKEW + 1))
    unasked = InformationAnswer("bank", "c", {"subject/age": value("9")})
    assert combined("compose", answer("a", rank=late), unasked)[0].fields == {}
    assert combined("first", answer("a", rank=late), unasked)[0].fields == {}
    again = combined("n:2", answer("a", rank=value("3")), answer("a", rank=value("3")))
    assert again[0].null == {RANK, OWNER}, "one source is one answer"


@pytest.mark.parametrize(
    "text", ["", "n", "n:", "n:1", "n:0", "n:-2", "n:9999", "n:²", "first:1", "compose:2", "newest"]
)
def test_wrong_modes(text: str) -> None:
    with pytest.raises(MalformedError, match=r"pdp\.information-mode"):
        InformationMode.parse(text)


def naive(mode: str, wanted: set[str], answers: Sequence[InformationAnswer], priorities: dict[str, int]) -> Any:
    """Return fields, contradictions and whether to wait, by the table and nothing else."""
    once: list[InformationAnswer] = []
    for one in answers:
        if not any((one.domain, one.source) == (other.domain, other.source) for other in once):
            once.append(one)
    top = max([0, *priorities.values()])
    rank = {domain: priorities.get(domain, 0) for domain in ("bank", "tax", "shop")}
    if mode == "first":
        useful = [one for one in once if wanted & one.fields.keys()]
        best = max((rank[one.domain] for one in useful), default=None)
        chosen = next((one for one in useful if rank[one.domain] == best), None)
        fields = {} if chosen is None else {name: one for name, one in chosen.fields.items() if name in wanted}
        return fields, set(), bool(wanted) and not any(rank[one.domain] >= top for one in useful)
    number = 1 if mode == "compose" else int(mode[2:])
    fields, contradicted, waits = {}, set(), False
    for name in wanted:
        said = [(rank[one.domain], one.fields[name]) for one in once if name in one.fields]
        waits |= sum(of >= top for of, _ in said) < number
        count = [found for of, found in said if of == max(other for other, _ in said)]
        if len(count) < number:
            continue
        newest = [found for found in count if all(found.changed >= other.changed for other in count)]
        if all(found.value == newest[0].value for found in newest):
            fields[name] = newest[0]
        else:
            contradicted.add(name)
    return fields, contradicted, waits


VALUES = st.builds(value, st.sampled_from(["1", "1.0", "true"]), st.integers(0, 2))
ANSWERS = st.builds(
    InformationAnswer,
    st.sampled_from(["bank", "tax", "shop"]),
    st.sampled_from("abc"),
    st.dictionaries(st.sampled_from(["w", "x", "y"]), VALUES),
)


@given(
    st.sampled_from(["first", "compose", "n:2", "n:3"]),
    st.sets(st.sampled_from(["w", "x"])),
    st.lists(ANSWERS, max_size=8),
    st.dictionaries(st.sampled_from(["bank", "tax"]), st.integers(-1, 2)),
)
def test_as_the_table_says(
    mode: str, wanted: set[str], answers: list[InformationAnswer], priorities: dict[str, int]
) -> None:
    collection = InformationCollection(InformationMode.parse(mode), frozenset(wanted), priorities)
    for one in answers:
        collection.take(one, NOW)
    result = collection.result()
    fields, contradicted, waits = naive(mode, wanted, answers, priorities)
    assert (result.fields, result.contradicted, not collection.complete) == (fields, contradicted, waits)
    assert result.null == wanted - fields.keys()
