"""An index of children by the tests that their conditions begin with, so that each distinct test is made once.

Many policies compare attributes with each other, which no value in a target tells apart: `owner == subject-id`. A rule
whose condition begins with a test that does not hold is not applicable, whatever comes after it, as long as nothing
before the test fails. So the tests of all children are made together, each distinct one once, by one function, and only
the children are looked at of which all tests hold.

Of children that say nothing but Permit or Deny as soon as their tests hold, the first of each is enough: no algorithm
tells whether one or a thousand say so. (Only-one-applicable goes by targets, and decision tuples have no index.)

A test is an argument of the condition's `and`, if it has a value wherever each attribute that it needs exactly one
value of has one, and what must be present is. Where an attribute has none or several, children that need it are looked
at. Where an attribute cannot be found, all are.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Final, NamedTuple, TypeAlias

from penstock.policy.expressions import Apply, Designator, Expression, Literal, Reference
from penstock.policy.functions import FUNCTIONS, V1
from penstock.policy.index_ranges import Bags
from penstock.policy.policies import Duties, Effect, Policy, Rule
from penstock.policy.programs import Writer, built
from penstock.policy.signatures import Function

#: what is needed of an attribute: nothing, a value at least, or just one; more of it is a greater number
_LOOKED_UP, _PRESENT, _SINGLE = range(3)
_AND: Final = f"{V1}and"
_ONE: Final = "-one-and-only"
#: ends of the names of functions that have a value for all arguments
_TOTAL_ENDS: Final = (
    "-equal", "-greater-than", "-greater-than-or-equal", "-less-than", "-less-than-or-equal", "-equal-ignore-case",
    "-is-in", "-bag-size", "-at-least-one-member-of", "-subset", "-set-equals", "-union", "-intersection", "-bag",
    "-starts-with", "-ends-with", "-contains", "-in-range", "-normalize-space", "-normalize-to-lower-case",
)  # fmt: skip
_TOTAL: Final = frozenset(
    one
    for one in FUNCTIONS.values()
    if not one.within and (one.name in ("and", "or", "not") or one.name.endswith(_TOTAL_ENDS))
)
#: a condition has so many tests at most, and all together so many distinct ones
_MOST_OF_ONE: Final = 16
_MOST: Final = 16_384

Needed: TypeAlias = Mapping[Designator, int]
"""What is needed of each attribute, so that nothing fails."""


class Lead(NamedTuple):
    """The tests that a rule's condition begins with, and what is needed so that neither they nor its target fail."""

    tests: tuple[Expression, ...]
    needed: Needed
    #: what comes of the rule where they hold, if nothing else is asked and nothing is to be done besides
    decides: Effect | None = None


Leads: TypeAlias = tuple[Lead, ...]
"""Those of all rules of a child: it is not applicable where none of its rules is."""


def leads_of_rule(rule: Rule, variables: Mapping[str, Expression]) -> Leads | None:
    """Return the tests that a rule begins with; none where it has none."""
    needed: dict[Designator, int] = {}
    for match in (match for any_of in rule.target for all_of in any_of for match in all_of):
        found = _needed(match.attribute)
        if match.function not in _TOTAL or found is None:
            return None
        _add(needed, found)
    tests: list[Expression] = []
    whole = True
    for conjunct in _conjuncts(rule.condition, variables, set()):
        found = _needed(conjunct)
        if found is None or len(tests) == _MOST_OF_ONE:
            whole = False
            break
        _add(needed, found)
        tests.append(conjunct)
    sure = whole and not rule.target and not _has_duties(rule.duties)
    return (Lead(tuple(tests), needed, rule.effect if sure else None),) if tests else None


def _has_duties(duties: Duties) -> bool:
    return bool(duties.obligations or duties.advice)


