"""Decide whether one function implies another, part by part, and find a profile that shows if not.

`PlainJudge` is the reference, with one question to the selector language for each part. `QuickJudge` gives the same
answers for moderators with many rules: it compares texts first, then value sets if a function is a conjunction of
conditions on single attributes, as attribute lists are, then looks for earlier answers, and asks the solver last.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeAlias

from penstock.errors import EvaluationError
from penstock.model.names import TypeKey
from penstock.model.profiles import Profile
from penstock.model.tree import TreeScope
from penstock.model.values import Scalar, Schema
from penstock.moderator.limits import MODERATOR_LIMITS, ModeratorLimits
from penstock.moderator.rules.rules import (
    Conflict,
    ConflictKind,
    ListEntry,
    Mode,
    Party,
    PublishRule,
    RuleFunction,
    demands,
    listed,
    parts,
)
from penstock.moderator.rules.vocabulary import Vocabulary
from penstock.selector import AnalysisVerdict, Selector, covers, evaluate, satisfiable
from penstock.selector.algebra import Box, meet, single_box
from penstock.selector.ast import And, Condition
from penstock.selector.sets import ValueSet, universe
from penstock.trust.caches import Recent

# ----------------------------------------------------------------------------------------------------------------------
# Functions in a form for fast comparison: a box of values, and the remaining parts.
#
# A box says for each attribute which values are allowed. A function that is a conjunction of conditions on single
# attributes, such as an attribute list, equals its box. Other functions have parts besides the box (`rest`), which are
# compared by their texts.


Row: TypeAlias = Mapping[str, Scalar]
"""A profile as a selector reads it."""


@dataclass(frozen=True, slots=True)
class FunctionForm:
    """A function: all of the box, and all of the rest."""

    selector: Selector
    #: the parts of the function, and their texts
    parts: tuple[Selector, ...]
    texts: frozenset[str]
    box: Box
    #: the parts that the box does not contain
    rest: frozenset[Selector]
    #: the entries of the function's list, if lists are compared
    entries: frozenset[ListEntry]

    @property
    def exact(self) -> bool:
        """Return whether the box equals the function."""
        return not self.rest


class Forms:
    """The forms of functions over one kind of profiles, computed once for each text."""

    def __init__(self, schema: Schema, *, lists: bool, limits: ModeratorLimits) -> None:
        self.schema = schema
        self._lists = lists
        self._universes = {name: universe(spec) for name, spec in schema.items()}
        self._limits = limits
        self._made: Recent[str, FunctionForm] = Recent(limits.moderator_answers)
        self._rows: Recent[str, Row] = Recent(limits.moderator_answers)
        self._cut: Recent[Condition, Selector] = Recent(limits.moderator_answers)
        self._outside: Recent[tuple[str, ValueSet], tuple[Scalar]] = Recent(limits.moderator_answers)

    def form(self, selector: Selector) -> FunctionForm:
        """Return the form of a function.

        Raises `MalformedError` (`moderator.not-a-list`) if lists are compared and the function is not a list.
        """
        made = self._made.get(selector.text)
        if made is None:
            made = self._form(selector)
            self._made.put(selector.text, made)
        return made

    def _form(self, selector: Selector) -> FunctionForm:
        pieces = self._pieces(selector)
        texts = frozenset(part.text for part in pieces)
        if len(pieces) == 1:
            entries = listed(selector) if self._lists else frozenset()
            found = single_box(selector, self.schema)
            return FunctionForm(
                selector, pieces, texts, found or {}, frozenset(pieces if found is None else ()), entries
            )
        box: Box = {}
        rest: set[Selector] = set()
        forms = [self.form(piece) for piece in pieces]
        for form in forms:
            met = meet(box, form.box)
            rest.update(form.rest if met is not None else form.parts)
            box = box if met is None else met
        return FunctionForm(selector, pieces, texts, box, frozenset(rest), self._entries(selector, forms))

    def _entries(self, selector: Selector, forms: list[FunctionForm]) -> frozenset[ListEntry]:
        """Return the entries of a function: those of its parts, unless several are about the same attribute."""
        if not self._lists:
            return frozenset()
        entries = frozenset[ListEntry]().union(*(form.entries for form in forms))
        return entries if len({entry.order for entry in entries}) == len(entries) else listed(selector)

    def _pieces(self, selector: Selector) -> tuple[Selector, ...]:
        """Return the parts of a function; equal parts of functions are shared."""
        if not isinstance(selector.root, And):
            return parts(selector)
        known = [self._cut.get(operand) for operand in selector.root.operands]
        if None not in known:
            return tuple(piece for piece in known if piece is not None)
        pieces = parts(selector)
        for operand, piece in zip(selector.root.operands, pieces, strict=True):
            self._cut.put(operand, piece)
        return pieces

    def somebody(self, form: FunctionForm) -> Row | None:
        """Return a row of the function's attributes on which it is TRUE; None if no such row is known."""
        known = self._rows.get(form.selector.text)
        if known is None:
            known = self._put_together(form)
            if known is None:
                known = satisfiable(form.selector, self.schema, limits=self._limits).witness
            if known is not None:
                self._rows.put(form.selector.text, known)
        return known

    def _put_together(self, form: FunctionForm) -> Row | None:
        """Combine the rows that satisfy the parts, if the result satisfies the function."""
        row = {name: values.example() for name, values in form.box.items()}
        if form.exact:
            return row
        if len(form.parts) == 1:
            return None
        for part in sorted(form.rest, key=lambda part: part.text):
            row = {**(self.somebody(self.form(part)) or {}), **row}
        return row if is_true(form.selector, row) else None

    def outside(self, box: Box, name: str, values: ValueSet) -> tuple[Scalar] | None:
        """Return a value of an attribute that one box allows and these values do not contain; None if there is none."""
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
        """Return whether one box contains another."""
        return all(values.holds(self.values(inner, name)) for name, values in outer.items())


