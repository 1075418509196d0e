"""The tree of types and the two scopes of paper 1, section II, on that paper's own scenarios."""

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from penstock.errors import LimitError, MalformedError
from penstock.model.limits import TYPE_DEPTH
from penstock.model.names import TypeKey, TypeName
from penstock.model.principals import Principal
from penstock.model.tree import TreeScope, TypeTree
from penstock.model.types import EventType, TypeDefinition

OWNER = Principal(b"\1" * 32)
OTHER = Principal(b"\2" * 32)


def key(name: str, owner: Principal = OWNER) -> TypeKey:
    return TypeKey(owner, name)


def tree_of(parents: Mapping[str, str | None], scope: TreeScope = TreeScope.DOWNWARD) -> TypeTree:
    return TypeTree.of({key(child): key(parent) if parent else None for child, parent in parents.items()}, scope)


# Scenario A: a television broadcaster. Scenario B (figure 2): a workflow of sub-workflows A10 to A18.
CHANNELS = {
    "channels": None,
    "sports": "channels",
    "movies": "channels",
    "soccer": "sports",
    "national_league": "soccer",
    "champions_league": "soccer",
}
WORKFLOW: dict[str, str | None] = {"ActivityX": None, "A1": "ActivityX", "A2": "ActivityX", "A3": "ActivityX"}
WORKFLOW |= {f"A{leaf}": f"A{1 + (leaf - 10) // 3}" for leaf in range(10, 19)}


@st.composite
def trees(draw: st.DrawFn) -> TypeTree:
    """Return a forest: the parent of each node, if any, comes before it."""
    parents: dict[TypeKey, TypeKey | None] = {}
    for number in range(draw(st.integers(1, 15))):
        parents[key(f"T{number}")] = draw(st.sampled_from([None, *parents]))
    names = draw(st.permutations(sorted(parents)))
    return TypeTree.of({name: parents[name] for name in names}, draw(st.sampled_from(TreeScope)))


def test_downward_reaches_all_sub_categories() -> None:
    tree = tree_of(CHANNELS, TreeScope.DOWNWARD)
    reached = {k.name for k in tree.parents if tree.reaches(key("soccer"), k)}
    assert reached == {"soccer", "national_league", "champions_league"}
    assert {k.name for k in tree.parents if tree.reaches(key("national_league"), k)} == {"national_league"}
    assert all(tree.reaches(key("channels"), k) for k in tree.parents)


def test_upward_reaches_all_ancestors() -> None:
    tree = tree_of(WORKFLOW, TreeScope.UPWARD)
    assert {k.name for k in tree.parents if tree.reaches(key("A18"), k)} == {"A18", "A3", "ActivityX"}
    assert {k.name for k in tree.parents if tree.reaches(key("ActivityX"), k)} == {"ActivityX"}
    assert not tree.reaches(key("A18"), key("A17"))
    assert not tree.reaches(key("A3"), key("A18"))


def test_relations_of_figure_2() -> None:
    tree = tree_of(WORKFLOW)
    assert [k.name for k in tree.ancestors(key("A12"))] == ["A1", "ActivityX"]
    assert [k.name for k in tree.subtree(key("A1"))] == ["A1", "A10", "A11", "A12"]
    assert [k.name for k in tree.children[key("ActivityX")]] == ["A1", "A2", "A3"]
    assert next(tree.subtree(key("ActivityX"))) == key("ActivityX")
    assert len(list(tree.subtree(key("ActivityX")))) == 13
    assert tree.related(key("A12"), key("ActivityX"))
    assert tree.related(key("ActivityX"), key("A12"))
    assert tree.related(key("A12"), key("A12")), "section II: e1 = e2 is both sub- and super-event"
    assert not tree.related(key("A12"), key("A2"))
    assert not tree.related(key("A10"), key("A11"))


def test_types_outside_the_tree_stand_alone() -> None:
    tree = tree_of(WORKFLOW)
    stranger = key("ActivityX", OTHER)
    assert key("A1") in tree
    assert stranger not in tree
    assert list(tree.ancestors(stranger)) == []
    assert list(tree.subtree(stranger)) == [stranger]
    assert tree.reaches(stranger, stranger)
    assert not tree.related(stranger, key("ActivityX")), "a name under another owner is another type"
    assert not tree.reaches(key("ActivityX"), stranger)


def test_the_tree_is_not_the_dots_in_the_names() -> None:
    tree = TypeTree.of({key("News"): None, key("News.Sport"): None})
    assert not tree.related(key("News"), key("News.Sport"))


def test_the_empty_tree() -> None:
    assert list(TypeTree.of({}).parents) == []


