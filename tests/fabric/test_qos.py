"""The eleven policies: which values they have, what agrees with what, and what the reference says each adapter does."""

import asyncio
import random
import re
from dataclasses import fields, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import MalformedError, RefusedError
from penstock.fabric import (
    FOREVER,
    KEEP_ALL,
    Durability,
    EmbeddedFabric,
    Fabric,
    Order,
    Ownership,
    Priority,
    Qos,
    Reliability,
    Sample,
    agree,
)
from penstock.fabric.envelope import decode, encode
from penstock.fabric.kafka import KafkaFabric
from penstock.fabric.limits import FABRIC_HISTORY, FabricLimits
from penstock.fabric.nats import NatsFabric
from penstock.fabric.port import LEASE, ClaimsSeen, SampleReader, TopicOwnership, contend
from penstock.fabric.qos import CODES, check_offer
from penstock.testing.fabric_suite import ManualClock

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "fabric.md"
RELIABLE = Qos(reliability=Reliability.RELIABLE)
SECOND = 1_000_000


@st.composite
def policies(draw: st.DrawFn) -> Qos:
    reliability = draw(st.sampled_from(Reliability))
    deadline = draw(st.sampled_from([1.0, 2.0, FOREVER]))
    least = 0 if reliability is Reliability.RELIABLE else 1
    return Qos(
        durability=draw(st.sampled_from(Durability)),
        history=draw(st.integers(least, 3)),
        ownership=draw(st.sampled_from(Ownership)),
        source_order=draw(st.sampled_from(Order)),
        reliability=reliability,
        time_filter=draw(st.sampled_from([0.0, 0.5, 1.0])),
        deadline=deadline,
        lifespan=draw(st.sampled_from([1.0, 2.0, FOREVER])),
        latency_budget=draw(st.sampled_from([0.0, 1.0, FOREVER])),
        priority=draw(st.sampled_from(Priority)),
        lease=draw(st.sampled_from([1.0, 2.0, FOREVER])),
    )


def test_there_are_eleven_policies_and_each_has_a_code() -> None:
    assert [field.name for field in fields(Qos)] == list(CODES)
    assert len(set(CODES.values())) == 11


@given(policies())
def test_policies_survive_being_written_down(qos: Qos) -> None:
    assert Qos.from_dict(qos.as_dict()) == qos
    assert agree(qos, qos) == qos


@given(policies(), policies(), policies())
def test_agreement_is_monotone(offered: Qos, requested: Qos, third: Qos) -> None:
    """What agrees with a request that agrees with an offer agrees with the offer: nothing is gained in between."""
    try:
        between = agree(offered, requested)
        end = agree(between, third)
    except RefusedError:
        return
    assert replace(agree(offered, third), lifespan=end.lifespan) == end


@pytest.mark.parametrize(
    ("policy", "offered", "requested", "possible"),
    [
        ("durability", Qos(), Qos(durability=Durability.TRANSIENT), "volatile"),
        ("durability", Qos(durability=Durability.TRANSIENT), Qos(durability=Durability.PERSISTENT), "transient"),
        ("history", Qos(history=2), Qos(history=3), "2"),
        ("history", replace(RELIABLE, history=2), replace(RELIABLE, history=KEEP_ALL), "2"),
        ("ownership", Qos(), Qos(ownership=Ownership.EXCLUSIVE), "shared"),
        ("ownership", Qos(ownership=Ownership.EXCLUSIVE), Qos(), "exclusive"),
        ("source_order", Qos(), Qos(source_order=Order.BY_SOURCE), "by-arrival"),
        ("reliability", Qos(), RELIABLE, "best-effort"),
        ("deadline", Qos(deadline=2.0), Qos(deadline=1.0), "2.0"),
        ("latency_budget", Qos(latency_budget=2.0), Qos(latency_budget=1.0), "2.0"),
        ("lease", Qos(lease=2.0), Qos(lease=1.0), "2.0"),
    ],
)
def test_a_refusal_names_the_policy_and_what_is_possible(
    policy: str, offered: Qos, requested: Qos, possible: str
) -> None:
    with pytest.raises(RefusedError) as refused:
        agree(offered, requested)
    assert refused.value.code == CODES[policy]
    assert refused.value.fields["policy"] == policy
    assert possible in refused.value.hint
    assert agree(replace(offered, lifespan=1.0), replace(offered, lifespan=2.0)).lifespan == 1.0


