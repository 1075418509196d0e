"""Functions in the form in which many are compared at once: a box of values, and parts that have none.

A box says for each attribute which values are allowed. A function that is a conjunction of conditions on one attribute
each is its box, exactly; every attribute list is. Of other functions some parts remain beside the box (`rest`), which
only their texts tell apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from penstock.model.limits import Limits
from penstock.model.values import Schema
from penstock.moderator.lists import Entry, listed, parts
from penstock.selector import Selector
from penstock.selector.algebra import single_box
from penstock.selector.sets import ValueSet, universe
from penstock.trust.caches import Recent

Box: TypeAlias = Mapping[str, ValueSet]
"""The values that are allowed, attribute by attribute; one that is not listed may have any, or none."""


@dataclass(frozen=True, slots=True)
class Form:
    """A function: all of the box, and all of the rest."""

    selector: Selector
    box: Box
    #: the texts of the parts that the box does not say
    rest: frozenset[str]
    #: the texts of all parts
    texts: frozenset[str]
    #: the entries of the list that the function is, where lists are compared
    entries: frozenset[Entry]

    @property
    def exact(self) -> bool:
        """Whether the box says all."""
        return not self.rest


class Forms:
    """The forms of functions over one kind of profiles, made once for each text."""

    def __init__(self, schema: Schema, *, lists: bool, limits: Limits) -> None:
        self.schema = schema
        self._lists = lists
        self._universes = {name: universe(spec) for name, spec in schema.items()}
        self._made: Recent[str, Form] = Recent(limits.moderator_answers)

    def form(self, selector: Selector) -> Form:
        """Return the form of a function.

        Raises `MalformedError` (`moderator.not-a-list`) where lists are compared and this is none.
        """
        made = self._made.get(selector.text)
        if made is None:
            made = self._form(selector)
            self._made.put(selector.text, made)
        return made

    def _form(self, selector: Selector) -> Form:
        box: Box = {}
        rest: list[str] = []
        pieces = parts(selector)
        for part in pieces:
            found = single_box(part, self.schema)
            met = None if found is None else _met(box, found)
            if met is None:
                rest.append(part.text)
            else:
                box = met
        entries = listed(selector) if self._lists else frozenset()
        return Form(selector, box, frozenset(rest), frozenset(part.text for part in pieces), entries)

    def values(self, box: Box, name: str) -> ValueSet:
        """Return the values that a box allows an attribute."""
        return box[name] if name in box else self._universes[name]

    def within(self, inner: Box, outer: Box) -> bool:
        """Say whether all that one box allows another allows."""
        for name, values in outer.items():
            mine = self.values(inner, name)
            if mine != values and not (mine - values).empty:
                return False
        return True


def _met(one: Box, other: Box) -> Box | None:
    """Return what both boxes allow, or None where that is nothing."""
    met = dict(one)
    for name, values in other.items():
        common = met[name] & values if name in met else values
        if common.empty:
            return None
        met[name] = common
    return met
