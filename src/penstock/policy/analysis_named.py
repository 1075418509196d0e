"""The values and attributes that policies name, of which the scales of an analysis are made."""

from typing import TYPE_CHECKING

from penstock.policy.analysis_scales import known_type
from penstock.policy.datatypes import BOOLEAN, INTEGER, DataType, Value
from penstock.policy.expressions import Apply, ApplyEach, ApplyPath, Designator, Expression, Literal
from penstock.policy.policies import Duties, PolicyReference, PolicySet, Root, Target

if TYPE_CHECKING:
    from penstock.policy.requests import Key


class Named:
    """The values and attributes that policies name."""

    def __init__(self) -> None:
        self.values: dict[DataType, set[Value]] = {BOOLEAN: set()}
        self.keys: set[Key] = set()

    def root(self, root: Root) -> None:
        """Add what a policy or a policy set names."""
        self._target(root.target)
        self._duties(root.duties)
        if isinstance(root, PolicySet):
            for member in root.members:
                if not isinstance(member, PolicyReference):
                    self.root(member)
            return
        for expression in root.variables.values():
            self._expression(expression)
        for rule in root.rules:
            self._target(rule.target)
            self._duties(rule.duties)
            if rule.condition is not None:
                self._expression(rule.condition)

    def _target(self, target: Target) -> None:
        for match in (match for any_of in target for all_of in any_of for match in all_of):
            self._value(match.value, match.of)
            self._expression(match.attribute)

    def _duties(self, duties: Duties) -> None:
        for duty in (*duties.obligations, *duties.advice):
            for assignment in duty.assignments:
                self._expression(assignment.expression)

    def _expression(self, expression: Expression) -> None:
        match expression:
            case Literal(value, of_type):
                self._value(value, of_type)
            case Designator():
                self.keys.add(expression.key)
            case ApplyEach(_, _, arguments) | ApplyPath(_, arguments):
                for argument in arguments:
                    self._expression(argument)
            case Apply(function, arguments):
                if function.name.endswith(("-bag", "-bag-size")):
                    # what a bag may have for its size
                    self.values.setdefault(INTEGER, set()).update((0, 1, 2, len(arguments)))
                for argument in arguments:
                    self._expression(argument)

    def _value(self, value: Value, of_type: DataType) -> None:
        if known_type(of_type):
            self.values.setdefault(of_type, set()).add(value)
