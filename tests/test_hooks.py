"""Constructors take their ports: no object puts one of its methods, or a function, into another one later."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "penstock"


def flat(node: ast.expr) -> list[ast.expr]:
    return [one for part in node.elts for one in flat(part)] if isinstance(node, ast.Tuple | ast.List) else [node]


def is_own(target: ast.Attribute) -> bool:
    return isinstance(target.value, ast.Name) and target.value.id in ("self", "cls")


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements within a node, without their expressions, which are most of a file."""
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        inner = getattr(node, name, None)
        for one in inner if isinstance(inner, list) else ():
            yield one
            yield from statements(one)


def hooks(source: str) -> Iterator[int]:
    """Yield the lines where a lambda or a method of the class is assigned to an attribute of another object."""
    for owner in statements(ast.parse(source)):
        if not isinstance(owner, ast.ClassDef):
            continue
        methods = {one.name for one in owner.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
        properties = {one.name for one in owner.body if isinstance(one, ast.FunctionDef) and one.decorator_list}
        for node in statements(owner):
            if isinstance(node, ast.Assign):
                foreign = [
                    one
                    for target in node.targets
                    for one in flat(target)
                    if isinstance(one, ast.Attribute) and not is_own(one)
                ]
                values = flat(node.value)
                called = any(
                    isinstance(one, ast.Lambda)
                    or (isinstance(one, ast.Attribute) and is_own(one) and one.attr in methods - properties)
                    for one in values
                )
                if foreign and called:
                    yield node.lineno


def test_nothing_is_put_into_other_objects_later() -> None:
    found = [f"{path.relative_to(SOURCE)}:{line}" for path in SOURCE.rglob("*.py") for line in hooks(path.read_text())]
    assert found == []


@pytest.mark.parametrize(
    ("statement", "counts"),
    [
        ("core.on_turn = self.tick", True),
        ("core.parts.on_turn, x = self.tick, 1", True),
        ("self.core.on_turn = lambda: None", True),
        ("try: pass\n  finally:\n   for one in core: one.on_turn = self.tick", True),
        ("match core:\n   case 1: core.on_turn = self.tick", True),
        ("self.on_turn = self.tick", False),
        ("core.turn = self.tick()", False),
        ("core.turn = self.due", False),
    ],
)
def test_what_counts_as_a_hook(statement: str, counts: bool) -> None:
    source = (
        f"class Part:\n def __init__(self, core):\n  {statement}\n def tick(self): ...\n @property\n def due(self): ..."
    )
    assert len(list(hooks(source))) == counts
