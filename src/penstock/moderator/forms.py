"""Functions in the form in which many are compared at once: a box of values, and parts that have none.

A box says for each attribute which values are allowed. A function that is a conjunction of conditions on one attribute
each is its box, exactly; every attribute list is. Of other functions some parts remain beside the box (`rest`), which
only their texts tell apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from penstock.errors import EvaluationError
from penstock.model.limits import Limits
from penstock.model.values import Scalar, Schema
from penstock.moderator.lists import Entry, listed, parts
from penstock.selector import Selector, evaluate, satisfiable
from penstock.selector.algebra import single_box
from penstock.selector.ast import And, Condition
from penstock.selector.sets import ValueSet, universe
from penstock.trust.caches import Recent

Box: TypeAlias = Mapping[str, ValueSet]
"""The values that are allowed, attribute by attribute; one that is not listed may have any, or none."""

Row: TypeAlias = Mapping[str, Scalar]
"""A profile as a selector reads it."""


@dataclass(frozen=True, slots=True)
class Form:
    """A function: all of the box, and all of the rest."""

    selector: Selector
    #: what the function demands, piece by piece, and the texts of that
    parts: tuple[Selector, ...]
    texts: frozenset[str]
    box: Box
    #: the parts that the box does not say
    rest: frozenset[Selector]
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
        self._limits = limits
        self._made: Recent[str, Form] = Recent(limits.moderator_answers)
        self._rows: Recent[str, Row] = Recent(limits.moderator_answers)
        self._cut: Recent[Condition, Selector] = Recent(limits.moderator_answers)
        self._outside: Recent[tuple[str, ValueSet], tuple[Scalar]] = Recent(limits.moderator_answers)

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
        pieces = self._pieces(selector)
        texts = frozenset(part.text for part in pieces)
        if len(pieces) == 1:
            entries = listed(selector) if self._lists else frozenset()
            found = single_box(selector, self.schema)
            return Form(selector, pieces, texts, found or {}, frozenset(pieces if found is None else ()), entries)
        box: Box = {}
        rest: set[Selector] = set()
        forms = [self.form(piece) for piece in pieces]
        for form in forms:
            met = _met(box, form.box)
            rest.update(form.rest if met is not None else form.parts)
            box = box if met is None else met
        return Form(selector, pieces, texts, box, frozenset(rest), self._entries(selector, forms))

    def _entries(self, selector: Selector, forms: list[Form]) -> frozenset[Entry]:
        """Return the entries of a function, which its parts know unless several are about the same."""
        if not self._lists:
            return frozenset()
        entries = frozenset[Entry]().union(*(form.entries for form in forms))
        return entries if len({entry.order for entry in entries}) == len(entries) else listed(selector)

    def _pieces(self, selector: Selector) -> tuple[Selector, ...]:
        """Return the parts of a function; those that other functions have too are cut out once."""
        if not isinstance(selector.root, And):
            return parts(selector)
        known = [self._cut.get(operand) for operand in selector.root.operands]
        if None not in known:
            return tuple(piece for piece in known if piece is not None)
        pieces = parts(selector)
        for operand, piece in zip(selector.root.operands, pieces, strict=True):
            self._cut.put(operand, piece)
        return pieces

    def somebody(self, form: Form) -> Row | None:
        """Return a row on which the function is TRUE, of attributes that it reads; None where none is known."""
        known = self._rows.get(form.selector.text)
        if known is None:
            known = self._put_together(form)
            if known is None:
                known = satisfiable(form.selector, self.schema, limits=self._limits).witness
            if known is not None:
                self._rows.put(form.selector.text, known)
        return known

    def _put_together(self, form: Form) -> Row | None:
        """Return somebody out of those who satisfy the parts, if that will do."""
        row = {name: values.example() for name, values in form.box.items()}
        if form.exact:
            return row
        if len(form.parts) == 1:
            return None
        for part in sorted(form.rest, key=lambda part: part.text):
            row = {**(self.somebody(self.form(part)) or {}), **row}
        return row if is_true(form.selector, row) else None

    def outside(self, box: Box, name: str, values: ValueSet) -> tuple[Scalar] | None:
        """Return a value that a box allows an attribute, and that is none of these; None where there is none."""
        if name in box:
            return _member(box[name] - values)
        found = self._outside.get((name, values))
        if found is None:
            found = _member(self._universes[name] - values)
            if found is not None:
                self._outside.put((name, values), found)
        return found

    def values(self, box: Box, name: str) -> ValueSet:
        """Return the values that a box allows an attribute."""
        return box[name] if name in box else self._universes[name]

    def within(self, inner: Box, outer: Box) -> bool:
        """Say whether all that one box allows another allows."""
        return all(holds(values, self.values(inner, name)) for name, values in outer.items())


def is_true(selector: Selector, row: Row) -> bool:
    """Say whether a function is TRUE on a row; where it has no value it is not."""
    try:
        return evaluate(selector, row) is True
    except EvaluationError:
        return False


def holds(outer: ValueSet, inner: ValueSet) -> bool:
    """Say whether one set holds another, as `(inner - outer).empty` does, which takes longer."""
    if inner is outer:
        return True
    if (inner.null and not outer.null) or (inner.nan and not outer.nan):
        return False
    at = 0
    for low, high in inner.spans:
        # Spans are in order and do not touch: one that holds this one is the first that does not end before it.
        while at < len(outer.spans) and outer.spans[at][1] is not None and outer.spans[at][1] <= low:
            at += 1
        if at == len(outer.spans):
            return False
        start, end = outer.spans[at]
        if low < start or (end is not None and (high is None or high > end)):
            return False
    return True


def _member(values: ValueSet) -> tuple[Scalar] | None:
    return None if values.empty else (values.example(),)


def _met(one: Box, other: Box) -> Box | None:
    """Return what both boxes allow, or None where that is nothing."""
    met = dict(one)
    for name, values in other.items():
        common = met[name] & values if name in met else values
        if common.empty:
            return None
        met[name] = common
    return met