def test_a_topic_does_not_filter_by_time() -> None:
    with pytest.raises(RefusedError) as refused:
        check_offer(Qos(time_filter=1.0))
    assert refused.value.code == CODES["time_filter"]


@pytest.mark.parametrize(
    "values",
    [
        {"history": -1},
        {"history": True},
        {"history": FABRIC_HISTORY + 1},
        {"history": KEEP_ALL},  # needs reliable
        {"durability": "volatile"},
        {"deadline": 0},
        {"lifespan": 0.0},
        {"lifespan": -1.0},
        {"latency_budget": float("nan")},
        {"time_filter": FOREVER},
        {"time_filter": 2.0, "deadline": 1.0},
        {"priority": 3},
    ],
)
def test_values_that_a_policy_cannot_have_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(MalformedError) as refused:
        Qos(**values)  # type: ignore[arg-type]  # wrong on purpose
    assert refused.value.code == "fabric.qos.value"


@pytest.mark.parametrize("change", [{"priority": "highest"}, {"more": 1}, {"history": "1"}, {"deadline": "1"}])
def test_what_a_server_says_about_a_topic_is_checked(change: dict[str, object]) -> None:
    with pytest.raises(MalformedError) as refused:
        Qos.from_dict(Qos().as_dict() | change)
    assert refused.value.code == "fabric.qos.value"


def test_the_reference_says_what_the_adapters_do() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \| (.+) \| (.+) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    said = {policy: texts for policy, *texts in rows}
    dds = import_module("penstock.fabric.dds").DdsFabric if find_spec("cyclonedds") else None
    adapters: list[type[Fabric] | None] = [EmbeddedFabric, NatsFabric, dds, KafkaFabric]
    assert said.keys() == CODES.keys()
    for policy, texts in said.items():
        assert len(texts) == len(adapters)
        for text, adapter in zip(texts, adapters, strict=True):
            assert adapter is None or text == adapter.MAPPING[policy]


@given(
    data=st.binary(max_size=50),
    key=st.text(max_size=10),
    headers=st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=5), max_size=3),
    time=st.integers(-(2**63), 2**63 - 1),
    instance=st.text(max_size=3),
)
def test_samples_survive_their_bytes(data: bytes, key: str, headers: dict[str, str], time: int, instance: str) -> None:
    sample = Sample(data, key, headers, time, b"12345678", 2**64 - 1, 2**32 - 1, instance)
    assert decode(encode(sample)) == sample


@given(st.binary(max_size=80))
def test_bytes_are_a_sample_or_refused(octets: bytes) -> None:
    try:
        sample = decode(octets)
    except MalformedError:
        return
    assert encode(sample) == octets


def test_cut_bytes_are_refused_until_the_data_begins() -> None:
    for instance in ("", "i"):
        whole = encode(Sample(b"", "key", {"a": "b"}, instance=instance))
        for end in range(len(whole)):
            with pytest.raises(MalformedError):
                decode(whole[:end])


def test_a_reader_with_many_keys_is_bounded() -> None:
    qos = Qos(history=1, deadline=5.0, source_order=Order.BY_SOURCE, time_filter=1.0)
    limits = FabricLimits(fabric_keys=10, fabric_pending=20)
    reader = SampleReader(qos, limits)
    chance = random.Random(1)  # noqa: S311  # an example
    for number in range(2_000):
        key = str(chance.randrange(200))
        reader.receive(Sample(b"", key, {}, number), number / SECOND, number / SECOND)
    memories = (reader._newest, reader._seen, reader._opened, reader._held)
    assert max(len(memory) for memory in memories) <= 10
    assert len(reader) <= 20
    assert reader.counts.missed > 0


