"""What rules may speak about: the event types and their tree, and the attributes of both kinds of profiles."""

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass

from penstock.errors import MalformedError
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.names import TypeKey
from penstock.model.profiles import ProfileSchema
from penstock.model.tree import TypeTree
from penstock.model.values import Schema, Value
from penstock.moderator.conflicts import Function
from penstock.moderator.rules import PublishRule, Rule
from penstock.selector import Selector, Verdict, satisfiable
from penstock.selector.ast import Attribute, Between, Compare, In, Literal, Term, walk


def _never(function: Function, selector: Selector) -> bool:  # noqa: ARG001  # nobody is shown
    return False


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tree, with its scope, and the declared attributes of publishers (A_p) and of subscribers (A_s)."""

    tree: TypeTree
    publishers: ProfileSchema
    subscribers: ProfileSchema

    def profiles(self, function: Function) -> ProfileSchema:
        """Return the profiles that a function is about."""
        return self.publishers if function is Function.P else self.subscribers

    def check_type(self, event: TypeKey) -> None:
        """Check that a type is in the tree. Raises `MalformedError` (`moderator.unknown-type`)."""
        if event not in self.tree:
            raise MalformedError(
                "moderator.unknown-type",
                f"there is no event type `{event.name}` of {event.owner.short}",
                hint="add it to the tree first",
            )

    def check(
        self,
        rule: Rule,
        *,
        passed: Container[tuple[Function, str]] = (),
        shown: Callable[[Function, Selector], bool] = _never,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        """Check a rule before anything is done with it.

        (1) The event type is in the tree. Then for each function: (2) it reads declared attributes, as what they are,
        (3) compares them with values that they can have, and (4) somebody satisfies it.

        Functions whose texts have `passed` before are not looked at again. Where somebody is `shown` to satisfy one,
        the solver is not asked.

        Raises `MalformedError`: `moderator.unknown-type`, `moderator.unknown-attribute`, `moderator.domain`,
        `moderator.contradiction`, `moderator.undecided`; `SelectorError` (`selector.type`).
        """
        # (1) Rules are about types that are known.
        self.check_type(rule.event)
        for function, selector in functions(rule):
            if (function, selector.text) in passed:
                continue
            schema = self.profiles(function).attributes
            try:
                _check_words(selector, schema)
                if not shown(function, selector):
                    _check_sense(selector, schema, limits)
            except MalformedError as error:
                if not error.code.startswith("moderator."):
                    raise
                message = f"rule `{rule.id}`, {function}: {error.message}"
                raise MalformedError(error.code, message, hint=error.hint, **error.fields) from error


def functions(rule: Rule) -> tuple[tuple[Function, Selector], ...]:
    """Return the functions of a rule."""
    if isinstance(rule, PublishRule):
        return ((Function.P, rule.fnc_p), (Function.S, rule.fnc_s))
    return ((Function.P, rule.fnc_p),)


def _check_words(selector: Selector, schema: Schema) -> None:
    # (2) The attributes come first: what reads others cannot be typed.
    unknown = sorted(selector.attributes - set(schema))
    if unknown:
        raise MalformedError(
            "moderator.unknown-attribute",
            f"such profiles have no attribute `{unknown[0][:80]}`",
            hint=f"they have: {', '.join(schema) or 'none'}",
        )
    selector.check(schema)
    # (3) A condition with a value that cannot occur is a mistake, though it has a meaning.
    for name, value in _compared(selector):
        domain = schema[name].domain
        if domain is not None and not domain.contains(value):
            raise MalformedError(
                "moderator.domain",
                f"attribute `{name}` is compared with a value outside its declared domain",
                hint="correct the value, or declare a wider domain",
            )


def _check_sense(selector: Selector, schema: Schema, limits: Limits) -> None:
    # (4) A function that admits nobody is a mistake, not a policy.
    verdict = satisfiable(selector, schema, limits=limits).verdict
    if verdict is Verdict.NO:
        raise MalformedError(
            "moderator.contradiction", "nobody can satisfy the function", hint="its parts exclude each other"
        )
    if verdict is Verdict.UNKNOWN:
        raise MalformedError(
            "moderator.undecided",
            "whether anybody can satisfy the function was not found out in time",
            hint="say it with less arithmetic and fewer patterns",
        )


def _compared(selector: Selector) -> Iterator[tuple[str, Value]]:
    for node in walk(selector.root):
        match node:
            case Compare(_, left, right):
                yield from _pairs(left, (right,))
                yield from _pairs(right, (left,))
            case Between(value, low, high):
                yield from _pairs(value, (low, high))
            case In(value, items):
                yield from _pairs(value, items)


def _pairs(term: Term, others: tuple[Term, ...]) -> Iterator[tuple[str, Value]]:
    if isinstance(term, Attribute):
        for other in others:
            if isinstance(other, Literal) and other.value is not None:
                yield term.name, other.value
