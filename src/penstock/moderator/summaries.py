"""What is known about many functions at once, so that those which surely fit a candidate are passed over together.

Below a candidate the scope of the tree demands one of two things of each function in force (`conflicts.demands`).
Either it implies the candidate's: then it is enough to know a box around all of theirs, and the parts that none of them
lacks. Or the candidate's implies it: then it is enough to know a box inside all of theirs, and the parts that any of
them has. Both are exact where functions are attribute lists: a box lies around, or inside, several boxes just if it
does so for each. Algorithm 1 compares entries in the same two ways. Definition 1 asks for equality, and there a summary
is the one text that all functions have, if they have.

A summary may say less than is known (`fits` is then False, and one looks more closely), never more.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from penstock.model.tree import Scope
from penstock.moderator.conflicts import Kind, Mode, demands
from penstock.moderator.forms import Box, Form, holds
from penstock.moderator.judge import Side
from penstock.moderator.lists import Entry
from penstock.selector import Selector

#: spans of one set of values, and parts or entries, that a summary keeps
_SPANS: Final = 16
_PARTS: Final = 64


class Summary(Protocol):
    """What is known about some functions."""

    def merged(self, other: Any) -> Any:  # a summary of the same class, which a protocol cannot say
        """Return the summary of both; the same object if nothing is new."""

    def fits(self, form: Form, side: Side) -> bool:
        """Say whether a candidate's function surely collides with none of them."""


Summarise: TypeAlias = Callable[[Form], Summary]


def summarise(scope: Scope, mode: Mode) -> Summarise:
    """Return how a function below a candidate is summed up."""
    if mode is Mode.LITERAL:
        return lambda form: OneText(form.selector.text)
    if demands(Kind.DOWN, scope, mode).rule_implies:
        if mode is Mode.ALGORITHM:
            return lambda form: CommonEntries(form.entries)
        return lambda form: Around(form.box, form.rest)
    if mode is Mode.ALGORITHM:
        return lambda form: AllEntries(form.entries)
    return lambda form: Inside(form.box, form.rest)


@dataclass(frozen=True, slots=True)
class Around:
    """A box around all functions, and the parts beside boxes that all of them have: do they imply the candidate's?"""

    box: Box
    rest: frozenset[Selector]

    def merged(self, other: "Around") -> "Around":
        """Return the summary of both; the same object if nothing is new."""
        rest = self.rest if self.rest <= other.rest else self.rest & other.rest
        box, same = dict(self.box), rest is self.rest
        for name, values in self.box.items():
            theirs = other.box.get(name)
            if theirs is not None and holds(values, theirs):
                continue
            same = False
            union = None if theirs is None else values | theirs
            if union is None or len(union.spans) > _SPANS:
                del box[name]
            else:
                box[name] = union
        return self if same else Around(box, rest)

    def fits(self, form: Form, side: Side) -> bool:
        """Say whether all functions surely imply the candidate's."""
        return side.within(self.box, form.box) and all(
            part in self.rest or any(side.implies(known, part) for known in self.rest) for part in form.rest
        )


@dataclass(frozen=True, slots=True)
class Inside:
    """A box inside all functions, and the parts beside boxes that any has: does the candidate's imply them?

    There is no box where they have nothing in common.
    """

    box: Box | None
    rest: frozenset[Selector]

    def merged(self, other: "Inside") -> "Inside":
        """Return the summary of both; the same object if nothing is new."""
        rest = self.rest if other.rest <= self.rest else self.rest | other.rest
        if self.box is None or other.box is None or len(rest) > _PARTS:
            return self if self.box is None else Inside(None, frozenset())
        box, same = dict(self.box), rest is self.rest
        for name, values in other.box.items():
            ours = self.box.get(name)
            if ours is not None and holds(values, ours):
                continue
            same = False
            common = values if ours is None else ours & values
            if common.empty or len(common.spans) > _SPANS:
                return Inside(None, frozenset())
            box[name] = common
        return self if same else Inside(box, rest)

    def fits(self, form: Form, side: Side) -> bool:
        """Say whether the candidate's function surely implies all others."""
        return (
            self.box is not None
            and side.within(form.box, self.box)
            and all(part in form.rest or side.implies(form.selector, part) for part in self.rest)
        )


@dataclass(frozen=True, slots=True)
class CommonEntries:
    """The entries that all lists have: do they contain the candidate's?"""

    entries: frozenset[Entry]

    def merged(self, other: "CommonEntries") -> "CommonEntries":
        """Return the summary of both; the same object if nothing is new."""
        return self if self.entries <= other.entries else CommonEntries(self.entries & other.entries)

    def fits(self, form: Form, side: Side) -> bool:  # noqa: ARG002  # lists have no boxes; the protocol
        """Say whether all lists contain the candidate's."""
        return form.entries <= self.entries


@dataclass(frozen=True, slots=True)
class AllEntries:
    """The entries that any list has, unless they are too many: does the candidate's contain them?"""

    entries: frozenset[Entry] | None

    def merged(self, other: "AllEntries") -> "AllEntries":
        """Return the summary of both; the same object if nothing is new."""
        if self.entries is None:
            return self
        if other.entries is None or len(union := self.entries | other.entries) > _PARTS:
            return AllEntries(None)
        return self if len(union) == len(self.entries) else AllEntries(union)

    def fits(self, form: Form, side: Side) -> bool:  # noqa: ARG002  # lists have no boxes; the protocol
        """Say whether the candidate's list contains all others."""
        return self.entries is not None and self.entries <= form.entries


@dataclass(frozen=True, slots=True)
class OneText:
    """The one text that all functions have; None where they are several."""

    text: str | None

    def merged(self, other: "OneText") -> "OneText":
        """Return the summary of both; the same object if nothing is new."""
        return self if self.text is None or self.text == other.text else OneText(None)

    def fits(self, form: Form, side: Side) -> bool:  # noqa: ARG002  # texts have no boxes; the protocol
        """Say whether all functions are the candidate's."""
        return form.selector.text == self.text