def is_true(selector: Selector, row: Row) -> bool:
    """Return whether a function is TRUE on a row; unknown is not TRUE."""
    try:
        return evaluate(selector, row) is True
    except EvaluationError:
        return False


def _member(values: ValueSet) -> tuple[Scalar] | None:
    return None if values.empty else (values.example(),)


# ----------------------------------------------------------------------------------------------------------------------
# Implication between two functions.


@dataclass(frozen=True, slots=True)
class Implication:
    """The answer whether one function implies another: if so, nothing is missing."""

    #: the parts of the other function that are not implied
    missing: tuple[Selector, ...] = ()
    #: a profile that satisfies the one and not the other
    witness: Profile | None = None
    #: False if the missing parts were not decided in time
    certain: bool = True

    @property
    def holds(self) -> bool:
        """Return whether the implication is certain."""
        return not self.missing


HOLDS: Final = Implication()


class FunctionJudge(Protocol):
    """Decides implications."""

    mode: Mode

    def implies(self, function: RuleFunction, one: Selector, other: Selector) -> Implication:
        """Return whether `one` implies `other`; both are this function of some rule."""


class PlainJudge:
    """The reference: asks the selector language about each part, without a cache."""

    def __init__(self, vocabulary: Vocabulary, mode: Mode, *, limits: ModeratorLimits = MODERATOR_LIMITS) -> None:
        self._vocabulary = vocabulary
        self.mode = mode
        self._limits = limits

    def implies(self, function: RuleFunction, one: Selector, other: Selector) -> Implication:
        """Return whether `one` implies `other`.

        By Algorithm 1 it does if the list of `one` contains that of `other`; a witness, which the paper does not have,
        is a profile that shows the difference, if there is one. Raises `MalformedError` (`moderator.not-a-list`) in
        that mode if a function is not a list.
        """
        schema = self._vocabulary.profiles(function).attributes
        if self.mode is Mode.ALGORITHM:
            # conflicting_attributes(other, one) of the paper
            lacking = in_list_order(listed(other) - listed(one))
            return replace(ask(one, lacking, schema, self._limits), missing=lacking, certain=True)
        return ask(one, parts(other), schema, self._limits)


