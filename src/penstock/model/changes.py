"""Compute the changes between two versions of a type, as the four management operations (paper 5, section 4.3).

A verifier compares the two versions itself; what a manager says it did is not asked.
"""

from dataclasses import dataclass
from enum import StrEnum

from penstock.errors import MalformedError
from penstock.model.types import TypeDefinition


class Operation(StrEnum):
    """A management operation."""

    ADD = "add"
    REMOVE = "remove"
    RENAME = "rename"
    RETYPE = "retype"


@dataclass(frozen=True, slots=True, order=True)
class AttributeChange:
    """One operation on one attribute; `name` is the attribute's name before, or the new one for an addition."""

    operation: Operation
    name: str
    uid: str
    new_name: str | None = None


def changes(previous: TypeDefinition, current: TypeDefinition) -> tuple[AttributeChange, ...]:
    """Return the operations that lead from `previous` to `current`.

    An attribute removed and another added under the same name is one RETYPE. Raises `MalformedError`:
    `type.not-successor` when the two are not versions of one type or `current` names another predecessor,
    `type.uid-reused` when a UID changed its kind or domain, `type.extends-changed` when the parent differs.
    """
    if previous.name.key != current.name.key or current.previous != previous.name.version:
        raise MalformedError(
            "type.not-successor",
            f"`{current.name}` was not made from `{previous.name}`",
            hint="give the version that the definition names as its predecessor",
        )
    if previous.extends != current.extends:
        raise MalformedError(
            "type.extends-changed",
            f"`{current.name.name}` has another parent",
            hint="define a new type instead",
        )
    before = {attribute.uid: attribute for attribute in previous.attributes}
    after = {attribute.uid: attribute for attribute in current.attributes}
    found: list[AttributeChange] = []
    for uid in before.keys() & after.keys():
        old, new = before[uid], after[uid]
        if old.spec != new.spec:
            raise MalformedError(
                "type.uid-reused",
                f"attribute `{old.name}` changed its type under the same UID",
                hint="a retyped attribute gets a new UID",
                uid=uid,
            )
        if old.name != new.name:
            found.append(AttributeChange(Operation.RENAME, old.name, uid, new.name))
    removed = {before[uid].name: uid for uid in before.keys() - after.keys()}
    added = {after[uid].name: uid for uid in after.keys() - before.keys()}
    found += [AttributeChange(Operation.RETYPE, name, removed[name]) for name in removed.keys() & added.keys()]
    found += [AttributeChange(Operation.REMOVE, name, uid) for name, uid in removed.items() if name not in added]
    found += [AttributeChange(Operation.ADD, name, uid) for name, uid in added.items() if name not in removed]
    return tuple(sorted(found, key=lambda change: (change.operation, change.name, change.uid)))