@given(trees())
@settings(deadline=None, max_examples=examples(200))
def test_laws_of_the_two_scopes(tree: TypeTree) -> None:
    other_way = TypeTree.of(tree.parents, TreeScope.UPWARD if tree.scope is TreeScope.DOWNWARD else TreeScope.DOWNWARD)
    for one in tree.parents:
        below = list(tree.subtree(one))
        assert len(set(below)) == len(below)
        assert all(below.index(k) > below.index(p) for k in below if k != one and (p := tree.parents[k]) is not None)
        for other in tree.parents:
            assert tree.is_sub(other, one) == (other in below) == (other == one or one in list(tree.ancestors(other)))
            assert tree.reaches(one, other) == other_way.reaches(other, one)
            assert tree.related(one, other) == (tree.reaches(one, other) or other_way.reaches(one, other))
            if tree.reaches(one, other):
                assert all(tree.reaches(one, third) for third in tree.parents if tree.reaches(other, third))
                assert one == other or not tree.reaches(other, one)


@pytest.mark.parametrize(
    "parents",
    [
        {"a": "a"},
        {"a": "b", "b": "a"},
        {"root": None, "a": "c", "b": "a", "c": "b"},
        {"root": None, "leaf": "root", "a": "b", "b": "a", "under": "a"},
    ],
)
def test_cycles(parents: dict[str, str | None]) -> None:
    with pytest.raises(MalformedError) as error:
        tree_of(parents)
    assert error.value.code == "type.cycle"
    assert "is below itself" in error.value.message


def test_a_parent_must_be_in_the_tree() -> None:
    with pytest.raises(MalformedError) as error:
        tree_of({"a": "missing"})
    assert error.value.code == "tree.parent"
    assert error.value.fields == {"parent": key("missing")}


def test_depth_is_bounded() -> None:
    depth = TYPE_DEPTH
    chain = {f"T{level}": f"T{level - 1}" if level else None for level in range(depth + 1)}
    assert len(list(tree_of(chain).ancestors(key(f"T{depth}")))) == depth
    with pytest.raises(LimitError) as error:
        tree_of({**chain, "deeper": f"T{depth}"})
    assert error.value.code == "type.limit"
    with pytest.raises(LimitError) as error:
        tree_of({f"T{level}": f"T{level - 1}" if level else None for level in range(10_000)})
    assert error.value.code == "type.limit"


def test_a_tree_is_frozen() -> None:
    given_parents: dict[TypeKey, TypeKey | None] = {key("a"): None}
    tree = TypeTree(given_parents)
    given_parents[key("b")] = key("b")
    assert key("b") not in tree
    with pytest.raises(TypeError):
        tree.parents[key("b")] = None  # type: ignore[index]  # the mistake under test
    with pytest.raises(TypeError):
        tree.children[key("b")] = ()  # type: ignore[index]  # the mistake under test


def event_type(name: str, parent: EventType | None = None, version: str = "0") -> EventType:
    definition = TypeDefinition(TypeName(OWNER, name, version), (), parent.name if parent else None)
    return EventType.of(definition, parent)


def test_the_tree_of_resolved_types() -> None:
    root = event_type("root")
    middle = event_type("middle", root)
    leaf = event_type("leaf", middle)
    other = event_type("other", root)
    tree = TypeTree.of_types([leaf, other], TreeScope.UPWARD)
    assert tree == TypeTree.of_types([other, middle, root, leaf, leaf], TreeScope.UPWARD)
    assert tree.scope is TreeScope.UPWARD
    assert tree.parents == {root.key: None, middle.key: root.key, leaf.key: middle.key, other.key: root.key}


def test_versions_of_a_type_have_one_parent() -> None:
    one, two = event_type("one"), event_type("two")
    leaf = event_type("leaf", one)
    newer_parent = event_type("leaf", event_type("one", version="1"), version="1")
    assert TypeTree.of_types([leaf, newer_parent]).parents == {one.key: None, leaf.key: one.key}
    for different in (event_type("leaf", two, version="1"), event_type("leaf", version="1")):
        for order in ([leaf, different], [different, leaf]):
            with pytest.raises(MalformedError) as error:
                TypeTree.of_types(order)
            assert error.value.code == "tree.parent"


def test_versions_that_form_a_cycle_together() -> None:
    # Each line of ancestors is sound, the two together are not.
    one = event_type("b", event_type("a"))
    two = event_type("a", event_type("b", version="1"), version="1")
    with pytest.raises(MalformedError) as error:
        TypeTree.of_types([one, two])
    assert error.value.code == "tree.parent"
