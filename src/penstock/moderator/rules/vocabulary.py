"""The vocabulary of rules: the event types and their tree, and the attributes of both kinds of profiles."""

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Final

from penstock.codec.sexp import ListForm, RecordParts, SExp, text
from penstock.codec.values import spec_from_sexp, spec_to_sexp
from penstock.errors import MalformedError, did_you_mean
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.profiles import ProfileSchema
from penstock.model.tree import TreeScope, TypeTree
from penstock.model.values import Schema, Value
from penstock.moderator.limits import MODERATOR_LIMITS, ModeratorLimits
from penstock.moderator.rules.rules import PublishRule, Rule, RuleFunction
from penstock.selector import AnalysisVerdict, Selector, satisfiable
from penstock.selector.ast import AttributeReference, Between, Compare, In, Literal, Term, walk
from penstock.trust.signed import StatementRecord, malformed, read_owner


def _never(function: RuleFunction, selector: Selector) -> bool:  # noqa: ARG001  # nobody is shown
    return False


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tree, with its scope, and the declared attributes of publishers (A_p) and of subscribers (A_s)."""

    tree: TypeTree
    publishers: ProfileSchema
    subscribers: ProfileSchema

    def profiles(self, function: RuleFunction) -> ProfileSchema:
        """Return the profiles that a function is about."""
        return self.publishers if function is RuleFunction.P else self.subscribers

    def check_type(self, event: TypeKey) -> None:
        """Check that a type is in the tree. Raises `MalformedError` (`moderator.unknown-type`)."""
        if event not in self.tree:
            of_owner = (one.name for one in self.tree.parents if one.owner == event.owner)
            raise MalformedError(
                "moderator.unknown-type",
                f"there is no event type `{event.name}` of {event.owner.short}",
                hint=did_you_mean(event.name, of_owner, "add it to the tree first"),
            )

    def check(
        self,
        rule: Rule,
        *,
        passed: Container[tuple[RuleFunction, str]] = (),
        shown: Callable[[RuleFunction, Selector], bool] = _never,
        limits: ModeratorLimits = MODERATOR_LIMITS,
    ) -> None:
        """Check a rule before anything is done with it.

        (1) The event type is in the tree. Then for each function: (2) it reads declared attributes, with their kinds,
        (3) compares them with values that they can have, and (4) some profile satisfies it.

        Functions whose texts have `passed` before are not checked again. If a profile is `shown` to satisfy one, the
        solver is not asked.

        Raises `MalformedError`: `moderator.unknown-type`, `moderator.unknown-attribute`, `moderator.domain`,
        `moderator.contradiction`, `moderator.undecided`; `SelectorError` (`selector.type`).
        """
        # (1) Rules must be about known types.
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


def functions(rule: Rule) -> tuple[tuple[RuleFunction, Selector], ...]:
    """Return the functions of a rule."""
    if isinstance(rule, PublishRule):
        return ((RuleFunction.P, rule.fnc_p), (RuleFunction.S, rule.fnc_s))
    return ((RuleFunction.P, rule.fnc_p),)


def _check_words(selector: Selector, schema: Schema) -> None:
    # (2) Attributes first: a function with unknown attributes cannot be typed.
    unknown = sorted(selector.attributes - set(schema))
    if unknown:
        raise MalformedError(
            "moderator.unknown-attribute",
            f"profiles have no attribute `{unknown[0][:80]}`",
            hint=did_you_mean(unknown[0], schema, f"they have: {', '.join(schema) or 'none'}"),
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


def _check_sense(selector: Selector, schema: Schema, limits: ModeratorLimits) -> None:
    # (4) A function that admits nobody is a mistake, not a policy.
    verdict = satisfiable(selector, schema, limits=limits).verdict
    if verdict is AnalysisVerdict.NO:
        raise MalformedError(
            "moderator.contradiction", "nobody can satisfy the function", hint="its parts exclude each other"
        )
    if verdict is AnalysisVerdict.UNKNOWN:
        raise MalformedError(
            "moderator.undecided",
            "it was not decided in time whether anybody can satisfy the function",
            hint="use less arithmetic and fewer patterns",
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
    if isinstance(term, AttributeReference):
        for other in others:
            if isinstance(other, Literal) and other.value is not None:
                yield term.name, other.value


# ----------------------------------------------------------------------------------------------------------------------
# The vocabulary as fields of signed statements:
#
# (scope <scope>) (types (of <owner> <type> …) …) (publishers <attribute> …) (subscribers <attribute> …)
# <type>       (<name>) | (<name> <parent>) | (<name> <owner of the parent> <parent>)
# <attribute>  (<name> <kind> <domain>)


def _write_types(parents: Mapping[TypeKey, TypeKey | None]) -> Iterator[SExp]:
    for owner, events in groupby(sorted(parents), key=lambda event: event.owner):
        yield (b"of", str(owner).encode(), *(_hung(event, parents[event]) for event in events))


def _hung(event: TypeKey, parent: TypeKey | None) -> SExp:
    if parent is None:
        return (event.name.encode(),)
    elsewhere = () if parent.owner == event.owner else (str(parent.owner).encode(),)
    return (event.name.encode(), *elsewhere, parent.name.encode())


def _read_types(groups: tuple[SExp, ...]) -> Iterator[tuple[TypeKey, TypeKey | None]]:
    for group in groups:
        match group:
            case (b"of", owner, *types):
                of = read_owner(owner)
                yield from (_read_hung(of, each) for each in types)
            case _:
                raise malformed("types must be grouped by owner")


def _read_hung(owner: Principal, value: SExp) -> tuple[TypeKey, TypeKey | None]:
    match value:
        case (name,):
            return TypeKey(owner, text(name)), None
        case (name, parent):
            return TypeKey(owner, text(name)), TypeKey(owner, text(parent))
        case (name, other, parent):
            return TypeKey(owner, text(name)), TypeKey(read_owner(other), text(parent))
    raise malformed("a type must have a name, and optionally a parent")


def _write_attributes(schema: ProfileSchema) -> tuple[SExp, ...]:
    return tuple((name.encode(), *spec_to_sexp(spec)) for name, spec in sorted(schema.attributes.items()))


def _read_attributes(listed: tuple[SExp, ...]) -> ProfileSchema:
    found = {}
    for row in listed:
        match row:
            case (name, *spec):
                found[text(name)] = spec_from_sexp(tuple(spec))
            case _:
                raise malformed("an attribute must have a name and a kind")
    return ProfileSchema(found)


_ATTRIBUTES: Final = ListForm(_write_attributes, _read_attributes)


@dataclass(frozen=True, slots=True)
class _VocabularyFields(StatementRecord):
    """The written form of a vocabulary."""

    scope: TreeScope
    types: Annotated[
        Mapping[TypeKey, TypeKey | None],
        ListForm(lambda parents: tuple(_write_types(parents)), lambda groups: dict(_read_types(groups))),
    ]
    publishers: Annotated[ProfileSchema, _ATTRIBUTES]
    subscribers: Annotated[ProfileSchema, _ATTRIBUTES]


VocabularyField = Annotated[
    Vocabulary,
    RecordParts(
        _VocabularyFields,
        lambda words: _VocabularyFields(words.tree.scope, words.tree.parents, words.publishers, words.subscribers),
        lambda read: Vocabulary(TypeTree.of(read.types, read.scope), read.publishers, read.subscribers),
    ),
]
"""The fields of a statement that contain a vocabulary."""