def test_a_flood_of_writers_is_bounded_and_does_not_drive_out_those_that_are_known() -> None:
    reader = SampleReader(Qos(lease=5.0), FabricLimits(fabric_keys=10), watching=True)
    reader.heard(b"known", 0.0)
    for number in range(1_000):
        reader.heard(str(number).encode(), 0.0)
        reader.lost(str(number - 3).encode())
    assert len(reader._writers) <= 10
    assert len(reader._changed) <= 30
    changed = reader.changed_writers(1.0)
    assert changed[0] == (b"known", True)
    assert (b"known", False) not in changed
    assert (b"known", False) in reader.changed_writers(6.0)


def test_a_writer_is_gone_after_its_last_sample_was_taken() -> None:
    reader = SampleReader(Qos(lease=5.0), watching=True)
    reader.receive(Sample(b"1", writer=b"a"), 0.0, 0.0)
    reader.receive(Sample(b"2", writer=b"b"), 0.0, 0.0)
    reader.lost(b"a")
    assert reader.changed_writers(0.0) == [(b"a", True)]
    assert reader.take(0.0, 0.0) is not None
    assert reader.changed_writers(0.0) == [(b"b", True)]
    assert reader.take(0.0, 0.0) is not None
    assert reader.changed_writers(0.0) == [(b"a", False)]
    assert reader.due() == 5.0
    assert reader.changed_writers(5.0) == [(b"b", False)]
    assert reader.due() is None


def test_a_reader_that_did_not_run_hears_first_what_waits_for_it() -> None:
    reader = SampleReader(Qos(lease=6.0), watching=True)
    for number, writer in enumerate((b"a", b"b", b"c")):
        reader.heard(writer, float(number))
    assert len(reader.changed_writers(2.0)) == 3
    # It looks much later than at 6: all get as long as until their next word.
    assert reader.changed_writers(60.0) == []
    assert reader.due() == 62.0
    reader.heard(b"b", 60.1)
    assert reader.changed_writers(62.0) == [(b"a", False), (b"c", False)]
    assert reader.changed_writers(66.1) == [(b"b", False)]


def test_a_claim_is_taken_over_by_strength_or_after_its_lease() -> None:
    first = contend(None, b"a", 1, 0.0)
    assert contend(first, b"a", 1, 5.0).epoch == first.epoch
    with pytest.raises(RefusedError):
        contend(first, b"b", 1, LEASE - 1)
    assert contend(first, b"b", 2, 1.0).epoch == 2
    assert contend(first, b"b", 0, LEASE + 1).epoch == 2
    assert contend(None, b"b", 0, 0.0, epoch=7).epoch == 8
    assert contend(contend(None, b"a", 1, 0.0, lease=2.0), b"b", 1, 3.0).epoch == 2


def test_a_claim_of_a_clock_that_is_ahead_lasts_while_it_is_renewed() -> None:
    async def test() -> None:
        clock = ManualClock()
        seen, begun = ClaimsSeen(clock), clock.now()

        def takes(claim: TopicOwnership) -> bool:
            try:
                contend(claim, b"b", 1, clock.now(), unchanged=seen.unchanged("conf", claim))
            except RefusedError:
                return False
            return True

        ahead = contend(None, b"a", 1, begun + 3_600)
        assert not takes(ahead)
        await clock.advance(LEASE - 1)
        assert not takes(ahead)
        renewed = contend(ahead, b"a", 1, clock.now() + 3_600)
        await clock.advance(2)
        assert not takes(renewed)
        await clock.advance(LEASE)
        assert takes(renewed)
        assert seen.unchanged("conf", None) == seen.unchanged("conf", renewed) == 0
        # A claim of its own that is longer than a lease is from when its clock was ahead, and is renewed.
        times = [renewed.until - left for left in (LEASE + 1, LEASE - 1, 1)]
        assert [renewed.is_fresh(now, now + LEASE) for now in times] == [False, True, False]

    asyncio.run(test())


def test_a_former_owner_is_not_heard() -> None:
    reader = SampleReader(Qos(ownership=Ownership.EXCLUSIVE))
    for epoch in (1, 2, 1, 2):
        reader.receive(Sample(b"", epoch=epoch), 0.0, 0.0)
    assert [sample.epoch for sample in iter(lambda: reader.take(0.0, 0.0), None)] == [1, 2, 2]
    assert reader.counts.usurped == 1
