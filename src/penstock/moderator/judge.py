"""Does one function imply another, part by part, and if not, for whom?

`PlainJudge` says what is meant, with one question to the selector language for each part. `QuickJudge` gives the same
answers and is what a moderator with many rules uses: equal texts first, then sets of values where a function is a
conjunction of conditions on one attribute each, as attribute lists are, then what was asked before, the solver last.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.profiles import Profile
from penstock.model.values import Scalar, Schema
from penstock.moderator.conflicts import Function, Mode
from penstock.moderator.forms import Box, Form, Forms, Row, is_true
from penstock.moderator.lists import Entry, listed, parts
from penstock.moderator.vocabulary import Vocabulary
from penstock.selector import Selector, Verdict, covers
from penstock.trust.caches import Recent


@dataclass(frozen=True, slots=True)
class Implication:
    """Whether whoever satisfies one function satisfies another: if so, nothing is missing."""

    #: the parts of the other function that are not implied
    missing: tuple[Selector, ...] = ()
    #: somebody who satisfies the one and not the other
    witness: Profile | None = None
    #: False: what is missing was not decided in time
    certain: bool = True

    @property
    def holds(self) -> bool:
        """Whether it is certain that nothing is missing."""
        return not self.missing


HOLDS: Final = Implication()


class Judge(Protocol):
    """Whoever answers."""

    mode: Mode

    def implies(self, function: Function, one: Selector, other: Selector) -> Implication:
        """Say whether `one` implies `other`, both being this function of some rule."""


class PlainJudge:
    """The reference: asks about each part, and remembers nothing."""

    def __init__(self, vocabulary: Vocabulary, mode: Mode, *, limits: Limits = DEFAULT_LIMITS) -> None:
        self._vocabulary = vocabulary
        self.mode = mode
        self._limits = limits

    def implies(self, function: Function, one: Selector, other: Selector) -> Implication:
        """Say whether `one` implies `other`.

        By Algorithm 1 that is the case if the list of `one` contains that of `other`; a witness, of which the paper
        does not speak, is somebody who shows it, if there is anybody. Raises `MalformedError`
        (`moderator.not-a-list`) in that mode for what is no list.
        """
        schema = self._vocabulary.profiles(function).attributes
        if self.mode is Mode.ALGORITHM:
            # What conflicting_attributes(other, one) finds.
            lacking = in_list_order(listed(other) - listed(one))
            return replace(ask(one, lacking, schema, self._limits), missing=lacking, certain=True)
        return ask(one, parts(other), schema, self._limits)


class QuickJudge:
    """Gives the answers of `PlainJudge`, and knows most of them before."""

    def __init__(self, vocabulary: Vocabulary, mode: Mode, *, limits: Limits = DEFAULT_LIMITS) -> None:
        self.mode = mode
        self._limits = limits
        self.forms: Mapping[Function, Forms] = {
            function: Forms(vocabulary.profiles(function).attributes, lists=mode is Mode.ALGORITHM, limits=limits)
            for function in Function
        }
        self._answers: Recent[tuple[Function, str, str], Implication] = Recent(limits.moderator_answers)
        #: about single parts, which many functions have in common
        self._parts: Recent[tuple[Function, str, str], Implication] = Recent(limits.moderator_answers)

    def implies(self, function: Function, one: Selector, other: Selector) -> Implication:
        """Say whether `one` implies `other`; as `PlainJudge` does."""
        if one.text == other.text:
            return HOLDS
        asked = (function, one.text, other.text)
        answer = self._answers.get(asked)
        if answer is None:
            answer = self._implies(function, one, other)
            self._answers.put(asked, answer)
        return answer

    def shows(self, function: Function, selector: Selector) -> bool:
        """Say whether somebody is known who satisfies a function."""
        forms = self.forms[function]
        form = forms.form(selector)
        # No box is empty.
        return form.exact or forms.somebody(form) is not None

    def side(self, function: Function) -> "Side":
        """Return what one needs to weigh one of the two functions."""
        return Side(function, self)

    def _implies(self, function: Function, one: Selector, other: Selector) -> Implication:
        forms = self.forms[function]
        given, wanted = forms.form(one), forms.form(other)
        if self.mode is Mode.ALGORITHM:
            lacking = in_list_order(wanted.entries - given.entries)
            return replace(self._ask(function, given, wanted, lacking), missing=lacking, certain=True)
        return self._ask(function, given, wanted, wanted.parts)

    def _ask(self, function: Function, given: Form, wanted: Form, asked: Iterable[Selector]) -> Implication:
        """Ask about parts of `wanted`, in the selector language only about those that sets of values do not settle."""
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

    def _ask_part(self, function: Function, given: Form, part: Form) -> Implication:
        asked = (function, given.selector.text, part.selector.text)
        answer = self._parts.get(asked)
        if answer is None:
            forms = self.forms[function]
            # Somebody may be near at hand.
            row = _outside(forms, given, part)
            if is_true(given.selector, row) and not is_true(part.selector, row):
                answer = Implication((part.selector,), profile(row))
            else:
                answer = ask(given.selector, (part.selector,), forms.schema, self._limits)
            self._parts.put(asked, answer)
        return answer


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two functions, and whoever judges it: what a summary is weighed with."""

    function: Function
    judge: QuickJudge

    def within(self, inner: Box, outer: Box) -> bool:
        """Say whether all that one box allows another allows."""
        return self.judge.forms[self.function].within(inner, outer)

    def implies(self, one: Selector, other: Selector) -> bool:
        """Say whether one condition surely implies another."""
        return self.judge.implies(self.function, one, other).holds


def _outside(forms: Forms, given: Form, part: Form, wanted: Form | None = None) -> Row:
    """Return somebody who satisfies `given`, with a value that lies outside of the part's box, if it is one.

    Otherwise he is as `wanted` would have him, of whom one can say more than of somebody without attributes.
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


def ask(one: Selector, asked: Iterable[Selector], schema: Schema, limits: Limits) -> Implication:
    """Ask the selector language which of some parts `one` does not imply, and for whom."""
    missing: list[Selector] = []
    witness: Profile | None = None
    for part in asked:
        answer = covers(part, one, schema, limits=limits)
        if answer.verdict is Verdict.YES:
            continue
        missing.append(part)
        if witness is None and answer.witness is not None:
            witness = profile(answer.witness)
    return Implication(tuple(missing), witness, certain=not missing or witness is not None)


def in_list_order(entries: Iterable[Entry]) -> tuple[Selector, ...]:
    """Return entries as parts of a function, in the order of a list."""
    return tuple(entry.selector for entry in sorted(entries, key=lambda entry: entry.order))


def profile(row: Mapping[str, Scalar]) -> Profile:
    """Return a row as somebody's profile: attributes that are null are not in it."""
    return Profile({name: value for name, value in sorted(row.items()) if value is not None})
