"""Combining the answers of several information points, field by field (section 4.1.1.3 of paper 4). All of it is pure.

| mode | waits for | result |
|---|---|---|
| `first` | one answer | its fields; other answers are discarded (availability) |
| `compose` | an answer for every field | the fields of all answers together (composition) |
| `n:NUMBER` | so many answers for every field, at least 2 | the same; fewer are Null (consistency, integrity) |

A field with several answers has the value with the newest change time. If there are two values with this change time,
the field has no value, and it is reported. A field without a value in time is Null, which makes every evaluation that
uses it Indeterminate.

Of the answers for a field (`first`: of all answers) only those of the domains with the highest priority count. So a
lower one is enough only when time is over: until then a higher one may come.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from penstock.authority.decisions.modes import of_highest_priority
from penstock.authority.limits import POINT_SKEW
from penstock.errors import MalformedError, RefusedError

Priorities: TypeAlias = Mapping[str, int]
"""Priorities by domain; the others have priority 0."""

_HINT: Final = "write `first`, `compose` or `n:NUMBER` with at least 2"
_FEWEST: Final = 2


@dataclass(frozen=True, slots=True)
class TimedValue:
    """The value of an attribute as JSON in its shortest form, and when it was last changed."""

    value: str
    changed: datetime


@dataclass(frozen=True, slots=True)
class InformationAnswer:
    """What one information point answers: the fields that it knows, by the attribute's name."""

    domain: str
    source: str
    fields: Mapping[str, TimedValue]


@dataclass(frozen=True, slots=True)
class CombinedInformation:
    """The fields that were asked for: values, those that are Null, and what to report."""

    fields: Mapping[str, TimedValue]
    #: fields without a value
    null: frozenset[str]
    #: of these, the fields with two values of the same change time
    contradicted: frozenset[str]
    #: fields of which some answers were older than others
    outdated: frozenset[str]

    @property
    def alarm(self) -> RefusedError | None:
        """What to report: fields that information points contradict each other about."""
        if not self.contradicted:
            return None
        return RefusedError(
            "pdp.contradiction",
            f"information points give different values of {', '.join(sorted(self.contradicted))} with one change time",
            hint="compare the sources of these points: one of them was changed without a new change time",
            fields=sorted(self.contradicted),
        )


@dataclass(frozen=True, slots=True)
class InformationMode:
    """How many answers a field needs; None for the first answer alone. See the module."""

    answers: int | None

    @classmethod
    def parse(cls, text: str) -> "InformationMode":
        """Read `first`, `compose` or `n:NUMBER`.

        >>> InformationMode.parse("n:2").answers
        2

        Raises `MalformedError` (`pdp.information-mode`).
        """
        word, _, number = text.partition(":")
        if text == "first":
            return cls(None)
        if text == "compose":
            return cls(1)
        if word == "n" and number.isascii() and number.isdigit() and len(number) < 4 and int(number) >= _FEWEST:
            return cls(int(number))
        raise MalformedError("pdp.information-mode", f"`{text[:80]}` does not combine information", hint=_HINT)


@dataclass(slots=True)
class InformationCollection:
    """The answers to one request, until there are enough."""

    mode: InformationMode
    wanted: frozenset[str]
    priorities: Priorities
    _sources: set[tuple[str, str]] = field(default_factory=set)
    #: the answers of each field in the order in which they came
    _of: dict[str, list[tuple[str, TimedValue]]] = field(default_factory=dict)
    #: with `first`, the answer that counts until a better one comes
    _first: InformationAnswer | None = None
    #: how many answers of the highest priority each field still needs
    _open: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self._open = dict.fromkeys(self.wanted, self.mode.answers or 1)

    @property
    def complete(self) -> bool:
        """Whether no further answer is waited for."""
        return not self._open

    def take(self, answer: InformationAnswer, now: datetime) -> None:
        """Take an answer; fields that were not asked for, or that change only later, do not count.

        The first answer of a source counts, and no other.
        """
        who = (answer.domain, answer.source)
        if who in self._sources:
            return
        self._sources.add(who)
        ahead = now + timedelta(seconds=POINT_SKEW)
        fields = {
            name: found for name, found in answer.fields.items() if name in self.wanted and found.changed <= ahead
        }
        highest = self._priority(answer.domain) >= max((0, *self.priorities.values()))
        if self.mode.answers is None:
            if fields and (self._first is None or self._priority(answer.domain) > self._priority(self._first.domain)):
                self._first = InformationAnswer(answer.domain, answer.source, fields)
                if highest:
                    self._open.clear()
            return
        for name, found in fields.items():
            self._of.setdefault(name, []).append((answer.domain, found))
            if highest and name in self._open:
                self._open[name] -= 1
                if not self._open[name]:
                    del self._open[name]

    def result(self) -> CombinedInformation:
        """Return what the answers so far give."""
        if self.mode.answers is None:
            fields = {} if self._first is None else self._first.fields
            return CombinedInformation(fields, self.wanted - fields.keys(), frozenset(), frozenset())
        fields, contradicted, outdated = {}, set[str](), set[str]()
        for name, answers in self._of.items():
            found = [one for _, one in of_highest_priority(answers, lambda pair: self._priority(pair[0]))]
            if len(found) < self.mode.answers:
                continue
            newest = max(one.changed for one in found)
            values = [one for one in found if one.changed == newest]
            if len(values) < len(found):
                outdated.add(name)
            if len({one.value for one in values}) > 1:
                contradicted.add(name)
            else:
                fields[name] = values[0]
        return CombinedInformation(fields, self.wanted - fields.keys(), frozenset(contradicted), frozenset(outdated))

    def _priority(self, domain: str) -> int:
        return self.priorities.get(domain, 0)
