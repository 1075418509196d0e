"""What the rules of a table may speak about."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from penstock.codec.yaml_text import Written
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.profiles import ProfileSchema
from penstock.model.tree import Scope, TypeTree
from penstock.model.values import AttributeSpec
from penstock.moderator.conflicts import Mode
from penstock.moderator.rule_file import RuleFile, read_rule_file
from penstock.moderator.rule_writing import write_rule_file
from penstock.moderator.vocabulary import Vocabulary

ANYWHERE: Final = TypeKey(Principal(bytes(32)), "Type")
"""Where any two functions are compared: on which event types rules stand is said by tables."""


@dataclass(frozen=True)
class Terms:
    """What rules may speak about, but for the event types: how they are compared, and the attributes of profiles."""

    scope: Scope
    publishers: Mapping[str, AttributeSpec]
    subscribers: Mapping[str, AttributeSpec]
    mode: Mode = Mode.SCOPED

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The same for one event type, on which any two functions can be compared."""
        tree = TypeTree.of({ANYWHERE: None}, self.scope)
        return Vocabulary(tree, ProfileSchema(self.publishers), ProfileSchema(self.subscribers))

    def __reduce__(self) -> tuple[object, ...]:
        # For tasks: what is made of it is made there.
        return Terms, (self.scope, dict(self.publishers), dict(self.subscribers), self.mode)

    def as_dict(self) -> dict[str, Written]:
        """Return the terms as plain data: a rule base without rules."""
        return write_rule_file(RuleFile(self.vocabulary, self.mode))

    @classmethod
    def from_dict(cls, data: object) -> "Terms":
        """Read terms from plain data. Raises as `read_rule_file`."""
        read = read_rule_file(data)
        words = read.vocabulary
        return cls(words.tree.scope, words.publishers.attributes, words.subscribers.attributes, read.mode)