def leads_of_policy(policy: Policy) -> Leads | None:
    """Return the tests that all rules of a policy begin with; none where one of them has none.

    An error in the target of a policy does not count where none of its rules is applicable.
    """
    found = [leads_of_rule(rule, policy.variables) for rule in policy.rules]
    known = [lead for one in found if one is not None for lead in one]
    if not known or len(known) != len(found):
        return None
    if len(known) > 1 or policy.target or _has_duties(policy.duties):
        return tuple(lead._replace(decides=None) for lead in known)
    return tuple(known)


def _conjuncts(
    expression: Expression | None, variables: Mapping[str, Expression], seen: set[str]
) -> Iterator[Expression]:
    """Yield what must hold all together, in the order in which it is looked at; each variable adds something once."""
    match expression:
        case None:
            return
        case Reference(name):
            if name not in seen:
                seen.add(name)
                yield from _conjuncts(variables[name], variables, seen)
        case Apply(function, arguments) if function.id == _AND:
            for argument in arguments:
                yield from _conjuncts(argument, variables, seen)
        case _:
            yield expression


def _needed(expression: object) -> Needed | None:
    """Return what is needed so that an expression has a value; none where that is not known."""
    match expression:
        case Literal():
            return {}
        case Designator(issuer=None):
            return {expression: _PRESENT if expression.must_be_present else _LOOKED_UP}
        case Apply(function, (Designator(issuer=None) as attribute,)) if function.id.endswith(_ONE):
            return {attribute: _SINGLE}
        case Apply(function, arguments) if function in _TOTAL:
            whole: dict[Designator, int] = {}
            for argument in arguments:
                found = _needed(argument)
                if found is None:
                    return None
                _add(whole, found)
            return whole
    return None


def _add(needed: dict[Designator, int], more: Needed) -> None:
    for attribute, how in more.items():
        needed[attribute] = max(how, needed.get(attribute, _LOOKED_UP))


class _Writer(Writer):
    """Writes tests of attributes that were looked up before, and of which there is one value where one is wanted."""

    def __init__(self, attributes: Mapping[Designator, str]) -> None:
        super().__init__({}, {})
        self._attributes = attributes

    def bag(self, attribute: Designator) -> str:
        return self._attributes[attribute]

    def call(self, function: Function, arguments: Sequence[Expression], written: Sequence[str]) -> str:
        if function.id.endswith(_ONE) and isinstance(arguments[0], Designator):
            return f"{written[0]}[0]"
        return super().call(function, arguments, written)


class _Looking(Writer):
    """Writes a test that looks attributes up; what must be present was looked at before."""

    def bag(self, attribute: Designator) -> str:
        return f"(F.get({self.name(attribute.key)}) or C.bag({self.name(attribute)}))"


class _Entry(NamedTuple):
    """A rule of a child, under one of its tests: the place of the child, and the other tests that must hold."""

    place: int
    others: tuple[int, ...]
    decides: Effect | None


class _Group:
    """Rules under one of their tests. `few` has what is enough of them, and `more` the others that all say the same."""

    __slots__ = ("_said", "few", "more")

    def __init__(self) -> None:
        self.few: list[_Entry] = []
        self.more: list[_Entry] = []
        self._said: set[tuple[Effect, tuple[int, ...]]] = set()

    def add(self, entry: _Entry) -> None:
        """Add a rule, in the order of places."""
        if entry.decides is None:
            self.few.append(entry)
            return
        (self.more if (entry.decides, entry.others) in self._said else self.few).append(entry)
        self._said.add((entry.decides, entry.others))


