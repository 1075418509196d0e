"""The tree of event types, and to which types a right on one of them extends (paper 1, section II).

The scope is chosen per tree. Downward: who may publish or receive `e` may do so for all descendants of `e`.
Upward: for all its ancestors.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from penstock.errors import LimitError, MalformedError
from penstock.model.limits import TYPE_DEPTH
from penstock.model.names import TypeKey
from penstock.model.types import EventType


class TreeScope(StrEnum):
    """The direction in which a right on a type extends."""

    DOWNWARD = "downward"
    UPWARD = "upward"


@dataclass(frozen=True, slots=True)
class TypeTree:
    """Types by parent. A root has no parent; several roots make a forest with one scope.

    >>> from penstock.model.principals import Principal
    >>> news, sport = TypeKey(Principal(bytes(32)), "News"), TypeKey(Principal(bytes(32)), "News.Sport")
    >>> tree = TypeTree.of({news: None, sport: news})
    >>> tree.is_sub(sport, news), tree.reaches(news, sport), tree.reaches(sport, news)
    (True, True, False)
    """

    parents: Mapping[TypeKey, TypeKey | None]
    scope: TreeScope = TreeScope.DOWNWARD
    children: Mapping[TypeKey, tuple[TypeKey, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parents", MappingProxyType(dict(self.parents)))
        children: dict[TypeKey, list[TypeKey]] = {key: [] for key in self.parents}
        for key, parent in self.parents.items():
            if parent is None:
                continue
            if parent not in children:
                raise MalformedError("tree.parent", f"the parent of `{key.name}` is not in the tree", parent=parent)
            children[parent].append(key)
        ordered = MappingProxyType({key: tuple(sorted(kids)) for key, kids in children.items()})
        object.__setattr__(self, "children", ordered)
        self._check_depth()

    def _check_depth(self) -> None:
        # Walking down from the roots visits every node unless some lie on a cycle.
        level = [key for key, parent in self.parents.items() if parent is None]
        seen = 0
        for _ in range(TYPE_DEPTH + 1):
            seen += len(level)
            level = [child for key in level for child in self.children[key]]
        if level:
            raise LimitError("type.limit", f"a type tree is deeper than {TYPE_DEPTH}")
        if seen != len(self.parents):
            raise MalformedError(
                "type.cycle",
                f"the type tree has a cycle: `{self._on_a_cycle().name}` is below itself",
                hint="give one type of the cycle another parent, or none",
            )

    def _on_a_cycle(self) -> TypeKey:
        """Return a type that is below itself, of a tree that has one."""
        left = dict(self.parents)
        leaves = [key for key in left if not self.children[key]]
        hanging = {key: len(kids) for key, kids in self.children.items()}
        while leaves:
            parent = left.pop(leaves.pop())
            if parent is not None:
                hanging[parent] -= 1
                if not hanging[parent]:
                    leaves.append(parent)
        # Types below a cycle are removed too.
        return min(left)

    @classmethod
    def of(cls, parents: Mapping[TypeKey, TypeKey | None], scope: TreeScope = TreeScope.DOWNWARD) -> "TypeTree":
        """Build a tree from child-to-parent pairs.

        Raises `MalformedError` (`tree.parent`, `type.cycle`) and `LimitError` (`type.limit`).
        """
        return cls(parents, scope)

    @classmethod
    def of_types(cls, types: Iterable[EventType], scope: TreeScope = TreeScope.DOWNWARD) -> "TypeTree":
        """Build the tree that resolved event types span.

        Raises `MalformedError` (`tree.parent`) also when two versions of a type have different parents.
        """
        parents: dict[TypeKey, TypeKey | None] = {}
        for event_type in types:
            line = (event_type.key, *event_type.ancestors)
            for key, parent in zip(line, (*line[1:], None), strict=True):
                if parents.setdefault(key, parent) != parent:
                    raise MalformedError(
                        "tree.parent", f"two versions of `{key.name}` have different parents", type=key
                    )
        return cls(parents, scope)

    def __contains__(self, key: TypeKey) -> bool:
        return key in self.parents

    def ancestors(self, key: TypeKey) -> Iterator[TypeKey]:
        """Yield the ancestors from the parent to the root; nothing for a type outside the tree."""
        parent = self.parents.get(key)
        while parent is not None:
            yield parent
            parent = self.parents[parent]

    def subtree(self, key: TypeKey) -> Iterator[TypeKey]:
        """Yield the type and all its descendants, parents first."""
        pending = [key]
        while pending:
            current = pending.pop()
            yield current
            pending.extend(reversed(self.children.get(current, ())))

    def is_sub(self, key: TypeKey, other: TypeKey) -> bool:
        """Return whether `key` is `other` or one of its descendants."""
        return key == other or other in self.ancestors(key)

    def related(self, one: TypeKey, other: TypeKey) -> bool:
        """Return whether the two are equal or hierarchically related."""
        return self.is_sub(one, other) or self.is_sub(other, one)

    def reaches(self, granted: TypeKey, asked: TypeKey) -> bool:
        """Return whether a right on `granted` extends to `asked` under the tree's scope."""
        if self.scope is TreeScope.DOWNWARD:
            return self.is_sub(asked, granted)
        return self.is_sub(granted, asked)
