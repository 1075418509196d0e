"""The selector as a value: parsed or built, bounded, and equal to another one that is written the same way."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NoReturn
from typing import Literal as OneOf

from penstock.errors import MalformedError, SelectorError, did_you_mean
from penstock.model.values import Kind, Schema, Value, check_value, kind_of
from penstock.selector.ast import (
    And,
    Arithmetic,
    AttributeReference,
    Between,
    Compare,
    ComparisonOperator,
    Concat,
    Condition,
    In,
    IsNull,
    Like,
    Literal,
    Negate,
    Not,
    Or,
    Term,
    check_size,
    flatten,
    literal,
    map_attributes,
    render,
    too_large,
    walk,
)
from penstock.selector.limits import SELECTOR_LIMITS, SelectorLimits

# ----------------------------------------------------------------------------------------------------------------------
# Check a selector against the kinds of its attributes: SQL's static typing, with five kinds.
#
# Kinds never mix, except integers with floats. Booleans can be tested and compared with = and <> only; timestamps
# can be compared; numbers can be computed with; strings can be compared, matched and joined. NULL goes everywhere.


NUMBERS: Final = frozenset([Kind.INTEGER, Kind.FLOAT])

_EQUALITY: Final = frozenset([ComparisonOperator.EQ, ComparisonOperator.NE])


def check_condition(root: Condition, schema: Schema, text: str, *, null_missing: bool) -> None:
    """Check a tree whose positions refer to `text`.

    Raises `SelectorError`: `selector.unknown-attribute`, `selector.type`.
    """
    _Checker(schema, text, null_missing=null_missing).condition(root)


class _Checker:
    def __init__(self, schema: Schema, text: str, *, null_missing: bool) -> None:
        self.schema = schema
        self.text = text
        self.null_missing = null_missing

    def condition(self, node: Condition) -> None:
        match node:
            case AttributeReference() | Literal():
                kind = self.term(node)
                if kind not in (Kind.BOOLEAN, None):
                    self.fail(
                        node, f"{kind.phrase} stands where a condition must", "compare it, or use a boolean attribute"
                    )
            case Compare(operator, left, right):
                self.comparable(operator, left, right)
            case Between(value, low, high):
                self.comparable(ComparisonOperator.GE, value, low)
                self.comparable(ComparisonOperator.LE, value, high)
            case In(value, items):
                for item in items:
                    self.comparable(ComparisonOperator.EQ, value, item)
            case Like(value):
                self.expect(value, frozenset([Kind.STRING]), "LIKE matches strings")
            case IsNull(value):
                self.term(value)
            case Not(operand):
                self.condition(operand)
            case And(operands) | Or(operands):
                for operand in operands:
                    self.condition(operand)

    def comparable(self, operator: ComparisonOperator, left: Term, right: Term) -> None:
        first, second = self.term(left), self.term(right)
        if Kind.BOOLEAN in (first, second) and operator not in _EQUALITY:
            culprit = left if first is Kind.BOOLEAN else right
            self.fail(culprit, "a boolean has no order", "compare it with = or <>, or use it as a condition")
        if first is None or second is None or first is second or {first, second} <= NUMBERS:
            return
        self.fail(
            right, f"{first.phrase} cannot be compared with {second.phrase}", f"compare it with {first.phrase} or NULL"
        )

    def term(self, node: Term) -> Kind | None:
        """Return the kind of a term; None if it is always null."""
        match node:
            case Literal(_, kind):
                return kind
            case AttributeReference(name):
                return self.attribute(node, name)
            case Negate(operand):
                return self.expect(operand, NUMBERS, "minus takes a number")
            case Arithmetic(operator, left, right):
                hint = f"{operator} takes numbers" + ("; strings are joined with ||" if operator == "+" else "")
                kinds = (self.expect(left, NUMBERS, hint), self.expect(right, NUMBERS, hint))
                return None if None in kinds else Kind.FLOAT if Kind.FLOAT in kinds else Kind.INTEGER
            case Concat(left, right):
                strings = frozenset([Kind.STRING])
                kinds = (
                    self.expect(left, strings, "|| joins strings"),
                    self.expect(right, strings, "|| joins strings"),
                )
                return None if None in kinds else Kind.STRING

    def attribute(self, node: AttributeReference, name: str) -> Kind | None:
        spec = self.schema.get(name)
        if spec is not None:
            return spec.kind
        if self.null_missing:
            return None
        known = ", ".join(sorted(self.schema)[:12])
        listed = f"the attributes are: {known}" if known else "there are no attributes here"
        raise SelectorError(
            "selector.unknown-attribute",
            f"there is no attribute `{name}`",
            text=self.text,
            position=node.at,
            hint=did_you_mean(name, self.schema, listed),
            attribute=name,
        )

    def expect(self, node: Term, kinds: frozenset[Kind], hint: str) -> Kind | None:
        kind = self.term(node)
        if kind is not None and kind not in kinds:
            self.fail(node, f"{kind.phrase} does not go here", hint)
        return kind

    def fail(self, node: Term, message: str, hint: str) -> NoReturn:
        raise SelectorError("selector.type", message, text=self.text, position=node.at, hint=hint)


# ----------------------------------------------------------------------------------------------------------------------
# The selector as a value: parsed or built, bounded, and equal to another one that is written the same way.


@dataclass(frozen=True, slots=True, repr=False)
class Selector:
    """A condition over the attributes of an event, a profile or the environment.

    `text` is its canonical form: `parse(selector.text) == selector`. Two selectors are equal when their canonical
    forms are; use `equivalent` to compare what they mean.
    """

    text: str
    root: Condition = field(compare=False)
    attributes: frozenset[str] = field(compare=False)
    #: the text that the positions in the tree refer to, if there is one
    source: str | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        return f"<Selector {self.text}>"

    def check(self, schema: Schema, *, missing: OneOf["error", "null"] = "error") -> None:
        """Check the selector against the kinds of the attributes.

        With `missing="null"` an attribute that the schema lacks is always null.

        Raises `SelectorError`: `selector.unknown-attribute`, `selector.type`.
        """
        null_missing = missing == "null"
        try:
            check_condition(self.root, schema, self.source or self.text, null_missing=null_missing)
        except SelectorError:
            if self.source is not None:
                raise
            # A selector that was built has no positions; its canonical text has.
            parse(self.text).check(schema, missing=missing)
            raise

    def rename(self, mapping: Mapping[str, str]) -> "Selector":
        """Return the selector with attributes renamed; names that `mapping` lacks stay.

        Raises `LimitError` (`selector.limit`) when the new names make it too long, and `SelectorError`
        (`selector.literal`) for a name that is empty or no Unicode text.
        """

        def change(attribute: AttributeReference) -> Term:
            return AttributeReference(_name(mapping.get(attribute.name, attribute.name)))

        return _rebuilt(self, change)

    def nullify(self, names: Collection[str]) -> "Selector":
        """Return the selector as it reads where the attributes in `names` are hidden: NULL in their place.

        Raises `LimitError` (`selector.limit`) when that makes it too long.
        """

        def change(attribute: AttributeReference) -> Term:
            return literal(None) if attribute.name in names else attribute

        return _rebuilt(self, change)


def _rebuilt(selector: Selector, change: Callable[[AttributeReference], Term]) -> Selector:
    root = map_attributes(selector.root, change)
    # The root of a selector is a condition, and stays one.
    return _build(root, SELECTOR_LIMITS)  # type: ignore[arg-type]


def parse(text: str, *, limits: SelectorLimits = SELECTOR_LIMITS) -> Selector:
    """Parse a selector, without looking at the kinds of its attributes.

    >>> parse("price>24 and stock in ('NOK','ERIC')").text
    "price > 24 AND stock IN ('NOK', 'ERIC')"

    Raises `LimitError` (`selector.limit`) and `SelectorError`: `selector.syntax`, `selector.unsupported`,
    `selector.literal`, `selector.pattern`, `selector.type`. Nothing else, whatever the text.
    """
    # sqlglot takes a fifth of a second to import, which a program that parses nothing should not pay.
    from penstock.selector.grammar import parse_condition  # noqa: PLC0415

    return _build(parse_condition(text, limits), limits, source=text)


def built(root: Condition) -> Selector:
    """Return a condition that a program has put together as a selector.

    Raises `LimitError` (`selector.limit`) when it is too large to be read back.
    """
    return _build(root, SELECTOR_LIMITS)


def conjunction(*selectors: Selector) -> Selector:
    """Return the selector that is TRUE where all are; of none, `ALWAYS`.

    Raises `LimitError` (`selector.limit`) when the result is too large to be read back.
    """
    return _join(And, selectors, unit=ALWAYS, zero=NEVER)


def conjuncts(selector: Selector) -> tuple[Selector, ...]:
    """Return selectors whose conjunction this one is: TRUE where all of them are.

    >>> [part.text for part in conjuncts(parse("a = 1 AND (b = 2 OR c = 3)"))]
    ['a = 1', 'b = 2 OR c = 3']
    """
    if not isinstance(selector.root, And):
        return (selector,)
    return tuple(_build(operand, SELECTOR_LIMITS) for operand in selector.root.operands)


def disjunction(*selectors: Selector) -> Selector:
    """Return the selector that is TRUE where any is; of none, `NEVER`.

    Raises `LimitError` (`selector.limit`) when the result is too large to be read back.
    """
    return _join(Or, selectors, unit=NEVER, zero=ALWAYS)


def negation(selector: Selector) -> Selector:
    """Return NOT of the selector, which is NULL where the selector is.

    Raises `LimitError` (`selector.limit`) when the result is too large to be read back.
    """
    if isinstance(selector.root, Not):
        return _build(selector.root.operand, SELECTOR_LIMITS)
    if selector in (ALWAYS, NEVER):
        return NEVER if selector == ALWAYS else ALWAYS
    return _build(Not(selector.root), SELECTOR_LIMITS)


def equals(name: str, value: Value) -> Selector:
    """Return the selector `name = value`.

    >>> print(equals("license-plate", "AB 123").text)
    "license-plate" = 'AB 123'

    An infinite value, which has no literal, is said as "beyond the largest float". Raises `SelectorError`
    (`selector.literal`) for a NaN, a name that is empty, and any value that no attribute can have.
    """
    attribute = AttributeReference(_name(name))
    try:
        check_value(kind_of(value), value)
        constant = value.astimezone(UTC) if isinstance(value, datetime) else value
    except (MalformedError, OverflowError) as error:
        raise _unwritable("the value cannot be written as a literal") from error
    if isinstance(constant, float):
        if constant != constant:  # noqa: PLR0124  # NaN is the value unequal to itself
            raise _unwritable("NaN equals nothing")
        if constant > _LARGEST:
            return _build(Compare(ComparisonOperator.GT, attribute, literal(_LARGEST)), SELECTOR_LIMITS)
        if constant < -_LARGEST:
            return _build(Compare(ComparisonOperator.LT, attribute, literal(-_LARGEST)), SELECTOR_LIMITS)
    return _build(Compare(ComparisonOperator.EQ, attribute, literal(_plain(constant))), SELECTOR_LIMITS)


def compares(name: str, operator: ComparisonOperator, value: Value) -> Selector:
    """Return the selector `name <operator> value`.

    >>> compares("age", ComparisonOperator.GE, 18).text
    'age >= 18'

    Raises `SelectorError` (`selector.literal`) as `equals` does, and for an infinite value.
    """
    same = equals(name, value).root
    if not isinstance(same, Compare) or same.operator is not ComparisonOperator.EQ:
        raise _unwritable("an infinite value has no literal")
    return _build(Compare(operator, same.left, same.right), SELECTOR_LIMITS)


def _plain(value: Value) -> Value:
    # A subclass (an enumeration, a NumPy float) may print differently from the value that it is.
    match value:
        case bool() | datetime():
            return value
        case str():
            return str.__str__(value)
        case int():
            return int(value)
        case float():
            return float(value)


def _join(kind: type[And] | type[Or], selectors: tuple[Selector, ...], *, unit: Selector, zero: Selector) -> Selector:
    if zero in selectors:
        # Holds for errors too: FALSE AND error is FALSE, TRUE OR error is TRUE.
        return zero
    parts = [selector for selector in dict.fromkeys(selectors) if selector != unit]
    if not parts:
        return unit
    if len(parts) == 1:
        return parts[0]
    return _build(flatten(kind, [part.root for part in parts], 0), SELECTOR_LIMITS)


def _build(root: Condition, limits: SelectorLimits, source: str | None = None) -> Selector:
    check_size(root, limits)
    text = render(root)
    # The canonical text must be readable again after it was stored or sent.
    if len(text) > limits.selector_length:
        raise too_large("length", limits.selector_length, "split the selector")
    names = frozenset(node.name for node in walk(root) if isinstance(node, AttributeReference))
    return Selector(text, root, names, source)


def _name(name: str) -> str:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _unwritable("the name of an attribute holds a lone surrogate") from error
    if not name:
        raise _unwritable("the name of an attribute is empty")
    return name


def _unwritable(message: str) -> SelectorError:
    return SelectorError("selector.literal", message, text="", position=0, hint="use a finite, well-formed value")


_LARGEST: Final = 1.7976931348623157e308

#: TRUE on every row.
ALWAYS: Final = _build(Literal(True, Kind.BOOLEAN), SELECTOR_LIMITS)
#: FALSE on every row.
NEVER: Final = _build(Literal(False, Kind.BOOLEAN), SELECTOR_LIMITS)
