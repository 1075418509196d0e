"""Tables 2 and 3 of paper 4, cell by cell, and the keys of samples."""

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.authority.components.exchange.samples import CONTENTS
from penstock.authority.components.exchange.topics import (
    TOPICS,
    ComponentKind,
    TopicInstance,
    TopicKind,
    TopicLevels,
    applied_topic,
    check_component_name,
    component_key,
    qos_of,
    reconfiguration_topic,
    reply_sample_key,
    request_sample_key,
    topic_name,
)
from penstock.errors import MalformedError
from penstock.fabric import FOREVER, KEEP_ALL, Priority
from penstock.fabric.limits import FABRIC_LIMITS
from penstock.fabric.port import check_name

# As the paper prints it: topic type, content filter, publishers, subscribers, multiplicity.
TABLE_2: Final = """
JOIN  NO   PEP,PDP,PIP,PLP  PAP              Single
CONF  Yes  PAP              PEP,PDP,PIP,PLP  Single
RPEP  NO   PAP              PEP              Multiple
APEP  NO   PEP              PAP              Multiple
RPDP  NO   PAP              PDP              Multiple
APDP  NO   PDP              PAP              Multiple
RPIP  NO   PAP              PIP              Multiple
APIP  NO   PIP              PAP              Multiple
RPLP  NO   PAP              PLP              Multiple
APLP  NO   PLP              PAP              Multiple
QPEP  NO   PEP              PDP,PLP          Multiple
DREQ  Yes  PEP              PDP,PLP          Multiple
DREP  Yes  PDP              PEP,PLP          Multiple
QPDP  NO   PDP              PIP,PLP          Multiple
IREQ  Yes  PDP              PIP,PLP          Multiple
IREP  Yes  PIP              PDP,PLP          Multiple
SPOL  NO   PAP,PSP          PAP              Single
APOL  Yes  PAP              PAP,PSP          Single
"""
# The fields that the paper's text gives to the contents.
FIELDS: Final = {
    "JOIN": "CE DN ID RR AR",
    "CONF": "DN ID RC TL CA PR PO",
    **{f"R{kind}": "RE ET" for kind in ("PEP", "PDP", "PIP", "PLP")},
    **{f"A{kind}": "DN ID AT" for kind in ("PEP", "PDP", "PIP", "PLP")},
    **dict.fromkeys(("QPEP", "QPDP"), "DN ID RA"),
    **dict.fromkeys(("DREQ", "IREQ"), "DN ID RQ"),
    **dict.fromkeys(("DREP", "IREP"), "DN ID RP"),
    "SPOL": "DN ID PO",
    "APOL": "DN ID AT",
}
# As the paper prints it, a column for each group of types. SPOL is as JOIN and APOL as CONF: that is ours.
COLUMNS: Final = (
    ("JOIN", "SPOL"),
    ("CONF", "APOL"),
    ("QPEP", "QPDP"),
    ("DREQ", "DREP", "IREQ", "IREP"),
    ("RPDP", "RPEP", "RPIP", "RPLP"),
    ("APDP", "APEP", "APIP", "APLP"),
)
TABLE_3: Final = """
durability      persistent persistent persistent    volatile      persistent persistent
history         keep-all   keep-all   keep-last-one keep-last-one keep-all   keep-all
ownership       shared     exclusive  shared        shared        shared     shared
source_order    by-source  by-source  by-source     by-source     by-source  by-source
reliability     reliable   reliable   reliable      reliable      reliable   reliable
time_filter     zero       zero       zero          zero          zero       zero
deadline        infinite   infinite   infinite      infinite      infinite   infinite
lifespan        infinite   infinite   infinite      LS            infinite   infinite
latency_budget  LB3        LB3        LB2           LB2           LB1        LB2
priority        TP3        TP3        TP2           TP2           TP1        TP2
"""
LEVELS: Final = TopicLevels(lb1=0.25, lb2=0.5, lb3=0.75, lifespan=3.0)
VALUES: Final = {
    "keep-all": KEEP_ALL,
    "keep-last-one": 1,
    "zero": 0,
    "infinite": FOREVER,
    "LS": 3.0,
    "LB1": 0.25,
    "LB2": 0.5,
    "LB3": 0.75,
    "TP1": Priority.HIGH,
    "TP2": Priority.NORMAL,
    "TP3": Priority.LOW,
}