class Comparisons:
    """Children by the tests that must hold where they are applicable."""

    __slots__ = ("_always", "_doubtful", "_groups", "_needs", "_programs", "_quick", "_tests")

    def __init__(self, leads: Sequence[Leads | None]) -> None:
        counted = Counter(test for those in leads for lead in those or () for test in lead.tests)
        numbers = {test: number for number, (test, _) in enumerate(counted.most_common(_MOST))}
        self._tests = [*numbers]
        self._programs: dict[int, Callable[..., object]] = {}
        self._groups = [_Group() for _ in numbers]
        always: list[int] = []
        #: the strictest need of each attribute, and the children that are looked at where some need is not met
        needed: dict[Designator, int] = {}
        self._doubtful: dict[tuple[Designator, int], list[int]] = {}
        for place, those in enumerate(leads):
            entered = [_entered(lead, numbers, counted) for lead in those or ()]
            if not entered or not all(entered):
                always.append(place)
                continue
            for lead, tests in zip(those or (), entered, strict=True):
                # The rarest test, which holds least often, and the others beside it.
                entire = len(tests) == len({*lead.tests})
                self._groups[tests[0]].add(_Entry(place, tests[1:], lead.decides if entire else None))
                _add(needed, lead.needed)
                for need in lead.needed.items():
                    self._doubtful.setdefault(need, []).append(place)
        self._always = tuple(always)
        self._needs = [_needed(test) or {} for test in self._tests]
        self._quick = self._written(needed)

    @classmethod
    def of(cls, leads: Sequence[Leads | None]) -> "Comparisons | None":
        """Return an index, or none where there is nothing to gain."""
        found = cls(leads)
        return found if 2 * len(found._always) < len(leads) else None

    @property
    def size(self) -> int:
        """How many tests are made."""
        return len(self._tests)

    def places(self, context: Bags, *, whole: bool = False) -> Sequence[int]:
        """Return where the children are that may apply, in their order: as many as count, or all of them.

        Raises `EvaluationError`.
        """
        found = {*self._always}
        holds = self._quick(context, context.facts)
        if holds is None:
            holds, doubtful = self._one_by_one(context)
            found.update(doubtful)
        for group in compress(self._groups, holds):
            entries = (*group.few, *group.more) if whole else group.few
            found.update(entry.place for entry in entries if all(map(holds.__getitem__, entry.others)))
        return sorted(found)

    def _one_by_one(self, context: Bags) -> tuple[Sequence[object], set[int]]:
        """Return which tests hold, where not all can be made, and the children for which that is not enough."""
        unmet, places = set(), set[int]()
        for need, children in self._doubtful.items():
            attribute, how = need
            size = len(context.facts.get(attribute.key) or context.bag(attribute))
            if (how == _SINGLE and size != 1) or (how == _PRESENT and not size):
                unmet.add(need)
                places.update(children)
        return [
            unmet.isdisjoint(needs.items()) and self._program(number)(context, context.facts)
            for number, needs in enumerate(self._needs)
        ], places

    def _program(self, number: int) -> Callable[..., object]:
        found = self._programs.get(number)
        if found is None:
            to = _Looking({}, {})
            text = to.expression(self._tests[number])
            found = self._programs[number] = built("C, F", f" return {text}\n", to.names)
        return found

    def _written(self, needed: Needed) -> Callable[..., Sequence[object] | None]:
        """Return a function that makes all tests, or returns none where an attribute has not as many values as needed.

        Raises `EvaluationError`.
        """
        names = {attribute: f"a{number}" for number, attribute in enumerate(needed)}
        to = _Writer(names)
        looked = "".join(
            f" {name} = F.get({to.name(attribute.key)}) or C.bag({to.name(attribute)})\n"
            for attribute, name in names.items()
        )
        wanted = [f"len({names[one]}) == 1" if how == _SINGLE else names[one] for one, how in needed.items() if how]
        tests = "".join(f"{to.expression(test)}, " for test in self._tests)
        check = f" if not ({' and '.join(wanted)}):\n  return None\n" if wanted else ""
        return built("C, F", f"{looked}{check} return ({tests})\n", to.names)


def _entered(lead: Lead, numbers: Mapping[Expression, int], counted: Mapping[Expression, int]) -> tuple[int, ...]:
    known = [test for test in dict.fromkeys(lead.tests) if test in numbers]
    return tuple(numbers[test] for test in sorted(known, key=lambda test: (counted[test], numbers[test])))
