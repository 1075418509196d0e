"""Changes of the tree: rules go, stay and follow."""

import pytest
from tests.moderator.kit import P2, event, rule
from tests.moderator.life import add, ask, base_of, in_force

from penstock.errors import PenstockError
from penstock.moderator.rules.steps import AddType, MoveType, RemoveType, RenameType, Request, Undo


def test_a_type_goes_with_its_rules_and_those_below_hang_on_its_parent() -> None:
    base = base_of()
    add(base, rule("a", "A1", "role = 'engineer'"), rule("k", "A10", "role = 'engineer'"))
    before = base.image()
    ask(base, RemoveType(event("A1")))
    assert in_force(base) == {"k": "{(role, engineer)}"}
    assert base.tree.parents[event("A10")] == event("ActivityX")
    ask(base, Undo(3))
    assert base.image() == before


def test_rules_in_force_and_in_the_log_follow_a_new_name() -> None:
    base = base_of()
    add(base, rule("a", "A1", "role = 'engineer'"), rule("b", "A1", "role = 'worker'", of=[P2]))
    ask(base, RenameType(event("A1"), event("B1")))
    assert [each.event for each in base.detector.rules.values()] == [event("B1")]
    assert [entry.event for entry in base.history] == [event("B1")]
    assert base.tree.parents[event("A10")] == event("B1")


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (AddType(event("A1")), "moderator.known-type"),
        (AddType(event("B"), event("Nowhere")), "moderator.unknown-type"),
        (MoveType(event("Nowhere")), "moderator.unknown-type"),
        (MoveType(event("A1"), event("Nowhere")), "moderator.unknown-type"),
        (MoveType(event("A1"), event("A10")), "type.cycle"),
        (RenameType(event("A1"), event("A2")), "moderator.known-type"),
        (RenameType(event("Nowhere"), event("B")), "moderator.unknown-type"),
        (RemoveType(event("Nowhere")), "moderator.unknown-type"),
    ],
)
def test_what_is_refused(request_: Request, code: str) -> None:
    base = base_of()
    before = base.image()
    with pytest.raises(PenstockError) as raised:
        ask(base, request_)
    assert raised.value.code == code
    assert base.image() == before
