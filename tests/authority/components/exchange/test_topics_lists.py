"""Topics-lists: Table 1 and Figure 4 of paper 4, and what no list can have."""

from typing import Final

import pytest

from penstock.authority.components.exchange.topics import CONCEPTUAL_ROLES, ComponentKind, TopicInstance, TopicKind
from penstock.authority.components.exchange.topics_lists import TopicsList, parse_role, role_text
from penstock.errors import MalformedError, RefusedError

# As the paper prints it: component type, and the sequence of needed roles.
TABLE_1: Final = """
PEP ER(1) ER(2) ER(3) ER(4)
PDP DR(1) DR(2)
PIP IR(1) IR(2)
PLP LR(1) LR(2) LR(3)
"""


def test_table_1() -> None:
    for line in filter(None, TABLE_1.split("\n")):
        kind, *roles = line.split()
        for number, role in enumerate(roles, 1):
            assert role == role_text(CONCEPTUAL_ROLES[ComponentKind(kind)], [number])
            assert parse_role(role) == (CONCEPTUAL_ROLES[ComponentKind(kind)], (number,))
    # Ours.
    assert (CONCEPTUAL_ROLES[ComponentKind.PAP], CONCEPTUAL_ROLES[ComponentKind.PSP]) == ("AR", "SR")


FIGURE_4: Final = TopicsList.of(["APEP_1", "QPEP_1", "DREQ_1"], ["RPEP_1", "DREP_1"])


def test_figure_4() -> None:
    FIGURE_4.verify_for(ComponentKind.PEP)
    assert sorted(map(str, FIGURE_4.write)) == ["APEP_1", "DREQ_1", "QPEP_1"]
    assert sorted(map(str, FIGURE_4.read)) == ["DREP_1", "RPEP_1"]
    assert FIGURE_4.writing(TopicKind.DREQ) == (TopicInstance(TopicKind.DREQ),)
    assert FIGURE_4.reading(TopicKind.DREQ) == ()
    assert TopicsList.from_sexp(FIGURE_4.to_sexp()) == FIGURE_4
    for kind in set(ComponentKind) - {ComponentKind.PEP}:
        with pytest.raises(RefusedError, match=r"component\.topics-list"):
            FIGURE_4.verify_for(kind)


@pytest.mark.parametrize(
    ("write", "read"),
    [
        (["JOIN_1"], []),
        ([], ["CONF_1"]),
        (["DREP_1"], []),
        ([], ["DREQ_1"]),
        (["RPEP_1"], []),
        ([], ["RPEP_2"]),
        (["APEP_2"], []),
    ],
)
def test_a_topic_too_many_is_refused(write: list[str], read: list[str]) -> None:
    more = TopicsList.of([*map(str, FIGURE_4.write), *write], [*map(str, FIGURE_4.read), *read])
    with pytest.raises(RefusedError, match=r"component\.topics-list"):
        more.verify_for(ComponentKind.PEP)


def test_a_component_without_its_reconfiguration_topics_is_refused() -> None:
    for write, read in ((["DREQ_1"], ["RPEP_1"]), (["APEP_1"], ["DREP_1"])):
        with pytest.raises(RefusedError, match=r"component\.topics-list"):
            TopicsList.of(write, read).verify_for(ComponentKind.PEP)
    TopicsList.of(["SPOL_1"], ["APOL_1"]).verify_for(ComponentKind.PSP)


def test_a_list_that_is_too_long_is_refused() -> None:
    with pytest.raises(MalformedError):
        TopicsList.from_sexp(TopicsList.of([f"DREQ_{n}" for n in range(1, 1002)], []).to_sexp())


@pytest.mark.parametrize("role", ["", "(1)", "ER(", "ER(1", "ER(x)", "ER(1)x", "É(1)", "ER('a)"])
def test_what_is_not_a_role_is_refused(role: str) -> None:
    with pytest.raises(MalformedError, match=r"component\.role"):
        parse_role(role)
