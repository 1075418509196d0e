"""What is known before an event comes, and what is not: it is evaluated, or tried value by value."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeAlias

from penstock.errors import EvaluationError
from penstock.model.limits import DEFAULT_LIMITS
from penstock.model.values import AttributeSpec, Enumerated, Kind, Ranged
from penstock.model.values import Value as EventValue
from penstock.policy.datatypes import Value
from penstock.policy.evaluate import Scope
from penstock.policy.event_attributes import ENVIRONMENT_FACT, policy_value
from penstock.policy.expressions import Apply, ApplyEach, ApplyPath, Designator, Expression, Reference
from penstock.policy.formulas import Truth
from penstock.policy.lookup import Context, Sources, is_clock
from penstock.policy.requests import ENVIRONMENT, Facts, Key
from penstock.policy.residual_formulas import Variable
from penstock.policy.residual_selector import UnsaidError
from penstock.policy.signatures import Bag

#: asked by nobody: whatever asks for the time is told apart before
_NO_TIME: Final = datetime(2000, 1, 1, tzinfo=UTC)

Variables: TypeAlias = Mapping[str, Expression]
"""The variables that a policy defines."""

Question: TypeAlias = Callable[[Scope], bool]
"""Something that holds or not where everything is known. It raises `EvaluationError`."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Something that is known only when an event comes, and what it may be."""

    variable: Variable
    spec: AttributeSpec


class Knowledge:
    """What is known, and what the event or its moment will tell."""

    def __init__(
        self, known: Facts, unknown: Mapping[Key, Unknown], sources: Sources, asked: set[Key] | None = None
    ) -> None:
        #: what was asked for and is known, or known not to be there
        self.asked: set[Key] = set() if asked is None else asked
        self.sources = sources
        self._known: Facts = {key: values for key, values in known.items() if key not in unknown}
        self._unknown = unknown
        self._context = Context(None, _NO_TIME, sources, self._known)

    def unknown(self, wanted: Designator) -> Variable:
        """Return what an attribute is that is not known yet."""
        return self._unknown[wanted.key].variable

    def missing(self, expression: Expression, variables: Variables) -> set[Unknown]:
        """Return what an expression asks for and is not known yet. Raises `UnsaidError` for what nobody can tell."""
        found: set[Unknown] = set()
        for wanted in _designators(expression, variables):
            if wanted.issuer is None and wanted.key in self._unknown:
                found.add(self._unknown[wanted.key])
                continue
            self.asked.add(wanted.key)
            if wanted.key not in self._known and _of_moment(wanted):
                raise UnsaidError(f"attribute `{wanted.id[:120]}`, which changes with time")
        return found

    def values(self, expression: Expression, variables: Variables) -> tuple[Value, ...] | None:
        """Return the value, or the values, of an expression that asks for nothing unknown; none where it fails."""
        try:
            value = Scope(self._context, variables).value(expression)
        except EvaluationError:
            return None
        return value if isinstance(expression.gives, Bag) else (value,)

    def settled(self, holds: Question, variables: Variables) -> Truth:
        """Return whether something holds that asks for nothing unknown."""
        return _answered(holds, Scope(self._context, variables))

    def tried(
        self, holds: Question, variables: Variables, missing: set[Unknown]
    ) -> tuple[Unknown, dict[EventValue | None, Truth]] | None:
        """Return what holds that asks for one unknown thing, for each value that it may have, and for none.

        Returns nothing where it asks for more, or there are too many values.
        """
        if len(missing) != 1:
            return None
        (asked,) = missing
        values = _few_values(asked.spec)
        if values is None:
            return None
        scopes = {value: Scope(self._with(asked, value), variables) for value in (None, *values)}
        return asked, {value: _answered(holds, scope) for value, scope in scopes.items()}

    def _with(self, asked: Unknown, value: EventValue | None) -> Context:
        bag = () if value is None else (policy_value(value),)
        facts = {key: bag for key, one in self._unknown.items() if one == asked}
        return Context(None, _NO_TIME, self.sources, {**self._known, **facts})


def _answered(holds: Question, scope: Scope) -> Truth:
    try:
        found = holds(scope)
    except EvaluationError:
        return Truth(False, False)
    return Truth(found, not found)


def _designators(expression: Expression, variables: Variables) -> Iterator[Designator]:
    """Yield the attributes that an expression asks for. Raises `UnsaidError` for what looks into the request."""
    match expression:
        case Designator():
            yield expression
        case Reference(name):
            yield from _designators(variables[name], variables)
        case ApplyPath(name):
            raise UnsaidError(f"function `{name}`")
        case Apply(function, arguments) | ApplyEach(_, function, arguments):
            if function.within:
                raise UnsaidError(f"function `{function.name}`")
            for argument in arguments:
                yield from _designators(argument, variables)


def _of_moment(wanted: Designator) -> bool:
    """Say whether an attribute is another one when an event comes."""
    fact = wanted.category == ENVIRONMENT and wanted.id.startswith(ENVIRONMENT_FACT) and wanted.issuer is None
    return fact or is_clock(wanted)


def _few_values(spec: AttributeSpec) -> tuple[EventValue, ...] | None:
    """Return all values that there may be, if they are few."""
    match spec:
        case AttributeSpec(Kind.BOOLEAN, None):
            return (False, True)
        case AttributeSpec(_, Enumerated(values)) if len(values) <= DEFAULT_LIMITS.residual_values:
            return tuple(sorted(values))
        case AttributeSpec(Kind.INTEGER, Ranged(int() as low, int() as high)):
            return tuple(range(low, high + 1)) if high - low < DEFAULT_LIMITS.residual_values else None
    return None