class QuickJudge:
    """Gives the answers of `PlainJudge`, usually without the solver."""

    def __init__(self, vocabulary: Vocabulary, mode: Mode, *, limits: ModeratorLimits = MODERATOR_LIMITS) -> None:
        self.mode = mode
        self._limits = limits
        self.forms: Mapping[RuleFunction, Forms] = {
            function: Forms(vocabulary.profiles(function).attributes, lists=mode is Mode.ALGORITHM, limits=limits)
            for function in RuleFunction
        }
        self._answers: Recent[tuple[RuleFunction, str, str], Implication] = Recent(limits.moderator_answers)
        #: answers about single parts, which many functions share
        self._parts: Recent[tuple[RuleFunction, str, str], Implication] = Recent(limits.moderator_answers)

    def implies(self, function: RuleFunction, one: Selector, other: Selector) -> Implication:
        """Return whether `one` implies `other`, as `PlainJudge` does."""
        if one.text == other.text:
            return HOLDS
        asked = (function, one.text, other.text)
        answer = self._answers.get(asked)
        if answer is None:
            answer = self._implies(function, one, other)
            self._answers.put(asked, answer)
        return answer

    def shows(self, function: RuleFunction, selector: Selector) -> bool:
        """Return whether a profile is known that satisfies a function."""
        forms = self.forms[function]
        form = forms.form(selector)
        # Boxes are never empty.
        return form.exact or forms.somebody(form) is not None

    def side(self, function: RuleFunction) -> "Side":
        """Return one of the two functions with its judge."""
        return Side(function, self)

    def _implies(self, function: RuleFunction, one: Selector, other: Selector) -> Implication:
        forms = self.forms[function]
        given, wanted = forms.form(one), forms.form(other)
        if self.mode is Mode.ALGORITHM:
            lacking = in_list_order(wanted.entries - given.entries)
            return replace(self._ask(function, given, wanted, lacking), missing=lacking, certain=True)
        return self._ask(function, given, wanted, wanted.parts)

    def _ask(
        self, function: RuleFunction, given: FunctionForm, wanted: FunctionForm, asked: Iterable[Selector]
    ) -> Implication:
        """Compare parts of `wanted`; ask the selector language only about those that value sets do not settle."""
        forms = self.forms[function]
        missing: list[Selector] = []
        witness: Profile | None = None
        for part in asked:
            if part.text in given.texts:
                continue
            form = forms.form(part)
            if form.exact and forms.within(given.box, form.box):
                continue
            if not (given.exact and form.exact):
                answer = self._ask_part(function, given, form)
                if answer.holds:
                    continue
                witness = witness or answer.witness
            elif witness is None:
                witness = profile(_outside(forms, given, form, wanted))
            missing.append(part)
        return Implication(tuple(missing), witness, certain=not missing or witness is not None)

    def _ask_part(self, function: RuleFunction, given: FunctionForm, part: FunctionForm) -> Implication:
        asked = (function, given.selector.text, part.selector.text)
        answer = self._parts.get(asked)
        if answer is None:
            forms = self.forms[function]
            # A known row may serve as the witness.
            row = _outside(forms, given, part)
            if is_true(given.selector, row) and not is_true(part.selector, row):
                answer = Implication((part.selector,), profile(row))
            else:
                answer = ask(given.selector, (part.selector,), forms.schema, self._limits)
            self._parts.put(asked, answer)
        return answer


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two functions and its judge, to which summaries are compared."""

    function: RuleFunction
    judge: QuickJudge

    def within(self, inner: Box, outer: Box) -> bool:
        """Return whether one box contains another."""
        return self.judge.forms[self.function].within(inner, outer)

    def implies(self, one: Selector, other: Selector) -> bool:
        """Return whether one condition certainly implies another."""
        return self.judge.implies(self.function, one, other).holds


def _outside(forms: Forms, given: FunctionForm, part: FunctionForm, wanted: FunctionForm | None = None) -> Row:
    """Return a row that satisfies `given`, with a value outside the part's box, if the part is a box.

    Other attributes are as `wanted` requires, which is more informative than a profile without attributes.
    """
    row: dict[str, Scalar] = {}
    if wanted is not None and wanted.exact:
        row.update(forms.somebody(wanted) or {})
    row.update(forms.somebody(given) or {})
    for name, values in part.box.items():
        found = forms.outside(given.box, name, values)
        if found is not None:
            row[name] = found[0]
            break
    return row


def ask(one: Selector, asked: Iterable[Selector], schema: Schema, limits: ModeratorLimits) -> Implication:
    """Ask the selector language which of some parts `one` does not imply, with a witness."""
    missing: list[Selector] = []
    witness: Profile | None = None
    for part in asked:
        answer = covers(part, one, schema, limits=limits)
        if answer.verdict is AnalysisVerdict.YES:
            continue
        missing.append(part)
        if witness is None and answer.witness is not None:
            witness = profile(answer.witness)
    return Implication(tuple(missing), witness, certain=not missing or witness is not None)


def in_list_order(entries: Iterable[ListEntry]) -> tuple[Selector, ...]:
    """Return entries as parts of a function, in the order of a list."""
    return tuple(entry.selector for entry in sorted(entries, key=lambda entry: entry.order))


def profile(row: Mapping[str, Scalar]) -> Profile:
    """Return a row as a profile, without null attributes."""
    return Profile({name: value for name, value in sorted(row.items()) if value is not None})


# ----------------------------------------------------------------------------------------------------------------------
# Conflicts between a candidate and a function in force.


@dataclass(frozen=True, slots=True)
class Difference:
    """A function in which a candidate and rules conflict, as `Conflict` has it."""

    function: RuleFunction
    missing: tuple[Selector, ...]
    extra: tuple[Selector, ...]
    witness: Profile | None
    admitted_by: Party | None
    certain: bool


def conflicts_between(
    candidate: PublishRule, rules: Collection[PublishRule], kind: ConflictKind, scope: TreeScope, judge: FunctionJudge
) -> tuple[Conflict, ...]:
    """Return the conflicts of a candidate with one or more rules on one event type that state the same functions.

    Raises `MalformedError` (`moderator.not-a-list`) in the mode `algorithm`.
    """
    stated = next(iter(rules))
    found = differences(candidate, stated, kind, scope, judge)
    if not found:
        return ()
    ids = (rule.id for rule in rules if judge.mode is not Mode.LITERAL or of_two(candidate, rule))
    return tuple(conflicts_with(stated.event, tuple(sorted(ids)), kind, found))


def differences(
    candidate: PublishRule, stated: PublishRule, kind: ConflictKind, scope: TreeScope, judge: FunctionJudge
) -> tuple[Difference, ...]:
    """Compare the functions of a candidate with those of a rule in force. Raises as `conflicts_between`."""
    if candidate.fnc_p.text == stated.fnc_p.text and candidate.fnc_s.text == stated.fnc_s.text:
        return ()
    wanted = demands(kind, scope, judge.mode)
    found: list[Difference] = []
    for function, mine, theirs in (
        (RuleFunction.P, candidate.fnc_p, stated.fnc_p),
        (RuleFunction.S, candidate.fnc_s, stated.fnc_s),
    ):
        onward = judge.implies(function, mine, theirs) if wanted.candidate_implies else HOLDS
        back = judge.implies(function, theirs, mine) if wanted.rule_implies else HOLDS
        if not (onward.holds and back.holds):
            found.append(_difference(function, onward, back))
    # Definition 1: a publisher and a subscriber exist that satisfy exactly one of the functions.
    return () if judge.mode is Mode.LITERAL and len(found) < len(RuleFunction) else tuple(found)


def conflicts_with(
    event: TypeKey, ids: tuple[str, ...], kind: ConflictKind, found: Iterable[Difference]
) -> list[Conflict]:
    """Return the conflicts with the rules of these ids, sorted; nothing if there are no rules."""
    if not ids:
        return []
    return [
        Conflict(event, ids, kind, f.function, f.missing, f.extra, f.witness, f.admitted_by, f.certain) for f in found
    ]


def of_two(candidate: PublishRule, rule: PublishRule) -> bool:
    """Return whether publishers P1 of the one and P2 of the other exist with P1 ≠ P2, as in Definition 1."""
    return len({*candidate.publishers, *rule.publishers}) > 1


def _difference(function: RuleFunction, onward: Implication, back: Implication) -> Difference:
    """Return what the candidate's function does not imply (`onward`), and what the rules' does not (`back`)."""
    witness, admitted_by = onward.witness, Party.CANDIDATE
    if witness is None:
        witness, admitted_by = back.witness, Party.RULE
    return Difference(
        function,
        onward.missing,
        back.missing,
        witness,
        admitted_by if witness is not None else None,
        certain=any(answer.certain and not answer.holds for answer in (onward, back)),
    )