def test_table_2() -> None:
    rows = [line.split() for line in TABLE_2.split("\n") if line]
    assert [row[0] for row in rows] == [*TopicKind]
    for name, filtered, writers, readers, multiplicity in rows:
        found = TOPICS[TopicKind(name)]
        # Ours: a policy specification point joins as the others do.
        ours = {ComponentKind.PSP} if name in ("JOIN", "CONF") else set()
        added_writers, added_readers = (ours, set()) if name == "JOIN" else (set(), ours)
        assert found.filtered is (filtered == "Yes")
        assert found.writers == set(writers.split(",")) | added_writers
        assert found.readers == set(readers.split(",")) | added_readers
        assert found.multiple is (multiplicity == "Multiple")
        assert found.fields == tuple(FIELDS[name].split())


def test_table_3() -> None:
    seen = set()
    for line in filter(None, TABLE_3.split("\n")):
        policy, *cells = line.split()
        for column, cell in zip(COLUMNS, cells, strict=True):
            for name in column:
                found = getattr(qos_of(TopicKind(name), LEVELS), policy)
                plain = found if cell in VALUES else found.value
                assert plain == VALUES.get(cell, cell), f"{policy} of {name}"
                seen.add((policy, name))
    assert len(seen) == 10 * 18


@pytest.mark.parametrize(
    "wrong",
    [
        {"lb1": -0.1},
        {"lb2": 0.01},
        {"lb3": 0.5},
        {"lb3": FOREVER},
        {"tp1": Priority.NORMAL},
        {"tp3": Priority.NORMAL},
        {"tp1": Priority.LOW, "tp3": Priority.HIGH},
        {"lifespan": 0},
        {"lifespan": FOREVER},
        {"lease": 0},
    ],
)
def test_levels_that_break_equations_3_and_4_are_refused(wrong: dict[str, float | Priority]) -> None:
    with pytest.raises(MalformedError, match=r"component\.levels"):
        TopicLevels(**wrong)  # type: ignore[arg-type]  # that is the test


def test_every_type_has_contents() -> None:
    assert CONTENTS.keys() == {*TopicKind}


@given(st.sampled_from(TopicKind), st.integers(-1, 100_002))
def test_instances_are_written_and_read(kind: TopicKind, number: int) -> None:
    if not 1 <= number <= (100_000 if TOPICS[kind].multiple else 1):
        with pytest.raises(MalformedError):
            TopicInstance(kind, number)
        return
    instance = TopicInstance(kind, number)
    assert TopicInstance.parse(str(instance)) == instance


@pytest.mark.parametrize("text", ["", "DREQ", "DREQ_", "DREQ_0", "DREQ_01", "dreq_1", "XXXX_1", "DREQ_1 ", "JOIN_2"])
def test_what_is_not_an_instance_is_refused(text: str) -> None:
    with pytest.raises(MalformedError, match=r"component\.topic"):
        TopicInstance.parse(text)


def test_the_longest_names_fit_into_a_fabric() -> None:
    name = "n" * 32
    check_component_name(name)
    check_name(topic_name(name, TopicInstance(TopicKind.DREQ, 100_000)))
    assert len(reply_sample_key(name, name, 10**18, name)) <= FABRIC_LIMITS.fabric_key_bytes
    for wrong in ("", "n" * 33, "a/b", "a.b", "a b", "é"):
        with pytest.raises(MalformedError, match=r"component\.name"):
            check_component_name(wrong)


def test_keys_lead_from_a_component_to_its_requests_and_replies() -> None:
    mine, request = component_key("bank", "pep1"), request_sample_key("bank", "pep1", 7)
    assert request.startswith(mine + "/")
    assert reply_sample_key("bank", "pep1", 7, "pdp1").startswith(request + "/")


def test_the_topics_of_reconfigurations() -> None:
    for kind in ComponentKind:
        replanned, applied = reconfiguration_topic(kind), applied_topic(kind)
        if kind in (ComponentKind.PAP, ComponentKind.PSP):
            assert (replanned, applied) == (None, None)
        else:
            assert replanned is not None
            assert applied is not None
            assert TOPICS[replanned].readers == TOPICS[applied].writers == {kind}
